"""Options of IPv6, hop-by-hop and destination, from the bytes of a packet: traces of IOAM and marks of packets.

Law: nothing is read beyond the captured bytes, and no length field is trusted: an option that does not end ends them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from wirelag.packets.batch import PacketBatch

HOP_BY_HOP, DESTINATION, FRAGMENT, AUTHENTICATION = 0, 60, 44, 51
EXTENSIONS: Final = (HOP_BY_HOP, 43, FRAGMENT, AUTHENTICATION, DESTINATION, 135)
MOST: Final = 8  # extension headers
ALTERNATE_MARKING: Final = 0x12  # RFC 9343
IOAM: Final = (0x11, 0x31)  # RFC 9486: as sent, and as hops change it


class Mark(NamedTuple):
    """Alternate marking of a packet (RFC 9343): the flow that is monitored, its colour, and whether it is timed."""

    flow: int
    colour: bool
    delay: bool


def options(packets: PacketBatch, row: int) -> Iterator[tuple[int, bytes]]:
    """Type and content of each option of a packet that has the flag OPTIONS."""
    frame = packets.frame(row)
    ends = packets.src[row].astype(">u8").tobytes() + packets.dst[row].astype(">u8").tobytes()
    at = frame.find(ends) - 8  # wherever the link and tunnels put it
    while at >= 0 and (frame[at] >> 4 != 6 or frame[at + 6] not in EXTENSIONS):
        at = frame.find(ends, at + 9) - 8
    if at < 0:
        return
    kind, at = frame[at + 6], at + 40
    for _ in range(MOST):
        if kind not in EXTENSIONS or at + 8 > len(frame):
            return
        size = 8 if kind == FRAGMENT else 8 + frame[at + 1] * (4 if kind == AUTHENTICATION else 8)
        if kind in (HOP_BY_HOP, DESTINATION):
            yield from _listed(frame[at + 2 : at + size])
        kind, at = frame[at], at + size


def _listed(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 2 <= len(data):
        if data[at] == 0:  # one byte of padding
            at += 1
            continue
        end = at + 2 + data[at + 1]
        if end > len(data):
            return
        yield data[at], data[at + 2 : end]
        at = end


def mark(packets: PacketBatch, row: int) -> Mark | None:
    """The mark of a packet, if it has one: 20 bits of the flow, then L and D."""
    for kind, data in options(packets, row):
        if kind == ALTERNATE_MARKING and len(data) >= 4:
            word = int.from_bytes(data[:4])
            return Mark(word >> 12, bool(word & 0x800), bool(word & 0x400))
    return None
