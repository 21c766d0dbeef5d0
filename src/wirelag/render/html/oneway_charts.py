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
    all_rounded,
    between,
    duration,
    heat_map,
    line,
    linear_axis,
    plain,
    rounded,
    rows_axis,
)
from wirelag.render.html.scales import Floats, Scale, Times, cloud
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


_LINES: Final = (("mean", "all", "circle"), ("0.5", "c1", "square"), ("0.99", "c3", "diamond"))


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
    size = 2.5 if len(spans) <= 120 else 1.5
    series = [
        line(named(key), middles, values[key], colour, [report.ci95.get(key) for report in reports])
        | {"mark": symbol, "size": size}
        for key, colour, symbol in _LINES
        if any(value is not None for value in values[key])
    ]
    return {"x": times.axis(), "panels": [_panel(scale, low, high, series)], "hover": "x"}


def _panel(scale: Scale, low: float, high: float, series: list[Figure]) -> Figure:
    return {"y": scale.axis(low, high), "series": series, "across": scale.zero}


def sample(tail: DelaySample, scale: Scale) -> Figure:
    """The delays of the sample and when each was sent: each as a point if few, else their density."""
    sent_s, delays_s = tail.sent_ns / 1e9, tail.delays_ns / 1e9
    first, last = float(sent_s.min()), float(sent_s.max())
    times = Times(first, max(last, first + 1e-6))
    low, high = scale.reach(delays_s)
    if len(tail) <= MOST_POINTS:
        series = cloud(times.places(sent_s), scale.shown(delays_s), "", "c1")
    else:
        edges_s = scale.edges(low, high, PLACES[1])
        columns = np.linspace(first, times.end_s, PLACES[0] + 1)
        inside = np.clip(delays_s, edges_s[0], edges_s[-1])
        counts = np.histogram2d(inside, sent_s, (edges_s, columns), weights=tail.weights.astype(np.float64))[0]
        whole = np.round(counts).astype(np.int64).tolist()
        series = heat_map(times.places(columns), edges_s.tolist(), whole, "packets")
    return {"x": times.axis(), "panels": [_panel(scale, low, high, [series])]}


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
    panels: list[Figure] = []
    for name, colour in (("lost", "c4"), ("reordered", "c2")):
        shares = [share(span.report, name) for span in spans]
        most = max((sum(known) for known in shares if known), default=0.0)
        axis = {"kind": "share", "range": [0, most * 1.08 or 0.01], "title": name}
        bars: Figure = {
            "draw": "bars",
            "says": name,
            "colour": colour,
            "from": starts,
            "to": ends,
            "gap": 0.14,
            "y": [None if known is None else rounded(known[0]) for known in shares],
            "tips": [_count_text(span.report, name, known) for span, known in zip(spans, shares, strict=True)],
        }
        if any(known and known[1] for known in shares):
            bars |= between([known and (max(0.0, known[0] - known[1]), sum(known)) for known in shares])
        panel = {"y": axis, "series": [bars]}
        silent = [(a + b) / 2 for a, b, known in zip(starts, ends, shares, strict=True) if known is None]
        if len(silent) == len(shares):
            panel |= {"note": plain(f"cannot say: {reasons[name]}"), "y": axis | {"kind": "hidden"}}
        elif silent:
            marks = {"x": silent, "y": [0] * len(silent), "text": ["?"] * len(silent), "above": True}
            panel["series"] = [bars, {"draw": "words", **marks}]
        if len(silent) < len(shares) and not most:
            panel["note"] = f"none {name}"
        panels.append(panel)
    return {"x": times.axis(), "panels": panels, "hover": "x"}


def _count_text(report: Report, name: str, known: tuple[float, float] | None) -> str:
    if known is None:
        return "cannot say"
    return f"({report.details[name]:,} of {report.details['sent']:,})"


# ---- the distribution ----


def distribution(tail: DelaySample, total: Report, scale: Scale) -> Figure:
    """The sample's delays: a histogram, the share up to each delay, and the reported quantiles."""
    order = np.argsort(tail.delays_ns, kind="stable")
    delays_s, weights = tail.delays_ns[order] / 1e9, tail.weights[order].astype(np.float64)
    low, high = scale.reach(delays_s)
    bins = _histogram(delays_s, weights, scale, (low, high))
    ranks = np.cumsum(weights) / weights.sum()
    shares = np.concatenate((np.linspace(0, 1, CDF_POINTS), 1 - np.geomspace(1e-6, 1e-2, 60)))
    rows = np.unique(np.minimum(np.searchsorted(ranks, np.sort(shares)), len(ranks) - 1))
    x = scale.shown(delays_s[rows]).tolist()
    error = math.sqrt(math.log(2 / 0.05) / 2 / tail.effective)  # Dvoretzky, Kiefer and Wolfowitz: for all at once
    ends = [(max(0.0, r - error), min(1.0, r + error)) for r in ranks[rows].tolist()]
    curve = line("share", all_rounded([x[0], *x]), [0.0, *ranks[rows].tolist()], "all", [ends[0], *ends])
    curve |= {"step": True, "plain": True, "says": "up to this delay"}
    marks = []
    for key, colour, symbol in (*_LINES[1:], *_LINES[:1]):
        value = said(total, key)
        if value is not None and low <= value <= high:
            at = float(np.searchsorted(delays_s, value) / len(delays_s)) if key == "mean" else float(key)
            marks.append(_mark(value, at, total.ci95.get(key), scale))
            marks[-1] |= {"name": named(key), "mark": symbol, "size": 4.5, "colour": colour}
    most = max(y for one in bins for y in one["y"])
    zero = [{"x": 0, "colour": "bad"}] if scale.linear_s is not None and low < 0 < high else []
    panels = [
        {"y": {"kind": "share", "range": [0, 1.05 * most], "title": "packets"}, "series": bins, "across": zero},
        {"y": {"kind": "share", "range": [0, 1.03], "title": "up to"}, "series": [curve, *marks], "across": zero},
    ]
    return {"x": scale.axis(low, high), "panels": panels, "hover": "x"}


def _histogram(delays_s: Floats, weights: Floats, scale: Scale, ends: tuple[float, float]) -> list[Figure]:
    edges_s = scale.edges(*ends, BINS)
    counts = np.histogram(np.clip(delays_s, edges_s[0], edges_s[-1]), edges_s, weights=weights)[0]
    shares = counts / weights.sum()
    effective = weights.sum() ** 2 / (weights**2).sum()
    errors = Z95 * np.sqrt(shares * (1 - shares) / effective)
    found = []
    for below, colour in ((True, "bad"), (False, "c1")):
        mine = np.flatnonzero((edges_s[1:] <= 0) == below)
        if len(mine):
            label = {"name": "below 0"} if below else {"says": "of packets"}
            found.append(
                {"draw": "bars", **label, "colour": colour, "from": all_rounded(edges_s[mine].tolist()),
                 "to": all_rounded(edges_s[mine + 1].tolist()), "y": all_rounded(shares[mine].tolist()),
                 "tips": [f"+/- {error:.3%}" for error in errors[mine].tolist()]}
            )  # fmt: skip
    return found


def _mark(value: float, at: float, low_high: tuple[float, float] | None, scale: Scale) -> Figure:
    """A point of the cumulative distribution with its 95% interval."""
    return {
        "draw": "points", "along": "x", "x": all_rounded(scale.shown([value]).tolist()), "y": [rounded(at)],
        **between([low_high]),
    }  # fmt: skip


# ---- segments, groups, clocks ----


def means(entries: Sequence[tuple[str, Report]], title: str = "mean delay") -> Figure:
    """The mean of each entry with its 95% interval, in this order from above."""
    values = [report.mean for _, report in entries]
    ends = [report.ci95.get("mean") for _, report in entries]
    rows = list(range(len(entries)))
    seen = [0.0, *(x for x in values if x is not None), *(x for pair in ends if pair for x in pair)]
    bars: Figure = {
        "draw": "bars",
        "along": "x",
        "says": "mean",
        "y": rows,
        "x": [None if x is None else rounded(x) for x in values],
        "colours": ["bad" if x is not None and x < 0 else "c1" for x in values],
        **between(ends),
    }
    silent = [row for row, x in zip(rows, values, strict=True) if x is None]
    words = {"draw": "words", "x": [0] * len(silent), "y": silent, "text": ["cannot say"] * len(silent)}
    axis = linear_axis(min(seen), max(seen), title)
    panel = {"y": rows_axis(name for name, _ in entries), "series": [bars, words] if silent else [bars]}
    return {"x": axis, "panels": [panel]}


def clocks(fit: ClockFit) -> Figure:
    """Raw delays of both directions, the backward ones mirrored, so that the correction runs between them."""
    forward, backward, fitted = (_thinned(*_finite(*pair)) for pair in (fit.forward, fit.backward, fit.line))
    every = [pair[0] for pair in (forward, backward, fitted) if len(pair[0])]
    if not every:
        return {}
    times = Times(float(min(t.min() for t in every)), float(max(t.max() for t in every)) + 1e-6)
    heights = np.concatenate((forward[1], -backward[1], fitted[1]))
    low, high = float(heights.min()), float(heights.max())
    base = float(np.median(heights)) if max(abs(low), abs(high)) > 20 * (high - low) else 0.0
    series = [
        cloud(times.places(at), sign * raw - base, name, colour) | {"quiet": True}
        for (at, raw), sign, name, colour in ((forward, 1, "forward", "c1"), (backward, -1, "backward, mirrored", "c3"))
        if len(at)
    ]
    if len(fitted[0]):
        series.append(line("correction", times.places(fitted[0]), (fitted[1] - base).tolist(), "all") | {"width": 2.5})
    steps = [
        {"x": at, "colour": "bad", "text": f"step {'+' if size > 0 else ''}{duration(size)}"}
        for at, (_, size) in zip(times.places([at for at, _ in fit.steps]), fit.steps, strict=True)
    ]
    title = f"difference minus {duration(base)}" if base else "difference"
    panel = {"y": linear_axis(low - base, high - base, title), "series": series, "across": steps}
    return {"x": times.axis(), "panels": [panel]}


def _finite(times_s: Floats, values_s: Floats) -> tuple[Floats, Floats]:
    times, values = np.asarray(times_s, np.float64), np.asarray(values_s, np.float64)
    known = np.isfinite(times) & np.isfinite(values)
    return times[known], values[known]


def _thinned(times_s: Floats, values_s: Floats) -> tuple[Floats, Floats]:
    """At most `MOST_POINTS`, with both ends."""
    rows = np.unique(np.linspace(0, max(0, len(times_s) - 1), MOST_POINTS).astype(np.int64))
    return (times_s[rows], values_s[rows]) if len(times_s) else (times_s, values_s)
