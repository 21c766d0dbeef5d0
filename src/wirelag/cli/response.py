"""`wirelag response`: response latency, even where only packets from clients are seen."""

from typing import TYPE_CHECKING, Annotated

from wirelag.cli.options import (
    ANSWER,
    DELAY_FORMATS,
    METHOD,
    Above,
    Captures,
    Cores,
    DelayFormat,
    Force,
    GroupMemory,
    Html,
    Output,
    Questions,
    Quiet,
    Sort,
    Top,
    Tunnels,
    check_outputs,
    with_filter,
    with_fleet,
)
from wirelag.cli.parser import Option
from wirelag.cli.progress import stoppable
from wirelag.cli.run import conclude
from wirelag.errors import need_polars
from wirelag.measure.response_heard import GROUPS, METHODS

if TYPE_CHECKING:
    from wirelag.measure.fleet import Fleet
    from wirelag.packets.filters import Filter


@with_filter
@with_fleet
def response(
    captures: Captures,
    wanted: "Filter",
    tunnels: Tunnels = False,
    force: Force = False,
    server: Annotated[
        list[str] | None,
        Option(
            metavar="PREFIX[:PORT]",
            help="Networks and ports of servers; other traffic is left out. Default: from SYNs and ports.",
            panel=METHOD,
        ),
    ] = None,
    method: Annotated[
        str | None,
        Option(
            metavar="|".join(METHODS),
            help="pairs needs both directions; auto times responses by TCP's ACKs, blind by sizes and times; "
            "default: for each server, pairs where both directions are seen, else auto.",
            panel=METHOD,
        ),
    ] = None,
    epoch: Annotated[
        str, Option(metavar="D", help="Shortest time that an estimate of a flow covers.", panel=METHOD)
    ] = "500ms",
    fewest: Annotated[int, Option(metavar="N", help="Fewest responses behind an estimate.", panel=METHOD)] = 4,
    gap: Annotated[str, Option(metavar="D", help="gap: gap that begins a new batch.", panel=METHOD)] = "1ms",
    literal: Annotated[bool, Option("--literal", help="modes: work exactly as in the paper.", panel=METHOD)] = False,
    memory: Annotated[str, Option(metavar="SIZE", help="Memory for open flows.", panel=METHOD)] = ("64MiB"),
    interval: Annotated[
        str | None, Option(metavar="D|auto", help="Report each interval, too; auto chooses one.", panel=ANSWER)
    ] = None,
    by: Annotated[
        str | None, Option(metavar="|".join(GROUPS), help="Report each group; default: server.", panel=ANSWER)
    ] = None,
    group_memory: GroupMemory = "256MiB",
    sort: Sort = None,
    top: Top = None,
    above: Above = None,
    sla: Questions = None,
    output_format: DelayFormat = None,
    output: Output = None,
    html: Html = None,
    epochs_file: Annotated[
        str | None, Option("--epochs", metavar="FILE.parquet", help="Write every epoch to this file.")
    ] = None,
    exchanges: Annotated[
        str | None, Option(metavar="FILE.parquet|FILE.csv", help="Write every request and response to this file.")
    ] = None,
    cores: Cores = None,
    quiet: Quiet = False,
    fleet: "Fleet | None" = None,
) -> None:
    """Measure response latency.

    It runs from a request to the last byte of its response, as the client sees it. Packets from clients to servers are
    enough (direct server return, asymmetric routes), even if encrypted. Without enough evidence it abstains.
    """
    outputs = {"-o": output, "--html": html, "--epochs": epochs_file, "--exchanges": exchanges}
    form = check_outputs(output_format, outputs, captures, DELAY_FORMATS)
    if epochs_file:
        need_polars("Parquet")
    from wirelag.measure.response import response as measure

    result = measure(
        captures,
        filter=wanted,
        tunnels=tunnels,
        force=force,
        server=server or [],
        method=method,
        epoch=epoch,
        fewest=fewest,
        gap=gap,
        literal=literal,
        memory=memory,
        interval=interval,
        by=by,
        group_memory=group_memory,
        sort=sort,
        top=top,
        above=above or [],
        sla=sla or [],
        exchanges=exchanges or False,
        cores=cores,
        progress=stoppable(quiet),
        on=fleet,
    )
    if epochs_file and result.epochs is not None:
        from wirelag.render.output import write_parquet
        from wirelag.render.response import epoch_rows

        write_parquet(epochs_file, epoch_rows(result.epochs), "--epochs")
    conclude(result, form, output, html)
