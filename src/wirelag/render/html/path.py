"""The page about a path: what each segment adds, which is to blame, and what changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from wirelag.network.changes import DelayChange
from wirelag.network.localise import Figures, Path, RoutePart, Total, Verdict
from wirelag.network.segments import Segment
from wirelag.network.topology import Topology
from wirelag.render.html.charts import (
    Figure,
    all_rounded,
    between,
    clock,
    duration,
    line,
    linear_axis,
    plain,
    rows_axis,
    spoken,
)
from wirelag.render.html.frame import Frame, chart, coverage, delay, document, ends, listed, table
from wirelag.render.html.network_map import MOST_DRAWN, MOST_NAMED, Places, dots, drawn, layout, lines
from wirelag.render.html.scales import Times

MOST_PATHS: Final = 4  # paths with their own chart
MOST_LINES: Final = 6  # segments over time
MOST_ROUTES: Final = 100
COLOURS: Final = ("c1", "c2", "c3", "c4", "heat2", "soft")


Moment = tuple[float, float, Total, Mapping[Segment, Figures]]  # from, to, in seconds since 1970; its figures


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """A route and the verdict on it."""

    name: str
    paths: Sequence[Path]
    verdict: Verdict
    over_time: Sequence[Moment] = ()


@dataclass(frozen=True, kw_only=True)
class PathPage(Frame):
    """The content of a page about paths. One route is drawn, several are listed."""

    routes: Sequence[RouteEntry]
    verdicts: Sequence[str]  # in words
    changes: Sequence[DelayChange]
    unassigned: Mapping[str, tuple[int, float, str]]  # by router: packets, share, why
    topology: Topology
    slow: float  # seconds that a segment may add


def render_path(page: PathPage) -> str:
    """The page."""
    figures: dict[str, Figure] = {}
    sections = [_summary(page)]
    if 1 < len(page.topology.routers) <= MOST_DRAWN:
        figures["network"], is_real = network(page.topology, page.routes, page.slow)
        text = _NETWORK_TEXT + ("routers are where the topology says." if is_real else "distances have no meaning.")
        sections.append(chart("network", "The network", text, 520))
    if len(page.routes) == 1:
        route = page.routes[0]
        for i, (path, total) in enumerate(list(zip(route.paths, route.verdict.by_path, strict=True))[:MOST_PATHS]):
            name = "segments" if i == 0 else f"segments{i}"
            figures[name] = waterfall(path, route.verdict.parts)
            sections.append(_waterfall_section(name, path, total, len(route.paths)))
        sections.append(_segments_table(route.verdict))
        if len(route.paths) > 1:
            sections.append(_paths_table(route))
        if route.over_time:
            figures["time"] = over_time(route.over_time, [part.segment for part in route.verdict.parts], page.changes)
            sections.append(chart("time", "Over time", _TIME_TEXT, 400))
    else:
        sections.append(_routes_table(page.routes))
    if page.changes:
        sections.append(_changes_table(page.changes))
    if page.unassigned:
        sections.append(_unassigned_table(page.unassigned))
    sections.append(coverage(page))
    return document(page, "\n".join(sections), figures)


# ---- charts ----


def network(topology: Topology, routes: Sequence[RouteEntry], slow: float) -> tuple[Figure, bool]:
    """The network, its measured segments coloured by the delay that they add; and whether routers are in place."""
    at, is_real = layout(topology)
    parts = {part.segment: part for route in routes for part in route.verdict.parts}
    links = {(min(link.source, link.target), max(link.source, link.target)) for link in topology.links}
    series, told = [lines(sorted(links), at, colour="track", width=1.2)], list[Figure]()
    for name, colour, width, holds in _classes(slow):
        mine = [part for part in parts.values() if holds(part)]
        between = [part for part in mine if part.segment.kind != "inside"]
        inside = [part for part in mine if part.segment.kind == "inside"]
        for kind, dash in (("link", ""), ("virtual", "dash")):
            pairs = [(part.segment.at, part.segment.after) for part in between if part.segment.kind == kind]
            if pairs:
                series.append(lines(pairs, at, colour=colour, width=width, dash=dash))
        if mine:
            told.append(_told(name, colour, [*between, *inside], at) | {"size": 3 + width / 2})
    on_path = {router for route in routes for path in route.paths for router in path.routers}
    few = len(topology.routers) <= MOST_NAMED
    for routers, size in (([r for r in topology.routers if r not in on_path], 3), (sorted(on_path), 5)):
        labels = [plain(router) for router in routers] if few or (size == 5 and len(on_path) <= MOST_NAMED) else None
        named = dots(routers, labels, at, "on the path" if size == 5 else "other routers")
        series.append(named | {"size": size, "colour": "all" if size == 5 else "soft"})
    return drawn(at, [one for one in (*series, *told) if one["x"]]), is_real


Holds = Callable[[RoutePart], bool]


def _classes(slow: float) -> Sequence[tuple[str, str, float, Holds]]:
    """Classes of added delay: name, colour, width, and which segments are in them."""

    def adds(part: RoutePart) -> float:
        return 0.0 if part.added is None else part.added.value

    few, some = duration(slow / 10), duration(slow)
    return (
        (f"adds up to {few}", "heat1", 3, lambda part: not part.blamed and adds(part) <= slow / 10),
        (f"adds {few} to {some}", "heat2", 4, lambda part: not part.blamed and slow / 10 < adds(part) <= slow),
        (f"adds more than {some}, not certain", "c3", 5, lambda part: not part.blamed and adds(part) > slow),
        ("slow", "bad", 6, lambda part: part.blamed),
    )


def _told(name: str, colour: str, parts: Sequence[RoutePart], at: Places) -> Figure:
    """What is told of segments: at a third of a link, so that both directions have a place, or at the router."""
    places = [
        at[part.segment.at] if part.segment.kind == "inside" else
        [(2 * at[part.segment.at][axis] + at[part.segment.after][axis]) / 3 for axis in (0, 1)]
        for part in parts
    ]  # fmt: skip
    return {
        "draw": "points", "name": name, "colour": colour, "mark": "diamond",
        "x": all_rounded(place[0] for place in places), "y": all_rounded(place[1] for place in places),
        "tips": [f"{plain(str(part.segment))}\n{_text(part)}" for part in parts],
    }  # fmt: skip


def waterfall(path: Path, parts: Sequence[RoutePart]) -> Figure:
    """A step for each segment, from where the one before it ends: the steady part, and what it adds."""
    by_segment = {part.segment: part for part in parts}
    mine = [by_segment[segment] for segment in path.segments]
    rows = list(range(len(mine)))
    starts: list[float] = []
    so_far = 0.0
    for part in mine:
        starts.append(so_far)
        so_far += part.figures.mean or 0.0
    added = [_added(part) for part in mine]
    steady = [(part.figures.mean or 0.0) - more for part, more in zip(mine, added, strict=True)]
    means = [part.figures.mean or 0.0 for part in mine]
    # The interval of the mean of a segment, from where what it adds begins.
    ends = [
        part.figures.ci95 and (part.figures.ci95[0] - fixed, part.figures.ci95[1] - fixed)
        for part, fixed in zip(mine, steady, strict=True)
    ]
    bars = {"draw": "bars", "along": "x", "y": rows}
    series = [
        bars | {"name": "steady", "colour": "c1", "base": all_rounded(starts), "x": all_rounded(steady)},
        bars | {"name": "added", "says": "", "colour": "c3", "x": all_rounded(added), **between(ends),
                "base": all_rounded(start + fixed for start, fixed in zip(starts, steady, strict=True)),
                "colours": ["bad" if part.blamed else "c3" for part in mine], "tips": [_text(part) for part in mine]},
    ]  # fmt: skip
    slow = [row for row, part in zip(rows, mine, strict=True) if part.blamed]
    if slow:
        words = {"x": [None] * len(slow), "y": slow, "text": ["slow"] * len(slow), "colour": "bad"}
        series.append({"draw": "words", **words})
    highs = [part.figures.ci95[1] if part.figures.ci95 else mean for part, mean in zip(mine, means, strict=True)]
    reached = [0.0, so_far, *starts, *(start + high for start, high in zip(starts, highs, strict=True))]
    axis = linear_axis(min(reached), max(reached), "delay since the path began")
    return {"x": axis, "panels": [{"y": rows_axis(str(part.segment) for part in mine), "series": series}]}


def _added(part: RoutePart) -> float:
    """The added part as drawn: at least 0, at most the mean."""
    if part.added is None or part.figures.mean is None:
        return 0.0
    return max(0.0, min(part.added.value, part.figures.mean))


def _text(part: RoutePart) -> str:
    adds = "" if part.added is None else f", adds {duration(part.added.value)}"
    return f"mean {spoken(part.figures.mean, part.figures.ci95)}{adds}"


def over_time(spans: Sequence[Moment], segments: Sequence[Segment], changes: Sequence[DelayChange]) -> Figure:
    """The mean of the path, and of the segments that vary most; a line where one moved."""
    times = Times(spans[0][0], spans[-1][1])
    middles = times.places([(start + end) / 2 for start, end, _, _ in spans])
    totals = [total for _, _, total, _ in spans]
    means = [total.mean for total in totals]
    ends = [total.ci95 for total in totals]
    series = {segment: [known[segment].mean for _, _, _, known in spans] for segment in segments}
    varied = sorted(series, key=lambda segment: -_range(series[segment]))[:MOST_LINES]
    marks = {"mark": "circle", "size": 2}
    lines = [line("the path", middles, means, "all", ends) | marks | {"width": 2.5}]
    lines += [
        line(plain(str(segment)), middles, series[segment], colour) | marks | {"width": 1.5}
        for segment, colour in zip(varied, COLOURS, strict=False)
    ]
    seen = [x for x in (*means, *(y for values in series.values() for y in values)) if x is not None]
    seen += [x for pair in ends if pair for x in pair]
    moved = [{"x": at, "colour": "bad"} for at in times.places([change.at for change in changes])]
    axis = linear_axis(min([0.0, *seen]), max([0.0, *seen]), "mean delay")
    return {"x": times.axis(), "panels": [{"y": axis, "series": lines, "across": moved}], "hover": "x"}


def _range(values: Sequence[float | None]) -> float:
    known = [x for x in values if x is not None]
    return max(known) - min(known) if known else 0.0


# ---- text and tables ----

_TIME_TEXT: Final = (
    "The mean delay of the path in each interval, with its 95% interval, and of the segments that vary most. Dashed "
    "lines mark where a segment moved by more than chance."
)
_NETWORK_TEXT: Final = (
    "Colour is the delay that a segment adds; dashed lines are virtual links, and a diamond at a router is its "
    "inside. Point at a diamond for figures. Grey links are not on the path, or have no report; "
)
_WATERFALL_TEXT: Final = (
    "Each segment begins where the one before it ends. Blue is its steady delay, orange what it adds, red what is "
    "slow; thin lines are 95% intervals of the mean."
)


def _summary(page: PathPage) -> str:
    if len(page.routes) != 1:
        slow = sum(any(part.blamed for part in route.verdict.parts) for route in page.routes)
        lead = f"<strong>{slow:,}</strong> of {len(page.routes):,} paths {'is' if slow == 1 else 'are'} slow"
        return f'<section><p class="lead">{lead}.</p>{listed(page.verdicts)}</section>'
    verdict = page.routes[0].verdict
    total = verdict.total
    bound = "at least " if verdict.missing else ""
    culprits = " and ".join(escape(str(part.segment)) for part in verdict.culprits)
    add = "adds" if len(verdict.culprits) == 1 else "add"
    blame = f"<strong>{culprits}</strong> {add} the delay" if culprits else "no segment is slow"
    lead = f"A packet takes {bound}<strong>{spoken(total.mean, total.ci95)}</strong> on average; {blame}"
    loss = "-" if total.loss is None else f"{total.loss:.2%}"
    adds = sum(part.puts for part in verdict.parts)
    tiles = (
        ("mean", delay(total.mean), "a lower bound" if verdict.missing else "of the whole path"),
        ("deviation", delay(total.std), "if segments are independent"),
        ("lost", loss, "of packets sent"),
        ("added", delay(adds), "by all segments, to the steady delay"),
    )
    shown = "".join(f"<div><dt>{name}</dt><dd>{value}<small>{small}</small></dd></div>" for name, value, small in tiles)
    return (
        f'<section><p class="lead">{lead}. <span>95% intervals in brackets.</span></p>'
        f'<dl class="tiles four">{shown}</dl>{listed(page.verdicts)}</section>'
    )


def _waterfall_section(name: str, path: Path, total: Total, count: int) -> str:
    title = " > ".join(path.routers)
    of = f"{path.share:.1%} of packets take this path: {duration(total.mean)}. " if count > 1 else ""
    without = ", ".join(map(str, path.missing))
    gap = f" No report: {without}." if without else ""
    return chart(name, title, of + _WATERFALL_TEXT + gap, 110 + 30 * max(1, len(path.segments)))


_HEADS: Final = ("segment", "packets", "lost", "floor", "deviation", "mean", "95% interval", "adds", "share", "")


def _segments_table(verdict: Verdict) -> str:
    rows = []
    for part in verdict.parts:
        figures = part.figures
        alike = f" (or {escape(', '.join(map(str, part.alike)))} adds as much)" if part.alike else ""
        rows.append(
            [
                escape(str(part.segment)),
                f"{figures.samples:,}",
                "-" if figures.loss is None else f"{figures.lost:,} ({figures.loss:.2%})",
                delay(figures.floor),
                delay(figures.std),
                delay(figures.mean, figures.ci95),
                ends(figures.ci95),
                delay(part.added.value if part.added else None),
                f"{part.share:.0%}",
                f'<span class="bad">slow</span>{alike}' if part.blamed else "",
            ]
        )
    rows += [[escape(str(segment)), "no report", *[""] * 8] for segment in verdict.missing]
    return f"<section><h2>Every segment</h2>{table('Segments', _HEADS, rows)}</section>"


def _paths_table(route: RouteEntry) -> str:
    rows = [
        [
            escape(" > ".join(path.routers)),
            f"{path.share:.2%}",
            delay(total.mean, total.ci95),
            ends(total.ci95),
            delay(total.std),
            "-" if total.loss is None else f"{total.loss:.2%}",
        ]
        for path, total in zip(route.paths, route.verdict.by_path, strict=True)
    ]
    heads = ("path", "share", "mean", "95% interval", "deviation", "lost")
    return f"<section><h2>Equal paths</h2>{table('Paths of equal cost', heads, rows)}</section>"


def _routes_table(routes: Sequence[RouteEntry]) -> str:
    ranked = sorted(routes, key=lambda route: -sum(part.puts for part in route.verdict.parts))
    rows = []
    for route in ranked[:MOST_ROUTES]:
        verdict, total = route.verdict, route.verdict.total
        rows.append(
            [
                escape(route.name),
                ("&ge; " if verdict.missing else "") + delay(total.mean, total.ci95),
                ends(total.ci95),
                delay(total.std),
                "-" if total.loss is None else f"{total.loss:.2%}",
                delay(sum(part.puts for part in verdict.parts)),
                escape(", ".join(str(part.segment) for part in verdict.culprits)) or "nothing",
            ]
        )
    more = len(ranked) - len(rows)
    note = f"<p>and {more:,} more, which add less: --format csv lists all.</p>" if more > 0 else ""
    heads = ("path", "mean", "95% interval", "deviation", "lost", "adds", "slow")
    return f"<section><h2>Every path</h2>{table('Paths, those that add most first', heads, rows)}{note}</section>"


def _changes_table(changes: Sequence[DelayChange]) -> str:
    rows = [
        [
            escape(str(change.segment)),
            clock(round(change.at * 1e9), 10**6),
            delay(change.before),
            delay(change.after),
            delay(change.difference, change.ci95),
            ends(change.ci95),
        ]
        for change in changes[:MOST_ROUTES]
    ]
    heads = ("segment", "at (UTC)", "before", "after", "difference", "95% interval")
    return f"<section><h2>What changed</h2>{table('Segments that moved by more than chance', heads, rows)}</section>"


def _unassigned_table(unassigned: Mapping[str, tuple[int, float, str]]) -> str:
    rows = [
        [escape(router), f"{packets:,}", f"{share:.2%}", f'<small class="text">{escape(why)}</small>']
        for router, (packets, share, why) in unassigned.items()
    ]
    heads = ("router", "packets that entered", "without a known egress", "why")
    return f"<section><h2>From ingress to egress</h2>{table('By router', heads, rows)}</section>"
