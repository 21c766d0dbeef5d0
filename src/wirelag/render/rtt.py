"""What `wirelag rtt` prints: its table and its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirelag.render.tables import Pictures, layout, mean_with_bounds, quantiles

if TYPE_CHECKING:
    from wirelag.measure.result import Entry
    from wirelag.measure.rtt import RttResult


def table(result: RttResult) -> list[str]:
    """One line for each report, with a small picture of its distribution."""
    pictures = Pictures(result.total.delays)
    head = f"{'samples':>9}  {'p50':>8}  {'p90':>8}  {'p99':>8}  {'mean, 95% interval':^24}  {pictures.axis}"
    parts = [
        ("", [result.total, *result.legs]),
        ("over time", result.intervals),
        (f"by {result.by}, slowest first", result.groups),
    ]
    return layout(parts, head, lambda entry: delay_cells(entry, pictures)) + result.notes


def delay_cells(entry: Entry, pictures: Pictures) -> str:
    """The figures of a distribution."""
    report = entry.report
    if not report.samples:
        return f"{0:>9,}  {report.reason or 'no samples'}"
    mean = mean_with_bounds(report, "one sample")
    return f"{report.samples:>9,}  {quantiles(report, ('0.5', '0.9', '0.99'))}  {mean:^24}  {pictures.of(entry)}"


def page(result: RttResult) -> str:
    """The page with charts."""
    from wirelag.render.html.page import Page, render

    return render(
        Page(
            title="Round-trip delay",
            subject=result.subject,
            command_line=result.command_line,
            total=result.total,
            legs=result.legs,
            timeline=result.timeline.parts() if result.timeline else [],
            groups=result.groups,
            by=result.by,
            notes=[note for note in result.notes if note != result.coverage],
            warnings=result.warnings,
            counts=result.counts,
        )
    )
