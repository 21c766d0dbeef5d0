"""Mean and deviation of delays over parts of which different shares were observed.

Law: a part counts with its weight, the packets that it stands for, not with the number observed: a busy interval with
few observations must not vanish behind a quiet one. Sums are integers, so the mean is exact if every packet was
observed. Deviations are sums of squares around the mean (Chan's rule), because a clock offset would swamp squares of
raw differences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wirelag import _kernels

Times = npt.NDArray[np.int64]


def exact_sum(values: Times) -> int:
    """The sum, which may need more than 64 bits."""
    low, high = _kernels.exact_sum(values)
    return (high << 64) + low


def bound_ns(std_ns: float, used: int, doubt: float) -> float:
    """How far the mean of `used` delays is from the truth, with probability at least 1 - doubt.

    Bound (1) of the LDA paper: a Gaussian tail with an estimated deviation.
    """
    return std_ns * math.sqrt(2 * math.log(2 / doubt) / used)


@dataclass(slots=True)
class Moments:
    """Sums from which mean and deviation follow."""

    used: int = 0  # packets whose delays were observed, singly or in sums
    sum_ns: int = 0  # sum of their delays
    weight: int = 0  # packets that they stand for
    rest_ns: float = 0.0  # weight times mean, minus the sum: 0 if every packet was observed
    known: int = 0  # part of the weight that has a deviation
    squares_ns2: float = 0.0  # known times variance
    doubt_ns2: float = 0.0  # sum over parts of weight^2 variance / used: the variance of weight times mean

    @classmethod
    def of(cls, used: int, sum_ns: int, variance_ns2: float | None, weight: int) -> Moments:
        """Moments of one part."""
        if not used:
            return cls()
        weight = max(weight, used)
        rest_ns = 0.0 if weight == used else sum_ns * (weight - used) / used
        if variance_ns2 is None:
            return cls(used, sum_ns, weight, rest_ns)
        return cls(used, sum_ns, weight, rest_ns, weight, variance_ns2 * weight, variance_ns2 * weight**2 / used)

    @classmethod
    def of_delays(cls, delays_ns: Times, stands_for: int) -> Moments:
        """Moments of individual delays, each of which stands for `stands_for` packets."""
        if not len(delays_ns):
            return cls()
        sum_ns, variance, _, _ = _kernels.delay_sums(delays_ns)
        return cls.of(len(delays_ns), sum_ns, variance, len(delays_ns) * stands_for)

    @classmethod
    def of_sample(cls, delays_ns: Times, weights: Times) -> Moments:
        """Moments of a sample whose delays stand for different numbers of packets."""
        weight, count = int(weights.sum()), len(delays_ns)
        middle_ns = int(np.median(delays_ns))
        above = (delays_ns - middle_ns).astype(np.float64)
        mean = float(np.average(above, weights=weights))
        variance = float(np.average((above - mean) ** 2, weights=weights))
        sum_ns = middle_ns * count + round(mean * count)
        effective = weight**2 / float((weights.astype(np.float64) ** 2).sum())
        rest_ns = sum_ns * (weight - count) / count
        return cls(count, sum_ns, weight, rest_ns, weight, variance * weight, variance * weight**2 / effective)

    def copied(self) -> Moments:
        """A copy, to which more can be added."""
        own = (self.used, self.sum_ns, self.weight, self.rest_ns, self.known, self.squares_ns2, self.doubt_ns2)
        return Moments(*own)

    @property
    def mean_ns(self) -> float | None:
        """The mean delay."""
        if not self.weight:
            return None
        return (self.sum_ns + self.rest_ns) / self.weight if self.rest_ns else self.sum_ns / self.weight

    @property
    def std_ns(self) -> float | None:
        """The standard deviation of single delays."""
        return math.sqrt(max(0.0, self.squares_ns2) / self.known) if self.known else None

    @property
    def error_ns(self) -> float | None:
        """The standard error of the mean if packets were independent; None with fewer than two.

        Law: it is never smaller than that of one part with the same packets. Parts differ in their means, and an error
        from the scatter within parts alone would shrink as parts get shorter.
        """
        if self.used < 2 or not self.known:
            return None
        return max(math.sqrt(self.doubt_ns2) / self.known, (self.std_ns or 0.0) / math.sqrt(self.used))

    def bound_ns(self, doubt: float) -> float | None:
        """How far the mean is from that of all packets that crossed, with probability at least 1 - doubt."""
        error_ns = self.error_ns
        return None if error_ns is None else bound_ns(error_ns, 1, doubt)

    def add(self, other: Moments) -> None:
        """Add another part."""
        own = (other.used, other.sum_ns, other.weight, other.rest_ns, other.known, other.squares_ns2, other.doubt_ns2)
        self.add_all([own])

    def add_all(self, parts: Iterable[tuple[int, int, int, float, int, float, float]]) -> None:
        """Add many parts, each of which is its fields, in order."""
        used, sum_ns, weight, rest_ns = self.used, self.sum_ns, self.weight, self.rest_ns
        known, squares_ns2, doubt_ns2 = self.known, self.squares_ns2, self.doubt_ns2
        for o_used, o_sum_ns, o_weight, o_rest_ns, o_known, o_squares_ns2, o_doubt_ns2 in parts:
            if known and o_known and weight and o_weight:
                if rest_ns or o_rest_ns:
                    mine = (sum_ns + rest_ns) / weight if rest_ns else sum_ns / weight
                    apart = mine - ((o_sum_ns + o_rest_ns) / o_weight if o_rest_ns else o_sum_ns / o_weight)
                else:
                    apart = (sum_ns * o_used - o_sum_ns * used) / (used * o_used)
                squares_ns2 += apart * apart * known * o_known / (known + o_known)
            used, sum_ns, weight, rest_ns = used + o_used, sum_ns + o_sum_ns, weight + o_weight, rest_ns + o_rest_ns
            known, squares_ns2, doubt_ns2 = known + o_known, squares_ns2 + o_squares_ns2, doubt_ns2 + o_doubt_ns2
        self.used, self.sum_ns, self.weight, self.rest_ns = used, sum_ns, weight, rest_ns
        self.known, self.squares_ns2, self.doubt_ns2 = known, squares_ns2, doubt_ns2

    def shift(self, by_ns: float) -> None:
        """Add a constant to all delays."""
        self.sum_ns += round(by_ns * self.used)
        self.rest_ns += by_ns * (self.weight - self.used)
