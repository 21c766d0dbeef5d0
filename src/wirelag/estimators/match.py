"""Every request matched with its response: exact.

Guarantee: one sample per response that can be timed; none is guessed.
Memory: `memory` bytes for connections and packets in flight; when it is full, the least recently used entry is dropped
and counted as `evicted`. The synopsis takes 76 KB per leg.

TCP data is timed by the acknowledgement that covers it; retransmitted data never is (P. Karn and C. Partridge,
*Improving Round-Trip Time Estimates in Reliable Transport Protocols*, SIGCOMM 1987), nor is data selectively
acknowledged before. docs/reference/matching.md defines requests and responses.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from wirelag import _kernels
from wirelag.estimators.matchers import MATCHERS, matcher_bits
from wirelag.estimators.protocol import Capabilities
from wirelag.packets.filters import LATEST_NS
from wirelag.packets.interval import Interval
from wirelag.report import Report
from wirelag.synopses.samples import SampleBatch, Samples, Sink

if TYPE_CHECKING:
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.grouping import Grouping

_COUNTED: Final = ("evicted", "backwards", "too_long", "again")
AUTO: Final = ("tcp", "dns", "ntp", "icmp", "quic-spin")


@dataclass(frozen=True, slots=True)
class Match:
    """The exact estimator of round-trip delay at one point. Its meters also pass every sample to the `sinks`."""

    matchers: tuple[str, ...] = AUTO
    first_copy: bool = False
    memory: int = 128 << 20
    cores: int = field(default=1, compare=False, repr=False)  # threads of a meter; no result depends on them
    later: bool = field(default=False, compare=False, repr=False)  # whether one of several adds up samples meanwhile
    sinks: tuple[Sink, ...] = field(default=(), compare=False, repr=False)

    points: ClassVar[tuple[str, ...]] = ("tap",)
    can: ClassVar[Capabilities] = Capabilities()

    def meter(self, point: str) -> MatchMeter:
        """A fresh meter."""
        return MatchMeter(self)

    def rows_meter(self, threads: int) -> MatchRows:
        """A fresh meter for decoded rows."""
        return MatchRows(self, threads)

    def estimate(self, *synopses: Samples) -> Report:
        """The report of one interval's samples."""
        (samples,) = synopses
        return samples.report("match", "round_trip")


def _kernel_of(estimator: Match, threads: int) -> _kernels.Match:
    """Its tables: half for connections, a quarter each for segments in flight and for requests waiting by id."""
    return _kernels.Match(
        matcher_bits(estimator.matchers),
        estimator.first_copy,
        max(8, estimator.memory // 2 // _kernels.CONNECTION_BYTES),
        max(2, estimator.memory // 4 // _kernels.SEGMENT_BYTES),
        max(8, estimator.memory // 4 // _kernels.WAITING_BYTES),
        threads,
    )


def _counts(kernel: _kernels.Match) -> Counter[str]:
    return Counter({name: getattr(kernel, name) for name in _COUNTED})


class MatchRows:
    """The same for decoded rows: threads match them, each with samples of its own."""

    all_rows, visits = False, None

    def __init__(self, estimator: Match, threads: int) -> None:
        self._kernel = _kernel_of(estimator, 1)
        self.sharded, self.until_ns = self._kernel.sharded, LATEST_NS
        self._counted: Counter[str] = Counter()
        self._begin(threads)

    def _begin(self, threads: int) -> None:
        self._samples = [Samples() for _ in range(threads)]
        self._tallies = [samples.tally() for samples in self._samples]

    def work(self, decoder: _kernels.Decoder, packets: int) -> _kernels.Work:
        """Matching rows, shard by shard."""
        self._samples[0].packets += packets
        return self._kernel.rows(decoder, self._tallies)

    def turn(self, next_ns: int) -> None:
        """There is no time at which anything changes."""

    def cut(self, interval: Interval) -> Samples:
        """The samples whose response came in this interval; requests without a response stay."""
        (whole, *others), counted = self._samples, _counts(self._kernel)
        for samples in others:
            whole.merge(samples)
        whole.count(**{name: n - self._counted[name] for name, n in counted.items()})
        self._counted = counted
        self._begin(len(self._samples))
        return whole


class MatchMeter:
    """Connections and packets in flight at one point, and samples since the last cut."""

    def __init__(self, estimator: Match) -> None:
        self._kernel = _kernel_of(estimator, max(1, estimator.cores - estimator.later))
        self._later = None
        if estimator.later and estimator.cores > 1:
            from wirelag.estimators.later import Later

            self._later = Later()
        self._sinks = estimator.sinks
        self._samples = Samples()
        self._counted: Counter[str] = Counter()

    def warm_up(self, packets: PacketBatch) -> None:
        """Learn connections and open requests from packets whose samples and counts are not wanted."""
        self.match(packets)
        self._counted = _counts(self._kernel)

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Match packets, and add the samples to their groups."""
        if not len(packets):  # no thread starts for none: whoever listens may not have given up privileges yet
            return
        found = self.match(packets)
        self._samples.packets += len(packets)
        if not len(found.rows):
            return
        if self._later is None:
            self._add(packets, found, grouping)
        else:
            self._later.leave(self._add, packets, found, grouping)

    def _add(self, packets: PacketBatch, found: SampleBatch, grouping: Grouping | None) -> None:
        tags = None if grouping is None else grouping.add(packets, found.rows, found.legs, found.delays_ns)
        self._samples.add(found.legs, found.delays_ns)
        self._samples.spread.add(packets.flow_key, packets.time_ns, found.rows, found.legs, found.delays_ns)
        if self._sinks:
            found = found._replace(tags=tags)
        for sink in self._sinks:
            sink(packets, found)

    def match(self, packets: PacketBatch) -> SampleBatch:
        """The samples of a batch."""
        import numpy as np

        rows = np.empty(len(packets), np.uint32)
        delays_ns = np.empty(len(packets), np.int64)
        legs, kinds = np.empty(len(packets), np.uint8), np.empty(len(packets), np.uint8)
        count = self._kernel.observe(packets, rows, delays_ns, legs, kinds)
        return SampleBatch(rows[:count], delays_ns[:count], legs[:count], MATCHERS, kinds[:count])

    def cut(self, interval: Interval) -> Samples:
        """The samples whose response came in this interval; requests without a response stay."""
        if self._later is not None:
            self._later.finish()
        counted = _counts(self._kernel)
        self._samples.count(**{name: n - self._counted[name] for name, n in counted.items()})
        samples, self._samples, self._counted = self._samples, Samples(), counted
        return samples

    def cut_last(self, interval: Interval) -> Samples:
        """The same at the end of the input."""
        if self._later is not None:
            self._later.end()
        return self.cut(interval)
