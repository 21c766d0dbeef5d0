"""The sum of segments along a path, from stored results: `wirelag path` on live results."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from wirelag.collector.tally import Tally
from wirelag.errors import WirelagError
from wirelag.measure.path import PathResult, Route
from wirelag.network.cover import Cover
from wirelag.network.localise import judge, trials
from wirelag.network.reports import BOUND, SegmentReport, figures_of
from wirelag.network.segments import Segment, parse_segment
from wirelag.network.topology import Topology


def waterfall(
    topology: Topology,
    tallies: Iterable[tuple[str, Tally]],
    source: str,
    target: str,
    slow: float,
    upgraded: Collection[str] = (),
) -> dict[str, Any]:
    """The path in the format of docs/reference/schema/path.json, from the figures of each segment.

    `upgraded`: measuring routers, besides those whose insides are among the segments.
    """
    for router in (source, target):
        topology.check(router)
    reports: dict[Segment, SegmentReport] = {}
    notes: list[str] = []
    checking = Cover(topology, ())
    for name, tally in tallies:
        if not tally.intervals and not tally.missed:
            continue
        try:
            segment = parse_segment(name)
            checking.check(segment, name)
        except WirelagError as error:
            notes.append(str(error))
            continue
        # Loss is that of the intervals with known loss.
        known = {"sent": tally.loss_sent, "lost": max(0, round(tally.lost)) if tally.loss_sent else None}
        floor = None if tally.min_ns is None else tally.min_ns / 1e9  # of the sample, if single delays are not known
        more = known | {"samples": tally.moments.used, "floor": floor}
        figures = figures_of(tally.to_json(0, 1, True) | more, BOUND)
        if figures.mean is not None:
            reports[segment] = SegmentReport(segment, name, tally.estimator, figures)
    cover = Cover(topology, reports, upgraded)
    if source == target or cover.routes.cost(source, target) is None:
        raise WirelagError(f"{topology.name} has no path from {source} to {target}")
    paths = cover.paths(source, target)
    whole = {segment: report.whole for segment, report in reports.items()}
    route = Route(source, target, paths, judge(paths, whole, trials(whole, slow)), False)
    result = PathResult(topology, slow, reports, {}, [route], False, [], {}, [*topology.notes, *notes])
    return result.to_dict()
