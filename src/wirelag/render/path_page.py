"""The page of `wirelag path`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirelag.render.html.path import PathPage, RouteEntry, render_path
from wirelag.render.path import verdict_lines

if TYPE_CHECKING:
    from wirelag.measure.path import PathResult


def page(found: PathResult) -> str:
    """The page of a result."""
    routes = [
        RouteEntry(
            f"{route.source} to {route.target}",
            route.paths,
            route.verdict,
            [(cell.start, cell.end, total, cell.figures) for cell, total in route.over_time],
        )
        for route in found.routes
    ]
    unassigned = {
        router: (
            told["packets"],
            told["share"],
            "; ".join(f"{count:,} {why}" for why, count in told["reasons"].items()),
        )
        for router, told in found.unassigned.items()
    }
    used = {part.segment for route in found.routes for part in route.verdict.parts}
    counts = {str(segment): found.reports[segment].whole.samples for segment in sorted(used)}
    return render_path(
        PathPage(
            title="Where packets wait",
            subject=f"{routes[0].name}, {found.topology.name}" if not found.every else found.topology.name,
            command_line=found.command_line,
            routes=routes,
            verdicts=[*verdict_lines(found), *found.verdicts],
            changes=found.changes,
            unassigned=unassigned,
            topology=found.topology,
            slow=found.slow,
            warnings=found.notes,
            counts=counts,
        )
    )
