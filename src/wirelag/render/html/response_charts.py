"""Charts of response latency: over time, with think time and epochs without an estimate, and its parts.

Of up to a million epochs, at most `MOST_POINTS` are drawn, the slowest always.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wirelag.render.html.charts import Figure, delay_axis, duration, line, linear_axis, plain, reach, rounded, rows_axis
from wirelag.render.html.oneway_charts import SpanEntry
from wirelag.render.html.scales import Times, cloud
from wirelag.report import Report
from wirelag.synopses.epochs import REASONS, Epochs, ends_text

if TYPE_CHECKING:
    from wirelag.measure.result import Entry

MOST_POINTS: Final = 3_000
SLOWEST: Final = 100  # always drawn
COLOURS: Final = 4  # servers with their own colour
PANEL, ROW, ROOM = 190, 24, 24  # pixels: a panel, a line of the strip, the gap between panels
OUTLIER: Final = 3  # times the median; bars are cut there if one is more than twice as long
SHORTEST_S: Final = 1e-6  # shorter times are drawn here

Value = Callable[[Report], float | None]


def height(epochs: Epochs) -> int:
    """The height of the chart in pixels."""
    return 100 + sum(_heights(epochs)) + ROOM * (len(_heights(epochs)) - 1)


def over_time(epochs: Epochs, spans: Sequence[SpanEntry]) -> Figure:
    """Every epoch as a point, the means of parts of the time as a line; under it the share of epochs by outcome.

    Panels from above: latency and think time, where any is known, and the strip. Parts follow each other without gaps.
    """
    times = Times(spans[0].start_s, spans[-1].end_s)
    heights = _heights(epochs)
    panels: list[Figure] = []
    for tall, (title, sums, counts, value) in zip(heights[:-1], _QUANTITIES, strict=False):
        shown = _points(drawn(epochs, sums, counts), sums, counts, times)
        shown.append(_line(spans, value, times, title))
        values = [y for one in shown for y in (*one["y"], *one.get("high", ())) if y is not None]
        lows = [max(y, min(values) / 3) for y in shown[-1].get("low", ()) if y is not None]
        panels.append({"y": delay_axis(*reach(values + lows), title), "series": shown, "tall": tall})
    panels.append(_outcomes(epochs, spans, times) | {"tall": heights[-1]})
    return {"x": times.axis(), "panels": panels}


def drawn(epochs: Epochs, sums: str = "sum_ns", counts: str = "count") -> Epochs:
    """The epochs to draw: all with an estimate, or the slowest of them and some of the others."""
    rows = epochs.rows
    known = np.flatnonzero((rows[counts] > 0) & (rows["count"] > 0))
    if len(known) > MOST_POINTS:
        known = known[np.argsort(-(rows[sums][known] / rows[counts][known]), kind="stable")]
        others = np.random.default_rng(0).choice(known[SLOWEST:], MOST_POINTS - SLOWEST, replace=False)
        known = np.concatenate([known[:SLOWEST], others])
    return epochs.of(known)


_QUANTITIES: Final[tuple[tuple[str, str, str, Value], ...]] = (
    ("latency", "sum_ns", "count", lambda report: report.mean),
    ("think time", "think_sum_ns", "think_count", lambda report: report.details["think"]),
)


def _heights(epochs: Epochs) -> list[int]:
    """The panels: one for each quantity known for any epoch, then the strip."""
    panels = [PANEL * (2 - i) for i, (_, sums, counts, _) in enumerate(_QUANTITIES) if len(drawn(epochs, sums, counts))]
    return [*panels, ROW * len(_reasons(epochs)) + 10]


def _points(epochs: Epochs, sums: str, counts: str, times: Times) -> list[Figure]:
    """Epochs as faint points; the servers with most responses have colours."""
    servers = list(epochs.groups("server"))
    parts: list[tuple[str, Epochs, str]] = [
        (name, part, f"c{i + 1}") for i, (name, part) in enumerate(servers[:COLOURS])
    ]
    if servers[COLOURS:]:
        others = Epochs(np.concatenate([part.rows for _, part in servers[COLOURS:]]))
        parts.insert(0, ("other servers", others, "soft"))
    found = []
    for name, part, colour in parts:
        rows = part.rows
        values = np.maximum(rows[sums] / rows[counts] / 1e9, SHORTEST_S)
        middles = times.places((rows["start_ns"] + (rows["end_ns"] - rows["start_ns"]) // 2) / 1e9)
        style = {"size": 2.5, "opacity": 0.3 if len(epochs) > 300 else 0.55, "tips": _texts(part, counts)}
        found.append(cloud(middles, values, plain(name), colour) | style)
    return found


def _texts(epochs: Epochs, counts: str) -> list[str]:
    """What tooltips say of epochs, besides the time: the flow, and for its latency how it was estimated."""
    names = [plain(ends_text(words, "flow")) for words in epochs.ends.tolist()]
    if counts != "count":
        return names
    return [
        f"{name}\n{row['count']:,} responses, {row['in_flight']} in flight, confidence {row['confidence']}%"
        for name, row in zip(names, epochs.rows, strict=True)
    ]


def _line(spans: Sequence[SpanEntry], value: Value, times: Times, title: str) -> Figure:
    """The mean of each part of the time with its interval, broken where there is none."""
    middles = times.places([(span.start_s + span.end_s) / 2 for span in spans])
    values = [value(span.report) for span in spans]
    bounds = [span.report.ci95.get("mean") if title == "latency" else None for span in spans]
    shown = [None if x is None else max(x, SHORTEST_S) for x in values]
    style = {"width": 2.5, "mark": "circle", "size": 2.5 if len(spans) <= 120 else 1.5}
    return line("mean over time", middles, shown, "all", bounds) | style


# ---- the strip ----


def _reasons(epochs: Epochs) -> list[int]:
    """The outcomes of epochs: an estimate (0), then reasons, the most frequent first."""
    rows = epochs.rows
    counts = np.bincount(rows["reason"][rows["count"] == 0], minlength=len(REASONS))
    return [0, *(int(i) for i in np.argsort(-counts, kind="stable") if counts[i])]


def _outcomes(epochs: Epochs, spans: Sequence[SpanEntry], times: Times) -> Figure:
    """A panel: for each part of the time, the shares of its epochs by outcome."""
    names = ["answered" if not reason else REASONS[reason] for reason in _reasons(epochs)]
    shares: list[list[float | None]] = []
    texts: list[list[str]] = []
    for name in names:
        known: list[float | None] = []
        words: list[str] = []
        for span in spans:
            said: Any = span.report.details
            count = said["answered"] if name == "answered" else said["abstained"].get(name, 0)
            known.append(rounded(count / said["epochs"]) if count else None)
            words.append(f"{name}: {count:,} of {said['epochs']:,} epochs" if count else "")
        shares.append(known)
        texts.append(words)
    strip = {
        "draw": "heat", "x": times.places([*(span.start_s for span in spans), spans[-1].end_s]),
        "y": [i - 0.5 for i in range(len(names) + 1)], "z": shares, "tips": texts, "most": 1, "gap": [1, 3],
    }  # fmt: skip
    return {"y": rows_axis(names), "series": [strip]}


# ---- both directions ----

_PARTS: Final = (
    ("network", "c2"),
    ("server", "c3"),
    ("server and network", "soft"),  # where the round trip is not known
    ("transfer", "c1"),
)


def split(entries: Sequence[Entry]) -> Figure:
    """The parts of each mean response time: one bar each, in this order from the top."""
    rows = list(range(len(entries)))
    series: list[Figure] = []
    ends = [0.0] * len(rows)
    for name, colour in _PARTS:
        values = [part_of(entry.report, name) for entry in entries]
        if not any(values):
            continue
        series.append(
            {
                "draw": "bars", "along": "x", "name": name, "y": rows, "colour": colour,
                "x": [None if x is None else rounded(x) for x in values],
            }
        )  # fmt: skip
        ends = [end + (value or 0.0) for end, value in zip(ends, values, strict=True)]
    end = cut_at(ends)
    beyond = [row for row, reached in zip(rows, ends, strict=True) if reached > end]
    if beyond:
        texts = [f"{duration(ends[row])} >" for row in beyond]
        series.append({"draw": "words", "x": [None] * len(beyond), "y": beyond, "text": texts, "colour": "all"})
    axis = linear_axis(0.0, end, "mean")
    return {"x": axis, "panels": [{"y": rows_axis(entry.key for entry in entries), "series": series, "stack": True}]}


def cut_at(ends: Sequence[float]) -> float:
    """Where bars of these lengths are cut, so that one outlier leaves the others readable; the longest if none is.

    >>> cut_at([1.0, 2.0, 3.0]), cut_at([1.0, 2.0, 2.0, 90.0])
    (3.0, 6.0)
    """
    known = sorted(end for end in ends if end > 0)
    if not known:
        return 0.0
    usual = OUTLIER * known[len(known) // 2]
    return known[-1] if known[-1] <= 2 * usual else max(end for end in (usual, *known) if end <= usual)


def part_of(report: Report, name: str) -> float | None:
    """One part of a response time; without a known round trip, server and network are one part."""
    said = report.details
    if name == "server and network":
        return said["first_byte"] if said["network"] is None else None
    value: float | None = said[name]
    return value
