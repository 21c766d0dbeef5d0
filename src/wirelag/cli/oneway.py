"""`wirelag oneway`: delay, loss and reordering between two points."""

from typing import TYPE_CHECKING, Annotated

from wirelag.cli.method import Direction, with_method
from wirelag.cli.options import (
    ANSWER,
    DELAY_FORMATS,
    METHOD,
    Above,
    Cores,
    DelayFormat,
    GroupMemory,
    Html,
    Interval,
    Ipv4Prefix,
    Ipv6Prefix,
    Output,
    Questions,
    Quiet,
    Samples,
    Sort,
    Top,
    Tunnels,
    check_outputs,
    with_filter,
    with_fleet,
)
from wirelag.cli.parser import Argument, Option, UsageError
from wirelag.cli.progress import stoppable
from wirelag.cli.run import conclude
from wirelag.measure.methods import GROUPS
from wirelag.measure.oneway import CLOCKS

if TYPE_CHECKING:
    from wirelag.measure.fleet import Fleet
    from wirelag.measure.methods import Method
    from wirelag.packets.filters import Filter

Points = Annotated[
    list[str],
    Argument(
        metavar="UPSTREAM DOWNSTREAM...",
        help="Captures in the order packets pass them, or files of `wirelag cut`; - is standard input.",
    ),
]


@with_filter
@with_method()
@with_fleet
def oneway(
    points: Points,
    wanted: "Filter",
    method: "Method",
    tunnels: Tunnels = False,
    direction: Direction = None,
    clock: Annotated[
        str,
        Option(
            metavar="|".join(CLOCKS),
            help="Correct the clock offset where one shows, or use times as they are.",
            panel=METHOD,
        ),
    ] = "auto",
    offset: Annotated[
        str | None, Option(metavar="D", help="How far the downstream clock is ahead, if known.", panel=METHOD)
    ] = None,
    ask: Annotated[
        str | None, Option(metavar="FILE", help="rda from files: write questions for both points.", panel=METHOD)
    ] = None,
    interval: Interval = None,
    segment: Annotated[
        str | None,
        Option(metavar="NAME", help="Segment to name in JSON for `wirelag path`, such as A>B or B[A>C].", panel=ANSWER),
    ] = None,
    by: Annotated[
        str | None, Option(metavar="|".join(GROUPS), help="Report each traffic class, too.", panel=ANSWER)
    ] = None,
    group_memory: GroupMemory = "256MiB",
    sort: Sort = None,
    top: Top = None,
    ipv4_prefix: Ipv4Prefix = 24,
    ipv6_prefix: Ipv6Prefix = 48,
    above: Above = None,
    sla: Questions = None,
    output_format: DelayFormat = None,
    output: Output = None,
    html: Html = None,
    samples: Samples = None,
    cores: Cores = None,
    quiet: Quiet = False,
    fleet: "Fleet | None" = None,
) -> None:
    """Measure one-way delay, loss and reordering.

    It compares captures of the same traffic at two points. More captures, in the order of the path, give a line for
    each segment. Clocks need not agree.
    """
    form = check_outputs(
        output_format, {"-o": output, "--html": html, "--ask": ask, "--samples": samples}, points, DELAY_FORMATS
    )
    if ask is not None:
        _ask(points, ask)
        return
    from wirelag.measure.oneway import oneway as measure

    result = measure(
        *points,
        **vars(method),
        filter=wanted,
        tunnels=tunnels,
        direction=direction,
        clock=clock,
        offset=offset,
        interval=interval,
        segment=segment,
        by=by,
        group_memory=group_memory,
        sort=sort,
        top=top,
        ipv4_prefix=ipv4_prefix,
        ipv6_prefix=ipv6_prefix,
        above=above or [],
        sla=sla or [],
        samples=samples or False,
        cores=cores,
        progress=stoppable(quiet),
        on=fleet,
    )
    conclude(result, form, output, html)


def _ask(points: list[str], path: str) -> None:
    """Write the questions of a second round, and print the next step."""
    from wirelag.measure.synopsis_files import are_synopses, ask_points

    if not are_synopses(points):
        raise UsageError("needs files of `wirelag cut`; captures need no second round", option="--ask")
    questions, size = ask_points(points, path)
    print(f"wrote {path}: {questions} questions, {size:,} bytes; reply at each point with")
    print(f"  wirelag cut CAPTURE --answer {path} -o TIMES.syn")
