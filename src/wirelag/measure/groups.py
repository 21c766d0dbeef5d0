"""How figures are grouped, and the memory for groups; what does not fit is "other"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wirelag.errors import SettingError
from wirelag.stats.ranking import Few, few_of, fewest
from wirelag.units import format_size, one_of, within

if TYPE_CHECKING:
    from wirelag.measure.result import Entry
    from wirelag.packets.grouping import By, Grouping
    from wirelag.report import Report
    from wirelag.synopses.group_delays import GroupDelays

MOST: Final = 1 << 20
LEAST_MEMORY: Final = 1 << 20
MOST_MEMORY: Final = 1 << 36
MOST_SLOWEST: Final = 100
FIGURES: Final = ("p50", "p90", "p95", "p99", "p99.9", "mean", "max", "std", "samples")
OTHER: Final = "other"
_SIDES: Final = {"source": "client", "destination": "server"}  # a packet's source is what rtt calls the client


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Groups:
    """What `by` and the options around it ask for; None: no groups."""

    by: str | None = None
    allowed: tuple[str, ...] = ()
    memory: int = 256 << 20  # for what is kept of groups
    ipv4_prefix: int = 24
    ipv6_prefix: int = 48
    sort: str | None = None  # the figure that groups are in order of, the largest first; None: as the question prefers
    top: int | None = None  # groups that a table shows, and slowest samples; None: 20 and 5
    most: int | None = None  # where two points must agree on a number of classes

    def __post_init__(self) -> None:
        if self.sort is not None:
            one_of(self.sort, FIGURES, "sort")
        if self.top is not None:
            within(self.top, 0, MOST, "top")
        if self.by is not None:
            one_of(self.by, self.allowed, "by")
        if not LEAST_MEMORY <= self.memory <= MOST_MEMORY:
            raise SettingError("group_memory", "must be at least 1MiB, and at most 64GiB")
        if self.most is not None:
            within(self.most, 1, MOST, "most_groups")
        within(self.ipv4_prefix, 0, 32, "ipv4_prefix")
        within(self.ipv6_prefix, 0, 128, "ipv6_prefix")

    @property
    def shown(self) -> int:
        """Groups that a table shows."""
        return 20 if self.top is None else self.top

    @property
    def slowest(self) -> int:
        """Slowest samples that a result lists."""
        return 5 if self.top is None else min(self.top, MOST_SLOWEST)

    def fit(self, bytes_each: int) -> int:
        """How many groups of this size fit into the memory."""
        return max(1, min(MOST, self.memory // bytes_each)) if self.most is None else self.most

    def grouping(self, bytes_each: int = 1) -> Grouping | None:
        """A fresh grouping that numbers as many groups as fit."""
        if self.by is None:
            return None
        from wirelag.packets.grouping import Grouping

        return Grouping(self._by, self.ipv4_prefix, self.ipv6_prefix, self.fit(bytes_each))

    def delays(self) -> GroupDelays | None:
        """A fresh grouping that keeps the delays of its groups."""
        if self.by is None:
            return None
        from wirelag.synopses.group_delays import GroupDelays

        return GroupDelays(self._by, self.ipv4_prefix, self.ipv6_prefix, memory=self.memory)

    def largest(self, counted: GroupDelays, bytes_each: int, bytes_per_packet: int) -> Grouping:
        """A fresh grouping of the groups with the most packets, as many as fit if each takes this many bytes."""
        from wirelag.packets.grouping import Grouping

        most = min(self.fit(bytes_each), len(counted))
        if self.most is None:
            taken = (bytes_each + bytes_per_packet * counted.sizes[:most]).cumsum()
            most = int(taken.searchsorted(self.memory, side="right"))
        most = max(1, most)
        grouping = Grouping(self._by, self.ipv4_prefix, self.ipv6_prefix, most)
        for words in counted.largest(most):
            grouping.keep(words)
        return grouping

    @property
    def _by(self) -> By:
        return _SIDES.get(self.by or "", self.by)  # type: ignore[return-value]


def in_order(entries: list[Entry], name: str) -> tuple[list[Entry], Few]:
    """Groups by a figure, the largest first; those with too few samples next, then without it, and "other" last."""
    places = []
    for i, entry in enumerate(entries):
        value = entry.report.figure(name) if entry.report.samples else None
        places.append((entry.key == OTHER, value is None, entry.report.samples < fewest(name), -(value or 0.0), i))
    places.sort()
    return [entries[place[-1]] for place in places], few_of([place[:3] for place in places])


def told_apart(larger: Report, smaller: Report, name: str) -> bool:
    """Whether 95% intervals of a figure tell two groups apart: they differ by more than chance makes them differ.

    Errors of a difference add as squares. Without an interval, nothing tells.
    """
    key = f"{float(name[1:]) / 100:g}" if name[0] == "p" else name
    values = larger.figure(name), smaller.figure(name)
    if values[0] is None or values[1] is None or key not in larger.ci95 or key not in smaller.ci95:
        return False
    down, up = values[0] - larger.ci95[key][0], smaller.ci95[key][1] - values[1]
    return values[0] - values[1] > math.hypot(down, up)


def other_note(groups: str, held: int, whole: int, memory: int, what: str = "samples") -> list[str]:
    """How many groups did not fit, and how much of the whole they hold."""
    if not held:
        return []
    share = f"{held / max(1, whole):.1%} of the {what}"
    return [f"other: {share}, of groups that did not fit {format_size(memory)}: {groups}; see --group-memory"]
