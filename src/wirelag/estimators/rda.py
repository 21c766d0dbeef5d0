"""One-way delay with an exact mean under loss and reordering, from a synopsis as large as the difference.

Guarantee: once the difference between the two points' packets is decoded, the mean is that of all packets seen at both,
exact to the nanosecond; lost, duplicated and in-flight packets are known one by one. If it is not decoded, the mean is
over the buckets without a difference, and the report says so. Memory: 16 bytes per packet of the interval, at most
`memory` (beyond that, both points keep the same share); on the wire some 30 bytes per packet that differs.

Fu, Barlet-Ros and Li, "Every Timestamp Counts: Accurate Tracking of Network Latencies using Reconcilable Difference
Aggregator", ToN 2018. The default is three banks with a check, not the paper's two without: see docs/concepts/rda.md.
Rateless symbols after Yang, Gilad and Alizadeh, "Practical Rateless Set Reconciliation", SIGCOMM 2024.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.codec import Fields, number_of, packed_size
from wirelag.estimators.protocol import Capabilities
from wirelag.report import Report
from wirelag.stats.moments import Moments
from wirelag.stats.row_sums import Deviation, Rows
from wirelag.synopses.buckets import gathered, less, spread
from wirelag.synopses.cache import ENTRY_BYTES, PAIRED, SINGLE, Cached, CacheMeter, Joined, class_memory, join, level_of
from wirelag.synopses.crossing import Crossing, joined
from wirelag.synopses.delay_sample import DelaySample, spared
from wirelag.synopses.symbols import FIRST, NUMBER_BITS, SymbolSynopsis, numbers_of, symbols_of

NAME: Final = "rda"
STRATA: Final = 24 * 81 * 3  # words
BUCKET_WIRE_BYTES: Final = 22  # ids, check, count and sum, packed
LEAST_WIRE_BYTES: Final = 48 << 10  # strata and the fewest buckets: fewer packets are sent as they are
DIFFERENCE_BYTES: Final = 30  # on the wire, per packet that only one point saw
SENT_ROWS: Final = 256  # rows beside the symbols of an agent: the deviation is within 3% in half of all intervals
ATTEMPTS: Final = 3  # attempts to decode, each with twice as many buckets
SYMBOLS: Final = 128  # symbols at first; then half as many again

BUCKET: Final = ("bucket_ids", "bucket_checks", "bucket_counts", "bucket_sums")
SYMBOL: Final = BUCKET[:3]
ROW: Final = ("row_counts", "row_sums")

Words = npt.NDArray[np.uint64]
_NONE: Final = np.empty(0, np.uint64)


# ---- messages between the points ----


@dataclass(frozen=True, slots=True)
class Ask:
    """A question of upstream: `about` an interval, its `strata`, `buckets`, `symbols`, `times`, or the `whole`."""

    what: str
    level: int = 0  # level of the caches: both points use this share of packets
    count: int = 0  # number of buckets or symbols
    numbers: Words = field(default_factory=lambda: _NONE)  # packets seen downstream only, whose times are wanted,
    ids: Words = field(default_factory=lambda: _NONE)  # and ids, of all whose copies the times are wanted

    def to_fields(self) -> dict[str, Any]:
        """The question as it travels."""
        plain = {"what": self.what, "level": self.level, "count": self.count}
        return {**plain, "numbers": self.numbers, "ids": self.ids}


class Responder:
    """The downstream side of a conversation about one interval: it replies to questions."""

    def __init__(self, estimator: Rda, cached: Cached) -> None:
        self._of = estimator
        self._cached = cached
        self._numbers = estimator.numbers(cached.ids)
        self._symbols: _kernels.RatelessEncoder | None = None

    def answer(self, ask: Ask) -> dict[str, Any]:
        """The fields of the reply."""
        if ask.level > self._cached.level:
            self._cached = self._cached.at_level(ask.level)
            self._numbers = self._of.numbers(self._cached.ids)
        cached, of = self._cached, self._of
        if ask.what == "about":
            return {"level": cached.level, "packets": cached.packets, "entries": len(cached)}
        if ask.what == "strata":
            return spread(strata(self._numbers, of.seed), SYMBOL)
        if ask.what == "buckets":
            return {**spread(of.filled(self._numbers, cached.times_ns, ask.count), BUCKET), **self._tail()}
        if ask.what == "symbols":
            first = self._symbols is None
            self._symbols = self._symbols or _kernels.RatelessEncoder(self._numbers, of.seed)
            symbols = spread(self._symbols.symbols(ask.count), SYMBOL)
            if not first:
                return symbols
            rows = spread(of.row_sums(self._numbers, cached.times_ns), ROW)
            return {**symbols, **rows, **self._tail()}
        if ask.what == "times":
            entries = copies_of(cached, self._numbers, ask.numbers, ask.ids)
            return {"ids": entries.ids, "times_ns": entries.times_ns}
        if ask.what == "whole":
            return cached.to_fields()
        raise ValueError(f"unknown question {ask.what!r}")

    def _tail(self) -> dict[str, Any]:
        return self._cached.at_most(self._of.tail).to_fields("tail_") if self._of.tail else {}


def strata(numbers: Words, seed: int) -> Words:
    """A sketch from which the size of a difference is estimated."""
    words = np.zeros(STRATA, np.uint64)
    _kernels.strata_fill(numbers, words, seed)
    return words


def copies_of(cached: Cached, own: Words, numbers: Words, ids: Words) -> Cached:
    """All entries with a wanted id, or with the id of a wanted number."""
    wanted = np.union1d(ids, cached.ids[np.isin(own, numbers)])
    return cached.only(np.isin(cached.ids, wanted))


# ---- the estimator ----


@dataclass(frozen=True, slots=True)
class RdaSynopsis:
    """The buckets of one interval at one point, made when it was cut: for points that cannot exchange messages."""

    buckets: Words
    entries: int
    level: int
    tail: Cached

    @property
    def packets(self) -> int:
        """All packets seen."""
        return self.tail.packets

    def to_fields(self) -> dict[str, Any]:
        """Named numbers and arrays, as a synopsis travels."""
        about = {"entries": self.entries, "cache_level": self.level}
        return {**spread(self.buckets, BUCKET), **about, **self.tail.to_fields("tail_")}


@dataclass(frozen=True)
class Decoded:
    """The difference of two points: numbers seen only upstream (-1) or only downstream (1), and the undecoded rest."""

    numbers: Words
    sides: npt.NDArray[np.int64]
    complete: bool
    left: Words  # undecoded rest of the difference, bucket by bucket

    @cached_property
    def upstream(self) -> Words:
        """Numbers seen only upstream."""
        return self.numbers[self.sides < 0]

    @cached_property
    def downstream(self) -> Words:
        """Numbers seen only downstream."""
        return self.numbers[self.sides > 0]


@dataclass(frozen=True, slots=True)
class Rda:
    """The estimator. `buckets` in total, or as many as the difference needs (late binding, the default)."""

    banks: int = 3
    buckets: int | None = None
    check: bool = True
    rateless: bool = False
    short: bool = False  # 44-bit ids, and symbols instead of buckets, where points cannot exchange messages
    cache_assisted: bool = True
    rows: int = 1024  # rows beside rateless symbols, for the deviation
    deviation: Deviation = "rows"
    tail: int = 2048
    memory: int = 512 << 20
    seed: int = 0

    name: ClassVar[str] = NAME
    points: ClassVar[tuple[str, ...]] = ("upstream", "downstream")
    can: ClassVar[Capabilities] = Capabilities(second_round=True)

    @property
    def bytes(self) -> int:
        """The memory of a meter."""
        return self.memory

    def of_class(self, most: int) -> Rda:
        """The estimator of one class, with its part of the memory."""
        return replace(self, memory=class_memory(self.memory, most))

    def for_agent(self, rows: int | None) -> Rda:
        """The same, with symbols unless the number of buckets was chosen."""
        return self if self.buckets else replace(self, short=True, rows=rows or SENT_ROWS)

    def cost(self, packets: int, loss: float) -> tuple[int, int]:
        """Bytes of a synopsis, and bytes sent."""
        whole = ENTRY_BYTES * packets
        return whole, min(whole, LEAST_WIRE_BYTES + round(DIFFERENCE_BYTES * packets * loss))

    def meter(self, point: str) -> CacheMeter:
        """A fresh meter for one point; buckets are made once their number is known."""
        return CacheMeter(max(1, self.memory // 2 // ENTRY_BYTES), self.seed, NUMBER_BITS if self.short else 64)

    def numbers(self, ids: Words) -> Words:
        """The numbers of packets and of their copies."""
        return numbers_of(ids) if self.short else _kernels.number_copies(ids)

    def estimate(self, *synopses: Cached) -> Report:
        """The report of one interval's caches."""
        return self.cross(*synopses).report(NAME)

    def cross(self, up: Cached, down: Cached) -> Crossing:
        """Run the conversation about an interval, and count the bytes that it would send."""
        talk, responder, wire_bytes = self.converse(up), Responder(self, down), 0
        ask = next(talk)
        while True:
            answer = responder.answer(ask)
            wire_bytes += packed_size(ask.to_fields()) + packed_size(answer)
            try:
                ask = talk.send(answer)
            except StopIteration as end:
                crossing: Crossing = end.value
                crossing.wire_bytes = wire_bytes
                return crossing

    def converse(self, up: Cached) -> Generator[Ask, Fields, Crossing]:
        """The upstream side of a conversation about an interval: yields questions, gets replies, returns a crossing."""
        return (yield from self._by_symbols(up) if self.rateless else self._by_buckets(up))

    def _by_buckets(self, up: Cached) -> Generator[Ask, Fields, Crossing]:
        about = self._about((yield Ask("about", up.level)))
        up = up.at_level(about["level"])
        own = self.numbers(up.ids)
        if not self.buckets and self._small(about["entries"], LEAST_WIRE_BYTES):
            return (yield from self._whole(up))
        told = _of_length((yield Ask("strata", up.level)), SYMBOL, STRATA // 3)
        apart = less(gathered(told, SYMBOL), strata(own, self.seed), 3)
        difference = _kernels.strata_estimate(apart, self.seed)
        each = math.ceil((self.buckets or cells(difference)) / self.banks)
        for _ in range(1 if self.buckets else ATTEMPTS):
            if not self.buckets and each * self.banks * BUCKET_WIRE_BYTES > ENTRY_BYTES * about["entries"]:
                return (yield from self._whole(up))
            answer = _of_length((yield Ask("buckets", up.level, each)), BUCKET, each * self.banks)
            ups, downs = self.filled(own, up.times_ns, each), gathered(answer, BUCKET)
            decoded = self.decode(ups, downs, own if self.cache_assisted else _NONE)
            if decoded.complete:
                break
            each *= 2
        mine, theirs = yield from self._ask_times(up, own, decoded, about)
        crossing = self.repaired(ups, downs, decoded, mine, theirs, self._sample(up, answer))
        return _finished(crossing, up, about, {"estimated_difference": difference})

    def _by_symbols(self, up: Cached) -> Generator[Ask, Fields, Crossing]:
        about = self._about((yield Ask("about", up.level)))
        up = up.at_level(about["level"])
        if self._small(about["entries"], 10 * self.rows):
            return (yield from self._whole(up))
        answer = first = _of_length((yield Ask("symbols", up.level, SYMBOLS)), SYMBOL, SYMBOLS)
        _of_length(first, ROW, self.rows)
        own = self.numbers(up.ids)
        encoder, decoder = _kernels.RatelessEncoder(own, self.seed), _kernels.RatelessDecoder(self.seed)
        while not decoder.add(less(gathered(answer, SYMBOL), encoder.symbols(len(answer[SYMBOL[0]])), 3)):
            if decoder.symbols > len(up) + about["entries"]:
                return (yield from self._whole(up))
            more = max(SYMBOLS, decoder.symbols // 2)
            answer = _of_length((yield Ask("symbols", up.level, more)), SYMBOL, more)
        numbers, sides = decoder.found()
        decoded = Decoded(numbers, sides, True, _NONE)
        mine, theirs = yield from self._ask_times(up, own, decoded, about)
        ups, downs = self.row_sums(own, up.times_ns), gathered(first, ROW)
        crossing = self.from_rows(ups, downs, decoded, mine, theirs, self._sample(up, first))
        return _finished(crossing, up, about, {"symbols": decoder.symbols})

    def _ask_times(
        self, up: Cached, own: Words, decoded: Decoded, about: Fields
    ) -> Generator[Ask, Fields, tuple[Cached, Cached]]:
        """All entries at both points with ids that differ."""
        mine = copies_of(up, own, decoded.upstream, _NONE)
        times = yield Ask("times", up.level, numbers=decoded.downstream, ids=_elsewhere_too(mine, decoded))
        theirs = Cached.from_fields({**times, "level": up.level, "packets": about["packets"]}, self.seed)
        return copies_of(up, own, decoded.upstream, np.unique(theirs.ids)), theirs

    def _sample(self, up: Cached, answer: Fields) -> tuple[DelaySample, int]:
        """The delays of the tail's sample, and its level."""
        if not self.tail:
            return DelaySample.empty(), up.level
        down = Cached.from_fields(answer, self.seed, "tail_")
        return DelaySample.between(up, down), max(up.level, down.level)

    def _about(self, about: Fields) -> Fields:
        """The other point's description of its cache; a ValueError if impossible, because memory depends on it."""
        level, entries, packets = (about[name] for name in ("level", "entries", "packets"))
        if not (0 <= level <= 65 and 0 <= entries <= self.memory // 2 // ENTRY_BYTES and entries <= packets):
            raise ValueError(f"the other point cannot have {entries} of {packets} packets at level {level}")
        return about

    def _small(self, entries: int, least_bytes: int) -> bool:
        """Whether the packets themselves take fewer bytes than the smallest exchange with the tail's sample."""
        return ENTRY_BYTES * entries < least_bytes + 12 * min(self.tail, entries)

    def _whole(self, up: Cached) -> Generator[Ask, Fields, Crossing]:
        """Fetch downstream's whole cache, if that takes fewer bytes than the difference."""
        crossing = joined(up, Cached.from_fields((yield Ask("whole", up.level)), self.seed))
        crossing.reordered = None  # unknown after decoding a difference
        crossing.details |= {"decoded": True, "difference": None}
        return crossing

    # ---- buckets ----

    def filled(self, numbers: Words, times_ns: npt.NDArray[np.int64], each: int) -> Words:
        """Buckets, `each` per bank, filled with these packets."""
        words = np.zeros(self.banks * each * 4, np.uint64)
        _kernels.rda_fill(numbers, times_ns, words, self.banks, self.seed)
        return words

    def row_sums(self, numbers: Words, times_ns: npt.NDArray[np.int64]) -> Words:
        """Rows for the deviation, beside rateless symbols."""
        words = np.zeros(2 * self.rows, np.uint64)
        _kernels.lda(numbers, times_ns, words, self.rows, (0,), self.seed)
        return words

    def decode(self, ups: Words, downs: Words, own: Words = _NONE) -> Decoded:
        """Decode the packets that only one of the points saw."""
        left = less(downs, ups, 4)
        numbers, sides, complete = _kernels.rda_decode(left, self.banks, self.seed, self.check, own)
        return Decoded(numbers, sides, complete, left)

    def repaired(
        self, ups: Words, downs: Words, decoded: Decoded, mine: Cached, theirs: Cached, sample: tuple[DelaySample, int]
    ) -> Crossing:
        """The crossing after the packets that differ (all copies of their ids) are removed from the buckets."""
        usable = ~decoded.left.reshape(-1, 3).any(axis=1)
        each = len(ups) // 4 // self.banks
        found = join(mine.ids, theirs.ids)
        up_rest, down_rest = (
            words.reshape(-1, 4) - self.filled(*self._apart(entries, fates), each).reshape(-1, 4)
            for words, entries, fates in ((ups, mine, found.up_fate), (downs, theirs, found.down_fate))
        )
        usable &= up_rest[:, 2] == down_rest[:, 2]
        counts = up_rest[:, 2].copy()
        rows = Rows.difference(up_rest[:, 3], down_rest[:, 3], counts, usable, self.banks, sample[0].median_ns)
        return self._summed(rows, decoded, mine, theirs, sample, found)

    def from_rows(
        self, ups: Words, downs: Words, decoded: Decoded, mine: Cached, theirs: Cached, sample: tuple[DelaySample, int]
    ) -> Crossing:
        """The same from rows; if not all is decoded, from rows without a decoded number."""
        found = join(mine.ids, theirs.ids)
        up, down = (
            (self.numbers(entries.ids), entries.times_ns, fates)
            for entries, fates in ((mine, found.up_fate), (theirs, found.down_fate))
        )
        base_ns = sample[0].median_ns
        counts, sums_ns, usable = _kernels.rows_apart(ups, downs, up, down, base_ns & 2**64 - 1, self.seed)
        if not decoded.complete:
            usable &= self.row_sums(decoded.numbers, np.zeros(len(decoded.numbers), np.int64))[0::2] == 0
        rows = Rows(counts.reshape(1, -1), sums_ns.reshape(1, -1), usable.reshape(1, -1), base_ns)
        return self._summed(rows, decoded, mine, theirs, sample, found)

    def _summed(
        self,
        rows: Rows,
        decoded: Decoded,
        mine: Cached,
        theirs: Cached,
        sample: tuple[DelaySample, int],
        found: Joined,
    ) -> Crossing:
        variance = rows.variance_ns2(self.deviation)
        banks = len(rows.counts)
        if decoded.complete:  # every bank holds every packet once: the first is exact
            rows = rows.first()
            used, sum_ns = rows.used, rows.sum_ns
        else:  # a packet may be in several usable buckets, or in none
            used = math.ceil(rows.used / banks)
            sum_ns = round(rows.sum_ns * used / rows.used) if rows.used else 0
        crossing = Crossing(
            moments=Moments.of(used, sum_ns, variance, used),
            tail=sample[0],
            tail_level=sample[1],
            details={"decoded": decoded.complete, "difference": len(decoded.numbers)},
        )
        if decoded.complete:
            _count(crossing, mine, theirs, found)
        return crossing

    def _apart(self, entries: Cached, fates: npt.NDArray[np.uint8]) -> tuple[Words, npt.NDArray[np.int64]]:
        """Numbers and times of the packets to remove: all that are not paired."""
        out = fates != PAIRED
        return self.numbers(entries.ids)[out], entries.times_ns[out]

    # ---- points that cannot exchange messages ----

    def bind(self, cached: Cached, numbers: Words | None = None) -> RdaSynopsis | SymbolSynopsis:
        """Buckets or symbols, in a number fixed beforehand; `numbers` are the cache's, if they are known."""
        numbers = self.numbers(cached.ids) if numbers is None else numbers
        if self.short:
            words = symbols_of(numbers, 0, self.buckets or min(FIRST, 8 + len(cached)), self.seed)
            rows = self.row_sums(numbers, cached.times_ns)
            return SymbolSynopsis(words, rows, len(cached), cached.level, spared(cached, self.tail))
        each = math.ceil((self.buckets or cells(0)) / self.banks)
        tail = cached.at_most(self.tail)
        return RdaSynopsis(self.filled(numbers, cached.times_ns, each), len(cached), cached.level, tail)

    def synopsis(self, fields: Mapping[str, Any]) -> RdaSynopsis | SymbolSynopsis:
        """The inverse of `to_fields`."""
        if self.short:
            return SymbolSynopsis.from_fields(fields, self.rows, self.seed, self.tail)
        buckets = gathered(fields, BUCKET)
        if not len(buckets) or len(buckets) % (4 * self.banks):
            raise ValueError(f"{len(buckets) // 4} buckets do not make {self.banks} banks")
        tail, entries = Cached.from_fields(fields, self.seed, "tail_", self.tail), number_of(fields, "entries")
        if entries > tail.packets:
            raise ValueError(f"{entries} packets kept of {tail.packets}")
        return RdaSynopsis(buckets, entries, level_of(fields, "cache_level"), tail)

    def cross_bound(
        self, up: RdaSynopsis, down: RdaSynopsis, mine: Cached | None = None, theirs: Cached | None = None
    ) -> tuple[Crossing, Decoded]:
        """The crossing from buckets alone; exact once both points have sent the times of the packets that differ."""
        decoded = self.decode(up.buckets, down.buckets)
        sample = DelaySample.between(up.tail, down.tail), max(up.tail.level, down.tail.level)
        if mine is not None and theirs is not None:
            crossing = self.repaired(up.buckets, down.buckets, decoded, mine, theirs, sample)
        else:
            untouched = less(down.buckets, up.buckets, 4)
            asked = Decoded(decoded.numbers, decoded.sides, not len(decoded.numbers) and decoded.complete, untouched)
            nothing = Cached.empty(self.seed)
            crossing = self.repaired(up.buckets, down.buckets, asked, nothing, nothing, sample)
            crossing.details["decoded"] = decoded.complete
            if decoded.complete:
                crossing.only_upstream = len(decoded.upstream) << up.level
                crossing.only_downstream = len(decoded.downstream) << up.level
                crossing.single_up = crossing.single_down = None
        crossing.sent, crossing.received = up.packets, down.packets
        crossing.wire_bytes = packed_size(down.to_fields())
        stand_for(crossing, up.packets, down.packets, up.level)
        return crossing, decoded


def _finished(crossing: Crossing, up: Cached, about: Fields, details: dict[str, Any]) -> Crossing:
    crossing.sent, crossing.received = up.packets, about["packets"]
    stand_for(crossing, up.packets, about["packets"], up.level)
    crossing.details |= details
    return crossing


def stand_for(crossing: Crossing, sent: int, received: int, level: int) -> None:
    """Scale the used packets to their share; if not all decoded, to all packets that both points can have seen."""
    moments = crossing.moments
    weight = moments.used << level if crossing.details["decoded"] else min(sent, received)
    variance = moments.squares_ns2 / moments.known if moments.known else None
    crossing.moments = Moments.of(moments.used, moments.sum_ns, variance, weight)
    crossing.details["share"] = 2.0**-level


def cells(difference: int) -> int:
    """Buckets needed for a difference of about this size."""
    return max(1023, math.ceil(1.8 * difference) + 96)


def likely_difference(left: Words, banks: int) -> int:
    """Estimate a difference that did not decode, from the share of empty buckets (linear counting)."""
    full = left.reshape(banks, -1, 3).any(axis=2)
    empty = max(1, int((~full).sum()))
    return round(-int(full.shape[1]) * math.log(empty / full.size))


def _of_length(answer: Fields, names: tuple[str, ...], length: int) -> Fields:
    """The reply, if it has as many values as requested; else a ValueError."""
    for name in names:
        if len(answer[name]) != length:
            raise ValueError(f"the other point sent {len(answer[name])} {name} instead of {length}")
    return answer


def _elsewhere_too(mine: Cached, decoded: Decoded) -> Words:
    """Ids that differ only in the number of copies: unless copy 0 is seen only here, downstream has some."""
    return np.setdiff1d(mine.ids, decoded.upstream)


def _count(crossing: Crossing, mine: Cached, theirs: Cached, found: Joined) -> None:
    """Count the packets that the points do not have in common."""
    each = mine.stands_for
    crossing.only_upstream, crossing.only_downstream = found.only_upstream * each, found.only_downstream * each
    crossing.duplicated, crossing.ambiguous = found.duplicated * each, found.ambiguous * each
    crossing.single_up, crossing.single_down = (
        mine.only(found.up_fate == SINGLE),
        theirs.only(found.down_fate == SINGLE),
    )
