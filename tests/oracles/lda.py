"""The lossy difference aggregator in plain Python: sums of times in rows, and what two points' rows yield together.

The independent twin of `kernels/lda.h`, and the tests' oracle for it. Both follow only `docs/reference/crossing.md`.
After Kompella and others, *Router Support for Fine-Grained Latency Measurements*. Means and variances are exact
fractions; only callers round.

`finecomb`, `rda` and `rateless` repair their buckets and then use the same mathematics.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from statistics import median
from typing import NamedTuple

from tests.oracles.hashing import MASK
from tests.oracles.join import LDA, Packet, coin, lz, scaled, signed

LARGEST_SHIFT = 31


class Bucket(NamedTuple):
    """The number of packets, and the sum of their times."""

    packets: int = 0
    sum: int = 0

    def put(self, time_ns: int) -> "Bucket":
        return Bucket(self.packets + 1 & MASK, self.sum + time_ns & MASK)


class Row(NamedTuple):
    """A bucket on which both points agree: the summed delay of its packets, and their number."""

    delay_ns: int  # D
    packets: int  # n


Banks = list[list[Row]]

# Filling


def place(packet_id: int, rows: int, shifts: Sequence[int], seed: int) -> int | None:
    """The index of a packet's bucket, bank by bank; None if it is not sampled."""
    h = coin(packet_id, seed, LDA)
    sampling = [bank for bank, shift in enumerate(shifts) if lz(h) >= shift]
    return sampling[-1] * rows + scaled(h, rows) if sampling else None


def fill(packets: Iterable[Packet], rows: int, shifts: Sequence[int], seed: int) -> list[Bucket]:
    buckets = [Bucket()] * (rows * len(shifts))
    for packet_id, time_ns in packets:
        at = place(packet_id, rows, shifts, seed)
        if at is not None:
            buckets[at] = buckets[at].put(time_ns)
    return buckets


def added(one: Sequence[Bucket], other: Sequence[Bucket]) -> list[Bucket]:
    """The buckets of two intervals."""
    return [Bucket(a.packets + b.packets & MASK, a.sum + b.sum & MASK) for a, b in zip(one, other, strict=True)]


# Two points


def agree(upstream: Bucket, downstream: Bucket) -> Row | None:
    if upstream.packets != downstream.packets or upstream.packets == 0:
        return None
    return Row(signed(downstream.sum - upstream.sum), upstream.packets)


def usable(upstream: Sequence[Bucket], downstream: Sequence[Bucket], rows: int) -> Banks:
    """The usable buckets of each bank, in row order."""
    agreed = [agree(a, b) for a, b in zip(upstream, downstream, strict=True)]
    return [[row for row in agreed[i : i + rows] if row is not None] for i in range(0, len(agreed), rows)]


def unlike(banks: Banks, delays: Sequence[tuple[int, int]]) -> Banks:
    """Rows whose sums delays cannot explain. `delays`: send time and delay of each sampled packet."""
    rows = [row for bank in banks for row in bank]
    if min(len(rows), len(delays)) < 16:
        return [[] for _ in banks]
    middle = int(median(delay_ns for _, delay_ns in delays))
    centre = median(row.delay_ns / row.packets - middle for row in rows)

    def off(row: Row) -> float:
        return abs(row.delay_ns - middle * row.packets - centre * row.packets)

    spread = 1.4826 * median(off(row) / math.sqrt(row.packets) for row in rows)
    largest = max(abs(delay_ns - middle) for _, delay_ns in delays)
    length = max(sent_ns for sent_ns, _ in delays) - min(sent_ns for sent_ns, _ in delays)

    def limit(row: Row) -> float:
        return max(24 * largest + 8 * spread * math.sqrt(row.packets), length / 32)

    return [[row for row in bank if off(row) > limit(row)] for bank in banks]


def used(banks: Banks) -> int:
    """The number of packets in the mean."""
    return sum(row.packets for bank in banks for row in bank)  # S


def mean(banks: Banks) -> Fraction | None:
    count = used(banks)
    return Fraction(sum(row.delay_ns for bank in banks for row in bank), count) if count else None  # D


def variance(banks: Banks, mu: Fraction | None = None) -> Fraction | None:
    """The between-rows estimator. One row gives no deviation."""
    mu = mean(banks) if mu is None else mu
    rows = [row for bank in banks for row in bank]
    if mu is None or len(rows) < 2:
        return None
    squares = [(row.delay_ns - mu * row.packets) ** 2 / row.packets for row in rows]
    return sum(squares, Fraction()) / (len(rows) - 1)


def collapsed(banks: Banks) -> list[Row]:
    """The usable rows of a bank in pairs, each merged into one whose packets have signs. An odd last row is left."""
    return [
        Row(one.delay_ns - other.delay_ns, one.packets + other.packets)
        for bank in banks
        for one, other in zip(bank[::2], bank[1::2], strict=False)
    ]


def second_moment(pairs: Sequence[Row]) -> Fraction | None:
    """Equation 5 of the paper: the mean square of delays."""
    count = sum(row.packets for row in pairs)
    return Fraction(sum(row.delay_ns**2 for row in pairs), count) if count else None  # F


def collapsed_variance(pairs: Sequence[Row], mu: Fraction | None) -> Fraction | None:
    """The papers' variance (equation 3, corrected). It may be far below 0, and is clipped there."""
    moment = second_moment(pairs)
    return None if moment is None or mu is None else max(Fraction(), moment - mu**2)


def bound(deviation: float, packets: int, delta: float) -> float:
    """How far the mean may be from the truth, except with probability delta."""
    return deviation * math.sqrt(2 * math.log(2 / delta) / packets)


def best_probability(packets: int, loss: float, rows: int, alpha: float = 1.0) -> float:
    return min(1.0, alpha * rows / (packets * loss + 1))


def best_shift(packets: int, loss: float, rows: int, alpha: float = 1.0) -> int:
    return min(LARGEST_SHIFT, round(-math.log2(best_probability(packets, loss, rows, alpha))))
