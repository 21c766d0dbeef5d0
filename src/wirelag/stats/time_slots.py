"""Sums of delays of a leg by time: how much their mean varies over a capture.

Guarantee: slots of equal length cover the time seen, 2,048 to 4,096 of them once it is longer than 4 ms. Their edges
are multiples of their length, a power of two, so that merging is exact in any order. Memory: 66 KB.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from wirelag import _kernels
from wirelag.stats.over_time import SHORTEST, Alike, OverTime, over_time

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[Any]
    Bools = npt.NDArray[np.bool_]

SLOTS: Final = 4096


class TimeSlots:
    """Weights and weighted sums of delays by slot: integers, exact below 2^53 ns."""

    __slots__ = ("counts", "place", "sums")

    def __init__(self) -> None:
        self.counts, self.sums = _kernels.floats(SLOTS), _kernels.floats(SLOTS)
        # Bits of the length of a slot, numbers of the first and the last slot; if the last comes first, there is none.
        self.place = array("q", (SHORTEST, 0, -1))

    def __getstate__(self) -> tuple[Any, ...]:
        """The slots that hold delays."""
        import numpy as np

        counts, sums = np.asarray(self.counts), np.asarray(self.sums)
        held = np.flatnonzero(counts)
        return held.astype(np.uint16), counts[held], sums[held], self.place.tolist()

    def __setstate__(self, saved: tuple[Any, ...]) -> None:
        self.__init__()  # type: ignore[misc]
        held, counts, sums, place = saved
        self.place = array("q", place)
        for number, count, total in zip(held.tolist(), counts.tolist(), sums.tolist(), strict=True):
            self.counts[number], self.sums[number] = count, total

    def add(self, times_ns: Ints, wanted: Bools, delays_ns: Ints, weights: Ints | None = None) -> None:
        """Add the samples that are wanted, with the time of each."""
        _kernels.slot(self.place, self.counts, self.sums, times_ns, wanted, delays_ns, weights)

    def add_summed(self, time_ns: int, count: float, total: float) -> None:
        """Add the weight and the sum of delays within a short time around this one."""
        if count:
            _kernels.reach(self.place, self.counts, self.sums, time_ns, time_ns, SHORTEST)
            bits, first, _ = self.place
            self.counts[(time_ns >> bits) - first] += count
            self.sums[(time_ns >> bits) - first] += total

    def merge(self, other: TimeSlots) -> None:
        """Add the samples of another."""
        _kernels.merge_slots(self.place, self.counts, self.sums, other.place, other.counts, other.sums)

    def over_time(self, samples: int) -> OverTime | None:
        """How the mean of this number of delays varies; None if too few slots hold any."""
        return over_time(self.sums, self.counts, samples)

    def alike(self) -> Alike:
        """How delays are alike."""
        return Alike(*_kernels.alike_slots(self.sums, self.counts)).with_slots(1 << self.place[0])
