"""Many results of one series and length, by columns: quick to read, to add up, and small to store (packing.py).

Laws. A block has one row for a start, in order of time; where two are joined, the row that knows more stays. Sums are
those of tally.py: of the same rows, they are equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.collector.columns import LATER, MOMENTS, SINGLE
from wirelag.collector.tally import SUMS, Tally
from wirelag.stats.moments import Moments

Ints = npt.NDArray[np.signedinteger[Any]]
SETTLED_NS: Final = 600 * 10**9  # results are packed that long after the end of their block
LEAST: Final = 60  # rows of a new block: fewer stay as they are
ROWS: Final = 600  # intervals of the time that a block covers: ten minutes of seconds
NAMES: Final = (*SINGLE, *MOMENTS, *LATER)
_NONE: Final = np.empty(0, np.int64)
_EXACT: Final = 1 << 53
NOTHING: Final = Tally()  # it is never changed


def period_ns(length_ns: int) -> int:
    """The time that a block of results of this length covers; it begins at a multiple of it."""
    return ROWS * length_ns


def least_ns(rows: Block, most: int) -> int:
    """What begins before this is not among the latest `most` results, of which `rows` has the latest itself."""
    return rows.starts_ns[-most] if 0 < most <= len(rows) else 0


def knows_more(rank: int, tally: Tally, other_rank: int, other: Tally) -> bool:
    """Whether a result of an interval knows more than another: then that must not replace it."""
    return (rank, tally.loss_sent > 0) > (other_rank, other.loss_sent > 0)


@dataclass(slots=True)
class Block:
    """Results of one series and length."""

    starts_ns: list[int]
    ranks: list[int]
    columns: dict[str, list[Any]]  # of numbers and texts, by name
    ends: list[int]  # of each row's bins
    bins: Ints  # of any width: a week of minutes has millions
    weights: Ints

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, Tally]]) -> Block:
        """A block of start, rank and result, in order of time."""
        given = list(rows)
        tallies = [tally for _, _, tally in given]
        columns = {name: [getattr(one, name) for one in tallies] for name in (*SINGLE, *LATER)}
        columns |= {name: [getattr(one.moments, name) for one in tallies] for name in MOMENTS}
        ends = list(accumulate(len(one.bins) for one in tallies))
        return cls(
            [start_ns for start_ns, _, _ in given],
            [int(rank) for _, rank, _ in given],
            columns,
            ends,
            np.concatenate([_NONE, *(one.bins for one in tallies)]),
            np.concatenate([_NONE, *(one.weights for one in tallies)]),
        )

    @classmethod
    def joined(cls, blocks: Sequence[Block]) -> Block:
        """All rows of these, in order of time; of two of one time, the one that knows more, or else the later one."""
        some = [one for one in blocks if one.starts_ns]
        if len(some) == 1:
            return some[0]
        offsets = accumulate((len(one.bins) for one in some[:-1]), initial=0)
        whole = cls(
            [start_ns for one in some for start_ns in one.starts_ns],
            [rank for one in some for rank in one.ranks],
            {name: [value for one in some for value in one.columns[name]] for name in NAMES},
            [offset + end for one, offset in zip(some, offsets, strict=False) for end in one.ends],
            _one_of(one.bins for one in some),
            _one_of(one.weights for one in some),
        )
        starts = whole.starts_ns
        if all(a < b for a, b in pairwise(starts)):
            return whole
        knows = [(rank, lost > 0) for rank, lost in zip(whole.ranks, whole.columns["loss_sent"], strict=True)]
        best: dict[int, int] = {}
        for place, start_ns in enumerate(starts):
            if start_ns not in best or knows[place] >= knows[best[start_ns]]:
                best[start_ns] = place
        return whole.take([best[start_ns] for start_ns in sorted(best)])

    def __len__(self) -> int:
        return len(self.starts_ns)

    def take(self, places: Sequence[int]) -> Block:
        """These rows only."""
        parts = [self._place(place) for place in places]
        return Block(
            [self.starts_ns[place] for place in places],
            [self.ranks[place] for place in places],
            {name: [values[place] for place in places] for name, values in self.columns.items()},
            list(accumulate(part.stop - part.start for part in parts)),
            _one_of(self.bins[part] for part in parts),
            _one_of(self.weights[part] for part in parts),
        )

    def within(self, times_ns: tuple[int, int], most: int) -> Block:
        """Rows that begin within these times; the latest, if there are too many."""
        begin, end = (bisect_left(self.starts_ns, time_ns) for time_ns in times_ns)
        begin = max(begin, end - most)
        if begin >= end:
            return Block.joined([])
        if end - begin == len(self):
            return self
        bins = slice(self._place(begin).start, self.ends[end - 1])
        return Block(
            self.starts_ns[begin:end],
            self.ranks[begin:end],
            {name: values[begin:end] for name, values in self.columns.items()},
            [one - bins.start for one in self.ends[begin:end]],
            self.bins[bins],
            self.weights[bins],
        )

    def tally(self, place: int) -> Tally:
        """The result in a row."""
        values = self.columns
        part = self._place(place)
        return Tally(
            **{name: values[name][place] for name in (*SINGLE, *LATER)},
            moments=Moments(*[values[name][place] for name in MOMENTS]),
            bins=self.bins[part].astype(np.int64),
            weights=self.weights[part].astype(np.int64),
        )

    def rows(self) -> Iterable[tuple[int, int, Tally]]:
        """Start, rank and result of each row."""
        for place, (start_ns, rank) in enumerate(zip(self.starts_ns, self.ranks, strict=True)):
            yield start_ns, rank, self.tally(place)

    def sum(self, first: int, end: int) -> Tally:
        """The rows from `first` to before `end` added up, in order."""
        own = {name: values[first:end] for name, values in self.columns.items()}
        whole = Tally(**{name: sum(own[name], getattr(NOTHING, name)) for name in SUMS})
        whole.estimator = next((name for name in reversed(own["estimator"]) if name), "")
        whole.clock_error_ns = max(own["clock_error_ns"], default=0)
        whole.min_ns = min((one for one in own["min_ns"] if one is not None), default=None)
        whole.max_ns = max((one for one in own["max_ns"] if one is not None), default=None)
        for name in ("reordered", "duplicated"):
            known = [one for one, seen in zip(own[name], own["intervals"], strict=True) if seen]
            setattr(whole, name, None if not known or None in known else sum(known))
        whole.moments.add_all(zip(*(own[name] for name in MOMENTS), strict=True))
        part = slice(self._place(first).start, self._place(end - 1).stop) if end > first else slice(0)
        weights = self.weights[part]
        if int(weights.sum(dtype=np.float64)) < _EXACT:  # then so are sums of floats
            found = np.bincount(self.bins[part], weights).astype(np.int64)
        else:
            found = np.zeros(int(self.bins[part].max()) + 1, np.int64)
            np.add.at(found, self.bins[part], weights)
        whole.bins = np.flatnonzero(found)
        whole.weights = found[whole.bins]
        return whole

    def _place(self, place: int) -> slice:
        return slice(self.ends[place - 1] if place else 0, self.ends[place])


def in_few_bytes(values: Ints) -> Ints:
    """The same, in half the memory if they fit."""
    return values if len(values) and int(values.max()) >= 1 << 31 else values.astype(np.int32)


def _one_of(arrays: Iterable[Ints]) -> Ints:
    several = list(arrays)
    return np.concatenate(several) if several else _NONE
