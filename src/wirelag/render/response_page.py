"""The pages of `wirelag response`: from client packets only, and from both directions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from wirelag.packets.intervals import Interval
from wirelag.render.html.charts import Intervals, Parts
from wirelag.render.html.oneway_charts import MOST_PARTS, SpanEntry
from wirelag.render.html.page import Page, View
from wirelag.render.html.response import ResponsePage, render_pairs, render_response
from wirelag.render.tables import order_text
from wirelag.stats.distribution import Distribution
from wirelag.synopses.epochs import Epochs

if TYPE_CHECKING:
    from wirelag.measure.response import ResponseResult
    from wirelag.measure.result import Entry

PARTS: Final = 60  # parts of the time, without intervals
SHORTEST_NS: Final = {"pirate": 500_000_000, "pairs": 1_000_000}


def page(result: ResponseResult) -> str:
    """The page of a result."""
    return _of_epochs(result, result.found) if isinstance(result.found, Epochs) else _of_exchanges(result)


def _of_epochs(result: ResponseResult, epochs: Epochs) -> str:
    nothing = replace(epochs, rows=epochs.rows[:0]).report()
    return render_response(
        ResponsePage(
            title="Response latency",
            subject=result.subject,
            command_line=result.command_line,
            total=result.report,
            epochs=epochs,
            spans=[
                SpanEntry(when.start_ns / 1e9, when.end_ns / 1e9, entry.report if entry else nothing)
                for when, entry in parts_of(result)
            ],
            groups=[(entry.key, entry.report) for entry in result.groups],
            by=result.by,
            order=order_text(result),
            notes=[line for line in result.notes if line not in result.abstained],  # the page shows these in a table
            warnings=result.warnings,
            counts=result.counts,
        )
    )


def _of_exchanges(result: ResponseResult) -> str:
    return render_pairs(
        Page(
            title="Response time",
            subject=result.subject,
            command_line=result.command_line,
            views=[View("", result.total, *_over_time(result))],
            groups=[entry for entry in result.groups if entry.report.samples and entry.report.estimator == "pairs"],
            order=order_text(result),
            sort=result.sort,
            by=result.by,
            notes=result.notes,
            warnings=result.warnings,
            counts=result.counts,
            slowest=result.slowest,
            what="responses",
            reason=result.report.reason or "",
        ),
        [
            (entry.key, one.report)
            for entry in (result.total, *result.groups)
            for one in entry.by_method()
            if one.report.estimator == "pirate"
        ],
    )


def _over_time(result: ResponseResult) -> tuple[Parts, Intervals]:
    """The parts of the time, and the 95% intervals of each."""
    parts = parts_of(result)
    timeline = [(when, entry.delays if entry else Distribution()) for when, entry in parts]
    return timeline, [entry.report.ci95 if entry else {} for _, entry in parts]


def parts_of(result: ResponseResult) -> list[tuple[Interval, Entry | None]]:
    """Parts of the time without gaps: the given interval, or one that makes few enough; None without packets."""
    found = result.found
    if found is None or not len(found.times_ns):
        return []
    whole_ns = int(found.times_ns.max() - found.times_ns.min())
    asked = result.intervals[0].report.interval if result.intervals else None
    chosen_ns = _round_ns(max(whole_ns // PARTS, SHORTEST_NS[result.report.estimator]))
    length_ns = asked.length_ns if asked and whole_ns // asked.length_ns < MOST_PARTS else chosen_ns
    known = {entry.report.interval: entry for entry in result.split(length_ns)}
    starts = [when.start_ns for when in known if when]
    every = [Interval(ns, ns + length_ns) for ns in range(min(starts), max(starts) + 1, length_ns)]
    return [(when, known.get(when)) for when in every]


def _round_ns(length_ns: int) -> int:
    """1, 2 or 5 times a power of ten, at least this long."""
    unit = int("1".ljust(len(str(length_ns)), "0"))
    return next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= length_ns)
