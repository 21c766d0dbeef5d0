"""The intervals of a result: a thread of its own finds the figures of each while the next packets are read.

Law: they are in order, and what one thread would have found. Memory: samples of three intervals (estimators/later.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from wirelag.units import format_time

if TYPE_CHECKING:
    from wirelag.measure.result import Entry
    from wirelag.packets.interval import Interval
    from wirelag.synopses.connections import Connections
    from wirelag.synopses.samples import Samples

    Make: TypeAlias = Callable[[str, Samples, Connections | None], Entry]


class IntervalEntries:
    """Entries of intervals, each made from the samples of its own."""

    def __init__(self, make: Make, apart: bool) -> None:
        """`make` keeps no delays; `apart`: whether there is a core for a thread."""
        self._make = make
        self._made: list[Entry] = []
        self._later = None
        if apart:
            from wirelag.estimators.later import Later

            self._later = Later()

    def add(self, when: Interval, samples: Samples, connections: Connections | None) -> None:
        """The next interval has ended; nothing is added to its samples any more."""
        if self._later is None:
            self._add(when, samples, connections)
        else:
            self._later.leave(self._add, when, samples, connections)

    def _add(self, when: Interval, samples: Samples, connections: Connections | None) -> None:
        entry = self._make(format_time(when.start_ns), samples, connections)
        entry.report = entry.report.during(when)
        self._made.append(entry)

    def all(self) -> list[Entry]:
        """All of them."""
        if self._later is not None:
            self._later.end()
        return self._made
