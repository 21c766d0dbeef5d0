"""`wirelag watch --prometheus`: measurements since the start, for Prometheus.

Series are bounded: one histogram for each leg, and two numbers for each group that fits `--group-memory` and each
of its methods, or legs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from wirelag.render.prometheus import Exporter, buckets

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from wirelag.capture.live import Source
    from wirelag.measure.live import LiveMeasure

HELP = {
    "round_trip": "Time from a request to its response, as both pass the interface, by leg.",
    "response": "Time from a request to the last byte of its response.",
}


def exporter(address: str, source: Source, measure: LiveMeasure) -> Exporter:
    """Serve the metrics of a measurement."""

    def collect() -> Iterable[Metric]:
        with measure.lock:
            return list(metrics(source, measure))

    return Exporter(address, collect)


def metrics(source: Source, measure: LiveMeasure) -> Iterable[Metric]:
    """The metrics so far."""
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, SummaryMetricFamily

    name, where = f"wirelag_{measure.quantity}_seconds", source.name
    histogram = HistogramMetricFamily(name, HELP[measure.quantity], labels=["interface", "leg"])
    for leg, delays in measure.delays().items():
        histogram.add_metric([where, leg], buckets(delays), delays.sum_ns / 1e9)
    yield histogram
    report = measure.estimated() if measure.delays() else measure.report()
    if report is not None:
        # One direction gives only means: a sum and a count, no buckets.
        estimated = SummaryMetricFamily(
            f"wirelag_{measure.quantity}_estimated_seconds", HELP[measure.quantity], labels=["interface"]
        )
        estimated.add_metric([where], report.samples, (report.mean or 0.0) * report.samples)
        yield estimated
    label = "method" if measure.quantity == "response" else "leg"
    groups = SummaryMetricFamily(
        f"wirelag_{measure.quantity}_group_seconds",
        "The same by group.",
        labels=["interface", "group", label],
    )
    for (key, estimator, leg), sums in measure.groups.sums.items():
        method = "pairs" if estimator == "pairs" else "estimated"
        groups.add_metric([where, key, leg or method], sums.samples, sums.sum_ns / 1e9)
    yield groups
    known = source.statistics
    for counter, text, value in (
        ("wirelag_capture_packets", "Packets captured.", known.packets),
        ("wirelag_capture_dropped_packets", "Packets that the kernel had no room for.", known.dropped),
        ("wirelag_capture_freezes", "How often the ring was found full.", known.freezes),
        ("wirelag_capture_bytes", "Bytes of packets on the wire.", known.wire_bytes),
    ):
        family = CounterMetricFamily(counter, text, labels=["interface"])
        family.add_metric([where], value)
        yield family
    skipped = CounterMetricFamily(
        "wirelag_capture_skipped_packets", "Packets that could not be decoded.", labels=["interface", "reason"]
    )
    for reason, count in known.skipped.items():
        skipped.add_metric([where, reason], count)
    yield skipped
