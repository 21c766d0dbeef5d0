"""Intervals of one segment between packets: which cuts stand, and what lies between them. No I/O.

Law: a cut may be replaced by a later one within half an interval (packets/intervals.py). Until then the interval before
it waits; if it is replaced, what lies between the two belongs to the interval that waits. Where colours delimit, late
packets of the interval that waits are added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from wirelag.packets.interval import Interval
from wirelag.packets.intervals import Edge
from wirelag.twopoint.spans import Cut


class Closed(NamedTuple):
    """An interval that is over, and the packet that ended it, if any."""

    cut: Cut
    by: int | None


class Edges:
    """The open interval of a segment, and the one before it whose end may still be revoked."""

    def __init__(self, half_ns: int, added: Callable[[Any, Any], Any]) -> None:
        """`half_ns`: how long a cut may be replaced; `added` merges synopses of neighbours."""
        self._half_ns, self._added = half_ns, added
        self._opened: Interval | None = None
        self._waiting: Cut | None = None
        self._closed_by: int | None = None

    def grow(self, first_ns: int, latest_ns: int) -> None:
        """Packets of these times belong to the open interval."""
        opened = self._opened or Interval(first_ns, first_ns)
        self._opened = replace(opened, end_ns=max(opened.end_ns, latest_ns + 1))

    def at(self, edge: Edge, cut: Callable[[Interval], Cut]) -> Iterator[Closed]:
        """A packet may end the open interval, of which `cut` makes the synopses."""
        if self._opened is not None:
            part = cut(replace(self._opened, end_ns=max(edge.time_ns, self._opened.start_ns)))
            if edge.instead and self._waiting is not None:
                self._waiting = self._waiting.joined(part, self._added)
            else:
                yield from self._let_go()
                named = replace(part.interval, name=None) if edge.instead else part.interval
                self._waiting = replace(part, interval=named)
            self._closed_by = edge.name
        self._opened = Interval(edge.time_ns, edge.time_ns + 1, edge.name)

    @property
    def waits(self) -> bool:
        """Whether the interval before the open one may still change."""
        return self._waiting is not None

    def late(self, cut: Callable[[Interval], Cut]) -> None:
        """Packets of the interval that waits came late; `cut` makes their synopses."""
        if self._waiting is not None:
            interval = self._waiting.interval
            self._waiting = replace(self._waiting.joined(cut(interval), self._added), interval=interval)

    def settled(self, now_ns: int) -> Iterator[Closed]:
        """The interval that waits, once no packet can replace its end."""
        if self._waiting is not None and self._waiting.interval.end_ns + self._half_ns < now_ns:
            yield from self._let_go()

    def end(self, cut: Callable[[Interval], Cut]) -> Iterator[Closed]:
        """The rest."""
        yield from self._let_go()
        if self._opened is not None:
            self._waiting, self._closed_by, self._opened = cut(self._opened), None, None
            yield from self._let_go()

    def _let_go(self) -> Iterator[Closed]:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            yield Closed(waiting, self._closed_by)
