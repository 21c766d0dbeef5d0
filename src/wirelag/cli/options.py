"""Options that several commands share, and what they make of them."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from wirelag.filters import Filter

FILTERS = "Which packets"

Captures = Annotated[
    list[str],
    typer.Argument(metavar="CAPTURE...", help="pcap or pcapng, also compressed (gzip, zstd, xz); - is standard input."),
]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", metavar="ADDRESS", help="To or from this host.", rich_help_panel=FILTERS)
]
Nets = Annotated[
    list[str] | None, typer.Option("--net", metavar="NETWORK", help="To or from this network.", rich_help_panel=FILTERS)
]
Ports = Annotated[
    list[int] | None, typer.Option("--port", metavar="PORT", help="To or from this port.", rich_help_panel=FILTERS)
]
Protocols = Annotated[
    list[str] | None,
    typer.Option("--proto", metavar="NAME", help="tcp, udp, icmp, ... or a number.", rich_help_panel=FILTERS),
]
Start = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="2024-05-01T12:00:00Z, seconds, or +2s.", rich_help_panel=FILTERS),
]
End = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Up to this time.", rich_help_panel=FILTERS)]
Tunnels = Annotated[
    bool, typer.Option("--tunnels", help="Look inside GRE, IP-in-IP, VXLAN, Geneve and GTP-U.", rich_help_panel=FILTERS)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


def make_filter(
    hosts: list[str] | None,
    nets: list[str] | None,
    ports: list[int] | None,
    protocols: list[str] | None,
    start: str | None,
    end: str | None,
) -> "Filter":
    """The filter that the options ask for; a word that is wrong is a usage error."""
    from wirelag.filters import Filter

    try:
        return Filter.parse(
            tuple(hosts or ()), tuple(nets or ()), tuple(ports or ()), tuple(protocols or ()), start, end
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
