"""The collector's Prometheus metrics. Times are seconds, sizes bytes; counters grow while the process lives.

Label sets are bounded: MOST_SEGMENTS segments and MOST_POINTS points by name, all others together as `other`.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from wirelag import _kernels
from wirelag.collector.health import KINDS
from wirelag.collector.last_minute import LastMinute
from wirelag.collector.process import of_process
from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval
from wirelag.protocol.loss import APART
from wirelag.protocol.results import Ends, Rank, Result
from wirelag.protocol.session import LINGER_NS
from wirelag.render.metric_families import Native
from wirelag.stats.bins import MIDDLES_NS
from wirelag.stats.exponential import Exponential

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

MOST_SEGMENTS: Final = 500
MOST_POINTS: Final = 1000
MOST_SILENT: Final = 100_000  # intervals that may be awaited and remembered
OTHER: Final = "other"
# Seconds, ten in each decade (the preferred numbers R10): a constant delay reads as one at most 28% longer.
BOUNDS: Final = (
    *(float(f"{m}e{e}") for e in range(-5, 1) for m in (1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.3, 8)),
    10.0,
)
P99: Final = 0.99
READY: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LIVE_NS: Final = 60 * 10**9  # later results were on an agent's disk: they say nothing about the collector's speed
_SIZES: Final = {"bytes": "in", "asked bytes": "out"}
_BUCKETS: Final = np.searchsorted(np.array(BOUNDS) * 1e9, MIDDLES_NS)  # of each bin of delays


@dataclass(slots=True)
class _Sums:
    """The sums of one segment."""

    delays: Any = field(default_factory=lambda: np.zeros(len(BOUNDS) + 1, np.int64))
    seconds: float = 0.0
    interpolated: float = 0.0  # summed delays that rli assigned to packets
    counts: Counter[str] = field(default_factory=Counter)
    lost: float = 0.0  # maximum so far
    error_ns: int = 0
    synchronised: bool = True
    ci95_ns: tuple[float, float] | None = None  # interval of the last mean, including the clocks' error
    native: Exponential = field(default_factory=Exponential)
    minute: LastMinute = field(default_factory=LastMinute)


class InUse(NamedTuple):
    """A limit, and how much of it is in use, if it is shared."""

    most: float
    used: float | None = None


class Metrics:
    """Filled by the collector, read by scrapes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: dict[str, _Sums] = {}
        self._silent: dict[tuple[str, Interval], int] = {}  # since when one point is missing, in order
        self._unseen: dict[tuple[str, Interval], None] = {}  # those that count as unseen
        self._ready = {stage: (np.zeros(len(READY) + 1), [0.0]) for stage in ("first", "complete", "settled")}

    def ready(self, result: Result, now_ns: int) -> None:
        """Record how long after its interval's end a result was stored."""
        late_ns = now_ns - result.interval.end_ns
        if result.rank == Rank.UNSEEN or not 0 <= late_ns < LIVE_NS:
            return
        stage = "settled" if result.rank > Rank.FIRST else "complete" if result.complete else "first"
        with self._lock:
            counts, seconds = self._ready[stage]
            counts[bisect_left(READY, late_ns / 1e9)] += 1
            seconds[0] += late_ns / 1e9

    # An interval counts once: as unseen if one point has sent nothing about it for LINGER_NS. Messages from that
    # point's disk may come later still: their packets then count, the interval does not count again.

    def missed(self, segment: str, interval: Interval, now_ns: int) -> None:
        """Record that one point has sent nothing about an interval so far."""
        with self._lock:
            self._silent[segment, interval] = now_ns

    def came(self, segment: str, interval: Interval) -> None:
        """Record that it has now."""
        with self._lock:
            self._silent.pop((segment, interval), None)

    def pass_time(self, now_ns: int) -> None:
        """Count intervals that were awaited in vain."""
        with self._lock:
            while self._silent:
                segment, interval = where = next(iter(self._silent))
                if 0 <= now_ns - self._silent[where] < LINGER_NS and len(self._silent) < MOST_SILENT:
                    break
                del self._silent[where]
                self._sums(segment).counts["unseen"] += 1
                self._unseen[segment, interval] = None
            while len(self._unseen) > MOST_SILENT:
                del self._unseen[next(iter(self._unseen))]

    def settled(self, segment: str, tally: Tally, interval: Interval | None = None) -> None:
        """Record a known interval; called once for each."""
        with self._lock:
            sums, counted = self._sums(segment), False
            if interval is not None:
                self._silent.pop((segment, interval), None)
                counted = (segment, interval) in self._unseen
                self._unseen.pop((segment, interval), None)
            weight = _kernels.count_bins(tally.bins, tally.weights, _BUCKETS, sums.delays) + tally.negative
            sums.delays[0] += tally.negative
            mean_ns = tally.moments.mean_ns
            # The mean is exact, the sample is not: so the histogram's sum uses the exact mean.
            seconds = 0.0 if mean_ns is None else max(0.0, mean_ns) / 1e9 * weight
            sums.seconds += seconds
            sums.native.add(tally.bins, tally.weights, tally.negative, seconds)
            if interval is not None:
                sums.minute.add(interval, tally)
            sums.error_ns, sums.synchronised = tally.clock_error_ns, not tally.unsynchronised
            bound_ns = tally.moments.bound_ns(0.05)
            sums.ci95_ns = None
            if mean_ns is not None and bound_ns is not None and sums.synchronised:
                bound_ns += tally.clock_error_ns
                sums.ci95_ns = mean_ns - bound_ns, mean_ns + bound_ns
            if not counted:
                sums.counts[_outcome(tally)] += 1
            for name in ("sent", "received", "loss_sent", "lost", "unseen_up", "unseen_down"):
                sums.counts[name] += getattr(tally, name)
            if tally.counts_sent:
                sums.counts["knows sent"] = 1
            else:
                sums.interpolated += max(0, tally.moments.sum_ns) / 1e9
                sums.counts["interpolated"] += tally.moments.used
                sums.counts["references_received"] += tally.references_received
                sums.counts["references_lost"] += tally.references_lost
                sums.counts["knows references"] = 1
            sums.lost = max(sums.lost, sums.counts["lost"])  # a counter never decreases
            for name in ("checked", "overtaken"):
                sums.counts[name] += getattr(tally, name)
            if tally.duplicated is not None:
                sums.counts["duplicated"] += tally.duplicated
                sums.counts["knows duplicated"] = 1

    def forget(self, segments: Iterable[str]) -> None:
        """Forget segments: they have no series until they have results again."""
        gone = set(segments)
        with self._lock:
            self._segments = {name: sums for name, sums in self._segments.items() if name not in gone}
            self._silent = {where: since_ns for where, since_ns in self._silent.items() if where[0] not in gone}

    def _sums(self, segment: str) -> _Sums:
        if segment not in self._segments and len(self._segments) >= MOST_SEGMENTS:
            segment = OTHER
        return self._segments.setdefault(segment, _Sums())

    # ---- exposition ----

    def families(
        self,
        agents: list[dict[str, Any]],
        counted: Mapping[str, int],
        store_bytes: int,
        in_use: Mapping[str, InUse] | None = None,
        problems: Iterable[str] = (),
        ends: Iterable[Ends] = (),
    ) -> list[Metric]:
        """All families but native ones; `problems`: those of the collector (health.py); `ends`: of segments."""
        families = [*self._of_segments(), *_of_agents(agents), *self._of_itself(counted, store_bytes, set(problems))]
        return [*families, *_of_limits(in_use or {}), _of_ends(ends), *of_process()]

    def natives(self) -> list[Native]:
        """Native histograms, which text cannot carry; under a name of their own, since one of a name is kept."""
        with self._lock:
            found = {name: sums.native.copy() for name, sums in self._segments.items() if sums.counts["knows sent"]}
        return [Native("wirelag_one_way_delay_native_seconds", "One-way delay of packets.", found)]

    def text(
        self,
        agents: list[dict[str, Any]],
        counted: Mapping[str, int],
        store_bytes: int,
        in_use: Mapping[str, InUse] | None = None,
        problems: Iterable[str] = (),
        ends: Iterable[Ends] = (),
    ) -> tuple[bytes, str]:
        """The exposition as text and its media type."""
        from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector

        families = self.families(agents, counted, store_bytes, in_use, problems, ends)

        class Fixed(Collector):
            def collect(self) -> Iterator[Metric]:
                yield from families

        registry = CollectorRegistry()
        registry.register(Fixed())
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4

    def _of_segments(self) -> list[Metric]:
        from prometheus_client.metrics_core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
            SummaryMetricFamily,
        )

        by = ["segment"]
        delay = HistogramMetricFamily("wirelag_one_way_delay_seconds", "One-way delay of packets.", labels=by)
        interpolated = SummaryMetricFamily(
            "wirelag_interpolated_delay_seconds", "One-way delay of packets between references (rli).", labels=by
        )
        references = {
            name: CounterMetricFamily(f"wirelag_references_{name}", text, labels=by)
            for name, text in (
                ("received", "Reference packets that were used (rli)."),
                ("lost", "Reference packets that never arrived (rli)."),
            )
        }
        counters = {
            name: CounterMetricFamily(f"wirelag_packets_{name}", text, labels=by)
            for name, text in (
                ("sent", "Packets seen upstream."),
                ("received", "Packets seen downstream."),
                ("lost", "Packets seen upstream that never arrived, where that is known."),
                ("duplicated", "Packets that arrived more than once, where the method can tell."),
            )
        }
        order = {
            name: CounterMetricFamily(f"wirelag_order_{name}_packets", text, labels=by)
            for name, text in (
                ("checked", "Packets whose order was checked (rda)."),
                ("overtaken", "Of these: arrived directly behind a packet sent later."),
            )
        }
        judged = CounterMetricFamily(
            "wirelag_packets_judged", "Packets sent in intervals whose loss is known.", labels=by
        )
        unseen = CounterMetricFamily(
            "wirelag_packets_unseen", "Packets that a capture dropped: unseen, not lost.", labels=["segment", "side"]
        )
        intervals = CounterMetricFamily(
            "wirelag_intervals",
            "Intervals: measured, empty, disjoint (no packet in common), incomparable, or unseen by a point.",
            labels=["segment", "outcome"],
        )
        error = GaugeMetricFamily(
            "wirelag_segment_clock_error_seconds", "Error bound of delays due to the clocks.", labels=by
        )
        synchronised = GaugeMetricFamily("wirelag_segment_clocks_synchronised", "Whether both are in sync.", labels=by)
        ci95 = GaugeMetricFamily(
            "wirelag_segment_mean_ci95_seconds",
            "The 95% interval of the mean delay of the last interval, with the clocks' error.",
            labels=["segment", "bound"],
        )
        p99 = GaugeMetricFamily(
            "wirelag_segment_p99_seconds", "The 99th percentile of delays of the last minute.", labels=by
        )
        p99_ci95 = GaugeMetricFamily(
            "wirelag_segment_p99_ci95_seconds",
            "Its 95% interval, with the clocks' error.",
            labels=["segment", "bound"],
        )
        with self._lock:
            for name, sums in self._segments.items():
                if (found := sums.minute.figures_ns(P99)) is not None:
                    p99.add_metric([name], found[0] / 1e9)
                    for bound, value_ns in zip(("low", "high"), found[1] or (), strict=False):
                        p99_ci95.add_metric([name, bound], value_ns / 1e9)
                counted = sums.counts["knows sent"] or not sums.counts["knows references"]
                if counted:
                    delay.add_metric([name], _cumulative(BOUNDS, sums.delays), sums.seconds)
                    judged.add_metric([name], sums.counts["loss_sent"])
                if sums.counts["knows references"]:
                    interpolated.add_metric([name], sums.counts["interpolated"], sums.interpolated)
                    for what, family in references.items():
                        family.add_metric([name], sums.counts[f"references_{what}"])
                for what, family in order.items() if sums.counts["checked"] else ():
                    family.add_metric([name], sums.counts[what])
                for what, family in counters.items():
                    if what == "received" or (counted if what in ("sent", "lost") else sums.counts[f"knows {what}"]):
                        family.add_metric([name], sums.lost if what == "lost" else sums.counts[what])
                for side in ("up", "down"):
                    unseen.add_metric([name, f"{side}stream"], sums.counts[f"unseen_{side}"])
                for outcome in ("measured", "empty", "disjoint", "incomparable", "unseen"):
                    intervals.add_metric([name, outcome], sums.counts[outcome])
                error.add_metric([name], sums.error_ns / 1e9)
                synchronised.add_metric([name], float(sums.synchronised))
                for bound, value_ns in zip(("low", "high"), sums.ci95_ns or (), strict=False):
                    ci95.add_metric([name, bound], value_ns / 1e9)
        of_packets = [delay, interpolated, *counters.values(), *order.values(), judged, unseen, *references.values()]
        return [*of_packets, intervals, error, synchronised, ci95, p99, p99_ci95]

    def _of_itself(self, counted: Mapping[str, int], store_bytes: int, problems: set[str]) -> list[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        ready = HistogramMetricFamily(
            "wirelag_report_ready_seconds", "Time from the end of an interval to its stored report.", labels=["stage"]
        )
        with self._lock:
            for stage, (counts, seconds) in self._ready.items():
                ready.add_metric([stage], _cumulative(READY, counts), seconds[0])
        wrong = GaugeMetricFamily("wirelag_problem", "Whether the collector has this problem now.", labels=["what"])
        for what in KINDS:
            wrong.add_metric([what], float(what in problems))
        messages = CounterMetricFamily("wirelag_messages", "Messages by outcome.", labels=["outcome"])
        size = CounterMetricFamily("wirelag_message_bytes", "Control traffic.", labels=["direction"])
        for outcome, count in sorted(counted.items()):
            if outcome in _SIZES:
                size.add_metric([_SIZES[outcome]], count)
            else:
                messages.add_metric([outcome], count)
        return [
            ready,
            messages,
            size,
            wrong,
            GaugeMetricFamily("wirelag_store_bytes", "Size of the store.", value=store_bytes),
        ]


def _of_limits(in_use: Mapping[str, InUse]) -> list[Metric]:
    from prometheus_client.metrics_core import GaugeMetricFamily

    most = GaugeMetricFamily("wirelag_limit", "Limits of the collector, and of one point.", labels=["limit"])
    used = GaugeMetricFamily("wirelag_limit_used", "How much of them is in use, if shared.", labels=["limit"])
    for name, one in in_use.items():
        most.add_metric([name], one.most)
        if one.used is not None:
            used.add_metric([name], one.used)
    return [most, used]


def _of_ends(ends: Iterable[Ends]) -> Metric:
    from prometheus_client.metrics_core import GaugeMetricFamily

    family = GaugeMetricFamily("wirelag_segment_end", "1: this point is an end of it.", labels=["segment", "point"])
    for one in list(ends)[:MOST_SEGMENTS]:
        for point in one.points:
            family.add_metric([one.segment, point], 1.0)
    return family


def _of_agents(agents: list[dict[str, Any]]) -> list[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    by = ["point"]
    gauges: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
        "wirelag_agent_up": ("Whether the agent was heard recently.", lambda one: float(one["alive"])),
        "wirelag_agent_last_message_timestamp_seconds": ("Time of its last message.", lambda one: one["heard"]),
        "wirelag_agent_clock_error_seconds": ("Error bound of its clock.", lambda one: one["clock"]["error"]),
        "wirelag_agent_clock_synchronised": ("Whether it is in sync.", lambda one: float(one["clock"]["synchronised"])),
        "wirelag_agent_behind_seconds": (
            "The collector's clock minus the agent's, plus network delay.", lambda one: one["behind"],
        ),
        "wirelag_agent_last_interval_timestamp_seconds": (
            "End of the last interval that it reported.", lambda one: one["last_interval"],
        ),
        "wirelag_agent_spool_bytes": ("Bytes waiting on its disk.", lambda one: one["says"].get("spooled_bytes")),
        "wirelag_agent_spool_failing": (
            "Whether its spool cannot be written.", lambda one: one["says"].get("spool_failing"),
        ),
        "wirelag_agent_spool_age_seconds": (
            "How long its oldest message has waited.", lambda one: _seconds(one["says"].get("spool_age_ns")),
        ),
        "wirelag_agent_spool_messages": ("Messages waiting on its disk.", lambda one: one["says"].get("spooled")),
    }  # fmt: skip
    counters: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
        "wirelag_agent_packets": ("Packets that it captured.", lambda one: one["packets"]),
        "wirelag_agent_packets_unseen": ("Packets its capture dropped.", lambda one: one["unseen"]),
        "wirelag_agent_messages": ("Messages it sent.", lambda one: one["messages"]),
        "wirelag_agent_message_bytes": ("Their size.", lambda one: one["bytes"]),
        "wirelag_agent_messages_dropped": (
            "Messages dropped since its start: spool full, or refused.", _given_up,
        ),
        "wirelag_agent_clock_steps": (
            "How often its clock was set since its start.", lambda one: one["says"].get("clock_steps"),
        ),
        "wirelag_agent_intervals_lost": (
            "Intervals dropped since its start: the disk failed.", lambda one: one["says"].get("lost_parts"),
        ),
    }  # fmt: skip
    families: list[Metric] = []
    for name, (text, value) in gauges.items():
        gauge = GaugeMetricFamily(name, text, labels=by)
        for one in agents[:MOST_POINTS]:
            if (number := _number(value(one))) is not None:
                gauge.add_metric([one["point"]], number)
        families.append(gauge)
    for name, (text, value) in counters.items():
        counter = CounterMetricFamily(name, text, labels=by)
        for one in agents[:MOST_POINTS]:
            if (number := _number(value(one))) is not None:
                counter.add_metric([one["point"]], number)
        if len(agents) > MOST_POINTS:
            counter.add_metric([OTHER], sum(_number(value(one)) or 0.0 for one in agents[MOST_POINTS:]))
        families.append(counter)
    return families


def _outcome(tally: Tally) -> str:
    if tally.reason == APART:
        return "disjoint"
    return "measured" if tally.moments.used else "empty" if tally.comparable else "incomparable"


def _number(value: Any) -> float | None:
    """A number from an agent's status, which may hold anything or nothing."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:
        return None


def _seconds(value_ns: Any) -> float | None:
    number = _number(value_ns)
    return None if number is None else number / 1e9


def _cumulative(bounds: tuple[float, ...], counts: Any) -> list[tuple[str, float]]:
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return list(zip(names, np.cumsum(counts, dtype=np.float64).tolist(), strict=True))


def _given_up(agent: dict[str, Any]) -> Any:
    said = [_number(agent["says"].get(name)) for name in ("spool_dropped", "refused")]
    return None if said == [None, None] else sum(number or 0.0 for number in said)
