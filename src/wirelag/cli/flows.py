"""`wirelag flows`: the one-way delay of every flow, from reference packets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wirelag.cli.method import Direction
from wirelag.cli.options import (
    ANSWER,
    METHOD,
    Captures,
    Html,
    Interval,
    Ipv4Prefix,
    Ipv6Prefix,
    MostGroups,
    Output,
    OutputFormat,
    Quiet,
    Tunnels,
    check_outputs,
    with_filter,
)
from wirelag.cli.progress import progress
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
            help="Between references: as a queue behaves, on a straight line, or as the reference before.",
            rich_help_panel=METHOD,
        ),
    ] = "busy",
    drain: Annotated[
        str | None,
        typer.Option(
            metavar="RATE", help="busy: rate of the queue (2Gbps, say); default: learned.", rich_help_panel=METHOD
        ),
    ] = None,
    overhead: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            help="Added to captured lengths (an Ethernet's wire: 24).",
            rich_help_panel=METHOD,
        ),
    ] = 0,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(SOURCES),
            help="References: STAMP packets by port or by --mark, or packets that --upstream holds, too.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    mark: Annotated[
        int | None,
        typer.Option(metavar="DSCP", help="marked: STAMP packets on any port have this mark.", rich_help_panel=METHOD),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="capture: what the other side captured.", rich_help_panel=METHOD),
    ] = None,
    every: Annotated[
        int,
        typer.Option(metavar="N", help="capture: one packet in N is a reference.", rich_help_panel=METHOD),
    ] = 20,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory for open flows: 128 bytes each.", rich_help_panel=METHOD)
    ] = "128MiB",
    inactive: Annotated[
        str, typer.Option(metavar="D", help="A flow ends after a longer silence.", rich_help_panel=METHOD)
    ] = "15s",
    active: Annotated[
        str, typer.Option(metavar="D", help="A record of a flow ends when open for longer.", rich_help_panel=METHOD)
    ] = "30m",
    hold: Annotated[
        float,
        typer.Option(metavar="P", help="A packet opens a flow with this probability.", rich_help_panel=METHOD),
    ] = 1.0,
    interval: Interval = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="|".join(GROUPS),
            help="What to list: flows, or groups of them; a packet's source is the client.",
            rich_help_panel=ANSWER,
        ),
    ] = "flow",
    most_flows: Annotated[
        int, typer.Option(metavar="N", help="Lines of the list; files have all.", rich_help_panel=ANSWER)
    ] = 20,
    most_groups: MostGroups = 1000,
    ipv4_prefix: Ipv4Prefix = 24,
    ipv6_prefix: Ipv6Prefix = 48,
    sla: Annotated[
        list[str] | None,
        typer.Option(metavar="QUESTION", help="mean<10ms: exit code 3 unless it holds.", rich_help_panel=ANSWER),
    ] = None,
    html: Html = None,
    output_format: OutputFormat = "table",
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Measure the one-way delay of every flow, behind a queue, from sparse reference packets.

    The references are STAMP packets that a sender injects before the queue, or packets that a second capture knows.
    """
    check_outputs(output_format, {"-o": output, "--html": html}, [*captures, *([upstream] if upstream else [])])
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
        most_groups=most_groups,
        ipv4_prefix=ipv4_prefix,
        ipv6_prefix=ipv6_prefix,
        sla=sla or [],
        progress=progress(quiet),
    )
    conclude(result, output_format, output, html)
