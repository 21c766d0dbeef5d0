"""The page about one-way delay: delay, loss and reordering between two points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Final

import numpy as np

from wirelag.render.html.charts import Figure, clock, duration, spoken
from wirelag.render.html.frame import (
    Frame,
    bounds,
    chart,
    coverage,
    delay,
    document,
    ends,
    folded,
    listed,
    scale,
    slowest,
    table,
)
from wirelag.render.html.oneway_charts import (
    MOST_POINTS,
    ClockFit,
    SpanEntry,
    clocks,
    distribution,
    losses,
    means,
    named,
    over_time,
    parts,
    said,
    sample,
    share,
)
from wirelag.render.html.page import MOST_BARS, MOST_GROUPS
from wirelag.render.html.scales import Scale
from wirelag.report import QUANTILES, Report
from wirelag.stats.distribution import Z95
from wirelag.synopses.delay_sample import DelaySample
from wirelag.units import format_duration, format_size

__all__ = ["ClockFit", "OnewayPage", "SpanEntry", "render_oneway"]

COUNTED: Final = ("received", "lost", "reordered", "duplicated", "ambiguous", "negative", "used")

Entries = Sequence[tuple[str, Report]]


@dataclass(frozen=True, kw_only=True)
class OnewayPage(Frame):
    """The content of a page about one-way delay. Reports are of the quantity one_way."""

    total: Report
    tail: DelaySample  # delays of a sample of packets, and the share sampled
    spans: Sequence[SpanEntry]  # in order of time; empty without intervals
    groups: Entries  # in order
    by: str
    order: str = "largest mean first"  # what groups are in order of
    segments: Entries  # in the order of the path
    clock: ClockFit | None


def render_oneway(page: OnewayPage) -> str:
    """The page."""
    page = _with_share(page)
    sections, figures = [_summary(page)], {}

    def add(name: str, figure: Figure, title: str, text: str, height: int = 380, below: str = "") -> None:
        figures[name] = figure
        sections.append(chart(name, title, text, height, below))

    shown = parts(page.spans, page.tail)
    layout = Scale.of(page.tail, [page.total, *(span.report for span in shown)])
    axis = _LOG_TEXT if layout.linear_s is None else _SIGNED_TEXT
    if any(span.report.mean is not None for span in shown):
        text = f"{_TIME_TEXT} {_lengths(page.spans, shown)} {axis}"
        add("quantiles", over_time(shown, layout), "Delay over time", text, 400, _time_table(shown))
    if len(page.tail):
        drawn = sample(page.tail, layout)
        few = len(page.tail) <= MOST_POINTS
        text = f"{'Each point is a packet' if few else 'How many packets took how long, and when'}. {axis}"
        key = "" if few else scale(drawn, "packets")
        add("sample", drawn, "Every delay of the sample", f"{text} {_sample_text(page)}", below=key)
    if shown:
        reasons = {name: _why_no_count(page.total, name) for name in ("lost", "reordered")}
        text = f"Shares of the packets sent. {_LOSS_TEXT}"
        add("losses", losses(shown, reasons), "Loss and reordering over time", text, 420)
    if len(page.tail):
        add("delays", distribution(page.tail, page.total, layout), "How long packets take", f"{_CDF_TEXT} {axis}", 560)
    if len(page.segments) > 1:
        text = "The mean delay of each segment, in the order of the path; lines are 95% intervals."
        height = 110 + 34 * len(page.segments)
        below = _entries_table("Delays by segment", "segment", page.segments)
        add("segments", means(page.segments), "Where the time goes", text, height, below)
    if page.groups:
        few_groups = page.groups[:MOST_BARS]
        of = f"The first {MOST_BARS} of {len(page.groups):,}" if len(page.groups) > MOST_BARS else "All"
        text = f"{of} groups, {page.order}; their means, and lines as 95% intervals."
        height = 110 + 26 * len(few_groups)
        add("groups", means(few_groups), f"Slowest by {page.by}", text, height, _groups_table(page))
    if page.clock is not None and (fitted := clocks(page.clock)):
        add("clocks", fitted, "The clocks", f"{page.clock.text} {_CLOCK_TEXT}", 400)
    elif page.clock is not None:
        sections.append(f"<section><h2>The clocks</h2><p>{escape(page.clock.text)}</p></section>")
    sections.append(_numbers(page))
    sections += slowest(page)
    sections.append(coverage(page))
    return document(page, "\n".join(sections), figures)


def _with_share(page: OnewayPage) -> OnewayPage:
    """The share of packets sampled, if only the intervals have it."""
    known = [share for span in page.spans if (share := span.report.details.get("share")) is not None]
    if not known or page.total.details.get("share") is not None:
        return page
    return replace(page, total=replace(page.total, details={**page.total.details, "share": min(known)}))


# ---- text ----

_TIME_TEXT: Final = (
    "Mean, p50 and p99 of each part of the time. Bands are 95% intervals; where there is none, there were too few "
    "packets. A gap marks an interval without an estimate."
)
_LOG_TEXT: Final = "The delay axis is logarithmic."
_SIGNED_TEXT: Final = "The delay axis is linear around 0 and logarithmic beyond, to show delays below 0."
_CDF_TEXT: Final = (
    "Above, the share of packets with each delay; below, the share with at most this delay. The band holds the whole "
    "curve with a confidence of 95%, the lines through the marks are 95% intervals."
)
_LOSS_TEXT: Final = "Lines at the bars, if any, are 95% intervals of the sampling. A question mark: cannot say."
_CLOCK_TEXT: Final = (
    "Forward is the time of receipt minus the time of sending, each by its own clock; backward is the same, mirrored. "
    "A clock error moves both alike, so the correction must run between them."
)


def _lengths(spans: Sequence[SpanEntry], shown: Sequence[SpanEntry]) -> str:
    length = format_duration(float(np.median([span.end_s - span.start_s for span in shown])) * 1e9)
    merged = f", merged from {len(spans):,} intervals" if len(shown) < len(spans) else ""
    return f"Each point covers {length}{merged}."


def _sample_text(page: OnewayPage) -> str:
    each = page.tail.weight / len(page.tail)
    rest = f", which represent {page.tail.weight:,} packets" if each > 1 else ""
    return f"The sample has {len(page.tail):,} delays{rest}."


def _summary(page: OnewayPage) -> str:
    report = page.total
    if report.mean is None:
        lead = f"No delay could be measured: {escape(report.reason or 'no packet was used')}."
        return f'<section><p class="lead">{lead}</p>{_below_zero(page)}{listed(page.notes)}</section>'
    took = spoken(report.mean, report.ci95.get("mean"), "<strong>{}</strong>", report.is_open())
    lead = f"A packet took {took} on average, over {report.samples:,} packets"
    lost = share(report, "lost")
    if lost is not None:
        lead += f"; <strong>{_percent(lost[0])}</strong> were lost"
    tiles = "".join(
        f"<div><dt>{named(key)}</dt><dd>{_value(report, key)}<small>{_interval(report, key)}</small></dd></div>"
        for key in ("mean", "0.5", "0.99")
    )
    tiles += f"<div><dt>lost</dt><dd>{_lost_tile(report)}</dd></div>"
    return (
        f'<section><p class="lead">{lead}. <span>95% intervals in brackets.</span></p>'
        f'<dl class="tiles four">{tiles}</dl>{_below_zero(page)}{listed(page.notes)}</section>'
    )


def _lost_tile(report: Report) -> str:
    known = share(report, "lost")
    if known is None:
        return _cannot(_why_no_count(report, "lost"))
    count = f"{report.details['lost']:,} of {report.details['sent']:,}"
    return f"{_percent(known[0])}<small>{count}, {_error(report, known[1])}</small>"


def _below_zero(page: OnewayPage) -> str:
    """How many delays are below 0. Packets never arrive before they were sent, so the clocks are wrong by that."""
    count = page.tail.negative
    if count:
        least = duration(float(page.tail.delays_ns.min()) / 1e9)
        of = f"{count:,} of {page.tail.weight:,} delays ({_percent(count / page.tail.weight)}) are below 0"
        why = "the clocks differ by at least that much, unless packets were mismatched"
        return f'<p class="bad">{of}, the least {least}: {why}.</p>'
    if page.total.mean is not None and page.total.mean < 0:
        return '<p class="bad">The mean delay is below 0: the clocks differ by at least that much.</p>'
    return ""


def _percent(part: float) -> str:
    return "0%" if not part else f"{part:.2%}" if part >= 0.0005 else f"{part * 100:.2g}%"


def _error(report: Report, half: float) -> str:
    """The error of a count; a method that does not report its share of packets is not called exact."""
    return f"+/- {_percent(half)}" if half else "exact" if report.details.get("share") == 1 else "counted"


# ---- what a method cannot say ----


def _cannot(reason: str) -> str:
    return f'<span class="cannot">cannot say<small>{escape(reason)}</small></span>'


def _why_no_count(report: Report, name: str) -> str:
    if not report.details.get("sent"):
        return "no packet was sent" if report.details.get("sent") == 0 else report.reason or "not counted"
    if name in ("reordered", "duplicated", "ambiguous"):
        return f"{report.estimator} does not identify packets"
    if name == "negative":
        return "no sample of single delays"
    return report.reason or f"{report.estimator} does not count it"


def _why_no_value(report: Report) -> str:
    if not report.samples:
        return report.reason or "no packet was used"
    return "no sample of single delays"


def _value(report: Report, key: str) -> str:
    value = said(report, key)
    return delay(value, report.ci95.get(key)) if value is not None else _cannot(_why_no_value(report))


def _interval(report: Report, key: str) -> str:
    low_high = report.ci95.get(key)
    if low_high:
        return bounds(report, key, "")
    if said(report, key) is None:
        return ""
    if report.samples <= 1:
        return "no interval from one packet"
    return "unknown deviation" if key == "mean" else "too few delays beyond it for an interval"


# ---- tables ----


def _numbers(page: OnewayPage) -> str:
    return f'<section><h2>All figures</h2><div class="beside">{_delays(page)}{_packets(page.total)}</div></section>'


def _delays(page: OnewayPage) -> str:
    report = page.total
    rows = [["mean", _value(report, "mean"), _interval(report, "mean")]]
    bound = report.details.get("bound98")
    if report.mean is not None and bound is not None:
        around = f"{delay(report.mean - bound)} to {delay(report.mean + bound)}"
        cells = [f"+/- {delay(bound)}", around] if bound else ["exact", "each delay is known"]
        rows.append(["mean of all packets that crossed, 98%" if bound else "mean of all packets that crossed", *cells])
    rows.append(["standard deviation", *_deviation(page)])
    rows += [[named(q), _value(report, q), _interval(report, q)] for q in QUANTILES]
    for name, value in (("least", report.min), ("most", report.max)):
        cell = delay(value) if value is not None else _cannot("single delays are unknown")
        rows.append([name, cell, "of the packets used" if value is not None else ""])
    return table("Delays", ("", "", "95% interval"), rows)


def _deviation(page: OnewayPage) -> tuple[str, str]:
    """The deviation, and its interval by the fourth moment of the sample."""
    std, tail = page.total.std, page.tail
    if std is None:
        return _cannot(page.total.reason or f"{page.total.estimator} does not know it"), ""
    if page.total.min is None:  # not from single delays: the sample does not apply
        return delay(std), "from sums of delays: uncertainty unknown"
    if len(tail) < 30:
        return delay(std), "too few single delays for an interval"
    apart = (tail.delays_ns - np.median(tail.delays_ns)) / 1e9
    apart = apart - np.average(apart, weights=tail.weights)
    second, fourth = (float(np.average(apart**power, weights=tail.weights)) for power in (2, 4))
    if not second:
        return delay(std), "all delays of the sample are equal"
    error = Z95 * std / 2 * math.sqrt(max(0.0, fourth / second**2 - 1) / tail.effective)
    return delay(std), f"{delay(max(0.0, std - error))} to {delay(std + error)}"


def _packets(report: Report) -> str:
    details = report.details
    sent = details.get("sent")
    rows = [["sent", f"{sent:,}" if sent is not None else _cannot("not counted"), "", ""]]
    for name in COUNTED:
        title, count, known = {"negative": "below 0"}.get(name, name), details.get(name), share(report, name)
        if count is None:
            rows.append([title, _cannot(_why_no_count(report, name)), "", ""])
        elif name == "negative":
            rows.append([title, f"{count:,}", "", "of the sample"])
        else:
            error = "exact" if name in ("received", "used") else _error(report, known[1] if known else 0.0)
            rows.append([title, f"{count:,}", _percent(known[0]) if known else "", error])
    looked_at = details.get("share")
    if looked_at is not None:
        rows.append(["share sampled", _percent(looked_at), "", ""])
    wire = details.get("wire_bytes")
    if wire is not None:
        each = f"{wire / sent:.3g} bytes per packet" if sent else ""
        rows.append(["between the points", format_size(wire), each, ""])
    return table("Packets", ("", "", "of those sent", "95%"), rows)


_DELAYS: Final = ("mean", "0.5", "0.99")
_HEADS: Final = (
    "sent",
    "lost",
    "reordered",
    "used",
    *(head for key in _DELAYS for head in (named(key), "95% interval")),
)


def _cells(report: Report) -> list[str]:
    details = report.details
    sent = details.get("sent")
    counts = ["-" if sent is None else f"{sent:,}", *(_share_cell(report, name) for name in ("lost", "reordered"))]
    cells = [*counts, f"{report.samples:,}"]
    for key in _DELAYS:
        low_high = report.ci95.get(key)
        cells += [_short(said(report, key), low_high), ends(low_high)]
    return cells


def _short(value: float | None, low_high: tuple[float, float] | None) -> str:
    return delay(value, low_high) if value is not None else '<span class="cannot">cannot say</span>'


def _share_cell(report: Report, name: str) -> str:
    known, details = share(report, name), report.details
    if known is None:
        return '<span class="cannot">cannot say</span>'
    if name == "lost" and details.get("lost_low", 0) < details.get("lost_high", 0):
        return " to ".join(_percent(details[end] / details["sent"]) for end in ("lost_low", "lost_high"))
    return _percent(known[0]) + (f" {_error(report, known[1])}" if known[1] else "")


def _entries_table(caption: str, by: str, entries: Entries) -> str:
    reasons = [f"{name}: {report.reason}" for name, report in entries if report.mean is None and report.reason]
    rows = [[escape(name), *_cells(report)] for name, report in entries]
    return table(caption, (by, *_HEADS), rows) + listed(reasons[:MOST_BARS])


def _groups_table(page: OnewayPage) -> str:
    more = len(page.groups) - MOST_GROUPS
    note = f"<p>and {more:,} more: --format csv lists all.</p>" if more > 0 else ""
    return _entries_table(f"Delays by {page.by}, {page.order}", page.by, page.groups[:MOST_GROUPS]) + note


def _time_table(shown: Sequence[SpanEntry]) -> str:
    rows = [
        [escape(clock(round(span.start_s * 1e6) * 1000, 10**6)), *_cells(span.report)] for span in shown
    ]  # fmt: skip
    return folded("Figures over time", table("Delays over time", ("from (UTC)", *_HEADS), rows))
