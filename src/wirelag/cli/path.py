"""`wirelag path`: which segment of a route adds the delay."""

from __future__ import annotations

from typing import Annotated

from wirelag.cli.method import EstimatorName
from wirelag.cli.options import (
    ANSWER,
    METHOD,
    Expression,
    Html,
    Interval,
    Output,
    OutputFormat,
    QuestionsOfAll,
    Quiet,
    check_outputs,
)
from wirelag.cli.parser import Argument, Option
from wirelag.cli.progress import progress
from wirelag.cli.run import conclude


def path(
    topology: Annotated[str, Argument(metavar="TOPOLOGY", help="Routers and links; formats as in `wirelag plan`.")],
    reports: Annotated[
        list[str],
        Argument(
            metavar="REPORTS...",
            help="JSON of `wirelag oneway` per segment, as SEGMENT=FILE or FILE; or a folder of captures.",
        ),
    ],
    source: Annotated[
        str | None, Option("--from", metavar="ROUTER", help="First router of the path.", panel=ANSWER)
    ] = None,
    target: Annotated[
        str | None, Option("--to", metavar="ROUTER", help="Last router of the path.", panel=ANSWER)
    ] = None,
    baseline: Annotated[
        list[str] | None,
        Option(
            metavar="REPORT",
            help="The same inputs from a time when nothing was slow; only the increase is blamed.",
            panel=ANSWER,
        ),
    ] = None,
    slow: Annotated[
        str, Option(metavar="D", help="Blame a segment only if it adds more than this.", panel=ANSWER)
    ] = "1ms",
    sla: QuestionsOfAll = None,
    estimator: EstimatorName = "join",
    interval: Interval = None,
    prefix: Annotated[int, Option(metavar="BYTES", help="Payload bytes in packet ids.", panel=METHOD)] = 16,
    expression: Expression = None,
    output_format: OutputFormat = None,
    output: Output = None,
    html: Html = None,
    quiet: Quiet = False,
) -> None:
    """Find the segment that adds the delay.

    It needs reports of a path's segments, or captures at its routers. Without --from it judges every path to --to,
    and without --to every path from --from.
    """
    files = [text.partition("=")[2] or text for text in (*reports, *(baseline or ()))]
    form = check_outputs(output_format, {"-o": output, "--html": html}, [topology, *reports, *(baseline or ()), *files])
    from wirelag.measure.path import path as measure

    result = measure(
        reports,
        topology,
        source=source,
        target=target,
        baseline=baseline or [],
        slow=slow,
        sla=sla or [],
        estimator=estimator,
        interval=interval,
        prefix=prefix,
        filter=expression,
        progress=progress(quiet),
    )
    conclude(result, form, output, html)
