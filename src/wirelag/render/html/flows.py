"""The page about flows: the delay of each, from sparse reference packets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Final

import numpy as np

from wirelag.render.html.charts import Figure, spoken
from wirelag.render.html.flow_charts import NAMED, SLOWEST, Points, by_size, drawn, over_time
from wirelag.render.html.frame import Frame, bounds, chart, coverage, delay, document, folded, listed, mean, table
from wirelag.render.html.oneway_charts import SpanEntry, means
from wirelag.render.html.page import MOST_BARS, MOST_GROUPS
from wirelag.render.html.scales import Floats, Scale
from wirelag.report import Report
from wirelag.stats.ranking import FEWEST
from wirelag.synopses.delay_sample import DelaySample
from wirelag.synopses.flows import Flows
from wirelag.units import format_size

HIDDEN: Final = 100  # a fixed delay this many times larger than the rest is subtracted

Entries = Sequence[tuple[str, Report]]


@dataclass(frozen=True, kw_only=True)
class FlowsPage(Frame):
    """The content of a page about flows. Reports are of the quantity one_way, with `bytes` and `references`."""

    total: Report  # as `Flows.report` makes it
    flows: Flows  # the selected flows, a record each
    points: Entries  # `flow_charts.drawn` of them, slowest first
    spans: Sequence[SpanEntry]  # in order of time; empty without intervals
    groups: Entries  # in order; empty if flows are listed
    order: str = "slowest first"  # what they are in order of
    by: str
    refused: Mapping[str, int]  # references, by reason
    rate: str  # drain rate of the queue, as text; empty if unknown


def render_flows(page: FlowsPage) -> str:
    """The page."""
    known = page.flows.table()
    delays_s, below = known["mean"], int((known["high"] < 0).sum())
    less_s = _fixed(page, delays_s)
    if less_s:
        page = _without(page, less_s)
    every = Points.of(page.flows, less_s, delays_s)
    references = page.flows.references_ns[:, 0] / 1e9, page.flows.references_ns[:, 1] / 1e9 - less_s
    sections, figures = [_summary(page, less_s, below)], {}

    def add(name: str, figure: Figure, title: str, text: str, height: int = 400, below: str = "") -> None:
        figures[name] = figure
        sections.append(chart(name, title, text, height, below))

    seen = np.concatenate([every.delays_s, references[1]])
    scale = Scale.of(
        DelaySample.of(np.zeros(len(seen), np.int64), np.round(seen * 1e9).astype(np.int64), 1), [page.total]
    )
    axis = _LOG_TEXT if scale.linear_s is None else _SIGNED_TEXT
    if page.points:
        text = f"{_points_text(page, every)} {axis}"
        add("size", by_size(page.points, every, page.total, scale), "Delay against size", text)
    if len(seen):
        points, slowest = Points.of(drawn(page.flows, delays_s), less_s), page.points[:NAMED]
        figure = over_time(points, references, page.spans, scale, slowest)
        add("time", figure, "Delay over time", f"{_TIME_TEXT} {axis}")
    for name, title, by, entries, count in (
        ("worst", "The slowest flows", "flow", page.points, len(every.delays_s)),
        ("groups", f"Slowest by {page.by}", page.by, page.groups, len(page.groups)),
    ):
        if entries:
            few = entries[:MOST_BARS]
            of = f"The first {len(few)} of {count:,}" if len(few) < count else "All"
            text = f"{of}, {page.order}; their means, and lines as 95% intervals."
            add(name, means(few), title, text, 110 + 26 * len(few), _entries_table(page, by, entries, count))
    sections.append(_method(page, less_s))
    sections.append(coverage(page))
    return document(page, "\n".join(sections), figures)


# ---- a fixed delay that hides everything else ----


def _fixed(page: FlowsPage, delays_s: Floats) -> float:
    """The fixed delay, if three digits would show nothing else, as with clocks that were never set; or 0."""
    base = page.total.details.get("base")
    known = delays_s[np.isfinite(delays_s)]
    if base is None or not len(known):
        return 0.0
    return float(base) if abs(base) > HIDDEN * float(np.median(np.abs(known - base))) else 0.0


def _without(page: FlowsPage, less_s: float) -> FlowsPage:
    def less(report: Report) -> Report:
        ends = {name: (low - less_s, high - less_s) for name, (low, high) in report.ci95.items()}
        return replace(report, mean=None if report.mean is None else report.mean - less_s, ci95=ends)

    return replace(
        page,
        total=less(page.total),
        points=[(name, less(report)) for name, report in page.points],
        groups=[(name, less(report)) for name, report in page.groups],
        spans=[replace(span, report=less(span.report)) for span in page.spans],
    )


# ---- text ----

_LOG_TEXT: Final = "The delay axis is logarithmic."
_SIGNED_TEXT: Final = "The delay axis is linear around 0 and logarithmic beyond."
_TIME_TEXT: Final = (
    "References at their arrival, and the flows of the chart above at the middle of their time. Each packet gets its "
    "delay from the references around it."
)


def _points_text(page: FlowsPage, every: Points) -> str:
    count = len(every.delays_s)
    text = "Each point is a flow; hover for its name."
    if count > len(page.points):
        text += (
            f" Of {count:,} flows {len(page.points):,} are drawn: the {SLOWEST:,} slowest, the {SLOWEST:,} largest, "
            "and others at random."
        )
    untimed = len(page.flows) - count
    if untimed:
        text += f" {untimed:,} more had no references around them, so their delay is unknown."
    return text + " The dotted line is the mean of all packets."


def _summary(page: FlowsPage, less_s: float, below: int) -> str:
    report, details = page.total, page.total.details
    if report.mean is None:
        lead = f"No delay could be measured: {escape(report.reason or 'no packet came between two references')}."
        return f'<section><p class="lead">{lead}</p>{listed(page.notes)}</section>'
    count = len(page.flows)
    lead = (
        f"A packet took <strong>{spoken(report.mean, report.ci95.get('mean'))}</strong> on average, in {count:,} "
        f"flow{'s' * (count != 1)}"
    )
    if len(page.points) > 1 and page.points[0][1].samples >= FEWEST:  # of a few packets nothing is said first
        name, slowest = page.points[0]
        lead += f"; the slowest was {escape(name)} with {spoken(slowest.mean, slowest.ci95.get('mean'))}"
    used, refused = details["references"]["accepted"], sum(page.refused.values())
    regular = details["counts"].get("regular", report.samples)
    tiles = (
        ("mean", mean(report), bounds(report, "mean", "too few references for an interval")),
        ("deviation", delay(report.std), "of single packets"),
        ("timed", _share(details["coverage"]), f"{report.samples:,} of {regular:,} packets"),
        ("references", f"{used:,}", f"{refused:,} more were not used" if refused else "all were used"),
    )
    shown = "".join(f"<div><dt>{name}</dt><dd>{value}<small>{small}</small></dd></div>" for name, value, small in tiles)
    return (
        f'<section><p class="lead">{lead}. <span>95% intervals in brackets.</span></p>'
        f'<dl class="tiles four">{shown}</dl>{_clocks(page, less_s, below)}{listed(page.notes)}</section>'
    )


def _clocks(page: FlowsPage, less_s: float, below: int) -> str:
    """How a clock offset affects the figures; `below` flows are below 0."""
    if less_s:
        return (
            f'<p class="bad">{less_s:.9f} s is subtracted from all delays on this page: the clock offset, or a fixed '
            "delay.</p>"
        )
    if not below:
        return ""
    return f'<p class="bad">{below:,} of {len(page.flows):,} flows are below 0: the clocks differ by at least that.</p>'


def _share(part: float | None) -> str:
    return "-" if part is None else f"{part:.2%}"


# ---- tables ----

_HEADS: Final = ("packets", "bytes", "references", "mean", "95% interval", "deviation")


def _cells(report: Report) -> list[str]:
    return [
        f"{report.packets:,}",
        f'<data value="{report.details["bytes"]}">{format_size(report.details["bytes"])}</data>',
        f"{report.details['references']:,}",
        mean(report),
        bounds(report, "mean", "-"),
        delay(report.std),
    ]


def _entries_table(page: FlowsPage, by: str, entries: Entries, count: int) -> str:
    rows = [[escape(name), *_cells(report)] for name, report in entries[:MOST_GROUPS]]
    shown = table(f"Delays by {by}, {page.order}", (by, *_HEADS), rows[:MOST_BARS])
    if len(rows) > MOST_BARS:
        rest = rows[MOST_BARS:]
        shown += folded(f"The next {len(rest)}", table("The next", (by, *_HEADS), rest))
    more = count - len(rows)
    return shown + (f"<p>and {more:,} more: --format csv lists all.</p>" if more else "")


def _method(page: FlowsPage, less_s: float) -> str:
    details = page.total.details
    error, base, noise = details.get("error"), details.get("base"), details.get("clock_noise")
    rows = [["method", escape(str(details["method"]))], ["drain rate of the queue", escape(page.rate or "unknown")]]
    if details.get("fallback"):
        rows.append(["fell back to linear", escape(str(details["fallback"]))])
    rows.append(["fixed delay", "unknown" if base is None else delay(base)])
    if noise:
        rows.append(["noise of the clock", delay(noise)])
    rows.append(["typical error near references", "unknown" if error is None else delay(error)])
    references = [["used", f"{details['references']['accepted']:,}"]]
    references += [[escape(why), f"{count:,}"] for why, count in page.refused.items() if count]
    both = table("Between references", ("", ""), rows) + table("References", ("", ""), references)
    return f'<section><h2>How it was measured</h2><div class="beside">{both}</div></section>'
