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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import OTHER, OTHER_KEY, Grouping, Ints
from wirelag.stats.distribution import BINS, WORDS, Distribution
from wirelag.synopses.samples import LEGS, Samples

LEAST_MEMORY: Final = _kernels.GROUP_LEAST_BYTES
MOST_MEMORY: Final = _kernels.GROUP_MOST_BYTES
REGISTERS: Final = _kernels.GROUP_REGISTERS
_SUMS: Final = 8  # words
_KEY: Final = _kernels.GROUP_KEY_WORDS
_NO_WEIGHTS: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Group:
    """A group: its place in memory (0: "other"), its tag, its name, and how many samples may have left before."""

    place: int
    tag: int
    key: str
    before: int = 0


@dataclass(slots=True)
class GroupDelays(Grouping):
    """A grouping that keeps the delays of its groups."""

    memory: int = 256 << 20
    _kernel: _kernels.Groups = field(init=False, repr=False)
    _room: tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64], npt.NDArray[np.uint64]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._kernel = _kernels.Groups(self.memory, self.key_words)
        self._room = np.empty(2 * BINS, np.uint32), np.empty(2 * BINS, np.uint64), np.empty(2 * BINS, np.uint64)

    def anew(self) -> GroupDelays:
        """The same grouping without delays."""
        return GroupDelays(self.by, self.ipv4_prefix, self.ipv6_prefix, self.most, memory=self.memory)

    def add(self, packets: PacketBatch, rows: Ints, legs: Ints, delays_ns: Ints, weights: Ints | None = None) -> Ints:
        """Add samples, and return the tag of each: a hash of its group's key."""
        tags = np.empty(len(rows), np.uint64)
        words = self.words(packets, rows, legs).reshape(-1)
        self._kernel.add(words, legs, delays_ns, _NO_WEIGHTS if weights is None else weights, tags)
        return tags

    def count(self, packets: PacketBatch) -> None:
        """Count packets of one direction instead of samples."""
        rows = np.arange(len(packets))
        self.add(packets, rows, np.ones(len(rows), np.uint8), np.zeros(len(rows), np.int64))

    def largest(self, most: int) -> Iterator[list[int]]:
        """The words of the groups with the most samples, the largest first."""
        places = self.places()[: len(self)]
        counts = np.array([self._record(int(place))[_KEY + 1] for place in places], np.int64)
        for place in places[np.argsort(-counts, kind="stable")[:most]]:
            yield self._record(int(place))[:_KEY].tolist()

    def few(self, most: int) -> Iterator[tuple[str, Samples]]:
        """The groups with the most samples, in the order they came; the others are merged into "other"."""
        groups = list(self.groups())
        counts = np.array([sum(one.samples for one in self.delays(group.place)) for group in groups], np.int64)
        kept = {int(i) for i in np.argsort(-np.where([not group.place for group in groups], 0, counts))[:most]}
        others = Samples(OTHER)
        for i, group in enumerate(groups):
            samples = self.samples(group)
            if i in kept and group.place:
                yield group.key, samples
            else:
                others.merge(samples)
        if others.distributions:
            yield OTHER_KEY, others

    @property
    def number(self) -> int:
        """How many groups there were; an estimate unless `complete`."""
        return len(self) + self.groups_in_other

    def merge(self, other: GroupDelays) -> None:
        """Add the delays of another."""
        self._kernel.merge(other._kernel)

    def __len__(self) -> int:
        return len(self._kernel)

    @property
    def bytes_used(self) -> int:
        """The memory that groups take so far, without what finds them."""
        return self._kernel.bytes_used

    @property
    def floor(self) -> int:
        """A group with more samples is kept."""
        return self._kernel.floor

    @property
    def complete(self) -> bool:
        """Whether every group has all of its delays."""
        return not self._kernel.left

    def groups(self) -> Iterator[Group]:
        """All groups in the order they came, then "other" if there is one."""
        return (self.group(place) for place in self.places().tolist())

    def places(self) -> npt.NDArray[np.uint32]:
        """The place of each group in the order they came, then 0 if there is "other"."""
        places = np.zeros(len(self) + (not self.complete), np.uint32)
        self._kernel.places(places[: len(self)])
        return places

    def group(self, place: int) -> Group:
        """The group at a place."""
        if not place:
            return Group(0, OTHER, OTHER_KEY)
        record = self._record(place)
        return Group(place, int(record[_KEY]), self.name(record[:_KEY].tolist()), int(record[_KEY + 2]))

    def _record(self, place: int) -> npt.NDArray[np.uint64]:
        record = np.empty(_kernels.GROUP_RECORD_WORDS, np.uint64)
        self._kernel.record(place, record)
        return record

    def delays(self, place: int) -> tuple[Distribution, Distribution]:
        """The delays of a group, or of "other", by leg."""
        if not place:
            memory = np.zeros(len(LEGS) * WORDS, np.uint64)
            self._kernel.other(memory)
            return Distribution(memory[:WORDS]), Distribution(memory[WORDS:])
        sums = self._record(place)[-len(LEGS) * _SUMS :].reshape(len(LEGS), _SUMS)
        count = self._kernel.cells(place, *self._room)
        order = np.argsort(self._room[0][:count])
        bins = self._room[0][order].astype(np.int64)
        columns = np.stack([column[order] for column in self._room[1:]])
        edge = int(np.searchsorted(bins, BINS))
        return (
            Distribution.of_bins(bins[:edge], columns[:, :edge], sums[0]),
            Distribution.of_bins(bins[edge:] - BINS, columns[:, edge:], sums[1]),
        )

    def tags_and_before(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """The tag of each group, and how many samples it may have had before."""
        found = np.empty((len(self), 2), np.uint64)
        for i, place in enumerate(self.places()[: len(self)].tolist()):
            found[i] = self._record(place)[[_KEY, _KEY + 2]]
        return found[:, 0], found[:, 1]

    def samples(self, group: Group) -> Samples:
        """The delays of a group as a synopsis."""
        found = Samples(group.tag)
        found.distributions = {leg: one for leg, one in enumerate(self.delays(group.place)) if one.samples}
        return found

    @property
    def groups_in_other(self) -> int:
        """How many groups have delays in "other", estimated."""
        ranks = np.empty(REGISTERS, np.uint8)
        self._kernel.ranks(ranks)
        return distinct(ranks)


def distinct(ranks: npt.NDArray[np.uint8]) -> int:
    """How many distinct values were registered: by empty registers while there are enough, else by all ranks."""
    empty = int(np.count_nonzero(ranks == 0))
    registers = len(ranks)
    raw = 0.7213 / (1 + 1.079 / registers) * registers**2 / float(np.exp2(-ranks.astype(np.float64)).sum())
    return round(registers * math.log(registers / empty) if empty and raw <= 2.5 * registers else raw)
