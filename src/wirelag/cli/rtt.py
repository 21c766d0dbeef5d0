"""`wirelag rtt`: the distribution of round-trip delay."""

from typing import TYPE_CHECKING, Annotated

from wirelag.cli.options import (
    ANSWER,
    FLOW_FORMATS,
    METHOD,
    Above,
    Captures,
    Cores,
    Export,
    FlowFormat,
    Force,
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
    check_flows,
    check_outputs,
    share_of,
    with_filter,
    with_fleet,
)
from wirelag.cli.parser import Option
from wirelag.cli.progress import stoppable
from wirelag.cli.run import conclude
from wirelag.measure.rtt import GROUPS, LEGS, RETRANSMITTED

if TYPE_CHECKING:
    from wirelag.measure.fleet import Fleet
    from wirelag.packets.filters import Filter


@with_filter
@with_fleet
def rtt(
    captures: Captures,
    wanted: "Filter",
    tunnels: Tunnels = False,
    force: Force = False,
    match: Annotated[
        str,
        Option(
            metavar="NAMES",
            help="What to match: auto, or some of tcp, tcp-timestamps, handshake, flow-duration, dns, ntp, icmp, "
            "quic-spin, separated by commas.",
            panel=METHOD,
        ),
    ] = "auto",
    retransmitted: Annotated[
        str,
        Option(
            metavar="|".join(RETRANSMITTED),
            help="Retransmitted TCP data: skip it (Karn's rule), or time it from its first copy, as tshark does.",
            panel=METHOD,
        ),
    ] = "drop",
    table_memory: Annotated[
        str, Option(metavar="SIZE", help="Memory for connections and unmatched packets.", panel=METHOD)
    ] = "128MiB",
    memory: Annotated[
        str | None,
        Option(
            metavar="SIZE", help="Match in a fridge of this size, such as 64KiB: unbiased, not exact.", panel=METHOD
        ),
    ] = None,
    slots: Annotated[
        list[int] | None, Option(metavar="M", help="Custom fridges: slots of each (a power of two).", panel=METHOD)
    ] = None,
    entry_probability: Annotated[
        list[float] | None,
        Option(parser=share_of, metavar="SHARE", help="Custom fridges: entry probability of each.", panel=METHOD),
    ] = None,
    seed: Annotated[int, Option(metavar="S", help="Seed of the fridges' random choices.", panel=METHOD)] = 0,
    leg: Annotated[
        str,
        Option(
            metavar="|".join(LEGS),
            help="Figures that come first: to the server, to the client, their sum by connection, or a mixture.",
            panel=ANSWER,
        ),
    ] = "server",
    interval: Interval = None,
    by: Annotated[str | None, Option(metavar="|".join(GROUPS), help="Report each group, too.", panel=ANSWER)] = None,
    group_memory: GroupMemory = "256MiB",
    sort: Sort = None,
    top: Top = None,
    ipv4_prefix: Ipv4Prefix = 24,
    ipv6_prefix: Ipv6Prefix = 48,
    above: Above = None,
    sla: Questions = None,
    output_format: FlowFormat = None,
    output: Output = None,
    export: Export = None,
    html: Html = None,
    samples: Samples = None,
    cores: Cores = None,
    quiet: Quiet = False,
    fleet: "Fleet | None" = None,
) -> None:
    """Measure round-trip delay.

    This is the time from a request to its response, as both pass the capture point: TCP data and its acknowledgement,
    DNS, NTP, ping, the QUIC spin bit. The legs, to the server and to the client, are reported separately.
    """
    form = check_outputs(output_format, {"-o": output, "--html": html, "--samples": samples}, captures, FLOW_FORMATS)
    check_flows(form, export, listed=by == "flow")
    from wirelag.measure.loading import for_rtt
    from wirelag.measure.rtt import rtt as measure

    result = measure(
        captures,
        filter=wanted,
        tunnels=tunnels,
        force=force,
        match=match,
        retransmitted=retransmitted,
        table_memory=table_memory,
        memory=memory,
        slots=slots or [],
        entry_probability=entry_probability or [],
        seed=seed,
        leg=leg,
        interval=interval,
        by=by,
        group_memory=group_memory,
        sort=sort,
        top=top,
        ipv4_prefix=ipv4_prefix,
        ipv6_prefix=ipv6_prefix,
        above=above or [],
        sla=sla or [],
        samples=samples or False,
        charts=html is not None,
        cores=cores,
        progress=for_rtt(stoppable(quiet), cores, by, interval, html),
        on=fleet,
    )
    conclude(result, form, output, html, export)
