"""Round trips of whole connections: the mean delay to the server plus the mean delay to the client, for each of them.

Law: a connection counts once, and only if delays of both legs were seen. Sums are kept for each connection, group and
stretch of time, of which there are at most 64: they also tell how sure the figures of a group are. Memory: 64 bytes per
row, for at most 2^18 of them; beyond that, connections whose flow key begins with a zero bit more are kept, again and
again. A flow key is a hash, so that they are an even sample.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import OTHER
from wirelag.stats.certainty import Effect, Sources
from wirelag.stats.distribution import Distribution
from wirelag.stats.over_time import Error, batch_error, equal_batches
from wirelag.synopses.samples import ALL, SampleBatch

MOST: Final = 1 << 18
_PENDING: Final = 1 << 16
FEWEST: Final = 3  # connections that tell how much they differ
_KEYS: Final = 3  # flow key, tag of its group, number of the stretch of time
_COLUMNS: Final = _KEYS + 4  # then sum and weight of each leg
STRETCHES: Final = 64
SHORTEST: Final = 20  # bits: a stretch of 1 ms

Rows = npt.NDArray[Any]


class Connections:
    """Sums of delays by connection, group and leg, as a sink of samples."""

    def __init__(self) -> None:
        self._rows: Rows = np.empty((0, _COLUMNS), np.uint64)
        self._pending: list[Rows] = []
        self._waiting = self._level = 0
        self._grouped = False  # a connection may be in several groups
        self._bits = SHORTEST  # of the length of a stretch
        self._by_tag: dict[int, Rows] | None = None

    def add(self, packets: PacketBatch, samples: SampleBatch) -> None:
        """Add the samples of a packet batch."""
        count = len(samples.rows)
        if not count:
            return
        rows = np.zeros((count, _COLUMNS), np.uint64)
        rows[:, 0] = packets.flow_key[samples.rows]
        rows[:, 1] = ALL if samples.tags is None else samples.tags
        rows[:, 2] = packets.time_ns[samples.rows] >> self._bits
        self._grouped |= samples.tags is not None
        each, sums = np.arange(count), _KEYS + 2 * samples.legs.astype(np.int64)
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
        while self._bits < other._bits:
            self._fold()
        theirs = other._rows.copy()
        theirs[:, 2] >>= np.uint64(self._bits - other._bits)
        self._pending.append(theirs)
        self._settle()

    def _fold(self) -> None:
        """Make stretches twice as long."""
        self._bits += 1
        for rows in (self._rows, *self._pending):
            rows[:, 2] >>= np.uint64(1)

    def _settle(self) -> None:
        if not self._pending:
            return
        self._by_tag = None
        rows = np.concatenate([self._rows, *self._pending])
        self._pending, self._waiting = [], 0
        while len(rows) and int(rows[:, 2].max()) - int(rows[:, 2].min()) >= STRETCHES:
            self._bits += 1
            rows[:, 2] >>= np.uint64(1)
        merged = _as_one(rows, _KEYS)
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
        rows = _as_one(self._rows if tag is None else self._of(tag), 1)
        there, heard, back, told = (rows[:, _KEYS + column] for column in range(4))
        whole = (heard > 0) & (told > 0)
        found = Distribution()
        if whole.any():
            found.add((there[whole] // heard[whole] + back[whole] // told[whole]).astype(np.int64))
        return found

    def _of(self, tag: int) -> Rows:
        """The rows of a group."""
        if self._by_tag is None:
            order = np.argsort(self._rows[:, 1], kind="stable")
            tags, starts = np.unique(self._rows[order, 1], return_index=True)
            parts = np.split(self._rows[order], starts[1:])
            self._by_tag = dict(zip(tags.tolist(), parts, strict=True))
        return self._by_tag.get(tag, self._rows[:0])

    def sources(self, tag: int, leg: int, delays: Distribution) -> Sources:
        """How much the delays of a group's leg vary between connections and over time."""
        self._settle()
        rows = self._of(tag)
        rows = rows[rows[:, _KEYS + 1 + 2 * leg] > 0]
        sums, sizes = (rows[:, _KEYS + column + 2 * leg].astype(np.float64) for column in (0, 1))
        # Not all connections are here if they are sampled, and more delays than the group's if it was kept late.
        scale = math.sqrt(float(sizes.sum()) / float(delays.weight)) if delays.weight else 0.0
        connections, stretches = (_summed(rows[:, column], sums, sizes) for column in (0, 2))
        between = _scaled(_cluster_error(*connections), scale)
        return Sources(Effect(between, delays), Effect(_scaled(batch_error(*equal_batches(*stretches)), scale), delays))


def _summed(keys: Rows, sums: Rows, sizes: Rows) -> tuple[Rows, Rows]:
    """Sums and sizes of all rows with the same key, in order of the keys."""
    place = np.unique(keys, return_inverse=True)[1]
    return np.bincount(place, sums), np.bincount(place, sizes)


def _cluster_error(sums: Rows, sizes: Rows) -> Error | None:
    """The error of sum(sums) / sum(sizes), if clusters are independent; None if there are too few."""
    clusters = len(sums)
    if clusters < FEWEST:
        return None
    residuals = sums - sums.sum() / sizes.sum() * sizes
    variance = float((residuals**2).sum()) * clusters / (clusters - 1) / float(sizes.sum()) ** 2
    return math.sqrt(variance), clusters - 1.0


def _scaled(error: Error | None, scale: float) -> Error | None:
    return None if error is None else (error[0] * scale, error[1])


def _as_one(rows: Rows, keys: int) -> Rows:
    """Rows whose first columns are the same, added up."""
    if not len(rows):
        return rows
    rows = rows[np.lexsort(tuple(rows[:, column] for column in reversed(range(keys))))]
    fresh = np.append(True, (rows[1:, :keys] != rows[:-1, :keys]).any(axis=1))
    starts = np.flatnonzero(fresh)
    merged = np.add.reduceat(rows, starts, axis=0)
    merged[:, :_KEYS] = rows[starts, :_KEYS]
    return np.asarray(merged)
