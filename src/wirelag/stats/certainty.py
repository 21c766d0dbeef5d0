"""How sure figures of delays are, from how delays vary between connections and over time.

Law: a mean of n delays has three errors: chance of single delays, which n independent ones would have; that of
connections, whose delays are alike; and that of times, in which the path is fast or slow. Each of the last two is
measured with the first in it, which counts once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from wirelag.stats.over_time import Bounds, Error, bounds, quantile_shares, share_bounds, tells

if TYPE_CHECKING:
    from wirelag.stats.distribution import Distribution


class Source(Protocol):
    """Delays in parts that differ; None where there are too few parts."""

    def mean_error_ns(self) -> Error | None:
        """The error of the mean."""

    def share_error(self, below: int) -> Error | None:
        """The error of the share of delays in bins below this one."""


class Sources(NamedTuple):
    """How delays vary; None: it is not known."""

    connections: Source | None = None
    times: Source | None = None


class Effect:
    """The error of a mean whose samples are alike in parts, and its effect on shares."""

    def __init__(self, mean: Error | None, delays: Distribution) -> None:
        self._mean, self._delays = mean, delays

    def mean_error_ns(self) -> Error | None:
        """The error of the mean."""
        return self._mean

    def share_error(self, below: int) -> Error | None:
        """The error of the share of delays in bins below this one: larger by as much as that of the mean."""
        alone = self._delays.mean_error_ns()
        if self._mean is None or not alone:
            return None
        return self._mean[0] / alone * self._delays.share_error(below), self._mean[1]


class Certainty:
    """The 95% intervals of delays."""

    __slots__ = ("_delays", "_sources")

    def __init__(self, delays: Distribution, sources: Callable[[], Sources]) -> None:
        self._delays, self._sources = delays, sources

    @property
    def why_none(self) -> str | None:
        """Why there are no intervals; None: there are."""
        times = self._sources().times
        return None if times is None else tells(times.mean_error_ns(), self._delays.samples)

    def mean_ci_ns(self) -> Bounds | None:
        """The interval of the mean."""
        delays, alone = self._delays, self._delays.mean_error_ns()
        if delays.mean_ns is None or alone is None or self.why_none is not None:
            return None
        error = _together(alone, [one.mean_error_ns() for one in self._sources() if one], delays.samples)
        low, high = bounds(delays.mean_ns, error, delays.mean_ns - (delays.min_ns or 0))
        return max(0.0, low), high

    def quantile_ci_ns(self, q: float) -> Bounds | None:
        """The interval of a quantile."""
        delays = self._delays
        if delays.samples < 2 or self.why_none is not None:
            return None
        shares = quantile_shares(q, self._share_error(delays.bin_at(q) + 1), delays.effective_samples)
        found = [delays.quantile_ns(share) for share in shares or ()]
        return (found[0], found[1]) if shares and found[0] is not None and found[1] is not None else None

    def share_above_ci(self, limit_ns: int) -> Bounds | None:
        """The interval of the share of delays above a limit."""
        delays, share = self._delays, self._delays.share_above(limit_ns)
        if share is None or self.why_none is not None:
            return None
        return share_bounds(share, self._share_error(delays.first_above(limit_ns)), delays.effective_samples)

    def _share_error(self, below: int) -> Error:
        errors = [one.share_error(below) for one in self._sources() if one]
        return _together(self._delays.share_error(below), errors, self._delays.samples)


def _together(alone: float, errors: list[Error | None], samples: int) -> Error:
    known = [one for one in errors if one and one[0]]
    if not known:
        return alone, max(1.0, samples - 1.0)
    squares = sum(error**2 for error, _ in known)
    freedom = squares**2 / sum(error**4 / degrees for error, degrees in known)  # Welch and Satterthwaite
    return math.sqrt(max(alone**2, squares - (len(known) - 1) * alone**2)), freedom
