"""Which segment of a path adds the delay, from reports of its segments or captures at its routers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.errors import SettingError, WirelagError
from wirelag.measure.methods import Method
from wirelag.measure.points import Progress, ReadOptions
from wirelag.measure.questions import Questions
from wirelag.measure.result import Result
from wirelag.packets.filters import Filter
from wirelag.units import Duration, duration_ns

if TYPE_CHECKING:
    from wirelag.measure.path_captures import Network
    from wirelag.network.changes import DelayChange
    from wirelag.network.cover import Cover
    from wirelag.network.localise import Path, Total, Verdict
    from wirelag.network.reports import SegmentReport
    from wirelag.network.segments import Segment
    from wirelag.network.timeline import Cell
    from wirelag.network.topology import Topology
    from wirelag.stats.sla import Mean, Sla

Reports = dict["Segment", "SegmentReport"]
Pair = tuple[str, str]
MOST_ROUTERS: Final = 1000  # with more, not every path is judged


@dataclass(frozen=True, kw_only=True)
class PathSettings:
    """Which path, what counts as slow, and how captures are measured."""

    source: str | None = None
    target: str | None = None
    slow_ns: int = 1_000_000
    method: Method = field(default_factory=Method)
    interval_ns: int | None = None
    questions: Questions = field(default_factory=Questions)
    filter: Filter = field(default_factory=Filter)

    def __post_init__(self) -> None:
        self.method.delimiters(self.method.make(), self.interval_ns, None)
        if any(sla.name != "mean" for sla in self.questions.slas):
            raise SettingError("sla", "only the mean of a path is known: ask mean<10ms")
        if self.questions.slas and None in (self.source, self.target):
            raise SettingError("sla", "needs one path: name it with --from and --to")


@dataclass
class Route:
    """A route, and the verdict on it."""

    source: str
    target: str
    paths: list[Path]
    verdict: Verdict
    shares_seen: bool = False
    over_time: list[tuple[Cell, Total]] = field(default_factory=list)


@dataclass(repr=False, eq=False)
class PathResult(Result):
    """What each segment adds, which segments are to blame, and what changed."""

    command: ClassVar[str] = "path"
    topology: Topology
    slow: float  # seconds
    reports: Reports
    baseline: Reports
    routes: list[Route]
    every: bool  # several routes were asked for, not one
    changes: list[DelayChange]
    unassigned: dict[str, dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    packets: int | None = None  # with captures
    skipped: dict[str, int] = field(default_factory=dict)
    questions: Questions = field(default_factory=Questions)

    @property
    def estimators(self) -> list[str]:
        """The methods behind the reports."""
        return sorted({report.estimator for report in self.reports.values()})

    @property
    def culprits(self) -> list[str]:
        """The segments that are to blame, on any route."""
        blamed = (part.segment for route in self.routes for part in route.verdict.culprits)
        return list(dict.fromkeys(str(segment) for segment in blamed))

    def _asked(self) -> Iterator[tuple[Sla, Mean]]:
        """Agreements, and the mean they are about. A lower bound never shows that an agreement holds."""
        from wirelag.stats.sla import Mean

        if not self.questions.slas:
            return
        verdict = self.routes[0].verdict
        mean = Mean(None if verdict.total.mean is None else verdict.total.mean * 1e9)
        for sla in self.questions.slas:
            yield sla, Mean(None) if verdict.missing and sla.holds(mean) else mean

    @property
    def sla(self) -> list[dict[str, Any]]:
        """Whether service-level agreements hold."""
        return [sla.to_dict(mean) for sla, mean in self._asked()]

    @property
    def verdicts(self) -> list[str]:
        """The same in words."""
        return [sla.sentence(mean) for sla, mean in self._asked()]

    @property
    def holds(self) -> bool:
        return all(verdict["holds"] for verdict in self.sla)

    def to_dict(self) -> dict[str, Any]:
        from wirelag.render.path import to_dict

        return to_dict(self)

    def rows(self) -> list[dict[str, Any]]:
        from wirelag.render.path import rows

        return rows(self)

    def parts(self) -> Iterable[dict[str, Any]]:
        return self.rows()

    def table(self) -> list[str]:
        from wirelag.render.path import table

        return table(self)

    def page(self) -> str:
        from wirelag.render.path_page import page

        return page(self)


def path(
    reports: str | PathLike[str] | Sequence[str | PathLike[str]],
    topology: str | PathLike[str],
    *,
    source: str | None = None,
    target: str | None = None,
    baseline: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
    slow: Duration = "1ms",
    sla: Sequence[str] | str = (),
    estimator: str = "join",
    interval: Duration | None = None,
    prefix: int = 16,
    filter: Filter | str | None = None,
    progress: Progress = iter,
) -> PathResult:
    """Find the segment of a path that adds the delay, from reports of its segments or captures at its routers.

    `reports` are files of `oneway`'s JSON, each as `FILE` or `SEGMENT=FILE`, or a folder of captures. Without `source`
    it judges every path to `target`, and vice versa. `baseline` is the same input from a time when nothing was slow.
    `filter` selects packets of captures.
    """
    settings = PathSettings(
        source=source,
        target=target,
        slow_ns=duration_ns(slow, "slow"),
        method=Method(estimator=estimator, prefix=prefix),
        interval_ns=None if interval is None else duration_ns(interval, "interval"),
        questions=Questions.parse((), sla).need_no_legs(),
        filter=Filter.of(filter),
    )
    return measure_path(_listed(reports), fspath(topology), _listed(baseline), settings, progress)


def _listed(given: str | PathLike[str] | Sequence[str | PathLike[str]]) -> list[str]:
    return [fspath(given)] if isinstance(given, str | PathLike) else [fspath(one) for one in given]


def measure_path(
    reports: list[str], topology: str, baseline: list[str], settings: PathSettings, progress: Progress = iter
) -> PathResult:
    """The same, with checked settings."""
    from wirelag.network.topology import read_topology

    if settings.interval_ns is not None and not any(_is_folder(one) for one in (*reports, *baseline)):
        raise SettingError("interval", "needs captures; reports have their own intervals")
    if settings.filter.expression and not any(_is_folder(one) for one in (*reports, *baseline)):
        raise SettingError("filter", "needs captures; reports have no packets")
    net, ends = read_topology(topology), (settings.source, settings.target)
    for router in ends:
        if router is not None:
            net.check(router)
    now, network = _measured(net, reports, settings, progress)
    then, network_then = _measured(net, baseline, settings, progress) if baseline else ({}, None)
    result = _localise(net, now, then, settings.slow_ns / 1e9, ends, network)
    result.questions = settings.questions
    if network_then:
        network_then.unassigned()  # notes whether routes changed
        result.notes += [f"baseline: {note}" for note in network_then.notes]
    networks = [one for one in (network, network_then) if one]
    result.warnings = list(dict.fromkeys(line for one in networks for line in one.warnings))
    return result


def _measured(
    net: Topology, arguments: list[str], settings: PathSettings, progress: Progress
) -> tuple[Reports, Network | None]:
    """The reports of segments: read from files, or measured from a folder of captures."""
    folders = [one for one in arguments if _is_folder(one)]
    if not folders:
        return _read(net, arguments), None
    if len(arguments) > 1:
        raise WirelagError(f"{folders[0]}: a folder of captures has all segments; name nothing else")
    from wirelag.measure.path_captures import Network
    from wirelag.network.captures import Folder

    reading = ReadOptions(settings.filter, progress=progress)
    network = Network(net, Folder(folders[0], net), settings.method, settings.interval_ns, reading, settings.slow_ns)
    return _capture(network, settings.source, settings.target), network


def _is_folder(path: str) -> bool:
    try:
        return File(path).is_dir()
    except (OSError, ValueError):  # too long, or not a valid name
        return False


def _read(net: Topology, arguments: Iterable[str]) -> Reports:
    """Reports from files, each of a segment in the topology."""
    from wirelag.capture.report_file import read_report
    from wirelag.network.cover import Cover
    from wirelag.network.reports import named, one_of_each, report_of

    cover = Cover(net, ())
    found = []
    for argument in arguments:
        segment, file = named(argument)
        if segment is not None:
            cover.check(segment, argument)
        report = report_of(read_report(file), "standard input" if file == "-" else file, segment)
        cover.check(report.segment, report.name)
        found.append(report)
    return one_of_each(found)


def _pairs(cover: Cover, source: str | None, target: str | None) -> list[Pair]:
    """The ordered pairs to judge, where there is a path."""
    routers = cover.topology.routers
    if source is not None and target is not None:
        return [(source, target)]
    if source is None and target is None and len(routers) > MOST_ROUTERS:
        raise WirelagError(
            f"{cover.topology.name}: {len(routers):,} routers have too many paths to judge all; give --from or --to"
        )
    sources = [source] if source is not None else list(routers)
    targets = [target] if target is not None else list(routers)
    if cover.measured:
        return cover.pairs(sources, targets)
    return [(a, b) for a in sources for b in targets if a != b and cover.routes.cost(a, b) is not None]


def _capture(network: Network, source: str | None, target: str | None) -> Reports:
    """Measure the segments of the routes."""
    from wirelag.network.cover import Cover
    from wirelag.network.reports import one_of_each

    cover = Cover(network.topology, ())
    pairs = _pairs(cover, source, target)
    paths: list[tuple[str, ...]] = []
    for pair in pairs:
        try:
            paths += cover.routes.paths(*pair)
        except WirelagError:  # too many equal paths to list: noted when they are added up
            if len(pairs) == 1:
                raise
    measured = _cover(network.topology, network.folder.segments(paths), network)
    wanted = {segment: None for path in paths for segment in measured.cut(path)[0]}
    network.look(paths, wanted)
    found = one_of_each(network.measure(list(wanted)))
    if not found:
        reason = f": {network.notes[0]}" if network.notes else ""
        raise WirelagError(f"{network.folder.name}: no segment of the path could be measured{reason}")
    return found


def _cover(net: Topology, segments: Iterable[Segment], network: Network | None) -> Cover:
    from wirelag.network.cover import Cover

    return Cover(net, list(segments), network.folder.routers if network else (), whole=network is not None)


def _are_seen(paths: list[Path], seen: dict[Pair, float]) -> bool:
    """Whether packets were seen at every router where equal paths part."""
    hops: dict[str, set[str]] = {}
    for one in paths:
        for router, hop in pairwise(one.routers):
            hops.setdefault(router, set()).add(hop)
    parting = [router for router, several in hops.items() if len(several) > 1]
    return any(seen.values()) and all(any(seen.get((at, hop)) for hop in hops[at]) for at in parting)


def _localise(
    net: Topology,
    now: Reports,
    then: Reports,
    slow: float,
    ends: tuple[str | None, str | None],
    network: Network | None,
) -> PathResult:
    from wirelag.network.changes import changes
    from wirelag.network.localise import add_up, judge, trials
    from wirelag.network.timeline import cells

    cover = _cover(net, now, network)
    grid = cells(now.values())
    every = None in ends
    found: list[tuple[Pair, list[Path], bool]] = []
    notes, too_many = list(net.notes), list[str]()
    for pair in _pairs(cover, *ends):
        try:
            seen = network.shares(*pair) if network else {}
            paths = cover.paths(*pair, seen)
        except WirelagError as error:  # too many equal paths to list
            if not every:
                raise
            too_many.append(str(error))
            continue
        if not every or any(one.segments for one in paths):
            found.append((pair, paths, _are_seen(paths, seen)))
    if too_many:
        more = f", and {len(too_many) - 1:,} more pairs like this" if len(too_many) > 1 else ""
        notes.append(f"{too_many[0]}{more}: left out")
    on_route = {segment: None for _, paths, _ in found for one in paths for segment in one.segments}
    if not on_route:
        told = ", ".join(str(segment) for segment in list(now)[:5])
        asked = f"from {ends[0]} to {ends[1]}" if not every else "to judge"
        raise WirelagError(
            f"no report is of a segment on the path {asked}; the reports are of {told}; if routes have changed, "
            "read the topology again"
        )
    figures = {segment: now[segment].whole for segment in on_route}
    before = {segment: then[segment].whole for segment in on_route if segment in then}
    if then and not before:
        raise WirelagError("no baseline report is of a segment on the path; give a baseline of the same segments")
    tried = trials(figures, slow, before)
    routes: list[Route] = []
    for pair, paths, were_seen in found:
        route = Route(*pair, paths, judge(paths, figures, tried), were_seen)
        if not every:
            needed = {segment for one in paths for segment in one.segments}
            route.over_time = [(cell, add_up(paths, cell.figures)) for cell in grid if needed <= cell.figures.keys()]
        routes.append(route)
    series = {segment: now[segment].intervals for segment in on_route if now[segment].intervals}
    unassigned = network.unassigned() if network else {}
    notes += network.notes if network else _ends_left_out(routes) if not every else []
    result = PathResult(net, slow, now, then, routes, every, changes(series, slow), unassigned)
    result.notes = list(dict.fromkeys(notes))
    if network:
        result.packets, result.skipped = network.packets, network.skipped
    return result


def _ends_left_out(routes: list[Route]) -> list[str]:
    """What a route from reports leaves out, if its end routers do not measure inside."""
    (route,) = routes
    ends = [route.source, route.target]
    inside = {
        segment.at for one in route.paths for segment in (*one.segments, *one.missing) if segment.kind == "inside"
    }
    out = [router for router in ends if router not in inside]
    if not out:
        return []
    begins = "egress" if route.source in out else "ingress"
    stops = "ingress" if route.target in out else "egress"
    told = " nor ".join(out) if len(out) == 1 else f"neither {out[0]} nor {out[1]}"
    who = f"{told} has no report of its inside" if len(out) == 1 else f"{told} has a report of its inside"
    return [f"this is from {route.source}'s {begins} to {route.target}'s {stops}: {who}"]
