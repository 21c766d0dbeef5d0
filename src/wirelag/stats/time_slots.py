"""Sums of delays by time: how much their mean varies over a capture.

Guarantee: slots of equal length cover the time seen, 2,048 to 4,096 of them once it is longer than 4 s. Their edges are
multiples of their length, a power of two, so that merging is exact in any order. Memory: 131 KB.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.stats.over_time import NOT_ALIKE, SHORTEST, Alike, OverTime, alike_over, over_time

SLOTS: Final = 4096
_NO_WEIGHTS: Final = np.empty(0, np.int64)

Ints = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


class TimeSlots:
    """Weights and weighted sums of delays by leg and slot: integers, exact below 2^53 ns."""

    __slots__ = ("_bits", "_first", "_last", "counts", "sums")

    def __init__(self, counts: Floats | None = None, sums: Floats | None = None) -> None:
        self.counts = np.zeros((2, SLOTS)) if counts is None else counts
        self.sums = np.zeros((2, SLOTS)) if sums is None else sums
        self._bits = SHORTEST  # of the length of a slot
        self._first = self._last = -1  # numbers of the first and the last slot; -1: none

    def add(self, times_ns: Ints, legs: Ints, delays_ns: Ints, weights: Ints | None = None) -> None:
        """Add samples, with the time of each."""
        if not len(times_ns):
            return
        self._reach(int(times_ns.min()), int(times_ns.max()))
        of_each = _NO_WEIGHTS if weights is None else weights
        totals = self.counts.reshape(-1), self.sums.reshape(-1)
        _kernels.slot(*totals, times_ns, legs, delays_ns, of_each, self._bits, self._first)

    def add_summed(self, time_ns: int, counts: Floats, sums: Floats) -> None:
        """Add weights and sums by leg, of delays within a short time around this one."""
        if counts.any():
            self._reach(time_ns, time_ns)
            place = (time_ns >> self._bits) - self._first
            self.counts[:, place] += counts
            self.sums[:, place] += sums

    def merge(self, other: TimeSlots) -> None:
        """Add the samples of another, which may be of the first leg alone."""
        if other._first < 0:
            return
        self._reach(other._first << other._bits, ((other._last + 1) << other._bits) - 1)
        while self._bits < other._bits:
            self._fold()
        numbers = np.arange(other._first, other._last + 1)
        places = (numbers >> (self._bits - other._bits)) - self._first
        for leg in range(len(other.counts)):
            self.counts[leg] += np.bincount(places, other.counts[leg, : len(numbers)], SLOTS)
            self.sums[leg] += np.bincount(places, other.sums[leg, : len(numbers)], SLOTS)

    def of_leg(self, leg: int) -> TimeSlots:
        """The samples of one leg alone."""
        found = TimeSlots(self.counts[leg : leg + 1], self.sums[leg : leg + 1])
        found._bits, found._first, found._last = self._bits, self._first, self._last
        return found

    def over_time(self, samples: int, alike: Alike = NOT_ALIKE) -> OverTime | None:
        """How the mean of this number of delays varies; None if too few slots hold any.

        If they are part of a whole, delays are at least as alike as there.
        """
        found = over_time(self.sums.sum(axis=0), self.counts.sum(axis=0), samples)
        return found and found.within((self._last - self._first + 1) << self._bits, alike)

    def alike(self) -> Alike:
        """How delays are alike."""
        counts = self.counts.sum(axis=0)
        held = np.flatnonzero(counts)
        return alike_over(held, self.sums.sum(axis=0)[held], counts[held]).with_slots(1 << self._bits)

    def _reach(self, begin_ns: int, end_ns: int) -> None:
        """Make the slots cover these times."""
        while True:
            first, last = begin_ns >> self._bits, end_ns >> self._bits
            if self._first >= 0:
                first, last = min(first, self._first), max(last, self._last)
            if last - first < SLOTS:
                break
            self._fold()
        if 0 <= self._first != first:
            self.counts, self.sums = (np.roll(one, self._first - first, axis=1) for one in (self.counts, self.sums))
        self._first, self._last = first, last

    def _fold(self) -> None:
        """Make slots twice as long."""
        self._bits += 1
        if self._first < 0:
            return
        numbers = np.arange(self._first, self._last + 1)
        places = (numbers >> 1) - (self._first >> 1)
        self.counts, self.sums = (
            np.array([np.bincount(places, leg[: len(numbers)], SLOTS) for leg in one])
            for one in (self.counts, self.sums)
        )
        self._first, self._last = self._first >> 1, self._last >> 1
