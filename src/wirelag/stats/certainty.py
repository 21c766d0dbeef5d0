"""How sure figures of delays are, from how delays vary between connections and over time.

Law: a mean of n delays has three errors: chance of single delays, which n independent ones would have; that of
connections, whose delays are alike; and that of times, in which the path is fast or slow. Each of the last two is
measured with the first in it, which counts once (kernels/certainty.hpp).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from wirelag import _kernels
from wirelag.stats.over_time import TOO_FEW, TOO_SLOW, TOO_WIDE, Bounds, Error, OverTime

if TYPE_CHECKING:
    from wirelag.stats.distribution import Distribution

Told: TypeAlias = tuple[Error | None, tuple[float, float, float] | None]
"""Of an effect: the error of the mean; over time stretches, returns, and how much higher it may be."""

LEFT_OUT: Final = "there are too many connections: how the delays of these vary was not kept"
WHY: Final = (None, TOO_FEW, TOO_SLOW, TOO_WIDE, LEFT_OUT)  # there are no intervals, as kernels number it


class Sources(NamedTuple):
    """How delays vary; None: it is not known."""

    connections: Effect | None = None
    times: Effect | None = None


class Effect(NamedTuple):
    """The error of a mean whose samples are alike in parts, and how the mean varies if these are parts of time.

    It includes the error of independent delays alone; None: there are too few parts, or `unknown` says why.
    """

    mean: Error | None
    over: OverTime | None = None
    unknown: str | None = None

    @classmethod
    def of_time(cls, over: OverTime | None, scale: float = 1.0) -> Effect:
        """How delays vary over time; `scale` corrects errors of other delays of the same kind."""
        return cls(None if over is None else (over.error[0] * scale, over.error[1]), over)

    @property
    def told(self) -> Told:
        """The same for a kernel."""
        over = self.over
        return self.mean, None if over is None else (over.stretches, over.returns, over.higher)


class Certainty:
    """The 95% intervals of delays."""

    def __init__(self, delays: Distribution, sources: Callable[[], Sources], unknown: str | None = None) -> None:
        """`unknown`: why nothing tells how they vary, so that there are no intervals."""
        self._delays, self._find, self._unknown = delays, sources, unknown

    @cached_property
    def _sources(self) -> Sources:
        return self._find()

    @cached_property
    def _sure(self) -> _kernels.Sure:
        connections, times = self._sources
        return self._delays.certain(connections and connections.told, times and times.told)

    @cached_property
    def why_none(self) -> str | None:
        """Why there are no intervals; None: there are."""
        if self._unknown is not None:
            return self._unknown
        times = self._sources.times
        return times.unknown if times is not None and times.unknown else WHY[self._sure.why]

    def mean_ci_ns(self) -> Bounds | None:
        """The interval of the mean."""
        return None if self.why_none is not None else self._sure.mean

    def quantile_ci_ns(self, q: float) -> Bounds | None:
        """The interval of a quantile."""
        return None if self.why_none is not None else self._sure.quantile(q)

    def share_above_ci(self, limit_ns: int) -> Bounds | None:
        """The interval of the share of delays above a limit."""
        return None if self.why_none is not None else self._sure.share_above(_kernels.bin_above(limit_ns))
