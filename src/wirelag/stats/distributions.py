"""Figures of many distributions at once, most of them small: to put a million groups in order.

Law: each figure is that of `Distribution`, bit for bit; without delays it is NaN. Memory: that of the columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.stats.bins import SHORTEST_NS, WIDTH_NS
from wirelag.stats.distribution import BINS, FEW, halfway

_WORD: Final = 2**64 - 1

Column = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Distributions:
    """Distributions as columns: eight sums of each, and the bins that hold delays, of one after the other, in order."""

    sums: Column
    edges: Column  # where the bins of each begin, and the end
    bins: Column
    weights: Column  # of each bin

    @classmethod
    def of_cells(cls, sums: Column, owner: Column, bins: Column, weights: Column) -> Distributions:
        """The same from cells: owner (a row of `sums`), bin and weight of each, in order of both; equal ones add up."""
        if len(bins):
            first = np.flatnonzero(np.append(True, (np.diff(owner) != 0) | (np.diff(bins) != 0)))
            owner, bins, weights = owner[first], bins[first], np.add.reduceat(weights, first)
        return cls(sums, np.searchsorted(owner, np.arange(len(sums) + 1)), bins, weights)

    @classmethod
    def of_delays(cls, owner: Column, delays_ns: Column, count: int) -> Distributions:
        """The same from single delays, each with its owner, one of `count`."""
        order = np.lexsort((delays_ns, owner))
        owner, delays_ns = owner[order], delays_ns[order]
        sums, first = np.zeros((count, 8), np.uint64), np.flatnonzero(np.append(True, np.diff(owner) != 0))
        if len(owner):
            each, of_each = owner[first], np.diff(np.append(first, len(owner)))
            whole = delays_ns.astype(object)  # squares do not fit into 64 bits
            totals, squares = (np.add.reduceat(values, first).tolist() for values in (whole, whole * whole))
            words = [
                (low & _WORD, low >> 64, high & _WORD, high >> 64) for low, high in zip(totals, squares, strict=True)
            ]
            sums[each, 0] = sums[each, 1] = of_each
            sums[each, 2:6] = words
            sums[each, 6], sums[each, 7] = delays_ns[first], delays_ns[first + of_each - 1]
        bins = np.searchsorted(SHORTEST_NS, delays_ns, side="right") - 1
        return cls.of_cells(sums, owner, bins, np.ones(len(bins), np.uint64))

    def plus(self, other: Distributions) -> Distributions:
        """Each together with the same of the others."""
        cells = [np.concatenate(both) for both in zip(self._cells(), other._cells(), strict=True)]
        order = np.argsort(cells[0] * BINS + cells[1], kind="stable")
        one, two = self.sums, other.sums
        both = one + two
        both[:, [3, 5]] += both[:, [2, 4]] < one[:, [2, 4]]  # what the lower word carries
        least = np.minimum(np.where(one[:, 0] > 0, one[:, 6], two[:, 6]), np.where(two[:, 0] > 0, two[:, 6], one[:, 6]))
        both[:, 6], both[:, 7] = least, np.maximum(one[:, 7], two[:, 7])
        return Distributions.of_cells(both, *(column[order] for column in cells))

    def _cells(self) -> tuple[Column, Column, Column]:
        return np.repeat(np.arange(len(self.sums)), np.diff(self.edges)), self.bins, self.weights

    @property
    def samples(self) -> Floats:
        """How many delays each has."""
        return self._known(self.sums[:, 0])

    @property
    def min_ns(self) -> Floats:
        """The shortest delay of each."""
        return self._known(self.sums[:, 6])

    @property
    def max_ns(self) -> Floats:
        """The longest delay of each."""
        return self._known(self.sums[:, 7])

    @property
    def mean_ns(self) -> Floats:
        """The mean delay of each."""
        means = [(low + (high << 64)) / (weight or 1) for weight, low, high in self.sums[:, 1:4].tolist()]
        return self._known(np.array(means))

    @property
    def std_ns(self) -> Floats:
        """The standard deviation of the delays of each."""
        return self._known(np.array([_std(*row) for row in self.sums[:, 1:6].tolist()]))

    def quantile_ns(self, q: float) -> Floats:
        """The delay below which a share of q lies, of each: the rule of `RankedBins`."""
        found, held = np.full(len(self.sums), np.nan), np.flatnonzero(self.sums[:, 1])
        if not len(held):
            return found
        ends = np.cumsum(self.weights, dtype=np.uint64)
        whole = self.sums[held, 1]
        begin = (ends - self.weights)[self.edges[held]]  # the weight of all distributions before
        rank = min(max(q, 0.0), 1.0) * whole.astype(np.float64)

        def at(rank: Floats) -> Floats:
            place = np.minimum(rank.astype(np.uint64), whole - np.uint64(1))
            row = np.searchsorted(ends, begin + place, side="right")
            before = (ends[row] - self.weights[row] - begin).astype(np.float64)
            inside = np.minimum(1.0, (rank - before + 0.5) / self.weights[row].astype(np.float64))
            return np.asarray(SHORTEST_NS[self.bins[row]] + WIDTH_NS[self.bins[row]] * inside)

        between = np.array([halfway(q, n) for n in range(FEW + 1)])[np.minimum(whole, np.uint64(FEW)).astype(np.int64)]
        values = at(rank)
        values = np.where(between, (at(np.maximum(rank - 1, 0.0)) + values) / 2, values) if between.any() else values
        least, most = (self.sums[held, column].astype(np.float64) for column in (6, 7))
        found[held] = np.minimum(np.maximum(values, least), most)
        return found

    def share_above(self, limit_ns: int) -> Floats:
        """The share of the delays of each above a limit."""
        above = np.where(self.bins >= _kernels.bin_above(limit_ns), self.weights, 0)
        ends = np.append(np.uint64(0), np.cumsum(above, dtype=np.uint64))
        weight = np.maximum(self.sums[:, 1], 1).astype(np.float64)
        return self._known((ends[self.edges[1:]] - ends[self.edges[:-1]]).astype(np.float64) / weight)

    def _known(self, values: Column) -> Floats:
        return np.where(self.sums[:, 0] > 0, values.astype(np.float64), np.nan)


def _std(weight: int, low: int, high: int, squares: int, squares_high: int) -> float:
    total = low + (high << 64)
    return math.sqrt(max(0, (squares + (squares_high << 64)) * weight - total * total)) / (weight or 1)
