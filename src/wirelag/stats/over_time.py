"""How sure a mean and a quantile are if delays that follow each other are alike, as in a queue.

Guarantee, by simulation of queues with 55 to 95% load and recordings of 10 to 100,000 packets
(tests/stats/test_over_time.py): of all intervals that are given, 93% or more hold the truth, the mean over a very long
time. Where a recording is too short there is none: fewer than 32 packets, or fewer than twelve independent stretches.
Memory: none.

Law of errors: n delays of one queue count for fewer than n. In order of time they are put into 32 batches of the same
size. Neighbouring batches may still be alike: their correlation r, corrected for its bias in so few batches (Kendall
1954), makes 32 batches count as 32 (1 - r) / (1 + r). Batch means: Law and Carson 1979; their correlation and skewness:
Tafazzoli and Wilson, "Skart", 2011.

Law of ratios: a queue that is longer on average varies more, so that the part above the floor is compared as a ratio.
A short recording more often misses the rare long waits than it has too many of them: the interval is longer upwards,
the more so the wider it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.stats.distribution import Z95, wilson

BATCHES: Final = 32
FEWEST: Final = 4  # batches that give any error
STRETCHES: Final = 12.0  # independent stretches that give an interval
UPWARDS: Final = 3.0  # how much longer an interval is upwards, for each time that it is as wide as the value
BEYOND: Final = 2.0  # the same for the share of delays beyond a quantile
FEWEST_BEYOND: Final = 5  # delays beyond the end of a quantile's interval
_MOST_ALIKE: Final = 0.9
_NO_CHANCE: Final = 3.0  # standard errors
_WIDEST: Final = 2.0  # exponent: further upwards than seven times the value nothing is said

Bounds = tuple[float, float]
Error = tuple[float, float]  # a standard error, and its degrees of freedom
Numbers = Sequence[float] | npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[Any]


def batch_error(sums: Numbers, counts: Numbers) -> Error | None:
    """The error of sum(sums) / sum(counts), for batches in order of time; None if there are too few."""
    totals, weights = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    totals, weights = totals[weights > 0], weights[weights > 0]
    if len(totals) >= 2 * BATCHES:
        firsts = np.arange(0, len(totals), len(totals) // BATCHES)
        totals, weights = np.add.reduceat(totals, firsts), np.add.reduceat(weights, firsts)
    batches, whole = len(totals), float(weights.sum())
    if batches < FEWEST:
        return None
    apart = totals - weights * (totals.sum() / whole)
    squares = float(apart @ apart)
    if squares <= 0:
        return 0.0, batches - 1.0
    seen = float(apart[:-1] @ apart[1:]) / squares
    alike = min(max(seen + (1 + 3 * seen) / (batches - 1), 0.0), _MOST_ALIKE)
    each = (1 + alike) / (1 - alike)  # batches that count as one
    # Squares around the mean of few stretches are too small by one stretch.
    variance = squares / whole**2 * each / (1 - min(each / batches, 0.5))
    return math.sqrt(variance), max(batches / each - 1, 1.0)


def _batch_of(weights: Floats) -> npt.NDArray[np.int64]:
    """The batch of each part: it is where the middle of its weight lies."""
    middles = (weights.cumsum() - weights / 2) * (BATCHES / max(float(weights.sum()), 1.0))
    return np.minimum(middles, BATCHES - 1).astype(np.int64)


def equal_batches(sums: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Sums and counts of parts, in order of time, put together to batches of about the same weight."""
    held = counts > 0
    sums, counts = sums[held], counts[held]
    batch = _batch_of(counts)
    return np.asarray(np.bincount(batch, sums, BATCHES), float), np.asarray(np.bincount(batch, counts, BATCHES), float)


class Batches:
    """Samples in batches of about the same weight, in order of time."""

    def __init__(self, times_ns: Ints, weights: Ints) -> None:
        order = np.argsort(times_ns, kind="stable")
        each = weights.astype(np.float64)
        self._batch = np.empty(len(order), np.int64)
        self._batch[order] = _batch_of(each[order])
        self._weights, self._counts = each, np.bincount(self._batch, each, BATCHES)

    def error(self, values: npt.NDArray[Any]) -> Error | None:
        """The error of the weighted mean of these values, one for each sample; None for fewer than two."""
        if len(values) < 2:
            return None
        found = batch_error(np.bincount(self._batch, values * self._weights, BATCHES), self._counts)
        return None if found is None else (found[0], min(found[1], len(values) - 1.0))


def tells(error: Error | None, samples: int) -> str | None:
    """Why there is no interval with this error; None: there is one."""
    if samples < BATCHES:
        return f"fewer than {BATCHES} delays do not show how they vary over time"
    if error is None or error[1] < STRETCHES - 1:
        return "delays change too slowly for so short a time: there are fewer than twelve independent stretches"
    return None


def alike_over(sums: Floats, counts: Floats) -> float:
    """How many parts of time, all of one length, count as one since delays stay alike; 0 if nothing shows it.

    Parts are put together by twos until there are fewer than 32. Where neighbours have a correlation r above chance,
    (1 + r) / (1 - r) of them count as one. Noise hides it in short parts, chance in long ones: the longest is taken.
    """
    apart, held, length, most = sums - counts * (sums.sum() / max(counts.sum(), 1.0)), counts > 0, 1, 0.0
    while len(apart) >= BATCHES:
        both = held[:-1] & held[1:]
        before, after, pairs = apart[:-1][both], apart[1:][both], int(both.sum())
        squares = float(before @ before + after @ after) / 2
        seen = float(before @ after) / squares if squares > 0 else 0.0
        if pairs >= BATCHES / 2 and seen > _NO_CHANCE / math.sqrt(pairs):
            alike = min(seen + (1 + 3 * seen) / (pairs - 1), 1 - 1 / pairs)
            most = max(most, length * (1 + alike) / (1 - alike))
        if len(apart) % 2:
            apart, held = np.append(apart, 0.0), np.append(held, False)
        apart, held, length = apart[::2] + apart[1::2], held[::2] | held[1::2], 2 * length
    return most


def too_short(length_ns: int, alike_ns: float) -> str | None:
    """Why a part of a capture of this length has no interval, if delays of the whole stay alike for so long."""
    if length_ns >= STRETCHES * alike_ns:
        return None
    return "delays of the whole change too slowly for so short a part: it has fewer than twelve independent stretches"


def half95(freedom: float) -> float:
    """Half-width of a 95% interval in standard errors (Student, by the inverse of Wallace's approximation)."""
    if math.isinf(freedom):
        return Z95
    deviate = Z95 * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(deviate * deviate / freedom))


def bounds(value: float, error: Error, above: float | None = None) -> Bounds:
    """The 95% interval of a value, of which `above` lies above a floor (None: unknown)."""
    half = half95(error[1]) * error[0]
    if above is None or above <= 0:
        return value - half, value + half
    ratio = half / above
    up = min(ratio * (1 + UPWARDS * ratio), max(ratio, _WIDEST))
    up = math.expm1(up) if up <= _WIDEST else up * math.expm1(_WIDEST) / _WIDEST
    return value + above * math.expm1(-ratio), value + above * up


def share_bounds(share: float, error: Error, samples: float) -> Bounds:
    """The 95% interval of a share: at least that of independent samples."""
    low, high = wilson(share, samples)
    if not 0 < share < 1:
        return low, high
    half = half95(error[1]) * error[0]
    upwards, downwards = half / share, half / (1 - share)  # far ends are ratios of the smaller part
    if share <= 0.5:
        wide = share * math.exp(-upwards), share * math.exp(min(upwards * (1 + BEYOND * upwards), _WIDEST))
    else:
        wide = 1 - (1 - share) * math.exp(min(downwards, _WIDEST)), 1 - (1 - share) * math.exp(-downwards)
    return max(0.0, min(low, wide[0])), min(1.0, max(high, wide[1]))


def quantile_shares(q: float, error: Error, samples: float) -> Bounds | None:
    """The shares at which the ends of a quantile's 95% interval lie (Woodruff); None if too few delays are beyond.

    `error` is that of the share of delays below the quantile.
    """
    beyond = min(q, 1 - q)
    half = max(half95(error[1]) * error[0], Z95 * math.sqrt(q * (1 - q) / samples))
    ratio = half / beyond
    if ratio > 1:
        return None
    near, far = beyond * math.exp(ratio), beyond * math.exp(-ratio * (1 + BEYOND * ratio))
    if far * samples < FEWEST_BEYOND or near >= 1:
        return None
    return (far, near) if q < 0.5 else (1 - near, 1 - far)
