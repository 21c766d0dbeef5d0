"""What rda kept of past intervals, for the collector's questions: times of single packets, more buckets.

Law: at most `most_bytes`, 16 per packet; the oldest interval is dropped first. A question about something that is not
kept (any longer, or since a restart) is answered at once with the reason, never with a guess. Symbols are sent for the
largest difference that the collector named in the last LATELY intervals. What questions then need not ask for is sent
with them, and the difference is that of the last question as long as this lasts (protocol/unasked.py). If more buckets
were requested, later intervals have as many from the start, up to the next multiple of MEMORY intervals since 1970:
both points get the same requests, so they have the same number, and return to fewer at the same time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from wirelag.agent.cutting import CutPart
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import MOST_BYTES, Message, encode, terms_name
from wirelag.protocol.pairing import MOST_BUCKETS, answer
from wirelag.protocol.reconcile import MOST_SYMBOLS
from wirelag.protocol.terms import second_round
from wirelag.protocol.unasked import Habit, habit_of, unasked
from wirelag.synopses.cache import ENTRY_BYTES, Cached
from wirelag.synopses.delay_sample import spared
from wirelag.synopses.reordering import with_order
from wirelag.synopses.symbols import SymbolSynopsis, enough
from wirelag.twopoint.spans import ALL, Cut

MEMORY: Final = 64
LATELY: Final = 8
MOST_HABITS: Final = 4096  # segments of a point
LEAST_BYTES: Final = 1 << 10  # per interval, however empty: the number of intervals is bounded too

_Place = tuple[str | None, str, int]  # segment, terms, and the interval's start


class History:
    """Intervals that the collector can ask about. Threads may share it."""

    def __init__(self, point: str, most_bytes: int, began_ns: int) -> None:
        self._point, self._most_bytes, self._began_ns = point, most_bytes, began_ns
        self._kept: OrderedDict[_Place, dict[str | None, Cached]] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0
        self._wanted: dict[tuple[str | None, str | None], int] = {}  # buckets, by segment and class
        self._block = 0  # block of MEMORY intervals for which they are wanted
        self._differed: dict[tuple[str | None, str | None], dict[int, int]] = {}  # by interval
        self._habits: dict[str | None, Habit] = {}  # of everything, by segment
        self.answered = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, part: CutPart) -> None:
        """Keep an interval of rda."""
        interval, terms = part.cut.interval, part.measured.terms
        classes = {None if tag == ALL else part.keys[tag]: cached for tag, cached in part.cut.synopses.items()}
        with self._lock:
            self._kept[part.measured.segment, terms_name(terms), interval.start_ns] = classes
            self.bytes += _bytes(classes)
            while self.bytes > self._most_bytes and self._kept:
                _, oldest = self._kept.popitem(last=False)
                self.bytes -= _bytes(oldest)

    def bound(self, part: CutPart) -> Cut:
        """The part's caches as buckets, as they are sent."""
        estimator, interval, synopses = part.measured.terms.estimator, part.cut.interval, {}
        assert second_round(estimator)
        for tag, cached in part.cut.synopses.items():
            key = part.measured.segment, None if tag == ALL else part.keys[tag]
            with self._lock:
                wanted = self._wanted.get(key) if self._block == _block(interval) else None
                if estimator.short:
                    wanted = self._symbols(key, interval)
            asked = replace(estimator, buckets=max(wanted or 0, estimator.buckets or 0) or None)
            numbers = asked.numbers(cached.ids)
            bound = asked.bind(cached, numbers)
            if isinstance(bound, SymbolSynopsis) and tag == ALL:
                bound = with_order(bound, cached, numbers)
                if (habit := self._habits.get(part.measured.segment)) is not None:
                    bound = replace(bound, unasked=unasked(bound, cached, numbers, interval, habit))
            synopses[tag] = bound
        return Cut(interval, synopses)

    def _symbols(self, key: tuple[str | None, str | None], interval: Interval) -> int | None:
        """Symbols that this interval needs; None if unknown."""
        lately_ns = interval.start_ns - LATELY * interval.length_ns
        known = {start_ns: size for start_ns, size in self._differed.get(key, {}).items() if start_ns >= lately_ns}
        habit = self._habits.get(key[0]) if key[1] is None else None
        if habit is not None and interval.start_ns < habit.until_ns:
            return enough(max([habit.difference, *known.values()]))
        if not known:
            self._differed.pop(key, None)
            return None
        self._differed[key] = known
        return enough(max(known.values()))

    def _want(self, ask: Message) -> None:
        """Remember how much was requested, and forget old requests: classes come and go."""
        lately_ns = ask.interval.start_ns - LATELY * ask.interval.length_ns
        with self._lock:
            self._differed = {key: known for key, known in self._differed.items() if max(known) >= lately_ns}
            for record in ask.records:
                if record.get("difference"):  # if only the order is requested there was none
                    known = self._differed.setdefault((ask.segment, record["class"]), {})
                    known[ask.interval.start_ns] = min(int(record["difference"]), MOST_SYMBOLS)
            block = _block(ask.interval)
            if block > self._block:
                self._wanted.clear()
                self._block = block
            for record in ask.records:
                if "buckets" in record and block == self._block:
                    key = ask.segment, record["class"]
                    self._wanted[key] = max(self._wanted.get(key, 0), min(int(record["buckets"]), MOST_BUCKETS))

    def _learn(self, ask: Message, classes: Mapping[str | None, Cached]) -> None:
        """Remember what would have made a question about everything needless."""
        estimator, last = ask.terms.estimator, self._habits.pop(ask.segment, None)
        cached = classes.get(None)
        if not second_round(estimator) or cached is None or len(self._habits) >= MOST_HABITS:
            return
        for record in ask.records:
            if record["class"] is None and "wanted" in record and record["cache_level"] <= cached.level:
                habit = habit_of(cached, spared(cached, estimator.tail), record, ask.interval, last)
                if habit is not None:
                    self._habits[ask.segment] = habit

    def answer(self, ask: Message) -> tuple[bytes, str]:
        """The reply to a question, with one record per record: a message's bytes, and its key."""
        start_ns = ask.interval.start_ns
        with self._lock:
            classes = self._kept.get((ask.segment, terms_name(ask.terms), start_ns))
        if classes is not None:
            self._want(ask)
            self._learn(ask, classes)
        records = tuple(self._record(ask, classes, record) for record in ask.records)
        answer = Message(
            "times", self._point, ask.segment, ask.interval, ask.terms, records=records, sent_ns=time.time_ns()
        )
        data = encode(answer)
        if len(data) > MOST_BYTES:
            records = tuple(_refused(record, f"{len(data)} bytes do not fit into a message") for record in ask.records)
            answer = replace(answer, records=records)
            data = encode(answer)
        if any("reason" in record for record in records):
            self.refused += 1
        else:
            self.answered += 1
        return data, answer.key

    def _record(
        self, ask: Message, classes: Mapping[str | None, Cached] | None, record: Mapping[str, Any]
    ) -> dict[str, Any]:
        estimator = ask.terms.estimator
        if not second_round(estimator):
            why = f"{estimator.name} keeps nothing that could be asked for"
        elif classes is not None:
            seen = classes.get(record["class"], Cached.empty(estimator.seed))  # a class without packets is empty
            try:
                return answer(estimator, seen, record)
            except ValueError as error:
                why = str(error)
        elif ask.interval.start_ns < self._began_ns:
            why = "the agent was restarted since"
        else:
            why = f"no longer kept: the limit for past intervals is {self._most_bytes >> 20} MiB"
        return _refused(record, why)


def _refused(record: Mapping[str, Any], why: str) -> dict[str, Any]:
    return {name: record[name] for name in ("start_ns", "end_ns", "name", "class")} | {"reason": why}


def _block(interval: Interval) -> int:
    return interval.start_ns // (MEMORY * max(1, interval.length_ns))


def _bytes(classes: Mapping[str | None, Cached]) -> int:
    return max(LEAST_BYTES, ENTRY_BYTES * sum(map(len, classes.values())))
