"""Sums of delays of a leg by time: how much their mean varies over a capture.

Guarantee: slots of equal length cover the time seen, 2,048 to 4,096 of them once it is longer than 4 ms. Their edges
are multiples of their length, a power of two, so that merging is exact in any order. Memory: 66 KB.
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

    __slots__ = ("counts", "place", "sums")

    def __init__(self) -> None:
        self.counts: Floats = np.zeros(SLOTS)
        self.sums: Floats = np.zeros(SLOTS)
        # Bits of the length of a slot, numbers of the first and the last slot; if the last comes first, there is none.
        self.place = np.array([SHORTEST, 0, -1], np.int64)

    def add(self, times_ns: Ints, wanted: Bools, delays_ns: Ints, weights: Ints | None = None) -> None:
        """Add the samples that are wanted, with the time of each."""
        of_each = _NO_WEIGHTS if weights is None else weights
        _kernels.slot(self.place, self.counts, self.sums, times_ns, wanted, delays_ns, of_each)

    def add_summed(self, time_ns: int, count: float, total: float) -> None:
        """Add the weight and the sum of delays within a short time around this one."""
        if count:
            self._reach(time_ns, time_ns)
            bits, first, _ = self.place.tolist()
            self.counts[(time_ns >> bits) - first] += count
            self.sums[(time_ns >> bits) - first] += total

    def merge(self, other: TimeSlots) -> None:
        """Add the samples of another."""
        others, first, last = other.place.tolist()
        if last < first:
            return
        self._reach(first << others, ((last + 1) << others) - 1, others)
        numbers = np.arange(first, last + 1)
        places = (numbers >> (self.place[0] - others)) - self.place[1]
        self.counts += np.bincount(places, other.counts[: len(numbers)], SLOTS)
        self.sums += np.bincount(places, other.sums[: len(numbers)], SLOTS)

    def over_time(self, samples: int) -> OverTime | None:
        """How the mean of this number of delays varies; None if too few slots hold any."""
        return over_time(self.sums, self.counts, samples)

    def alike(self) -> Alike:
        """How delays are alike."""
        held = np.flatnonzero(self.counts)
        return alike_over(held, self.sums[held], self.counts[held]).with_slots(1 << int(self.place[0]))

    def _reach(self, begin_ns: int, end_ns: int, bits: int = SHORTEST) -> None:
        """Make the slots cover these times, and be at least as long as this."""
        _kernels.reach(self.place, self.counts, self.sums, begin_ns, end_ns, bits)
