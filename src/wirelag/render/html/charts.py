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
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from wirelag.packets.interval import Interval
from wirelag.report import Report
from wirelag.stats.bins import MIDDLES_NS
from wirelag.stats.distribution import BINS, Distribution
from wirelag.synopses.delay_sample import DelaySample
from wirelag.units import format_duration, format_interval

if TYPE_CHECKING:
    from wirelag.measure.result import Entry

QUANTILES: Final = ("0.5", "0.9", "0.99")
MOST_ROWS: Final = 60  # rows of the heat map
MOST_LETTERS: Final = 64  # letters of a name beside a chart
SHORTEST: Final = 1e-9  # a logarithmic axis shows 0 here
DATED_S: Final = 30.0  # a longer axis shows the time of day

Figure = dict[str, Any]
Floats = npt.NDArray[np.float64]
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
    try:
        text = datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
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
        held = np.flatnonzero(entry.delays.weights)
        shares = np.cumsum(entry.delays.weights[held].astype(float)) / entry.delays.weight
        seconds = (
            np.clip(MIDDLES_NS[entry.delays.bins[held]], max(entry.delays.min_ns or 1, 1), entry.delays.max_ns) / 1e9
        )
        start = [float(seconds[0])] if len(seconds) else []
        series.append(
            {
                "draw": "line",
                "step": True,
                "name": plain(entry.key),
                "x": all_rounded(start + seconds.tolist()),
                "y": all_rounded([0.0, *shares.tolist()]),
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
    return {q: [delays.quantile_ns(float(q)) for _, delays in timeline] for q in QUANTILES}


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
    cells = heat_map(places, edges, counts, what)
    return {"x": axis, "panels": [{"y": delay_axis(edges[0], edges[-1]), "series": [cells]}]}


def heat_map(x: Sequence[float], y: Sequence[float], counts: npt.NDArray[Any], what: str) -> Figure:
    """The cells between these edges, darker with more; the colours are logarithmic."""
    table = np.round(counts).astype(np.int64).tolist()
    return {
        "draw": "heat", "x": list(x), "y": all_rounded(y), "z": table, "log": True, "most": max(map(max, table)),
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

    def shown(self, seconds: Any) -> Floats:
        """These delays as they are drawn: a logarithmic axis has no 0."""
        values = np.asarray(seconds, np.float64)
        return np.maximum(values, SHORTEST) if self.linear_s is None else values

    def reach(self, seconds: Any) -> tuple[float, float]:
        """Ends of an axis that shows all of these."""
        values = self.shown(seconds)
        if self.linear_s is None:
            return reach(values.tolist())
        low, high = np.arcsinh(np.array([values.min(), values.max()]) / self.linear_s) if len(values) else (-1.0, 1.0)
        room = max(0.04 * (high - low), 1e-9 * max(abs(low), abs(high)), 1e-9)
        return math.sinh(low - room) * self.linear_s, math.sinh(high + room) * self.linear_s

    def edges(self, low: float, high: float, count: int) -> Floats:
        """About this many bins of equal width on the axis, with an edge at 0."""
        if self.linear_s is None:
            return np.geomspace(max(low, SHORTEST), max(high, SHORTEST), count + 1)
        first, last = math.asinh(low / self.linear_s), math.asinh(high / self.linear_s)
        step = (last - first) / (count - 1)
        places = step * np.arange(math.floor(first / step), math.ceil(last / step) + 1, dtype=np.float64)
        return np.asarray(np.sinh(places) * self.linear_s, np.float64)

    def axis(self, low: float, high: float, title: str = "delay") -> Figure:
        """The axis between two delays."""
        if self.linear_s is None:
            return delay_axis(low, high, title)
        return {"kind": "delay", "scale": "signed", "linear": self.linear_s, "range": [low, high], "title": title}

    @property
    def zero(self) -> list[Figure]:
        """A line across the chart at 0, if the axis has a 0."""
        return [] if self.linear_s is None else [{"y": 0, "colour": "bad"}]


def linear_axis(low: float, high: float, title: str) -> Figure:
    """A linear axis of delays."""
    room = max(0.05 * (high - low), 1e-9)
    return {"kind": "delay", "range": [low - room if low else 0.0, high + room], "title": title}


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
        ends = self.places([self.start_s, self.end_s])
        if self.dated:
            return {"kind": "time", "range": ends, "title": "time (UTC)"}
        start_ns = round(self.start_s * 1e9)
        title = f"seconds since {clock(start_ns, 10**6)} UTC"
        return {"kind": "seconds", "range": ends, "title": title, "since_ns": str(start_ns)}


def cloud(x: list[float], y: Floats, name: str, colour: str) -> Figure:
    """Points."""
    named = {"name": name} if name else {}
    return {
        "draw": "points",
        **named,
        "x": x,
        "y": all_rounded(y.tolist()),
        "colour": colour,
        "size": 2,
        "opacity": 0.55,
    }


def plain(text: str) -> str:
    """A name beside a chart, cut if too long."""
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"
