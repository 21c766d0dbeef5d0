"""FineComb in plain Python: rows with a parity, and a stash of the packets at the edges that may repair them.

The independent twin of `kernels/finecomb.h`, and the tests' oracle for it. Both follow only
`docs/reference/crossing.md`. After Lee and others, *Fine-Grained Latency and Loss Measurements in the Presence of
Reordering*.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.oracles.hashing import MASK
from tests.oracles.join import FINECOMB, Packet, coin, lz, scaled, signed
from tests.oracles.lda import Banks, Row

MOST_CANDIDATES = 12
MOST_MASKS = 1 << 22


class Bucket(NamedTuple):
    """The number of packets, the sum of their times and the XOR of their ids."""

    packets: int = 0
    sum: int = 0
    parity: int = 0

    def put(self, packet: Packet) -> "Bucket":
        return Bucket(self.packets + 1 & MASK, self.sum + packet[1] & MASK, self.parity ^ packet[0])

    def take(self, packet: Packet) -> "Bucket":
        return Bucket(self.packets - 1 & MASK, self.sum - packet[1] & MASK, self.parity ^ packet[0])


@dataclass
class Synopsis:
    """One interval at one point."""

    rows: int
    shift: int
    seed: int
    stash_size: int
    buckets: list[Bucket] = field(default_factory=list)
    stash: list[Packet] = field(default_factory=list)

    def row(self, packet: Packet) -> int | None:
        """The row of a packet; None if it is not sampled."""
        h = coin(packet[0], self.seed, FINECOMB)
        return scaled(h, self.rows) if lz(h) >= self.shift else None


def fill(packets: Sequence[Packet], rows: int, shift: int, stash_size: int, seed: int) -> Synopsis:
    synopsis = Synopsis(rows, shift, seed, stash_size, [Bucket()] * rows)
    sampled = []
    for packet in packets:
        row = synopsis.row(packet)
        if row is not None:
            synopsis.buckets[row] = synopsis.buckets[row].put(packet)
            sampled.append(packet)
    half = stash_size // 2
    last = max(half, len(sampled) - half)
    synopsis.stash = sampled[:half] + sampled[last:]
    return synopsis


# Repair


@dataclass
class Repaired:
    """Both points' buckets after repair. Those that still differ are None."""

    buckets: list[tuple[Bucket, Bucket] | None]
    repaired: list[int]  # rows that a mask repaired
    masks: int  # number of masks tried


def same(upstream: Bucket, downstream: Bucket) -> bool:
    return upstream.packets == downstream.packets and upstream.parity == downstream.parity


def candidates(upstream: Synopsis, downstream: Synopsis, row: int) -> list[tuple[Packet, bool]]:
    """The stashed packets of a row that only one stash has, and whether that is upstream's."""
    both = {packet[0] for packet in upstream.stash} & {packet[0] for packet in downstream.stash}
    stashed = [(packet, True) for packet in upstream.stash] + [(packet, False) for packet in downstream.stash]
    return [(packet, sent) for packet, sent in stashed if packet[0] not in both and upstream.row(packet) == row]


def repair(upstream: Synopsis, downstream: Synopsis) -> Repaired:
    result = Repaired([], [], 0)
    for row, (a, b) in enumerate(zip(upstream.buckets, downstream.buckets, strict=True)):
        whole = (a, b) if same(a, b) else None
        if whole is None:
            taken = candidates(upstream, downstream, row)
            if 0 < len(taken) <= MOST_CANDIDATES:
                whole = first_that_fits(a, b, taken, result)
            if whole is not None:
                result.repaired.append(row)
        result.buckets.append(whole)
    return result


def first_that_fits(
    a: Bucket, b: Bucket, taken: Sequence[tuple[Packet, bool]], result: Repaired
) -> tuple[Bucket, Bucket] | None:
    for mask in range(1, 1 << len(taken)):
        if result.masks == MOST_MASKS:
            return None
        result.masks += 1
        sent, came = a, b
        for i, (packet, is_upstream) in enumerate(taken):
            if mask >> i & 1 and is_upstream:
                sent = sent.take(packet)
            elif mask >> i & 1:
                came = came.take(packet)
        if same(sent, came):
            return sent, came
    return None


# Input of lda's mathematics


def usable(repaired: Repaired) -> Banks:
    """The rows that agree or were repaired and have a packet: one bank."""
    whole = [pair for pair in repaired.buckets if pair is not None]
    return [[Row(signed(b.sum - a.sum), a.packets) for a, b in whole if a.packets != 0]]
