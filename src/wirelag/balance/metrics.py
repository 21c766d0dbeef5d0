"""`wirelag balance --prometheus`: weights, latencies and loads of backends, for Prometheus.

Series are bounded by the number of backends; those of a removed backend end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from wirelag.ebpf.service import Counts

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from wirelag.balance.apply import Applier
    from wirelag.balance.loop import Step
    from wirelag.render.prometheus import Exporter

STANDINGS: Final = ("well", "slow", "silent", "unknown", "draining", "down")
COUNTERS: Final = {
    "requests": "Requests sent to the backend.",
    "opened": "Connections opened.",
    "repeated": "Requests and SYNs that clients retransmitted.",
    "packets": "Packets sent to the backend.",
    "bytes": "Bytes sent to the backend.",
    "abstained": "Epochs without a latency estimate.",
}


class Totals:
    """Totals since the start."""

    def __init__(self) -> None:
        self._counts: dict[str, Counts] = {}
        self._unknown: dict[str, int] = {}
        self._moves = 0
        self._last: Step | None = None

    def add(self, entry: Step) -> None:
        """Add an interval."""
        self._last = entry
        self._moves += bool(entry.decision.changes)
        names = entry.names
        self._counts = {n: self._counts.get(n, Counts()) + entry.counts.get(n, Counts()) for n in names}
        self._unknown = {
            name: self._unknown.get(name, 0) + (entry.decision.latencies.get(name) is None) for name in names
        }

    def exporter(self, address: str, lock: threading.Lock, applier: Applier | None) -> Exporter:
        """Serve the metrics; `lock` is held while they change."""
        from wirelag.render.prometheus import Exporter

        def collect() -> Iterable[Metric]:
            with lock:
                return list(self._metrics(applier))

        return Exporter(address, collect)

    def _metrics(self, applier: Applier | None) -> Iterable[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        entry = self._last
        if entry is None:
            return
        decision = entry.decision

        def family(kind: Any, name: str, text: str, values: dict[str, float]) -> Metric:
            made = kind(f"wirelag_balance_{name}", text, labels=["backend"])
            for backend, value in values.items():
                made.add_metric([backend], value)
            return made  # type: ignore[no-any-return]

        weights = {name: decision.weights.get(name, 0.0) for name in self._counts}
        yield family(GaugeMetricFamily, "weight", "The backend's share of new connections.", weights)
        known = {name: latency.mean_ns / 1e9 for name, latency in decision.latencies.items() if latency}
        text = "Response latency; absent if unknown."
        yield family(GaugeMetricFamily, "latency_seconds", text, known)
        open_now = {name: float(entry.counts.get(name, Counts()).connections) for name in self._counts}
        yield family(GaugeMetricFamily, "connections", "Open connections.", open_now)
        standing = GaugeMetricFamily(
            "wirelag_balance_standing", "1 for the backend's current standing.", labels=["backend", "standing"]
        )
        for name in self._counts:
            now = entry.standing(name)
            for one in STANDINGS:
                standing.add_metric([name, one], float(one == now))
        yield standing
        summary = SummaryMetricFamily(
            "wirelag_balance_response_seconds", "Response latency of the backend.", labels=["backend"]
        )
        for name, counts in self._counts.items():
            summary.add_metric([name], counts.count, counts.sum_ns / 1e9)
        yield summary
        for what, text in COUNTERS.items():
            values = {name: float(getattr(counts, what)) for name, counts in self._counts.items()}
            yield family(CounterMetricFamily, what, text, values)
        unknown = {name: float(count) for name, count in self._unknown.items()}
        text = "Intervals with an unknown latency."
        yield family(CounterMetricFamily, "unknown_intervals", text, unknown)
        yield CounterMetricFamily("wirelag_balance_moves", "Intervals that changed weights.", value=self._moves)
        failed = CounterMetricFamily("wirelag_balance_failures", "Failures, and items beyond a limit.", labels=["what"])
        for what, count in entry.counters.items():
            failed.add_metric([what], count)
        if applier is not None:
            failed.add_metric(["apply"], applier.failures)
        yield failed
