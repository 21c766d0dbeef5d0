"""Charts of response latency: over time, with think time and epochs without an estimate, and its parts.

Of up to a million epochs, at most `MOST_POINTS` are drawn, the slowest always.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wirelag.render.html.charts import (
    Figure,
    Scale,
    Times,
    area,
    band,
    cloud,
    duration,
    linear_axis,
    plain,
    reach,
    rounded,
    spoken,
)
from wirelag.render.html.oneway_charts import SpanEntry
from wirelag.report import Report
from wirelag.synopses.epochs import REASONS, Epochs, ends_text

if TYPE_CHECKING:
    from wirelag.measure.result import Entry

MOST_POINTS: Final = 3_000
SLOWEST: Final = 100  # always drawn
COLOURS: Final = 4  # servers with their own colour
PANEL, ROW, ROOM = 190, 24, 56  # pixels: a panel, a line of the strip, the gap between panels
SHORTEST_S: Final = 1e-6  # shorter times are drawn here
SCALE: Final = Scale(None)

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
    whole, top = sum(heights) + ROOM * (len(heights) - 1), 0
    layout: Figure = {"xaxis": times.axis(), "hovermode": "closest", "legend": {"itemsizing": "constant"}}
    traces: list[Figure] = []
    for panel, tall in enumerate(heights):
        axis = f"y{panel + 1}" if panel else "y"
        domain = {"domain": [1 - (top + tall) / whole, 1 - top / whole]}
        top += tall + ROOM
        if panel == len(heights) - 1:
            strip, keys = _outcomes(epochs, spans, times)
            traces.append(strip | {"yaxis": axis})
            layout[f"yaxis{axis[1:]}"] = keys | domain
            layout["xaxis"] |= {"anchor": axis}
            continue
        title, sums, counts, value = _QUANTITIES[panel]
        known = drawn(epochs, sums, counts)
        shown = _points(known, sums, counts, times, panel) + _line(spans, value, times, title)
        low, high = reach([y for trace in shown for y in trace["y"] if y is not None])
        traces += [trace | {"yaxis": axis} for trace in shown]
        layout[f"yaxis{axis[1:]}"] = SCALE.axis(low, high) | {"title": {"text": title}} | domain
    return {"data": traces, "layout": layout}


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


def _points(epochs: Epochs, sums: str, counts: str, times: Times, panel: int) -> list[Figure]:
    """Epochs as faint points; the servers with most responses have colours."""
    traces = []
    servers = list(epochs.groups("server"))
    parts: list[tuple[str, Epochs, str]] = [
        (name, part, f"var(--c{i + 1})") for i, (name, part) in enumerate(servers[:COLOURS])
    ]
    if servers[COLOURS:]:
        others = Epochs(np.concatenate([part.rows for _, part in servers[COLOURS:]]))
        parts.insert(0, ("other servers", others, "var(--soft)"))
    for name, part, colour in parts:
        rows = part.rows
        values = np.maximum(rows[sums] / rows[counts] / 1e9, SHORTEST_S)
        middles = times.places((rows["start_ns"] + (rows["end_ns"] - rows["start_ns"]) // 2) / 1e9)
        trace = cloud(middles, SCALE.places(values), plain(name), 1)
        trace["marker"] = {"size": 5, "opacity": 0.3 if len(epochs) > 300 else 0.55, "color": colour}
        trace |= {"text": _texts(part), "hovertemplate": "%{text}<extra></extra>", "hoverinfo": "text"}
        traces.append(trace | {"legendgroup": plain(name), "showlegend": panel == 0})
    return traces


def _texts(epochs: Epochs) -> list[str]:
    """The hover texts of epochs."""
    names = [plain(ends_text(words, "flow")) for words in epochs.ends.tolist()]
    return [
        f"{name}<br>{duration(row['sum_ns'] / row['count'] / 1e9)}, {row['count']:,} responses, {row['in_flight']} in "
        f"flight, confidence {row['confidence']}%" for name, row in zip(names, epochs.rows, strict=True)
    ]  # fmt: skip


def _line(spans: Sequence[SpanEntry], value: Value, times: Times, title: str) -> list[Figure]:
    """The mean of each part of the time with its interval, broken where there is none."""
    middles = times.places([(span.start_s + span.end_s) / 2 for span in spans])
    values = [value(span.report) for span in spans]
    bounds = [span.report.ci95.get("mean") if title == "latency" else None for span in spans]
    least = max(min((x for x in values if x), default=0.0) / 3, SHORTEST_S)
    name = "mean over time"
    line = {
        "type": "scatter", "mode": "lines+markers", "name": name, "legendgroup": name, "x": middles,
        "y": [None if x is None else rounded(SCALE.place(max(x, SHORTEST_S))) for x in values],
        "text": [spoken(x, pair) for x, pair in zip(values, bounds, strict=True)],
        "hovertemplate": "mean %{text}<extra></extra>", "line": {"width": 2.5, "color": "var(--all)"},
        "marker": {"size": 5 if len(spans) <= 120 else 3, "color": "var(--all)"}, "showlegend": title == "latency",
    }  # fmt: skip
    placed = [pair and (SCALE.place(max(pair[0], least)), SCALE.place(pair[1])) for pair in bounds]
    return [area(*band(middles, placed), "var(--all)", name), line]


# ---- the strip ----


def _reasons(epochs: Epochs) -> list[int]:
    """The outcomes of epochs: an estimate (0), then reasons, the most frequent first."""
    rows = epochs.rows
    counts = np.bincount(rows["reason"][rows["count"] == 0], minlength=len(REASONS))
    return [0, *(int(i) for i in np.argsort(-counts, kind="stable") if counts[i])]


def _outcomes(epochs: Epochs, spans: Sequence[SpanEntry], times: Times) -> tuple[Figure, Figure]:
    """For each part of the time, the shares of its epochs by outcome; and the axis."""
    names = ["answered" if not reason else REASONS[reason] for reason in _reasons(epochs)]
    shares: list[list[float | None]] = []
    texts: list[list[str]] = []
    for name in names:
        line: list[float | None] = []
        words: list[str] = []
        for span in spans:
            said: Any = span.report.details
            count = said["answered"] if name == "answered" else said["abstained"].get(name, 0)
            line.append(rounded(count / said["epochs"]) if count else None)
            words.append(f"{name}: {count:,} of {said['epochs']:,} epochs" if count else "")
        shares.append(line)
        texts.append(words)
    strip = {
        "type": "heatmap", "x": times.places([*(span.start_s for span in spans), spans[-1].end_s]),
        "y": list(range(len(names))), "z": shares, "customdata": texts, "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": False, "zmin": 0, "zmax": 1, "colorscale": [[i / 3, f"var(--heat{i})"] for i in range(4)],
        "showscale": False, "xgap": 1, "ygap": 3,
    }  # fmt: skip
    keys = {"tickvals": list(range(len(names))), "ticktext": names, "range": [len(names) - 0.5, -0.5],
            "automargin": True, "showgrid": False}  # fmt: skip
    return strip, keys


# ---- both directions ----

_PARTS: Final = (
    ("network", "var(--c2)"),
    ("server", "var(--c3)"),
    ("server and network", "var(--soft)"),  # where the round trip is not known
    ("transfer", "var(--c1)"),
)


def split(entries: Sequence[Entry]) -> Figure:
    """The parts of each mean response time: one bar each, in this order from the top."""
    rows = list(range(len(entries)))
    traces: list[Figure] = []
    ends = [0.0] * len(rows)
    for name, colour in _PARTS:
        values = [part_of(entry.report, name) for entry in entries]
        if not any(values):
            continue
        ends = [end + (value or 0.0) for end, value in zip(ends, values, strict=True)]
        traces.append(
            {
                "type": "bar", "orientation": "h", "name": name, "y": rows, "width": 0.62,
                "x": [None if x is None else rounded(x) for x in values], "text": [duration(x) for x in values],
                "textposition": "none", "hovertemplate": f"{name} %{{text}}<extra></extra>",
                "marker": {"color": colour},
            }
        )  # fmt: skip
    keys = {"tickvals": rows, "ticktext": [plain(entry.key) for entry in entries], "range": [len(rows) - 0.5, -0.5],
            "automargin": True, "showgrid": False}  # fmt: skip
    axis = linear_axis(0.0, max(ends, default=0.0), "mean")
    layout = {"xaxis": axis, "yaxis": keys, "barmode": "stack", "hovermode": "closest"}
    return {"data": traces, "layout": layout | {"legend": {"traceorder": "normal"}}}


def part_of(report: Report, name: str) -> float | None:
    """One part of a response time; without a known round trip, server and network are one part."""
    said = report.details
    if name == "server and network":
        return said["first_byte"] if said["network"] is None else None
    value: float | None = said[name]
    return value
