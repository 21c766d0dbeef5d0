"""The page of `wirelag oneway`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from wirelag.render.html.oneway import ClockFit, OnewayPage, render_oneway
from wirelag.render.html.oneway_charts import SpanEntry
from wirelag.render.tables import order_text

if TYPE_CHECKING:
    from wirelag.measure.oneway import MeasuredPair, OnewayResult

POINTS: Final = 200  # points of the line that shows the clock correction


def page(result: OnewayResult) -> str:
    """The page of a result."""
    measured = result.measured
    assert measured is not None
    return render_oneway(
        OnewayPage(
            title="One-way delay",
            subject=result.subject,
            command_line=result.command_line,
            total=result.report,
            tail=measured.whole.tail,
            spans=[
                SpanEntry(entry.report.interval.start_ns / 1e9, entry.report.interval.end_ns / 1e9, entry.report)
                for entry in result.intervals
                if entry.report.interval
            ],
            groups=[(entry.key, entry.report) for entry in result.groups],
            by=result.by,
            order=order_text(result),
            segments=[(leg.key, leg.report) for leg in result.segments],
            clock=_clock_fit(measured, result.clock_note),
            notes=result.notes,
            warnings=result.warnings,
            counts=result.counts,
            slowest=result.slowest,
        )
    )


def _clock_fit(measured: MeasuredPair, text: str) -> ClockFit | None:
    """The times of the same packets at both points, and the correction of the downstream times."""
    if measured.alignment is None:
        return None
    clock, ways = measured.clock, []
    for up_ns, down_ns in (measured.alignment.forward, measured.alignment.returning):
        ways.append((down_ns / 1e9, (down_ns - up_ns) / 1e9))
    every = np.concatenate([times for times, _ in ways])
    line_ns = np.linspace(every.min() * 1e9, every.max() * 1e9, POINTS).astype(np.int64)
    line = line_ns / 1e9, (line_ns - clock.correct(line_ns)) / 1e9
    steps = [(step.time_ns / 1e9, step.size_ns / 1e9) for step in clock.steps]
    return ClockFit(ways[0], (ways[1][0], -ways[1][1]), line, steps, text)
