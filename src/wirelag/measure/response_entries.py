"""The entries of a result of `response`, from epochs and exchanges: in total, over time, and by group."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from wirelag.measure.groups import OTHER
from wirelag.measure.result import Entry, doubt
from wirelag.stats.ranking import Few, few_of, fewest
from wirelag.units import format_time

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.packets.interval import Interval
    from wirelag.report import Report
    from wirelag.stats.distribution import Distribution
    from wirelag.synopses.epochs import Epochs

GROUP_BYTES: Final = 10_000  # of a group: its report, and bins that hold delays


class Synopsis(Protocol):
    """What a report is computed from: epochs of flows, or exchanges."""

    rows: Any
    counts: dict[str, int]

    def report(self, delays: Distribution | None = None) -> Report:
        """The report over all rows, whose delays are these."""

    def of(self, rows: Any) -> Synopsis:
        """A part of the rows."""

    def groups(self, by: str) -> Iterator[tuple[str, Synopsis]]:
        """By server, flow or client, the largest first."""

    @property
    def mean(self) -> float | None:
        """The mean of the report, which is not made for it."""

    @property
    def samples(self) -> int:
        """How many samples it is of."""

    @property
    def times_ns(self) -> Any:
        """The time of each row."""

    @property
    def delays(self) -> Distribution:
        """Single response times, where known."""


def entry_of(scope: str, key: str, found: Synopsis, when: Interval | None = None) -> Entry:
    """The report of a synopsis, and its delays; the packets of a part are not counted."""
    delays = found.delays
    report = found.report(delays).during(when)
    report = report if scope == "all" else replace(report, packets=None)
    return Entry(scope, key, report, delays.compact() if scope == "group" else delays)


def entries_beside(entries: list[Entry], estimated: list[Entry]) -> list[Entry]:
    """Entries by key, those of estimates beside those of exchanges; estimates alone are entries, too."""
    known = {entry.key: entry for entry in entries}
    for entry in estimated:
        if entry.key in known:
            known[entry.key].estimated = entry
        else:
            known[entry.key] = entry
    return list(known.values())


class GroupParts:
    """What each group is of: exchanges or epochs, and epochs beside exchanges. An entry is made when it is asked for.

    The groups with the most rows are kept; those beyond `most` are merged into "other".
    """

    def __init__(self, found: Synopsis, by: str, most: int, beside: Epochs | None = None) -> None:
        parts, self.more = _largest(found, by, most)
        estimated, others = ({}, 0) if beside is None else _largest(beside, by, most)
        self.more += others  # groups in "other"
        self._parts = [(key, part, estimated.pop(key, None)) for key, part in parts.items()]
        self._parts += [(key, part, None) for key, part in estimated.items()]
        self._means = [part.mean for _, part, _ in self._parts]

    def entry(self, place: int) -> Entry:
        """The entry of a group."""
        key, part, beside = self._parts[place]
        entry = entry_of("group", key, part)
        entry.estimated = None if beside is None else entry_of("group", key, beside)
        return entry

    def order(self, sort: str = "mean") -> tuple[npt.NDArray[np.uint32], Few]:
        """Places by a figure, the largest first; those with few samples next, then without it, and "other" last."""
        import numpy as np

        each = range(len(self._parts))
        values = self._means if sort == "mean" else [self._figure(i, sort) for i in each]
        kinds = [
            (key == OTHER, value is None, part.samples < fewest(sort))
            for (key, part, _), value in zip(self._parts, values, strict=True)
        ]
        places = sorted(each, key=lambda i: (*kinds[i], -(values[i] or 0.0), -(self._means[i] or 0.0)))
        return np.array(places, np.uint32), few_of(kinds)

    def _figure(self, place: int, sort: str) -> float | None:
        return None if self._means[place] is None else self.entry(place).report.figure(sort)

    @property
    def in_other(self) -> int:
        """Samples of groups that did not fit."""
        return sum(part.report().samples for key, part, _ in self._parts if key == OTHER)


def _largest(found: Synopsis, by: str, most: int) -> tuple[dict[str, Synopsis], int]:
    """The groups with the most rows, the rest as "other", and how many groups are in it."""
    import numpy as np

    parts: dict[str, Synopsis] = {}
    rest: list[Synopsis] = []
    for key, part in found.groups(by):
        if len(parts) < most:
            parts[key] = part
        else:
            rest.append(part)
    if rest:
        parts[OTHER] = copy(found)
        parts[OTHER].rows = np.concatenate([part.rows for part in rest])
    return parts, len(rest)


def over_time(found: Synopsis, beside: Epochs | None, interval_ns: int) -> list[Entry]:
    """Split by the time of each row."""
    parts = entries_beside(_by_time(found, interval_ns), [] if beside is None else _by_time(beside, interval_ns))
    return sorted(parts, key=lambda entry: entry.report.interval.start_ns if entry.report.interval else 0)


def _by_time(found: Synopsis, interval_ns: int) -> list[Entry]:
    import numpy as np

    from wirelag.packets.interval import Interval
    from wirelag.synopses.request_response import Exchanges

    alike = found.alike_over_time() if isinstance(found, Exchanges) else None
    places = found.times_ns // interval_ns
    order = np.argsort(places, kind="stable")
    entries = []
    for rows in np.split(order, np.flatnonzero(np.diff(places[order])) + 1) if len(order) else []:
        place = int(places[rows[0]])
        when = Interval(place * interval_ns, (place + 1) * interval_ns)
        entry = entry_of("interval", format_time(when.start_ns), found.of(rows), when)
        if alike is not None:
            doubt(entry, interval_ns, alike)
        entries.append(entry)
    return entries
