"""References out of two captures: every n-th packet that both hold stands in for a packet that carries its time.

Guarantee: never more than one reference for `every` packets; none that has copies, or arrived impossibly early. Memory:
17 bytes for each of 8/`every` of the packets upstream (all, if `every` is less than 8).

Evenly spaced references foretell better than those that a coin draws: so a coin draws more of them than are wanted,
and of these every eighth becomes one, on each way by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets import PacketBatch

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

COIN: Final = 11  # its purpose
STRIDE: Final = 8


class References:
    """Packets of the upstream capture that may become references, and which of them did."""

    def __init__(self, packets: Iterable[PacketBatch], every: int, least_ns: int) -> None:
        """`packets` upstream; what takes less than `least_ns` is another packet that looks the same."""
        self._every, self._least_ns, self._stride = every, least_ns, min(every, STRIDE)
        self._most = (self._stride << 64) // every - 1  # of a coin
        ids, times = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for batch in packets:
            rows = self._drawn(batch)
            ids.append(batch.packet_id[rows])
            times.append(batch.time_ns[rows])
        every_time = np.concatenate(times)
        self._ids, first, copies = np.unique(np.concatenate(ids), return_index=True, return_counts=True)
        self._sent_ns, self._seen = every_time[first], copies > 1
        self._passed: dict[int, int] = {}  # on each way
        self._packets = self._given = 0

    def _drawn(self, batch: PacketBatch) -> Rows:
        coins = _kernels.coins(np.ascontiguousarray(batch.packet_id), 0, COIN)
        return np.flatnonzero(coins <= np.uint64(self._most))

    def find(self, batch: PacketBatch, way: int = 0) -> tuple[Rows, Ints]:
        """The rows of a downstream batch that are references, and when they were sent; `way` is the one it took."""
        rows = self._drawn(batch)
        ids, first = np.unique(batch.packet_id[rows], return_index=True)
        at = np.searchsorted(self._ids, ids)
        known = np.flatnonzero(at < len(self._ids))
        known = known[self._ids[at[known]] == ids[known]]
        known = known[~self._seen[at[known]]]
        self._seen[at[known]] = True
        late_enough = batch.time_ns[rows[first[known]]] - self._sent_ns[at[known]] >= self._least_ns
        known = known[late_enough]
        known = known[np.argsort(first[known])]
        passed = self._passed.get(way, 0)
        self._passed[way] = passed + len(known)
        chosen = []
        for place in known[-passed % self._stride :: self._stride]:
            if self._given * self._every <= self._packets + int(rows[first[place]]):  # the coin may draw too many
                chosen.append(int(place))
                self._given += 1
        self._packets += len(batch)
        return rows[first[chosen]], self._sent_ns[at[chosen]]
