"""The table of `wirelag oneway`: a line for each report, with loss and reordering beside delay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from wirelag.render.tables import (
    UNKNOWN,
    Pictures,
    duration,
    figures,
    layout,
    mean_cells,
    more_groups,
    order_text,
    shown_groups,
    slowest_lines,
    sorted_by,
)

if TYPE_CHECKING:
    from wirelag.measure.oneway import OnewayResult
    from wirelag.measure.result import Entry
    from wirelag.report import Report

_HEADS: Final = (("used", 9), ("lost", 14), ("reordered", 9), ("p50", 8), ("p99", 8), ("deviation", 9))


def table(result: OnewayResult) -> list[str]:
    """The table and the notes under it."""
    pictures = Pictures(result.total.delays)
    own = sorted_by(result, ("p50", "p99", "std", "mean"))
    titles = [f"{name:>{size}}" for name, size in (*_HEADS, *((name, 8) for name in own))]
    parts = [
        ("", [result.total]),
        ("by segment", result.segments),
        ("over time (UTC)", result.intervals),
        (f"by {result.by}, {order_text(result)}", shown_groups(result)),
    ]
    places = {5: "std", 2: "", 3: "p50", 4: "p99"} | dict(enumerate(own, len(_HEADS)))
    drop = len(titles) + 1, *sorted(places, key=lambda at: places[at] == result.sort)  # that column goes last
    title, mean = mean_cells(entry for _, entries in parts for entry in entries)
    head = [*titles, title, pictures.axis]
    lines = layout(parts, head, lambda entry: _cells(entry, pictures, own, mean), drop=drop)
    return lines + more_groups(result) + slowest_lines(result) + result.notes


def _cells(entry: Entry, pictures: Pictures, own: Sequence[str], mean: Callable[[Report], str]) -> list[str]:
    report = entry.report
    if not report.samples:
        return [f"{0:>9,}", f"{lost_text(report):>14}", report.reason or "no packet was seen at both points"]
    return [
        f"{report.samples:>9,}",
        f"{lost_text(report):>14}",
        f"{_count(report.details['reordered']):>9}",
        *figures(report, ("p50", "p99")),
        f"{duration(report.std):>9}",
        *figures(report, own),
        mean(report),
        pictures.of(entry),
    ]


def lost_text(report: Report) -> str:
    """The packets lost, and their share of those sent; or between which numbers they are."""
    lost, sent = report.details["lost"], report.details["sent"]
    if lost is None or not sent:
        return UNKNOWN
    low, high = report.details.get("lost_low", lost), report.details.get("lost_high", lost)
    if low < high:
        return f"{low:,} to {high:,}"
    return f"{lost:,} ({lost / sent:.2%})"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"
