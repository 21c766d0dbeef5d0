"""The one driver loop, `wirelag.measure`: batches into meters, synopses into reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from wirelag.estimators.protocol import Estimator
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.intervals import Delimiters, Interval, split
from wirelag.report import Report
from wirelag.twopoint.spans import Crosses, crossings

S = TypeVar("S")


def measure(
    estimator: Estimator[S],
    sources: Mapping[str, Iterable[PacketBatch]],
    interval_ns: int | None = None,
    grouping: Grouping | None = None,
) -> Iterator[Report]:
    """Run an estimator over packets and yield a report per interval, in order of time.

    `sources` has the packets of each of the estimator's points. An interval in which one point saw packets and another
    saw none is reported all the same; one in which nobody saw any is not. Without `interval_ns` there is one
    report, over everything there was.
    """
    if set(sources) != set(estimator.points):
        raise ValueError(f"the estimator wants packets of {', '.join(estimator.points)}, not of {', '.join(sources)}")
    if isinstance(estimator, Crosses):
        yield from _measure_between(estimator, sources, interval_ns)
        return
    for interval, synopses in cut(estimator, sources, interval_ns, grouping):
        yield estimator.estimate(*synopses).during(interval)


def _measure_between(
    estimator: Crosses, sources: Mapping[str, Iterable[PacketBatch]], interval_ns: int | None
) -> Iterator[Report]:
    delimiters = None
    if interval_ns is not None and getattr(estimator, "delimited", False):
        delimiters = Delimiters(interval_ns, seed=getattr(estimator, "seed", 0))
    for span in crossings(estimator, sources, interval_ns, delimiters):
        yield span.whole.report(estimator.name).during(span.interval)


def cut(
    estimator: Estimator[S],
    sources: Mapping[str, Iterable[PacketBatch]],
    interval_ns: int | None = None,
    grouping: Grouping | None = None,
) -> Iterator[tuple[Interval, list[S]]]:
    """The synopses of each interval, in the order of the estimator's points: what `measure` estimates from."""
    points = estimator.points
    meters = [estimator.meter(point) for point in points]
    parts = [split(sources[point], interval_ns) for point in points]
    if interval_ns is None:
        seen = []
        for meter, stream in zip(meters, parts, strict=True):
            for interval, packets in stream:
                meter.observe(packets, grouping)
                seen.append(interval)
        whole = Interval(min((i.start_ns for i in seen), default=0), max((i.end_ns for i in seen), default=0))
        yield whole, [meter.cut(whole) for meter in meters]
        return
    heads = [next(stream, None) for stream in parts]
    while any(heads):
        interval = min(head[0] for head in heads if head)
        for i, meter in enumerate(meters):
            while (head := heads[i]) and head[0] == interval:
                meter.observe(head[1], grouping)
                heads[i] = next(parts[i], None)
        yield interval, [meter.cut(interval) for meter in meters]
