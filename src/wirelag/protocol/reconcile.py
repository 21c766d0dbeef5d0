"""The difference between two points, by symbols: questions about one class of one interval, and replies. No I/O.

Laws. A point is asked only for what it alone has: more symbols until the difference decodes, then the times of the
packets that it alone saw, then all copies of packets of which the points saw different numbers. If symbols would take
more bytes than the packets themselves, or decoded wrongly, the packets are requested. Questions follow from the
messages received; a reply that does not fit counts as none. What a point tells unasked (unasked.py) is not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from wirelag.codec import array_of, number_of
from wirelag.estimators.rda import Decoded, Rda, stand_for
from wirelag.stats.moments import Moments
from wirelag.synopses.cache import Cached
from wirelag.synopses.crossing import Crossing, joined
from wirelag.synopses.delay_sample import DelaySample
from wirelag.synopses.reordering import Looking, Times, times_of
from wirelag.synopses.symbols import (
    CHECK_BITS,
    LOW,
    NUMBER_BITS,
    NUMBERS,
    WORD_BYTES,
    SymbolSynopsis,
    Words,
    decoder,
    enough,
    less,
    likely,
    numbers_of,
    places_of,
    symbols_of,
)
from wirelag.synopses.symbols import MOST_SYMBOLS as MOST_SYMBOLS  # for agents

UP, DOWN = 0, 1
MOST_WHOLE: Final = 1 << 20  # packets that one reply may hold
GROWN: Final = 3  # times that more symbols are requested
_PACKET_BYTES: Final = 10  # id and time
_NONE: Final = np.empty(0, np.uint64)
UNSEEN: Final = "it did not see a packet that it is asked about"  # so the decoded difference is wrong

Fields = Mapping[str, Any]
Record = dict[str, Any]


# ---- a point's replies ----


def answer_symbols(estimator: Rda, cached: Cached, ask: Fields) -> Record:
    """The reply of a point that kept these packets; a ValueError if it cannot reply."""
    cached = cached.at_level(int(ask["cache_level"]))
    if "symbols" in ask:
        after, end = int(ask["after"]), min(int(ask["symbols"]), MOST_SYMBOLS)
        if not after:
            return replace(estimator, buckets=max(1, end)).bind(cached).to_fields()
        return {"symbols": symbols_of(numbers_of(cached.ids), after, max(after, end), estimator.seed)}
    if "wanted" in ask:
        numbers = numbers_of(cached.ids)
        record = _times(cached, numbers, array_of(ask, "wanted", np.uint64))
        if "order" in ask:
            record["order_ns"] = times_of(numbers, cached.times_ns, array_of(ask, "order", np.uint64))
        return record
    if "ids" in ask:
        cached = cached.only(np.isin(cached.ids, array_of(ask, "ids", np.uint64)))
    return cached.to_fields()


def _times(cached: Cached, numbers: Words, wanted: Words) -> Record:
    """The time of each wanted number; and all packets whose id has copies, or whose number equals another's."""
    rows, begin, end = places_of(numbers, wanted)
    if (begin == end).any():
        raise ValueError(UNSEEN)
    copied = cached.ids[numbers != cached.ids]  # only for copies the number differs from the id
    several = (end - begin > 1) | np.isin(cached.ids[rows[begin]], copied)
    record: Record = {"times_ns": cached.times_ns[rows[begin]]}
    if several.any():
        found = np.concatenate([rows[a:b] for a, b in zip(begin[several], end[several], strict=True)])
        every = np.isin(cached.ids, cached.ids[found])
        copies = {"of_ids": cached.ids[every], "of_times_ns": cached.times_ns[every]}
        record |= {"asked": np.flatnonzero(several).astype(np.uint64), **copies}
    return record


# ---- validation ----


def check_ask(ask: Fields) -> None:
    """Raise a ValueError if the question cannot be answered."""
    if "symbols" in ask:
        if not number_of(ask, "after") <= number_of(ask, "symbols") <= MOST_SYMBOLS:
            raise ValueError(f"asks for symbols that end before they begin, or for more than {MOST_SYMBOLS:,}")
    elif "wanted" in ask:
        array_of(ask, "wanted", np.uint64)
        number_of(ask, "difference")
        if "order" in ask:
            array_of(ask, "order", np.uint64)
    elif "ids" in ask:
        array_of(ask, "ids", np.uint64)
    elif ask.get("whole") is not True:
        raise ValueError("asks for nothing")


def check_answer(estimator: Rda, record: Fields) -> None:
    """Raise a ValueError if this cannot be a reply to any question."""
    if "row_sums" in record:
        estimator.synopsis(record)
    elif "symbols" in record:
        if len(array_of(record, "symbols", np.uint64)) > MOST_SYMBOLS:
            raise ValueError(f"has more than {MOST_SYMBOLS:,} symbols")
    elif "ids" in record:
        if len(Cached.from_fields(record, estimator.seed)) > MOST_WHOLE:
            raise ValueError(f"has more than {MOST_WHOLE:,} packets")
    else:
        times_ns = array_of(record, "times_ns", np.int64)
        if "order_ns" in record:
            array_of(record, "order_ns", np.int64)
        if "asked" in record and (array_of(record, "asked", np.uint64) >= len(times_ns)).any():
            raise ValueError("has copies of packets that are not in it")


def _order_ns(ask: Fields, record: Fields) -> Times | None:
    """The times that show the order; None if not asked for, or if the other point does not support it."""
    if "order" not in ask or "order_ns" not in record:
        return None
    times_ns = array_of(record, "order_ns", np.int64)
    if len(times_ns) != len(array_of(ask, "order", np.uint64)):
        raise ValueError("it is about other packets than requested")
    return times_ns


# ---- the questions ----


@dataclass(slots=True)
class Told:
    """Packets of one point that differ: those that it alone has, and all of ids that have copies."""

    single: Cached
    copies: Cached


@dataclass(slots=True)
class Reconciling:
    """One class of an interval: the messages of both points about it, upstream first."""

    estimator: Rda
    synopses: list[SymbolSynopsis]
    decoded: Decoded | None = None
    grown: int = 0
    misled: bool = False  # the decoded difference is wrong
    _more: bool = False  # symbols were asked for: the points must be told how many packets differ
    _told: list[Told | None] = field(default_factory=lambda: [None, None])
    _alike: list[bool] = field(default_factory=lambda: [False, False])  # sent its copies of the other's packets
    _whole: list[Cached | None] = field(default_factory=lambda: [None, None])
    _looking: Looking | None = None  # checks whether packets overtook each other
    _order_ns: Times | None = None
    _between: tuple[Cached, Cached, DelaySample] | None = None  # the last samples, and the delays of both

    @property
    def level(self) -> int:
        """The level of the point that kept less; an empty cache counts as complete."""
        up, down = self.synopses
        return max(up.level, down.level)

    @property
    def untimed(self) -> bool:
        """Whether the packets that differ are known, but not their times."""
        return self.decoded is not None and bool(len(self.decoded.numbers)) and not self._timed

    @property
    def _timed(self) -> bool:
        return None not in self._told and (all(self._alike) or not len(self._copied()))

    def ask(self) -> dict[int, Record]:
        """The questions for each side that would improve the crossing."""
        for side, one in enumerate(self.synopses):
            if not one.packets:
                self.synopses[side] = replace(one, level=self.level)
        if lower := self._lower():
            count = max(len(one.words) for one in self.synopses)
            return {side: {"symbols": count, "after": 0} for side in lower}
        if None not in self._whole:
            return {}
        if self.misled:
            self.decoded, self._told, self._alike = None, [None, None], [False, False]
            return self._ask_whole()
        more = {} if self.decoded is not None else self._decode()
        if self.decoded is None:
            return more
        return self._ask_order(self.decoded, {} if self._timed else self._ask_times(self.decoded))

    def crossing(self) -> Crossing:
        """The best crossing possible now; `ask` first."""
        if self._lower():
            reason = "the points kept different shares of their packets: give them more memory"
            return Crossing(self.synopses[UP].packets, self.synopses[DOWN].packets, reason=reason)
        up, down = self._whole
        if up is not None and down is not None:
            return self._joined(up, down)
        return self._sampled() if self.decoded is None else self._repaired()

    def _lower(self) -> list[int]:
        """The points that kept more than the other."""
        highest = self.level
        return [side for side, one in enumerate(self.synopses) if one.level < highest]

    def _decode(self) -> dict[int, Record]:
        up, down = (one.words for one in self.synopses)
        count, longest = min(len(up), len(down)), max(len(up), len(down))
        decoding = decoder(self.estimator.seed)
        if count and decoding.add_words(up, down, NUMBER_BITS, CHECK_BITS):
            self.decoded = Decoded(*decoding.found(), True, _NONE)
            none = Told(*[Cached.empty(self.estimator.seed)] * 2)
            for side, numbers in enumerate((self.decoded.upstream, self.decoded.downstream)):
                self._told[side] = self._unasked(side, numbers) if len(numbers) else none
            return {}
        if count < longest:
            return {int(len(down) < len(up)): {"symbols": longest, "after": count}}
        wish, entries = max(count + count // 2, enough(likely(less(down, up)))), [one.entries for one in self.synopses]
        if self.grown >= GROWN or wish > MOST_SYMBOLS or 2 * WORD_BYTES * wish > _PACKET_BYTES * sum(entries):
            return self._ask_whole()
        self.grown += 1
        return {side: {"symbols": wish, "after": count} for side in (UP, DOWN)}

    def _unasked(self, side: int, numbers: Words) -> Told | None:
        """The times of the packets that a point alone has, if it has told them all."""
        told = None if self._more else self.synopses[side].unasked
        times_ns = None if told is None else told.times_of(numbers)
        if times_ns is None:
            return None
        return Told(self._cached(side, numbers, times_ns), Cached.empty(self.estimator.seed))

    def _ask_whole(self) -> dict[int, Record]:
        most = max(one.entries for one in self.synopses)
        return {} if most > MOST_WHOLE else {side: {"whole": True} for side in (UP, DOWN) if self._whole[side] is None}

    def _ask_times(self, decoded: Decoded) -> dict[int, Record]:
        if None not in self._told:
            return {side: {"ids": self._copied()} for side, alike in enumerate(self._alike) if not alike}
        about = {"difference": len(decoded.numbers)}
        both = enumerate((decoded.upstream, decoded.downstream))
        return {side: {"wanted": numbers & LOW, **about} for side, numbers in both if self._told[side] is None}

    def _ask_order(self, decoded: Decoded, asks: dict[int, Record]) -> dict[int, Record]:
        """Add the question that upstream gets once: the times of the packets that arrived before the checked ones."""
        if self._looking is None:
            up, down = self.synopses
            self._looking = Looking.at(up.tail, down.tail, down.before, decoded.downstream)
        if self._order_ns is None and not len(self._looking.wanted):
            self._order_ns = np.empty(0, np.int64)
        up = self.synopses[UP]
        if self._order_ns is None and up.unasked is not None and self._told[UP] is not None:
            self._order_ns = up.unasked.times_before(up.before, self._looking.wanted)
        if self._order_ns is None and "ids" not in asks.get(UP, {}):
            about = {"wanted": decoded.upstream & LOW, "difference": len(decoded.numbers)}
            asks[UP] = about | asks.get(UP, {}) | {"order": self._looking.wanted}
        return asks

    def _copied(self) -> Words:
        """Ids that have copies at one point, or a number equal to another's."""
        ids = [told.copies.ids for told in self._told if told is not None and len(told.copies)]
        return np.unique(np.concatenate(ids)) if ids else _NONE

    # ---- replies ----

    def read(self, side: int, ask: Fields, record: Fields) -> Any:
        """Parse a reply if it fits the question; else a ValueError. Changes nothing yet."""
        one, seed = self.synopses[side], self.estimator.seed
        if "symbols" in ask:
            if not ask["after"]:
                return self.estimator.synopsis(record)
            words = array_of(record, "symbols", np.uint64)
            if len(words) != ask["symbols"] - ask["after"] or len(one.words) != ask["after"]:
                raise ValueError("it holds other symbols than requested")
            return replace(one, words=np.concatenate((one.words, words)))
        if "wanted" not in ask:
            return Cached.from_fields(record, seed)
        decoded = self.decoded
        assert decoded is not None
        numbers, times_ns = (decoded.upstream, decoded.downstream)[side], array_of(record, "times_ns", np.int64)
        if len(times_ns) != len(numbers):
            raise ValueError("it is about other packets than requested")
        if "asked" not in record:
            return Told(self._cached(side, numbers, times_ns), Cached.empty(seed)), _order_ns(ask, record)
        copied = np.zeros(len(numbers), bool)
        copied[array_of(record, "asked", np.uint64)] = True
        ids, of_ns = array_of(record, "of_ids", np.uint64), array_of(record, "of_times_ns", np.int64)
        copies = self._cached(side, ids, of_ns)
        if len(ids) != len(of_ns) or not np.isin(numbers[copied], numbers_of(ids)).all():
            raise ValueError("it is about other packets than requested")
        return Told(self._cached(side, numbers[~copied], times_ns[~copied]), copies), _order_ns(ask, record)

    def take(self, side: int, ask: Fields, found: Any) -> None:
        """Apply what `read` returned."""
        if "symbols" in ask:
            self.synopses[side], self._more = found, True
        elif "wanted" in ask:
            self._told[side], order_ns = found
            if "order" in ask:
                self._looking = self._looking if order_ns is not None else Looking.nothing()
                self._order_ns = order_ns
        elif "ids" in ask:
            self._alike[side], told = True, self._told[side]
            assert told is not None
            self._told[side] = replace(told, copies=self._cached(side, found.ids & NUMBERS, found.times_ns))
        else:
            self._whole[side] = found

    def _cached(self, side: int, ids: Words, times_ns: Any) -> Cached:
        one = self.synopses[side]
        return Cached(ids, times_ns, one.level, one.packets, self.estimator.seed)

    # ---- crossings ----

    def _repaired(self) -> Crossing:
        """From all rows once the times are known; before that, from rows without a difference."""
        decoded, (up, down), seed = self.decoded, self.synopses, self.estimator.seed
        assert decoded is not None
        if self._timed:
            told, exact = (one for one in self._told if one is not None), decoded
            mine, theirs = (self._together(side, one) for side, one in enumerate(told))
        else:
            mine, theirs = Cached.empty(seed), Cached.empty(seed)
            exact = replace(decoded, complete=False)
        sample = self._sample()
        crossing = self.estimator.from_rows(up.rows, down.rows, exact, mine, theirs, sample)
        crossing.details["decoded"] = True
        if self._looking is not None and self._order_ns is not None:
            crossing.order = self._looking.order(self._order_ns)
        if not exact.complete:
            crossing.only_upstream = len(decoded.upstream) << self.level
            crossing.only_downstream = len(decoded.downstream) << self.level
        return self._finished(crossing)

    def _together(self, side: int, told: Told) -> Cached:
        if not len(told.copies):
            return self._cached(side, told.single.ids, told.single.times_ns)
        both = (told.copies, told.single)
        ids, times_ns = (np.concatenate([getattr(each, name) for each in both]) for name in ("ids", "times_ns"))
        return self._cached(side, ids, times_ns)

    def _sampled(self) -> Crossing:
        """The crossing from the sample, because too much differs, as far as is known."""
        tail, level = self._sample()
        details = {"decoded": False, "difference": None}
        delays = Moments.of_delays(tail.delays_ns, 1)
        return self._finished(Crossing(moments=delays, tail=tail, tail_level=level, details=details))

    def _joined(self, up: Cached, down: Cached) -> Crossing:
        crossing = joined(up, down)
        crossing.reordered = None  # unknown after decoding a difference
        numbers, synopsis = numbers_of(up.ids), self.synopses[DOWN]
        early = np.setdiff1d(numbers_of(down.ids), numbers)
        looking = Looking.at(self.synopses[UP].tail, synopsis.tail, synopsis.before, early)
        crossing.order = looking.order(times_of(numbers, up.times_ns, looking.wanted))
        crossing.details |= {"decoded": True, "difference": None}
        return crossing

    def _sample(self) -> tuple[DelaySample, int]:
        up, down = (one.tail for one in self.synopses)
        if self._between is None or self._between[0] is not up or self._between[1] is not down:
            self._between = up, down, DelaySample.between(up, down)
        return self._between[2], max(up.level, down.level)

    def _finished(self, crossing: Crossing) -> Crossing:
        up, down = self.synopses
        crossing.sent, crossing.received = up.packets, down.packets
        stand_for(crossing, up.packets, down.packets, self.level)
        return crossing
