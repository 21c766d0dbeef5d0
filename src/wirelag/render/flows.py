"""What `wirelag flows` prints: its table, and its rows for files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from wirelag.capture.table import Table
from wirelag.render.tables import duration, layout, with_bounds
from wirelag.units import format_size

if TYPE_CHECKING:
    from wirelag.measure.flow_rows import FlowRow
    from wirelag.measure.flows import FlowsResult

WIDEST_KEY: Final = 52
_KINDS: Final = {
    **dict.fromkeys(("scope", "key"), "String"),
    **dict.fromkeys(("start", "end"), "Float64"),
    **dict.fromkeys(("packets", "bytes", "timed", "references"), "Int64"),
    **dict.fromkeys(("mean", "std", "mean_low", "mean_high"), "Float64"),
}


def table(result: FlowsResult) -> list[str]:
    """Everything, intervals, then the slowest flows or groups; the notes under it."""
    shown = result.shown()
    parts = [
        ("", [result.total]),
        ("over time (UTC)", [row for _, row in result.intervals]),
        (f"by {result.by}, {order_text(result)}", shown),
    ]
    width = max(len("mean, 95% interval"), *(len(_mean_text(row)) for _, rows in parts for row in rows))
    title = f"{'mean, 95% interval':^{width}}"
    head = [f"{'packets':>10}", f"{'bytes':>8}", f"{'references':>10}", title, "deviation"]
    lines = layout(parts, head, partial(_cells, width), WIDEST_KEY, drop=(4, 1, 2))
    if result.count > len(shown):
        what = "flows" if result.by == "flow" else "groups"
        lines.append(f"and {result.count - len(shown):,} more {what} (--most-flows, --format csv)")
    return lines + result.verdicts + result.coverage + result.notes


def order_text(result: FlowsResult) -> str:
    """What flows or groups are in order of."""
    return "slowest first" + (", those with few packets timed last" if result.few[0] and result.few[1] else "")


def _mean_text(row: FlowRow) -> str:
    return with_bounds(row.mean, None if row.low is None or row.high is None else (row.low, row.high))


def _cells(width: int, row: FlowRow) -> list[str]:
    counts = [f"{row.packets:>10,}", f"{format_size(row.bytes):>8}", f"{row.references:>10,}"]
    return [*counts, f"{_mean_text(row):^{width}}", f"{duration(row.std):>9}"]


def rows_table(result: FlowsResult) -> Table:
    """A row for the total and each interval, group and flow; times in seconds."""
    ends: list[tuple[float | None, float | None]] = [(None, None)]
    for report, _ in result.intervals:
        assert report.interval
        ends.append((report.interval.start_ns / 1e9, report.interval.end_ns / 1e9))
    every = [result.total, *(row for _, row in result.intervals), *result.groups, *result.flows()]
    ends += [(None, None)] * (len(every) - len(ends))
    scopes, keys, *figures = zip(*every, strict=True)
    starts, stops = zip(*ends, strict=True)
    return Table(_KINDS, dict(zip(_KINDS, (scopes, keys, starts, stops, *figures), strict=True)))
