"""References from two captures: every n-th packet that both hold stands in for a packet that carries its time.

Guarantee: on each path, the n-th reference comes after at least n * `every` packets, counted from 0: the first may be
the first packet. None has copies upstream; of copies downstream it is the first; none arrived impossibly early.
Memory: 17 bytes per candidate: 8/`every` of the packets upstream (all, if `every` is less than 8), at most 2^22 (71 MB,
and four times that while they are sorted). If there would be more, a smaller coin draws them.

Evenly spaced references predict better than randomly drawn ones: so a coin draws more than needed, and every eighth of
them becomes a reference, on each path separately.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.batch import PacketBatch

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.intp]

COIN: Final = 11  # purpose of the coin
STRIDE: Final = 8
MOST: Final = 1 << 22  # candidates


@dataclass(slots=True)
class _Way:
    """Counters of one path."""

    packets: int = 0
    drawn: int = 0
    given: int = 0


class References:
    """Packets of the upstream capture that may become references, and which of them did."""

    def __init__(self, packets: Iterable[PacketBatch], every: int, least_ns: int, most: int = MOST) -> None:
        """`packets` are upstream's; a delay below `least_ns` means another packet that looks the same."""
        self._every, self._least_ns, self._stride = every, least_ns, min(every, STRIDE)
        self._most = (self._stride << 64) // every - 1  # largest coin drawn
        ids, times, count = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], 0
        for batch in packets:
            rows = self._drawn(batch.packet_id)
            ids.append(batch.packet_id[rows])
            times.append(batch.time_ns[rows])
            count += len(rows)
            while count > most:
                self._most, self._stride = self._most >> 1, max(1, self._stride >> 1)
                one_ids, one_times = np.concatenate(ids), np.concatenate(times)
                rows = self._drawn(one_ids)
                ids, times, count = [one_ids[rows]], [one_times[rows]], len(rows)
        every_time = np.concatenate(times)
        self._ids, first, copies = np.unique(np.concatenate(ids), return_index=True, return_counts=True)
        self._sent_ns, self._seen = every_time[first], copies > 1
        self._ways: dict[int, _Way] = {}

    def _drawn(self, ids: Words) -> Rows:
        coins = _kernels.coins(np.ascontiguousarray(ids), 0, COIN)
        return np.flatnonzero(coins <= np.uint64(self._most))

    @property
    def candidates(self) -> int:
        """Number of upstream packets that may become references."""
        return len(self._ids)

    def find(self, batch: PacketBatch, way: int = 0) -> tuple[Rows, Ints]:
        """The rows of a downstream batch that are references, and their send times; `way` is the path of the batch."""
        rows = self._drawn(batch.packet_id)
        ids, first = np.unique(batch.packet_id[rows], return_index=True)
        at = np.searchsorted(self._ids, ids)
        known = np.flatnonzero(at < len(self._ids))
        known = known[self._ids[at[known]] == ids[known]]
        known = known[~self._seen[at[known]]]
        self._seen[at[known]] = True
        late_enough = batch.time_ns[rows[first[known]]] - self._sent_ns[at[known]] >= self._least_ns
        known = known[late_enough]
        known = known[np.argsort(first[known])]
        taken = self._ways.setdefault(way, _Way())
        chosen = []
        for place in known[-taken.drawn % self._stride :: self._stride]:
            if taken.given * self._every <= taken.packets + int(rows[first[place]]):  # the coin may draw too many
                chosen.append(int(place))
                taken.given += 1
        taken.drawn += len(known)
        taken.packets += len(batch)
        return rows[first[chosen]], self._sent_ns[at[chosen]]
