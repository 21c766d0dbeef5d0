"""Sums of delays of a leg by time: how much their mean varies over a capture.

Guarantee: slots of equal length cover the time seen, 2,048 to 4,096 of them once it is longer than 4 s. Their edges are
multiples of their length, a power of two, so that merging is exact in any order. Memory: 66 KB.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.stats.over_time import SHORTEST, Alike, OverTime, alike_over, over_time

SLOTS: Final = 4096
_NO_WEIGHTS: Final = np.empty(0, np.int64)

Ints = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


class TimeSlots:
    """Weights and weighted sums of delays by slot: integers, exact below 2^53 ns."""

    __slots__ = ("_bits", "_first", "_last", "counts", "sums")

    def __init__(self) -> None:
        self.counts: Floats = np.zeros(SLOTS)
        self.sums: Floats = np.zeros(SLOTS)
        self._bits = SHORTEST  # of the length of a slot
        self._first = self._last = -1  # numbers of the first and the last slot; -1: none

    def __getstate__(self) -> tuple[Any, ...]:
        """The slots that hold delays."""
        held = np.flatnonzero(self.counts)
        return held.astype(np.uint16), self.counts[held], self.sums[held], self._bits, self._first, self._last

    def __setstate__(self, saved: tuple[Any, ...]) -> None:
        held, counts, sums, self._bits, self._first, self._last = saved
        self.counts, self.sums = np.zeros(SLOTS), np.zeros(SLOTS)
        self.counts[held], self.sums[held] = counts, sums

    def add(self, times_ns: Ints, wanted: Bools, delays_ns: Ints, weights: Ints | None = None) -> None:
        """Add the samples that are wanted, with the time of each."""
        mine = times_ns[wanted]
        if not len(mine):
            return
        self._reach(int(mine.min()), int(mine.max()))
        of_each = _NO_WEIGHTS if weights is None else weights
        _kernels.slot(self.counts, self.sums, times_ns, wanted, delays_ns, of_each, self._bits, self._first)

    def add_summed(self, time_ns: int, count: float, total: float) -> None:
        """Add the weight and the sum of delays within a short time around this one."""
        if count:
            self._reach(time_ns, time_ns)
            place = (time_ns >> self._bits) - self._first
            self.counts[place] += count
            self.sums[place] += total

    def merge(self, other: TimeSlots) -> None:
        """Add the samples of another."""
        if other._first < 0:
            return
        self._reach(other._first << other._bits, ((other._last + 1) << other._bits) - 1)
        while self._bits < other._bits:
            self._fold()
        numbers = np.arange(other._first, other._last + 1)
        places = (numbers >> (self._bits - other._bits)) - self._first
        self.counts += np.bincount(places, other.counts[: len(numbers)], SLOTS)
        self.sums += np.bincount(places, other.sums[: len(numbers)], SLOTS)

    def over_time(self, samples: int) -> OverTime | None:
        """How the mean of this number of delays varies; None if too few slots hold any."""
        return over_time(self.sums, self.counts, samples)

    def alike(self) -> Alike:
        """How delays are alike."""
        held = np.flatnonzero(self.counts)
        return alike_over(held, self.sums[held], self.counts[held]).with_slots(1 << self._bits)

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
            self.counts, self.sums = (np.roll(one, self._first - first) for one in (self.counts, self.sums))
        self._first, self._last = first, last

    def _fold(self) -> None:
        """Make slots twice as long."""
        self._bits += 1
        if self._first < 0:
            return
        numbers = np.arange(self._first, self._last + 1)
        places = (numbers >> 1) - (self._first >> 1)
        for held in (self.counts, self.sums):
            held[:] = np.bincount(places, held[: len(numbers)], SLOTS)
        self._first, self._last = self._first >> 1, self._last >> 1
