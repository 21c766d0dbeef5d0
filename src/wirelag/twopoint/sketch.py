"""What one point saw, in the form needed to compare it with another point. Memory: at most 40 MB, whatever arrives.

A coordinated sample of packets (docs/reference/crossing.md, "Caches"): both points keep the same packets, so common
packets are in both samples. And the ordered address pairs.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.addresses import address_keys, words_of
from wirelag.packets.batch import Flag, PacketBatch

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

CAPACITY: Final = 1 << 17
MOST_PAIRS: Final = 1 << 18
_CACHE: Final = 1  # purpose of a coin
_PENDING: Final = 1 << 16
_EMPTY: Final = np.empty(0, np.uint64)


class AddressPairs:
    """Ordered address pairs, sorted by key.

    Beyond 2^18 pairs, only keys with one more leading zero bit are kept, repeatedly: each kept pair stands for `scale`.
    """

    def __init__(self) -> None:
        self.keys: Words = _EMPTY
        self.addresses: Words = np.empty((0, 4), np.uint64)
        self.scale = 1
        self._kernel = _kernels.AddressPairs(MOST_PAIRS)

    def add(self, packets: PacketBatch) -> Words:
        """Add the pairs of packets, and return the key of each."""
        keys = np.empty(len(packets), np.uint64)
        self._kernel.observe(*words_of(packets), keys)
        return keys

    def settle(self) -> None:
        """Read the pairs that were added."""
        keys, addresses = np.empty(len(self._kernel), np.uint64), np.empty((len(self._kernel), 4), np.uint64)
        self._kernel.rows(keys, addresses.reshape(-1))
        order = np.argsort(keys)
        self.keys, self.addresses, self.scale = keys[order], addresses[order], 1 << self._kernel.level

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def ends(self) -> tuple[Words, Words]:
        """The address keys of source and destination."""
        return address_keys(self.addresses[:, :2]), address_keys(self.addresses[:, 2:])


class Sighting:
    """A coordinated sample of what one point saw, and counts of everything.

    It keeps `capacity` packets, or the share 2^-`level` of all. `seed` must be the same at both points.
    """

    def __init__(self, capacity: int = CAPACITY, seed: int = 0) -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity} is too small: it must be at least 1")
        self.capacity, self.seed, self.level = capacity, seed, 0
        self.packets = self.prefix_cut = self.tunnelled = 0
        self.span_ns = 2**63 - 1, -(2**63)  # smallest and largest time
        self.ids: Words = _EMPTY
        self.times_ns: Ints = np.empty(0, np.int64)
        self.keys: Words = _EMPTY
        self.payloads: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        self.numbers: Words = _EMPTY
        self.pairs = AddressPairs()
        self._pending: list[tuple[Words, Ints, Words, npt.NDArray[np.uint32], Words]] = []
        self._pending_rows = 0

    def within(self, interval_ns: int | None) -> int:
        """How many packets there are in an interval, on average; None: in all."""
        if interval_ns is None:
            return self.packets
        return math.ceil(self.packets * min(1.0, interval_ns / max(1, self.span_ns[1] - self.span_ns[0])))

    def observe(self, packets: PacketBatch) -> None:
        """Add packets, in capture order."""
        if not len(packets):
            return
        times = packets.time_ns
        self.span_ns = min(self.span_ns[0], int(times.min())), max(self.span_ns[1], int(times.max()))
        self.packets += len(packets)
        self.prefix_cut += int(np.count_nonzero(packets.has(Flag.PREFIX_CUT)))
        self.tunnelled += int(np.count_nonzero(packets.has(Flag.TUNNEL) & ~packets.has(Flag.INNER)))
        keys = self.pairs.add(packets)
        rows = self._kept(packets.packet_id)
        kept = packets.packet_id[rows], times[rows], keys[rows], packets.payload_length[rows], packets.number[rows]
        self._pending.append(kept)
        self._pending_rows += len(rows)
        if self._pending_rows > _PENDING:
            self._join()

    def settle(self) -> None:
        """Bring the sample into its final form; call this before reading it."""
        self.pairs.settle()
        self._join()

    def thin(self, level: int) -> None:
        """Raise the level."""
        self.level = max(self.level, level)
        self._keep(self._kept(self.ids))

    def _kept(self, ids: Words) -> Ints:
        if not self.level:
            return np.arange(len(ids))
        coins = _kernels.coins(np.ascontiguousarray(ids), self.seed, _CACHE)
        return np.flatnonzero(coins < np.uint64(1 << max(64 - self.level, 0)))

    def _keep(self, rows: Ints) -> None:
        self.ids, self.times_ns, self.keys = self.ids[rows], self.times_ns[rows], self.keys[rows]
        self.payloads, self.numbers = self.payloads[rows], self.numbers[rows]

    def _join(self) -> None:
        parts = [(self.ids, self.times_ns, self.keys, self.payloads, self.numbers), *self._pending]
        self._pending, self._pending_rows = [], 0
        self.ids, self.times_ns, self.keys, self.payloads, self.numbers = (
            np.concatenate([part[i] for part in parts]) for i in range(5)
        )
        self.thin(self.level)
        while len(self.ids) > self.capacity and self.level < 64:
            self.thin(self.level + 1)


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
