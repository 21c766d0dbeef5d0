"""How sure figures of delays are, from how delays vary between connections and over time.

Law: a mean of n delays has three errors: chance of single delays, which n independent ones would have; that of
connections, whose delays are alike; and that of times, in which the path is fast or slow. Each of the last two is
measured with the first in it, which counts once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from wirelag.stats.distribution import Z95
from wirelag.stats.over_time import (
    Bounds,
    Chance,
    Error,
    OverTime,
    bounds,
    half95,
    tells,
    too_wide,
    welch,
    with_the_mean,
)
from wirelag.stats.shares import enough_beyond, quantile_shares, share_bounds

SHORTER: Final = 1 / 3  # for how long what does not follow the mean is alike, by the mean itself

if TYPE_CHECKING:
    from wirelag.stats.distribution import Distribution


class Sources(NamedTuple):
    """How delays vary; None: it is not known."""

    connections: Effect | None = None
    times: Effect | None = None

    @property
    def effects(self) -> list[Effect]:
        """Those that are known."""
        return [one for one in (self.connections, self.times) if one is not None]


class Effect:
    """The error of a mean whose samples are alike in parts, and its effect on shares.

    It includes the error of independent delays alone; None: there are too few parts, or `unknown` says why.
    """

    def __init__(
        self, mean: Error | None, delays: Distribution, over: OverTime | None = None, unknown: str | None = None
    ) -> None:
        self.mean, self._delays, self.over, self.unknown = mean, delays, over, unknown

    @cached_property
    def _alone(self) -> float | None:
        return self._delays.mean_error_ns()

    @classmethod
    def of_time(cls, over: OverTime | None, delays: Distribution, scale: float = 1.0) -> Effect:
        """How delays vary over time; `scale` corrects errors of other delays of the same kind."""
        return cls(None if over is None else (over.error[0] * scale, over.error[1]), delays, over)

    def share_error(self, below: int, alone: float) -> Error | None:
        """The error of the share of delays in bins below this one.

        Between connections it is larger by as much as that of the mean. Over time, by the part of it that follows the
        mean; the rest is alike for a shorter time (of a normal level, the k-th power of its correlation).
        """
        if self.mean is None or not self._alone:
            return None
        follows = 1.0 if self.over is None else self._delays.follows_mean(below)
        larger = (self.mean[0] / self._alone) ** 2 - 1
        larger *= follows + (1 - follows) * SHORTER if larger > 0 else 1.0
        return alone * math.sqrt(1 + larger), self.mean[1]


class Certainty:
    """The 95% intervals of delays."""

    def __init__(self, delays: Distribution, sources: Callable[[], Sources], unknown: str | None = None) -> None:
        """`unknown`: why nothing tells how they vary, so that there are no intervals."""
        self._delays, self._find, self._unknown = delays, sources, unknown

    @cached_property
    def _sources(self) -> Sources:
        return self._find()

    @cached_property
    def why_none(self) -> str | None:
        """Why there are no intervals; None: there are."""
        if self._unknown is not None:
            return self._unknown
        times, delays = self._sources.times, self._delays
        if times is not None and (why := times.unknown or tells(times.over, delays.samples)):
            return why
        found = self._mean_bounds()
        return None if found is None else too_wide(delays.mean_ns or 0.0, found[1], delays.max_ns or 0.0)

    def mean_ci_ns(self) -> Bounds | None:
        """The interval of the mean."""
        return None if self.why_none is not None else self._mean_bounds()

    def _mean_bounds(self) -> Bounds | None:
        delays = self._delays
        if delays.mean_ns is None or self._mean_error is None:
            return None
        low, high = bounds(delays.mean_ns, self._mean_error, delays.mean_ns - (delays.min_ns or 0), self._chance)
        return max(0.0, low), high

    @cached_property
    def _chance(self) -> Chance:
        times = self._sources.times
        higher = times.over.higher if times and times.over else 0.0
        return Chance(self._alone or 0.0, self._delays.skewness, self._delays.effective_samples, higher)

    def quantile_ci_ns(self, q: float) -> Bounds | None:
        """The interval of a quantile."""
        delays = self._delays
        if delays.samples < 2 or self.why_none is not None or not self._told_beyond(q):
            return None
        shares = quantile_shares(q, self._share_error(delays.bin_at(q) + 1), delays.effective_samples)
        low, middle, high = (delays.quantile_ns(share) for share in (shares[0], q, shares[1])) if shares else [None] * 3
        if low is None or middle is None or high is None:
            return None
        floor_ns = delays.min_ns or 0
        above = (delays.mean_ns or 0.0) - floor_ns
        return with_the_mean(q, (low, high), middle, floor_ns, self._mean_error, above, self._chance)

    def share_above_ci(self, limit_ns: int) -> Bounds | None:
        """The interval of the share of delays above a limit."""
        delays, share = self._delays, self._delays.share_above(limit_ns)
        if share is None or self.why_none is not None:
            return None
        return share_bounds(share, self._share_error(delays.first_above(limit_ns)), delays.effective_samples)

    def _told_beyond(self, q: float) -> bool:
        if not self._alone or self._mean_error is None:
            return True
        (error, freedom), times = self._mean_error, self._sources.times
        stretches = times.over.stretches if times and times.over else math.inf
        return enough_beyond(q, half95(freedom) / Z95 * error / self._alone, self._delays.effective_samples, stretches)

    @cached_property
    def _alone(self) -> float | None:
        return self._delays.mean_error_ns()

    @cached_property
    def _mean_error(self) -> Error | None:
        alone = self._alone
        return (
            None
            if alone is None
            else _together(alone, [one.mean for one in self._sources.effects], self._delays.samples)
        )

    def _share_error(self, below: int) -> Error:
        alone = self._delays.share_error(below)
        errors = [one.share_error(below, alone) for one in self._sources.effects]
        return _together(alone, errors, self._delays.samples)


def _together(alone: float, errors: list[Error | None], samples: int) -> Error:
    known = [one for one in errors if one and one[0]]
    if not known:
        return alone, max(1.0, samples - 1.0)
    error, freedom = welch(known)
    variance = error**2 - (len(known) - 1) * alone**2
    return (math.sqrt(variance), freedom) if variance > alone**2 else (alone, max(1.0, samples - 1.0))
