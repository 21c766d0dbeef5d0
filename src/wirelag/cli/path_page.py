"""The page of `wirelag path --html`: what was found, in the shape the page wants."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from wirelag.cli.output import write_html
from wirelag.cli.path_table import verdict_lines

if TYPE_CHECKING:
    from wirelag.cli.path import Found


def write_page(path: str, found: Found) -> None:
    """Write it, or say why that is not possible."""
    from wirelag import __version__
    from wirelag.render.html.path import PathPage, RouteEntry, render_path

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
    page = PathPage(
        title="Where packets wait",
        subject=f"{routes[0].name}, {found.topology.name}" if not found.every else found.topology.name,
        command_line=shlex.join(["wirelag", *sys.argv[1:]]),
        version=__version__,
        routes=routes,
        verdicts=[*verdict_lines(found), *found.answers],
        changes=found.changes,
        unassigned=unassigned,
        notes=found.notes,
        counts=counts,
    )
    write_html(path, render_path(page))
