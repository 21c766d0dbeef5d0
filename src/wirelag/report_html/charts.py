"""Charts as plotly.js takes them: plain data. Colours are those of the style sheet, by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import Any, Final

import numpy as np

from wirelag.distribution import BINS, MIDDLES_NS, Distribution
from wirelag.intervals import Interval
from wirelag.report import Report
from wirelag.units import format_duration

QUANTILES: Final = ("0.5", "0.9", "0.99")
MOST_ROWS: Final = 60  # of the heat map
MOST_LETTERS: Final = 64  # of a name beside a chart

Figure = dict[str, Any]
Parts = Sequence[tuple[Interval, Distribution]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer and what it is of."""

    name: str
    report: Report
    delays: Distribution


def duration(seconds: float | None) -> str:
    """A delay for people."""
    return "-" if seconds is None else format_duration(seconds * 1e9)


def clock(time_ns: int, resolution_ns: int) -> str:
    """A time in UTC, to the digits that tell slots apart."""
    digits = 0 if resolution_ns % 10**9 == 0 else 3 if resolution_ns % 10**6 == 0 else 6
    try:
        text = datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ns / 1e9:.{digits}f} s"
    return f"{text}.{time_ns % 10**9 // 10 ** (9 - digits):0{digits}d}" if digits else text


_COLOURS: Final = ("var(--all)", "var(--c1)", "var(--c3)")
_DASHES: Final = ("solid", "dash", "dot")
_SYMBOLS: Final = ("circle", "square", "diamond")


def cdf(entries: Sequence[Entry]) -> Figure:
    """The share of delays up to each delay."""
    traces: list[Figure] = []
    for i, entry in enumerate(entries):
        bins = np.flatnonzero(entry.delays.weights)
        shares = np.cumsum(entry.delays.weights[bins].astype(float)) / entry.delays.weight
        seconds = np.clip(MIDDLES_NS[bins], max(entry.delays.min_ns or 1, 1), entry.delays.max_ns) / 1e9
        start = [float(seconds[0])] if len(seconds) else []
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": _label(entry.name),
                "x": _rounded(start + seconds.tolist()),
                "y": _rounded([0.0, *shares.tolist()]),
                "text": [duration(x) for x in start + seconds.tolist()],
                "hovertemplate": "%{y:.2%} within %{text}",
                "line": {
                    "shape": "hv",
                    "width": 2.5 if i == 0 else 2,
                    "color": _COLOURS[i % 3],
                    "dash": _DASHES[i % 3],
                },
            }
        )
    low, high = _reach([x for trace in traces for x in trace["x"]])
    share = {"title": {"text": "share of round trips"}, "range": [0, 1.02], "tickformat": ".0%", "nticks": 6}
    return {"data": traces, "layout": {"xaxis": _delay_axis(low, high), "yaxis": share, "hovermode": "closest"}}


def over_time(timeline: Parts) -> Figure:
    """Quantiles of each part of the time, with their 95% intervals."""
    places, axis = _time_axis(timeline)
    middles = [(a + b) / 2 for a, b in pairwise(places)]
    traces: list[Figure] = []
    seen: list[float] = []
    for i, q in enumerate(QUANTILES):
        values = [delays.quantile_ns(float(q)) for _, delays in timeline]
        bounds = [delays.quantile_ci_ns(float(q)) for _, delays in timeline]
        seen += [ns / 1e9 for ns in values if ns is not None]
        seen += [ns / 1e9 for low_high in bounds if low_high for ns in low_high]
        name, colour = f"p{float(q) * 100:g}", f"var(--c{i + 1})"
        x, y = _band(middles, bounds)
        traces.append(
            {"type": "scatter", "mode": "lines", "x": x, "y": y, "fill": "toself", "fillcolor": colour, "opacity": 0.22,
             "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False, "legendgroup": name}
        )  # fmt: skip
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "legendgroup": name,
                "x": middles,
                "y": [_round(max(ns, 1.0) / 1e9) if ns is not None else None for ns in values],
                "text": [_point_text(ns, low_high) for ns, low_high in zip(values, bounds, strict=True)],
                "hovertemplate": f"{name} %{{text}}<extra></extra>",
                "line": {"width": 2, "color": colour},
                "marker": {"size": 5, "symbol": _SYMBOLS[i], "color": colour},
            }
        )
    low, high = _reach(seen)
    layout = {
        "xaxis": axis,
        "yaxis": _delay_axis(low, high),
        "hovermode": "x unified",
        "legend": {"traceorder": "reversed"},
    }
    return {"data": traces, "layout": layout}


def _point_text(ns: float | None, low_high: tuple[float, float] | None) -> str:
    if ns is None:
        return ""
    bounds = f" ({format_duration(low_high[0])} to {format_duration(low_high[1])})" if low_high else ""
    return format_duration(ns) + bounds


def _band(
    x: Sequence[float], bounds: Sequence[tuple[float, float] | None]
) -> tuple[list[float | None], list[float | None]]:
    """The outlines of the areas between low and high, one for each run without gaps."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    run: list[tuple[float, float, float]] = []
    for at, low_high in [*zip(x, bounds, strict=True), (0.0, None)]:
        if low_high:
            run.append((at, max(low_high[0], 1.0) / 1e9, max(low_high[1], 1.0) / 1e9))
        elif run:
            xs += [place for place, _, _ in run] + [place for place, _, _ in reversed(run)] + [None]
            ys += _rounded([high for _, _, high in run]) + _rounded([low for _, low, _ in reversed(run)]) + [None]
            run = []
    return xs, ys


def heat(timeline: Parts) -> Figure:
    """How many delays of which length, in each part of the time."""
    places, axis = _time_axis(timeline)
    octaves = np.log2(np.maximum(MIDDLES_NS, 1.0))
    used = np.flatnonzero(sum(delays.weights for _, delays in timeline))
    first, last = float(octaves[used[0]]), float(octaves[used[-1]])
    fits = (n for n in (16, 8, 4, 2, 1) if math.floor(last * n) - math.floor(first * n) < MOST_ROWS)
    per_octave = next(fits, 1)
    rows = np.floor(octaves * per_octave).astype(int) - math.floor(first * per_octave)
    count = int(rows[used[-1]]) + 1
    rows = np.clip(rows, 0, count - 1)
    assert len(rows) == BINS
    counts = np.column_stack([np.bincount(rows, delays.weights.astype(float), count) for _, delays in timeline])
    edges = [2.0 ** ((math.floor(first * per_octave) + i) / per_octave) / 1e9 for i in range(count + 1)]
    spans = [f"{duration(low)} to {duration(high)}" for low, high in pairwise(edges)]
    table = counts.tolist()
    trace = {
        "type": "heatmap",
        "x": places,
        "y": [_round(edge) for edge in edges],
        "z": [[_round(math.log10(n)) if n else None for n in row] for row in table],
        "customdata": [
            [f"{n:,.0f} of {span}" if n else "" for n in row] for row, span in zip(table, spans, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": False,
        "zmin": 0,
        "zmax": max(math.log10(counts.max()), 0.3),
        "colorscale": [[i / 3, f"var(--heat{i})"] for i in range(4)],
        "showscale": False,
    }
    layout = {"xaxis": axis, "yaxis": _delay_axis(edges[0], edges[-1]), "meta": {"most": counts.max()}}
    return {"data": [trace], "layout": layout}


def bars(groups: Sequence[Entry]) -> Figure:
    """A line from p50 to p99 for each group, the slowest on top, with a mark for each quantile."""
    names = [_label(entry.name) for entry in groups]
    rows = list(range(len(groups)))
    marks = {q: [max(entry.report.quantiles[q] or 0.0, 1e-9) for entry in groups] for q in QUANTILES}
    reach: list[float | None] = []
    lines: list[float | None] = []
    for row, low, high in zip(rows, marks[QUANTILES[0]], marks[QUANTILES[-1]], strict=True):
        reach += [_round(low), _round(high), None]
        lines += [row, row, None]
    traces: list[Figure] = [
        {"type": "scatter", "mode": "lines", "x": reach, "y": lines, "line": {"width": 4, "color": "var(--track)"},
         "hoverinfo": "skip", "showlegend": False}
    ]  # fmt: skip
    for i, q in enumerate(QUANTILES):
        name, colour = f"p{float(q) * 100:g}", f"var(--c{i + 1})"
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [_round(x) for x in marks[q]],
                "y": rows,
                "text": [duration(x) for x in marks[q]],
                "hovertemplate": f"{name} %{{text}}<extra></extra>",
                "marker": {"size": 9, "symbol": _SYMBOLS[i], "color": colour},
            }
        )
    low, high = _reach([x for values in marks.values() for x in values])
    keys = {
        "tickvals": rows,
        "ticktext": names,
        "range": [len(rows) - 0.5, -0.5],
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
    }
    return {"data": traces, "layout": {"xaxis": _delay_axis(low, high), "yaxis": keys, "hovermode": "closest"}}


def _time_axis(timeline: Parts) -> tuple[list[float], Figure]:
    """The edges of the intervals as the axis has them, and the axis: the time of day, or seconds if it is short."""
    start, length = timeline[0][0].start_ns, timeline[0][0].length_ns
    edges_ns = [*(interval.start_ns for interval, _ in timeline), timeline[-1][0].end_ns]
    axis: Figure = {"automargin": True}
    if length >= 10**9:
        places = [ns // 10**6 for ns in edges_ns]
        return [float(ms) for ms in places], axis | {
            "type": "date",
            "title": {"text": "time (UTC)"},
            "range": [places[0], places[-1]],
        }
    places_s = [_round((ns - start) / 1e9) for ns in edges_ns]
    title = f"seconds since {clock(start, length)} UTC"
    return places_s, axis | {"title": {"text": title}, "range": [places_s[0], places_s[-1]]}


def _reach(seconds: Sequence[float]) -> tuple[float, float]:
    known = [x for x in seconds if x > 0] or [1e-3]
    low, high = min(known), max(known)
    return low / 1.08, high * 1.08


def _delay_axis(low: float, high: float) -> Figure:
    """A logarithmic axis of delays in seconds, written with the units that people use."""
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 4 else (1,)
    values = [
        step * 10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for step in steps
    ]
    if decades < 0.5:
        values = _few(low, high)
    inside = [x for x in values if low <= x <= high]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": [_round(x) for x in inside],
        "ticktext": [_tick(x) for x in inside],
        "title": {"text": "delay"},
        "automargin": True,
    }


def _few(low: float, high: float) -> list[float]:
    """Round values of a short piece of the axis."""
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    step *= next(f for f in (1, 2, 5, 10) if (high - low) / (f * step) <= 7)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _tick(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9999 * factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def _round(x: float) -> float:
    return float(f"{x:.6g}")


def _rounded(values: Iterable[float]) -> list[float]:
    return [_round(x) for x in values]


def _label(text: str) -> str:
    """A text that plotly.js shows as it is (its texts may hold some HTML), if it is not too long."""
    return escape(text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…", quote=False)
