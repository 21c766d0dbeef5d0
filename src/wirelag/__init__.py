"""wirelag: how late is the network? Measured from packets that are already there.

    import wirelag

    capture = wirelag.read("capture.pcap")
    for packets in capture:
        print(len(packets), packets.time_ns[0])

`read` gives packet batches of one or several captures, `measure` runs an estimator over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wirelag.capture.files import Capture, Order
    from wirelag.measure.loop import measure
    from wirelag.packets.batch import Flag, Kind, PacketBatch, PacketId
    from wirelag.packets.filters import Filter
    from wirelag.report import Report

__version__ = "0.1.0"
__all__ = ["Filter", "Flag", "Kind", "PacketBatch", "PacketId", "Report", "measure", "read"]

_HOMES = {
    "Filter": "packets.filters",
    "Flag": "packets.batch",
    "Kind": "packets.batch",
    "PacketBatch": "packets.batch",
    "PacketId": "packets.batch",
    "Report": "report",
    "measure": "measure.loop",
}


def read(
    *paths: str,
    filter: Filter | None = None,
    packet_id: PacketId | None = None,
    tunnels: bool = False,
    follow: bool = False,
    order: Order = "time",
) -> Capture:
    """Open captures (pcap or pcapng; plain, gzip, zstd or xz; `-` is standard input) as one source of packet batches.

    `filter` keeps some packets only. `packet_id` says what packet ids are made of (by default, everything that no hop
    changes). `tunnels` follows GRE, IP-in-IP, VXLAN, Geneve and GTP-U to the innermost packet. `follow` goes on
    reading while the file grows. Several captures are merged by time, or, with `order="given"`, follow one another.
    """
    from wirelag.capture.files import Capture
    from wirelag.packets.batch import PacketId

    return Capture(paths, filter=filter, packet_id=packet_id or PacketId(), tunnels=tunnels, follow=follow, order=order)


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the command line starts without numpy."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"wirelag.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'wirelag' has no attribute {name!r}")


def __dir__() -> Sequence[str]:
    return sorted([*globals(), *__all__])
