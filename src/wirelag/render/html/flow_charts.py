"""The charts of the page about flows: delay against size, and over time with the references.

Of up to millions of flows, at most `MOST_POINTS` are drawn, the slowest always.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from wirelag.render.html.charts import (
    Figure,
    Floats,
    Scale,
    Times,
    across,
    all_rounded,
    area,
    band,
    cloud,
    plain,
    rounded,
    spoken,
)
from wirelag.render.html.oneway_charts import MOST_PARTS, SpanEntry
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
        rows = np.lexsort((flows.column("key"), -delays_s))[: int(np.isfinite(delays_s).sum())]
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
        order = known[np.lexsort((flows.column("key")[known], -delays_s[known]))]
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
    traces = []
    for name, rows, colour in _halves(len(entries)):
        trace = _strong(cloud(sizes[rows], scale.places(delays_s[rows]), name, colour), rows)
        if rows.start == 0:
            trace["error_y"] = _errors([report for _, report in entries[rows]], scale, low, colour)
        words = [flow_text(*entry) for entry in entries[rows]]
        traces.append(trace | {"text": words, "hoverinfo": "text", "hovertemplate": "%{text}<extra></extra>"})
    x, y = _medians(every)
    if len(x) > 1:
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": "median of flows of similar size", "x": all_rounded(x),
                "y": all_rounded(scale.places(y).tolist()), "text": [spoken(value, None) for value in y],
                "hovertemplate": "median %{text}<extra></extra>", "line": {"width": 2.5, "color": "var(--all)"},
            }
        )  # fmt: skip
    shapes = list(scale.zero)
    if total.mean is not None:
        line = {"color": "var(--soft)", "width": 1, "dash": "dot"}
        shapes.append(across("y", scale.place(total.mean)) | {"line": line})
    layout: Figure = {
        "xaxis": _size_axis(min(sizes), max(sizes)),
        "yaxis": scale.axis(low, high) | {"title": {"text": "mean delay"}},
        "hovermode": "closest",
        "shapes": shapes,
        "legend": {"itemsizing": "constant"},
    }
    return {"data": traces, "layout": layout}


def flow_text(name: str, report: Report) -> str:
    """The hover text of a flow."""
    count = report.details["references"]
    parts = [
        spoken(report.mean, report.ci95.get("mean")),
        f"{report.packets:,} packet{'s' * (report.packets != 1)}, {format_size(report.details['bytes'])}, "
        f"{count:,} reference{'s' * (count != 1)}",
    ]
    return "<br>".join([plain(name), *parts])


def _halves(count: int) -> list[tuple[str, slice, int]]:
    """The slowest flows on top of the others."""
    if count <= NAMED:
        return [("flows", slice(0, count), 1)] if count else []
    return [("flows", slice(NAMED, count), 1), (f"the {NAMED} slowest", slice(0, NAMED), 3)]


def _ends(scale: Scale, delays_s: Floats | Sequence[float]) -> tuple[float, float]:
    """Ends of an axis with room for the points."""
    low, high = scale.reach(delays_s)
    room = (high / low) ** 0.03 if scale.linear_s is None else 1.0
    return low / room, high * room


def _strong(trace: Figure, rows: slice) -> Figure:
    """The style of points: the slowest, or few, react to the pointer; many are faint, to show density."""
    marker = {"size": 7, "opacity": 0.95} if rows.start == 0 else {"opacity": 0.35}
    return trace | {"marker": trace["marker"] | marker}


def _errors(reports: Sequence[Report], scale: Scale, low: float, colour: int) -> Figure:
    """95% intervals, cut at the axis; none where unknown."""
    here = [report.mean or 0.0 for report in reports]
    ends = [report.ci95.get("mean", (mean, mean)) for report, mean in zip(reports, here, strict=True)]
    places = [
        (scale.place(mean), scale.place(max(low, a)), scale.place(b)) for mean, (a, b) in zip(here, ends, strict=True)
    ]
    return {
        "type": "data", "symmetric": False, "array": all_rounded(b - mean for mean, _, b in places),
        "arrayminus": all_rounded(max(0.0, mean - a) for mean, a, _ in places),
        "thickness": 1, "width": 3, "color": f"var(--c{colour})",
    }  # fmt: skip


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


def _size_axis(low: float, high: float) -> Figure:
    ends = math.log10(low) - 0.1, math.log10(high) + 0.1
    values = [10.0**k for k in range(math.ceil(ends[0]), math.floor(ends[1]) + 1)]
    if len(values) < 3:
        values = [f * 10.0**k for k in range(math.floor(ends[0]), math.ceil(ends[1]) + 1) for f in (1, 2, 5)]
        values = [x for x in values if ends[0] <= math.log10(x) <= ends[1]] or [low]
    return {
        "type": "log", "range": list(ends), "tickvals": values, "ticktext": [format_size(x) for x in values],
        "title": {"text": "size of the flow"}, "automargin": True,
    }  # fmt: skip


# ---- over time ----


def over_time(
    points: Points, references: tuple[Floats, Floats], spans: Sequence[SpanEntry], scale: Scale, words: Sequence[str]
) -> Figure:
    """Delays of references when they arrived, of flows in their middle, and the means of intervals."""
    shown = _parts(spans)
    times_s = np.concatenate([references[0], points.times_s, [end for s in shown for end in (s.start_s, s.end_s)]])
    times = Times(float(times_s.min()), max(float(times_s.max()), float(times_s.min()) + 1e-6))
    means = [span.report.mean for span in shown if span.report.mean is not None]
    low, high = _ends(scale, np.concatenate([references[1], points.delays_s, means]))
    traces = []
    for name, rows, colour in _halves(len(points.times_s)):
        trace = cloud(times.places(points.times_s[rows]), scale.places(points.delays_s[rows]), name, colour)
        known = {"text": list(words[rows]), "hoverinfo": "text", "hovertemplate": "%{text}<extra></extra>"}
        traces.append(_strong(trace, rows) | (known if rows.start == 0 else {}))
    if len(references[0]):
        joined = len(references[0]) <= LINES
        trace = cloud(times.places(references[0]), scale.places(references[1]), "references", 2)
        trace |= {"mode": "lines+markers" if joined else "markers", "line": {"width": 1, "color": "var(--c2)"}}
        trace["marker"] = {"size": 3, "opacity": 0.8, "color": "var(--c2)"}
        traces.insert(1, trace)
    traces += _interval_means(shown, times, scale, (low, high))
    layout = {
        "xaxis": times.axis(),
        "yaxis": scale.axis(low, high),
        "hovermode": "closest",
        "shapes": scale.zero,
        "legend": {"itemsizing": "constant"},
    }
    return {"data": traces, "layout": layout}


def _interval_means(spans: Sequence[SpanEntry], times: Times, scale: Scale, ends: tuple[float, float]) -> list[Figure]:
    if not any(span.report.mean is not None for span in spans):
        return []
    name = "mean of an interval"
    middles = times.places([(span.start_s + span.end_s) / 2 for span in spans])
    bounds = [span.report.ci95.get("mean") for span in spans]
    placed = [pair and (scale.place(max(pair[0], ends[0])), scale.place(min(pair[1], ends[1]))) for pair in bounds]
    line = {
        "type": "scatter", "mode": "lines+markers", "name": name, "legendgroup": name, "x": middles,
        "y": [None if s.report.mean is None else rounded(scale.place(s.report.mean)) for s in spans],
        "text": [spoken(span.report.mean, pair) for span, pair in zip(spans, bounds, strict=True)],
        "hovertemplate": "mean %{text}<extra></extra>", "line": {"width": 2.5, "color": "var(--all)"},
        "marker": {"size": 5 if len(spans) <= 120 else 3, "color": "var(--all)"},
    }  # fmt: skip
    return [area(*band(middles, placed), "var(--all)", name), line]


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
