"""Mean and deviation of one-way delay from counters that detect differences and repair the interval's edges.

Guarantee: that of LDA; in addition, a bucket whose packets differ between the points is never used, even if their
number is the same (except with probability 2^-64, and for identical packets, two of which cancel out). Packets that
crossed an edge of the interval are removed if the stash holds them; lost packets cannot be. Repair tries 4,096 sets of
packets per bucket and 2^22 in total, then stops. Memory: 24 bytes per bucket and 16 per stashed packet, whatever
arrives, plus the tail's sample.

Lee, Goldberg, Kompella and Varghese, "Fine-Grained Latency and Loss Measurements in the Presence of Reordering",
SIGMETRICS 2011.
"""

from __future__ import annotations

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
from wirelag.synopses.delay_sample import common, compared

NAME: Final = "finecomb"
COIN: Final = 3
BUCKET_BYTES: Final = 24
SENT_STASH: Final = 64  # stashed packets, if all are sent each interval

Words = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FinecombSynopsis:
    """The buckets of one interval at one point, its stash, and its share of the tail's sample."""

    buckets: Words  # count, sum and parity of each row
    stash_ids: Words
    stash_times_ns: Times
    tail: Cached

    @property
    def packets(self) -> int:
        """All packets seen."""
        return self.tail.packets

    def to_fields(self) -> dict[str, Any]:
        """Named numbers and arrays, as a synopsis travels."""
        counts, sums, parities = (self.buckets[i::3] for i in range(3))
        fields = {"counts": counts, **lowered("sums", sums, counts, self.tail.times_ns), "parities": parities}
        stash = {"stash_ids": self.stash_ids, "stash_times_ns": self.stash_times_ns}
        return {**fields, **stash, **self.tail.to_fields("tail_")}


@dataclass(frozen=True, slots=True)
class Finecomb:
    """The estimator: `rows`, one of which takes 1 packet in 2^shift, and the packets to stash near the edges."""

    rows: int = 1024
    shift: int = 0
    stash: int = 1024
    deviation: Deviation = "rows"
    tail: int = 2048
    seed: int = 0

    name: ClassVar[str] = NAME
    points: ClassVar[tuple[str, ...]] = ("upstream", "downstream")
    can: ClassVar[Capabilities] = Capabilities()

    @property
    def bytes(self) -> int:
        """The memory of a meter in bytes."""
        return BUCKET_BYTES * self.rows + 16 * (self.stash + self.tail)

    def of_class(self, most: int) -> Finecomb:
        """The estimator of one class: the same, as its memory is small."""
        return self

    def for_agent(self, rows: int | None) -> Finecomb:
        """The same, with a small stash."""
        return replace(self, stash=min(self.stash, SENT_STASH))

    def cost(self, packets: int, loss: float) -> tuple[int, int]:
        """Bytes of a synopsis, and bytes sent: the same for any traffic."""
        return self.bytes, self.bytes

    def meter(self, point: str) -> FinecombMeter:
        """A fresh meter for one point."""
        return FinecombMeter(self)

    def estimate(self, *synopses: FinecombSynopsis) -> Report:
        """The report of one interval's buckets."""
        up, down = synopses
        return self.cross(up, down).with_bytes(down.to_fields()).report(NAME)

    def cross(self, up: FinecombSynopsis, down: FinecombSynopsis) -> Crossing:
        """The crossing from buckets with the same packets at both points, as they are or after repair."""
        ups, downs = up.buckets.copy(), down.buckets.copy()
        usable, tries = _kernels.finecomb_repair(
            ups, downs, up.stash_ids, up.stash_times_ns, down.stash_ids, down.stash_times_ns, self.rows, self.seed
        )
        tail, *alone = compared(up.tail, down.tail)
        rows = Rows.difference(ups[1::3], downs[1::3], ups[0::3].copy(), usable > 0, 1, tail.median_ns)
        return Crossing(
            up.packets,
            down.packets,
            Moments.of(rows.used, rows.sum_ns, rows.variance_ns2(self.deviation), common(up.tail, down.tail, alone)),
            tail=tail,
            tail_level=max(up.tail.level, down.tail.level),
            single_up=alone[0],
            single_down=alone[1],
            net_loss=True,
            details={
                "usable_rows": int(rows.usable.sum()),
                "repaired_rows": int((usable == 2).sum()),
                "tries": int(tries),
            },
        ).checked()

    def synopsis(self, fields: Mapping[str, Any]) -> FinecombSynopsis:
        """The inverse of `to_fields`."""
        counts, parities = (array_of(fields, name, np.uint64) for name in ("counts", "parities"))
        columns = [counts, raised("sums", fields, counts), parities]
        if any(len(column) != self.rows for column in columns):
            raise ValueError(f"{len(columns[0])} buckets, not {self.rows}")
        ids, times_ns = array_of(fields, "stash_ids", np.uint64), array_of(fields, "stash_times_ns", np.int64)
        if len(ids) != len(times_ns) or len(ids) > self.stash:
            raise ValueError(f"{len(ids)} stashed ids and {len(times_ns)} times")
        return FinecombSynopsis(
            np.column_stack(columns).reshape(-1),
            ids,
            times_ns,
            Cached.from_fields(fields, self.seed, "tail_", self.tail),
        )


class FinecombMeter:
    """The buckets and the stash at one point."""

    def __init__(self, estimator: Finecomb) -> None:
        self._estimator = estimator
        self._tail = CacheMeter(estimator.tail, estimator.seed)
        self._begin()

    def _begin(self) -> None:
        self._buckets = np.zeros(3 * self._estimator.rows, np.uint64)
        self._first = self._last = (np.empty(0, np.uint64), np.empty(0, np.int64))

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Add each time to its bucket; stash the first and the last packets."""
        of = self._estimator
        ids, times_ns = packets.packet_id, packets.time_ns
        _kernels.finecomb(ids, times_ns, self._buckets, of.rows, of.shift, of.seed)
        self._tail.observe(packets)
        if of.shift:
            sampled = _kernels.coins(ids, of.seed, COIN) >> np.uint64(64 - of.shift) == 0
            ids, times_ns = ids[sampled], times_ns[sampled]
        half = of.stash // 2
        room = half - len(self._first[0])
        self._first = _behind(self._first, (ids[:room], times_ns[:room]))
        ids, times_ns = _behind(self._last, (ids[room:], times_ns[room:]))
        start = max(0, len(ids) - half)
        self._last = ids[start:].copy(), times_ns[start:].copy()

    def cut(self, interval: Interval) -> FinecombSynopsis:
        """The buckets and the stash, which are then emptied."""
        stash = _behind(self._first, self._last)
        synopsis = FinecombSynopsis(self._buckets, *stash, self._tail.cut(interval))
        self._begin()
        return synopsis


def _behind(first: tuple[Words, Times], second: tuple[Words, Times]) -> tuple[Words, Times]:
    return np.concatenate((first[0], second[0])), np.concatenate((first[1], second[1]))
