"""Live traffic of the last minutes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from wirelag.measure.live import ESTIMATES, LiveGroups, LiveInterval, LiveMeasure, method_details, numbers
from wirelag.measure.result import Entry
from wirelag.report import Quantity, Report
from wirelag.stats.distribution import Distribution
from wirelag.stats.spread import Spread
from wirelag.synopses.epoch_sums import EpochSums
from wirelag.synopses.samples import LEGS

MINUTE_NS: Final = 60 * 10**9
SPANS: Final = (("last minute", MINUTE_NS), ("last 10 minutes", 10 * MINUTE_NS))
SLOTS: Final = 6
GROUP_SLOTS: Final = 2
SHOWN_GROUPS: Final = 8


Place: TypeAlias = tuple[str, str]  # a leg of round trips, and the estimator of the figures


@dataclass
class _Sum:
    """Delays of a leg, or of a method."""

    delays: Distribution = field(default_factory=Distribution)
    epochs: EpochSums = field(default_factory=EpochSums)
    spread: Spread = field(default_factory=Spread)
    methods: set[str] = field(default_factory=set)

    def add(self, delays: Distribution, spread: Spread | None) -> None:
        """Add single delays."""
        self.delays.merge(delays)
        if spread is not None:
            self.spread.merge(spread)

    def merge(self, other: _Sum) -> None:
        """Add those of other intervals."""
        self.add(other.delays, other.spread)
        self.epochs.merge(other.epochs)
        self.methods |= other.methods

    def report(self, estimator: str, quantity: Quantity) -> Report:
        """The figures."""
        said = numbers(self.delays, self.spread, self.epochs)
        return Report(estimator, quantity, **said, details=method_details(self.methods))


@dataclass
class _Slot:
    """A piece of the time: delays by leg and method, and by group."""

    place: int
    groups: LiveGroups
    parts: dict[Place, _Sum] = field(default_factory=dict)

    def add(self, part: LiveInterval) -> None:
        for leg, (delays, spread) in part.legs.items():
            mine = self.parts.setdefault((leg, part.report.estimator), _Sum())
            mine.add(delays, spread)
        for report in part.by_method() if not part.legs else ():
            mine = self.parts.setdefault(("", report.estimator), _Sum())
            if report is part.report:
                mine.add(part.delays, part.spread)
            if report.estimator == ESTIMATES:
                mine.epochs.merge(part.epochs)
            mine.methods.update(report.details.get("method", ()))


def _named(name: str, leg: str) -> str:
    return f"{name}, to the {leg}" if leg else name


class RecentSpan:
    """Delays of the last `span_ns`, forgotten piece by piece.

    Memory: 380 KB a piece and leg, and `group_memory` a piece for groups.
    """

    def __init__(self, span_ns: int, pieces: int = SLOTS, group_memory: int = 0) -> None:
        self._pieces = pieces
        self._slot_ns = span_ns // pieces
        self._group_memory = group_memory
        self._slots: deque[_Slot] = deque()

    def add(self, part: LiveInterval) -> None:
        """Add an interval, and forget what is too old."""
        place = part.interval.end_ns // self._slot_ns
        if not self._slots or self._slots[-1].place < place:
            self._slots.append(_Slot(place, LiveGroups(self._group_memory)))
        while self._slots[0].place <= place - self._pieces:
            self._slots.popleft()
        self._slots[-1].add(part)
        if self._group_memory:
            self._slots[-1].groups.add(part)

    def entries(self, name: str, measure: LiveMeasure) -> list[Entry]:
        """All of it: each leg, or each method."""
        found = []
        for place in sorted({place for slot in self._slots for place in slot.parts}, key=_order):
            total = _Sum()
            for slot in self._slots:
                if place in slot.parts:
                    total.merge(slot.parts[place])
            leg, estimator = place
            found.append(Entry("all", _named(name, leg), total.report(estimator, measure.quantity), total.delays))
        return found

    def slowest(self, measure: LiveMeasure, leg: str) -> list[Entry]:
        """Groups by their mean on this leg, slowest first."""
        total = LiveGroups(self._group_memory, leg)
        for slot in self._slots:
            total.merge(slot.groups)
        return total.entries(measure.quantity, SHOWN_GROUPS)


def _order(place: Place) -> tuple[bool, bool]:
    """The server's leg first, then paired exchanges before estimates."""
    leg, estimator = place
    return leg == LEGS[1], estimator == ESTIMATES


class Recent:
    """The interval that ended last, the last minute, the last ten, and the slowest groups of the last minute."""

    def __init__(self, measure: LiveMeasure, by: str | None) -> None:
        self._measure, self._by = measure, by
        self._spans = [(name, RecentSpan(span_ns)) for name, span_ns in SPANS]
        self._groups = RecentSpan(MINUTE_NS, GROUP_SLOTS, measure.groups.memory if by else 0)
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
            slot = _Slot(0, LiveGroups(0))
            slot.add(self._now)
            reports = {} if self._now.legs else {report.estimator: report for report in self._now.by_method()}
            for (leg, estimator), part in slot.parts.items():
                report = reports.get(estimator) or part.report(estimator, self._measure.quantity)
                now.append(Entry("interval", _named("now", leg), report, part.delays))
        return [*now, *(entry for name, span in self._spans for entry in span.entries(name, self._measure))]

    @property
    def leg(self) -> str:
        """The leg that the figures of groups are of."""
        return self._measure.leg_of(self._by)

    def slowest(self) -> list[Entry]:
        """The slowest groups of the last minute."""
        return self._groups.slowest(self._measure, self.leg) if self._by else []
