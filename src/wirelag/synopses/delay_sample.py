"""Delays of a sample of packets: quantiles, and everything else that needs single delays.

Guarantee: the sample is chosen by hashes of packet ids, the same at both points, so it is fair. A quantile is that of
the sample; its interval covers that of all packets. Memory: 24 bytes per delay, at most MOST delays; beyond that a hash
drops every second one, and the others represent two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.stats.distribution import Z95, Distribution, halfway, place_of
from wirelag.stats.in_order import InOrder, alike_ns
from wirelag.stats.over_time import (
    NOT_ALIKE,
    STRETCHES,
    Alike,
    Chance,
    Error,
    OverTime,
    half95,
    tells,
    with_the_mean,
)
from wirelag.stats.shares import enough_beyond, quantile_shares, share_bounds
from wirelag.synopses.cache import SINGLE, Cached, Joined, join, level

MOST: Final = 1 << 22
THINNING: Final = 10  # purpose of the hash
SHARE: Final = 8  # where bytes count, a sample has one packet in 2^SHARE,
LEAST: Final = 64  # or this many
Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DelaySample:
    """Delays, with send time and the number of packets that each represents."""

    sent_ns: Times
    delays_ns: Times
    weights: Times

    @classmethod
    def empty(cls) -> DelaySample:
        """No delays."""
        return _NOTHING

    @classmethod
    def of(cls, sent_ns: Times, delays_ns: Times, stands_for: int) -> DelaySample:
        """Delays of equal weight."""
        if len(delays_ns) > MOST:  # most are about to be dropped
            return cls(sent_ns, delays_ns, np.broadcast_to(np.int64(stands_for), len(delays_ns)))
        return cls(sent_ns, delays_ns, np.full(len(delays_ns), stands_for, np.int64))

    @classmethod
    def between(cls, up: Cached, down: Cached) -> DelaySample:
        """The delays of packets in both caches."""
        return _both(*level(up, down))[0]

    def __len__(self) -> int:
        return len(self.delays_ns)

    @classmethod
    def together(cls, tails: list[DelaySample]) -> DelaySample:
        """All samples in one, thinned by hashes if there are too many."""
        whole = tails[0]
        if len(tails) > 1:
            parts = ([getattr(tail, name) for tail in tails] for name in ("sent_ns", "delays_ns", "weights"))
            whole = cls(*map(np.concatenate, parts))
        if len(whole) <= MOST:
            return whole
        rows, rounds = _kernels.thinned(whole.sent_ns.view(np.uint64), MOST, THINNING)
        return cls(whole.sent_ns[rows], whole.delays_ns[rows], whole.weights[rows] << rounds)

    def followed_by(self, other: DelaySample) -> DelaySample:
        """Both samples."""
        if not len(self) or not len(other):
            return self if len(self) else other
        return DelaySample.together([self, other])

    @property
    def median_ns(self) -> int:
        """The median delay; 0 without any."""
        return _kernels.median(self.delays_ns)

    @property
    def disordered(self) -> bool:
        """Whether packets overtook each other."""
        order = np.argsort(self.sent_ns, kind="stable")
        return bool((np.diff((self.sent_ns + self.delays_ns)[order]) < 0).any())

    @property
    def weight(self) -> int:
        """How many packets the sample represents."""
        return int(self.weights.sum())

    @property
    def negative(self) -> int:
        """How many of them have a negative delay."""
        return int(self.weights[self.delays_ns < 0].sum())

    @cached_property
    def effective(self) -> float:
        """The effective sample size: equally weighted delays with the same precision (Kish)."""
        squares = float((self.weights.astype(np.float64) ** 2).sum())
        return self.weight**2 / squares if squares else 0.0

    def distribution(self) -> Distribution:
        """The delays in bins, without those below 0."""
        delays, positive = Distribution(), self.delays_ns >= 0
        delays.add(self.delays_ns[positive], self.weights[positive])
        return delays

    def share_above(self, limit_ns: int) -> float | None:
        """The share of delays above a limit."""
        return float(self.weights[self.delays_ns > limit_ns].sum()) / self.weight if len(self) else None

    def share_above_ci(self, limit_ns: int) -> tuple[float, float] | None:
        """The 95% interval of that share."""
        share = self.share_above(limit_ns)
        if share is None or self.why_no_interval() is not None:
            return None
        over = self._in_order().over_time(self.delays_ns > limit_ns)
        return share_bounds(share, over.error, self.effective) if over else None

    def _in_order(self) -> InOrder:
        return InOrder(self.sent_ns, self.weights)

    def over_time(self) -> OverTime | None:
        """How the mean delay varies, in ns."""
        return self._over_time

    @cached_property
    def _over_time(self) -> OverTime | None:
        return self._varies(self._in_order()) if len(self) else None

    def _varies(self, in_order: InOrder) -> OverTime | None:
        if len(self) < 2:
            return None
        above = (self.delays_ns - self.delays_ns.min()).astype(np.float64)  # an offset would use up a float's digits
        return in_order.over_time(above)

    def error_of_mean(self) -> Error | None:
        """The error of the mean delay in ns, and its degrees of freedom; None for too few delays."""
        over = self.over_time()
        return None if over is None else over.error

    def chance(self, over: OverTime | None = None) -> Chance:
        """The error of the mean if delays are independent, and what `over` tells of its interval."""
        std_ns, skewness = self._shape
        return Chance(std_ns / math.sqrt(self.effective), skewness, self.effective, over.higher if over else 0.0)

    @cached_property
    def _shape(self) -> tuple[float, float]:
        """Standard deviation and skewness."""
        apart = self.delays_ns - self.delays_ns.mean()
        std_ns = math.sqrt(float(apart @ apart) / len(self))
        return std_ns, float((apart * apart) @ apart) / len(self) / std_ns**3 if std_ns else 0.0

    def _wider(self) -> float:
        """How many times as wide the interval of the mean is as that of independent delays."""
        error, alone = self.error_of_mean(), self.chance().error
        return half95(error[1]) / Z95 * error[0] / alone if error and alone else 1.0

    def why_no_interval(self) -> str | None:
        """Why figures have no interval; None: they have one."""
        return tells(self.over_time(), len(self))

    def alike_over_time(self) -> Alike:
        """How delays are alike."""
        if not len(self):
            return NOT_ALIKE
        return alike_ns(self.sent_ns, self.delays_ns - self.delays_ns.min(), self.weights)

    def quantiles_ns(self, shares: list[float]) -> list[tuple[float, tuple[float, float] | None]]:
        """Each quantile (`place_of`, `halfway`) and its 95% interval.

        The interval is None if too few delays lie beyond the quantile, or if the sample is too short.
        """
        if not len(self):
            return []
        ranked = _Ranked(self.delays_ns, self.weights)
        at = ranked.at

        found: list[tuple[float, tuple[float, float] | None]] = []
        in_order, effective = self._in_order(), self.effective
        if "_over_time" not in vars(self):  # it takes the same order, which is slow to find, and large
            vars(self)["_over_time"] = self._varies(in_order)
        whole = self.over_time()
        told = whole if tells(whole, len(self)) is None else None
        wider, floor_ns = self._wider() if told else 1.0, ranked.least
        above, chance = float(self.delays_ns.mean()) - floor_ns, self.chance(whole)
        for share in shares:
            middle = at(share)
            known = told and 0 < share < 1 and enough_beyond(share, wider, effective, told.stretches)
            over = in_order.over_time(self.delays_ns <= middle) if known else None
            seen = over is not None and over.stretches >= STRETCHES
            ends = quantile_shares(share, over.error, effective) if over and seen else None
            if ends and told:
                by_shares = at(ends[0]), at(ends[1])
                found.append((middle, with_the_mean(share, by_shares, middle, floor_ns, told.error, above, chance)))
            else:
                found.append((middle, None))
        return found


_NOTHING: Final = DelaySample.of(np.empty(0, np.int64), np.empty(0, np.int64), 1)  # its arrays are never changed


class _Ranked:
    """Delays in order, and the rank of each."""

    def __init__(self, delays_ns: Times, weights: Times) -> None:
        self._each = int(weights[0])  # weight of each, if it is one
        self._ranks: Times | None = None
        if (weights == self._each).all():  # sorting numbers alone is many times as fast
            self._delays, self._total = np.sort(delays_ns), self._each * len(delays_ns)
            return
        order = np.argsort(delays_ns, kind="stable")
        self._delays, self._ranks = delays_ns[order], np.cumsum(weights[order])
        self._total = int(self._ranks[-1])

    @property
    def least(self) -> int:
        """The shortest delay."""
        return int(self._delays[0])

    def at(self, share: float) -> float:
        """The quantile of this share."""
        place = place_of(share, self._total)
        lower, upper = (self._delay(place - halfway(share, self._total)), self._delay(place))
        return (lower + upper) / 2 if lower < upper else float(upper)

    def _delay(self, place: int) -> int:
        if self._ranks is None:
            return int(self._delays[place // self._each])
        return int(self._delays[np.searchsorted(self._ranks, place, side="right")])


def compared(up: Cached, down: Cached) -> tuple[DelaySample, Cached, Cached]:
    """The delays of packets in both caches, and the packets that only one of them has."""
    up, down = level(up, down)
    both, found = _both(up, down)
    return both, up.only(found.up_fate == SINGLE), down.only(found.down_fate == SINGLE)


def _both(up: Cached, down: Cached) -> tuple[DelaySample, Joined]:
    """The delays of packets in both, which are of one level, and how they were joined."""
    found = join(up.ids, down.ids)
    sent_ns = up.times_ns[found.up_rows]
    return DelaySample.of(sent_ns, down.times_ns[found.down_rows] - sent_ns, up.stands_for), found


def common(up: Cached, down: Cached, alone: Sequence[Cached]) -> int:
    """How many packets both points saw, at most: those that only one of them saw are known if all were kept."""
    apart = [len(one) if one.level == 0 else 0 for one in alone]
    return min(up.packets - apart[0], down.packets - apart[1])


def spared(cached: Cached, most: int) -> Cached:
    """The sample to send where bytes count: points with about as many packets take the same share."""
    wanted = min(most, max(LEAST, cached.packets >> SHARE))
    return cached.at_level(max(0, math.ceil(math.log2(max(1, cached.packets) / wanted)))).at_most(most)
