"""How delays as columns, or in slots of time, vary over time: what over_time.py tells of them."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.distinct import distinct
from wirelag.stats.over_time import NOT_ALIKE, OF_A_ROW, RETURNS, SHORTEST, Alike, OverTime, over_time

FEWEST: Final = 4  # delays that tell anything
_COARSEST: Final = 32  # parts of time whose neighbours are compared
_NO_CHANCE: Final = 3.0  # standard errors

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


def alike_over(slots: Ints, sums: Ints, counts: Ints) -> Alike:
    """How delays in slots of time, all of one length, are alike.

    If a recording is too short for an interval, so are its parts.
    """
    if not len(slots):
        return NOT_ALIKE
    slots = (slots - slots.min()).astype(np.int64)
    apart = sums - counts * (float(sums.sum()) / max(float(counts.sum()), 1.0))
    totals, sizes = (np.bincount(slots, values).astype(np.float64) for values in (apart, counts))
    whole = over_time(totals, sizes, len(slots))
    lasts, length = _neighbours_alike(slots, apart), int(slots.max()) + 1
    if whole is None:
        return Alike(lasts)
    seen = 1.0 if whole.returns < RETURNS else whole.stretches
    too_slow = length / seen if seen < OF_A_ROW else 0.0
    return Alike(max(too_slow, lasts), whole.level * length)


def _neighbours_alike(slots: Ints, apart: Ints) -> float:
    """How many slots count as one since delays stay alike, from neighbours; 0 if nothing shows it.

    Slots are put together by twos until there are fewer than 32. Where neighbours have a correlation r above chance,
    (1 + r) / (1 - r) of them count as one. Noise hides it in short slots, chance in long ones: the longest is taken.
    """
    most, length = 0.0, 1
    slots, _, part = distinct(slots)
    apart = np.bincount(part, apart)
    while (seen := (int(slots.max()) + 1)) >= _COARSEST:
        near = np.diff(slots) == 1
        before, after, pairs = apart[:-1][near], apart[1:][near], int(near.sum())
        squares = float(before @ before + after @ after) / 2
        r = float(before @ after) / squares if squares > 0 else 0.0
        if pairs >= _COARSEST / 2 and r > _NO_CHANCE / math.sqrt(min(pairs, seen)):
            each = max(pairs, _COARSEST / 2)
            alike = min(r + (1 + 3 * r) / (each - 1), 1 - 1 / each)
            most = max(most, length * (1 + alike) / (1 - alike))
        slots, length = slots >> 1, 2 * length
        starts = np.flatnonzero(np.diff(slots, prepend=-1))
        slots, apart = slots[starts], np.add.reduceat(apart, starts)
    return most


def alike_ns(times_ns: Ints, values: Ints, weights: Ints) -> Alike:
    """How values are alike, by times in ns."""
    if not len(times_ns):
        return NOT_ALIKE
    begin = int(times_ns.min())
    bits = max((int(times_ns.max()) - begin).bit_length() - 12, SHORTEST)
    found = alike_over((times_ns - begin) >> bits, values * weights, weights)
    return found.with_slots(1 << bits)._replace(samples=len(times_ns))
