"""Where a packet is: its capture, and its number there, in one word.

Law: a place is `capture << 48 | number`. Numbers count a file's records from 1, as Wireshark does, also those without a
row. 0 is a packet that is in no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.packets.batch import PacketBatch

    Places = npt.NDArray[np.uint64]

BITS: Final = 48
NUMBER: Final = (1 << BITS) - 1
WORDS: Final = 5  # endpoints: source, destination, ports and protocol


class Frames:
    """The places of packets, and the names of the captures they are in."""

    def __init__(self) -> None:
        self._captures: dict[str, int] = {}

    def of(self, packets: PacketBatch) -> Places:
        """The place of each packet, in a narrower column if its numbers are in one, and say enough."""
        import numpy as np

        if not packets.blocks:
            return np.zeros(len(packets), np.uint64)
        captures = [self._captures.setdefault(block.name, len(self._captures)) for block in packets.blocks]
        if len(captures) == 1:
            return packets.number | np.uint64(captures[0] << BITS) if captures[0] else packets.number
        return np.asarray(packets.number | (np.array(captures, np.uint64) << np.uint64(BITS))[packets.source])

    def place(self, capture: str, number: int) -> int:
        """The place of a packet with this number."""
        return self._captures.setdefault(capture, len(self._captures)) << BITS | number

    def adopt(self, others: Frames) -> Callable[[int], int]:
        """Take in the captures of others. Returns what makes a place of theirs one of these."""
        begins = [self.place(name, 0) for name in others.captures]
        return lambda place: begins[place >> BITS] | place & NUMBER if place & NUMBER else 0

    def renumbered(self, places: Places, parts: Frames, more: Mapping[str, int]) -> Places:
        """Places in parts of captures, as places in the captures; `more` is what to add to the numbers of each part.

        A part is called as its capture, with a NUL and something after it.
        """
        import numpy as np

        names = parts.captures
        if not names:
            return places
        captures = np.array([self.place(name.partition("\0")[0], 0) for name in names], np.uint64)
        added = np.array([more.get(name, 0) for name in names], np.int64).view(np.uint64)
        part, number = places >> np.uint64(BITS), places & np.uint64(NUMBER)
        return np.asarray(np.where(number > 0, captures[part] + number + added[part], 0))

    @property
    def captures(self) -> list[str]:
        """Names of captures, by index."""
        return list(self._captures)

    def locate(self, place: int) -> tuple[str, int] | None:
        """The capture and the number of a packet, or None if it is in no file."""
        number = place & NUMBER
        return (self.captures[place >> BITS], number) if number else None


def endpoints(packets: PacketBatch) -> Places:
    """Source, destination, ports and protocol of each packet: five words."""
    import numpy as np

    from wirelag import _kernels

    ends = np.empty((len(packets), WORDS), np.uint64)
    _kernels.fill_endpoints(packets.src, packets.dst, packets.src_port, packets.dst_port, packets.protocol, ends)
    return ends
