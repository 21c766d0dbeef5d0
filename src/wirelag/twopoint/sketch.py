"""What one point saw, in the form needed to compare it with another point. Memory: at most 40 MB, whatever arrives.

A coordinated sample of packets (docs/reference/crossing.md, "Caches"): both points keep the same packets, so common
packets are in both samples. And the ordered address pairs. On request also time, id and number of each packet, 24 bytes
of each: then the packets need not be read again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.addresses import address_keys
from wirelag.packets.batch import PacketBatch

if TYPE_CHECKING:
    from wirelag.twopoint.direction import Course

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

CAPACITY: Final = 1 << 17
MOST_PAIRS: Final = 1 << 18
KEPT_BYTES: Final = 24  # of each packet, if all are kept
_CACHE: Final = 1  # purpose of a coin
_EMPTY: Final = np.empty(0, np.uint64)


class AddressPairs:
    """Ordered address pairs, sorted by key.

    Beyond 2^18 pairs, only keys with one more leading zero bit are kept, repeatedly: each kept pair stands for `scale`.
    """

    def __init__(self) -> None:
        self.keys: Words = _EMPTY
        self.numbered: Words = _EMPTY  # the same in order of appearance
        self.addresses: Words = np.empty((0, 4), np.uint64)
        self.scale = 1

    def settle(self, kernel: _kernels.Sighting) -> None:
        """Take over the pairs that were seen."""
        keys, addresses = np.empty(kernel.pair_count, np.uint64), np.empty((kernel.pair_count, 4), np.uint64)
        kernel.pairs(keys, addresses.reshape(-1))
        order = np.argsort(keys)
        self.keys, self.addresses, self.scale = keys[order], addresses[order], 1 << kernel.pair_level
        self.numbered = keys

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def ends(self) -> tuple[Words, Words]:
        """The address keys of source and destination."""
        return address_keys(self.addresses[:, :2]), address_keys(self.addresses[:, 2:])


class Taken(NamedTuple):
    """Packets that go forward, of those that were kept, and how many others there are."""

    times_ns: Ints
    ids: Words
    numbers: npt.NDArray[np.uint32]
    backward: int
    elsewhere: int
    outside: int


class Sighting:
    """A coordinated sample of what one point saw, and counts of everything.

    It keeps `capacity` packets, or the share 2^-`level` of all. `seed` must be the same at both points. With `keep`, it
    keeps three columns of all packets as well, unless there are more packets than that, or more pairs than fit.
    """

    def __init__(self, capacity: int = CAPACITY, seed: int = 0, keep: int = 0) -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity} is too small: it must be at least 1")
        self.capacity, self.seed, self.level = capacity, seed, 0
        self.ids: Words = _EMPTY
        self.times_ns: Ints = np.empty(0, np.int64)
        self.keys: Words = _EMPTY
        self.payloads: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        self.numbers: Words = _EMPTY
        self.pairs = AddressPairs()
        self._rows: Ints | None = None
        self._kernel = _kernels.Sighting(capacity, seed, MOST_PAIRS, keep)

    def within(self, interval_ns: int | None) -> int:
        """How many packets there are in an interval, on average; None: in all."""
        if interval_ns is None:
            return self.packets
        return math.ceil(self.packets * min(1.0, interval_ns / max(1, self.span_ns[1] - self.span_ns[0])))

    def observe(self, packets: PacketBatch) -> int:
        """Add packets, in capture order; returns how many."""
        self._kernel.observe(packets)
        return len(packets)

    def feed(
        self, reader: _kernels.Reader, data: npt.NDArray[np.uint8], start: int, stop: int, base: int
    ) -> tuple[int, int, int, int]:
        """Add packets of a part of a file as they are decoded; returns what `Reader.feed` does."""
        return self._kernel.feed(reader, data, start, stop, base)

    def settle(self) -> None:
        """Bring the sample into its final form; call this before reading it."""
        self.pairs.settle(self._kernel)
        self.level, self._rows = self._kernel.level, None
        self.ids, self.times_ns, self.keys, self.payloads, self.numbers = self._kernel.sampled()

    def thin(self, level: int) -> None:
        """Raise the level."""
        if level <= self.level:
            return
        self.level = level
        rows = np.flatnonzero(_kernels.coins(self.ids, self.seed, _CACHE) < np.uint64(1 << max(64 - level, 0)))
        self.ids, self.times_ns, self.keys = self.ids[rows], self.times_ns[rows], self.keys[rows]
        self.payloads, self.numbers = self.payloads[rows], self.numbers[rows]
        self._rows = None

    @property
    def pair_rows(self) -> Ints:
        """The row of each sampled packet's pair, or where it would be."""
        if self._rows is None:
            self._rows = np.searchsorted(self.pairs.keys, self.keys)
        return self._rows

    @property
    def packets(self) -> int:
        """How many packets there are."""
        return self._kernel.packets

    @property
    def prefix_cut(self) -> int:
        """How many of them hold less payload than their id should use."""
        return self._kernel.prefix_cut

    @property
    def tunnelled(self) -> int:
        """How many are in a tunnel, and were not taken out of it."""
        return self._kernel.tunnelled

    @property
    def shortened(self) -> int:
        """How many are captured without their full headers."""
        return self._kernel.shortened

    @property
    def least_prefix(self) -> int:
        """Bytes of payload that any packet with a prefix that is cut holds; more than any has, if there is none."""
        return self._kernel.least_prefix

    @property
    def span_ns(self) -> tuple[int, int]:
        """The smallest and the largest time."""
        return self._kernel.first_ns, self._kernel.last_ns

    @property
    def whole(self) -> bool:
        """Whether three columns of all packets are kept."""
        return self._kernel.whole

    def take(self, course: Course, forward: int, backward: int) -> Taken:
        """Those of all packets that go forward in the time of a course; from now on none is kept."""
        courses = course.courses[np.searchsorted(course.keys, self.pairs.numbered)]
        return Taken(*self._kernel.take(courses, forward, backward, course.first_ns, course.last_ns))


def common(up: Sighting, down: Sighting) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Rows of the same packets in two levelled samples, in upstream's order, and a mask of those without copies.

    The n-th copies correspond; ids with different numbers of copies at the two points are left out.
    """
    sides = []
    for sighting in (up, down):
        order = np.argsort(sighting.ids, kind="stable")
        ids, starts, counts = np.unique(sighting.ids[order], return_index=True, return_counts=True)
        sides.append((order, ids, starts, counts))
    _, here, there = np.intersect1d(sides[0][1], sides[1][1], assume_unique=True, return_indices=True)
    same = sides[0][3][here] == sides[1][3][there]
    rows = []
    for (order, _, starts, counts), places in zip(sides, (here[same], there[same]), strict=True):
        copies = counts[places]
        within = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
        rows.append(order[np.repeat(starts[places], copies) + within])
    single = np.repeat(copies == 1, copies)
    in_order = np.argsort(rows[0])
    return rows[0][in_order], rows[1][in_order], single[in_order]
