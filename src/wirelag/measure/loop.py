"""Run any estimator over any packets: batches into meters, synopses into reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from wirelag.estimators.drive import cut_by_time
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import Delimiters

if TYPE_CHECKING:
    from wirelag.estimators.protocol import Estimator
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.grouping import Grouping
    from wirelag.report import Report
    from wirelag.twopoint.spans import Crosses

S = TypeVar("S")


def run(
    estimator: Estimator[S],
    sources: Mapping[str, Iterable[PacketBatch]],
    interval_ns: int | None = None,
    grouping: Grouping | None = None,
) -> Iterator[Report]:
    """Run an estimator over packets and yield a report per interval, in order of time.

    `sources` has the packets of each of the estimator's points. They must be on one clock and of one direction
    (`wirelag.oneway` ensures both). An interval in which only one point saw packets is reported; one without packets is
    not. Without `interval_ns` there is one report over all packets.
    """
    if set(sources) != set(estimator.points):
        raise ValueError(f"the estimator needs packets of {', '.join(estimator.points)}, not of {', '.join(sources)}")
    from wirelag.twopoint.spans import Crosses

    if isinstance(estimator, Crosses):
        yield from _between(estimator, sources, interval_ns)
        return
    for interval, synopses in cut(estimator, sources, interval_ns, grouping):
        yield estimator.estimate(*synopses).during(interval)


def _between(
    estimator: Crosses, sources: Mapping[str, Iterable[PacketBatch]], interval_ns: int | None
) -> Iterator[Report]:
    from wirelag.twopoint.spans import spans_between

    delimiters = None
    if interval_ns is not None and estimator.can.delimited:
        delimiters = Delimiters(interval_ns, seed=getattr(estimator, "seed", 0))
    for span in spans_between(estimator, sources, interval_ns, delimiters):
        yield span.whole.report(estimator.name).during(span.interval)


def cut(
    estimator: Estimator[S],
    sources: Mapping[str, Iterable[PacketBatch]],
    interval_ns: int | None = None,
    grouping: Grouping | None = None,
) -> Iterator[tuple[Interval, list[S]]]:
    """The synopses of each interval, in the order of the estimator's points; `run` estimates from them.

    No packet of a later interval is read before: what a meter hands to its sinks belongs to this one.
    """
    points = estimator.points
    cuts = [cut_by_time(estimator.meter(point), sources[point], interval_ns, grouping) for point in points]
    heads = [next(one, None) for one in cuts]
    if interval_ns is None:
        found = [head for head in heads if head]
        seen = [interval for interval, _ in found if interval.length_ns]
        whole = Interval(min((i.start_ns for i in seen), default=0), max((i.end_ns for i in seen), default=0))
        yield whole, [synopsis for _, synopsis in found]
        return
    while any(heads):
        interval = min(head[0] for head in heads if head)
        synopses, ended = [], []
        for i, (point, head) in enumerate(zip(points, heads, strict=True)):
            if head and head[0] == interval:
                synopses.append(head[1])
                ended.append(i)
            else:
                synopses.append(estimator.meter(point).cut(interval))
        yield interval, synopses
        for i in ended:
            heads[i] = next(cuts[i], None)
