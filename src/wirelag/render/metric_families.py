"""Metric families in the protobuf form of Prometheus, and grouped by labels for other forms.

Only this form carries native histograms (exponential.py). Families are those of prometheus_client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from wirelag.render.protobuf import of_bytes, of_double, of_integer, of_signed, of_text, varint
from wirelag.stats.exponential import SCALE, ZERO_S, Exponential

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

MEDIA_TYPE: Final = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
_TYPES: Final = {"counter": 0, "gauge": 1, "summary": 2, "histogram": 4}
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Native:
    """A family of native histograms, by segment."""

    name: str
    text: str
    histograms: Mapping[str, Exponential]


@dataclass(slots=True)
class Point:
    """The values of one set of labels of a family."""

    value: float = 0.0
    count: float = 0.0
    total: float = 0.0
    buckets: list[tuple[float, float]] = field(default_factory=list)  # upper bound, cumulative count


def points_of(family: Metric) -> dict[Labels, Point]:
    """The values of a family, by labels."""
    found: dict[Labels, Point] = {}
    for sample in family.samples:
        labels = tuple(one for one in sample.labels.items() if one[0] != "le")
        point = found.setdefault(labels, Point())
        if sample.name.endswith("_bucket"):
            point.buckets.append((float(sample.labels["le"].replace("+Inf", "inf")), sample.value))
        elif family.type in ("histogram", "summary") and sample.name.endswith("_count"):
            point.count = sample.value
        elif family.type in ("histogram", "summary") and sample.name.endswith("_sum"):
            point.total = sample.value
        else:
            point.value = sample.value
    return found


def name_of(family: Metric) -> str:
    """The name under which samples of a family are stored."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def to_protobuf(families: Iterable[Metric], natives: Iterable[Native]) -> bytes:
    """The exposition: each family after its length."""
    found = []
    for family in families:
        parts = [of_text(1, name_of(family)), of_text(2, family.documentation), of_integer(3, _TYPES[family.type])]
        parts += [of_bytes(4, _metric(family.type, labels, one)) for labels, one in points_of(family).items()]
        found.append(b"".join(parts))
    for native in natives:
        parts = [of_text(1, native.name), of_text(2, native.text), of_integer(3, _TYPES["histogram"])]
        for segment, one in native.histograms.items():
            parts.append(of_bytes(4, _labels((("segment", segment),)) + of_bytes(7, _native(one))))
        found.append(b"".join(parts))
    return b"".join(varint(len(family)) + family for family in found)


def _labels(labels: Labels) -> bytes:
    return b"".join(of_bytes(1, of_text(1, name) + of_text(2, value)) for name, value in labels)


def _metric(kind: str, labels: Labels, point: Point) -> bytes:
    values = of_double(1, point.value)
    if kind == "gauge":
        return _labels(labels) + of_bytes(2, values)
    if kind == "counter":
        return _labels(labels) + of_bytes(3, values)
    counts = of_integer(1, round(point.count)) + of_double(2, point.total)
    if kind == "summary":
        return _labels(labels) + of_bytes(4, counts)
    if point.buckets:
        counts = of_integer(1, round(point.buckets[-1][1])) + of_double(2, point.total)
    buckets = (of_bytes(3, of_integer(1, round(count)) + of_double(2, bound)) for bound, count in point.buckets)
    return _labels(labels) + of_bytes(7, counts + b"".join(buckets))


def _native(one: Exponential) -> bytes:
    first, counts = one.buckets()
    parts = [of_integer(1, one.count), of_double(2, one.seconds), of_signed(5, SCALE), of_double(6, ZERO_S)]
    parts.append(of_integer(7, one.zero))
    parts += [of_bytes(12, span) for span in _spans(first, counts)]
    last = 0
    for count in filter(None, counts):
        parts.append(of_signed(13, count - last))  # deltas between neighbours that are not empty
        last = count
    if not counts:
        parts.append(of_bytes(12, of_signed(1, 0) + of_integer(2, 0)))  # a histogram without delays is native, too
    return b"".join(parts)


def _spans(first: int, counts: list[int]) -> Iterator[bytes]:
    """Runs of buckets that are not empty: the distance from the end of the last one, and the length."""
    end, place = 0, 0
    while place < len(counts):
        length = 0
        while place + length < len(counts) and counts[place + length]:
            length += 1
        if length:
            start = first + place
            yield of_signed(1, start - end) + of_integer(2, length)
            end, place = start + length, place + length
        else:
            place += 1
