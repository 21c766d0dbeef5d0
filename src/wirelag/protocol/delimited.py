"""Intervals delimited by packets, as they arrive: what both points cut between two neighbouring common delimiters.

Law: a point's cuts follow each other; each begins where the previous one ends. A pair is formed once all cuts of both
points between two common delimiters have arrived, so the order and time of arrival do not matter. A delimiter that
only one point saw joins the intervals on both sides of it. A cut names the delimiter that opened it, and may name the
one that closed it (`closed_by`), which saves waiting for the next cut. Changes of a colour are named by the colour
alone: two are the same if the points saw them within half a period of each other. No I/O.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from wirelag.estimators.protocol import Additive
from wirelag.packets.grouping import OTHER_KEY
from wirelag.packets.interval import Interval
from wirelag.protocol.loss import loss_of
from wirelag.protocol.messages import ClockReading, Message, Seen, ahead_of
from wirelag.protocol.pairing import WRONG, Key
from wirelag.protocol.results import Rank, Result, compared, together
from wirelag.protocol.shares import Held
from wirelag.protocol.terms import Terms, delimited
from wirelag.synopses.crossing import Crossing

Sides = tuple[list[Message], list[Message]]
MOST_LENGTHS: Final = 16
SUMS_NS: Final = (60 * 10**9, 3600 * 10**9)


def is_idle(message: Message) -> bool:
    """Whether a point cut at packets says that none has passed: by the clock, as there is nothing to cut at.

    If the other point does not say so, some packet was under way at an edge: nothing was missed.
    """
    return bool(message.records) and message.records[0].get("idle") is True and not message.seen.packets


def crossed(estimator: Additive, sides: Sides) -> dict[Key, Crossing]:
    """What became of the packets between two delimiters, by class; a ValueError where a synopsis is none."""
    summed = up, down = tuple(_summed(estimator, side) for side in sides)
    for mine, theirs in ((up, down), (down, up)):
        if OTHER_KEY in theirs:  # what only one point knows by itself is among the others at the other one
            for key in mine.keys() - theirs.keys() - {OTHER_KEY}:
                gone = mine.pop(key)
                mine[OTHER_KEY] = estimator.added(mine[OTHER_KEY], gone) if OTHER_KEY in mine else gone
    nothing = estimator.synopsis(estimator.meter(estimator.points[0]).cut(sides[0][0].interval).to_fields())
    keys: list[Key] = [None, *sorted({key for side in summed for key in side if key is not None})]
    return {key: estimator.cross(*(side.get(key, nothing) for side in summed)) for key in keys}


def _summed(estimator: Additive, side: Sequence[Message]) -> dict[Key, Any]:
    """The synopses of one point, added up, by class."""
    found: dict[Key, Any] = {}
    for cut in side:
        for one in cut.records:
            key, synopsis = one["class"], estimator.synopsis(one)
            found[key] = estimator.added(found[key], synopsis) if key in found else synopsis
    return found


def result_of(segment: str, sides: Sides) -> Result:
    """The result for the interval between two delimiters."""
    first, terms, reason = sides[0][0], sides[0][0].terms, None
    assert delimited(terms.estimator)
    assert terms.delimiters is not None
    crossings: dict[Key, Crossing] = {}
    seen = _seen(sides[0]), _seen(sides[1])
    apart = next((found for cut in (*sides[0], *sides[1]) if (found := terms.differences(_alike(cut, terms)))), None)
    if apart:
        reason = f"{first.point} and {sides[1][0].point} are set up differently ({'; '.join(apart)})"
    else:
        try:
            crossings = crossed(terms.estimator, sides)
        except WRONG as error:
            reason = f"the points' synopses do not fit together ({error})"
    unseen = [one.unseen for one in seen]
    losses = {key: loss_of(crossing, crossings[None], seen, unseen) for key, crossing in crossings.items()}
    interval = _rounded(Interval(first.interval.start_ns, sides[0][-1].interval.end_ns), terms.delimiters.length_ns)
    clock = compared(together([_clock(side) for side in sides]), [ahead_of(cut) for side in sides for cut in side])
    return Result(segment, interval, Rank.SETTLED, terms.estimator.name, crossings, losses, seen, clock, True, reason)


def _alike(cut: Message, terms: Terms) -> Terms:
    """The terms of a cut, as if its markers were as rare: cuts at rarer ones are some of the cuts at others."""
    assert cut.terms.delimiters is not None
    assert terms.delimiters is not None
    return replace(cut.terms, delimiters=replace(cut.terms.delimiters, bits=terms.delimiters.bits))


def _rounded(interval: Interval, length_ns: int) -> Interval:
    """The interval as it is stored: of one, two, ... lengths, so that there are few different ones.

    After more than MOST_LENGTHS its packets are long over: the segment was idle. Sums of minutes and hours have lengths
    of their own.
    """
    lengths = min(MOST_LENGTHS, max(1, round(interval.length_ns / length_ns)))
    if lengths > 1 and lengths * length_ns in SUMS_NS:
        lengths += 1
    return Interval(interval.start_ns, interval.start_ns + lengths * length_ns, interval.name)


def _seen(side: Sequence[Message]) -> Seen:
    return Seen(
        *(sum(getattr(cut.seen, name) for cut in side) for name in ("packets", "unseen", "covered_ns", "captured"))
    )


def _clock(side: Sequence[Message]) -> ClockReading:
    """The worst clock reading of a point."""
    worst = max((cut.clock for cut in side), key=lambda clock: clock.error_ns)
    return ClockReading(all(cut.clock.synchronised for cut in side), worst.error_ns, worst.source)


def _half_ns(message: Message) -> int | None:
    """Half a period, if colours delimit."""
    delimiters = message.terms.delimiters
    return delimiters.length_ns // 2 if delimiters is not None and delimiters.colour is not None else None


@dataclass(slots=True)
class _Cuts:
    """The cuts of one point, by start time."""

    waiting: dict[int, Message] = field(default_factory=dict)
    arrived_ns: dict[int, int] = field(default_factory=dict)  # also of those already used
    names: dict[int, int | None] = field(default_factory=dict)  # opening delimiters, of used cuts too
    starts: dict[int, int] = field(default_factory=dict)  # the inverse
    closed: dict[int, tuple[int, int]] = field(default_factory=dict)  # closing delimiter of each, and its time
    changes: dict[int, list[int]] = field(default_factory=dict)  # where colours delimit: when each came, in order

    def nearest(self, colour: int, time_ns: int, half_ns: int) -> int | None:
        """When this point saw a colour come, if it was within half a period of this time."""
        times_ns = self.changes.get(colour, [])
        at = bisect_left(times_ns, time_ns)
        near_ns = min(times_ns[max(0, at - 1) : at + 1], key=lambda one_ns: abs(one_ns - time_ns), default=None)
        return near_ns if near_ns is not None and abs(near_ns - time_ns) <= half_ns else None

    def change(self, colour: int, time_ns: int) -> None:
        """Remember when a colour came."""
        times_ns = self.changes.setdefault(colour, [])
        if times_ns[bisect_left(times_ns, time_ns) :][:1] != [time_ns]:
            insort(times_ns, time_ns)

    def forget_change(self, colour: int, time_ns: int) -> None:
        """Forget it."""
        times_ns = self.changes.get(colour, [])
        if time_ns in times_ns:
            times_ns.remove(time_ns)
        if not times_ns:
            self.changes.pop(colour, None)

    def close(self, message: Message) -> None:
        """Remember what closed a cut, if stated."""
        name = message.records[0].get("closed_by") if message.records else None
        if type(name) is int and 0 <= name < 1 << 64:
            self.closed[message.interval.start_ns] = name, message.interval.end_ns
            self.starts.setdefault(name, message.interval.end_ns)
            if _half_ns(message) is not None:
                self.change(name, message.interval.end_ns)

    def name_at(self, time_ns: int) -> int | None:
        """The delimiter at which this point cut at this time."""
        if (name := self.names.get(time_ns)) is not None:
            return name
        return next((name for name, end_ns in self.closed.values() if end_ns == time_ns), None)

    def forget(self, start_ns: int) -> None:
        """Forget a cut, and its delimiters unless another cut needs them."""
        name = self.names.pop(start_ns)
        del self.arrived_ns[start_ns]
        end, end_ns = self.closed.pop(start_ns, (None, None))
        if name is not None:
            self.forget_change(name, start_ns)
        if end is not None and end_ns is not None and end_ns not in self.names:
            self.forget_change(end, end_ns)
        if name is not None and self.starts.get(name) == start_ns:
            del self.starts[name]
        if end is not None and end_ns not in self.names and self.starts.get(end) == end_ns:
            del self.starts[end]

    def until(self, start_ns: int, end_ns: int) -> list[Message] | None:
        """The cuts from one instant to another, if all have arrived."""
        found: list[Message] = []
        while start_ns < end_ns:
            cut = self.waiting.get(start_ns)
            if cut is None:
                return None
            found.append(cut)
            start_ns = cut.interval.end_ns
        return found if start_ns == end_ns else None


@dataclass(slots=True)
class Chain:
    """The cuts of both ends of a segment, upstream first, until they are paired."""

    sides: tuple[_Cuts, _Cuts] = field(default_factory=lambda: (_Cuts(), _Cuts()))
    held: dict[str, Held] = field(default_factory=dict)  # memory of waiting cuts, by key
    half_ns: int | None = None  # of a period, where colours delimit

    def take(self, side: int, message: Message, now_ns: int) -> list[Sides] | None:
        """Add a cut; return the pairs that it completes, None if it had arrived before."""
        cuts, start_ns, name = self.sides[side], message.interval.start_ns, message.interval.name
        if start_ns in cuts.names:
            return None
        self.half_ns = _half_ns(message)
        cuts.waiting[start_ns], cuts.arrived_ns[start_ns], cuts.names[start_ns] = message, now_ns, name
        if name is not None:
            cuts.starts.setdefault(name, start_ns)
            if self.half_ns is not None:
                cuts.change(name, start_ns)
        cuts.close(message)
        found = []
        for first_ns in sorted(self.sides[0].waiting):
            pair = self._from(first_ns)
            if pair is not None:
                found.append(pair)
                for which, several in zip(self.sides, pair, strict=True):
                    for cut in several:
                        del which.waiting[cut.interval.start_ns]
        return found

    def old(self, until_ns: int) -> list[Message]:
        """Forget cuts that arrived before this time; return the unused ones."""
        unused = []
        for cuts in self.sides:
            for start_ns in [start_ns for start_ns, at_ns in cuts.arrived_ns.items() if at_ns < until_ns]:
                if start_ns in cuts.waiting:
                    unused.append(cuts.waiting.pop(start_ns))
                cuts.forget(start_ns)
        return unused

    def let_go(self, side: int, start_ns: int) -> list[Message]:
        """Forget a waiting cut of one point, as if it had not come; return it, if it is there."""
        cuts = self.sides[side]
        cut = cuts.waiting.pop(start_ns, None)
        if cut is None:
            return []
        cuts.forget(start_ns)
        return [cut]

    def _from(self, first_ns: int) -> Sides | None:
        """The cuts of both points from one common delimiter to the next."""
        up, down = self.sides
        other_ns = self._seen_below(first_ns)
        if other_ns is None or first_ns not in up.waiting:
            return None
        ups = [up.waiting[first_ns]]
        while True:
            next_ns = ups[-1].interval.end_ns
            end_ns = self._seen_below(next_ns)
            if end_ns is not None and end_ns > other_ns:
                downs = down.until(other_ns, end_ns)
                return None if downs is None else (ups, downs)
            if next_ns not in up.waiting:
                return None
            ups.append(up.waiting[next_ns])

    def _seen_below(self, start_ns: int) -> int | None:
        """When downstream saw the delimiter at which upstream cut at this time; None if either did not see it."""
        up, down = self.sides
        name = up.name_at(start_ns)
        if name is not None and self.half_ns is not None:
            return down.nearest(name, start_ns, self.half_ns)
        return None if name is None or up.starts.get(name) != start_ns else down.starts.get(name)
