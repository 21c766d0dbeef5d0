"""What `wirelag marking` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wirelag.units import format_duration, format_interval, format_time

if TYPE_CHECKING:
    from wirelag.measure.marking import MarkingResult
    from wirelag.twopoint.marking import Period

MOST: Final = 40  # periods in the table
HEAD: Final[tuple[str, ...]] = ("from (UTC)", "colour", "sent", "received", "lost", "mean delay")


def table(result: MarkingResult) -> list[str]:
    """All periods together, then each; the notes under them."""
    lost = result.sent - result.received
    share = f" ({lost / result.sent:.2%})" if result.sent else ""
    mean = "-" if result.mean is None else format_duration(result.mean * 1e9)
    rows: list[tuple[str, ...]] = [
        HEAD,
        ("all", "", f"{result.sent:,}", f"{result.received:,}", f"{lost:,}{share}", mean),
    ]
    rows += [_row(period) for period in result.periods[:MOST]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    if len(result.periods) > MOST:
        lines.append(f"and {len(result.periods) - MOST:,} more periods (--format csv)")
    return lines + result.notes


def _row(period: Period) -> tuple[str, ...]:
    mean = "-" if period.mean_ns is None else format_duration(period.mean_ns)
    if period.lost > 0 and period.low_ns is not None and period.high_ns is not None:
        mean = f"{mean}, within {format_interval(period.low_ns, period.high_ns)}"
    counts = (f"{n:,}" for n in (period.sent, period.received, period.lost))
    return format_time(period.start_ns), str(int(period.colour)), *counts, mean
