"""References out of two captures: every n-th packet that both hold stands in for a packet that carries its time.

Guarantee: on each way the n-th reference comes behind at least n * `every` packets, counted from 0: the first may be
the first packet. None has copies upstream, of copies downstream it is the first, and none arrived impossibly early.
Memory: 17 bytes for each candidate: 8/`every` of the packets upstream (all, if `every` is less than 8), and 2^22 at
most (71 MB, and four times that while they are sorted). Where there would be more, a smaller coin draws them.

Evenly spaced references foretell better than those that a coin draws: so a coin draws more of them than are wanted,
and of these every eighth becomes one, on each way by itself.
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

COIN: Final = 11  # its purpose
STRIDE: Final = 8
MOST: Final = 1 << 22  # candidates


@dataclass(slots=True)
class _Way:
    """What went a way so far."""

    packets: int = 0
    drawn: int = 0
    given: int = 0


class References:
    """Packets of the upstream capture that may become references, and which of them did."""

    def __init__(self, packets: Iterable[PacketBatch], every: int, least_ns: int, most: int = MOST) -> None:
        """`packets` upstream; what takes less than `least_ns` is another packet that looks the same."""
        self._every, self._least_ns, self._stride = every, least_ns, min(every, STRIDE)
        self._most = (self._stride << 64) // every - 1  # of a coin
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
        """Packets upstream that may become references."""
        return len(self._ids)

    def find(self, batch: PacketBatch, way: int = 0) -> tuple[Rows, Ints]:
        """The rows of a downstream batch that are references, and when they were sent; `way` is the one it took."""
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
