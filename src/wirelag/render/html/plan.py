"""The page about a plan: what upgrades save, a map of the network, and what each router watches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from wirelag.render.html.charts import Figure, line, plain
from wirelag.render.html.frame import Frame, chart, coverage, document, folded, listed, table
from wirelag.render.html.network_map import MOST_DRAWN, MOST_NAMED, dots, drawn, layout, lines
from wirelag.units import format_size

if TYPE_CHECKING:
    from wirelag.network.classes import RouterCost
    from wirelag.network.plan import Extent, Plan

MOST_ROWS: Final = 200
COLOURS: Final = ("c1", "c3", "c2")
DASHES: Final = ("", "dot", "dash")

Curve = tuple[str, Sequence["Extent"]]  # name; extents after 0, 1, 2, ... upgrades


@dataclass(frozen=True, kw_only=True)
class PlanPage(Frame):
    """The content of a page about a plan."""

    plan: Plan
    curves: Sequence[Curve]  # that of the plan first
    costs: Sequence[RouterCost]
    costs_text: Sequence[str]  # subject and sum
    failure: Sequence[str]  # what changes if links fail


def render_plan(page: PlanPage) -> str:
    """The page."""
    plan, figures = page.plan, {"hops": hops(page.curves), "granularity": granularity(page.curves)}
    sections = [_summary(page)]
    sections.append(chart("hops", "What upgrades save", _HOPS_TEXT, 380, _steps_table(plan)))
    sections.append(chart("granularity", "How closely a problem can be located", _GRANULARITY_TEXT))
    count = len(plan.topology.routers)
    if 1 < count <= MOST_DRAWN:
        figures["network"], is_real = drawing(plan)
        sections.append(chart("network", "The network", _DRAWING_TEXT + (_REAL if is_real else _FREE), 640))
    elif count > 1:
        text = f"{count:,} routers are too many to draw; the limit is {MOST_DRAWN:,}."
        sections.append(f"<section><h2>The network</h2><p>{text}</p></section>")
    sections.append(f"<section><h2>What each router watches</h2>{_watch_table(plan)}</section>")
    if page.failure:
        sections.append(f"<section><h2>If a link fails</h2>{listed(page.failure)}</section>")
    if page.costs:
        text = "".join(f"<p>{escape(sentence)}.</p>" for sentence in page.costs_text)
        sections.append(f"<section><h2>Measuring inside routers</h2>{text}{_costs_table(page.costs)}</section>")
    sections.append(coverage(page))
    return document(page, "\n".join(sections), figures)


_HOPS_TEXT: Final = (
    "Probe hops: the hops of all paths measured as one segment, summed. Each upgraded router cuts the paths through "
    "it in two, and the parts are measured already. The axis is logarithmic."
)
_GRANULARITY_TEXT: Final = (
    "Hops of a path measured as one segment: a problem is located within these. Lines are means; the band spans the "
    "shortest to the longest path of this plan."
)
_DRAWING_TEXT: Final = "Upgraded routers are large and numbered in order. Links on no shortest path are not drawn"
_REAL: Final = "; routers are where the topology says."
_FREE: Final = "; distances have no meaning."


def _summary(page: PlanPage) -> str:
    before, after = page.plan.before, page.plan.extent
    tiles = "".join(
        f"<div><dt>{name}</dt><dd>{now}<small>{then} before</small></dd></div>"
        for name, then, now in (
            ("probe hops", f"{before.probe_hops:,}", f"{after.probe_hops:,}"),
            ("hops of a path", before.mean_hops, after.mean_hops),
            ("at most", f"{before.longest}", f"{after.longest}"),
        )
    )
    topology, count = page.plan.topology, len(page.plan.steps)
    lead = (
        f"<strong>{count:,}</strong> of {len(topology.routers):,} routers can measure inside themselves. The others "
        f"have a server beside them that sends reference packets. There are {len(topology.links):,} directed links."
    )
    return f'<section><p class="lead">{lead}</p><dl class="tiles">{tiles}</dl></section>'


def _steps_table(plan: Plan) -> str:
    rows = [["none", *_extent_cells(plan.before)]]
    for step in plan.steps:
        name = escape(step.router) + (" (given)" if step.given else "")
        rows.append([name, *_extent_cells(step.extent)])
    heads = ("upgraded", "probe hops", "paths", "hops of a path", "fewest", "most")
    return folded("Figures", table("In the order of the upgrades", heads, rows))


def _extent_cells(extent: Extent) -> list[str]:
    return [
        f"{extent.probe_hops:,}",
        f"{extent.paths:,}",
        extent.mean_hops,
        str(extent.shortest),
        str(extent.longest),
    ]


def _watch_table(plan: Plan) -> str:
    order = {router: i for i, router in enumerate(plan.upgraded)}
    numbers = {router: plan.watches(router) for router in plan.topology.routers}
    names = sorted(numbers, key=lambda router: (order.get(router, len(order)), -sum(numbers[router])))
    rows = [
        [escape(router) + (" (upgraded)" if router in order else ""), *(f"{n:,}" for n in numbers[router])]
        for router in names[:MOST_ROWS]
    ]
    more = len(names) - len(rows)
    note = f"<p>and {more:,} more: --format json lists all, with their segments.</p>" if more else ""
    return folded("Figures", table("Segments", ("router", "links", "virtual links", "inside itself"), rows) + note)


def _costs_table(costs: Sequence[RouterCost]) -> str:
    rows = [
        [
            escape(cost.router),
            *(f"{n:,}" for n in (cost.ports, cost.ways, cost.used, cost.synopses)),
            format_size(cost.memory_bytes),
            *(f"{bits / 1e6:,.3g}" for bits in (cost.control_bps, cost.answer_bps)),
        ]
        for cost in costs[:MOST_ROWS]
    ]
    heads = ("router", "ports", "ways", "used", "synopses", "memory", "Mbps inside it", "Mbps to the station")
    more = len(costs) - len(rows)
    note = f"<p>and {more:,} more: --format json lists all.</p>" if more else ""
    return folded("Figures", table("Measuring inside routers", heads, rows) + note)


# ---- charts ----


def hops(curves: Sequence[Curve]) -> Figure:
    """Probe hops against upgrades."""
    series = [
        _line(i, name, [max(1, extent.probe_hops) for extent in extents]) for i, (name, extents) in enumerate(curves)
    ]
    values = [y for one in series for y in one["y"]]
    ends = [min(values) / 1.3, max(values) * 1.3]
    axis = {"kind": "count", "scale": "log", "range": ends, "title": "probe hops"}
    return {"x": _upgrades_axis(curves), "panels": [{"y": axis, "series": series}], "hover": "x", "head": "upgraded: "}


def granularity(curves: Sequence[Curve]) -> Figure:
    """Hops of a path against upgrades."""
    series = [_line(i, name, [one.granularity for one in each]) for i, (name, each) in enumerate(curves)]
    band = {"low": [one.shortest for one in curves[0][1]], "high": [one.longest for one in curves[0][1]]}
    series[0] |= band
    most = max([*band["high"], *(y for one in series for y in one["y"] if y is not None)])
    axis = {"kind": "count", "range": [0, 1.05 * most], "title": "hops of a path"}
    return {"x": _upgrades_axis(curves), "panels": [{"y": axis, "series": series}], "hover": "x", "head": "upgraded: "}


def _line(i: int, name: str, values: Sequence[float | None]) -> Figure:
    made = line(plain(name), range(len(values)), values, COLOURS[i % 3]) | {"dash": DASHES[i % 3]}
    return made | ({"mark": "circle", "size": 2.5} if len(values) < 60 else {})


def _upgrades_axis(curves: Sequence[Curve]) -> Figure:
    most = max(len(extents) for _, extents in curves) - 1
    ends = [-0.02 * most, 1.02 * most or 1]
    return {"kind": "count", "whole": True, "range": ends, "title": "upgraded routers"}


def drawing(plan: Plan) -> tuple[Figure, bool]:
    """The routers, the links that paths use, and the upgraded routers marked; and whether they are in place."""
    topology = plan.topology
    at, is_real = layout(topology)
    used = {frozenset(pair) for pair in plan.links_used()}
    order = {router: i for i, router in enumerate(plan.upgraded, 1)}
    few = len(topology.routers) <= MOST_NAMED
    others = [router for router in topology.routers if router not in order]
    names = [plain(name) for name in others] if few else None
    numbers = [f"{i} {plain(name)}" if few else str(i) for name, i in order.items()]
    series = [
        lines(sorted(sorted(pair) for pair in used), at, colour="track", width=1.3),
        dots(others, names, at, "server beside it") | {"size": 4, "colour": "soft"},
        dots(list(order), numbers, at, "upgraded") | {"size": 6.5, "colour": "c3"},
    ]
    return drawn(at, series), is_real
