"""Mean and deviation of one-way delay, and loss, from a few kilobytes of counters at each point.

Guarantee: with S packets in buckets without loss, the mean is within sigma sqrt(2 ln(2/delta) / S) of the truth with
probability 1 - delta; without any loss it is exact. Both points must cut at the same packets (delimiters,
intervals.py). A bucket that lost one packet and gained one of another interval has the right count but wrong packets:
its sum reveals it, unless the error is less than 1/32 of the interval (`_unlike`). RDA does not have this limit.
Memory: 16 bytes per bucket, whatever arrives, plus the tail's sample.

Kompella, Levchenko, Snoeren and Varghese, "Router Support for Fine-Grained Latency Measurements", ToN 2012.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.codec import array_of
from wirelag.estimators.protocol import Capabilities
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.interval import Interval
from wirelag.report import Report
from wirelag.stats.moments import Moments
from wirelag.stats.row_sums import Deviation, Rows, lowered, raised
from wirelag.synopses.cache import Cached, CacheMeter
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.delay_sample import DelaySample, common, compared

NAME: Final = "lda"
BUCKET_BYTES: Final = 16
RAREST: Final = 31  # the largest shift
FEWEST: Final = 16  # rows and sampled delays needed to detect outlier rows
SIGMAS: Final = 1.4826  # standard deviation per median distance
FAR: Final = 24  # an outlier exceeds this many times the largest sampled delay,
SPREADS: Final = 8  # plus this many deviations of a row's sum
FINE: Final = 32  # errors of a sum below this fraction of the interval pass


def tuned(packets: int, losses: tuple[float, ...], rows: int, alpha: float = 1.0) -> tuple[int, ...]:
    """Shifts of the banks, one for each loss rate, for an interval of `packets` packets.

    With L packets lost, a bank of m rows keeps alpha exp(-alpha) m/(L + 1) of those received if it samples with
    probability alpha m / (L + 1): the most at alpha = 1. The paper's 0.5 comes from a looser bound.
    """
    wanted = (min(1.0, alpha * rows / (packets * loss + 1)) for loss in losses)
    return tuple(sorted({min(RAREST, round(-math.log2(p))) for p in wanted}))


@dataclass(frozen=True, slots=True)
class LdaSynopsis:
    """The buckets of one interval at one point, and its share of the tail's sample."""

    buckets: npt.NDArray[np.uint64]  # count and sum of each row, bank after bank
    tail: Cached

    @property
    def packets(self) -> int:
        """All packets seen."""
        return self.tail.packets

    def to_fields(self) -> dict[str, Any]:
        """Named numbers and arrays, as a synopsis travels."""
        counts, sums = self.buckets[0::2], self.buckets[1::2]
        return {"counts": counts, **lowered("sums", sums, counts, self.tail.times_ns), **self.tail.to_fields("tail_")}


@dataclass(frozen=True, slots=True)
class Lda:
    """The estimator: the `rows` of each bank, and the banks' shifts (bank j samples 1 packet in 2^shift)."""

    rows: int = 256
    shifts: tuple[int, ...] = (0, 4, 8, 12)
    deviation: Deviation = "rows"
    tail: int = 2048
    seed: int = 0

    name: ClassVar[str] = NAME
    points: ClassVar[tuple[str, ...]] = ("upstream", "downstream")
    can: ClassVar[Capabilities] = Capabilities(delimited=True, in_kernel=True)

    @property
    def bytes(self) -> int:
        """The memory of a meter in bytes."""
        return BUCKET_BYTES * self.rows * len(self.shifts) + 16 * self.tail

    def of_class(self, most: int) -> Lda:
        """The estimator of one class: the same, as its memory is small."""
        return self

    def for_agent(self, rows: int | None) -> Lda:
        """The same: its synopsis is small."""
        return self

    def cost(self, packets: int, loss: float) -> tuple[int, int]:
        """Bytes of a synopsis, and bytes sent: the same for any traffic."""
        return self.bytes, self.bytes

    def meter(self, point: str) -> LdaMeter:
        """A fresh meter for one point."""
        return LdaMeter(self)

    def estimate(self, *synopses: LdaSynopsis) -> Report:
        """The report of one interval's buckets."""
        up, down = synopses
        return self.cross(up, down).with_bytes(down.to_fields()).report(NAME)

    def cross(self, up: LdaSynopsis, down: LdaSynopsis) -> Crossing:
        """The crossing from buckets that counted the same number of packets at both points."""
        counts = up.buckets[0::2].copy()
        usable = counts == down.buckets[0::2]
        tail, *alone = compared(up.tail, down.tail)
        rows = Rows.difference(up.buckets[1::2], down.buckets[1::2], counts, usable, len(self.shifts), tail.median_ns)
        unlike = _unlike(rows, tail) if not usable.all() else np.zeros_like(rows.usable)
        rows = replace(rows, usable=rows.usable & ~unlike)
        crossing = Crossing(
            up.packets,
            down.packets,
            Moments.of(rows.used, rows.sum_ns, rows.variance_ns2(self.deviation), common(up.tail, down.tail, alone)),
            tail=tail,
            tail_level=max(up.tail.level, down.tail.level),
            single_up=alone[0],
            single_down=alone[1],
            net_loss=True,
            details={"usable_rows": int(rows.usable.sum()), "unlike_rows": int(unlike.sum())},
        )
        # Rows that all count alike hold the same packets: if a sample differs, it has missed what is rare.
        return crossing if usable.all() else crossing.checked()

    def added(self, first: LdaSynopsis, second: LdaSynopsis) -> LdaSynopsis:
        """Merge two neighbouring intervals of one point."""
        return LdaSynopsis(first.buckets + second.buckets, first.tail.followed_by(second.tail, self.tail))

    def synopsis(self, fields: Mapping[str, Any]) -> LdaSynopsis:
        """The inverse of `to_fields`."""
        counts = array_of(fields, "counts", np.uint64)
        sums = raised("sums", fields, counts)
        if len(counts) != self.rows * len(self.shifts):
            raise ValueError(f"{len(counts)} rows, not {len(self.shifts)} banks of {self.rows}")
        tail = Cached.from_fields(fields, self.seed, "tail_", self.tail)
        buckets = np.empty(2 * len(counts), np.uint64)
        buckets[0::2], buckets[1::2] = counts, sums
        return LdaSynopsis(buckets, tail)


def _unlike(rows: Rows, tail: DelaySample) -> npt.NDArray[np.bool_]:
    """Rows with equal counts but different packets: one was lost, one came from another interval.

    Law: the times of two such packets differ by anything up to the interval's length, delays by far less. A row is
    dropped if its sum is off by more than 1/32 of the interval, and by more than 24 times the largest sampled delay (a
    sample of 1 packet in many) plus 8 deviations of a row's sum. If all counts are equal, no row is dropped.
    """
    if len(tail) < FEWEST:
        return np.zeros_like(rows.usable)
    largest_ns = float(np.abs(tail.delays_ns - tail.median_ns).max())
    found = _kernels.unlike_rows(
        rows.counts.reshape(-1),
        rows.sums_ns.reshape(-1),
        rows.usable.reshape(-1),
        FEWEST,
        FAR * largest_ns,
        SPREADS,
        SIGMAS,
        float(np.ptp(tail.sent_ns)) / FINE,
    )
    return found.reshape(rows.usable.shape)


class LdaMeter:
    """The buckets at one point."""

    def __init__(self, estimator: Lda) -> None:
        self._estimator = estimator
        self._buckets = self._empty()
        self._tail = CacheMeter(estimator.tail, estimator.seed)

    def _empty(self) -> npt.NDArray[np.uint64]:
        return np.zeros(2 * self._estimator.rows * len(self._estimator.shifts), np.uint64)

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Add each time to its bucket."""
        of = self._estimator
        _kernels.lda(packets.packet_id, packets.time_ns, self._buckets, of.rows, of.shifts, of.seed)
        self._tail.observe(packets)

    def cut(self, interval: Interval) -> LdaSynopsis:
        """The buckets, which are then emptied."""
        buckets, self._buckets = self._buckets, self._empty()
        return LdaSynopsis(buckets, self._tail.cut(interval))
