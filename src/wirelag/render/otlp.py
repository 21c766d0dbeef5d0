"""Metric families as OpenTelemetry metrics (OTLP, protobuf): the body of a request to /v1/metrics.

Delays are exponential histograms, in buckets of 2.2% (exponential.py); all else keeps its name and labels of /metrics.
Counts are cumulative, since `start_ns`.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from wirelag.render.metric_families import Labels, Native, Point, name_of, points_of
from wirelag.render.protobuf import (
    of_bytes,
    of_double,
    of_doubles,
    of_fixed,
    of_integer,
    of_integers,
    of_signed,
    of_text,
    of_words,
)
from wirelag.stats.exponential import SCALE, ZERO_S, Exponential

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

HEADERS: Final = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
_CUMULATIVE: Final = 2
_UNITS: Final = {"seconds": "s", "bytes": "By"}


def to_otlp(
    families: Iterable[Metric], natives: Iterable[Native], resource: Mapping[str, str], start_ns: int, now_ns: int
) -> bytes:
    """All metrics of a process that `resource` describes, compressed."""
    natives = list(natives)
    exponential = {one.name.replace("_native", "") for one in natives}
    times = of_fixed(2, start_ns) + of_fixed(3, now_ns)
    found = [_metric(family, times) for family in families if family.name not in exponential and family.samples]
    for one in natives:
        points = [of_bytes(1, _exponential(name, delays, times)) for name, delays in one.histograms.items()]
        data = of_bytes(10, b"".join(points) + of_integer(2, _CUMULATIVE))
        found.append(_named(one.name.replace("_native", ""), one.text) + data)
    scope = of_bytes(1, of_text(1, "wirelag"))
    metrics = b"".join(of_bytes(2, metric) for metric in found)
    about = of_bytes(1, _attributes(1, tuple(resource.items())))
    return gzip.compress(of_bytes(1, about + of_bytes(2, scope + metrics)), 5, mtime=0)


def _named(name: str, text: str) -> bytes:
    unit = _UNITS.get(name.removesuffix("_total").rpartition("_")[2], "1")
    return of_text(1, name) + of_text(2, text) + of_text(3, unit)


def _attributes(field: int, labels: Labels) -> bytes:
    return b"".join(of_bytes(field, of_text(1, name) + of_bytes(2, of_text(1, value))) for name, value in labels)


def _metric(family: Metric, times: bytes) -> bytes:
    points = points_of(family).items()
    cumulative = of_integer(2, _CUMULATIVE)
    if family.type == "histogram":
        data = of_bytes(9, b"".join(of_bytes(1, _histogram(*one, times)) for one in points) + cumulative)
    elif family.type == "summary":
        data = of_bytes(11, b"".join(of_bytes(1, _summary(*one, times)) for one in points))
    elif family.type == "counter":
        numbers = b"".join(of_bytes(1, _number(*one, times)) for one in points)
        data = of_bytes(7, numbers + cumulative + of_integer(3, 1))
    else:
        data = of_bytes(5, b"".join(of_bytes(1, _number(*one, times)) for one in points))
    return _named(name_of(family), family.documentation) + data


def _number(labels: Labels, point: Point, times: bytes) -> bytes:
    return _attributes(7, labels) + times + of_double(4, point.value)


def _summary(labels: Labels, point: Point, times: bytes) -> bytes:
    return _attributes(7, labels) + times + of_fixed(4, round(point.count)) + of_double(5, point.total)


def _histogram(labels: Labels, point: Point, times: bytes) -> bytes:
    """Counts of single buckets; the last has no upper bound."""
    up_to = [0, *(round(count) for _, count in point.buckets)]
    counts = [above - below for below, above in pairwise(up_to)]
    bounds = [bound for bound, _ in point.buckets if math.isfinite(bound)]
    sums = of_fixed(4, up_to[-1]) + of_double(5, point.total)
    return _attributes(9, labels) + times + sums + of_words(6, counts) + of_doubles(7, bounds)


def _exponential(segment: str, one: Exponential, times: bytes) -> bytes:
    first, counts = one.buckets()
    # Here bucket i begins at FACTOR^i, where Prometheus' ends.
    buckets = of_signed(1, first - 1) + of_integers(2, counts) if counts else b""
    sums = of_fixed(4, one.count) + of_double(5, one.seconds) + of_signed(6, SCALE) + of_fixed(7, one.zero)
    return _attributes(1, (("segment", segment),)) + times + sums + of_bytes(8, buckets) + of_double(14, ZERO_S)
