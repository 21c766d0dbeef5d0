"""`wirelag path`: which segment of a route adds the delay."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
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
    from wirelag.network.localise import Figures, Path, Verdict
    from wirelag.network.reports import SegmentReport
    from wirelag.network.segments import Segment
    from wirelag.network.timeline import Cell
    from wirelag.network.topology import Topology
    from wirelag.sla import Sla

Reports = dict["Segment", "SegmentReport"]
Pair = tuple[str, str]


@dataclass
class Route:
    """A route, and what is said of it."""

    source: str
    target: str
    paths: list[Path]
    verdict: Verdict
    shares_seen: bool = False
    over_time: list[tuple[Cell, Verdict]] = field(default_factory=list)


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
    if interval_ns is not None and not any(File(one).is_dir() for one in (*reports, *(baseline or ()))):
        raise typer.BadParameter("is for captures; reports have intervals already", param_hint="--interval")
    ids = packet_id_of(False, prefix, 0)

    from wirelag.network.topology import read_topology

    net = read_topology(topology)
    for router in (source, target):
        if router is not None:
            net.check(router)

    def measured(arguments: list[str]) -> tuple[Reports, Network | None]:
        folders = [one for one in arguments if File(one).is_dir()]
        if not folders:
            return _read(net, arguments), None
        if len(arguments) > 1:
            raise WirelagError(f"{folders[0]}: a folder of captures has all segments; name nothing beside it")
        from wirelag.cli.path_captures import Network
        from wirelag.network.captures import Folder

        wanted = make_filter(None, None, None, None, None, None)
        captures = Network(net, Folder(folders[0], net), method, interval_ns, wanted, ids, quiet)
        return _capture(captures, source, target), captures

    now, network = measured(reports)
    then, network_then = measured(baseline) if baseline else ({}, None)
    found = _localise(net, now, then, slow_ns / 1e9, (source, target), network)
    if network_then:
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


def _ask(found: Found, questions: list[Sla]) -> None:
    """What was asked of the path: its mean alone is known. That a lower bound is small enough says nothing."""
    from wirelag.sla import Mean

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
    sources = [source] if source is not None else list(routers)
    targets = [target] if target is not None else list(routers)
    return [(a, b) for a in sources for b in targets if a != b and cover.routes.cost(a, b) is not None]


def _capture(network: Network, source: str | None, target: str | None) -> Reports:
    """Measure the segments of the routes that are asked for."""
    from wirelag.network.cover import Cover
    from wirelag.network.reports import one_of_each

    cover = Cover(network.topology, ())
    pairs = _pairs(cover, source, target)
    paths = [routers for pair in pairs for routers in cover.routes.paths(*pair)]
    cover = Cover(network.topology, network.folder.segments(paths))
    wanted: dict[Segment, None] = {}
    for pair in pairs:
        for one in cover.paths(*pair):
            wanted |= dict.fromkeys(one.segments)
    network.look(wanted)
    found = one_of_each(network.measure(wanted))
    if not found:
        reason = f": {network.notes[0]}" if network.notes else ""
        raise WirelagError(f"{network.folder.name}: no segment of the path could be measured{reason}")
    return found


def _localise(
    net: Topology,
    now: Reports,
    then: Reports,
    slow: float,
    ends: tuple[str | None, str | None],
    network: Network | None,
) -> Found:
    from wirelag.network.changes import changes
    from wirelag.network.cover import Cover
    from wirelag.network.localise import judge
    from wirelag.network.timeline import cells

    cover = Cover(net, now)
    figures: dict[Segment, Figures] = {segment: report.whole for segment, report in now.items()}
    before = {segment: report.whole for segment, report in then.items()}
    grid = cells(now.values())
    routes: list[Route] = []
    every = None in ends
    found: list[tuple[Pair, list[Path], bool]] = []
    notes = list(net.notes)
    for pair in _pairs(cover, *ends):
        try:
            seen = network.shares(*pair) if network else {}
            paths = cover.paths(*pair, seen)
        except WirelagError as error:  # so many equal paths that nobody can list them
            if not every:
                raise
            notes.append(str(error))
            continue
        if not every or any(one.segments for one in paths):
            found.append((pair, paths, any(seen.values())))
    on_route = {segment for _, paths, _ in found for one in paths for segment in one.segments}
    for pair, paths, were_seen in found:
        route = Route(*pair, paths, judge(paths, figures, slow, before, len(on_route)), were_seen)
        if not every:
            needed = {segment for one in paths for segment in one.segments}
            route.over_time = [
                (cell, judge(paths, cell.figures, slow)) for cell in grid if needed <= cell.figures.keys()
            ]
        routes.append(route)
    if not on_route:
        told = ", ".join(str(segment) for segment in list(now)[:5])
        asked = f"from {ends[0]} to {ends[1]}" if not every else "that is asked for"
        raise WirelagError(
            f"no report is of a segment on the path {asked}; the reports are of {told}; if routes changed meanwhile, "
            "read the topology anew"
        )
    series = {segment: now[segment].intervals for segment in on_route if now[segment].intervals}
    unassigned = network.unassigned() if network else {}
    if network:
        notes += network.notes
    if then and not any(segment in before for segment in on_route):
        raise WirelagError("no report of the baseline is of a segment on the path; measure the same segments before")
    return Found(net, slow, now, then, routes, every, changes(series, slow), unassigned, list(dict.fromkeys(notes)))
