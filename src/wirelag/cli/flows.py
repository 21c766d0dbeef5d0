"""`wirelag flows`: the one-way delay of every flow, from reference packets."""

from typing import TYPE_CHECKING, Annotated

from wirelag.cli.method import Direction
from wirelag.cli.options import (
    ANSWER,
    FLOW_FORMATS,
    METHOD,
    Captures,
    Cores,
    Export,
    FlowFormat,
    GroupMemory,
    Html,
    Interval,
    Ipv4Prefix,
    Ipv6Prefix,
    Output,
    Quiet,
    Tunnels,
    check_flows,
    check_outputs,
    share_of,
    with_filter,
    with_fleet,
)
from wirelag.cli.parser import Option
from wirelag.cli.progress import stoppable
from wirelag.cli.run import conclude
from wirelag.measure.flows import GROUPS, METHODS, SOURCES

if TYPE_CHECKING:
    from wirelag.measure.fleet import Fleet
    from wirelag.packets.filters import Filter


@with_filter
@with_fleet
def flows(
    captures: Captures,
    wanted: "Filter",
    tunnels: Tunnels = False,
    direction: Direction = None,
    method: Annotated[
        str,
        Option(
            metavar="|".join(METHODS),
            help="How to interpolate: as a queue behaves, linearly, or from the last reference.",
            panel=METHOD,
        ),
    ] = "busy",
    drain: Annotated[
        str | None,
        Option(metavar="RATE", help="busy: rate of the queue, such as 2Gbps; default: learned.", panel=METHOD),
    ] = None,
    overhead: Annotated[
        int, Option(metavar="BYTES", help="Bytes to add to captured lengths (Ethernet: 24).", panel=METHOD)
    ] = 0,
    reference: Annotated[
        str | None,
        Option(
            metavar="|".join(SOURCES),
            help="References: STAMP packets by port or by --mark, or packets also in --upstream.",
            panel=METHOD,
        ),
    ] = None,
    mark: Annotated[
        int | None, Option(metavar="DSCP", help="marked: DSCP of STAMP packets, on any port.", panel=METHOD)
    ] = None,
    upstream: Annotated[
        str | None, Option(metavar="FILE", help="capture: the capture from before the queue.", panel=METHOD)
    ] = None,
    every: Annotated[int, Option(metavar="N", help="capture: one packet in N is a reference.", panel=METHOD)] = 20,
    memory: Annotated[
        str, Option(metavar="SIZE", help="Memory for open flows: 128 bytes each.", panel=METHOD)
    ] = "128MiB",
    inactive: Annotated[str, Option(metavar="D", help="Idle time after which a flow ends.", panel=METHOD)] = "15s",
    active: Annotated[
        str, Option(metavar="D", help="Longest time that one record of a flow covers.", panel=METHOD)
    ] = "30m",
    hold: Annotated[
        float, Option(parser=share_of, metavar="SHARE", help="Probability that a packet opens a flow.", panel=METHOD)
    ] = 1.0,
    interval: Interval = None,
    by: Annotated[
        str | None,
        Option(
            metavar="|".join(GROUPS),
            help="List flows (default), or groups of them; a packet's source is the client.",
            panel=ANSWER,
        ),
    ] = None,
    most_flows: Annotated[
        int, Option(metavar="N", help="Lines in the table; files have all flows.", panel=ANSWER)
    ] = 20,
    group_memory: GroupMemory = "256MiB",
    ipv4_prefix: Ipv4Prefix = 24,
    ipv6_prefix: Ipv6Prefix = 48,
    sla: Annotated[
        list[str] | None, Option(metavar="QUESTION", help="Exit with 3 unless this holds: mean<10ms.", panel=ANSWER)
    ] = None,
    html: Html = None,
    output_format: FlowFormat = None,
    output: Output = None,
    export: Export = None,
    cores: Cores = None,
    quiet: Quiet = False,
    fleet: "Fleet | None" = None,
) -> None:
    """Measure one-way delay of every flow.

    The capture is from behind a queue. Delays are interpolated between sparse reference packets: STAMP packets that a
    sender injects before the queue, or packets that a second capture also holds.
    """
    inputs = [*captures, *([upstream] if upstream else [])]
    form = check_outputs(output_format, {"-o": output, "--html": html}, inputs, FLOW_FORMATS)
    check_flows(form, export, listed=by in (None, "flow"))
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
        cores=cores,
        progress=stoppable(quiet),
        on=fleet,
    )
    conclude(result, form, output, html, export)
