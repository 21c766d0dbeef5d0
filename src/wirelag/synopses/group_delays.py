"""Delays of every group that fits a stated memory, and of heavy hitters beyond.

Guarantee: while the groups fit, each has all of its delays, and nothing depends on the order in which they came. Once
memory is full, the group with the fewest samples leaves for each that comes (Space-Saving: A. Metwally, D. Agrawal and
A. El Abbadi, *Efficient Computation of Frequent and Top-k Elements in Data Streams*, ICDT 2005), and its delays are
added to "other":

- a group with more samples than `floor`, the largest count that ever left, is kept;
- a kept group has its delays since it was kept last; at most `before` more samples of it are in "other";
- groups and "other" together are all samples, always.

How many groups have delays in "other" is estimated from 16,384 registers, within 1.6% in 95% of cases (HyperLogLog:
P. Flajolet, E. Fusy, O. Gandouet and F. Meunier, AofA 2007). Merging adds delays and bounds (P. Agarwal et al.,
*Mergeable Summaries*, PODS 2012).

Memory: `memory` bytes and never more, besides 170 KB. A group takes 224 bytes, and 32 for each bin of a leg that holds
delays; a twelfth of the memory finds them (kernels/groups.h).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from wirelag import _kernels
from wirelag.packets.grouping import OTHER, OTHER_KEY, By, Grouping
from wirelag.stats.distribution import BINS, WORDS, Distribution
from wirelag.synopses.samples import LEGS, SHARES, Figures, Samples

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.grouping import Ints
    from wirelag.stats.distributions import Distributions
    from wirelag.synopses.connections import Connections

    Legs: TypeAlias = tuple[Distributions, Distributions]

LEAST_MEMORY: Final = _kernels.GROUP_LEAST_BYTES
MOST_MEMORY: Final = _kernels.GROUP_MOST_BYTES
REGISTERS: Final = _kernels.GROUP_REGISTERS
_SUMS: Final = 8  # words
_KEY: Final = _kernels.GROUP_KEY_WORDS
_TAG, _COUNT, _BEFORE, _CELLS = _KEY, _KEY + 1, _KEY + 2, _KEY + 5  # words of a record; of the last the upper half
_SAMPLES: Final = _kernels.GROUP_RECORD_WORDS - len(LEGS) * _SUMS  # the first word of the sums of legs
AT_ONCE: Final = 4096  # groups that are read at once: their records take 1 MB


class Group(NamedTuple):
    """A group: its place in memory (0: "other"), its tag, its name, and how many samples may have left before."""

    place: int
    tag: int
    key: str
    before: int = 0
    words: Sequence[int] = ()  # what its name is made of


@dataclass(slots=True)
class GroupDelays(Grouping):
    """A grouping that keeps the delays of its groups."""

    memory: int = 256 << 20
    kernel: _kernels.Groups = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.kernel = _kernels.Groups(self.memory, self.key_words, self.name_words)

    def anew(self) -> GroupDelays:
        """The same grouping without delays."""
        return GroupDelays(self.by, self.ipv4_prefix, self.ipv6_prefix, self.most, memory=self.memory)

    def __reduce__(self) -> tuple[Any, ...]:
        import numpy as np

        places, kernel = self.places()[: len(self)], self.kernel
        records, other = self._records(places), np.empty(len(LEGS) * WORDS, np.uint64)
        ranks = np.empty(REGISTERS, np.uint8)
        kernel.other(other)
        kernel.ranks(ranks)
        saved = records.reshape(-1), *self._cells(places, records), other, ranks, kernel.floor, kernel.left
        return _saved, (self.by, self.ipv4_prefix, self.ipv6_prefix, self.most, self.memory, saved)

    def add(self, packets: PacketBatch, rows: Ints, legs: Ints, delays_ns: Ints, weights: Ints | None = None) -> Ints:
        """Add samples, and return the tag of each: a hash of its group's key."""
        import numpy as np

        tags = np.empty(len(rows), np.uint64)
        words = self.words(packets, rows, legs).reshape(-1)
        self.kernel.add(words, legs, delays_ns, np.empty(0, np.int64) if weights is None else weights, tags)
        return tags

    def count(self, packets: PacketBatch) -> None:
        """Count packets of one direction instead of samples."""
        import numpy as np

        rows = np.arange(len(packets))
        self.add(packets, rows, np.ones(len(rows), np.uint8), np.zeros(len(rows), np.int64))

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """How many samples each group has, the largest first."""
        import numpy as np

        return -np.sort(-self._words(_COUNT).astype(np.int64))

    def largest(self, most: int) -> Iterator[list[int]]:
        """The words of the groups with the most samples, the largest first."""
        import numpy as np

        places = self.places()[: len(self)]
        order = np.argsort(-self._words(_COUNT).astype(np.int64), kind="stable")
        for place in places[order[:most]]:
            yield self._records(place)[0, :_KEY].tolist()

    def few(self, most: int) -> Iterator[tuple[Group, Samples]]:
        """The groups with the most samples, in the order they came; the others are merged into "other"."""
        import numpy as np

        counts = self._words(_SAMPLES) + self._words(_SAMPLES + _SUMS)
        kept = set(np.argsort(-counts.astype(np.int64), kind="stable")[:most].tolist())
        others = Samples(OTHER)
        for i, group in enumerate(self.groups()):
            samples = self.samples(group)
            if i in kept:
                yield group, samples
            else:
                others.merge(samples)
        if others.distributions:
            yield Group(0, OTHER, OTHER_KEY), others

    @property
    def number(self) -> int:
        """How many groups there were; an estimate unless `complete`."""
        return len(self) + self.groups_in_other

    def merge(self, other: GroupDelays) -> None:
        """Add the delays of another."""
        self.kernel.merge(other.kernel)

    def __len__(self) -> int:
        return len(self.kernel)

    @property
    def bytes_used(self) -> int:
        """The memory that groups take so far, without what finds them."""
        return self.kernel.bytes_used

    @property
    def floor(self) -> int:
        """A group with more samples is kept."""
        return self.kernel.floor

    @property
    def complete(self) -> bool:
        """Whether every group has all of its delays."""
        return not self.kernel.left

    def groups(self) -> Iterator[Group]:
        """All groups in the order they came, then "other" if there is one."""
        return (self.group(place) for place in self.places().tolist())

    def places(self) -> npt.NDArray[np.uint32]:
        """The place of each group in the order they came, then 0 if there is "other"."""
        import numpy as np

        places = np.zeros(len(self) + (not self.complete), np.uint32)
        self.kernel.places(places[: len(self)])
        return places

    def group(self, place: int) -> Group:
        """The group at a place."""
        if not place:
            return Group(0, OTHER, OTHER_KEY)
        return next(self.some([place]))

    def _records(self, places: int | npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
        """A row for each of these groups."""
        import numpy as np

        wanted = np.atleast_1d(np.asarray(places, np.uint32))
        records = np.empty((len(wanted), _kernels.GROUP_RECORD_WORDS), np.uint64)
        self.kernel.records(wanted, records.reshape(-1))
        return records

    def _cells(self, places: int | npt.NDArray[np.uint32], records: npt.NDArray[np.uint64]) -> tuple[Ints, Ints, Ints]:
        """Leg * BINS + bin, weight and squares: those of one group after the other."""
        import numpy as np

        room = int((records[:, _CELLS] >> np.uint64(32)).sum())
        cells = np.empty(room, np.uint32), np.empty(room, np.uint64), np.empty(room, np.uint64)
        self.kernel.cells(np.atleast_1d(np.asarray(places, np.uint32)), *cells)
        return cells

    def delays(self, place: int) -> tuple[Distribution, Distribution]:
        """The delays of a group, or of "other", by leg."""
        import numpy as np

        if not place:
            memory = np.zeros(len(LEGS) * WORDS, np.uint64)
            self.kernel.other(memory)
            return Distribution(memory[:WORDS]), Distribution(memory[WORDS:])
        records = self._records(place)
        sums = records[0, _SAMPLES:].reshape(len(LEGS), _SUMS)
        where, *columns = self._cells(place, records)
        bins, held = where.astype(np.int64), np.stack(columns)
        edge = int(np.searchsorted(bins, BINS))
        return (
            Distribution.of_bins(bins[:edge], held[:, :edge], sums[0]),
            Distribution.of_bins(bins[edge:] - BINS, held[:, edge:], sums[1]),
        )

    def many(self) -> Iterator[tuple[slice, Legs]]:
        """The delays of all groups but "other" by leg, in the order of `places`, some thousands at once."""
        places = self.places()[: len(self)]
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            yield slice(start, start + len(some)), self._legs(some, self._records(some))

    def _legs(self, places: npt.NDArray[np.uint32], records: npt.NDArray[np.uint64]) -> Legs:
        import numpy as np

        from wirelag.stats.distributions import Distributions

        where, weights, _ = self._cells(places, records)
        owner = np.repeat(np.arange(len(places)), (records[:, _CELLS] >> np.uint64(32)).astype(np.int64))
        legs = []
        for leg in range(len(LEGS)):
            mine = where // BINS == leg
            sums = records[:, _SAMPLES + leg * _SUMS :][:, :_SUMS]
            bins = where[mine].astype(np.int64) - leg * BINS
            legs.append(Distributions.of_cells(sums, owner[mine], bins, weights[mine]))
        return legs[0], legs[1]

    def some(self, places: Sequence[int]) -> Iterator[Group]:
        """The groups at these places."""
        known, each = array("I", [place for place in places if place]), _kernels.GROUP_RECORD_WORDS
        records = _kernels.words(len(known) * each)
        self.kernel.records(known, records)
        starts = iter(range(0, len(records), each))
        for place in places:
            if place:
                words = records[(start := next(starts)) : start + _BEFORE + 1].tolist()
                yield Group(place, words[_TAG], self.name(words), words[_BEFORE], words[:_KEY])
            else:
                yield Group(0, OTHER, OTHER_KEY)

    def figures(self, places: Sequence[int], connections: Connections, threads: int) -> list[dict[str, Figures]]:
        """The figures of each leg of these groups, by how their delays vary between connections and over time."""
        wanted = array("I", places)
        found = _kernels.group_figures(self.kernel, connections.kernel, wanted, SHARES, threads)
        return [
            {name: Figures.told(one) for name, one in zip(LEGS, legs, strict=True) if one is not None} for legs in found
        ]

    def tags_and_before(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """The tag of each group, and how many samples it may have had before."""
        return self._words(_TAG), self._words(_BEFORE)

    def _words(self, word: int) -> npt.NDArray[np.uint64]:
        """One word of the records of all groups."""
        import numpy as np

        places, found = self.places()[: len(self)], np.empty(len(self), np.uint64)
        for start in range(0, len(places), AT_ONCE):
            found[start : start + AT_ONCE] = self._records(places[start : start + AT_ONCE])[:, word]
        return found

    def samples(self, group: Group) -> Samples:
        """The delays of a group as a synopsis."""
        found = Samples(group.tag)
        found.distributions = {leg: one for leg, one in enumerate(self.delays(group.place)) if one.samples}
        return found

    @property
    def groups_in_other(self) -> int:
        """How many groups have delays in "other", estimated."""
        import numpy as np

        ranks = np.empty(REGISTERS, np.uint8)
        self.kernel.ranks(ranks)
        return distinct(ranks)


def _saved(by: By, ipv4_prefix: int, ipv6_prefix: int, most: int, memory: int, saved: tuple[Any, ...]) -> GroupDelays:
    """The same groups again, from what they told."""
    found = GroupDelays(by, ipv4_prefix, ipv6_prefix, most, memory=memory)
    found.kernel.merge_saved(*saved)
    return found


def distinct(ranks: npt.NDArray[np.uint8]) -> int:
    """How many distinct values were registered: by empty registers while there are enough, else by all ranks."""
    import numpy as np

    empty = int(np.count_nonzero(ranks == 0))
    registers = len(ranks)
    raw = 0.7213 / (1 + 1.079 / registers) * registers**2 / float(np.exp2(-ranks.astype(np.float64)).sum())
    return round(registers * math.log(registers / empty) if empty and raw <= 2.5 * registers else raw)
