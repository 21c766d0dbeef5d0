"""How sure figures of delays are, in plain Python: stats/over_time.py, shares.py and certainty.py state the laws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tests.oracles.delay_figures import DelayFigures
from tests.oracles.ranked_bins import RankedBins

Z95 = 1.959963984540054
FEWEST, STRETCHES, RETURNS, SKEWED = 64, 2.0, 1.5, 0.5

Pair = tuple[float, float]


class Chance(NamedTuple):
    """The error of a mean of independent delays, and what gives its interval a shape."""

    error: float
    skewness: float
    samples: float
    higher: float


class Over(NamedTuple):
    """What is known of how a mean varies over time."""

    stretches: float
    returns: float
    higher: float


class Effect(NamedTuple):
    """The error of a mean whose delays are alike in parts; of time, if `over` is known."""

    mean: Pair | None
    over: Over | None = None


def half95(freedom: float) -> float:
    if math.isinf(freedom):
        return Z95
    deviate = Z95 * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(deviate * deviate / freedom))


def welch(errors: Sequence[Pair]) -> Pair:
    squares = fourths = 0.0
    for error, freedom in errors:
        squares += error**2
        fourths += error**4 / freedom
    return math.sqrt(squares), squares**2 / fourths if fourths else math.inf


def _shorter(ratio: float) -> float:
    return 1 - 1 / (1 + ratio / math.sqrt(1 + 0.9 * ratio))


def _longer(half: float, above: float, by_chance: float, skewness: float) -> Pair:
    ratio = half / above
    up = math.expm1(min(ratio * (1 + 2.5 * ratio), 1.25))
    return (1 - by_chance**2) * min(max(skewness / SKEWED, 0.0), 1.0), up


def bounds(value: float, error: Pair, above: float, chance: Chance) -> Pair:
    half = half95(error[1]) * error[0]
    if above <= 0:
        return value - half, value + half
    by_chance = min(1.0, chance.error / error[0]) if error[0] > 0 else 1.0
    alike, up = _longer(half, above, by_chance, chance.skewness)
    up = max(up, chance.higher / above)
    shift = error[0] * by_chance**3 * chance.skewness / math.sqrt(chance.samples) * ((1 + 2 * Z95**2) / 6)
    low = alike * above * -_shorter(half / above) + (1 - alike) * -half + shift
    high = alike * above * up + (1 - alike) * half + shift
    return value + low, value + high


def with_the_mean(
    q: float, ends: Pair, middle: float, floor: float, error: Pair | None, above: float, chance: Chance
) -> Pair:
    low, high = ends
    if error is None or error[0] <= 0 or above <= 0 or q < 0.5:
        return ends
    half = half95(error[1]) * error[0]
    alike, up = _longer(half, above, min(1.0, chance.error / error[0]), chance.skewness)
    longer, shorter = (max(middle - floor, least * above) for least in (0.3, 1.0))
    high = max(high, middle + alike * max(up, chance.higher / above) * longer)
    if q <= 0.95:
        low += alike * max(0.0, middle - _shorter(half / above) * shorter - low)
    highest = bounds(floor + above, error, above, chance)[1]
    return low, min(high, floor + (highest - floor) / (1 - q))


def wilson(share: float, n: float) -> Pair:
    middle = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 * math.sqrt(share * (1 - share) / n + (Z95 / (2 * n)) ** 2) / (1 + Z95**2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def _alike_part(share: float, error: Pair, samples: float) -> float:
    by_chance = share * (1 - share) / samples
    return 1 - by_chance / error[0] ** 2 if error[0] ** 2 > by_chance else 0.0


def share_bounds(share: float, error: Pair, samples: float) -> Pair:
    low, high = wilson(share, samples)
    if not 0 < share < 1:
        return low, high
    half, alike = half95(error[1]) * error[0], _alike_part(share, error, samples)
    upwards, downwards = half / share, half / (1 - share)
    if share <= 0.5:
        rarer = 3.0 * (1 - 2 * share)
        wide = share * math.exp(-upwards), share * math.exp(min(upwards * (1 + rarer * upwards), 2.3))
    else:
        wide = 1 - (1 - share) * math.exp(min(downwards, 2.3)), 1 - (1 - share) * math.exp(-downwards)
    return max(0.0, low + alike * min(0.0, wide[0] - low)), min(1.0, high + alike * max(0.0, wide[1] - high))


def enough_beyond(q: float, wider: float, samples: float, stretches: float) -> bool:
    beyond, often = min(q, 1 - q), min(q, 1 - q) >= 0.05
    if not often and wider > 1.5 and samples * beyond < 50:
        return False
    if often and stretches * beyond < 0.5:
        return False
    return Z95 * (1.0 if often else wider) * math.sqrt(q * (1 - q) / samples) <= beyond


def quantile_shares(q: float, error: Pair, samples: float) -> Pair | None:
    beyond = min(q, 1 - q)
    by_chance = Z95 * math.sqrt(q * (1 - q) / samples)
    half = max(half95(error[1]) * error[0], by_chance)
    ratio = half / beyond
    if (by_chance if beyond >= 0.05 else half) > beyond:
        return None
    alike, rarer = _alike_part(q, error, samples), 3.0 * (1 - 2 * beyond)
    shift = (1 - 2 * beyond) * ((Z95**2 - 1) / 6) / samples
    near, far = (
        beyond * (alike * end + (1 - alike) * straight) + (1 - alike) * shift
        for end, straight in (
            (math.exp(min(ratio, 2.3)), 1 + ratio),
            (math.exp(-ratio * (1 + rarer * ratio)), 1 - ratio),
        )
    )
    if (beyond - by_chance + shift if beyond >= 0.05 else far) * samples < 5:
        return None
    near, far = min(near, 1.0), max(far, 0.0)
    return (far, near) if q < 0.5 else (1 - near, 1 - far)


class Delays:
    """Bins in order, each with a weight and the sum of squared weights; and the sums that are known exactly."""

    def __init__(
        self, cells: Sequence[tuple[int, int, int]], samples: int, total: int, squares: int, ends: Pair
    ) -> None:
        bins, weights, squared = zip(*cells, strict=True)
        self.samples, self.weight, (self.least, self.most) = samples, sum(weights), ends
        self.mean = total / self.weight
        self.std = math.sqrt(max(0, squares * self.weight - total * total)) / self.weight
        self.figures = DelayFigures(bins, weights, squared, self.mean, self.std)
        self.ranked = RankedBins(bins, weights)
        self.effective = self.weight**2 / sum(squared)

    def quantile(self, q: float) -> float:
        return min(max(self.ranked.quantile(q) or 0.0, float(self.least)), float(self.most))

    @property
    def alone(self) -> float | None:
        """The error of the mean if delays are independent."""
        if self.samples < 2:
            return None
        error: float = math.sqrt(self.figures.squared_apart * self.samples / (self.samples - 1)) / self.weight
        return error


class Sure:
    """How sure figures of delays are; without effects they are independent."""

    def __init__(self, delays: Delays, connections: Effect | None = None, times: Effect | None = None) -> None:
        self._of, self._effects, self._times = delays, [one for one in (connections, times) if one], times
        self._alone = delays.alone
        means = [one.mean for one in self._effects]
        self._error = None if self._alone is None else self._together(self._alone, means)
        higher = times.over.higher if times and times.over else 0.0
        self._chance = Chance(self._alone or 0.0, delays.figures.skewness, delays.effective, higher)
        self.why = self._why()

    def _why(self) -> int:
        """As kernels number it."""
        if self._times:
            over = self._times.over
            if self._of.samples < FEWEST:
                return 1
            if over is None or over.stretches < STRETCHES or over.returns < RETURNS:
                return 2
        found = self._mean()
        return 0 if found is None or found[1] <= max(self._of.most, 10.0 * self._of.mean) else 3

    def _together(self, alone: float, errors: Sequence[Pair | None]) -> Pair:
        known = [one for one in errors if one and one[0]]
        otherwise = alone, max(1.0, self._of.samples - 1.0)
        if not known:
            return otherwise
        error, freedom = welch(known)
        variance = error**2 - (len(known) - 1) * alone**2
        return (math.sqrt(variance), freedom) if variance > alone**2 else otherwise

    def _mean(self) -> Pair | None:
        if self._error is None:
            return None
        low, high = bounds(self._of.mean, self._error, self._of.mean - self._of.least, self._chance)
        return max(0.0, low), high

    @property
    def mean(self) -> Pair | None:
        return None if self.why else self._mean()

    def _share_error(self, below: int) -> Pair:
        alone = self._of.figures.share_error(below)
        return self._together(alone, [self._of_share(one, below, alone) for one in self._effects])

    def _of_share(self, effect: Effect, below: int, alone: float) -> Pair | None:
        if effect.mean is None or not self._alone:
            return None
        follows = 1.0 if effect.over is None else self._of.figures.follows_mean(below)
        larger = (effect.mean[0] / self._alone) ** 2 - 1
        larger *= follows + (1 - follows) * (1 / 3) if larger > 0 else 1.0
        return alone * math.sqrt(1 + larger), effect.mean[1]

    def _told_beyond(self, q: float) -> bool:
        if not self._alone or self._error is None:
            return True
        stretches = self._times.over.stretches if self._times and self._times.over else math.inf
        wider = half95(self._error[1]) / Z95 * self._error[0] / self._alone
        return enough_beyond(q, wider, self._of.effective, stretches)

    def quantile(self, q: float) -> Pair | None:
        of = self._of
        if of.samples < 2 or self.why or not self._told_beyond(q):
            return None
        shares = quantile_shares(q, self._share_error(of.ranked.bin_at(q) + 1), of.effective)
        if shares is None:
            return None
        ends = of.quantile(shares[0]), of.quantile(shares[1])
        floor = of.least
        return with_the_mean(q, ends, of.quantile(q), floor, self._error, of.mean - floor, self._chance)

    def share_above(self, bin_: int) -> Pair | None:
        if self.why:
            return None
        share = self._of.figures.weight_from(bin_) / self._of.weight
        return share_bounds(share, self._share_error(bin_), self._of.effective)
