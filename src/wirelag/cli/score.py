"""`wirelag score`: a report against the truth of a simulation."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wirelag.capture.report_file import read_report
from wirelag.cli.parser import Argument, Option, UsageError
from wirelag.errors import WirelagError, need_polars
from wirelag.units import format_duration

if TYPE_CHECKING:
    import polars as pl

    from wirelag.sim.score import FlowScore, Line, Score


def score(
    report: Annotated[
        str, Argument(metavar="REPORT.json", help="JSON of rtt, response, oneway, flows; - is standard input.")
    ],
    truth: Annotated[str, Argument(metavar="TRUTH.parquet", help="Truth from `wirelag simulate --truth`.")],
    kind: Annotated[
        str | None, Option(metavar="tcp|handshake|dns", help="Compare with this kind of delay only.")
    ] = None,
    leg: Annotated[str | None, Option(metavar="server|client", help="Round trips: compare this leg only.")] = None,
    direction: Annotated[str, Option(metavar="forward|reverse", help="One way: direction of the report.")] = "forward",
    output_format: Annotated[str, Option("--format", metavar="table|json", help="Output format.")] = "table",
) -> None:
    """Compare a report with the truth.

    For the mean, the standard deviation and every quantile it prints the estimate, the truth, the signed relative
    error, and whether the 95% interval (if the report has one) covers the truth. For flows it prints the median error
    and how many intervals cover.
    """
    for option, value, allowed in (
        ("--kind", kind, ("tcp", "handshake", "dns", None)),
        ("--leg", leg, ("server", "client", None)),
        ("--direction", direction, ("forward", "reverse")),
        ("--format", output_format, ("table", "json")),
    ):
        if value not in allowed:
            names = ", ".join(name for name in allowed if name)
            raise UsageError(f"{value!r} is not one of {names}", option=option)

    need_polars("wirelag score")
    from wirelag.sim.score import ReportError
    from wirelag.sim.score import score as compare

    content, rows = read_report(report), _read_truth(truth)
    try:
        result = compare(content, rows, kind, leg, direction)
    except ReportError as error:
        raise WirelagError(f"{report}: {error}") from error
    except ValueError as error:
        raise WirelagError(f"{truth}: {error}") from error
    if output_format == "json":
        print(json.dumps(result.to_json(), indent=2))
    else:
        _print_table(result)


def _read_truth(path: str) -> "pl.DataFrame":
    import polars as pl

    try:
        with Path(path).open("rb") as file:
            return pl.read_parquet(file)
    except OSError as error:
        raise WirelagError(f"{path}: cannot read: {error.strerror or error}") from error
    except pl.exceptions.PolarsError as error:
        raise WirelagError(f"{path}: not a Parquet file; write it with wirelag simulate --truth") from error


def _print_table(result: "Score") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{result.quantity}: {result.samples:,} samples, {result.true_samples:,} in truth")
    for heading in ("", "estimate", "truth", "error", "95% interval"):
        table.add_column(heading, justify="right" if heading else "left")
    for line in result.lines:
        table.add_row(*_cells(line))
    Console().print(table)
    if result.flows:
        print(_flows_line(result.flows))


def _flows_line(flows: "FlowScore") -> str:
    mean, std, covered = (
        "-" if share is None else f"{share:.2%}" for share in (flows.mean_error, flows.std_error, flows.covered)
    )
    return (
        f"{flows.flows:,} of {flows.true_flows:,} flows: in the median the mean is off by {mean} and the deviation by "
        f"{std}; the 95% interval covers the mean of {covered}"
    )


def _cells(line: "Line") -> list[str]:
    estimate = "-" if line.estimate is None else format_duration(line.estimate * 1e9)
    error = "-" if line.error is None else f"{line.error:+.2%}"
    covered = {None: "-", True: "covers", False: "misses"}[line.covered]
    return [line.name, estimate, format_duration(line.truth * 1e9), error, covered]
