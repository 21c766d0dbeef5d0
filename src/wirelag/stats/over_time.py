"""How sure a mean and a quantile are if delays that follow each other are alike: in a queue, or on a path that changes.

Guarantee, by simulation of recordings of 10 to 100,000 packets (experiments/coverage.py,
tests/stats/test_over_time.py): of the intervals that are given, 93% to 97% hold the truth, the value over a very long
time, pooled over queues, paths that change, heavy tails and independent delays; of short recordings more. Where a
recording is too short there is none: fewer than 32 delays, or a level that is likelier than one in three to change so
slowly that there are fewer than two independent stretches, or to be that of a queue which hardly returned to its floor
(slow_levels.py). What a recording does not show cannot be told: one that is shorter than its level lasts may look
steady. Memory: none.

Law of doubt: rather wide than silent. Whether a recording seems sure is chance, too: a condition that asks for little
error lets those through that missed the rare long waits, and of these few hold. So conditions are few and lax, and
intervals are as wide as they must be: an upper end may lie beyond the longest delay seen.

Law of calm: a queue with 95% load stays alike for some 800 packets, and is calm for hundreds of them now and then. So n
delays as skewed as waits count for (n / (n + 800))^1.5 of the returns that they show: 300 of them must show 15 returns
instead of 2.2, 1,000 of them 4, 10,000 hardly more than 1.5. A short recording of such a queue may not be skewed: where
32 delays or more make one stretch, half of it holds. And however steady they look, the interval is at least as long
upwards as (170 / n)^2 of what lies above the floor: 2.9 times as much for 100 delays, a third for 300, 3% for 1,000.
None of this holds for 100 delays or more that follow each other no more than by chance.

Law of errors: n delays that are alike count for fewer than n. In order of time they are put into at most 128 batches of
the same size. Their slowest cosines tell how much the mean varies, and how slowly (slow_levels.py). Batches of
different sizes make a level look like noise, so delays that came together are taken apart again.

Law of parts: a group lasts as long as the whole, and has the interval that its delays alone would have: the same
whatever it was chosen by, a grouping or a filter. A row over time is shorter, and shows less than the whole of how
slowly delays change. For how long those of the whole stay alike is learned from the cosines and from neighbours of
batches of all sizes (`_neighbours_alike`); a row that is shorter than that four times has no interval. Its mean varies
at least as much as the level of the whole makes it; its delays are gone when the whole is known, so its interval is
widened (`within_whole`).

Law of ratios: a queue that is longer on average varies more, so that the part above the floor is compared as a ratio,
and with its mean every quantile is longer; none is longer than the mean allows (A. Markov). A short recording more
often misses the rare long waits than it has too many of them: the interval is longer upwards, the more so the wider it
is. The mean of a queue is inverse to its drift towards the floor, which is known to one part in the square root of its
returns (slow_levels.py): the interval is at least as long upwards as this error makes it. But the wider an interval,
the more of the long waits were seen: of 1,643 recordings of queues with an interval of 0.3 times the mean or more, one
in 100 had less than a third of the true waits, however wide it was, and none had more than 2.3 times as much. So no
interval is longer upwards than 2.5 times what lies above the floor (3.5 times where returns are few), nor longer
downwards than waits over two stretches vary. All of this holds for the part of the variance that is not chance of
single delays, and for delays as skewed as waits; a level that is as often above its middle as below has an interval of
equal halves. Chance of independent delays moves both ends upwards by their skewness (N. Johnson 1978, P. Hall 1992),
and is symmetric for shares: each part of the variance has its part in the shape of the interval.
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
FEWEST_DELAYS: Final = 32  # that give an interval
STRETCHES: Final = 2.0  # independent stretches that give an interval
RETURNS: Final = 1.5  # of a queue to its floor,
MORE_RETURNS: Final = 200.0  # and as many more as this number of delays, by how many there are, has;
MOST_RETURNS: Final = 2.5  # at most this many: one in 20 recordings of a random walk seems to have as many
CALM: Final = 800.0  # delays for which a busy queue stays alike
LONG_ALIKE: Final = 32.0  # delays of one stretch: so many may be a part of that time, skewed or not
SHOW: Final = 100  # delays that show whether they follow each other
FOLLOW: Final = 0.15  # correlation of neighbours from which on delays may wait for each other
MISSED: Final = 170.0  # delays that may have missed as much again as they show above the floor
OF_A_ROW: Final = 4.0  # the same, for a part of a whole
MANY: Final = 1024  # delays, among which it does not matter that some came together
COSINES: Final = (3, 16)  # the fewest and the most
UPWARDS: Final = 2.5  # how much longer an interval is upwards, for each time that it is as wide as the value
SKEWED: Final = 0.5  # skewness of delays like waits: those of a queue have 2, a short recording shows less
LOWEST: Final = 0.05  # the share of batches that tell where the floor of a queue is
AT_THE_FLOOR: Final = 0.3  # the median of waits, by their mean, if nearly half of them are none
WIDEST_MEAN: Final = 10.0  # times the mean, where an interval that ends beyond all delays may end
_COARSEST: Final = 32  # parts of time whose neighbours are compared
SHORTEST: Final = 10  # bits of the length of a slot of time: 1 us
_NO_CHANCE: Final = 3.0  # standard errors
_BY_CHANCE: Final = 1.5  # the same, of a skewness
_WIDEST: Final = 1.25  # exponent: a mean is higher by at most 2.5 times the part above the floor, however wide,
_HIGHEST: Final = 3.5  # or by this many times that part, if there are few returns; by more if the law of calm holds,
_FURTHEST: Final = 9.0  # but further nothing is said
_LONGER: Final = 1 / 2.79 - 1  # waits over two stretches are as much longer than on average once in 40 (a gamma's)
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
    missed: float = 0.0  # the same if they seem steady


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
    missed: float = 0.0  # by which share waits may be longer than delays that seem steady show (law of calm)


def over_time(sums: Ints, counts: Ints, samples: int) -> OverTime | None:
    """How sum(sums) / sum(counts) varies, for parts in order of time that hold `samples` delays; None: too few."""
    held = counts > 0
    parts, weights = np.asarray(sums[held], np.float64), np.asarray(counts[held], np.float64)
    if len(parts) < FEWEST:
        return None
    whole = float(weights.sum())
    if len(parts) < samples <= MANY and whole == samples:
        # Delays that came together are alike: as one they would make batches of different sizes, which look like noise.
        parts, weights = np.repeat(parts / weights, weights.astype(np.int64)), np.ones(samples)
    totals, sizes = equal_batches(parts, weights, BATCHES)
    apart = totals - sizes * (totals.sum() / whole)
    batches = len(apart)
    if float(apart @ apart) <= 0:
        return OverTime((0.0, batches - 1.0), math.inf)
    powers = _cosines(apart, SLOWEST)
    means = apart / sizes
    # Not np.quantile, which loads masked arrays.
    reach = -float(np.interp(LOWEST * (batches - 1), np.arange(batches), np.sort(means)))
    skewness = float((means**3).mean() / (means**2).mean() ** 1.5)
    follow = _follow(apart) if samples >= SHOW else 1.0
    found, freedom = slowness(powers, batches, reach * whole / batches), float(len(powers))
    error = found.half / half95(freedom) / whole, freedom
    alike = min(max(2 * skewness / SKEWED, 0.0), 1.0)  # batches of noise are not skewed, whatever delays are
    calm = follow * _maybe_calm(skewness, found.stretches, samples)
    doubt = (1 + calm * CALM / samples) ** 1.5
    returns = found.returns / doubt
    higher = max(0.0, reach) * alike * found.part * min(_inverse(returns), _HIGHEST * doubt)
    return OverTime(error, found.stretches, found.level / whole**2, returns, higher, follow * (MISSED / samples) ** 2)


def _follow(apart: Floats) -> float:
    """How far batches follow each other, from 0, no more than by chance, to 1."""
    correlation = float(apart[1:] @ apart[:-1]) / float(apart @ apart) - 0.5 / math.sqrt(len(apart))
    return min(max(correlation / FOLLOW, 0.0), 1.0)


def _maybe_calm(skewness: float, stretches: float, samples: int) -> float:
    """How much of the law of calm holds: all if delays are more skewed than by chance, half if they are long alike."""
    skewed = 2 * (skewness - _BY_CHANCE * math.sqrt(6 / samples)) / SKEWED
    return max(min(skewed, 1.0), min((samples / stretches / LONG_ALIKE) ** 2, 0.5))


def _inverse(returns: float) -> float:
    """By which share the mean of a queue may be longer, by the error of its drift; at most as much as is ever said."""
    error = half95(returns) / math.sqrt(returns) if returns >= RETURNS else 1.0
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
    batches = min(most, len(sums))
    middles = (counts.cumsum() - counts / 2) * (batches / float(counts.sum()))
    batch = np.minimum(middles, batches - 1).astype(np.int64)
    totals, sizes = (np.asarray(np.bincount(batch, one, batches), np.float64) for one in (sums, counts))
    held = sizes > 0
    return totals[held], sizes[held]


class InOrder:
    """Samples in order of time."""

    def __init__(self, times_ns: Ints, weights: Ints) -> None:
        self._order = np.argsort(times_ns, kind="stable")
        self._weights = weights[self._order].astype(np.float64)

    def over_time(self, values: Ints) -> OverTime | None:
        """How the weighted mean of these values varies, one for each sample; None if there are too few."""
        return over_time(values[self._order] * self._weights, self._weights, len(values))


def tells(over: OverTime | None, samples: int) -> str | None:
    """Why there is no interval; None: there is one."""
    if samples < FEWEST_DELAYS:
        return f"fewer than {FEWEST_DELAYS} delays do not show how they vary over time"
    if over is None or over.stretches < STRETCHES or over.returns < _enough_returns(samples):
        return "delays change too slowly for so short a time: there may be fewer than two independent stretches"
    return None


def _enough_returns(samples: int) -> float:
    """How many returns to the floor these delays must show: few delays of a busy queue may all lie in one wait."""
    return min(RETURNS + MORE_RETURNS / max(samples, 1), MOST_RETURNS)


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
    seen = 1.0 if whole.returns < _enough_returns(len(slots)) else whole.stretches
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
        alike * above * end + (1 - alike) * straight
        for end, straight in ((max(math.expm1(-half / above), _LONGER), -half), (up, half))
    )
    return value + low + shift, value + max(high + shift, above * _missed(chance))


def _missed(chance: Chance) -> float:
    """By which share waits may be longer on average than a short recording shows."""
    return chance.missed * min(max(chance.skewness / SKEWED, 0.0), 1.0)


def _longer(half: float, above: float, by_chance: float, skewness: float) -> tuple[float, float]:
    """The part of a mean's interval that is like that of a queue, and how much longer waits may be on average there."""
    ratio = half / above
    up = math.expm1(min(ratio * (1 + UPWARDS * ratio), _WIDEST))
    return (1 - by_chance**2) * min(max(skewness / SKEWED, 0.0), 1.0), up


def longest(q: float, middle: float, floor: float, error: Error | None, above: float, chance: Chance) -> float:
    """How far up a quantile may lie: a longer queue has all waits longer, the median too if it is at the floor."""
    if error is None or error[0] <= 0 or above <= 0 or q < 0.5:
        return middle
    alike, up = _longer(half95(error[1]) * error[0], above, min(1.0, chance.error / error[0]), chance.skewness)
    by = max(alike * max(up, chance.higher / above), _missed(chance))
    return middle + by * max(middle - floor, AT_THE_FLOOR * above)


def below_mean(q: float, floor: float, highest: float) -> float:
    """How far up a quantile may lie if the mean lies no higher than this: not more can be that long (A. Markov)."""
    return floor + (highest - floor) / (1 - q)
