"""Two points in plain Python: coins, caches, copies, and the exact join of two caches.

The independent twin of `kernels/coin.h` and `kernels/cache.h`, and the tests' oracle for them. All follow
`docs/reference/crossing.md`, section by section, and not each other. Only clarity counts here.

A packet is (id, time_ns). Lists of packets are in order of arrival.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.oracles.hashing import MASK, mix
from tests.oracles.hashing import G as GOLDEN

Packet = tuple[int, int]

CACHE, LDA, FINECOMB, DELIMITER, CHECK, STRATUM, RATELESS = range(1, 8)
BANK, MINHASH = 16, 1024  # the first of many

# Coins


def coin(packet_id: int, seed: int, purpose: int) -> int:
    return mix(packet_id & MASK ^ mix(seed * GOLDEN + purpose))


def lz(x: int) -> int:
    """The number of leading zero bits of 64."""
    return 64 - x.bit_length()


def scaled(x: int, n: int) -> int:
    """A number below n."""
    return (x & 0xFFFFFFFF) * n >> 32


def signed(x: int) -> int:
    """64 bits as a signed number."""
    x &= MASK
    return x - 2**64 if x >> 63 else x


# Caches


@dataclass
class Cache:
    """At most `capacity` packets: all whose coin has `level` leading zeros, at the lowest possible level."""

    capacity: int
    seed: int = 0
    level: int = 0
    entries: list[Packet] = field(default_factory=list)

    def observe(self, packets: Iterable[Packet]) -> "Cache":
        for packet in packets:
            z = zeros(packet, self.seed)
            while len(self.entries) >= self.capacity and z >= self.level:
                self.rise()
            if z >= self.level:
                self.entries.append(packet)
        return self

    def rise(self) -> None:
        self.level += 1
        self.entries = above(self.entries, self.level, self.seed)


def zeros(packet: Packet, seed: int) -> int:
    return lz(coin(packet[0], seed, CACHE))


def above(entries: Iterable[Packet], level: int, seed: int) -> list[Packet]:
    return [packet for packet in entries if zeros(packet, seed) >= level]


def levelled(one: Cache, other: Cache) -> tuple[list[Packet], list[Packet]]:
    """The entries of both that either would have kept."""
    level = max(one.level, other.level)
    return above(one.entries, level, one.seed), above(other.entries, level, other.seed)


def added(one: Cache, other: Cache) -> Cache:
    """The cache of two successive intervals."""
    before, after = levelled(one, other)
    cache = Cache(one.capacity, one.seed, max(one.level, other.level), before + after)
    while len(cache.entries) > cache.capacity:
        cache.rise()
    return cache


# Copies


def copies(ids: Iterable[int]) -> list[int]:
    """For each packet, the number of earlier ones with its id."""
    seen: Counter[int] = Counter()
    result = []
    for packet_id in ids:
        result.append(seen[packet_id])
        seen[packet_id] += 1
    return result


def number(packet_id: int, copy: int) -> int:
    return packet_id if copy == 0 else mix(packet_id + copy * GOLDEN)


def numbers(entries: Sequence[Packet]) -> list[int]:
    """What buckets use instead of ids: practically unique at one point."""
    ids = [packet_id for packet_id, _ in entries]
    return [number(packet_id, copy) for packet_id, copy in zip(ids, copies(ids), strict=True)]


def numbered(entries: Sequence[Packet]) -> list[Packet]:
    """The entries with numbers instead of ids."""
    return [(x, time_ns) for x, (_, time_ns) in zip(numbers(entries), entries, strict=True)]


# Join


class Pair(NamedTuple):
    """One packet at both points: its places in the levelled caches, and its delay."""

    upstream: int
    downstream: int
    delay_ns: int


@dataclass
class Joined:
    """Two levelled caches, joined. Pairs are in order of arrival downstream."""

    pairs: list[Pair] = field(default_factory=list)
    only_upstream: int = 0
    only_downstream: int = 0
    duplicated: int = 0
    ambiguous: int = 0
    reordered: int = 0
    single_upstream: list[Packet] = field(default_factory=list)
    single_downstream: list[Packet] = field(default_factory=list)


def join(upstream: Sequence[Packet], downstream: Sequence[Packet]) -> Joined:
    there, here = places_of(upstream), places_of(downstream)
    joined = Joined()
    for packet_id in there.keys() | here.keys():
        a, b = len(there.get(packet_id, [])), len(here.get(packet_id, []))
        joined.only_upstream += max(0, a - b)
        joined.only_downstream += max(0, b - a)
        if a > 0 and b > 0 and a != b:
            joined.ambiguous += min(a, b)
            joined.duplicated += max(0, b - a)
        if a == b:
            for i, j in zip(there[packet_id], here[packet_id], strict=True):
                joined.pairs.append(Pair(i, j, signed(downstream[j][1] - upstream[i][1])))
    joined.pairs.sort(key=lambda pair: pair.downstream)
    joined.reordered = reordered(joined.pairs)
    joined.single_upstream = [packet for packet in upstream if packet[0] not in here]
    joined.single_downstream = [packet for packet in downstream if packet[0] not in there]
    return joined


def places_of(entries: Sequence[Packet]) -> dict[int, list[int]]:
    result: dict[int, list[int]] = {}
    for place, (packet_id, _) in enumerate(entries):
        result.setdefault(packet_id, []).append(place)
    return result


def reordered(pairs: Sequence[Pair]) -> int:
    """RFC 4737: the number of packets that came after one sent later."""
    largest, count = -1, 0
    for pair in pairs:
        count += pair.upstream < largest
        largest = max(largest, pair.upstream)
    return count


# Intervals


@dataclass
class Crossing:
    """The figures of the packets sent in one interval (and of unsent ones, by arrival)."""

    level: int
    delays_ns: list[int]
    lost: int
    only_downstream: int
    duplicated: int
    ambiguous: int
    reordered: int
    undecided: int  # single, and the next interval's caches keep too few packets to decide


def crossings(intervals: Sequence[tuple[Cache, Cache]], reach: int = 1, ahead_ns: int = 1 << 62) -> list[Crossing]:
    """Join each interval (upstream, downstream); look for single packets in the next ones at the other point.

    Search as soon as an interval is complete, in the `reach` ones before it, oldest first. A packet that is single
    downstream may also have been sent in a later interval, if a clock is ahead.
    """
    levels = [max(upstream.level, downstream.level) for upstream, downstream in intervals]
    joins = [join(*levelled(upstream, downstream)) for upstream, downstream in intervals]
    result = [
        Crossing(
            level,
            [pair.delay_ns for pair in joined.pairs],
            joined.only_upstream,
            joined.only_downstream,
            joined.duplicated,
            joined.ambiguous,
            joined.reordered,
            0,
        )
        for level, joined in zip(levels, joins, strict=True)
    ]

    def carry(i: int, j: int) -> None:
        seed, level = intervals[i][0].seed, max(levels[i], levels[j])
        sent = above(joins[i].single_upstream, level, seed)
        came = above(joins[j].single_downstream, level, seed)
        carried = join(sent, came)
        real = [pair for pair in carried.pairs if pair.delay_ns >= -ahead_ns]
        unreal = [pair for pair in carried.pairs if pair.delay_ns < -ahead_ns]
        undecided = len(joins[i].single_upstream) - len(sent)
        now, then = result[i], result[j]
        now.delays_ns += [pair.delay_ns for pair in real]
        now.undecided += undecided
        now.lost -= undecided + len(sent) - carried.only_upstream - len(unreal)
        now.ambiguous += carried.ambiguous
        now.reordered += carried.reordered
        then.only_downstream -= len(came) - carried.only_downstream - len(unreal)
        then.duplicated += carried.duplicated
        early, late = {pair.upstream for pair in unreal}, {pair.downstream for pair in unreal}
        alone, others = set(carried.single_upstream), set(carried.single_downstream)
        joins[i].single_upstream = [packet for n, packet in enumerate(sent) if packet in alone or n in early]
        joins[j].single_downstream = [packet for n, packet in enumerate(came) if packet in others or n in late]

    for later in range(len(joins)):
        for earlier in range(max(0, later - reach), later):
            carry(earlier, later)
            carry(later, earlier)
    return result
