"""One interval of one segment: what both points sent about it, and rda's rounds of questions. No I/O.

Law: questions follow from the messages received, so messages in any order lead to the same questions. A reply that
does not fit counts as none. A conversation ends after a few questions, whatever the replies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from wirelag import _kernels
from wirelag.estimators.rda import ATTEMPTS, Rda, Words, cells, likely_difference
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import Message, Record, ahead_of
from wirelag.protocol.reconcile import UNSEEN, Reconciling, answer_symbols
from wirelag.protocol.terms import Terms, answered, second_round
from wirelag.synopses.cache import Cached
from wirelag.synopses.crossing import Crossing

UP, DOWN = 0, 1
MOST_BUCKETS: Final = 1 << 19  # as many as fit into a message
LONGEST: Final = 8  # most questions of a conversation by symbols
OTHER: Final = "other"  # class of packets without a class of their own
WHERE: Final = ("start_ns", "end_ns", "name", "class")
WRONG: Final = (ValueError, TypeError, KeyError, IndexError, OverflowError)

Key = str | None  # name of a class; None is everything


def answer(estimator: Rda, cached: Cached | None, ask: Mapping[str, Any]) -> Record:
    """An agent's reply to one record of an ask; `cached` is what it kept of the interval and class, None: discarded."""
    where = {name: ask[name] for name in WHERE}
    if cached is None:
        return where | {"reason": "the packets of this interval are no longer kept"}
    if estimator.short:
        try:
            return where | answer_symbols(estimator, cached, ask)
        except ValueError as error:
            return where | {"reason": str(error)}
    if "buckets" not in ask:
        return answered(cached, ask)
    count = max(1, min(int(ask["buckets"]), MOST_BUCKETS))
    return where | replace(estimator, buckets=count).bind(cached.at_level(int(ask["cache_level"]))).to_fields()


@dataclass(slots=True)
class Pairing:
    """The state of an interval."""

    interval: Interval
    touched_ns: int  # time of the last message about it
    said: list[Message | None] = field(default_factory=lambda: [None, None])  # upstream first
    ahead_ns: list[tuple[int, int] | None] = field(default_factory=lambda: [None, None])  # bounds of the clocks' offset
    untimed: set[Key] = field(default_factory=set)  # classes with packets that differ and whose times are unknown
    awaited: dict[int, tuple[Record, ...]] = field(default_factory=dict)  # questions asked of each side
    asked_ns: int = 0
    attempts: int = 0
    final: bool = False  # no further messages are expected
    reason: str | None = None  # why there are no figures
    _synopses: tuple[dict[Key, Any], dict[Key, Any]] = field(default_factory=lambda: ({}, {}))
    _told: tuple[dict[Key, Cached], dict[Key, Cached]] = field(default_factory=lambda: ({}, {}))
    _differ: dict[Key, tuple[Words, Words]] = field(default_factory=dict)  # packets that each point alone saw
    _talks: dict[Key, Reconciling] = field(default_factory=dict)  # conversations by symbols
    _crossings: dict[Key, Crossing] = field(default_factory=dict)
    _uncrossed: list[Key] = field(default_factory=list)  # classes whose conversations have got further
    _counted: Counter[str] = field(default_factory=Counter)

    @property
    def both(self) -> bool:
        """Whether both points have sent their synopses."""
        return None not in self.said

    @property
    def terms(self) -> Terms:
        """The terms of the points that sent, with the fewer rows."""
        known = [message.terms for message in self.said if message is not None]
        return known[0].beside(known[-1])

    @property
    def crossings(self) -> dict[Key, Crossing]:
        """What is known now of each class. What a reply may change at once is crossed only if somebody wants it."""
        for key in self._uncrossed:
            try:
                self._crossings[key] = self._talks[key].crossing()
            except WRONG as error:
                self._not_comparable(key, error)
        self._uncrossed.clear()
        return self._crossings

    def _not_comparable(self, key: Key, error: Exception) -> None:
        self._counted["not comparable"] += 1
        self._crossings[key] = Crossing(reason=f"the points' synopses do not fit together ({error})")

    def open(self) -> None:
        """Start once both points have sent; set a reason if they cannot be compared."""
        up, down = self.said
        assert up is not None
        assert down is not None
        apart = [] if up.terms == down.terms else self.terms.differences(down.terms.beside(up.terms))
        if apart:
            self.reason = f"{up.point} and {down.point} are set up differently ({'; '.join(apart)})"
            return
        for side, message in enumerate((up, down)):
            try:
                made = message.synopses or map(message.terms.estimator.synopsis, message.records)
                own = {record["class"]: one for record, one in zip(message.records, made, strict=True)}
                self._synopses[side].update(own if message.terms == self.terms else self._in_fewer_rows(own))
            except WRONG as error:
                self.reason = f"the synopsis of {message.point} does not fit its own terms ({error})"
            self.ahead_ns[side] = ahead_of(message)
            self.said[side] = message.with_records(())  # in memory once, as synopses

    def _in_fewer_rows(self, synopses: dict[Key, Any]) -> dict[Key, Any]:
        estimator = self.terms.two_point
        assert second_round(estimator)
        return {key: synopsis.in_rows(estimator.rows) for key, synopsis in synopses.items()}

    def take(self, side: int, message: Message) -> bool:
        """Take a reply; return whether it fits the question: a point at the ends of two segments is asked twice."""
        asked, estimator = self.awaited.get(side, ()), self.terms.estimator
        said = self.said[side]
        if not asked or said is None or message.terms != said.terms or len(message.records) != len(asked):
            return False
        synopses, told, gone = dict[Key, Any](), dict[Key, Cached](), False
        found: list[tuple[Key, Record, Any]] = []
        misled: list[Key] = []
        for record, ask in zip(message.records, asked, strict=True):
            key = ask["class"]
            try:
                if record["class"] != key:
                    return False
                if record.get("reason") == UNSEEN and "wanted" in ask:
                    misled.append(key)
                elif "reason" in record:
                    gone = True
                elif key in self._talks:
                    found.append((key, ask, self._talks[key].read(side, ask, record)))
                elif "buckets" in ask:
                    synopses[key] = estimator.synopsis(record)
                    if len(synopses[key].buckets) // 4 < ask["buckets"]:
                        return False
                else:
                    told[key] = Cached.from_fields(record, estimator.seed)
                    if not np.isin(self._differ[key][side], _kernels.number_copies(told[key].ids)).all():
                        return False
            except WRONG:
                return False
        self._synopses[side].update(synopses)
        self._told[side].update(told)
        for key, ask, what in found:
            self._talks[key].take(side, ask, what)
        for key in misled:
            self._talks[key].misled = True
        self.attempts = LONGEST if gone else self.attempts
        del self.awaited[side]
        return True

    def cross(self, now_ns: int, counted: Counter[str]) -> dict[int, tuple[Record, ...]]:
        """Cross every class as far as possible now; return the questions for each side that would improve it."""
        wanted: dict[int, list[Record]] = {UP: [], DOWN: []}
        self._counted = counted
        self._uncrossed.clear()
        estimator = self.terms.two_point
        for key in self._classes():
            try:
                if second_round(estimator):
                    ask = self._cross_symbols if estimator.short else self._cross_buckets
                    for side, record in ask(estimator, key):
                        wanted[side].append(record)
                else:
                    up, down = (side.get(key) for side in self._synopses)
                    if up is None or down is None:
                        nothing = estimator.meter(estimator.points[UP]).cut(Interval(0, 0))
                        up, down = (nothing if one is None else one for one in (up, down))
                    self._crossings[key] = estimator.cross(up, down)
            except WRONG as error:
                self._not_comparable(key, error)
        self.awaited = {side: tuple(records) for side, records in wanted.items() if records}
        self.asked_ns, self.attempts = now_ns, self.attempts + 1
        return dict(self.awaited)

    def free(self) -> None:
        """Keep only what neighbours need."""
        self.final = True
        self.awaited.clear()
        _ = self.crossings  # while there is something to cross
        self._synopses, self._told, self._differ, self._talks = ({}, {}), ({}, {}), {}, {}
        self.said = [message.with_records(()) if message and message.records else message for message in self.said]

    def _classes(self) -> list[Key]:
        """Everything, and the comparable classes: if a point has "other", those that both points kept separate."""
        up, down = (set(side) - {None} for side in self._synopses)
        both = up & down - {OTHER} if OTHER in up | down else up | down
        return [None, *sorted(both, key=str)]

    def _cross_symbols(self, estimator: Rda, key: Key) -> Iterator[tuple[int, Record]]:
        if key not in self._talks:
            self._talks[key] = Reconciling(estimator, list(self._alike(estimator, key)))
        talk = self._talks[key]
        questions = talk.ask()
        self._uncrossed.append(key)
        (self.untimed.add if talk.untimed else self.untimed.discard)(key)
        if self.attempts < LONGEST:
            where = self._where(key) | {"cache_level": talk.level}
            yield from ((side, where | question) for side, question in questions.items())

    def _where(self, key: Key) -> Record:
        values = (self.interval.start_ns, self.interval.end_ns, self.interval.name, key)
        return dict(zip(WHERE, values, strict=True))

    def _cross_buckets(self, estimator: Rda, key: Key) -> Iterator[tuple[int, Record]]:
        up, down = self._alike(estimator, key)
        more = self.attempts < ATTEMPTS
        level, size = max(up.level, down.level), max(len(up.buckets), len(down.buckets)) // 4
        record = self._where(key) | {"cache_level": level}
        less = [side for side, one in enumerate((up, down)) if one.level < level or len(one.buckets) // 4 < size]
        if less:
            reason = "the points kept different shares of their packets: give them more memory"
            self._crossings[key] = Crossing(up.packets, down.packets, reason=reason)
            if more:
                yield from ((side, record | {"buckets": size}) for side in less)
            return
        mine, theirs = (told.get(key) for told in self._told)
        crossing, decoded = estimator.cross_bound(up, down, mine, theirs)
        self._crossings[key] = crossing
        self.untimed.discard(key)
        if not decoded.complete:
            likely = len(decoded.numbers) + likely_difference(decoded.left, estimator.banks)
            wish = max(2 * size, cells(likely))
            if more and wish <= min(MOST_BUCKETS, 2 * (up.entries + down.entries) + 2 * size):
                yield from ((side, record | {"buckets": wish}) for side in (UP, DOWN))
        elif len(decoded.numbers) and (mine is None or theirs is None):
            self.untimed.add(key)
            self._differ[key] = decoded.upstream, decoded.downstream
            if more:
                yield from ((side, record | {"numbers": decoded.numbers}) for side in (UP, DOWN))

    def _alike(self, estimator: Rda, key: Key) -> tuple[Any, Any]:
        """Both points' synopses of a class; if a point did not see it, an empty one like the other's."""
        up, down = (side.get(key) for side in self._synopses)
        if up is not None and down is not None and up.packets and down.packets:
            return up, down
        there = next(one for one in (up, down) if one is not None)
        like = replace(estimator, buckets=len(there.words) if estimator.short else len(there.buckets) // 4)
        nothing = replace(like.bind(Cached.empty(estimator.seed)), level=there.level)
        up, down = (side.get(key, nothing) for side in self._synopses)
        if not up.packets or not down.packets:  # an empty cache has the lowest level
            up, down = (one if one.packets else replace(one, level=max(up.level, down.level)) for one in (up, down))
        return up, down
