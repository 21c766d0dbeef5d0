"""The table of `wirelag plan`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from wirelag.units import format_duration, format_rate, format_size

if TYPE_CHECKING:
    from wirelag.measure.plan import PlanResult
    from wirelag.network.plan import Extent
    from wirelag.network.segments import Segment

MOST_ROUTERS: Final = 10  # routers in a table
MOST_LETTERS: Final = 64  # letters of the segments' names
RATES: Final = ("control_bps", "answer_bps")
Row = tuple[str, ...]


def table(planned: PlanResult) -> list[str]:
    """The tables of a plan, and the notes."""
    lines = [*_summary(planned), "", *_steps(planned), "", *_watched(planned), "", *_costs(planned)]
    lines += ["", *failure_text(planned)] if planned.after else []
    return lines + [f"note: {note}" for note in planned.notes]


def _summary(planned: PlanResult) -> list[str]:
    plan, before, after = planned.plan, planned.plan.before, planned.plan.extent
    routers, links, count = len(plan.topology.routers), len(plan.topology.links), len(plan.upgraded)
    fewer = f", {_times(before.probe_hops / after.probe_hops)} times fewer" if after.probe_hops else ""
    hops = f"{before.mean_hops} -> {after.mean_hops} hops, at most {before.longest} -> {after.longest}"
    return [
        f"{plan.topology.name}: {routers:,} routers, {links:,} directed links; {count:,} routers can measure",
        f"probe hops {before.probe_hops:,} -> {after.probe_hops:,}{fewer}; a path to measure has {hops}",
    ]


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 1000 else f"{ratio:.3g}"


def _steps(planned: PlanResult) -> list[str]:
    before = planned.plan.before
    rows: list[Row] = [
        ("", "upgraded", "probe hops", "saves", "paths", "hops of a path", "at most"),
        ("", "none", *_cells(before, "")),
    ]
    for i, step in enumerate(planned.plan.steps, 1):
        saved = before.probe_hops - step.extent.probe_hops
        saves = f"{saved / before.probe_hops:.1%}" if before.probe_hops else "-"
        rows.append((str(i), f"{step.router} (given)" if step.given else step.router, *_cells(step.extent, saves)))
        before = step.extent
    return _aligned(rows, left=(1,))


def _cells(extent: Extent, saves: str) -> Row:
    return f"{extent.probe_hops:,}", saves, f"{extent.paths:,}", extent.mean_hops, str(extent.longest)


def _watched(planned: PlanResult) -> list[str]:
    """The segments of upgraded routers first, then of those that watch most."""
    plan, known = planned.plan, set(planned.plan.upgraded)
    numbers = {router: plan.watches(router) for router in plan.topology.routers}
    order = sorted(numbers, key=lambda router: (router not in known, -sum(numbers[router])))
    rows: list[Row] = [("watches", "links", "virtual", "inside", "segments")]
    for router in order[:MOST_ROUTERS]:
        mark = f"{router} *" if router in known else router
        rows.append((mark, *(f"{n:,}" for n in numbers[router]), _some(plan.watched(router), sum(numbers[router]))))
    lines = _aligned(rows, left=(0, 4))
    rest = order[MOST_ROUTERS:]
    if rest:
        total = sum(sum(numbers[router]) for router in rest)
        lines.append(f"and {len(rest):,} more routers with {total:,} segments (--format json lists all)")
    return lines + (["* can measure inside itself"] if known else [])


def _costs(planned: PlanResult) -> list[str]:
    costs = planned.costs
    if not costs:
        return ["nothing is measured inside routers"]
    if not planned.is_costed:
        return [f"{costs_subject(planned)}: {costs_sum(planned)}"]
    rows: list[Row] = [("router", "ports", "ways", "used", "synopses", "memory", "inside it", "to the station")]
    for cost in costs[:MOST_ROUTERS]:
        counts = (f"{n:,}" for n in (cost.ports, cost.ways, cost.used, cost.synopses))
        rates = _rate(cost.control_bps), _rate(cost.answer_bps)
        rows.append((cost.router, *counts, format_size(cost.memory_bytes), *rates))
    total = [costs_sum(planned)] if len(costs) > 1 else []
    return [costs_subject(planned), *_aligned(rows, left=(0,)), *_more(len(costs)), *total]


def costs_subject(planned: PlanResult) -> str:
    """How routers measure inside themselves."""
    size, every = format_size(planned.size.bytes), format_duration(planned.interval_ns)
    many = f", {planned.classes} classes" if planned.classes > 1 else ""
    return f"measuring inside routers ({planned.estimator}, {size} per synopsis, every {every}{many})"


def costs_sum(planned: PlanResult) -> str:
    """The costs of all routers together."""
    memory = format_size(sum(cost.memory_bytes for cost in planned.costs))
    control, answers = (_rate(sum(getattr(cost, name) for cost in planned.costs)) for name in RATES)
    count = len(planned.costs)
    many = f"{count:,} router{'' if count == 1 else 's'}"
    return f"{many}, {memory}, {control} inside them, {answers} to the monitoring station"


def failure_text(planned: PlanResult) -> list[str]:
    """What changes when links fail; empty without a failure."""
    if planned.after is None:
        return []
    failed = " and ".join(f"{one}-{other}" for one, other in planned.failed)
    kinds = {"appear": "new", "vanish": "gone", "take other ways": "changed"}
    sums = [f"{sum(len(getattr(one, name)) for one in planned.turnovers):,} {word}" for word, name in kinds.items()]
    after = planned.after.extent
    lines = [
        f"if {failed} fails: segments: {', '.join(sums)}; probe hops {after.probe_hops:,}, "
        f"a path to measure has {after.mean_hops} hops"
    ]
    for one in planned.turnovers[:MOST_ROUTERS]:
        parts = [
            f"{word} {_some(getattr(one, name), len(getattr(one, name)))}"
            for word, name in kinds.items()
            if getattr(one, name)
        ]
        lines.append(f"  {one.router}: {'; '.join(parts)}")
    return lines + _more(len(planned.turnovers))


def _some(segments: Iterable[Segment], count: int) -> str:
    """As many names as fit, at least one."""
    text, shown = "", 0
    for segment in segments:
        longer = f"{text}, {segment}" if text else str(segment)
        if shown and len(longer) > MOST_LETTERS:
            break
        text, shown = longer, shown + 1
    return text + (f", and {count - shown:,} more" if count > shown else "")


def _more(count: int) -> list[str]:
    rest = count - MOST_ROUTERS
    return [f"and {rest:,} more routers (--format json lists all)"] if rest > 0 else []


def _rate(bits: float) -> str:
    return format_rate(bits) if bits >= 1e6 else f"{bits / 1e3:.3g} kbps"


def _aligned(rows: list[Row], left: tuple[int, ...]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            f"{cell:<{width}}" if i in left else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
