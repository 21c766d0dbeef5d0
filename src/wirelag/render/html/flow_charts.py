"""The charts of the page about flows: delay against size, and over time with the references.

Of up to millions of flows, at most `MOST_POINTS` are drawn, the slowest always.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from wirelag.render.html.charts import Figure, between, line, plain
from wirelag.render.html.oneway_charts import MOST_PARTS, SpanEntry
from wirelag.render.html.scales import Floats, Scale, Times, cloud
from wirelag.report import Report
from wirelag.synopses.flows import Flows
from wirelag.units import format_size

MOST_POINTS: Final = 3_000
SLOWEST: Final = 100  # always drawn; so are as many of the largest
NAMED: Final = 20  # slowest flows, in their own colour
FEWEST: Final = 10  # flows of about one size needed for a median
LINES: Final = 300  # with at most this many references, a line joins them


@dataclass(frozen=True, slots=True)
class Points:
    """Flows as points, slowest first: middle of its time, size and mean delay."""

    times_s: Floats
    bytes: Floats
    delays_s: Floats

    @classmethod
    def of(cls, flows: Flows, less_s: float = 0.0, delays_s: Floats | None = None) -> Points:
        """All flows with a known delay, minus a fixed part; `delays_s`: their means, if already computed."""
        delays_s = flows.table()["mean"] if delays_s is None else delays_s
        rows = flows.slowest_first(delays_s)[: int(np.isfinite(delays_s).sum())]
        first_s, last_s = (flows.column(name)[rows] / 1e9 for name in ("first_ns", "last_ns"))
        return cls(first_s + (last_s - first_s) / 2, flows.column("bytes")[rows].astype(np.float64),
                   delays_s[rows] - less_s)  # fmt: skip


def drawn(flows: Flows, delays_s: Floats | None = None) -> Flows:
    """The flows to draw: all with a known delay, or the slowest, the largest and some of the others.

    `delays_s` are their means, if already computed.
    """
    delays_s, sizes = flows.table()["mean"] if delays_s is None else delays_s, flows.column("bytes")
    known = np.flatnonzero(np.isfinite(delays_s))
    if len(known) > MOST_POINTS:
        order = flows.slowest_first(delays_s)[: len(known)]
        slowest, rest = order[:SLOWEST], order[SLOWEST:]
        rest = rest[np.argsort(sizes[rest], kind="stable")[::-1]]
        others = np.random.default_rng(0).choice(rest[SLOWEST:], MOST_POINTS - 2 * SLOWEST, replace=False)
        known = np.concatenate([slowest, rest[:SLOWEST], others])
    return replace(flows, records=flows.records[known])


def by_size(entries: Sequence[tuple[str, Report]], every: Points, total: Report, scale: Scale) -> Figure:
    """The delay of these flows against their size, slowest first, with the median of flows of similar size."""
    sizes = [max(1.0, float(report.details["bytes"])) for _, report in entries]
    delays_s = np.array([report.mean for _, report in entries], np.float64)
    tops = [report.ci95["mean"][1] for _, report in entries[:NAMED] if "mean" in report.ci95]
    low, high = _ends(scale, [*delays_s, *tops, *([] if total.mean is None else [total.mean])])
    series = []
    for name, rows, colour in _halves(len(entries)):
        points = _strong(cloud(sizes[rows], scale.shown(delays_s[rows]), name, colour), rows)
        points |= between([report.ci95.get("mean") for _, report in entries[rows]]) | {"bare": rows.start != 0}
        series.append(points | {"tips": [flow_text(*entry) for entry in entries[rows]]})
    x, y = _medians(every)
    if len(x) > 1:
        series.append(line("median of flows of similar size", x, scale.shown(y).tolist(), "all") | {"width": 2.5})
    across = list(scale.zero)
    if total.mean is not None:
        across.append({"y": total.mean, "colour": "soft", "dash": "dot"})
    panel = {"y": scale.axis(low, high, "mean delay"), "series": series, "across": across}
    size = {"kind": "bytes", "scale": "log", "range": [min(sizes) / 1.25, max(sizes) * 1.25]}
    return {"x": size | {"title": "size of the flow"}, "panels": [panel]}


def flow_text(name: str, report: Report) -> str:
    """What tooltips say of a flow, besides its delay."""
    count = report.details["references"]
    return (
        f"{plain(name)}\n{report.packets:,} packet{'s' * (report.packets != 1)}, "
        f"{format_size(report.details['bytes'])}, {count:,} reference{'s' * (count != 1)}"
    )


def _halves(count: int) -> list[tuple[str, slice, str]]:
    """The slowest flows on top of the others."""
    if count <= NAMED:
        return [("flows", slice(0, count), "c1")] if count else []
    return [("flows", slice(NAMED, count), "c1"), (f"the {NAMED} slowest", slice(0, NAMED), "c3")]


def _ends(scale: Scale, delays_s: Floats | Sequence[float]) -> tuple[float, float]:
    """Ends of an axis with room for the points."""
    low, high = scale.reach(delays_s)
    room = (high / low) ** 0.03 if scale.linear_s is None else 1.0
    return low / room, high * room


def _strong(points: Figure, rows: slice) -> Figure:
    """The style of points: the slowest, or few, are large; many are faint, to show density."""
    return points | ({"size": 3.5, "opacity": 0.95} if rows.start == 0 else {"opacity": 0.35})


def _medians(every: Points) -> tuple[list[float], list[float]]:
    """The median delay of flows of each octave of sizes, at the middle of that octave."""
    octaves = np.frexp(np.maximum(every.bytes, 1))[1]
    x, y = [], []
    for octave in np.unique(octaves).tolist():
        mine = every.delays_s[octaves == octave]
        if len(mine) >= FEWEST:
            x.append(2.0 ** (octave - 0.5))
            y.append(float(np.median(mine)))
    return x, y


# ---- over time ----


def over_time(
    points: Points,
    references: tuple[Floats, Floats],
    spans: Sequence[SpanEntry],
    scale: Scale,
    slowest: Sequence[tuple[str, Report]],
) -> Figure:
    """Delays of references when they arrived, of flows in their middle, and the means of intervals."""
    shown = _parts(spans)
    times_s = np.concatenate([references[0], points.times_s, [end for s in shown for end in (s.start_s, s.end_s)]])
    times = Times(float(times_s.min()), max(float(times_s.max()), float(times_s.min()) + 1e-6))
    means = [span.report.mean for span in shown if span.report.mean is not None]
    low, high = _ends(scale, np.concatenate([references[1], points.delays_s, means]))
    series = []
    for name, rows, colour in _halves(len(points.times_s)):
        mine = cloud(times.places(points.times_s[rows]), scale.shown(points.delays_s[rows]), name, colour)
        if rows.start == 0:
            mine |= between([report.ci95.get("mean") for _, report in slowest]) | {"bare": True}
            mine["tips"] = [flow_text(*entry) for entry in slowest]
        else:
            mine["quiet"] = True
        series.append(_strong(mine, rows))
    if len(references[0]):
        at, delays = times.places(references[0]), scale.shown(references[1])
        if len(at) <= LINES:
            marks = line("references", at, delays.tolist(), "c2") | {"width": 1, "mark": "circle", "size": 1.5}
        else:
            marks = cloud(at, delays, "references", "c2") | {"size": 1.5, "opacity": 0.8}
        series.insert(1, marks | {"quiet": True})
    if means:
        bounds = [span.report.ci95.get("mean") for span in shown]
        middles = times.places([(span.start_s + span.end_s) / 2 for span in shown])
        known = [None if s.report.mean is None else float(scale.shown(s.report.mean)) for s in shown]
        style = {"width": 2.5, "mark": "circle", "size": 2.5 if len(shown) <= 120 else 1.5}
        series.append(line("mean of an interval", middles, known, "all", bounds) | style)
    panel = {"y": scale.axis(low, high), "series": series, "across": scale.zero}
    return {"x": times.axis(), "panels": [panel]}


def _parts(spans: Sequence[SpanEntry]) -> list[SpanEntry]:
    """At most `MOST_PARTS`: the intervals, or several neighbours as one.

    Intervals have their own references, so their errors are independent.
    """
    each = math.ceil(len(spans) / MOST_PARTS)
    if each <= 1:
        return list(spans)
    return [_together(spans[i : i + each]) for i in range(0, len(spans), each)]


def _together(spans: Sequence[SpanEntry]) -> SpanEntry:
    known = [span.report for span in spans if span.report.mean is not None]
    count = sum(report.samples for report in known)
    made = Report("rli", "one_way", samples=count)
    if count:
        mean = sum(report.samples * (report.mean or 0.0) for report in known) / count
        bounds = [(report.samples, report.ci95["mean"]) for report in known if "mean" in report.ci95]
        half = math.sqrt(sum((n * (high - low) / 2) ** 2 for n, (low, high) in bounds)) / count
        made = replace(made, mean=mean, ci95={"mean": (mean - half, mean + half)} if len(bounds) == len(known) else {})
    return SpanEntry(spans[0].start_s, spans[-1].end_s, made)
