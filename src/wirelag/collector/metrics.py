"""What Prometheus sees of the collector. Times are seconds, sizes bytes, counters only grow while the process lives.

Label sets are bounded: MOST_SEGMENTS segments and MOST_POINTS points by name, all others together as `other`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wirelag.collector.tally import Tally
from wirelag.distribution import MIDDLES_NS
from wirelag.results import Rank, Result

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

MOST_SEGMENTS: Final = 500
MOST_POINTS: Final = 1000
OTHER: Final = "other"
BOUNDS: Final = (*(float(f"{m}e{e}") for e in range(-5, 1) for m in (1, 2.5, 5)), 10.0)  # seconds
READY: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LIVE_NS: Final = 60 * 10**9  # what comes later was on an agent's disk: it says nothing about how fast results are
_SIZES: Final = {"bytes": "in", "asked bytes": "out"}
_BOUNDS_NS: Final = np.array(BOUNDS) * 1e9


@dataclass(slots=True)
class _Sums:
    """Of one segment."""

    delays: Any = field(default_factory=lambda: np.zeros(len(BOUNDS) + 1))
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    error_ns: int = 0
    synchronised: bool = True


class Metrics:
    """Filled by the collector, read by whoever scrapes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: dict[str, _Sums] = {}
        self._ready = {stage: (np.zeros(len(READY) + 1), [0.0]) for stage in ("first", "complete", "settled")}

    def ready(self, result: Result, now_ns: int) -> None:
        """A result was kept so long after its interval's end."""
        late_ns = now_ns - result.interval.end_ns
        if result.rank == Rank.UNSEEN or not 0 <= late_ns < LIVE_NS:
            return
        stage = "settled" if result.rank > Rank.FIRST else "complete" if result.complete else "first"
        with self._lock:
            counts, seconds = self._ready[stage]
            counts[int(np.searchsorted(READY, late_ns / 1e9))] += 1
            seconds[0] += late_ns / 1e9

    def missed(self, segment: str) -> None:
        """One point said nothing of an interval."""
        with self._lock:
            self._sums(segment).counts["unseen"] += 1

    def settled(self, segment: str, tally: Tally) -> None:
        """An interval is known; this is called once for each."""
        with self._lock:
            sums = self._sums(segment)
            weights = np.zeros(len(BOUNDS) + 1)
            np.add.at(weights, np.searchsorted(_BOUNDS_NS, MIDDLES_NS[tally.bins]), tally.weights)
            weights[0] += tally.negative
            sums.delays += weights
            mean_ns = tally.moments.mean_ns
            # The mean is exact, the sample is not: so the sum of what is counted has the exact mean.
            sums.seconds += 0.0 if mean_ns is None else max(0.0, mean_ns) / 1e9 * float(weights.sum())
            sums.error_ns, sums.synchronised = tally.clock_error_ns, not tally.unsynchronised
            sums.counts["measured" if tally.moments.used else "empty"] += 1
            for name in ("sent", "received", "loss_sent", "lost", "unseen_up", "unseen_down"):
                sums.counts[name] += getattr(tally, name)
            for name in ("reordered", "duplicated"):
                if (value := getattr(tally, name)) is not None:
                    sums.counts[name] += value
                    sums.counts[f"knows {name}"] = 1

    def _sums(self, segment: str) -> _Sums:
        if segment not in self._segments and len(self._segments) >= MOST_SEGMENTS:
            segment = OTHER
        return self._segments.setdefault(segment, _Sums())

    # ---- as Prometheus reads it ----

    def text(self, agents: list[dict[str, Any]], counted: Mapping[str, int], store_bytes: int) -> tuple[bytes, str]:
        """The exposition and its media type."""
        from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector

        families = [*self._of_segments(), *_of_agents(agents), *self._of_itself(counted, store_bytes)]

        class Fixed(Collector):
            def collect(self) -> Iterator[Metric]:
                yield from families

        registry = CollectorRegistry()
        registry.register(Fixed())
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4

    def _of_segments(self) -> list[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        by = ["segment"]
        delay = HistogramMetricFamily("wirelag_one_way_delay_seconds", "One-way delay of packets.", labels=by)
        counters = {
            name: CounterMetricFamily(f"wirelag_packets_{name}", text, labels=by)
            for name, text in (
                ("sent", "Packets seen upstream."),
                ("received", "Packets seen downstream."),
                ("lost", "Packets seen upstream that never arrived, where that is known."),
                ("reordered", "Packets that arrived out of order, where the method can tell."),
                ("duplicated", "Packets that arrived more than once, where the method can tell."),
            )
        }
        judged = CounterMetricFamily(
            "wirelag_packets_judged", "Packets sent in intervals whose loss is known.", labels=by
        )
        unseen = CounterMetricFamily(
            "wirelag_packets_unseen", "Packets that a capture dropped: unseen, not lost.", labels=["segment", "side"]
        )
        intervals = CounterMetricFamily(
            "wirelag_intervals", "Intervals: measured, empty, or unseen by a point.", labels=["segment", "outcome"]
        )
        error = GaugeMetricFamily(
            "wirelag_segment_clock_error_seconds", "Delays are right within this, as far as clocks go.", labels=by
        )
        synchronised = GaugeMetricFamily("wirelag_segment_clocks_synchronised", "Whether both clocks are.", labels=by)
        with self._lock:
            for name, sums in self._segments.items():
                delay.add_metric([name], _cumulative(BOUNDS, sums.delays), sums.seconds)
                for what, family in counters.items():
                    if what in ("sent", "received", "lost") or sums.counts[f"knows {what}"]:
                        family.add_metric([name], sums.counts[what])
                judged.add_metric([name], sums.counts["loss_sent"])
                for side in ("up", "down"):
                    unseen.add_metric([name, f"{side}stream"], sums.counts[f"unseen_{side}"])
                for outcome in ("measured", "empty", "unseen"):
                    intervals.add_metric([name, outcome], sums.counts[outcome])
                error.add_metric([name], sums.error_ns / 1e9)
                synchronised.add_metric([name], float(sums.synchronised))
        return [delay, *counters.values(), judged, unseen, intervals, error, synchronised]

    def _of_itself(self, counted: Mapping[str, int], store_bytes: int) -> list[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        ready = HistogramMetricFamily(
            "wirelag_report_ready_seconds", "How long after its interval's end a report is kept.", labels=["stage"]
        )
        with self._lock:
            for stage, (counts, seconds) in self._ready.items():
                ready.add_metric([stage], _cumulative(READY, counts), seconds[0])
        messages = CounterMetricFamily("wirelag_messages", "Messages by what became of them.", labels=["outcome"])
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
            GaugeMetricFamily("wirelag_store_bytes", "Size of the store.", value=store_bytes),
        ]


def _of_agents(agents: list[dict[str, Any]]) -> list[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    by = ["point"]
    gauges: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
        "wirelag_agent_up": ("Whether the agent was heard of lately.", lambda one: float(one["alive"])),
        "wirelag_agent_last_message_timestamp_seconds": ("When it was last heard of.", lambda one: one["heard"]),
        "wirelag_agent_clock_error_seconds": ("Its clock is right within this.", lambda one: one["clock"]["error"]),
        "wirelag_agent_clock_synchronised": ("Whether it is.", lambda one: float(one["clock"]["synchronised"])),
        "wirelag_agent_behind_seconds": (
            "The collector's clock less the agent's, with the way between them.", lambda one: one["behind"],
        ),
    }  # fmt: skip
    counters = {
        "wirelag_agent_packets": ("Packets it took in.", "packets"),
        "wirelag_agent_packets_unseen": ("Packets its capture dropped.", "unseen"),
        "wirelag_agent_messages": ("Messages it sent.", "messages"),
        "wirelag_agent_message_bytes": ("Their size.", "bytes"),
    }
    families: list[Metric] = []
    for name, (text, value) in gauges.items():
        gauge = GaugeMetricFamily(name, text, labels=by)
        for one in agents[:MOST_POINTS]:
            gauge.add_metric([one["point"]], value(one))
        families.append(gauge)
    for name, (text, key) in counters.items():
        counter = CounterMetricFamily(name, text, labels=by)
        for one in agents[:MOST_POINTS]:
            counter.add_metric([one["point"]], one[key])
        if len(agents) > MOST_POINTS:
            counter.add_metric([OTHER], sum(one[key] for one in agents[MOST_POINTS:]))
        families.append(counter)
    return families


def _cumulative(bounds: tuple[float, ...], counts: Any) -> list[tuple[str, float]]:
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return list(zip(names, np.cumsum(counts).tolist(), strict=True))
