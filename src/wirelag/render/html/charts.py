"""Charts as plain data for plotly.js. Colours are names from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.packets.intervals import Interval
from wirelag.report import Report
from wirelag.stats.distribution import BINS, MIDDLES_NS, Distribution
from wirelag.synopses.delay_sample import DelaySample
from wirelag.units import format_duration

if TYPE_CHECKING:
    from wirelag.measure.result import Entry

QUANTILES: Final = ("0.5", "0.9", "0.99")
MOST_ROWS: Final = 60  # rows of the heat map
MOST_LETTERS: Final = 64  # letters of a name beside a chart
SHORTEST: Final = 1e-9  # a logarithmic axis shows 0 here
DATED_S: Final = 30.0  # a longer axis shows the time of day

Figure = dict[str, Any]
Floats = npt.NDArray[np.float64]
Parts = Sequence[tuple[Interval, Distribution]]
Intervals = Sequence[Mapping[str, tuple[float, float]]]


def duration(seconds: float | None) -> str:
    """A delay as text."""
    return "-" if seconds is None else format_duration(seconds * 1e9)


def clock(time_ns: int, resolution_ns: int) -> str:
    """A time in UTC, with enough digits to distinguish slots."""
    digits = 0 if resolution_ns % 10**9 == 0 else 3 if resolution_ns % 10**6 == 0 else 6
    try:
        text = datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ns / 1e9:.{digits}f} s"
    return f"{text}.{time_ns % 10**9 // 10 ** (9 - digits):0{digits}d}" if digits else text


def spoken(seconds: float | None, low_high: tuple[float, float] | None) -> str:
    """A delay with its interval."""
    if seconds is None:
        return ""
    return duration(seconds) + (f" ({duration(low_high[0])} to {duration(low_high[1])})" if low_high else "")


_COLOURS: Final = ("var(--all)", "var(--c1)", "var(--c3)")
_DASHES: Final = ("solid", "dash", "dot")
_SYMBOLS: Final = ("circle", "square", "diamond")


def cdf(entries: Sequence[Entry], what: str) -> Figure:
    """The share of delays up to each delay."""
    traces: list[Figure] = []
    for i, entry in enumerate(entries):
        held = np.flatnonzero(entry.delays.weights)
        shares = np.cumsum(entry.delays.weights[held].astype(float)) / entry.delays.weight
        seconds = (
            np.clip(MIDDLES_NS[entry.delays.bins[held]], max(entry.delays.min_ns or 1, 1), entry.delays.max_ns) / 1e9
        )
        start = [float(seconds[0])] if len(seconds) else []
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plain(entry.key),
                "x": all_rounded(start + seconds.tolist()),
                "y": all_rounded([0.0, *shares.tolist()]),
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
    low, high = reach([x for trace in traces for x in trace["x"]])
    share = {"title": {"text": f"share of {what}"}, "range": [0, 1.02], "tickformat": ".0%", "nticks": 6}
    return {"data": traces, "layout": {"xaxis": delay_axis(low, high), "yaxis": share, "hovermode": "closest"}}


def over_time(timeline: Parts, intervals: Intervals) -> Figure:
    """Quantiles of each part of the time, with their 95% intervals where there are any."""
    places, axis = _time_axis(timeline)
    middles = [(a + b) / 2 for a, b in pairwise(places)]
    traces: list[Figure] = []
    seen: list[float] = []
    for i, q in enumerate(QUANTILES):
        values = [delays.quantile_ns(float(q)) for _, delays in timeline]
        bounds = [ends and (ends[0] * 1e9, ends[1] * 1e9) for ends in (known.get(q) for known in intervals)]
        seen += [ns / 1e9 for ns in values if ns is not None]
        seen += [ns / 1e9 for low_high in bounds if low_high for ns in low_high]
        name, colour = f"p{float(q) * 100:g}", f"var(--c{i + 1})"
        x, y = band(middles, [ends and (max(ends[0], 1.0) / 1e9, max(ends[1], 1.0) / 1e9) for ends in bounds])
        traces.append(area(x, y, colour, name))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "legendgroup": name,
                "x": middles,
                "y": [rounded(max(ns, 1.0) / 1e9) if ns is not None else None for ns in values],
                "text": [_point_text(ns, low_high) for ns, low_high in zip(values, bounds, strict=True)],
                "hovertemplate": f"{name} %{{text}}<extra></extra>",
                "line": {"width": 2, "color": colour},
                "marker": {"size": 5, "symbol": _SYMBOLS[i], "color": colour},
            }
        )
    low, high = reach(seen)
    layout = {
        "xaxis": axis,
        "yaxis": delay_axis(low, high),
        "hovermode": "x unified",
        "legend": {"traceorder": "reversed"},
    }
    return {"data": traces, "layout": layout}


def _point_text(ns: float | None, low_high: tuple[float, float] | None) -> str:
    if ns is None:
        return ""
    bounds = f" ({format_duration(low_high[0])} to {format_duration(low_high[1])})" if low_high else ""
    return format_duration(ns) + bounds


def band(
    x: Sequence[float], bounds: Sequence[tuple[float, float] | None]
) -> tuple[list[float | None], list[float | None]]:
    """Outlines of the areas between low and high, in axis coordinates, one per run without gaps."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    run: list[tuple[float, float, float]] = []
    for at, low_high in [*zip(x, bounds, strict=True), (0.0, None)]:
        if low_high:
            run.append((at, *low_high))
        elif run:
            xs += [place for place, _, _ in run] + [place for place, _, _ in reversed(run)] + [None]
            ys += all_rounded([high for _, _, high in run]) + all_rounded([low for _, low, _ in reversed(run)]) + [None]
            run = []
    return xs, ys


def area(x: Sequence[float | None], y: Sequence[float | None], colour: str, of: str) -> Figure:
    """The band of the trace with this name."""
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "fill": "toself", "fillcolor": colour, "opacity": 0.22,
            "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False, "legendgroup": of}  # fmt: skip


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
        "y": [rounded(edge) for edge in edges],
        "z": [[rounded(math.log10(n)) if n else None for n in row] for row in table],
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
    layout = {"xaxis": axis, "yaxis": delay_axis(edges[0], edges[-1]), "meta": {"most": counts.max()}}
    return {"data": [trace], "layout": layout}


def bars(groups: Sequence[Entry]) -> Figure:
    """A line from p50 to p99 for each group, the slowest on top, with a mark for each quantile."""
    names = [plain(entry.key) for entry in groups]
    rows = list(range(len(groups)))
    marks = {q: [max(entry.report.quantiles[q] or 0.0, 1e-9) for entry in groups] for q in QUANTILES}
    ends: list[float | None] = []
    lines: list[float | None] = []
    for row, low, high in zip(rows, marks[QUANTILES[0]], marks[QUANTILES[-1]], strict=True):
        ends += [rounded(low), rounded(high), None]
        lines += [row, row, None]
    traces: list[Figure] = [
        {"type": "scatter", "mode": "lines", "x": ends, "y": lines, "line": {"width": 4, "color": "var(--track)"},
         "hoverinfo": "skip", "showlegend": False}
    ]  # fmt: skip
    for i, q in enumerate(QUANTILES):
        name, colour = f"p{float(q) * 100:g}", f"var(--c{i + 1})"
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [rounded(x) for x in marks[q]],
                "y": rows,
                "text": [duration(x) for x in marks[q]],
                "hovertemplate": f"{name} %{{text}}<extra></extra>",
                "marker": {"size": 9, "symbol": _SYMBOLS[i], "color": colour},
            }
        )
    low, high = reach([x for values in marks.values() for x in values])
    keys = {
        "tickvals": rows,
        "ticktext": names,
        "range": [len(rows) - 0.5, -0.5],
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
    }
    return {"data": traces, "layout": {"xaxis": delay_axis(low, high), "yaxis": keys, "hovermode": "closest"}}


def _time_axis(timeline: Parts) -> tuple[list[float], Figure]:
    """The edges of the intervals in axis coordinates, and the axis: the time of day, or seconds if short."""
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
    places_s = [rounded((ns - start) / 1e9) for ns in edges_ns]
    title = f"seconds since {clock(start, length)} UTC"
    return places_s, axis | {"title": {"text": title}, "range": [places_s[0], places_s[-1]]}


def reach(seconds: Sequence[float]) -> tuple[float, float]:
    """The ends of a logarithmic axis that shows all of these."""
    known = [x for x in seconds if x > 0] or [1e-3]
    low, high = min(known), max(known)
    return low / 1.08, high * 1.08


def delay_axis(low: float, high: float) -> Figure:
    """A logarithmic axis of delays in seconds, with labels in fitting units."""
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 4 else (1,)
    values = [
        step * 10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for step in steps
    ]
    if decades < 0.5:
        values = few(low, high)
    inside = [x for x in values if low <= x <= high]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": [rounded(x) for x in inside],
        "ticktext": [tick(x) for x in inside],
        "title": {"text": "delay"},
        "automargin": True,
    }


def few(low: float, high: float, least: int = 2) -> list[float]:
    """Round values on a short axis: at most 8, and at least `fewest` where they fit."""
    step = 10.0 ** math.floor(math.log10((high - low) / least))
    step *= next(f for f in (1, 2, 5, 10) if (high - low) / (f * step) <= 7)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def tick(seconds: float, digits: int = 4) -> str:
    """A delay beside an axis."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= 0.9999 * factor:
            return f"{seconds / factor:.{digits}g} {unit}"
    return f"{seconds * 1e9:.{digits}g} ns" if seconds else "0"


def rounded(x: float) -> float:
    """Six digits: enough for a chart."""
    return float(f"{x:.6g}")


def all_rounded(values: Iterable[float]) -> list[float]:
    """Six digits of each."""
    return [rounded(x) for x in values]


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of a delay axis: linear up to `linear_s`, logarithmic if None."""

    linear_s: float | None

    @classmethod
    def of(cls, tail: DelaySample, reports: Iterable[Report]) -> Scale:
        """The scale that shows all these delays."""
        said = [x for r in reports for x in (r.mean, r.min, *r.quantiles.values()) if x is not None]
        if min([*said, float(tail.delays_ns.min(initial=0)) / 1e9], default=0.0) >= 0:
            return cls(None)
        sizes = np.abs(tail.delays_ns / 1e9) if len(tail) else np.abs(np.array(said))
        return cls(max(float(np.median(sizes)), SHORTEST))

    def places(self, seconds: Any) -> Floats:
        """These delays in axis coordinates."""
        values = np.asarray(seconds, np.float64)
        return np.maximum(values, SHORTEST) if self.linear_s is None else np.arcsinh(values / self.linear_s)

    def place(self, seconds: float) -> float:
        """One delay in axis coordinates."""
        return float(self.places(seconds))

    def reach(self, seconds: Any) -> tuple[float, float]:
        """Ends of an axis, as delays, that show all of these."""
        values = np.asarray(seconds, np.float64)
        if self.linear_s is None:
            return reach(np.maximum(values, SHORTEST).tolist())
        low, high = self.places([values.min(), values.max()]).tolist() if len(values) else (-1.0, 1.0)
        room = max(0.04 * (high - low), 1e-9 * max(abs(low), abs(high)), 1e-9)
        return math.sinh(low - room) * self.linear_s, math.sinh(high + room) * self.linear_s

    def edges(self, low: float, high: float, count: int) -> tuple[list[float], Floats]:
        """About this many bins of equal width on the axis, with an edge at 0: in axis coordinates, and as delays."""
        if self.linear_s is None:
            edges = np.geomspace(max(low, SHORTEST), max(high, SHORTEST), count + 1)
            return edges.tolist(), edges
        first, last = self.place(low), self.place(high)
        step = (last - first) / (count - 1)
        places = step * np.arange(math.floor(first / step), math.ceil(last / step) + 1)
        return places.tolist(), np.sinh(places) * self.linear_s

    def axis(self, low: float, high: float) -> Figure:
        """The axis between two delays."""
        if self.linear_s is None:
            return delay_axis(low, high)
        first, last = self.place(low), self.place(high)
        if last - first < 1 or low > 0 or high < 0:
            ticks = few(low, high, 4)
        else:
            decades = range(math.floor(math.log10(self.linear_s)), math.ceil(math.log10(max(-low, high))) + 1)
            sizes = [f * 10.0**k for k in decades for f in (1, 2, 5)]
            ticks = _apart([0.0, *sizes, *(-size for size in sizes)], low, high, self)
        digits = _digits(ticks)
        return {
            "range": [first, last],
            "tickvals": all_rounded(self.place(x) for x in ticks) if digits == 4 else [self.place(x) for x in ticks],
            "ticktext": [tick(x, digits) for x in ticks],
            "title": {"text": "delay"},
            "automargin": True,
        }

    @property
    def zero(self) -> list[Figure]:
        """A line across the chart at 0, if the axis has a 0."""
        return [] if self.linear_s is None else [across("y", 0.0)]


def _apart(values: Sequence[float], low: float, high: float, scale: Scale) -> list[float]:
    """Ticks between low and high, each far enough from the one before."""
    least = (scale.place(high) - scale.place(low)) / 9
    kept: list[float] = []
    for x in values:
        if low <= x <= high and all(abs(scale.place(x) - scale.place(y)) >= least for y in kept):
            kept.append(x)
    return sorted(kept)


def _digits(ticks: Sequence[float]) -> int:
    steps = [b - a for a, b in pairwise(ticks) if b > a]
    most = max((abs(x) for x in ticks), default=0.0)
    return max(4, math.ceil(math.log10(most / min(steps))) + 2) if steps and most else 4


def linear_axis(low: float, high: float, title: str) -> Figure:
    """A linear axis of delays."""
    room = max(0.05 * (high - low), 1e-9)
    ends = [low - room if low else 0.0, high + room]
    ticks = few(ends[0], ends[1], 4)
    digits = _digits(ticks)
    return {"range": ends, "tickvals": ticks, "ticktext": [tick(x, digits) for x in ticks],
            "title": {"text": title}, "automargin": True}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Times:
    """The scale of a time axis: the time of day in ms, or seconds since the start if short."""

    start_s: float
    end_s: float

    @property
    def dated(self) -> bool:
        """Whether the axis shows the time of day."""
        return self.end_s - self.start_s >= DATED_S and abs(self.start_s) < 2.0**37

    def places(self, seconds: Any) -> list[float]:
        """These times in axis coordinates."""
        values = np.asarray(seconds, np.float64)
        if self.dated:
            return [*map(int, np.round(values * 1e3).tolist())]
        return [*map(rounded, np.round(values - self.start_s, 7).tolist())]

    def axis(self) -> Figure:
        """The axis."""
        axis: Figure = {"range": self.places([self.start_s, self.end_s]), "automargin": True}
        if self.dated:
            return axis | {"type": "date", "title": {"text": "time (UTC)"}}
        return axis | {"title": {"text": f"seconds since {clock(round(self.start_s * 1e9), 10**6)} UTC"}}


def cloud(x: list[float], y: Floats, name: str, colour: int) -> Figure:
    """Points, in axis coordinates."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "showlegend": bool(name),
        "x": x,
        "y": all_rounded(y.tolist()),
        "hoverinfo": "skip",
        "marker": {"size": 4, "opacity": 0.55, "color": f"var(--c{colour})"},
    }


def across(axis: str, at: float) -> Figure:
    """A dashed line through the whole chart where an axis has this value."""
    other = "x" if axis == "y" else "y"
    ends = {f"{axis}ref": axis, f"{axis}0": at, f"{axis}1": at, f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1}
    return {"type": "line", **ends, "line": {"color": "var(--bad)", "width": 1, "dash": "dash"}}


def plain(text: str) -> str:
    """A text escaped for plotly.js, which renders some HTML, and cut if too long."""
    return escape(text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…", quote=False)
