"""Round trips of whole connections: the mean delay to the server plus the mean delay to the client, for each of them.

Law: a connection counts once, and only if delays of both legs were seen. Memory: 56 bytes per connection, for at most
2^18 of them; beyond that, those whose flow key begins with a zero bit more are kept, again and again. A flow key is a
hash, so that they are an even sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import OTHER
from wirelag.stats.distribution import Z95, Distribution
from wirelag.stats.random_groups import student
from wirelag.synopses.samples import ALL, SampleBatch

MOST: Final = 1 << 18
_PENDING: Final = 1 << 16
FEWEST: Final = 3  # connections that tell how much they differ
_COLUMNS: Final = 6  # flow key, tag of its group, then sum and weight of each leg

Rows = npt.NDArray[Any]


class Connections:
    """Sums of delays by connection, group and leg, as a sink of samples."""

    def __init__(self) -> None:
        self._rows: Rows = np.empty((0, _COLUMNS), np.uint64)
        self._pending: list[Rows] = []
        self._waiting = self._level = 0
        self._grouped = False  # a connection may be in several groups
        self._by_tag: dict[int, Rows] | None = None

    def add(self, packets: PacketBatch, samples: SampleBatch) -> None:
        """Add the samples of a packet batch."""
        count = len(samples.rows)
        if not count:
            return
        rows = np.zeros((count, _COLUMNS), np.uint64)
        rows[:, 0] = packets.flow_key[samples.rows]
        rows[:, 1] = ALL if samples.tags is None else samples.tags
        self._grouped |= samples.tags is not None
        each, sums = np.arange(count), 2 + 2 * samples.legs.astype(np.int64)
        rows[each, sums] = samples.delays_ns if samples.weights is None else samples.delays_ns * samples.weights
        rows[each, sums + 1] = 1 if samples.weights is None else samples.weights
        self._pending.append(rows)
        self._waiting += count
        if self._waiting > _PENDING:
            self._settle()

    def merge(self, other: Connections) -> None:
        """Add the connections of another."""
        other._settle()
        self._level, self._grouped = max(self._level, other._level), self._grouped or other._grouped
        self._pending.append(other._rows)
        self._settle()

    def _settle(self) -> None:
        if not self._pending:
            return
        self._by_tag = None
        rows = np.concatenate([self._rows, *self._pending])
        self._pending, self._waiting = [], 0
        order = np.lexsort((rows[:, 1], rows[:, 0]))
        rows = rows[order]
        fresh = np.append(True, (rows[1:, :2] != rows[:-1, :2]).any(axis=1))[: len(rows)]
        starts = np.flatnonzero(fresh)
        merged = np.add.reduceat(rows, starts, axis=0) if len(starts) else rows
        merged[:, :2] = rows[starts, :2]
        while True:
            if self._level:
                merged = merged[merged[:, 0] >> np.uint64(64 - self._level) == 0]
            if len(merged) <= MOST:
                break
            self._level += 1
        self._rows = merged

    def keep(self, tags: Rows) -> None:
        """Count connections of all groups but these to "other"."""
        self._settle()
        gone = ~np.isin(self._rows[:, 1], tags)
        if gone.any():
            self._rows[gone, 1] = OTHER
            self._pending, self._rows = [self._rows], self._rows[:0]
            self._settle()

    def distribution(self, tag: int | None = None) -> Distribution:
        """The round trips of connections, of all or of one group's."""
        self._settle()
        rows = self._rows if tag is None else self._of(tag)
        if tag is None and self._grouped:
            rows = _as_one(rows)
        whole = rows[(rows[:, 3] > 0) & (rows[:, 5] > 0)]
        found = Distribution()
        if len(whole):
            found.add((whole[:, 2] // whole[:, 3] + whole[:, 4] // whole[:, 5]).astype(np.int64))
        return found

    def _of(self, tag: int) -> Rows:
        """The rows of a group."""
        if self._by_tag is None:
            order = np.argsort(self._rows[:, 1], kind="stable")
            tags, starts = np.unique(self._rows[order, 1], return_index=True)
            parts = np.split(self._rows[order], starts[1:])
            self._by_tag = dict(zip(tags.tolist(), parts, strict=True))
        return self._by_tag.get(tag, self._rows[:0])

    def certainty(self, tag: int, leg: int, delays: Distribution) -> ClusterCertainty | None:
        """How sure the figures of a group's leg are, if samples of one connection are alike; None: too few tell."""
        self._settle()
        rows = self._of(tag)
        rows = rows[rows[:, 3 + 2 * leg] > 0]
        clusters = len(rows)
        if clusters < FEWEST or delays.samples < FEWEST or not delays.std_ns:
            return None
        sums, sizes = (rows[:, column + 2 * leg].astype(np.float64) for column in (2, 3))
        residuals = sums - sums.sum() / sizes.sum() * sizes
        variance = float((residuals**2).sum()) * clusters / (clusters - 1) / float(sizes.sum()) ** 2
        # Not all connections are here if they are sampled, and more delays than the group's if it was kept late.
        variance *= float(sizes.sum()) / float(delays.weight)
        alone = delays.std_ns**2 / delays.effective_samples
        return ClusterCertainty(student(clusters - 1) * math.sqrt(variance), max(1.0, variance / alone), delays)


@dataclass(frozen=True)
class ClusterCertainty:
    """How sure figures are whose samples come in clusters: the mean by the clusters' sums, shares by their effect."""

    mean_ns: float
    effect: float  # the variance of the mean, in times of that of independent samples
    delays: Distribution

    def mean_bound_ns(self) -> float:
        """Half of the 95% interval of the mean."""
        return self.mean_ns

    def share_bound(self, below: int) -> float:
        """Half of the 95% interval of the share of delays in bins below this one."""
        return Z95 * math.sqrt(self.effect) * self.delays.share_error(below)


def _as_one(rows: Rows) -> Rows:
    """Rows of the same connection, added up."""
    keys, starts = np.unique(rows[:, 0], return_index=True)
    merged = np.add.reduceat(rows, starts, axis=0) if len(keys) else rows
    return np.asarray(merged)
