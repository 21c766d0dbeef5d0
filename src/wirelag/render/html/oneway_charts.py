"""The charts of a page about one-way delay: over time, as a distribution, by segment, and the clocks.

Of up to millions of delays and a hundred thousand intervals, at most a few thousand values are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    duration,
    linear_axis,
    plain,
    rounded,
    spoken,
)  # fmt: skip
from wirelag.report import Report
from wirelag.stats.distribution import Z95
from wirelag.stats.moments import Moments
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.delay_sample import DelaySample

MOST_PARTS: Final = 240  # parts of the time
MOST_POINTS: Final = 2_000  # points of a cloud
BINS: Final = 80  # bins of the histogram
PLACES: Final = (100, 50)  # columns and rows of the heat map
CDF_POINTS: Final = 300


@dataclass(frozen=True, slots=True)
class SpanEntry:
    """An interval and its report; its ends are seconds since 1970, as in the JSON contract."""

    start_s: float
    end_s: float
    report: Report


@dataclass(frozen=True, slots=True)
class ClockFit:
    """The data behind the clock correction. Times are seconds since 1970.

    A raw delay is the time of receipt minus the time of sending, each by its own clock: forward ones are the delay plus
    the correction, backward ones the delay minus the correction.
    """

    forward: tuple[Floats, Floats]  # times_s, raw delays_s
    backward: tuple[Floats, Floats]
    line: tuple[Floats, Floats]  # times_s, correction_s: subtracted from downstream times
    steps: Sequence[tuple[float, float]]  # time_s, size_s
    text: str


# ---- parts of the time ----


def parts(spans: Sequence[SpanEntry], tail: DelaySample) -> list[SpanEntry]:
    """At most `MOST_PARTS` intervals, or several neighbours merged, with quantiles of the sample."""
    each = math.ceil(len(spans) / MOST_PARTS)
    if each <= 1:
        return list(spans)
    order = np.argsort(tail.sent_ns, kind="stable")
    sent_s = tail.sent_ns[order] / 1e9
    found = []
    for i in range(0, len(spans), each):
        some = spans[i : i + each]
        whole, shares = Crossing(), [1.0]
        for span in some:
            whole.add(_crossing(span.report))
            shares.append(span.report.details.get("share") or 1.0)
        first, last = np.searchsorted(sent_s, (some[0].start_s, some[-1].end_s)).tolist()
        mine = order[first:last]
        whole.tail = DelaySample(tail.sent_ns[mine], tail.delays_ns[mine], tail.weights[mine])
        whole.details["share"] = min(shares)
        whole.reason = None if whole.used else next((span.report.reason for span in some if span.report.reason), None)
        found.append(SpanEntry(some[0].start_s, some[-1].end_s, whole.report(some[0].report.estimator)))
    return found


def _crossing(report: Report) -> Crossing:
    """The sums of a report, to add to others."""
    details = report.details
    return Crossing(
        sent=details.get("sent") or 0,
        received=details.get("received") or 0,
        moments=Moments.of(
            report.samples,
            round((report.mean or 0.0) * 1e9 * report.samples),
            None if report.std is None else (report.std * 1e9) ** 2,
            details.get("stands_for") or report.samples,
        ),
        only_upstream=details.get("lost"),
        duplicated=details.get("duplicated"),
        reordered=details.get("reordered"),
    )


_LINES: Final = (("mean", "var(--all)", "circle"), ("0.5", "var(--c1)", "square"), ("0.99", "var(--c3)", "diamond"))


def named(key: str) -> str:
    """The name of a quantile."""
    return key if key == "mean" else f"p{float(key) * 100:g}"


def said(report: Report, key: str) -> float | None:
    """The mean or a quantile."""
    return report.mean if key == "mean" else report.quantiles.get(key)


def over_time(spans: Sequence[SpanEntry], scale: Scale) -> Figure:
    """Mean, p50 and p99 of each part of the time, with their 95% intervals."""
    times = Times(spans[0].start_s, spans[-1].end_s)
    middles = times.places([(span.start_s + span.end_s) / 2 for span in spans])
    reports = [span.report for span in spans]
    values = {key: [said(report, key) for report in reports] for key, _, _ in _LINES}
    seen = [x for known in values.values() for x in known if x is not None]
    bounds = [x for report in reports for key, _, _ in _LINES for x in report.ci95.get(key, ())]
    low, high = scale.reach(seen + [x for x in bounds if scale.linear_s is not None or x > min(seen) / 10])
    traces: list[Figure] = []
    for key, colour, symbol in _LINES:
        if all(value is None for value in values[key]):
            continue
        name = named(key)
        ends = [report.ci95.get(key) for report in reports]
        placed = [pair and (scale.place(max(pair[0], low)), scale.place(min(pair[1], high))) for pair in ends]
        traces.append(area(*band(middles, placed), colour, name))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "legendgroup": name,
                "x": middles,
                "y": [None if x is None else rounded(scale.place(x)) for x in values[key]],
                "text": [spoken(x, pair) for x, pair in zip(values[key], ends, strict=True)],
                "hovertemplate": f"{name} %{{text}}<extra></extra>",
                "line": {"width": 2, "color": colour},
                "marker": {"size": 5 if len(spans) <= 120 else 3, "symbol": symbol, "color": colour},
            }
        )
    layout = {"xaxis": times.axis(), "yaxis": scale.axis(low, high), "hovermode": "x unified", "shapes": scale.zero}
    return {"data": traces, "layout": layout}


def sample(tail: DelaySample, scale: Scale) -> Figure:
    """The delays of the sample and when each was sent: each as a point if few, else their density."""
    sent_s, delays_s = tail.sent_ns / 1e9, tail.delays_ns / 1e9
    first, last = float(sent_s.min()), float(sent_s.max())
    times = Times(first, max(last, first + 1e-6))
    low, high = scale.reach(delays_s)
    layout = {
        "xaxis": times.axis(),
        "yaxis": scale.axis(low, high),
        "hovermode": "closest",
        "shapes": scale.zero,
        "meta": {"most": 0},
    }
    if len(tail) <= MOST_POINTS:
        points = cloud(times.places(sent_s), scale.places(delays_s), "", 1)
        texts = {"text": [duration(d) for d in delays_s.tolist()], "hovertemplate": "%{text}<extra></extra>"}
        return {"data": [points | texts], "layout": layout}
    rows, edges_s = scale.edges(low, high, PLACES[1])
    columns = np.linspace(first, times.end_s, PLACES[0] + 1)
    inside = np.clip(delays_s, edges_s[0], edges_s[-1])
    counts = np.histogram2d(inside, sent_s, (edges_s, columns), weights=tail.weights.astype(np.float64))[0]
    table = counts.tolist()
    trace = {
        "type": "heatmap",
        "x": times.places(columns),
        "y": rows,
        "z": [[round(math.log10(n), 3) if n else None for n in row] for row in table],
        "customdata": [[f"{n:,.0f}" if n else "" for n in row] for row in table],
        "hovertemplate": "%{customdata} packets<extra></extra>",
        "hoverongaps": False,
        "zmin": 0,
        "zmax": max(math.log10(counts.max()), 0.3),
        "colorscale": [[i / 3, f"var(--heat{i})"] for i in range(4)],
        "showscale": False,
    }
    layout["meta"] = {"most": float(counts.max())}
    return {"data": [trace], "layout": layout}


# ---- loss and order ----


def share(report: Report, name: str) -> tuple[float, float] | None:
    """The share of sent packets that this happened to, and half its 95% interval: 0 if every packet was counted.

    If only a share of packets was sampled, the counts are scaled, and the interval is that of the sampling.
    """
    count, sent = report.details.get(name), report.details.get("sent")
    if count is None or not sent:
        return None
    looked_at = report.details.get("share") or 1.0
    return count / sent, Z95 * math.sqrt(count * max(0.0, 1 / looked_at - 1)) / sent


def losses(spans: Sequence[SpanEntry], reasons: dict[str, str]) -> Figure:
    """The shares of packets lost and reordered, in each part of the time: a panel for each."""
    times = Times(spans[0].start_s, spans[-1].end_s)
    starts, ends = times.places([span.start_s for span in spans]), times.places([span.end_s for span in spans])
    middles = [(a + b) / 2 for a, b in zip(starts, ends, strict=True)]
    layout: Figure = {"xaxis": times.axis() | {"anchor": "y2"}, "annotations": [], "bargap": 0.15, "showlegend": False}
    traces: list[Figure] = []
    for panel, (name, colour) in enumerate((("lost", "var(--c4)"), ("reordered", "var(--c2)"))):
        shares = [share(span.report, name) for span in spans]
        domain = [0.56, 1.0] if panel == 0 else [0.0, 0.44]
        axis = "y2" if panel else "y"
        most = max((sum(known) for known in shares if known), default=0.0)
        layout[f"yaxis{axis[1:]}"] = {
            "domain": domain, "range": [0, most * 1.08 or 0.01], "tickformat": ".3~p", "nticks": 5,
            "title": {"text": name}, "automargin": True,
        }  # fmt: skip
        if all(known is None for known in shares):
            layout["annotations"].append(_note(plain(f"cannot say: {reasons[name]}"), sum(domain) / 2))
            layout[f"yaxis{axis[1:]}"] |= {"showticklabels": False, "showgrid": False}
        elif not most:
            layout["annotations"].append(_note(f"none {name}", sum(domain) / 2))
        bars: Figure = {
            "type": "bar",
            "name": name,
            "yaxis": axis,
            "x": middles,
            "y": [None if known is None else rounded(known[0]) for known in shares],
            "width": [max(0.86 * (b - a), 1e-9) for a, b in zip(starts, ends, strict=True)],
            "text": [_count_text(span.report, name, known) for span, known in zip(spans, shares, strict=True)],
            "textposition": "none",
            "hovertemplate": f"{name} %{{text}}<extra></extra>",
            "marker": {"color": colour},
        }
        if any(known and known[1] for known in shares):
            bars["error_y"] = {
                "type": "data", "array": [rounded(known[1]) if known else 0 for known in shares],
                "color": "var(--soft)", "thickness": 1, "width": 2,
            }  # fmt: skip
        traces.append(bars)
        silent = [at for at, known in zip(middles, shares, strict=True) if known is None]
        if len(silent) < len(shares):
            traces.append(_question_marks(silent, axis))
    return {"data": traces, "layout": layout}


def _count_text(report: Report, name: str, known: tuple[float, float] | None) -> str:
    if known is None:
        return "cannot say"
    error = f" +/- {known[1]:.2%}" if known[1] else ""
    return f"{known[0]:.3%}{error} ({report.details[name]:,} of {report.details['sent']:,})"


def _question_marks(x: list[float], axis: str) -> Figure:
    return {
        "type": "scatter", "mode": "text", "x": x, "y": [0] * len(x), "yaxis": axis, "text": ["?"] * len(x),
        "textposition": "top center", "textfont": {"color": "var(--soft)"},
        "hovertemplate": "cannot say<extra></extra>",
    }  # fmt: skip


def _note(text: str, y: float) -> Figure:
    """A text in the middle of a panel."""
    return {"text": text, "xref": "paper", "yref": "paper", "x": 0.5, "y": y, "yanchor": "middle", "showarrow": False,
            "font": {"color": "var(--soft)"}}  # fmt: skip


# ---- the distribution ----


def distribution(tail: DelaySample, total: Report, scale: Scale) -> Figure:
    """The sample's delays: a histogram, the share up to each delay, and the reported quantiles."""
    order = np.argsort(tail.delays_ns, kind="stable")
    delays_s, weights = tail.delays_ns[order] / 1e9, tail.weights[order].astype(np.float64)
    low, high = scale.reach(delays_s)
    traces = _histogram(delays_s, weights, scale, (low, high))
    ranks = np.cumsum(weights) / weights.sum()
    shares = np.concatenate((np.linspace(0, 1, CDF_POINTS), 1 - np.geomspace(1e-6, 1e-2, 60)))
    rows = np.unique(np.minimum(np.searchsorted(ranks, np.sort(shares)), len(ranks) - 1))
    x = all_rounded(scale.places(delays_s[rows]).tolist())
    error = math.sqrt(math.log(2 / 0.05) / 2 / tail.effective)  # Dvoretzky, Kiefer and Wolfowitz: for all at once
    ends = [(max(0.0, r - error), min(1.0, r + error)) for r in ranks[rows].tolist()]
    traces.append(area(*band(x, ends), "var(--all)", "share") | {"yaxis": "y2"})
    traces.append(
        {
            "type": "scatter", "mode": "lines", "name": "share up to a delay", "legendgroup": "share", "yaxis": "y2",
            "x": [x[0], *x], "y": [0.0, *all_rounded(ranks[rows].tolist())], "line": {"shape": "hv", "width": 2,
            "color": "var(--all)"}, "text": [duration(d) for d in (delays_s[rows[0]], *delays_s[rows])],
            "hovertemplate": "%{y:.2%} within %{text}<extra></extra>", "showlegend": False,
        }
    )  # fmt: skip
    for key, colour, symbol in (*_LINES[1:], *_LINES[:1]):
        value = said(total, key)
        if value is not None and low <= value <= high:
            at = float(np.searchsorted(delays_s, value) / len(delays_s)) if key == "mean" else float(key)
            traces.append(
                _mark(value, at, total.ci95.get(key), scale) | {"name": named(key), "legendgroup": named(key)}
            )
            traces[-1]["marker"] = {"size": 9, "symbol": symbol, "color": colour}
            traces[-1]["error_x"]["color"] = colour
    layout: Figure = {
        "xaxis": scale.axis(low, high) | {"anchor": "y2"},
        "yaxis": {"domain": [0.56, 1.0], "title": {"text": "packets"}, "rangemode": "tozero", "nticks": 5,
                  "tickformat": ".2~p", "automargin": True},
        "yaxis2": {"domain": [0.0, 0.46], "title": {"text": "up to"}, "range": [0, 1.03], "nticks": 6,
                   "tickformat": ".0%", "automargin": True},
        "hovermode": "closest",
        "shapes": [across("x", 0.0)] if scale.linear_s is not None and low < 0 < high else [],
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _histogram(delays_s: Floats, weights: Floats, scale: Scale, ends: tuple[float, float]) -> list[Figure]:
    places, edges_s = scale.edges(*ends, BINS)
    counts = np.histogram(np.clip(delays_s, edges_s[0], edges_s[-1]), edges_s, weights=weights)[0]
    shares = counts / weights.sum()
    effective = weights.sum() ** 2 / (weights**2).sum()
    errors = Z95 * np.sqrt(shares * (1 - shares) / effective)
    texts = [
        f"{s:.3%} +/- {e:.3%} from {duration(a)} to {duration(b)}"
        for s, e, a, b in zip(shares, errors, edges_s, edges_s[1:], strict=False)
    ]
    traces = []
    for below, colour in ((True, "var(--bad)"), (False, "var(--c1)")):
        mine = [i for i in range(len(shares)) if (edges_s[i + 1] <= 0) == below]
        if not mine:
            continue
        x = [places[mine[0]], *(places[i] for i in mine), places[mine[-1] + 1], places[mine[-1] + 1]]
        y = [0.0, *(float(shares[i]) for i in mine), float(shares[mine[-1]]), 0.0]
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": "below 0", "legendgroup": "below 0", "showlegend": below,
                "x": all_rounded(x), "y": all_rounded(y), "fill": "tozeroy", "fillcolor": colour, "opacity": 0.8,
                "line": {"shape": "hv", "width": 1, "color": colour},
                "text": ["", *(texts[i] for i in mine), "", ""], "hovertemplate": "%{text}<extra></extra>",
            }
        )  # fmt: skip
    return traces


def _mark(value: float, at: float, low_high: tuple[float, float] | None, scale: Scale) -> Figure:
    """A point of the cumulative distribution with its 95% interval."""
    here = scale.place(value)
    ends = [scale.place(x) for x in low_high] if low_high else [here, here]
    return {
        "type": "scatter", "mode": "markers", "yaxis": "y2", "x": [rounded(here)], "y": [rounded(at)],
        "error_x": {"type": "data", "symmetric": False, "array": [max(0.0, ends[1] - here)],
                    "arrayminus": [max(0.0, here - ends[0])], "thickness": 2, "width": 5},
        "text": [spoken(value, low_high)], "hovertemplate": "%{text}",
    }  # fmt: skip


# ---- segments, groups, clocks ----


def means(entries: Sequence[tuple[str, Report]], title: str = "mean delay") -> Figure:
    """The mean of each entry with its 95% interval, in this order from above."""
    values = [report.mean for _, report in entries]
    ends = [report.ci95.get("mean") for _, report in entries]
    rows = list(range(len(entries)))
    seen = [0.0, *(x for x in values if x is not None), *(x for pair in ends if pair for x in pair)]
    known = [(x or 0.0, pair or (x or 0.0, x or 0.0)) for x, pair in zip(values, ends, strict=True)]
    bars: Figure = {
        "type": "bar",
        "orientation": "h",
        "y": rows,
        "x": [None if x is None else rounded(x) for x in values],
        "text": [spoken(x, pair) for x, pair in zip(values, ends, strict=True)],
        "textposition": "none",
        "hovertemplate": "mean %{text}<extra></extra>",
        "marker": {"color": ["var(--bad)" if x is not None and x < 0 else "var(--c1)" for x in values]},
        "width": 0.62,
        "error_x": {
            "type": "data", "symmetric": False, "color": "var(--all)", "thickness": 1.5, "width": 4,
            "array": [rounded(pair[1] - x) for x, pair in known],
            "arrayminus": [rounded(x - pair[0]) for x, pair in known],
        },
    }  # fmt: skip
    silent = [row for row, x in zip(rows, values, strict=True) if x is None]
    words = {
        "type": "scatter", "mode": "text", "x": [0] * len(silent), "y": silent, "text": ["cannot say"] * len(silent),
        "textposition": "middle right", "textfont": {"color": "var(--soft)"}, "hoverinfo": "skip",
    }  # fmt: skip
    keys = {
        "tickvals": rows,
        "ticktext": [plain(name) for name, _ in entries],
        "range": [len(rows) - 0.5, -0.5],
        "automargin": True,
        "showgrid": False,
    }
    axis = linear_axis(min(seen), max(seen), title)
    layout = {"xaxis": axis, "yaxis": keys, "showlegend": False, "hovermode": "closest"}
    return {"data": [bars, words] if silent else [bars], "layout": layout}


def clocks(fit: ClockFit) -> Figure:
    """Raw delays of both directions, the backward ones mirrored, so that the correction runs between them."""
    forward, backward, line = (_thinned(*_finite(*pair)) for pair in (fit.forward, fit.backward, fit.line))
    every = [pair[0] for pair in (forward, backward, line) if len(pair[0])]
    if not every:
        return {}
    times = Times(float(min(t.min() for t in every)), float(max(t.max() for t in every)) + 1e-6)
    heights = np.concatenate((forward[1], -backward[1], line[1]))
    low, high = float(heights.min()), float(heights.max())
    base = float(np.median(heights)) if max(abs(low), abs(high)) > 20 * (high - low) else 0.0
    traces = []
    for (at, raw), sign, name, colour in (
        (forward, 1, "forward", 1),
        (backward, -1, "backward, mirrored", 3),
    ):
        if len(at):
            traces.append(cloud(times.places(at), sign * raw - base, name, colour))
    if len(line[0]):
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": "correction", "x": times.places(line[0]),
                "y": all_rounded((line[1] - base).tolist()), "text": [duration(x) for x in line[1].tolist()],
                "hovertemplate": "correction %{text}<extra></extra>", "line": {"width": 2.5, "color": "var(--all)"},
            }
        )  # fmt: skip
    places = times.places([at for at, _ in fit.steps])
    title = f"difference minus {duration(base)}" if base else "difference"
    layout: Figure = {
        "xaxis": times.axis(),
        "yaxis": linear_axis(low - base, high - base, title),
        "hovermode": "closest",
        "shapes": [across("x", at) for at in places],
        "annotations": [
            {"x": at, "y": 1, "yref": "paper", "yanchor": "top", "xanchor": "left", "showarrow": False,
             "text": f" step {'+' if size > 0 else ''}{duration(size)}", "font": {"color": "var(--bad)"}}
            for at, (_, size) in zip(places, fit.steps, strict=True)
        ],
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _finite(times_s: Floats, values_s: Floats) -> tuple[Floats, Floats]:
    times, values = np.asarray(times_s, np.float64), np.asarray(values_s, np.float64)
    known = np.isfinite(times) & np.isfinite(values)
    return times[known], values[known]


def _thinned(times_s: Floats, values_s: Floats) -> tuple[Floats, Floats]:
    """At most `MOST_POINTS`, with both ends."""
    rows = np.unique(np.linspace(0, max(0, len(times_s) - 1), MOST_POINTS).astype(np.int64))
    return (times_s[rows], values_s[rows]) if len(times_s) else (times_s, values_s)
