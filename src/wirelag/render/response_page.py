"""The pages of `wirelag response`: from client packets only, and from both directions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from wirelag.packets.interval import Interval
from wirelag.render.html.charts import Intervals, Own, Parts, quantiles_of
from wirelag.render.html.oneway_charts import MOST_PARTS, SpanEntry
from wirelag.render.html.page import MOST_BARS, Page, View
from wirelag.render.html.response import ResponsePage, render_pairs, render_response
from wirelag.render.tables import order_text
from wirelag.stats.distribution import Distribution
from wirelag.synopses.epochs import Epochs
from wirelag.synopses.request_response import Exchanges

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
    groups = [entry for entry in result.groups if entry.report.samples and entry.report.estimator == "pairs"]
    return render_pairs(
        Page(
            title="Response time",
            subject=result.subject,
            command_line=result.command_line,
            views=[View("", result.total, *_over_time(result))],
            groups=groups,
            order=order_text(result),
            sort=result.sort,
            by=result.by,
            notes=result.notes,
            warnings=result.warnings,
            counts=result.counts,
            slowest=result.slowest,
            what="responses",
            reason=result.report.reason or "",
            own=_own(result, {entry.key for entry in groups[:MOST_BARS]}),
        ),
        [
            (entry.key, one.report)
            for entry in (result.total, *result.groups)
            for one in entry.by_method()
            if one.report.estimator == "pirate"
        ],
    )


def _own(result: ResponseResult, shown: Collection[str]) -> Callable[[Entry], Own | None] | None:
    """The response times over time of a group that is shown."""
    found, times = result.found, [when for when, _ in parts_of(result)]
    if not isinstance(found, Exchanges) or not times or not result.by:
        return None
    groups = {key: part.single for key, part in found.groups(result.by) if key in shown}
    length_ns = times[0].length_ns

    def own(entry: Entry) -> Own | None:
        if (part := groups.get(entry.key)) is None:
            return None
        delays_ns, places = np.maximum(part.response_ns, 0), part.times_ns // length_ns
        parts = [(when, _of(delays_ns[places == when.start_ns // length_ns])) for when in times]
        whole = Distribution()
        for _, delays in parts:
            whole.merge(delays)
        return Own(times, quantiles_of(parts), whole)

    return own


def _of(delays_ns: npt.NDArray[np.int64]) -> Distribution:
    delays = Distribution()
    delays.add(delays_ns)
    return delays.compact()


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
