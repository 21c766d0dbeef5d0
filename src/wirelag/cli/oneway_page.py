"""The page of `wirelag oneway --html`: what was measured, in the shape the page wants."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import numpy as np

from wirelag.cli.output import write_html

if TYPE_CHECKING:
    from wirelag.cli.oneway import Measured
    from wirelag.cli.output import Answer
    from wirelag.render.html import ClockFit

POINTS = 200  # of the line that shows a clock's correction


def write_page(path: str, answer: Answer, measured: Measured, segments: list[Measured], clock_text: str) -> None:
    """Write it, or say why that is not possible."""
    from wirelag import __version__
    from wirelag.render.html import OnewayPage, SpanEntry, render_oneway

    counts = {"packets": measured.packets, **{f"skipped: {why}": n for why, n in measured.skipped.items()}}
    counts |= {f"left out: {why}": n for why, n in measured.left_out.items()}
    page = OnewayPage(
        title="One-way delay",
        subject=measured.name,
        command_line=shlex.join(["wirelag", *sys.argv[1:]]),
        version=__version__,
        total=answer.total.report,
        tail=measured.whole.tail,
        spans=[
            SpanEntry(line.report.interval.start_ns / 1e9, line.report.interval.end_ns / 1e9, line.report)
            for line in answer.intervals
            if line.report.interval
        ],
        groups=[(line.key, line.report) for line in answer.groups],
        by=answer.by,
        segments=[(part.name, line.report) for part, line in zip(segments, answer.legs, strict=True)],
        clock=_clock_fit(measured, clock_text),
        notes=answer.notes,
        warnings=measured.warnings,
        counts=counts,
    )
    write_html(path, render_oneway(page))


def _clock_fit(measured: Measured, text: str) -> ClockFit | None:
    """The times of the same packets at both points, and what was taken from those downstream."""
    from wirelag.render.html import ClockFit

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
