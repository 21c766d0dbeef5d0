"""Live traffic of the last minutes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
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


@dataclass
class _Slot:
    """A piece of the time: delays by leg, and by group."""

    place: int
    groups: LiveGroups
    legs: dict[str, tuple[Distribution, Sums, RandomGroups]] = field(default_factory=dict)

    def add(self, part: LiveInterval) -> None:
        each = part.legs or {"": (part.delays, part.random_groups)}
        for leg, (delays, random_groups) in each.items():
            mine, sums, groups = self.legs.setdefault(leg, (Distribution(), Sums(), RandomGroups()))
            mine.merge(delays)
            if random_groups is not None:
                groups.weights[: len(random_groups.weights)] += random_groups.weights
            if leg:
                sums.add(delays.samples, delays.sum_ns)
            else:
                sums.add(part.report.samples, round((part.report.mean or 0.0) * 1e9 * part.report.samples))


def _named(name: str, leg: str) -> str:
    return f"{name}, to the {leg}" if leg else name


class RecentSpan:
    """Delays of the last `span_ns`, forgotten piece by piece.

    Memory: 380 KB a piece and leg, 76 KB for each group in it.
    """

    def __init__(self, span_ns: int, pieces: int = SLOTS, most_groups: int = 0) -> None:
        self._pieces = pieces
        self._slot_ns = span_ns // pieces
        self._most = most_groups
        self._slots: deque[_Slot] = deque()

    def add(self, part: LiveInterval) -> None:
        """Add an interval, and forget what is too old."""
        place = part.interval.end_ns // self._slot_ns
        if not self._slots or self._slots[-1].place < place:
            self._slots.append(_Slot(place, LiveGroups(self._most)))
        while self._slots[0].place <= place - self._pieces:
            self._slots.popleft()
        self._slots[-1].add(part)
        if self._most:
            self._slots[-1].groups.add(part)

    def entries(self, name: str, measure: LiveMeasure) -> list[Entry]:
        """All of it: each leg, or the one distribution there is."""
        found = []
        for leg in dict.fromkeys(leg for slot in self._slots for leg in slot.legs):
            delays, total, groups = Distribution(), Sums(), RandomGroups()
            for slot in self._slots:
                if leg in slot.legs:
                    one, sums, random_groups = slot.legs[leg]
                    delays.merge(one)
                    total.merge(sums)
                    groups.weights[: len(random_groups.weights)] += random_groups.weights
            found.append(Entry("all", _named(name, leg), _report(measure, delays, total, groups), delays))
        return found

    def slowest(self, measure: LiveMeasure) -> list[Entry]:
        """Groups by their mean, slowest first."""
        delays: dict[str, Distribution] = {}
        totals: dict[str, Sums] = {}
        for slot in self._slots:
            for key, sums in slot.groups.sums.items():
                totals.setdefault(key, Sums()).merge(sums)
            for key, one in slot.groups.delays.items():
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
        now = []
        if self._now is not None:
            each = self._now.legs or {"": (self._now.delays, self._now.random_groups)}
            for leg, (delays, groups) in each.items():
                report = _report(self._measure, delays, Sums(), groups) if leg else self._now.report
                now.append(Entry("interval", _named("now", leg), report, delays))
        return [*now, *(entry for name, span in self._spans for entry in span.entries(name, self._measure))]

    def slowest(self) -> list[Entry]:
        """The slowest groups of the last minute."""
        return self._groups.slowest(self._measure) if self._by else []
