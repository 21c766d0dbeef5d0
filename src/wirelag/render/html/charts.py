"""Charts as plain data, which charts.js draws.

A chart is `{"x": axis, "panels": [...]}`. Panels stand above each other and share x: `{"y": axis, "series": [...]}`,
with `tall` (their share of the height), `across` (lines through the panel), `note` (a text in its middle) and `stack`
(each bar begins where the one before it ends) where needed. With `"hover": "x"` the values of all series at one x are
told together, after `head`; otherwise those of the nearest point or row.

An axis has a `kind`, which says how a value is written (delay, share, bytes, count, seconds, time, rows, hidden), a
`range`, a `scale` unless it is linear (log, or signed: linear around 0, logarithmic beyond), and a `title`. The browser
finds the marks. Seconds count from `since_ns`. Rows have `names` instead, the first on top.

A series has `draw` (line, points, bars, heat, words), a `name` if it is in the legend, or else what a tooltip `says`; a
`colour` of the style sheet; `x` and `y`, None where there is a gap; `low` and `high`, the ends of 95% intervals; and
`tips`, what else there is to tell. A `quiet` one has no tooltip, a `bare` one draws no intervals. Values are in
seconds, in ms since 1970, shares or counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from wirelag import _kernels
from wirelag.packets.interval import Interval
from wirelag.report import Report
from wirelag.stats.distribution import Distribution
from wirelag.units import format_duration, format_interval, utc

if TYPE_CHECKING:
    from wirelag.measure.result import Entry

QUANTILES: Final = ("0.5", "0.9", "0.99")
MOST_ROWS: Final = 60  # rows of the heat map
MOST_LETTERS: Final = 64  # letters of a name beside a chart

Figure = dict[str, Any]
Bounds = tuple[float, float]
Parts = Sequence[tuple[Interval, Distribution]]
Intervals = Sequence[Mapping[str, tuple[float, float]]]


def duration(seconds: float | None, low_high: Bounds | None = None) -> str:
    """A delay as text, with as many digits as its interval needs."""
    width = math.inf if low_high is None else low_high[1] - low_high[0]
    return "-" if seconds is None else format_duration(seconds * 1e9, width * 1e9)


def clock(time_ns: int, resolution_ns: int) -> str:
    """A time in UTC, with enough digits to distinguish slots."""
    digits = 0 if resolution_ns % 10**9 == 0 else 3 if resolution_ns % 10**6 == 0 else 6
    text = utc(time_ns // 10**9)
    if text is None:
        return f"{time_ns / 1e9:.{digits}f} s"
    return f"{text}.{time_ns % 10**9 // 10 ** (9 - digits):0{digits}d}" if digits else text


def interval(low_high: Bounds) -> str:
    """A 95% interval as text."""
    return format_interval(low_high[0] * 1e9, low_high[1] * 1e9)


def spoken(seconds: float | None, low_high: Bounds | None, around: str = "{}", is_open: bool = False) -> str:
    """A delay with its interval, of an open one the lower end; `around` is written around the delay alone."""
    if seconds is None:
        return ""
    if low_high and is_open:
        return around.format(duration(seconds)) + (f" (at least {duration(low_high[0])})" if low_high[0] > 0 else "")
    return around.format(duration(seconds, low_high)) + (f" ({interval(low_high)})" if low_high else "")


_COLOURS: Final = ("all", "c1", "c3")
_DASHES: Final = ("", "dash", "dot")
SYMBOLS: Final = ("circle", "square", "diamond")


def cdf(entries: Sequence[Entry], what: str) -> Figure:
    """The share of delays up to each delay."""
    series: list[Figure] = []
    for i, entry in enumerate(entries):
        seconds, shares = entry.delays.cumulated()
        series.append(
            {
                "draw": "line",
                "step": True,
                "name": plain(entry.key),
                "x": all_rounded([*seconds[:1], *seconds]),
                "y": all_rounded([0.0, *shares]),
                "colour": _COLOURS[i % 3],
                "dash": _DASHES[i % 3],
                "width": 2.5 if i == 0 else 2,
            }
        )
    axis = delay_axis(*reach([x for one in series for x in one["x"]]))
    share = {"kind": "share", "range": [0, 1.02], "title": f"share of {what}"}
    return {"x": axis, "panels": [{"y": share, "series": series}], "hover": "x", "head": "within "}


class Own(NamedTuple):
    """Delays of a group over time: quantiles of each part, and all together."""

    when: Sequence[Interval]
    quantiles_ns: Mapping[str, Sequence[float | None]]
    whole: Distribution


def quantiles_of(timeline: Parts) -> dict[str, list[float | None]]:
    """The quantiles that charts show, of each part of the time."""
    each = [delays.quantiles_ns([float(q) for q in QUANTILES]) for _, delays in timeline]
    return {q: list(values) for q, values in zip(QUANTILES, zip(*each, strict=True), strict=True)}


def over_time(
    when: Sequence[Interval], quantiles_ns: Mapping[str, Sequence[float | None]], intervals: Intervals
) -> Figure:
    """Quantiles of each part of the time, with their 95% intervals where there are any."""
    places, axis = _time_axis(when)
    middles = [(a + b) / 2 for a, b in pairwise(places)]
    series: list[Figure] = []
    seen: list[float] = []
    for i, q in enumerate(QUANTILES):
        values_s = [None if ns is None else max(ns, 1.0) / 1e9 for ns in quantiles_ns[q]]
        bounds = [known.get(q) for known in intervals]
        bounds_s = [ends and (max(ends[0], 1e-9), max(ends[1], 1e-9)) for ends in bounds]
        seen += [x for x in values_s if x is not None] + [x for ends in bounds_s if ends for x in ends]
        name, mark = f"p{float(q) * 100:g}", SYMBOLS[i]
        series.insert(0, line(name, middles, values_s, f"c{i + 1}", bounds_s) | {"mark": mark})
    return {"x": axis, "panels": [{"y": delay_axis(*reach(seen)), "series": series}], "hover": "x"}


def line(
    name: str, x: Sequence[float], y: Sequence[float | None], colour: str, bounds: Sequence[Bounds | None] = ()
) -> Figure:
    """A line through these points, broken where there is none, with a band of their intervals."""
    return {
        "draw": "line", "name": name, "x": list(x), "y": [None if value is None else rounded(value) for value in y],
        "colour": colour, **between(bounds),
    }  # fmt: skip


def between(bounds: Sequence[Bounds | None]) -> Figure:
    """The ends of intervals, None where there is none; empty without any."""
    if not any(bounds):
        return {}
    return {
        "low": [rounded(ends[0]) if ends else None for ends in bounds],
        "high": [rounded(ends[1]) if ends else None for ends in bounds],
    }


def rows_axis(names: Iterable[str]) -> Figure:
    """An axis with a row for each name, the first on top."""
    return {"kind": "rows", "names": [plain(name) for name in names]}


def heat(timeline: Parts, what: str) -> Figure:
    """How many delays of which length, in each part of the time."""
    places, axis = _time_axis([when for when, _ in timeline])
    per_octave, lowest, counts = _kernels.heat([delays.by_bin for _, delays in timeline], MOST_ROWS)
    edges = [2.0 ** ((lowest + i) / per_octave) / 1e9 for i in range(len(counts) + 1)]
    cells = heat_map(places, edges, counts, what)
    return {"x": axis, "panels": [{"y": delay_axis(edges[0], edges[-1]), "series": [cells]}]}


def heat_map(x: Sequence[float], y: Sequence[float], counts: list[list[int]], what: str) -> Figure:
    """The cells between these edges, row by row, darker with more; the colours are logarithmic."""
    return {
        "draw": "heat", "x": list(x), "y": all_rounded(y), "z": counts, "log": True, "most": max(map(max, counts)),
        "unit": what,
    }  # fmt: skip


class Named(Protocol):
    """A report with the name of its subject."""

    @property
    def key(self) -> str:
        """The name."""

    @property
    def report(self) -> Report:
        """The report."""


def bars(groups: Sequence[Named]) -> Figure:
    """A line from p50 to p99 for each group, the slowest on top, with a mark for each quantile."""
    rows = list(range(len(groups)))
    marks = {q: [max(entry.report.quantiles[q] or 0.0, 1e-9) for entry in groups] for q in QUANTILES}
    ends: list[float | None] = []
    lines: list[float | None] = []
    for row, low, high in zip(rows, marks[QUANTILES[0]], marks[QUANTILES[-1]], strict=True):
        ends += [rounded(low), rounded(high), None]
        lines += [row, row, None]
    series: list[Figure] = [{"draw": "line", "x": ends, "y": lines, "colour": "track", "width": 4, "quiet": True}]
    series += [
        {"draw": "points", "name": f"p{float(q) * 100:g}", "along": "x", "x": all_rounded(marks[q]), "y": rows,
         "colour": f"c{i + 1}", "mark": SYMBOLS[i], "size": 4.5}
        for i, q in enumerate(QUANTILES)
    ]  # fmt: skip
    axis = delay_axis(*reach([x for values in marks.values() for x in values]))
    return {"x": axis, "panels": [{"y": rows_axis(entry.key for entry in groups), "series": series}]}


def _time_axis(when: Sequence[Interval]) -> tuple[list[float], Figure]:
    """The edges of the intervals in axis coordinates, and the axis: the time of day, or seconds if short."""
    start, length = when[0].start_ns, when[0].length_ns
    edges_ns = [*(interval.start_ns for interval in when), when[-1].end_ns]
    if length >= 10**9:
        places = [float(ns // 10**6) for ns in edges_ns]
        return places, {"kind": "time", "range": [places[0], places[-1]], "title": "time (UTC)"}
    places = [rounded((ns - start) / 1e9) for ns in edges_ns]
    title = f"seconds since {clock(start, length)} UTC"
    return places, {"kind": "seconds", "range": [places[0], places[-1]], "title": title, "since_ns": str(start)}


def reach(seconds: Sequence[float]) -> tuple[float, float]:
    """The ends of a logarithmic axis that shows all of these."""
    known = [x for x in seconds if x > 0] or [1e-3]
    low, high = min(known), max(known)
    return low / 1.08, high * 1.08


def delay_axis(low: float, high: float, title: str = "delay") -> Figure:
    """A logarithmic axis of delays in seconds."""
    return {"kind": "delay", "scale": "log", "range": [low, high], "title": title}


def rounded(x: float) -> float:
    """Nine digits, or nanoseconds: enough for a chart."""
    return float(f"{x:.9g}") if abs(x) < 1 else round(x, 9)


def all_rounded(values: Iterable[float]) -> list[float]:
    """Each of them rounded."""
    return [rounded(x) for x in values]


def linear_axis(low: float, high: float, title: str) -> Figure:
    """A linear axis of delays."""
    room = max(0.05 * (high - low), 1e-9)
    return {"kind": "delay", "range": [low - room if low else 0.0, high + room], "title": title}


def plain(text: str) -> str:
    """A name beside a chart, cut if too long."""
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"
