"""Rateless symbols on the wire: the difference between two points, in 8 bytes per symbol.

Law: a symbol is one word: the XOR of 44 bits of the numbers, the XOR of 16 bits of their checks, and 4 bits of their
count. Ids cut to 44 bits work as whole ones do; of n packets, d of which differ, about n d / 2^44 share their id with
a packet that does not differ, and count as ambiguous, never as anything else. A 16-bit check lets a wrong number pass
about once in 1,500 differences of any size; then its symbols do not become empty. A difference is decoded when all
symbols are empty, so a wrong number would have to pass in every symbol that contains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.codec import array_of, number_of
from wirelag.stats.row_sums import lowered, raised
from wirelag.synopses.cache import Cached, level_of

NUMBER_BITS: Final = 44
CHECK_BITS: Final = 16
COUNT_BITS: Final = 4
NUMBERS: Final = np.uint64((1 << NUMBER_BITS) - 1)
LOW: Final = np.uint64((1 << 32) - 1)  # distinguishes the packets of an interval
WORD_BYTES: Final = 8
MOST_SYMBOLS: Final = 1 << 20  # of one point and class
MOST_CHECKED: Final = 16  # packets whose order is checked
MOST_UNASKED: Final = 256  # packets whose times a point tells unasked
FIRST: Final = 64  # most symbols if the size of the difference is unknown

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]
_LOOKED_AT: Final = 1 << 14  # symbols used to estimate the size of a difference
_CHECKS: Final = np.uint64((1 << CHECK_BITS) - 1)
_COUNTS: Final = np.uint64((1 << COUNT_BITS) - 1)
_CHECK_PLACE: Final = np.uint64(NUMBER_BITS)
_COUNT_PLACE: Final = np.uint64(NUMBER_BITS + CHECK_BITS)


def numbers_of(ids: Words) -> Words:
    """The numbers of packets and of their copies; the number of the first copy is its id."""
    return np.asarray(_kernels.number_copies(ids)) & NUMBERS


def places_of(numbers: Words, wanted: Words) -> tuple[Rows, Rows, Rows]:
    """Rows sorted by the low bits of their numbers; and for each wanted number, the range of its rows."""
    few, low = np.unique(wanted), numbers & LOW
    places = np.minimum(np.searchsorted(few, low), max(0, len(few) - 1))
    rows = np.flatnonzero(few[places] == low) if len(few) else np.empty(0, np.int64)  # in order of arrival
    rows = rows[np.argsort(low[rows], kind="stable")]
    return rows, np.searchsorted(low[rows], wanted, "left"), np.searchsorted(low[rows], wanted, "right")


def in_words(cells: Words) -> Words:
    """Encode symbols (ids, check, count) as words."""
    ids, checks, counts = cells.reshape(-1, 3).T
    return np.asarray((ids & NUMBERS) | (checks & _CHECKS) << _CHECK_PLACE | (counts & _COUNTS) << _COUNT_PLACE)


def symbols_of(numbers: Words, first: int, end: int, seed: int) -> Words:
    """Symbols `first` to `end` - 1, as words."""
    if end <= _kernels.FIRST_SYMBOLS:
        return in_words(_kernels.rateless_first(numbers, end, seed))[first:]
    encoder = _kernels.RatelessEncoder(numbers, seed)
    encoder.symbols(first)
    return in_words(encoder.symbols(end - first))


def less(down: Words, up: Words) -> Words:
    """The difference of words, as symbols (ids, check, count)."""
    apart = down ^ up
    counts = (down >> _COUNT_PLACE) - (up >> _COUNT_PLACE) & _COUNTS
    cells = np.empty(3 * len(apart), np.uint64)
    cells[0::3], cells[1::3], cells[2::3] = apart & NUMBERS, apart >> _CHECK_PLACE & _CHECKS, counts
    return cells


def decoder(seed: int) -> _kernels.RatelessDecoder:
    """A decoder of differences of words."""
    return _kernels.RatelessDecoder(seed, CHECK_BITS, COUNT_BITS)


def enough(difference: int) -> int:
    """Symbols needed for a difference of this size: it decodes from these nine times out of ten."""
    return math.ceil(1.36 * difference + 2 * math.sqrt(difference)) + 4


def likely(apart: Words) -> int:
    """Estimate a difference that did not decode: symbol i is empty with probability exp(-2 d / (i + 2))."""
    cells = apart.reshape(-1, 3)[:_LOOKED_AT]
    empty = max(1, int((~cells.any(axis=1)).sum()))
    places = np.arange(len(cells)) + 2.0
    low, high = 0.0, 1.0
    while np.exp(-2 * high / places).sum() > empty:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if np.exp(-2 * middle / places).sum() > empty else (low, middle)
    return math.ceil(high)


@dataclass(frozen=True, slots=True)
class Unasked:
    """Times that a point tells before it is asked (protocol/unasked.py): packets at the edges, and those `before`."""

    numbers: Words
    times_ns: Times
    before_ns: Times | None

    def to_fields(self) -> dict[str, Any]:
        """Named arrays, as a synopsis travels."""
        order = {} if self.before_ns is None else {"before_ns": self.before_ns}
        return {"edge_ids": self.numbers, "edge_times_ns": self.times_ns, **order}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], before: int) -> Unasked | None:
        """The inverse of `to_fields`; None if there is nothing. `before`: packets that came before checked ones."""
        if "edge_ids" not in fields:
            return None
        numbers, times_ns = array_of(fields, "edge_ids", np.uint64), array_of(fields, "edge_times_ns", np.int64)
        before_ns = array_of(fields, "before_ns", np.int64) if "before_ns" in fields else None
        are_whole = len(numbers) == len(times_ns) and (before_ns is None or len(before_ns) == before)
        if not are_whole or len(numbers) > MOST_UNASKED:
            raise ValueError(f"{len(numbers)} packets and {len(times_ns)} times told unasked")
        return cls(numbers, times_ns, before_ns)

    def times_of(self, numbers: Words) -> Times | None:
        """The times of these packets; None if one of them is not told."""
        return _kernels.looked_up(self.numbers, self.times_ns, numbers)

    def times_before(self, before: Words, wanted: Words) -> Times | None:
        """The times of these packets among those `before`; None if one of them is not told."""
        return None if self.before_ns is None else _kernels.looked_up(before, self.before_ns, wanted)


@dataclass(frozen=True, slots=True)
class SymbolSynopsis:
    """The symbols of one interval at one point, rows for mean and deviation, and the tail's sample."""

    words: Words
    rows: Words  # count and sum of each row
    entries: int
    level: int
    tail: Cached
    before: Words = field(default_factory=lambda: np.empty(0, np.uint64))  # for the order of packets (reordering.py)
    unasked: Unasked | None = None

    @property
    def packets(self) -> int:
        """All packets seen."""
        return self.tail.packets

    def in_rows(self, rows: int) -> SymbolSynopsis:
        """The same in fewer rows, if its own are a multiple: rows follow the order of coins, so that they add up."""
        return replace(self, rows=self.rows.reshape(rows, -1, 2).sum(axis=1).reshape(-1))

    def to_fields(self) -> dict[str, Any]:
        """Named numbers and arrays, as a synopsis travels."""
        counts, sums = self.rows[0::2], self.rows[1::2]
        rows = {"row_counts": counts, **lowered("row_sums", sums, counts, self.tail.times_ns)}
        about = {"entries": self.entries, "cache_level": self.level}
        order = {"before": self.before} if len(self.before) else {}
        told = {} if self.unasked is None else self.unasked.to_fields()
        return {"symbols": self.words, **rows, **about, **self.tail.to_fields("tail_"), **order, **told}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], rows: int, seed: int, tail: int) -> SymbolSynopsis:
        """The inverse of `to_fields`; a ValueError if the number of rows differs, or the tail is longer."""
        counts = array_of(fields, "row_counts", np.uint64)
        sums = raised("row_sums", fields, counts)
        if len(counts) != rows:
            raise ValueError(f"{len(counts)} rows, not {rows}")
        words = array_of(fields, "symbols", np.uint64)
        before = array_of(fields, "before", np.uint64) if "before" in fields else np.empty(0, np.uint64)
        sample, entries = Cached.from_fields(fields, seed, "tail_", tail), number_of(fields, "entries")
        if len(words) > MOST_SYMBOLS or len(before) > MOST_CHECKED or entries > sample.packets:
            raise ValueError(
                f"{len(words)} symbols and {len(before)} checked packets of {entries} kept, {sample.packets} in all"
            )
        pairs = np.empty(2 * len(counts), np.uint64)
        pairs[0::2], pairs[1::2] = counts, sums
        unasked = Unasked.from_fields(fields, len(before))
        return cls(words, pairs, entries, level_of(fields, "cache_level"), sample, before, unasked)
