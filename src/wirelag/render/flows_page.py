"""The page of `wirelag flows`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirelag.render.flows import order_text
from wirelag.render.html.flow_charts import drawn
from wirelag.render.html.flows import FlowsPage, render_flows
from wirelag.render.html.oneway_charts import SpanEntry
from wirelag.report import Report
from wirelag.units import format_rate

if TYPE_CHECKING:
    from wirelag.measure.flow_rows import FlowRow
    from wirelag.measure.flows import FlowsResult


def page(result: FlowsResult) -> str:
    """The page of a result; groups are slowest first, and absent where flows are listed."""
    chosen = result.chosen.merged()
    rate = chosen.drain.bytes_per_s
    return render_flows(
        FlowsPage(
            title="Delay of flows",
            subject=result.subject,
            command_line=result.command_line,
            total=result.report,
            flows=chosen,
            points=[_entry(row) for row in result.rows_of(drawn(chosen))],
            spans=[
                SpanEntry(part.interval.start_ns / 1e9, part.interval.end_ns / 1e9, part)
                for part, _ in result.intervals
                if part.interval
            ],
            groups=[_entry(row) for row in result.groups],
            by=result.by,
            order=order_text(result),
            refused=result.refused,
            rate=format_rate(8 * rate) if rate else "",
            notes=[*result.verdicts, *result.notes],
            warnings=result.warnings,
            counts=result.counts,
        )
    )


def _entry(row: FlowRow) -> tuple[str, Report]:
    """A row as pages need it."""
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
