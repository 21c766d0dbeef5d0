"""Which segment's delay changed between intervals, when and by how much.

Law: a segment changed if the levels before and after differ by more than `slow`, significantly at a level of 5% over
all intervals of all segments (Bonferroni). Before and after are taken over the whole time, halves of it, quarters and
so on (seeded binary segmentation, Kovács and others 2023), so a change that is reverted later is found too. The most
significant change is reported first, and none that overlaps it. So if nothing changes by more than `slow`, a change is
reported in at most 5% of cases, provided that the errors are right. Errors are learned from the variation of intervals
within each part, and compared as ratios above the floor (certainty.py). With fewer than four intervals in a part they
are the errors of the reports, scaled by how much more neighbouring intervals scatter: the median of their squared
differences, in units of the stated errors, over that of a normal deviate. A few real changes do not affect a median.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from wirelag.network.certainty import LEVEL, batch_error, bounds, p_beyond
from wirelag.network.localise import Figures
from wirelag.network.segments import Segment
from wirelag.stats.over_time import Bounds, Error, welch

FEWEST: Final = 6  # intervals needed to learn the scatter
APART: Final = (1, 2, 4)  # distances between the intervals compared
LEAST: Final = 4.0  # degrees of freedom if a part has too few intervals to learn an error
MOST_CUTS: Final = 500  # cuts tried in a part
Level = tuple[float, Error]

_MEDIAN: Final = 0.4549364  # median of the square of a normal deviate


@dataclass(frozen=True, slots=True)
class DelayChange:
    """A segment whose delay changed; times in seconds since 1970, delays in seconds."""

    segment: Segment
    since: float  # start of the period before
    at: float  # start of the first interval after the change
    before: float
    after: float
    ci95: Bounds  # interval of the difference
    p_value: float

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before


def changes(series: Mapping[Segment, Sequence[Figures]], slow: float) -> list[DelayChange]:
    """The changes in order of time; each segment's intervals must be in order."""
    usable = {segment: [one for one in several if _usable(one)] for segment, several in series.items()}
    tests = sum(max(0, len(several) - 1) for several in usable.values())
    found = [change for segment, several in usable.items() for change in _moves(segment, several, slow, tests)]
    return sorted(found, key=lambda change: (change.at, -abs(change.difference)))


def scatter(several: Sequence[Figures]) -> float:
    """How much more the means of intervals scatter than their errors state; at least 1."""
    known = [(one.mean, one.error) for one in several if one.mean is not None and one.error is not None]
    if len(known) < FEWEST:
        return 1.0
    wider = 1.0
    for apart in (some for some in APART if some == 1 or 8 * some <= len(known)):
        pairs = zip(known, known[apart:], strict=False)
        squares = [(y - x) ** 2 / (a * a + b * b) for (x, a), (y, b) in pairs if a or b]
        wider = max(wider, math.sqrt(median(squares) / _MEDIAN) if squares else 1.0)
    return wider


def _usable(one: Figures) -> bool:
    return one.mean is not None and one.error is not None and one.start is not None


class _Series:
    """The intervals of a segment, weighted by their samples."""

    def __init__(self, several: Sequence[Figures]) -> None:
        self.counts = np.array([max(1.0, one.samples) for one in several])
        self.sums = self.counts * np.array([one.mean or 0.0 for one in several])
        told = scatter(several) * np.array([one.error or 0.0 for one in several])
        self._counted, self._summed, self._doubts = (
            np.concatenate(([0.0], np.cumsum(column))) for column in (self.counts, self.sums, (self.counts * told) ** 2)
        )

    def mean(self, start: int, end: int) -> float:
        """The mean of these intervals."""
        return float((self._summed[end] - self._summed[start]) / (self._counted[end] - self._counted[start]))

    def error(self, start: int, end: int) -> Error:
        """The error of that mean: the reports', or the observed one if larger."""
        told = math.sqrt(max(0.0, self._doubts[end] - self._doubts[start])) / (
            self._counted[end] - self._counted[start]
        )
        seen, freedom = batch_error(self.sums[start:end], self.counts[start:end]) or (0.0, LEAST)
        return max(float(told), seen), freedom


def _moves(segment: Segment, several: Sequence[Figures], slow: float, tests: int) -> list[DelayChange]:
    series, floor, count = _Series(several), _floor(several), len(several)
    called = sorted(
        (p_value, at, start, end)
        for start, end in _reaches(count)
        for p_value, at in [_surest(series, start, end, floor, slow)]
        if p_value <= LEVEL / max(1, tests)
    )
    cuts: dict[int, float] = {}
    for p_value, at, start, end in called:
        if not any(start < cut < end for cut in cuts):
            cuts[at] = p_value
    found = []
    edges = [0, *sorted(cuts), count]
    for start, at, end in zip(edges, edges[1:], edges[2:], strict=False):
        before, after = series.mean(start, at), series.mean(at, end)
        ends = bounds(after - before, welch([series.error(start, at), series.error(at, end)]))
        since, begins = several[start].start or 0.0, several[at].start or 0.0
        found.append(DelayChange(segment, since, begins, before, after, ends, cuts[at]))
    return found


def _reaches(count: int) -> Iterator[tuple[int, int]]:
    """The ranges to search: everything, then shorter ranges that overlap by half."""
    length = count
    while length >= 2:
        step = max(1, length // 2)
        yield from ((start, start + length) for start in range(0, count - length + 1, step))
        if (count - length) % step:
            yield count - length, count
        length //= 2


def _surest(series: _Series, start: int, end: int, floor: float, slow: float) -> tuple[float, int]:
    """The most significant difference of two sides, and its p-value."""
    best = 1.0, start
    for at in range(start + 1, end, 1 + (end - start) // MOST_CUTS):
        one, other = series.mean(start, at), series.mean(at, end)
        if abs(one - other) > slow:
            sides = (one, series.error(start, at)), (other, series.error(at, end))
            best = min(best, (_apart(*sides, floor, slow), at))
    return best


def _apart(one: Level, other: Level, floor: float, slow: float) -> float:
    """The p-value of two levels this much farther apart than `slow`."""
    (low, low_error), (high, high_error) = sorted((one, other))
    seen, allowed = high - floor, low - floor + slow
    error = math.hypot(high_error[0] / seen, low_error[0] / allowed)
    p_value = p_beyond(math.log(seen / allowed), error, min(low_error[1], high_error[1]))
    return min(1.0, 2 * p_value)  # two-sided


def _floor(several: Sequence[Figures]) -> float:
    """The lower bound of all intervals: the shortest delay, if known."""
    floors = [one.floor for one in several if one.floor is not None]
    return min((*floors, 0.0 if not floors else math.inf, *(one.mean or 0.0 for one in several)))
