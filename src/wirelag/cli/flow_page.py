"""The page of `wirelag flows --html`: what was measured, in the shape the page wants."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from wirelag.cli.flow_source import refused
from wirelag.cli.flow_table import flow_rows
from wirelag.cli.output import write_html
from wirelag.units import format_rate

if TYPE_CHECKING:
    from wirelag.cli.flow_source import Found
    from wirelag.cli.flow_table import Row
    from wirelag.report import Report
    from wirelag.synopses.flows import Flows


def write_page(path: str, found: Found, chosen: Flows, report: Report, groups: list[Row], by: str) -> None:
    """Write it, or say why that is not possible; groups are slowest first, and none where flows are listed."""
    from wirelag import __version__
    from wirelag.render.html import FlowsPage, SpanEntry, drawn, render_flows

    flows = chosen.merged()
    counts = {"packets": found.statistics.packets, "of the flows asked for": chosen.counts.get("regular", 0)}
    counts |= {"timed": report.samples, **{f"skipped: {why}": n for why, n in found.statistics.skipped.items()}}
    page = FlowsPage(
        title="Delay of flows",
        subject=found.names,
        command_line=shlex.join(["wirelag", *sys.argv[1:]]),
        version=__version__,
        total=report,
        flows=flows,
        points=[entry(row) for row in flow_rows(drawn(flows))],
        spans=[
            SpanEntry(part.interval.start_ns / 1e9, part.interval.end_ns / 1e9, part)
            for part, _ in found.intervals
            if part.interval
        ],
        groups=[entry(row) for row in groups],
        by=by,
        refused=refused(chosen),
        rate=format_rate(8 * chosen.drain.bytes_per_s) if chosen.drain.bytes_per_s else "",
        notes=found.notes,
        warnings=found.warnings,
        counts=counts,
    )
    write_html(path, render_flows(page))


def entry(row: Row) -> tuple[str, Report]:
    """A row as pages have it."""
    from wirelag.report import Report

    return row.key, Report(
        "rli",
        "one_way",
        packets=row.packets,
        samples=row.timed,
        mean=row.mean,
        std=row.std,
        ci95={} if row.low is None or row.high is None else {"mean": (row.low, row.high)},
        details={"bytes": row.bytes, "references": row.references},
    )
