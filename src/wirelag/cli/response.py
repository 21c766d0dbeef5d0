"""`wirelag response`: response latency, also where only the packets of clients are seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wirelag.cli.options import (
    ANSWER,
    METHOD,
    Above,
    Captures,
    Html,
    MostGroups,
    Output,
    OutputFormat,
    Questions,
    Quiet,
    Tunnels,
    check_outputs,
    with_filter,
)
from wirelag.cli.progress import progress
from wirelag.cli.run import conclude
from wirelag.measure.response import GROUPS, METHODS

if TYPE_CHECKING:
    from wirelag.packets.filters import Filter


@with_filter
def response(
    captures: Captures,
    wanted: Filter,
    tunnels: Tunnels = False,
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX[:PORT]",
            help="Where servers are; default: found by SYNs and ports.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(METHODS),
            help="pairs needs both directions, auto dates responses by TCP's ACKs, blind by sizes and times; "
            "default: pairs where both directions are seen, else auto.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    epoch: Annotated[
        str,
        typer.Option(metavar="D", help="The shortest time that an estimate of a flow covers.", rich_help_panel=METHOD),
    ] = "500ms",
    fewest: Annotated[
        int, typer.Option(metavar="N", help="The fewest responses that an estimate rests on.", rich_help_panel=METHOD)
    ] = 4,
    gap: Annotated[
        str, typer.Option(metavar="D", help="gap: a longer gap begins a batch.", rich_help_panel=METHOD)
    ] = "1ms",
    literal: Annotated[
        bool,
        typer.Option("--literal", help="modes: exactly as in the paper.", rich_help_panel=METHOD),
    ] = False,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory for open flows.", rich_help_panel=METHOD)] = (
        "64MiB"
    ),
    interval: Annotated[
        str | None,
        typer.Option(metavar="D|auto", help="Report each interval, too; auto chooses one.", rich_help_panel=ANSWER),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="|".join(GROUPS), help="Report each of these; default: server.", rich_help_panel=ANSWER),
    ] = None,
    most_groups: MostGroups = 1000,
    above: Above = None,
    sla: Questions = None,
    output_format: OutputFormat = "table",
    output: Output = None,
    html: Html = None,
    epochs_file: Annotated[
        str | None, typer.Option("--epochs", metavar="FILE.parquet", help="Write every epoch to this file.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Measure response latency: from a request to the last byte of its response, as the client sees it.

    The packets from clients to servers are enough (direct server return, asymmetric routes), even if encrypted. Where
    they cannot tell, it says so.
    """
    check_outputs(output_format, {"-o": output, "--html": html, "--epochs": epochs_file}, captures)
    from wirelag.measure.response import response as measure

    result = measure(
        captures,
        filter=wanted,
        tunnels=tunnels,
        server=server or [],
        method=method,
        epoch=epoch,
        fewest=fewest,
        gap=gap,
        literal=literal,
        memory=memory,
        interval=interval,
        by=by,
        most_groups=most_groups,
        above=above or [],
        sla=sla or [],
        progress=progress(quiet),
    )
    if epochs_file and result.epochs is not None:
        from wirelag.render.output import write_parquet
        from wirelag.render.response import epoch_rows

        write_parquet(epochs_file, epoch_rows(result.epochs), "--epochs")
    conclude(result, output_format, output, html)
