"""Mean and deviation of delays, over parts of which different shares were seen.

Law: a part counts with its weight, the packets it stands for, and not with how many of them were seen: a busy interval
of which little was seen must not vanish behind a quiet one. Sums are integers, so that where every packet was seen the
mean is exact. Deviations are summed squares around the mean (Chan's rule), since squares of raw differences would drown
in a clock's offset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


def exact_sum(values: Times) -> int:
    """The sum, by halves that cannot overflow for less than 2^32 values."""
    return (int((values >> np.int64(32)).sum()) << 32) + int((values & np.int64(0xFFFFFFFF)).sum())


def bound_ns(std_ns: float, used: int, doubt: float) -> float:
    """How far the mean of so many delays is from the truth, with probability 1 - doubt at least.

    Bound (1) of the LDA paper: a Gaussian tail, with a deviation that is estimated.
    """
    return std_ns * math.sqrt(2 * math.log(2 / doubt) / used)


@dataclass(slots=True)
class Moments:
    """What delays add up to."""

    used: int = 0  # packets whose delays were seen, alone or in sums
    sum_ns: int = 0  # of these
    weight: int = 0  # packets they stand for
    rest_ns: float = 0.0  # weight times mean, less the sum: 0 where everything was seen
    known: int = 0  # of the weight: with a deviation
    squares_ns2: float = 0.0  # known times variance
    doubt_ns2: float = 0.0  # the sum over parts of weight^2 variance / used: the variance of weight times mean

    @classmethod
    def of(cls, used: int, sum_ns: int, variance_ns2: float | None, weight: int) -> Moments:
        """One part."""
        if not used:
            return cls()
        weight = max(weight, used)
        rest_ns = 0.0 if weight == used else sum_ns * (weight - used) / used
        if variance_ns2 is None:
            return cls(used, sum_ns, weight, rest_ns)
        return cls(used, sum_ns, weight, rest_ns, weight, variance_ns2 * weight, variance_ns2 * weight**2 / used)

    @classmethod
    def of_delays(cls, delays_ns: Times, stands_for: int) -> Moments:
        """Delays that are known one by one, each of so many packets."""
        if not len(delays_ns):
            return cls()
        above = (delays_ns - delays_ns[0]).astype(np.float64)  # a clock's offset would leave floats no digits
        count = len(delays_ns)
        return cls.of(count, exact_sum(delays_ns), float(above.var()), count * stands_for)

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

    def bound_ns(self, doubt: float) -> float | None:
        """The same for parts together, whose errors are independent of each other."""
        if self.used < 2 or not self.known:
            return None
        return bound_ns(math.sqrt(self.doubt_ns2) / self.known, 1, doubt)

    def add(self, other: Moments) -> None:
        """Take in another part."""
        mine, others = self.mean_ns, other.mean_ns
        if self.known and other.known and mine is not None and others is not None:
            apart = (self.sum_ns * other.used - other.sum_ns * self.used) / (self.used * other.used)
            if self.rest_ns or other.rest_ns:
                apart = mine - others
            self.squares_ns2 += apart * apart * self.known * other.known / (self.known + other.known)
        self.used += other.used
        self.sum_ns += other.sum_ns
        self.weight += other.weight
        self.rest_ns += other.rest_ns
        self.known += other.known
        self.squares_ns2 += other.squares_ns2
        self.doubt_ns2 += other.doubt_ns2

    def shift(self, by_ns: float) -> None:
        """Make all delays longer by so much."""
        self.sum_ns += round(by_ns * self.used)
        self.rest_ns += by_ns * (self.weight - self.used)
