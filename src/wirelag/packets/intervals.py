"""Intervals of time: the one place that decides to which interval a packet belongs.

Law: intervals are aligned to the epoch, so all vantage points cut at the same instants. A packet belongs to the
interval of its capture time, but never to one that has ended: a timestamp that goes back stays in the open interval.
So results do not depend on how the input is split into batches.

Where two points must cut at the same packet, packets delimit intervals instead of the clock: packets chosen by a coin
of their id, which both points see, special control packets (docs/reference/crossing.md, "Delimiters"), or the first
packet of another colour, where packets are marked with alternating ones (docs/reference/marking.md, "The rule").
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.batch import Kind, PacketBatch
from wirelag.packets.filters import EARLIEST_NS
from wirelag.packets.interval import Interval


def split(batches: Iterable[PacketBatch], interval_ns: int | None) -> Iterator[tuple[Interval, PacketBatch]]:
    """Cut batches at interval edges; intervals without packets are left out.

    Without a length, each batch comes with the time that it spans.
    """
    latest_ns = EARLIEST_NS
    for batch in batches:
        if not len(batch):
            continue
        if interval_ns is None:
            yield Interval(int(batch.time_ns.min()), int(batch.time_ns.max()) + 1), batch
            continue
        first, before_ns = max(int(batch.time_ns[0]), latest_ns) // interval_ns, latest_ns
        latest_ns = max(int(batch.time_ns.max()), latest_ns)
        if latest_ns // interval_ns == first:  # nearly always: there is nothing to cut
            yield Interval(first * interval_ns, (first + 1) * interval_ns), batch
            continue
        times_ns = np.maximum(np.maximum.accumulate(batch.time_ns), before_ns)
        indexes = times_ns // interval_ns
        edges = [0, *(np.flatnonzero(np.diff(indexes)) + 1).tolist(), len(batch)]
        for start, end in pairwise(edges):
            index = int(indexes[start])
            yield Interval(index * interval_ns, (index + 1) * interval_ns), batch[start:end]


Event: TypeAlias = "tuple[Interval, PacketBatch | None]"
"""Packets of an interval; or None, and then the interval has ended."""


def events(batches: Iterable[PacketBatch], interval_ns: int | None) -> Iterator[Event]:
    """Packets with their interval, and its end, by the packets' times. Without a length, one interval has them all."""
    current: Interval | None = None
    for interval, packets in split(batches, interval_ns):
        if interval_ns is None and current is not None:
            interval = Interval(min(current.start_ns, interval.start_ns), max(current.end_ns, interval.end_ns))
        elif current is not None and interval != current:
            yield current, None
        current = interval
        yield interval, packets
    if current is not None or interval_ns is None:
        yield current or Interval(0, 0), None


MARKERS: Final = 16  # in an interval, where its number of packets is known
MARKER: Final = 4  # the purpose of a marker's coin
CONTROL_PORT: Final = 5862
CONTROL: Final = 1 << 63  # names of control packets: this plus their sequence number
CONTROL_COPIES: Final = 3  # copies sent of each: if one is lost or late, two intervals merge
FEW: Final = 32  # markers of a batch that are looked at one by one
REMEMBERED: Final = 8  # control packets remembered to recognise copies
_CONTROL_FIRST, _CONTROL_MAGIC = 0x57, 0x4C414701  # payload "WLAG", 1, and the number in 4 bytes

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Delimiters:
    """Packets that end an interval: 1 in 2^bits, and of these one per `length_ns`.

    Or control packets to a port; or the first packet of the other colour, which changes every `length_ns`.
    """

    length_ns: int
    bits: int = 10
    seed: int = 0
    control_port: int | None = None
    colour: int | None = None  # the bit of the DSCP, 0 the lowest

    @property
    def by_id(self) -> bool:
        """Whether times and packet ids tell where to cut."""
        return self.control_port is None and self.colour is None

    @staticmethod
    def bits_for(packets: float) -> int:
        """Bits that make markers rare enough that few lie near an edge, but frequent enough to keep intervals short."""
        return max(0, min(20, round(math.log2(max(1.0, packets) / MARKERS))))

    def found(self, packets: PacketBatch) -> tuple[npt.NDArray[np.int64], Words, Words]:
        """Rows of the packets that may delimit intervals, with their names and coins."""
        if self.control_port is None:
            coins = _kernels.coins(packets.packet_id, self.seed, MARKER)
            rows = np.flatnonzero(coins < np.uint64(2 ** (64 - self.bits))) if self.bits else np.arange(len(packets))
            return rows, packets.packet_id[rows], coins[rows]
        rows = np.flatnonzero(
            packets.of_kind(Kind.UDP)
            & (packets.dst_port == self.control_port)
            & (packets.message == _CONTROL_FIRST)
            & (packets.transaction >> np.uint64(32) == _CONTROL_MAGIC)
        )
        names = (packets.transaction[rows] & np.uint64(0xFFFFFFFF)) + np.uint64(CONTROL)
        return rows, names, names


def control_payload(number: int) -> bytes:
    """The payload of a control packet."""
    return bytes([_CONTROL_FIRST]) + _CONTROL_MAGIC.to_bytes(4, "big") + (number & 0xFFFFFFFF).to_bytes(4, "big")


class Edge(NamedTuple):
    """Where an interval begins. It may replace the previous edge, which then was none."""

    name: int
    time_ns: int
    instead: bool


def _copies(names: list[int], numbers: deque[int]) -> list[int]:
    """Positions of names seen before, according to `numbers`, which it updates."""
    copies = []
    for place, name in enumerate(names):
        if name in numbers:
            copies.append(place)
        else:
            numbers.append(name)
    return copies


def _deciding(times_ns: npt.NDArray[np.int64], coins: Words, half_ns: int) -> npt.NDArray[np.intp]:
    """The markers of a batch that decide where it is cut; without the others it is cut in the same places.

    Of markers within half a length only those matter that are smaller than all before them, as they may cut, or smaller
    than all after them, as they may keep later ones from it.
    """
    found, start = [], 0
    while start < len(coins):
        end = int(np.searchsorted(times_ns, times_ns[start] + half_ns, "right"))
        some = coins[start:end]
        first = some == np.minimum.accumulate(some)
        last = some == np.minimum.accumulate(some[::-1])[::-1]
        found.append(start + np.flatnonzero(first | last))
        start = end
    return np.concatenate(found)


def split_at_delimiters(
    batches: Iterable[PacketBatch], delimiters: Delimiters
) -> Iterator[tuple[PacketBatch, Edge | None]]:
    """Parts of batches, each with the edge that follows it, if any.

    Whether a marker cuts is known half a length after it: until then, a later marker with a smaller coin replaces it.
    Of control packets with the same number only the first cuts; its copies belong to no interval.
    """
    half_ns = delimiters.length_ns // 2
    recent: deque[tuple[int, int]] = deque()  # markers of the last half length, coins rising: time and coin
    last: int | None = None  # time of the last marker that cuts so far
    latest_ns = EARLIEST_NS
    numbers: deque[int] = deque(maxlen=REMEMBERED)
    for batch in batches:
        start = 0
        rows, names, coins = delimiters.found(batch)
        if delimiters.control_port is not None and (copies := _copies(names.tolist(), numbers)):
            batch = batch[np.delete(np.arange(len(batch)), rows[copies])]
            rows, names, coins = delimiters.found(batch)
        times_ns = np.maximum.accumulate(np.maximum(batch.time_ns[rows], latest_ns))
        latest_ns = max(latest_ns, int(times_ns[-1])) if len(times_ns) else latest_ns
        if delimiters.control_port is None and len(rows) > FEW:
            few = _deciding(times_ns, coins, half_ns)
            rows, names, coins, times_ns = rows[few], names[few], coins[few], times_ns[few]
        found = zip(rows.tolist(), names.tolist(), coins.tolist(), times_ns.tolist(), strict=True)
        for row, name, coin, time_ns in found:
            if delimiters.control_port is not None:
                yield batch[start:row], Edge(name, time_ns, False)
                start = row + 1
                continue
            while recent and recent[0][0] < time_ns - half_ns:
                recent.popleft()
            if not recent or coin < recent[0][1]:
                yield batch[start:row], Edge(name, time_ns, last is not None and time_ns - last <= half_ns)
                start, last = row, time_ns
            while recent and recent[-1][1] >= coin:
                recent.pop()
            recent.append((time_ns, coin))
        yield batch[start:], None
