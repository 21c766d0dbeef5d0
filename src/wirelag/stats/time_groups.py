"""Delays by stretch of time: how much figures vary over a capture.

Guarantee: at most 32 stretches of equal length cover the time seen, at least 16 of them once it is longer than 32 ms.
Their edges are multiples of their length, a power of two, so that merging is exact in any order. Memory: 303 KB, one
count per leg, stretch and coarse bin, as random_groups.py.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.stats.over_time import Error, batch_error
from wirelag.stats.random_groups import COARSE, CROWDS, MIDDLES_COARSE_NS, RandomGroups

SHORTEST: Final = 20  # bits: a stretch of 1 ms
_ABOVE: Final = np.uint64(64 - (CROWDS - 1).bit_length())  # random groups go by the upper bits of a key

Ints = npt.NDArray[Any]


class TimeGroups:
    """Weights of delays by leg, stretch of time and coarse bin."""

    __slots__ = ("_bits", "_first", "_last", "groups")

    def __init__(self, groups: RandomGroups | None = None) -> None:
        self.groups = groups or RandomGroups()
        self._bits = SHORTEST  # of the length of a stretch
        self._first = self._last = -1  # numbers of the first and the last stretch; -1: none

    def add(self, times_ns: Ints, legs: Ints, delays_ns: Ints, weights: Ints | None = None) -> None:
        """Add samples, with the time of each."""
        if not len(times_ns):
            return
        self._reach(int(times_ns.min()), int(times_ns.max()))
        keys = ((times_ns >> self._bits) - self._first).astype(np.uint64) << _ABOVE
        self.groups.add(keys, np.arange(len(keys), dtype=np.uint32), legs, delays_ns, weights)

    def add_counted(self, time_ns: int, weights: Ints) -> None:
        """Add weights by leg and coarse bin, of delays within a short time around this one."""
        if weights.any():
            self._reach(time_ns, time_ns)
            self.groups.weights[:, (time_ns >> self._bits) - self._first] += weights

    def merge(self, other: TimeGroups) -> None:
        """Add the samples of another, which may be of the first leg alone."""
        if other._first < 0:
            return
        self._reach(other._first << other._bits, ((other._last + 1) << other._bits) - 1)
        while self._bits < other._bits:
            self._fold()
        for place in range(other._last - other._first + 1):
            mine = ((other._first + place) >> (self._bits - other._bits)) - self._first
            self.groups.weights[: len(other.groups.weights), mine] += other.groups.weights[:, place]

    def of_leg(self, leg: int) -> TimeGroups:
        """The samples of one leg alone."""
        found = TimeGroups(self.groups.of_leg(leg))
        found._bits, found._first, found._last = self._bits, self._first, self._last
        return found

    def mean_error_ns(self) -> Error | None:
        """The error of the mean; None if there are too few stretches."""
        return self._error(self.groups.weights.sum(axis=0) @ MIDDLES_COARSE_NS)

    def share_error(self, below: int) -> Error | None:
        """The error of the share of delays in bins below this one."""
        return self._error(self.groups.weights.sum(axis=0)[:, : below // COARSE].sum(axis=1).astype(np.float64))

    def _error(self, totals: npt.NDArray[np.float64]) -> Error | None:
        return batch_error(totals, self.groups.weights.sum(axis=(0, 2)).astype(np.float64))

    def _reach(self, begin_ns: int, end_ns: int) -> None:
        """Make the stretches cover these times."""
        while True:
            first, last = begin_ns >> self._bits, end_ns >> self._bits
            if self._first >= 0:
                first, last = min(first, self._first), max(last, self._last)
            if last - first < CROWDS:
                break
            self._fold()
        if 0 <= self._first != first:
            self.groups.weights = np.roll(self.groups.weights, self._first - first, axis=1)
        self._first, self._last = first, last

    def _fold(self) -> None:
        """Make stretches twice as long."""
        self._bits += 1
        if self._first < 0:
            return
        folded = np.zeros_like(self.groups.weights)
        for place in range(self._last - self._first + 1):
            folded[:, ((self._first + place) >> 1) - (self._first >> 1)] += self.groups.weights[:, place]
        self.groups.weights = folded
        self._first, self._last = self._first >> 1, self._last >> 1
