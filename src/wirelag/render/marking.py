"""What `wirelag marking` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from wirelag.render.tables import layout
from wirelag.units import format_duration, format_interval, format_time

if TYPE_CHECKING:
    from wirelag.measure.marking import MarkingResult
    from wirelag.twopoint.marking import Period

MOST: Final = 40  # periods in the table
HEAD: Final = ("colour", "sent", "received", "lost", "mean delay")


class _Row(NamedTuple):
    """All periods, or one of them."""

    key: str
    cells: tuple[str, ...]


def table(result: MarkingResult) -> list[str]:
    """All periods together, then each; the notes under them."""
    lost = result.sent - result.received
    share = f" ({lost / result.sent:.2%})" if result.sent else ""
    mean = "-" if result.mean is None else format_duration(result.mean * 1e9)
    whole = _Row("all", ("", f"{result.sent:,}", f"{result.received:,}", f"{lost:,}{share}", mean))
    rows = [_row(period) for period in result.periods[:MOST]]
    widths = [max(map(len, column)) for column in zip(HEAD, *(row.cells for row in (whole, *rows)), strict=True)]
    head = list(map(str.rjust, HEAD, widths))
    parts = [("", [whole]), ("over time (UTC)", rows)]
    lines = layout(parts, head, lambda row: list(map(str.rjust, row.cells, widths)), drop=(2, 1))
    if len(result.periods) > MOST:
        lines.append(f"and {len(result.periods) - MOST:,} more periods (--format csv)")
    return lines + result.notes


def _row(period: Period) -> _Row:
    mean = "-" if period.mean_ns is None else format_duration(period.mean_ns)
    if period.lost > 0 and period.low_ns is not None and period.high_ns is not None:
        mean = f"{mean}, within {format_interval(period.low_ns, period.high_ns)}"
    counts = (f"{n:,}" for n in (period.sent, period.received, period.lost))
    return _Row(format_time(period.start_ns), (str(int(period.colour)), *counts, mean))
