"""`wirelag path`: which segment of a route adds the delay."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wirelag.cli.method import EstimatorName, delimiters_of, estimator_of, packet_id_of
from wirelag.cli.options import (
    ANSWER,
    FORMATS,
    METHOD,
    Html,
    Interval,
    Output,
    OutputFormat,
    Questions,
    Quiet,
    apart,
    duration_ns,
    make_filter,
    one_of,
    questions_of,
)
from wirelag.cli.output import read_report
from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.cli.path_captures import Network
    from wirelag.network.changes import Change
    from wirelag.network.cover import Cover
    from wirelag.network.localise import Path, Total, Verdict
    from wirelag.network.reports import SegmentReport
    from wirelag.network.segments import Segment
    from wirelag.network.timeline import Cell
    from wirelag.network.topology import Topology
    from wirelag.stats.sla import Sla

Reports = dict["Segment", "SegmentReport"]
Pair = tuple[str, str]
MOST_ROUTERS = 1000  # of which every path is looked at


@dataclass
class Route:
    """A route, and what is said of it."""

    source: str
    target: str
    paths: list[Path]
    verdict: Verdict
    shares_seen: bool = False
    over_time: list[tuple[Cell, Total]] = field(default_factory=list)


@dataclass
class Found:
    """All that the command has to say."""

    topology: Topology
    slow: float  # seconds
    reports: Reports
    baseline: Reports
    routes: list[Route]
    every: bool  # not one route was asked for, but several
    changes: list[Change]
    unassigned: dict[str, dict[str, Any]]
    notes: list[str]
    packets: int | None = None  # captures: that were read, and frames that were none, by reason
    skipped: dict[str, int] = field(default_factory=dict)
    sla: list[dict[str, Any]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)

    @property
    def estimators(self) -> list[str]:
        """The methods behind the reports."""
        return sorted({report.estimator for report in self.reports.values()})


def path(
    topology: Annotated[
        str, typer.Argument(metavar="TOPOLOGY", help="Routers and links: any format that `wirelag plan` reads.")
    ],
    reports: Annotated[
        list[str],
        typer.Argument(
            metavar="REPORTS...",
            help="JSON of `wirelag oneway` for each segment, as SEGMENT=FILE or FILE; or a folder of captures.",
        ),
    ],
    source: Annotated[
        str | None, typer.Option("--from", metavar="ROUTER", help="Where the path begins.", rich_help_panel=ANSWER)
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="ROUTER", help="Where it ends.", rich_help_panel=ANSWER)
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REPORT",
            help="The same of a time when nothing was slow: what segments add is what they have more than then.",
            rich_help_panel=ANSWER,
        ),
    ] = None,
    slow: Annotated[
        str,
        typer.Option(metavar="D", help="Blame a segment only if it adds more than this.", rich_help_panel=ANSWER),
    ] = "1ms",
    sla: Questions = None,
    estimator: EstimatorName = "join",
    interval: Interval = None,
    prefix: Annotated[
        int, typer.Option(metavar="BYTES", help="Of payload in packet ids.", rich_help_panel=METHOD)
    ] = 16,
    output_format: OutputFormat = "table",
    output: Output = None,
    html: Html = None,
    quiet: Quiet = False,
) -> None:
    """Say which segment of a path adds the delay, from reports of its segments or from captures at its routers.

    Without --from or --to: every path that begins, or ends, there.
    """
    one_of(output_format, FORMATS, "--format")
    apart({"-o": output, "--html": html}, [topology])
    slow_ns = duration_ns(slow, "--slow")
    interval_ns = duration_ns(interval, "--interval") if interval else None
    questions = questions_of(sla or [])

    def method(packets: int | None) -> tuple[Any, Any]:
        made = estimator_of(
            estimator, rows=None, loss=None, packets=None, banks=3, no_check=False, buckets=None, rateless=False,
            deviation="rows", tail=2048, memory="512MiB", seed=0,
        )  # fmt: skip
        return made, delimiters_of(made, interval_ns, None, None, packets)

    method(None)  # wrong options are told before anything is read
    if interval_ns is not None and not any(_is_folder(one) for one in (*reports, *(baseline or ()))):
        raise typer.BadParameter("is for captures; reports have intervals already", param_hint="--interval")
    ids = packet_id_of(False, prefix, 0)

    from wirelag.network.topology import read_topology

    net = read_topology(topology)
    for router in (source, target):
        if router is not None:
            net.check(router)

    def measured(arguments: list[str]) -> tuple[Reports, Network | None]:
        folders = [one for one in arguments if _is_folder(one)]
        if not folders:
            return _read(net, arguments), None
        if len(arguments) > 1:
            raise WirelagError(f"{folders[0]}: a folder of captures has all segments; name nothing beside it")
        from wirelag.cli.path_captures import Network
        from wirelag.network.captures import Folder

        wanted = make_filter(None, None, None, None, None, None)
        captures = Network(net, Folder(folders[0], net), method, interval_ns, wanted, ids, slow_ns, quiet)
        return _capture(captures, source, target), captures

    now, network = measured(reports)
    then, network_then = measured(baseline) if baseline else ({}, None)
    found = _localise(net, now, then, slow_ns / 1e9, (source, target), network)
    if network_then:
        network_then.unassigned()  # notes whether routes changed
        found.notes += [f"baseline: {note}" for note in network_then.notes]
    if not found.every:
        _ask(found, questions)
    elif questions:
        raise typer.BadParameter("asks of one path: name it with --from and --to", param_hint="--sla")
    if html:
        from wirelag.cli.path_page import write_page

        write_page(html, found)
    for line in dict.fromkeys(line for one in (network, network_then) if one for line in one.warnings):
        print(f"warning: {line}", file=sys.stderr)
    from wirelag.cli.path_table import write

    write(found, output_format, output)
    if not all(one["holds"] for one in found.sla):
        raise typer.Exit(3)


def _is_folder(path: str) -> bool:
    try:
        return File(path).is_dir()
    except (OSError, ValueError):  # too long for a name, or a name that nothing can have
        return False


def _ask(found: Found, questions: list[Sla]) -> None:
    """What was asked of the path: its mean alone is known. That a lower bound is small enough says nothing."""
    from wirelag.stats.sla import Mean

    verdict = found.routes[0].verdict
    for question in questions:
        delays = Mean(None if verdict.total.mean is None else verdict.total.mean * 1e9)
        if verdict.missing and question.holds(delays):
            delays = Mean(None)
        value = question.value(delays)
        found.answers.append(question.answer(delays))
        found.sla.append(
            {
                "question": question.text,
                "holds": question.holds(delays),
                "value": None if value is None else value / 1e9,
            }
        )


def _read(net: Topology, arguments: Iterable[str]) -> Reports:
    """Reports of files, each of a segment that the topology has."""
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
    """The ordered pairs that are asked for, as far as there is a path."""
    routers = cover.topology.routers
    if source is not None and target is not None:
        return [(source, target)]
    if source is None and target is None and len(routers) > MOST_ROUTERS:
        raise WirelagError(
            f"{cover.topology.name}: {len(routers):,} routers have too many paths to look at all; name --from or --to"
        )
    sources = [source] if source is not None else list(routers)
    targets = [target] if target is not None else list(routers)
    if cover.measured:
        return cover.pairs(sources, targets)
    return [(a, b) for a in sources for b in targets if a != b and cover.routes.cost(a, b) is not None]


def _capture(network: Network, source: str | None, target: str | None) -> Reports:
    """Measure the segments of the routes that are asked for."""
    from wirelag.network.cover import Cover
    from wirelag.network.reports import one_of_each

    cover = Cover(network.topology, ())
    pairs = _pairs(cover, source, target)
    paths: list[tuple[str, ...]] = []
    for pair in pairs:
        try:
            paths += cover.routes.paths(*pair)
        except WirelagError:  # more equal paths than can be listed: that is told when they are added up
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
    """Whether packets were seen at every router at which equal paths part."""
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
) -> Found:
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
        except WirelagError as error:  # so many equal paths that nobody can list them
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
        asked = f"from {ends[0]} to {ends[1]}" if not every else "that is asked for"
        raise WirelagError(
            f"no report is of a segment on the path {asked}; the reports are of {told}; if routes changed meanwhile, "
            "read the topology anew"
        )
    figures = {segment: now[segment].whole for segment in on_route}
    before = {segment: then[segment].whole for segment in on_route if segment in then}
    if then and not before:
        raise WirelagError("no report of the baseline is of a segment on the path; measure the same segments before")
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
    answer = Found(net, slow, now, then, routes, every, changes(series, slow), unassigned, list(dict.fromkeys(notes)))
    if network:
        answer.packets, answer.skipped = network.packets, network.skipped
    return answer


def _ends_left_out(routes: list[Route]) -> list[str]:
    """What a route from reports does not have in it, if its ends do not measure inside."""
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
