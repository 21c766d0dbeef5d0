"""Metric families as Prometheus remote write 1.0: samples in protobuf, in the block format of snappy.

Snappy only frames the bytes here, as literals, which every reader accepts: to find matches in Python would take longer
than to send them, and a library for it would be one more dependency. A segment has about 100 series, 12 kB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from wirelag.render.protobuf import of_bytes, of_double, of_integer, of_text, varint

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

HEADERS: Final = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
MOST_SERIES: Final = 5000  # of a request: receivers limit its size
_MOST_LITERAL: Final = 1 << 16


def to_remote_write(families: Iterable[Metric], labels: Mapping[str, str], at_ms: int) -> list[bytes]:
    """The bodies of requests; `labels` are added to every series."""
    series = [
        _series({"__name__": sample.name, **sample.labels, **labels}, sample.value, at_ms)
        for family in families
        for sample in family.samples
    ]
    return [snappy(b"".join(series[i : i + MOST_SERIES])) for i in range(0, len(series), MOST_SERIES)]


def _series(labels: Mapping[str, str], value: float, at_ms: int) -> bytes:
    """One series with one sample; labels are sorted by name, as receivers demand."""
    named = b"".join(
        of_bytes(1, of_text(1, name) + of_text(2, text)) for name, text in sorted(labels.items()) if text != ""
    )
    sample = of_double(1, value if math.isfinite(value) else math.nan) + of_integer(2, at_ms)
    return of_bytes(1, named + of_bytes(2, sample))


def snappy(data: bytes) -> bytes:
    """The block format of snappy, all literals."""
    found = [varint(len(data))]
    for i in range(0, len(data), _MOST_LITERAL):
        part = data[i : i + _MOST_LITERAL]
        found.append(bytes([61 << 2]) + (len(part) - 1).to_bytes(2, "little") + part)  # its length in two bytes
    return b"".join(found)
