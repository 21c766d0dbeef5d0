"""How sure a mean and a quantile are if delays that follow each other are alike: in a queue, or on a path that changes.

Guarantee, by simulation of recordings of 10 to 100,000 packets (experiments/coverage.py prints it; figures are in
experiments/README.md): of the intervals that are given, 93% to 97% hold the truth, the value over a very long time, for
queues with 55% to 95% load, and pooled over paths that change, heavy tails and independent delays. Not for every size:
of fewer than 100 delays of a busy queue few have an interval, and of these more miss. Where a recording is too short
there is none: fewer than 64 delays, or a level that is likelier than one in three to change so slowly that there are
fewer than two independent stretches, or to be that of a queue which hardly returned to its floor (slow_levels.py). What
a recording does not show cannot be told: one that is shorter than its level lasts may look steady. Memory: none.

Law of doubt: rather wide than silent. Whether a recording seems sure is chance, too: a condition that asks for little
error lets those through that missed the rare long waits, and of these few hold. So conditions are few and lax, and
intervals are as wide as they must be: an upper end may lie beyond the longest delay seen.

Law of errors: n delays that are alike count for fewer than n. In order of time they are put into at most 128 batches of
the same size. Their slowest cosines tell how much the mean varies, and how slowly (slow_levels.py). Batches of
different sizes make a level look like noise, so delays that came together are taken apart again.

Law of ratios: the mean wait of a queue is inverse to its drift towards the floor, so the part of a mean above the floor
is compared as a ratio. Such a mean varies by sqrt(2 / returns) of itself (reflected Brownian motion; slow_levels.py),
and that error is the smaller, the shorter the waits were that a recording shows. With e as the half-width, by the part
above the floor, both ends miss equally often if they are 1 / (1 + e / sqrt(1 + 0.9 e)) and 1 / (1 - e) times that part.
A recording that missed long waits shows too small an error as well, so the upper end is exp(e + 2.5 e^2) instead, at
most 3.5. Where returns tell more than cosines it is 1 / (1 - e) with the e that they give; this grows no further below
4 returns, nor beyond 4. All of this holds for the part of the variance that is not chance of single delays, and for
delays as skewed as waits; a level that is above its middle as often as below has an interval of equal halves. Chance of
independent delays moves both ends upwards by their skewness (N. Johnson 1978, P. Hall 1992).

Law of calm: a busy queue is calm for a hundred packets now and then. Of n delays that follow each other, and are as
skewed as waits or stay alike for 32 delays or longer, returns count for 1 / (1 + 150 / n)^2 of what they seem, and
there is at most one for every two delays; the upper end may lie further away by as much.

Law of quantiles: a longer queue has all waits longer, a shorter one shorter, so that quantiles up to p95 follow the
mean, as far as the shares of delays say so, too (shares.py). A median near the floor falls by as much as the mean (0.7
to 0.9 times as much in a queue with random arrivals), and rises by at least 0.3 times as much. No quantile is longer
than the mean allows (A. Markov).

Law of parts: a group lasts as long as the whole, and has the interval that its delays alone would have: the same
whatever it was chosen by, a grouping or a filter. A row over time is shorter, and shows less than the whole of how
slowly delays change. For how long those of the whole stay alike is learned from the cosines and from neighbours of
batches of all sizes (`_neighbours_alike`); a row that is shorter than that four times has no interval. Its mean varies
at least as much as the level of the whole makes it; its delays are gone when the whole is known, so its interval is
widened (`within_whole`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag.packets.distinct import distinct
from wirelag.stats.distribution import Z95
from wirelag.stats.slow_levels import SLOWEST, slowness

BATCHES: Final = 128  # that an error is learned from
FEWEST: Final = 4  # batches that give any error
FEWEST_DELAYS: Final = 64  # that give an interval
STRETCHES: Final = 2.0  # independent stretches that give an interval
OF_A_ROW: Final = 4.0  # the same, for a part of a whole
RETURNS: Final = 1.5  # of a queue to its floor that give an interval
CALM: Final = 150.0  # delays of a busy queue that may all be of a calm time
LONG_ALIKE: Final = 32.0  # delays that stay alike: from so many on they may be waits, even if they are not skewed
FOLLOW: Final = 0.15  # correlation of neighbours from which on delays may wait for each other
MANY: Final = 1024  # delays, among which it does not matter that some came together
COSINES: Final = (3, 16)  # the fewest and the most
UPWARDS: Final = 2.5  # how much longer an interval is upwards, for each time that it is as wide as the value
SKEWED: Final = 0.5  # skewness of delays like waits: those of a queue have 2, a short recording shows less
LOWEST: Final = 0.05  # the share of batches that tell where the floor of a queue is
AT_THE_FLOOR: Final = (0.3, 1.0)  # how far a median at the floor rises and falls, by how far the mean of waits does
WIDEST_MEAN: Final = 10.0  # times the mean, where an interval that ends beyond all delays may end
_COARSEST: Final = 32  # parts of time whose neighbours are compared
SHORTEST: Final = 10  # bits of the length of a slot of time: 1 us
_NO_CHANCE: Final = 3.0  # standard errors
_WIDEST: Final = 1.25  # exponent: a mean is higher by at most 2.5 times the part above the floor, however wide,
_HIGHEST: Final = 3.0  # or by this many times that part, if there are few returns; by more if the law of calm holds,
_FURTHEST: Final = 9.0  # but further nothing is said
_FEW_RETURNS: Final = 4.0  # the error of a drift grows no further with fewer than about this many
_SELDOM: Final = 0.9  # of the error: by how much less a mean lies too high, the wider it is
_FOLLOWS: Final = 0.95  # quantiles up to here are shorter where the mean is
_HALL: Final = (1 + 2 * Z95**2) / 6  # errors by which an interval is moved, for each unit of skewness

Bounds = tuple[float, float]
Error = tuple[float, float]  # a standard error, and its degrees of freedom
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[Any]


class Chance(NamedTuple):
    """The error that a mean would have if delays were independent, and what gives its interval a shape."""

    error: float
    skewness: float  # of single delays
    samples: float  # how many independent ones
    higher: float = 0.0  # by how much the mean may lie higher at least, if delays are like waits (OverTime)


class Alike(NamedTuple):
    """What the delays of a whole tell of its parts; times are in ns, or in slots."""

    lasts: float = 0.0  # for how long they stay alike
    level: float = 0.0  # the variance of a mean by a level that changes, times the time it is over
    samples: int = -1  # how many delays the whole has

    def with_slots(self, length_ns: int) -> Alike:
        """The same in ns, for slots of this length."""
        return self._replace(lasts=self.lasts * length_ns, level=self.level * length_ns)


NOT_ALIKE: Final = Alike()
A_QUEUE: Final = Chance(0.0, 2.0, 1.0)  # an error that is not chance of waits, which are exponential


class OverTime(NamedTuple):
    """How a mean varies over time: its error, and how many independent stretches of time it rests on."""

    error: Error
    stretches: float
    level: float = 0.0  # the variance of the mean by a level that changes
    returns: float = math.inf  # to the floor, if the level is that of a queue
    higher: float = 0.0  # by how much the mean may lie higher then


def over_time(sums: Ints, counts: Ints, samples: int) -> OverTime | None:
    """How sum(sums) / sum(counts) varies, for parts in order of time that hold `samples` delays; None: too few."""
    held = np.flatnonzero(counts > 0)
    parts, weights = np.asarray(sums[held], np.float64), np.asarray(counts[held], np.float64)
    if len(parts) < FEWEST:
        return None
    whole = float(weights.sum())
    if len(parts) < samples <= MANY and whole == samples:
        # Delays that came together are alike: as one they would make batches of different sizes, which look like noise.
        parts, weights = np.repeat(parts / weights, weights.astype(np.int64)), np.ones(samples)
    return _over_batches(*equal_batches(parts, weights, BATCHES), samples)


def _over_batches(totals: Floats, sizes: Floats, samples: int) -> OverTime:
    """The same for batches of about the same size, none of which is empty."""
    whole = float(sizes.sum())
    apart = totals - sizes * (totals.sum() / whole)
    batches, squares = len(apart), float(apart @ apart)
    if squares <= 0:
        return OverTime((0.0, batches - 1.0), math.inf)
    powers = _cosines(apart, SLOWEST)
    means = apart / sizes
    reach = -_low_end(means)
    skewness = float((means**3).sum() / batches / ((means**2).sum() / batches) ** 1.5)
    follow = _follow(apart, squares)
    found, freedom = slowness(powers, batches, reach * whole / batches), float(len(powers))
    error = found.half / half95(freedom) / whole, freedom
    alike = min(max(2 * skewness / SKEWED, 0.0), 1.0)  # batches of noise are not skewed, whatever delays are
    calm = follow * max(alike, min(samples / found.stretches / LONG_ALIKE, 1.0) ** 2)
    doubt = (1 + calm * CALM / samples) ** 2
    returns = min(found.returns, samples / (2 * follow) if follow else math.inf) / doubt
    higher = max(0.0, reach) * alike * found.part * min(_inverse(returns), _HIGHEST * doubt)
    return OverTime(error, found.stretches, found.level / whole**2, returns, higher)


def _low_end(means: Floats) -> float:
    """The mean below which a share of `LOWEST` lies. Not np.quantile, which loads masked arrays."""
    place = LOWEST * (len(means) - 1)
    low, high = np.sort(means)[int(place) : int(place) + 2].tolist()
    return float((high - low) * (place - int(place)) + low)


def _follow(apart: Floats, squares: float) -> float:
    """How far batches follow each other, from 0, no more than by chance, to 1."""
    correlation = float(apart[1:] @ apart[:-1]) / squares - 0.5 / math.sqrt(len(apart))
    return min(max(correlation / FOLLOW, 0.0), 1.0)


def _inverse(returns: float) -> float:
    """By which share the mean of a queue may be longer, by the error of its drift; at most as much as is ever said."""
    error = Z95 * math.sqrt(2 / (returns + _FEW_RETURNS))
    return min(1 / (1 - error) - 1, _FURTHEST) if error < 1 else _FURTHEST


def cosine_error(apart: Floats, whole: float, cosines: float) -> Error:
    """The error of a mean of this whole weight from its slowest cosines, for batches' differences in order of time."""
    powers = _cosines(apart, int(min(max(cosines, COSINES[0]), COSINES[1])))
    return math.sqrt(float(powers.mean())) / whole, float(len(powers))


def _cosines(apart: Floats, most: int) -> Floats:
    """The power of the slowest cosines, each of which is the variance of a sum of independent batches."""
    return np.asarray(2 * (_cosines_of(len(apart), min(most, len(apart) - 1)) @ apart) ** 2)


@lru_cache(maxsize=32)
def _cosines_of(batches: int, cosines: int) -> Floats:
    return np.cos(np.outer(np.arange(1, cosines + 1), (np.arange(batches) + 0.5) * (math.pi / batches)))


def equal_batches(sums: Floats, counts: Floats, most: int) -> tuple[Floats, Floats]:
    """Sums and counts of parts, in order of time, put together to batches of about the same weight."""
    batch = _batches(counts, most)
    totals, sizes = _sums(batch, sums), _sums(batch, counts)
    held = sizes > 0
    return totals[held], sizes[held]


def _batches(counts: Floats, most: int) -> Ints:
    """The batch of each part."""
    batches = min(most, len(counts))
    middles = (counts.cumsum() - counts / 2) * (batches / float(counts.sum()))
    return np.minimum(middles, batches - 1).astype(np.int64)


def _sums(batch: Ints, values: Floats) -> Floats:
    return np.asarray(np.bincount(batch, values), np.float64)


class InOrder:
    """Samples in order of time, each of which represents one or more: their batches serve for many values."""

    def __init__(self, times_ns: Ints, weights: Ints) -> None:
        self._order = np.argsort(times_ns, kind="stable")
        self._weights = weights[self._order].astype(np.float64)
        self._batch = _batches(self._weights, BATCHES)
        self._sizes = _sums(self._batch, self._weights)

    def over_time(self, values: Ints) -> OverTime | None:
        """How the weighted mean of these values varies, one for each sample; None if there are too few."""
        if len(values) < FEWEST:
            return None
        totals, held = _sums(self._batch, values[self._order] * self._weights), self._sizes > 0
        return _over_batches(totals[held], self._sizes[held], len(values))


def tells(over: OverTime | None, samples: int) -> str | None:
    """Why there is no interval; None: there is one."""
    if samples < FEWEST_DELAYS:
        return f"fewer than {FEWEST_DELAYS} delays do not show how they vary over time"
    if over is None or over.stretches < STRETCHES or over.returns < RETURNS:
        return "delays change too slowly for so short a time: there may be fewer than two independent stretches"
    return None


def too_wide(mean_ns: float, high_ns: float, longest_ns: float) -> str | None:
    """Why an interval of a mean is not worth its name: it ends beyond all delays, and beyond ten times the mean."""
    if high_ns <= max(longest_ns, WIDEST_MEAN * mean_ns):
        return None
    return "delays vary so much, for so long, that their mean may lie beyond the longest one seen"


NOTHING_LEFT: Final = "delays of the whole change so much that a mean over so short a part could be anything"


def too_short(length_ns: float, alike_ns: float) -> str | None:
    """Why a part of a capture of this length has no interval, if delays of the whole stay alike for so long."""
    if length_ns >= OF_A_ROW * alike_ns:
        return None
    return "delays of the whole change too slowly for so short a part: it has fewer than four independent stretches"


def within_whole(
    ci95: Mapping[str, Bounds], figures: Mapping[str, float | None], length_ns: float, alike: Alike
) -> tuple[dict[str, Bounds], str | None]:
    """The intervals of a part of a whole, in seconds, that are known without the whole; or why there are none.

    They are at least as wide as the level of the whole makes that of the mean, each by the same factor. There are none
    if the one of the mean then begins at 0, or ends too far away.
    """
    if why := too_short(length_ns, alike.lasts):
        return {}, why
    if "mean" not in ci95:
        return dict(ci95), None
    half = Z95 * math.sqrt(alike.level / max(length_ns, 1.0)) / 1e9
    wider = max(1.0, 2 * half / max(ci95["mean"][1] - ci95["mean"][0], 1e-12))
    found = {}
    for name, (low, high) in ci95.items():
        if (middle := figures.get(name)) is not None:
            found[name] = max(0.0, middle + wider * (low - middle)), middle + wider * (high - middle)
    low, high = found.get("mean", (1.0, 0.0))
    why = too_wide(figures.get("mean") or 0.0, high, figures.get("max") or high)
    return ({}, why or NOTHING_LEFT) if why or not low else (found, None)


def alike_over(slots: Ints, sums: Ints, counts: Ints) -> Alike:
    """How delays in slots of time, all of one length, are alike.

    If a recording is too short for an interval, so are its parts.
    """
    if not len(slots):
        return NOT_ALIKE
    slots = (slots - slots.min()).astype(np.int64)
    apart = sums - counts * (float(sums.sum()) / max(float(counts.sum()), 1.0))
    whole = over_time(np.bincount(slots, apart), np.bincount(slots, counts), len(slots))
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


def half95(freedom: float) -> float:
    """Half-width of a 95% interval in standard errors (Student, by the inverse of Wallace's approximation)."""
    if math.isinf(freedom):
        return Z95
    deviate = Z95 * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(deviate * deviate / freedom))


def welch(errors: Iterable[Error]) -> Error:
    """The error of a sum of values with these errors (B. Welch 1947, F. Satterthwaite 1946)."""
    known = list(errors)
    squares, fourths = sum(error**2 for error, _ in known), sum(error**4 / freedom for error, freedom in known)
    return math.sqrt(squares), squares**2 / fourths if fourths else math.inf


def bounds(value: float, error: Error, above: float | None = None, chance: Chance = A_QUEUE) -> Bounds:
    """The 95% interval of a value, of which `above` lies above a floor (None: unknown); `chance` is in its error."""
    half = half95(error[1]) * error[0]
    if above is None or above <= 0:
        return value - half, value + half
    by_chance = min(1.0, chance.error / error[0]) if error[0] > 0 else 1.0
    alike, up = _longer(half, above, by_chance, chance.skewness)
    up = max(up, chance.higher / above)
    shift = error[0] * by_chance**3 * chance.skewness / math.sqrt(chance.samples) * _HALL
    low, high = (
        alike * above * end + (1 - alike) * straight + shift
        for end, straight in ((-_shorter(half / above), -half), (up, half))
    )
    return value + low, value + high


def _shorter(ratio: float) -> float:
    """By which share waits may be shorter on average, if the half-width of the mean is this share of them."""
    return 1 - 1 / (1 + ratio / math.sqrt(1 + _SELDOM * ratio))


def _longer(half: float, above: float, by_chance: float, skewness: float) -> tuple[float, float]:
    """The part of a mean's interval that is like that of a queue, and how much longer waits may be on average there."""
    ratio = half / above
    up = math.expm1(min(ratio * (1 + UPWARDS * ratio), _WIDEST))
    return (1 - by_chance**2) * min(max(skewness / SKEWED, 0.0), 1.0), up


def with_the_mean(
    q: float, ends: Bounds, middle: float, floor: float, error: Error | None, above: float, chance: Chance
) -> Bounds:
    """The interval of a quantile that follows the mean: a longer queue has all waits longer, a shorter one shorter.

    `ends` are those that shares of delays tell. The median may be at the floor.
    """
    low, high = ends
    if error is None or error[0] <= 0 or above <= 0 or q < 0.5:
        return ends
    half = half95(error[1]) * error[0]
    alike, up = _longer(half, above, min(1.0, chance.error / error[0]), chance.skewness)
    longer, shorter = (max(middle - floor, least * above) for least in AT_THE_FLOOR)
    high = max(high, middle + alike * max(up, chance.higher / above) * longer)
    if q <= _FOLLOWS:
        low += alike * max(0.0, middle - _shorter(half / above) * shorter - low)
    return low, min(high, below_mean(q, floor, bounds(floor + above, error, above, chance)[1]))


def below_mean(q: float, floor: float, highest: float) -> float:
    """How far up a quantile may lie if the mean lies no higher than this: not more can be that long (A. Markov)."""
    return floor + (highest - floor) / (1 - q)
