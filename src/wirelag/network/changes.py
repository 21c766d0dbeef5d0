"""Which segment moved from one interval to another, and by how much.

Law: each interval of a segment is compared with all since the segment last moved, taken together. It moved if the
difference is more than `slow` by more than chance, at a level of 5% over all intervals of all segments (Bonferroni):
where nothing moves by more than `slow`, in at most 5% of cases anything is called, as far as errors are right. Delays
of neighbouring packets are alike, so that means of intervals scatter more than the errors of reports say. How much more
is learned from neighbouring intervals: the median of their squared differences, in units of what errors say, over that
of a normal deviate. A few real moves do not touch a median. From some 30 intervals on that is known well enough for the
5%; with fewer, what protects is `slow`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from wirelag.network.localise import LEVEL, Z95, Bounds, Figures, p_beyond
from wirelag.network.segments import Segment

FEWEST: Final = 6  # intervals from which scatter is learned
LEAST: Final = 12.0  # degrees of freedom
_MEDIAN: Final = 0.4549364  # of the square of a normal deviate


@dataclass(frozen=True, slots=True)
class Change:
    """A segment that moved; times in seconds since 1970, delays in seconds."""

    segment: Segment
    since: float  # when what it is compared with began
    at: float  # when the interval began in which it had moved
    before: float
    after: float
    ci95: Bounds  # of the difference
    p_value: float

    @property
    def difference(self) -> float:
        """After less before."""
        return self.after - self.before


def changes(series: Mapping[Segment, Sequence[Figures]], slow: float) -> list[Change]:
    """What moved, in order of time; of each segment the intervals in order."""
    usable = {segment: [one for one in several if _usable(one)] for segment, several in series.items()}
    tests = sum(max(0, len(several) - 1) for several in usable.values())
    found = [change for segment, several in usable.items() for change in _moves(segment, several, slow, tests)]
    return sorted(found, key=lambda change: (change.at, -abs(change.difference)))


def scatter(several: Sequence[Figures]) -> float:
    """How many times as far as their errors say the means of intervals scatter; at least once."""
    if len(several) < FEWEST:
        return 1.0
    squares = [
        ((b.mean or 0.0) - (a.mean or 0.0)) ** 2 / ((a.error or 0.0) ** 2 + (b.error or 0.0) ** 2)
        for a, b in pairwise(several)
        if a.error or b.error
    ]
    return max(1.0, math.sqrt(median(squares) / _MEDIAN)) if squares else 1.0


def _usable(one: Figures) -> bool:
    return one.mean is not None and one.error is not None and one.start is not None


def _moves(segment: Segment, several: Sequence[Figures], slow: float, tests: int) -> list[Change]:
    found: list[Change] = []
    wider = scatter(several)
    freedom = math.inf if wider == 1 else max(LEAST, (len(several) - 1) / 4)
    same = _Level()
    for now in several:
        after = now.mean or 0.0
        if same.weight:
            difference, error = after - same.mean, wider * math.hypot(now.error or 0.0, same.error)
            p_value = min(1.0, 2 * p_beyond(abs(difference) - slow, error, freedom))  # up or down
            if p_value <= LEVEL / tests:
                bounds = difference - Z95 * error, difference + Z95 * error
                found.append(Change(segment, same.start, now.start or 0.0, same.mean, after, bounds, p_value))
                same = _Level()
        same.add(now)
    return found


class _Level:
    """Intervals in which a segment did not move, each counting with its samples."""

    def __init__(self) -> None:
        self.start, self.weight = 0.0, 0
        self._sum = self._squares = 0.0

    def add(self, one: Figures) -> None:
        if not self.weight:
            self.start = one.start or 0.0
        weight = max(1, one.samples)
        self.weight += weight
        self._sum += weight * (one.mean or 0.0)
        self._squares += (weight * (one.error or 0.0)) ** 2

    @property
    def mean(self) -> float:
        return self._sum / self.weight

    @property
    def error(self) -> float:
        return math.sqrt(self._squares) / self.weight
