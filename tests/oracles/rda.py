"""The reconcilable difference aggregator in plain Python: buckets that reveal which packets only one point has.

The independent twin of `kernels/rda.h`, and the tests' oracle for it. Both follow only `docs/reference/crossing.md`.
After Fu and others, *Every Timestamp Counts*, and Eppstein and others, *What's the Difference?*.

Cells are the buckets of all banks, bank by bank. `simple` is the paper's sRDA: one array without banks. Entries are
those of a levelled cache; buckets hold their numbers.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import xor
from typing import NamedTuple

from tests.oracles import lda
from tests.oracles.hashing import MASK
from tests.oracles.join import (
    BANK,
    CHECK,
    MINHASH,
    STRATUM,
    Packet,
    coin,
    lz,
    numbered,
    numbers,
    scaled,
    signed,
)

STRATA, STRATUM_BANKS, STRATUM_BUCKETS = 24, 3, 27
LEAST_CELLS = 1023

Found = list[tuple[int, int]]  # numbers, with -1: only upstream, 1: only downstream


class Bucket(NamedTuple):
    """The XOR of numbers and of their checks, their count, and the sum of times."""

    ids: int = 0  # ID
    check: int = 0  # IDSH
    packets: int = 0  # Delta
    sum: int = 0  # TS


class Difference(NamedTuple):
    """A downstream bucket minus the upstream one."""

    ids: int
    check: int
    surplus: int  # signed: packets downstream minus packets upstream

    def less(self, x: int, check: int, count: int) -> "Difference":
        return Difference(self.ids ^ x, self.check ^ check, signed(self.surplus - count))


EMPTY = Difference(0, 0, 0)


@dataclass(frozen=True)
class Layout:
    """Where numbers go."""

    banks: int  # k; of sRDA: in how many places a packet is
    cells: int  # k m
    seed: int
    checked: bool = True
    simple: bool = False

    def places(self, x: int) -> list[int]:
        """The indices of a number's cells, in the order of the banks."""
        coins = [coin(x, self.seed, BANK + j) for j in range(self.banks)]
        if self.simple:
            return list(dict.fromkeys(scaled(c, self.cells) for c in coins))
        buckets = self.cells // self.banks  # m
        return [j * buckets + scaled(c, buckets) for j, c in enumerate(coins)]

    def belongs(self, x: int, i: int) -> bool:
        return i in self.places(x)

    def check(self, x: int) -> int:
        return check(x, self.seed)

    def agrees(self, checks: int, *numbers: int) -> bool:
        """Whether a cell's checks are those of these numbers; True without checks."""
        return not self.checked or checks == reduce(xor, map(self.check, numbers))


def check(x: int, seed: int) -> int:
    return coin(x, seed, CHECK) & 0xFFFFFFFF


# Filling


def fill(entries: Sequence[Packet], banks: int, buckets: int, seed: int) -> list[Bucket]:
    return put_all(numbered(entries), Layout(banks, banks * buckets, seed))


def fill_simple(entries: Sequence[Packet], banks: int, cells: int, seed: int) -> list[Bucket]:
    """The paper's sRDA, of k m cells."""
    return put_all(numbered(entries), Layout(banks, cells, seed, simple=True))


def put_all(packets: Iterable[Packet], layout: Layout) -> list[Bucket]:
    result = [Bucket()] * layout.cells
    for x, time_ns in packets:
        for i in layout.places(x):
            b = result[i]
            result[i] = Bucket(b.ids ^ x, b.check ^ layout.check(x), b.packets + 1 & MASK, b.sum + time_ns & MASK)
    return result


# Decoding


def difference(upstream: Sequence[Bucket], downstream: Sequence[Bucket]) -> list[Difference]:
    return [
        Difference(a.ids ^ b.ids, a.check ^ b.check, signed(b.packets - a.packets))
        for a, b in zip(upstream, downstream, strict=True)
    ]


class Decoded(NamedTuple):
    """What only one point has, whether that is all, and the rest in the cells."""

    found: Found
    complete: bool
    residual: list[Difference]


def decode(
    cells: Sequence[Difference],
    banks: int,
    seed: int,
    checked: bool = True,
    own: Sequence[int] = (),
    simple: bool = False,
) -> Decoded:
    """Decode a difference; `own` are the numbers of the cache upstream, if available."""
    decoder = Decoder(cells, Layout(banks, len(cells), seed, checked, simple))
    decoder.peel()
    if own:
        decoder.peel_with(own)
    return Decoded(decoder.found, decoder.is_empty() and not decoder.fake, decoder.cells)


class Decoder:
    """Removes pure cells until there are none and, with a cache, pairs of packets too."""

    def __init__(self, cells: Sequence[Difference], layout: Layout) -> None:
        self.cells = list(cells)
        self.layout = layout
        self.found: Found = []
        self.queue = deque(i for i in range(len(cells)) if self.is_pure(i))
        self.fake = False

    def is_empty(self) -> bool:
        return all(cell == EMPTY for cell in self.cells)

    def is_pure(self, i: int) -> bool:
        x, checks, count = self.cells[i]
        return count in (-1, 1) and self.layout.belongs(x, i) and self.layout.agrees(checks, x)

    def has_ended(self) -> bool:
        return self.fake or len(self.found) >= len(self.cells)

    def take_out(self, x: int, count: int) -> None:
        """A repeated number is a fake: it stays in place, and decoding ends."""
        if any(x == known for known, _ in self.found):
            self.fake = True
            return
        self.found.append((x, count))
        for i in self.layout.places(x):
            self.cells[i] = self.cells[i].less(x, self.layout.check(x), count)
            if self.is_pure(i):
                self.queue.append(i)

    def peel(self) -> None:
        while self.queue and not self.has_ended():
            i = self.queue.popleft()
            if self.is_pure(i):
                self.take_out(self.cells[i].ids, self.cells[i].surplus)

    def peel_with(self, own: Sequence[int]) -> None:
        """Round after round, look for cells with one of upstream's own numbers and one other number."""
        here: list[list[int]] = [[] for _ in self.cells]
        for y in own:
            for i in self.layout.places(y):
                here[i].append(y)
        before = -1
        while len(self.found) != before and not self.is_empty():
            before = len(self.found)
            for i in range(len(self.cells)):
                self.split(i, here[i])

    def split(self, i: int, own: Sequence[int]) -> None:
        for y in own:
            ids, checks, count = self.cells[i]
            z = ids ^ y
            if self.has_ended() or self.cells[i] == EMPTY or count not in (-2, 0):
                return
            if y == z or not self.layout.belongs(z, i) or not self.layout.agrees(checks, y, z):
                continue
            self.take_out(y, -1)
            if not self.has_ended():
                self.take_out(z, count + 1)
            self.peel()
            return


# Repair


def differing(found: Found, upstream: Sequence[Packet], downstream: Sequence[Packet]) -> set[int]:
    """The ids with different numbers of copies at the points, as far as found. Ids that neither has are fakes."""
    there, here = (
        dict(zip(numbers(entries), [packet_id for packet_id, _ in entries], strict=True))
        for entries in (upstream, downstream)
    )
    ids = (there.get(x) if count < 0 else here.get(x) for x, count in found)
    return {packet_id for packet_id in ids if packet_id is not None}


def without(entries: Sequence[Packet], ids: set[int]) -> list[Packet]:
    """What repair leaves, with numbers instead of ids; copies keep their numbers."""
    return [
        (x, time_ns) for x, (packet_id, time_ns) in zip(numbers(entries), entries, strict=True) if packet_id not in ids
    ]


def repair(upstream: Sequence[Packet], downstream: Sequence[Packet], decoded: Decoded, layout: Layout) -> lda.Banks:
    """The usable buckets of each bank. Refilling without the packets is the same as removing them from the sums.

    If a fake was found, the counts of the points may differ; such a bucket is not used.
    """
    ids = differing(decoded.found, upstream, downstream)
    sent, came = put_all(without(upstream, ids), layout), put_all(without(downstream, ids), layout)
    rows = [
        lda.agree(lda.Bucket(a.packets, a.sum), lda.Bucket(b.packets, b.sum)) if left == EMPTY else None
        for a, b, left in zip(sent, came, decoded.residual, strict=True)
    ]
    buckets = layout.cells if layout.simple else layout.cells // layout.banks
    return [[row for row in rows[i : i + buckets] if row is not None] for i in range(0, layout.cells, buckets)]


def mean(banks: lda.Banks, complete: bool) -> Fraction | None:
    """Exact if everything was decoded: any one bank has every packet that crossed."""
    return lda.mean(banks[:1] if complete else banks)


def variance(banks: lda.Banks, complete: bool) -> Fraction | None:
    return lda.variance(banks, mean(banks, complete))


# The size of the difference


def strata(entries: Sequence[Packet], seed: int) -> list[list[Bucket]]:
    layout = Layout(STRATUM_BANKS, STRATUM_BANKS * STRATUM_BUCKETS, seed)
    members: list[list[Packet]] = [[] for _ in range(STRATA)]
    for x, time_ns in numbered(entries):
        members[min(lz(coin(x, seed, STRATUM)), STRATA - 1)].append((x, time_ns))
    return [put_all(packets, layout) for packets in members]


def strata_estimate(upstream: Sequence[Sequence[Bucket]], downstream: Sequence[Sequence[Bucket]], seed: int) -> int:
    count = 0
    for i in reversed(range(STRATA)):
        decoded = decode(difference(upstream[i], downstream[i]), STRATUM_BANKS, seed)
        if not decoded.complete:
            return count << (i + 1)
        count += len(decoded.found)
    return count


def minima(entries: Sequence[Packet], n: int, seed: int) -> list[int]:
    """MinHash; of nothing, the largest number."""
    members = numbers(entries)
    return [min((coin(x, seed, MINHASH + i) for x in members), default=MASK) for i in range(n)]


def minhash_estimate(one: Sequence[int], other: Sequence[int], entries: int) -> Fraction:
    """The size of the difference, from the minima of both points and their total number of entries."""
    same = Fraction(sum(a == b for a, b in zip(one, other, strict=True)), len(one))  # J
    return (1 - same) / (1 + same) * entries


def buckets_for(size: int, banks: int) -> int:
    """Buckets that a bank needs for a difference of about this size."""
    cells: Fraction = max(Fraction(LEAST_CELLS), Fraction(9, 5) * size + 96)
    return math.ceil(cells / banks)
