"""Live traffic of the last minutes."""

from __future__ import annotations

from collections import deque
from typing import Final

from wirelag.measure.live import LiveGroups, LiveInterval, LiveMeasure, Sums, numbers
from wirelag.measure.result import Entry
from wirelag.report import Report
from wirelag.stats.distribution import Distribution
from wirelag.stats.random_groups import RandomGroups

MINUTE_NS: Final = 60 * 10**9
SPANS: Final = (("last minute", MINUTE_NS), ("last 10 minutes", 10 * MINUTE_NS))
SLOTS: Final = 6
GROUP_SLOTS: Final = 2
SHOWN_GROUPS: Final = 8


class RecentSpan:
    """Delays of the last `span_ns`, forgotten piece by piece. Memory: 380 KB per piece, plus 76 KB per group in it."""

    def __init__(self, span_ns: int, pieces: int = SLOTS, most_groups: int = 0) -> None:
        self._pieces = pieces
        self._slot_ns = span_ns // pieces
        self._most = most_groups
        self._slots: deque[tuple[int, Distribution, Sums, RandomGroups, LiveGroups]] = deque()

    def add(self, part: LiveInterval) -> None:
        """Add an interval, and forget what is too old."""
        slot = part.interval.end_ns // self._slot_ns
        if not self._slots or self._slots[-1][0] < slot:
            self._slots.append((slot, Distribution(), Sums(), RandomGroups(), LiveGroups(self._most)))
        while self._slots[0][0] <= slot - self._pieces:
            self._slots.popleft()
        _, delays, sums, random_groups, groups = self._slots[-1]
        delays.merge(part.delays)
        if part.random_groups:
            random_groups.merge(part.random_groups)
        sums.add(part.report.samples, round((part.report.mean or 0.0) * 1e9 * part.report.samples))
        if self._most:
            groups.add(part)

    def entry(self, name: str, measure: LiveMeasure) -> Entry:
        """The report over the whole span."""
        delays, total, random_groups = Distribution(), Sums(), RandomGroups()
        for _, one, sums, crowd, _ in self._slots:
            delays.merge(one)
            total.merge(sums)
            random_groups.merge(crowd)
        return Entry("all", name, _report(measure, delays, total, random_groups), delays)

    def slowest(self, measure: LiveMeasure) -> list[Entry]:
        """Groups by their mean, slowest first."""
        delays: dict[str, Distribution] = {}
        totals: dict[str, Sums] = {}
        for _, _, _, _, groups in self._slots:
            for key, sums in groups.sums.items():
                totals.setdefault(key, Sums()).merge(sums)
            for key, one in groups.delays.items():
                delays.setdefault(key, Distribution()).merge(one)
        keys = sorted(totals, key=lambda key: -(totals[key].mean or -1.0))[:SHOWN_GROUPS]
        found = ((key, delays.get(key, Distribution())) for key in keys)
        return [Entry("group", key, _report(measure, one, totals[key]), one) for key, one in found]


def _report(
    measure: LiveMeasure, delays: Distribution, sums: Sums, random_groups: RandomGroups | None = None
) -> Report:
    return Report(measure.estimator, measure.quantity, **numbers(delays, sums, random_groups))


class Recent:
    """The interval that ended last, the last minute, the last ten, and the slowest groups of the last minute."""

    def __init__(self, measure: LiveMeasure, by: str | None) -> None:
        self._measure, self._by = measure, by
        self._spans = [(name, RecentSpan(span_ns)) for name, span_ns in SPANS]
        self._groups = RecentSpan(MINUTE_NS, GROUP_SLOTS, measure.groups.most if by else 0)
        self._now: LiveInterval | None = None

    def add(self, part: LiveInterval) -> None:
        """Add an interval."""
        self._now = part
        for _, span in self._spans:
            span.add(part)
        if self._by:
            self._groups.add(part)

    def entries(self) -> list[Entry]:
        """Now, and the last minutes."""
        now = [] if self._now is None else [Entry("interval", "now", self._now.report, self._now.delays)]
        return [*now, *(span.entry(name, self._measure) for name, span in self._spans)]

    def slowest(self) -> list[Entry]:
        """The slowest groups of the last minute."""
        return self._groups.slowest(self._measure) if self._by else []
