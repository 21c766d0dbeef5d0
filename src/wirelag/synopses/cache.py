"""Caches of packets: all packets of an interval, or the same share of them at every point.

Guarantee: a cache never exceeds its capacity, and two caches with the same seed keep the same packets up to the larger
of their levels: a coin of the id decides which packets are dropped, never the order of arrival. Memory: 16 bytes per
packet (docs/reference/crossing.md, "Caches"), and the words about it, if any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.codec import array_of, number_of
from wirelag.packets.batch import PacketBatch
from wirelag.packets.frames import WORDS, Frames, endpoints
from wirelag.packets.grouping import Grouping
from wirelag.packets.interval import Interval

LEAST_MEMORY: Final = 64 << 10  # of a class
ENTRY_BYTES: Final = 16
PLACE_BYTES: Final = 8  # where a packet is (frames.py)
HIGHEST: Final = 30  # highest level accepted from another point: 1 of 2^30 packets kept
CACHE: Final = 1  # purposes of coins

Ids = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]


_NO_IDS: Final = np.empty(0, np.uint64)
_NO_TIMES: Final = np.empty(0, np.int64)


def class_memory(memory: int, most: int) -> int:
    """The memory of one class: all of them together have as much again as everything."""
    return min(memory, max(LEAST_MEMORY, memory // (most + 1)))


@dataclass(frozen=True, slots=True)
class Cached:
    """The contents of a cache when it was cut, in order of arrival: a share of 2^-level of all packets."""

    ids: Ids
    times_ns: Times
    level: int = 0
    packets: int = 0  # all packets seen
    seed: int = 0
    about: Ids | None = None  # words about each entry; they stay at this point

    @classmethod
    def empty(cls, seed: int = 0) -> Cached:
        """Nothing seen."""
        return cls(_NO_IDS, _NO_TIMES, seed=seed)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def stands_for(self) -> int:
        """Number of packets that each entry stands for."""
        return 1 << self.level

    def at_level(self, level: int) -> Cached:
        """The entries that a cache of this level would have kept."""
        if level <= self.level:
            return self
        return self.only(survives(self.ids, self.seed, level), level)

    def at_most(self, capacity: int) -> Cached:
        """The entries that a cache of this capacity would have kept."""
        if len(self) <= capacity:
            return self
        level, kept = _kernels.at_most(self.ids, self.seed, self.level, capacity)
        return self.only(kept, level)

    def followed_by(self, other: Cached, capacity: int) -> Cached:
        """Both as one cache, this one's packets first."""
        mine, others = level(self, other)
        ids, times_ns = np.concatenate((mine.ids, others.ids)), np.concatenate((mine.times_ns, others.times_ns))
        known = [one.about for one in (mine, others) if one.about is not None]
        about = np.concatenate(known) if len(known) == 2 else None
        return Cached(ids, times_ns, mine.level, mine.packets + others.packets, self.seed, about).at_most(capacity)

    def only(self, kept: npt.NDArray[np.bool_], level: int | None = None) -> Cached:
        """Some of the entries, perhaps those of another level."""
        about = None if self.about is None else self.about[kept]
        level = self.level if level is None else level
        return Cached(self.ids[kept], self.times_ns[kept], level, self.packets, self.seed, about)

    def to_fields(self, prefix: str = "") -> dict[str, Any]:
        """Named numbers and arrays, as a synopsis travels."""
        return {f"{prefix}{name}": getattr(self, name) for name in ("ids", "times_ns", "level", "packets")}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], seed: int, prefix: str = "", most: int | None = None) -> Cached:
        """The inverse of `to_fields`; a ValueError if it holds more than `most`."""
        ids, times_ns = array_of(fields, f"{prefix}ids", np.uint64), array_of(fields, f"{prefix}times_ns", np.int64)
        level, packets = level_of(fields, f"{prefix}level"), number_of(fields, f"{prefix}packets")
        if len(ids) != len(times_ns) or len(ids) > packets or (most is not None and len(ids) > most):
            raise ValueError(f"{len(ids)} ids, {len(times_ns)} times, level {level}: not a cache of {packets} packets")
        return cls(ids, times_ns, level, packets, seed)


def level_of(fields: Mapping[str, Any], name: str) -> int:
    """Another point's level, or a ValueError: counts are shifted by it, so its bound is that of their size."""
    level = number_of(fields, name)
    if level > HIGHEST:
        raise ValueError(f"{name} is {level}, more than {HIGHEST}")
    return level


class About:
    """Words to keep about a packet: its place (frames.py) and, with `ends`, its endpoints."""

    def __init__(self, frames: Frames, ends: bool = False) -> None:
        self.frames, self._ends = frames, ends
        self.words = 1 + WORDS if ends else 1

    def of(self, packets: PacketBatch) -> Ids:
        """The words, a row for each packet."""
        places = self.frames.of(packets)[:, np.newaxis]
        return np.hstack((places, endpoints(packets))) if self._ends else places


class CacheMeter:
    """The cache at one point: all that `join` and `rda` keep of an interval, and the tail's sample of the others."""

    def __init__(self, capacity: int, seed: int, id_bits: int = 64, about: About | None = None) -> None:
        """Ids are cut to `id_bits` bits before any coin is tossed; `about` gives words to keep beside them."""
        self._about = about
        self._kernel = _kernels.Cache(capacity, seed, 0 if about is None else about.words)
        self._whole: PacketBatch | None = None  # all packets so far, if they last and fit: they are not copied
        self._capacity, self._seed = capacity, seed
        self._bits = None if id_bits == 64 else np.uint64((1 << id_bits) - 1)
        self._packets = 0

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Store ids and times."""
        if not self._packets and packets.lasts and len(packets) <= self._capacity:
            self._whole, self._packets = packets, len(packets)
            return
        if self._whole is not None:
            self._store(self._whole)
            self._whole = None
        self._store(packets)
        self._packets += len(packets)

    def _store(self, packets: PacketBatch) -> None:
        words = self._words(packets)
        about = None if words is None else words.astype(np.uint64, copy=False)
        self._kernel.observe(self._ids(packets), packets.time_ns, about)

    def _ids(self, packets: PacketBatch) -> Ids:
        return packets.packet_id if self._bits is None else packets.packet_id & self._bits

    def _words(self, packets: PacketBatch) -> Ids | None:
        return None if self._about is None else self._about.of(packets)

    def cut(self, interval: Interval) -> Cached:
        """The contents of the cache, which is then emptied."""
        level, packets, self._packets = self._kernel.level, self._packets, 0
        if self._whole is not None:
            whole, self._whole = self._whole, None
            return Cached(self._ids(whole), whole.time_ns, 0, packets, self._seed, self._words(whole))
        ids, times_ns, words = self._kernel.take()
        about = None if self._about is None else words.reshape(-1, self._about.words)
        return Cached(ids, times_ns, level, packets, self._seed, about)


def survives(ids: Ids, seed: int, level: int) -> npt.NDArray[np.bool_]:
    """Mask of the ids that a cache of this level keeps."""
    return np.ones(len(ids), bool) if level == 0 else _survive(_kernels.coins(ids, seed, CACHE), level)


def _survive(coins: Ids, level: int) -> npt.NDArray[np.bool_]:
    """The same of their coins, for a level above 0; there is none beyond the rarest coin."""
    return np.asarray(coins >> np.uint64(64 - level) == 0) if level <= 64 else np.zeros(len(coins), bool)


def level(up: Cached, down: Cached) -> tuple[Cached, Cached]:
    """Both at the larger of their levels, where they hold the same packets except lost ones."""
    highest = max(up.level, down.level)
    return up.at_level(highest), down.at_level(highest)


class Crossed(NamedTuple):
    """Packets that were seen at both points, and where each point keeps what it knows about them."""

    sent_ns: Times
    delays_ns: Times
    up: Ids  # words about all packets of a point,
    up_rows: npt.NDArray[np.uint32]  # and which of them these are
    down: Ids
    down_rows: npt.NDArray[np.uint32]
    stands_for: int

    @property
    def up_about(self) -> Ids:
        """The words that upstream keeps about each."""
        return self.up[self.up_rows]

    @property
    def down_about(self) -> Ids:
        """The same downstream."""
        return self.down[self.down_rows]

    def of(self, rows: slice | npt.NDArray[np.intp]) -> Crossed:
        """Some of the packets."""
        found = self._replace(sent_ns=self.sent_ns[rows], delays_ns=self.delays_ns[rows])
        return found._replace(up_rows=self.up_rows[rows], down_rows=self.down_rows[rows])

    def parts(self, most: int) -> Iterator[Crossed]:
        """The same in parts, each with at most this number of packets."""
        for start in range(0, len(self.delays_ns), most):
            yield self.of(slice(start, start + most))


CrossedSink: TypeAlias = Callable[[Crossed], None]


class Joined(NamedTuple):
    """Two lists of ids, joined by the rules for copies."""

    up_rows: npt.NDArray[np.uint32]  # rows of each pair, in order of arrival downstream
    down_rows: npt.NDArray[np.uint32]
    up_fate: npt.NDArray[np.uint8]  # fate of each entry: PAIRED, SINGLE or AMBIGUOUS
    down_fate: npt.NDArray[np.uint8]
    only_upstream: int
    only_downstream: int
    duplicated: int
    ambiguous: int
    reordered: int


PAIRED, SINGLE, AMBIGUOUS = 0, 1, 2


def join(up_ids: Ids, down_ids: Ids, cores: int = 1) -> Joined:
    """Which entries are the same packet, and the fate of the others."""
    return Joined(*_kernels.pair(up_ids, down_ids, cores))
