"""`wirelag flows`: the one-way delay of every flow, from reference packets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wirelag.cli.method import Direction
from wirelag.cli.options import (
    ANSWER,
    METHOD,
    Captures,
    GroupMemory,
    Html,
    Interval,
    Ipv4Prefix,
    Ipv6Prefix,
    Output,
    OutputFormat,
    Quiet,
    Tunnels,
    check_outputs,
    share_of,
    with_filter,
)
from wirelag.cli.progress import stoppable
from wirelag.cli.run import conclude
from wirelag.measure.flows import GROUPS, METHODS, SOURCES

if TYPE_CHECKING:
    from wirelag.packets.filters import Filter


@with_filter
def flows(
    captures: Captures,
    wanted: Filter,
    tunnels: Tunnels = False,
    direction: Direction = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="|".join(METHODS),
            help="How to interpolate: as a queue behaves, linearly, or from the last reference.",
            rich_help_panel=METHOD,
        ),
    ] = "busy",
    drain: Annotated[
        str | None,
        typer.Option(
            metavar="RATE", help="busy: rate of the queue, such as 2Gbps; default: learned.", rich_help_panel=METHOD
        ),
    ] = None,
    overhead: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            help="Bytes to add to captured lengths (Ethernet: 24).",
            rich_help_panel=METHOD,
        ),
    ] = 0,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(SOURCES),
            help="References: STAMP packets by port or by --mark, or packets also in --upstream.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    mark: Annotated[
        int | None,
        typer.Option(metavar="DSCP", help="marked: DSCP of STAMP packets, on any port.", rich_help_panel=METHOD),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="capture: the capture from before the queue.", rich_help_panel=METHOD),
    ] = None,
    every: Annotated[
        int,
        typer.Option(metavar="N", help="capture: one packet in N is a reference.", rich_help_panel=METHOD),
    ] = 20,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory for open flows: 128 bytes each.", rich_help_panel=METHOD)
    ] = "128MiB",
    inactive: Annotated[
        str, typer.Option(metavar="D", help="Idle time after which a flow ends.", rich_help_panel=METHOD)
    ] = "15s",
    active: Annotated[
        str, typer.Option(metavar="D", help="Longest time that one record of a flow covers.", rich_help_panel=METHOD)
    ] = "30m",
    hold: Annotated[
        float,
        typer.Option(
            parser=share_of, metavar="SHARE", help="Probability that a packet opens a flow.", rich_help_panel=METHOD
        ),
    ] = 1.0,
    interval: Interval = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="|".join(GROUPS),
            help="List flows, or groups of them; a packet's source is the client.",
            rich_help_panel=ANSWER,
        ),
    ] = "flow",
    most_flows: Annotated[
        int, typer.Option(metavar="N", help="Lines in the table; files have all flows.", rich_help_panel=ANSWER)
    ] = 20,
    group_memory: GroupMemory = "256MiB",
    ipv4_prefix: Ipv4Prefix = 24,
    ipv6_prefix: Ipv6Prefix = 48,
    sla: Annotated[
        list[str] | None,
        typer.Option(metavar="QUESTION", help="Exit with 3 unless this holds: mean<10ms.", rich_help_panel=ANSWER),
    ] = None,
    html: Html = None,
    output_format: OutputFormat = None,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Measure one-way delay of every flow.

    The capture is from behind a queue. Delays are interpolated between sparse reference packets: STAMP packets that a
    sender injects before the queue, or packets that a second capture also holds.
    """
    form = check_outputs(output_format, {"-o": output, "--html": html}, [*captures, *([upstream] if upstream else [])])
    from wirelag.measure.flows import flows as measure

    result = measure(
        captures,
        upstream=upstream,
        filter=wanted,
        tunnels=tunnels,
        direction=direction,
        method=method,
        drain=drain,
        overhead=overhead,
        reference=reference,
        mark=mark,
        every=every,
        memory=memory,
        inactive=inactive,
        active=active,
        hold=hold,
        interval=interval,
        by=by,
        most_flows=most_flows,
        group_memory=group_memory,
        ipv4_prefix=ipv4_prefix,
        ipv6_prefix=ipv6_prefix,
        sla=sla or [],
        progress=stoppable(quiet),
    )
    conclude(result, form, output, html)
