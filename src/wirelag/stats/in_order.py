"""How delays as columns vary over time: what over_time.py tells of them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.stats.over_time import NOT_ALIKE, SHORTEST, Alike, OverTime

FEWEST: Final = 4  # delays that tell anything

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[Any]


class InOrder:
    """Samples in order of time, each of which represents one or more: their order serves for many values."""

    def __init__(self, times_ns: Ints, weights: Ints) -> None:
        self._order = np.argsort(times_ns, kind="stable")
        self._weights = weights[self._order].astype(np.float64)

    def over_time(self, values: Ints) -> OverTime | None:
        """How the weighted mean of these values varies, one for each sample; None if there are too few."""
        if len(values) < FEWEST:
            return None
        return OverTime.told(_kernels.over_samples(values[self._order] * self._weights, self._weights))


def alike_ns(times_ns: Ints, values: Ints, weights: Ints) -> Alike:
    """How values are alike, by times in ns."""
    if not len(times_ns):
        return NOT_ALIKE
    begin = int(times_ns.min())
    bits = max((int(times_ns.max()) - begin).bit_length() - 12, SHORTEST)
    slots, sums, counts = (times_ns - begin) >> bits, values * weights, weights
    found = Alike(*_kernels.alike(slots, *(np.ascontiguousarray(one, np.float64) for one in (sums, counts))))
    return found.with_slots(1 << bits)._replace(samples=len(times_ns))
