"""`wirelag balance --prometheus`: weights, latencies and loads of backends, for Prometheus.

Series are bounded by the number of services and backends; those of a removed backend end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
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
    """Totals of a service since the start; `add` and reading them are for whoever holds the lock."""

    def __init__(self, service: str = "service", applier: Applier | None = None) -> None:
        self.service, self._applier = service, applier
        self.counts: dict[str, Counts] = {}
        self.unknown: dict[str, int] = {}
        self.moves = 0
        self.last: Step | None = None

    def add(self, entry: Step) -> None:
        """Add an interval."""
        self.last = entry
        self.moves += bool(entry.decision.changes)
        names = entry.names
        self.counts = {n: self.counts.get(n, Counts()) + entry.counts.get(n, Counts()) for n in names}
        self.unknown = {
            name: self.unknown.get(name, 0) + (entry.decision.latencies.get(name) is None) for name in names
        }

    @property
    def failures(self) -> dict[str, int]:
        """What failed, or found no room."""
        found = dict(self.last.counters) if self.last else {}
        return found if self._applier is None else {**found, "apply": self._applier.failures}

    def weights(self, entry: Step) -> dict[str, float]:
        """Weights now."""
        return {name: entry.decision.weights.get(name, 0.0) for name in self.counts}

    def connections(self, entry: Step) -> dict[str, float]:
        """Open connections now."""
        return {name: float(entry.counts.get(name, Counts()).connections) for name in self.counts}


def exporter(address: str, lock: threading.Lock, services: Sequence[Totals]) -> Exporter:
    """Serve the metrics of all services; `lock` is held while they change."""
    from wirelag.render.prometheus import Exporter

    def collect() -> Iterable[Metric]:
        with lock:
            return list(_metrics([one for one in services if one.last is not None]))

    return Exporter(address, collect)


def _latencies(_: Totals, entry: Step) -> dict[str, float]:
    return {name: latency.mean_ns / 1e9 for name, latency in entry.decision.latencies.items() if latency}


def _metrics(services: Sequence[Totals]) -> Iterable[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

    if not services:
        return
    entries = [(one, one.last) for one in services if one.last is not None]

    def family(kind: Any, name: str, text: str, values: Callable[[Totals, Step], dict[str, float]]) -> Metric:
        made = kind(f"wirelag_balance_{name}", text, labels=["service", "backend"])
        for totals, entry in entries:
            for backend, value in values(totals, entry).items():
                made.add_metric([totals.service, backend], value)
        return made  # type: ignore[no-any-return]

    yield family(GaugeMetricFamily, "weight", "The backend's share of new connections.", Totals.weights)
    yield family(GaugeMetricFamily, "latency_seconds", "Response latency; absent if unknown.", _latencies)
    yield family(GaugeMetricFamily, "connections", "Open connections.", Totals.connections)
    text = "1 for the backend's current standing."
    standing = GaugeMetricFamily("wirelag_balance_standing", text, labels=["service", "backend", "standing"])
    text = "Response latency of the backend."
    summary = SummaryMetricFamily("wirelag_balance_response_seconds", text, labels=["service", "backend"])
    text = "Failures, and items beyond a limit."
    failed = CounterMetricFamily("wirelag_balance_failures", text, labels=["service", "what"])
    moves = CounterMetricFamily("wirelag_balance_moves", "Intervals that changed weights.", labels=["service"])
    for totals, entry in entries:
        moves.add_metric([totals.service], totals.moves)
        for name, counts in totals.counts.items():
            summary.add_metric([totals.service, name], counts.count, counts.sum_ns / 1e9)
            now = entry.standing(name)
            for one in STANDINGS:
                standing.add_metric([totals.service, name, one], float(one == now))
        for what, count in totals.failures.items():
            failed.add_metric([totals.service, what], count)
    yield standing
    yield summary
    for what, text in COUNTERS.items():
        yield family(CounterMetricFamily, what, text, _counter(what))
    text = "Intervals with an unknown latency."
    yield family(
        CounterMetricFamily,
        "unknown_intervals",
        text,
        lambda totals, _: {n: float(c) for n, c in totals.unknown.items()},
    )
    yield moves
    yield failed


def _counter(what: str) -> Callable[[Totals, Step], dict[str, float]]:
    return lambda totals, _: {name: float(getattr(counts, what)) for name, counts in totals.counts.items()}
