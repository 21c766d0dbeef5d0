"""What `wirelag path` prints: as a table and as data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from wirelag.render.tables import cut, duration, interval, with_bounds
from wirelag.units import format_time

if TYPE_CHECKING:
    from wirelag.measure.path import PathResult, Route
    from wirelag.network.changes import DelayChange
    from wirelag.network.localise import RoutePart, Total, Verdict
    from wirelag.network.segments import Segment

WIDTH: Final = 24  # width of the waterfall
MOST_ROUTES: Final = 20
MOST_CHANGES: Final = 20
INDEPENDENT: Final = "if packets were independent, which those in a queue are not; oneway --interval gives better ones"
ABOVE: Final = {"floor": "its floor", "baseline": "the baseline", "deviation": "the steady delay (no floor known)"}


# ---- data ----


def to_dict(found: PathResult) -> dict[str, Any]:
    """The JSON of docs/reference/schema/path.json."""
    routes = [_route(route) for route in found.routes]
    plain: dict[str, Any] = {"command": "path", "quantity": "one_way", "topology": found.topology.name}
    plain |= {"estimators": found.estimators, "slow": found.slow}
    plain |= {"routes": routes} if found.every else routes[0]
    plain["changes"] = [_change(change) for change in found.changes]
    plain["unassigned"] = found.unassigned
    if found.packets is not None:
        plain |= {"packets": found.packets, "skipped": found.skipped}
    plain["notes"] = found.notes
    if found.sla:
        plain["sla"] = found.sla
    return plain


def _route(route: Route) -> dict[str, Any]:
    verdict = route.verdict
    return {
        "from": route.source,
        "to": route.target,
        **_total(verdict.total),
        "complete": not verdict.missing,
        "missing": [str(segment) for segment in verdict.missing],
        "culprits": [str(part.segment) for part in verdict.culprits],
        "segments": [_part(part) for part in verdict.parts],
        "shares": "seen" if route.shares_seen else "even",
        "paths": [
            {
                "routers": list(path.routers),
                "share": path.share,
                **_total(total),
                "segments": [str(segment) for segment in path.segments],
                "missing": [str(segment) for segment in path.missing],
            }
            for path, total in zip(route.paths, verdict.by_path, strict=True)
        ],
        "intervals": [
            {
                "start": cell.start,
                "end": cell.end,
                **_total(total),
                "segments": [
                    {"segment": str(part.segment), "mean": cell.figures[part.segment].mean} for part in verdict.parts
                ],
            }
            for cell, total in route.over_time
        ],
    }


def _total(total: Total) -> dict[str, Any]:
    ci95 = {"mean": list(total.ci95)} if total.ci95 else {}
    return {"mean": total.mean, "std": total.std, "loss": total.loss, "ci95": ci95}


def _part(part: RoutePart) -> dict[str, Any]:
    figures, added = part.figures, part.added
    known = {"mean": figures.ci95, "adds": added.ci95 if added else None}
    ci95 = {name: list(ends) for name, ends in known.items() if ends}
    return {
        "segment": str(part.segment),
        "kind": part.segment.kind,
        "share": part.share,
        "samples": figures.samples,
        "mean": figures.mean,
        "std": figures.std,
        "floor": figures.floor,
        "sent": figures.sent,
        "lost": figures.lost,
        "loss": figures.loss,
        "adds": added.value if added else None,
        "above": added.since if added else None,
        "ci95": ci95,
        "basis": figures.basis if figures.error is not None else None,
        "p_value": part.trial.p_value,
        "blamed": part.blamed,
        "alike": [str(segment) for segment in part.alike],
    }


def _change(change: DelayChange) -> dict[str, Any]:
    return {
        "segment": str(change.segment),
        "since": change.since,
        "at": change.at,
        "before": change.before,
        "after": change.after,
        "difference": change.difference,
        "ci95": list(change.ci95),
        "p_value": change.p_value,
    }


def rows(found: PathResult) -> list[dict[str, Any]]:
    """A row for each segment of each route."""
    rows = []
    for route in found.routes:
        for part in route.verdict.parts:
            plain = _part(part)
            ci95 = plain.pop("ci95")
            for name in ("mean", "adds"):
                plain[f"{name}_low"], plain[f"{name}_high"] = ci95.get(name, (None, None))
            plain["alike"] = " ".join(plain["alike"])
            rows.append({"from": route.source, "to": route.target, **plain})
    return rows


# ---- the table ----


def table(found: PathResult) -> list[str]:
    """The table, with verdict and notes."""
    lines = _routes_table(found) if found.every else _route_table(found.routes[0])
    lines += verdict_lines(found)
    lines += found.verdicts
    if any(part.figures.basis == "packets" and part.figures.ci95 for part in _parts(found).values()):
        lines.append(f"{'intervals of reports are as' if found.every else '* as'} {INDEPENDENT}")
    return lines + [f"note: {note}" for note in found.notes]


def _parts(found: PathResult) -> dict[Segment, RoutePart]:
    """The segments of all routes; of those on several, one."""
    return {part.segment: part for route in found.routes for part in route.verdict.parts}


def _route_table(route: Route) -> list[str]:
    verdict = route.verdict
    by_segment = {part.segment: part for part in verdict.parts}
    names = [len(str(segment)) for path in route.paths for segment in (*path.segments, *path.missing)]
    width = min(44, max(names, default=5))
    most = max(_reach([by_segment[segment].figures.mean or 0.0 for segment in path.segments]) for path in route.paths)
    heads = (("used", 9), ("lost", 14), ("floor", 8), ("deviation", 9), ("adds", 8))
    titles = "  ".join(f"{name:>{size}}" for name, size in heads)
    lines = [heading(route), f"{'':<{width}}  {titles}  {'mean, 95% interval':^26}"]
    for path, total in zip(route.paths, verdict.by_path, strict=True):
        if len(route.paths) > 1:
            lines.append(f"{' > '.join(path.routers)}: {path.share:.1%} of packets, {duration(total.mean)}")
        so_far = 0.0
        for segment in path.segments:
            part = by_segment[segment]
            lines.append(
                f"{_row(part, width)}  {_bar(so_far, part.figures.mean or 0.0, most)}{'  slow' * part.blamed}".rstrip()
            )
            so_far += part.figures.mean or 0.0
        lines += [f"{cut(str(segment), width):<{width}}  no report" for segment in path.missing]
    return lines


def heading(route: Route) -> str:
    """The sums, in a line."""
    total = route.verdict.total
    bound = "at least " if route.verdict.missing and total.mean is not None else ""
    loss = "" if total.loss is None else f"; {total.loss:.2%} lost"
    paths = f" over {len(route.paths)} equal paths" if len(route.paths) > 1 else ""
    mean = f"mean {bound}{with_bounds(total.mean, total.ci95)}; deviation {duration(total.std)}"
    return f"{route.source} to {route.target}{paths}: {mean}{loss}"


def _row(part: RoutePart, width: int) -> str:
    figures, added = part.figures, part.added
    lost = "-" if figures.loss is None else f"{figures.lost:,} ({figures.loss:.2%})"
    mean = with_bounds(figures.mean, figures.ci95) + "*" * bool(figures.ci95 and figures.basis == "packets")
    fields = (
        f"{figures.samples:>9,}",
        f"{lost:>14}",
        f"{duration(figures.floor):>8}",
        f"{duration(figures.std):>9}",
        f"{duration(added.value if added else None):>8}",
    )
    return f"{cut(str(part.segment), width):<{width}}  {'  '.join(fields)}  {mean:<30}"


def _bar(start: float, length: float, whole: float) -> str:
    """A step of the waterfall."""
    if whole <= 0 or length < 0 or start < 0:
        return ""
    first, last = (min(WIDTH, round(end / whole * WIDTH)) for end in (start, start + length))
    return " " * first + ("█" * (last - first) or "▏")


def _reach(lengths: Sequence[float]) -> float:
    """The ends of a waterfall: a clock that is ahead makes steps back."""
    return max(accumulate(lengths), default=0.0)


def _routes_table(found: PathResult) -> list[str]:
    """A line for each route, those whose segments add most first."""
    ranked = sorted(found.routes, key=lambda route: -sum(part.puts for part in route.verdict.parts))
    shown = ranked[:MOST_ROUTES]
    width = max(len(f"{route.source} to {route.target}") for route in shown)
    titles = f"{'mean':>9}  {'deviation':>9}  {'lost':>7}  {'adds':>8}  slow"
    lines = [f"{'':<{width}}  {titles}"]
    for route in shown:
        total, verdict = route.verdict.total, route.verdict
        culprits = ", ".join(str(part.segment) for part in verdict.culprits) or "nothing"
        bound = ">" if verdict.missing and total.mean is not None else ""
        loss = "-" if total.loss is None else f"{total.loss:.2%}"
        adds = duration(sum(part.puts for part in verdict.parts))
        name = f"{route.source} to {route.target}"
        numbers = f"{bound + duration(total.mean):>9}  {duration(total.std):>9}  {loss:>7}  {adds:>8}"
        lines.append(f"{name:<{width}}  {numbers}  {culprits}")
    if len(ranked) > len(shown):
        lines.append(f"and {len(ranked) - len(shown):,} more, which add less; --format csv lists all")
    return lines


# ---- in words ----


def verdict_lines(found: PathResult) -> list[str]:
    """The segments to blame, those without a report, and what changed."""
    lines: list[str] = []
    if found.every:
        lines += _culprits(found)
    for route in found.routes if not found.every else ():
        lines += _blame_lines(route.verdict, found.slow)
        lines += _missing_lines(route.verdict, found)
    for change in found.changes[:MOST_CHANGES]:
        how = "slower" if change.difference > 0 else "faster"
        difference = f"{duration(change.difference, change.ci95)}, 95% interval {interval(change.ci95)}"
        lines.append(
            f"moved: {change.segment} got {how} at {format_time(round(change.at * 1e9))} UTC, "
            f"{duration(change.before)} -> {duration(change.after)} (difference {difference})"
        )
    if len(found.changes) > MOST_CHANGES:
        lines.append(f"moved: {len(found.changes) - MOST_CHANGES:,} more times; --format json lists all")
    for router, told in found.unassigned.items():
        if told["share"]:
            why = "; ".join(f"{count:,} {reason}" for reason, count in told["reasons"].items())
            lines.append(f"{router}: {told['share']:.2%} of {told['packets']:,} packets have no known egress: {why}")
    if found.unassigned and not any(told["share"] for told in found.unassigned.values()):
        total = sum(told["packets"] for told in found.unassigned.values())
        lines.append(f"all {total:,} packets that entered routers have a known egress")
    return lines


def _culprits(found: PathResult) -> list[str]:
    """Each slow segment, and the number of its routes; segments before one egress together."""
    lying: dict[Segment, set[tuple[str, str]]] = {}
    for route in found.routes:
        for part in route.verdict.culprits:
            lying.setdefault(part.segment, set()).add((route.source, route.target))
    parts = _parts(found)
    if not lying:
        return _innocent(list(parts.values()), found.slow, any(route.verdict.missing for route in found.routes))
    ranked = sorted((parts[segment] for segment in lying), key=lambda part: -(part.added.value if part.added else 0.0))
    groups: dict[tuple[str, str], list[RoutePart]] = {}
    for part in ranked:
        segment = part.segment
        key = (segment.at, segment.after) if segment.kind == "inside" else (str(segment), "")
        groups.setdefault(key, []).append(part)
    lines = []
    for key, group in groups.items():
        on = _paths(len(set().union(*(lying[part.segment] for part in group))))
        told = f"{group[0].segment} {_adds(group[0])}, on {on}"
        if len(group) > 1:
            where = f"towards {key[1]}" if key[1] else "towards its own hosts"
            told = f"{key[0]} {where}, on {on}: {'; '.join(f'{part.segment} {_adds(part)}' for part in group)}"
        lines.append(f"slow: {told}")
    return lines + _untold(list(parts.values()))


def _paths(count: int) -> str:
    return f"{count} path{'s' * (count != 1)}"


def _adds(part: RoutePart) -> str:
    """What a segment adds, its 95% interval, and the reference."""
    assert part.added
    bounds = part.added.ci95
    ends = f" (95% interval {interval(bounds)})" if bounds else ""
    return f"adds {duration(part.added.value, bounds)}{ends} to {ABOVE[part.added.since]}"


def _innocent(parts: Sequence[RoutePart], slow: float, is_partial: bool) -> list[str]:
    """The verdict where no measured segment is slow."""
    known = [part for part in parts if part.added and part.trial.p_value is not None]
    most = max(known, key=lambda part: part.puts, default=None)
    if most is None or most.added is None:
        return _untold(parts)
    told = f"{most.segment} adds most, {duration(most.added.value)} to {ABOVE[most.added.since]}"
    least = f"none adds more than {duration(slow)} by more than chance"
    what = "no measured segment" if is_partial or len(known) < len(parts) else "no segment"
    return [f"{what} is slow: {least} ({told}; lower --slow to blame it)", *_untold(parts)]


def _untold(parts: Sequence[RoutePart]) -> list[str]:
    """Segments that may or may not be slow."""
    told = []
    for part in parts:
        if part.trial.p_value is None and part.figures.loss != 1:
            adds = (
                f" adds {duration(part.added.value)}, but its report has no interval of the mean" if part.added else ""
            )
            told.append(f"{part.segment}{adds or ' has no floor and no deviation'}")
    lost = [f"{part.segment}: all {part.figures.sent:,} packets were lost" for part in parts if part.figures.loss == 1]
    return lost + ([f"cannot tell whether it is slow: {'; '.join(told)}"] if told else [])


def _blame_lines(verdict: Verdict, slow: float) -> list[str]:
    culprits = verdict.culprits
    if not culprits:
        return _innocent(verdict.parts, slow, bool(verdict.missing))
    lines = []
    whole = sum(max(0.0, part.puts) for part in verdict.parts)
    for part in culprits:
        share = f", {part.puts / whole:.0%} of what all segments add" if len(verdict.parts) > 1 else ""
        passing = f" for {part.share:.0%} of packets" if part.share < 0.9995 else ""
        lines.append(f"slow: {part.segment} {_adds(part)}{passing}{share}")
    named: set[Segment] = set()
    for part in culprits:
        if part.alike and part.segment not in named:
            group = [part.segment, *part.alike]
            named |= set(group)
            lines.append(f"cannot tell which adds more: {' and '.join(map(str, group))}")
    return lines + _untold(verdict.parts)


def _missing_lines(verdict: Verdict, found: PathResult) -> list[str]:
    if not verdict.missing:
        return []
    used = {part.segment for part in verdict.parts}
    spare = [segment for segment in found.reports if segment not in used]
    told = ", ".join(map(str, verdict.missing))
    lines = [f"no report of {told}: the sum is a lower bound"]
    if spare:
        some = ", ".join(map(str, spare[:5])) + (", ..." if len(spare) > 5 else "")
        lines.append(
            f"reports of segments off this path: {some}; if routes have changed, use the topology of that time"
        )
    return lines
