"""The table of `wirelag oneway`: a line for each answer, with loss and reordering beside delay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirelag.cli.output import Answer, Line, axis, octaves, picture, time_text

if TYPE_CHECKING:
    from wirelag.report import Report
    from wirelag.stats.distribution import Distribution
    from wirelag.synopses.crossing import Crossing

CANNOT_SAY = "-"


def distribution_of(crossing: Crossing) -> Distribution:
    """The sample's delays in bins, for a small picture; those below nothing are left out."""
    from wirelag.stats.distribution import Distribution

    delays, tail = Distribution(), crossing.tail
    positive = tail.delays_ns >= 0
    delays.add(tail.delays_ns[positive], tail.weights[positive])
    return delays


def crossing_table(answer: Answer) -> list[str]:
    """The answer for a person."""
    parts = [("", [answer.total]), ("by segment", answer.legs), ("over time", answer.intervals)]
    parts.append((f"by {answer.by}, slowest first", answer.groups))
    width = min(44, max(len(line.key) for _, lines in parts for line in lines))
    span = octaves(answer.total.delays)
    heads = (("used", 9), ("lost", 14), ("reordered", 9), ("p50", 8), ("p99", 8), ("deviation", 9))
    titles = "  ".join(f"{name:>{size}}" for name, size in heads)
    table = [f"{'':<{width}}  {titles}  {'mean, 95% interval':^26}  {axis(span)}"]
    for title, lines in parts:
        table += [title] if title and lines else []
        table += [_row(line, width, span) for line in lines]
    return table + answer.notes


def _row(line: Line, width: int, span: tuple[int, int]) -> str:
    report = line.report
    key = line.key if len(line.key) <= width else line.key[: width - 1] + "…"
    if not report.samples:
        return f"{key:<{width}}  {0:>9,}  {report.reason or 'no packet was seen at both points'}"
    low_high = report.ci95.get("mean")
    mean = time_text(report.mean)
    if low_high:
        mean += f", {time_text(low_high[0])} to {time_text(low_high[1])}"
    fields = (
        f"{report.samples:>9,}",
        f"{lost_text(report):>14}",
        f"{_count(report.details['reordered']):>9}",
        f"{time_text(report.quantiles['0.5']):>8}",
        f"{time_text(report.quantiles['0.99']):>8}",
        f"{time_text(report.std):>9}",
    )
    return f"{key:<{width}}  {'  '.join(fields)}  {mean:^26}  {picture(line, span)}"


def lost_text(report: Report) -> str:
    """What was lost, and which share of what was sent."""
    lost, sent = report.details["lost"], report.details["sent"]
    if lost is None or not sent:
        return CANNOT_SAY
    return f"{lost:,} ({lost / sent:.2%})"


def _count(value: int | None) -> str:
    return CANNOT_SAY if value is None else f"{value:,}"
