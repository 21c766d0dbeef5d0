"""The page about a distribution of delay: round trips, or responses seen both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from wirelag.render.html.charts import QUANTILES, Figure, Parts, bars, cdf, clock, duration, heat, over_time
from wirelag.render.html.frame import Frame, bounds, chart, coverage, delay, document, folded, listed, scale, table
from wirelag.report import Report
from wirelag.stats.distribution import Distribution
from wirelag.units import format_duration

if TYPE_CHECKING:
    from wirelag.measure.result import Entry

MOST_GROUPS: Final = 100  # groups in the table
MOST_BARS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Page(Frame):
    """A page about a distribution of delay."""

    total: Entry
    legs: Sequence[Entry] = ()
    timeline: Parts = ()
    groups: Sequence[Entry] = ()  # slowest first
    by: str = ""
    what: str = "round trips"  # plural name of what is measured


def render(page: Page, more: Mapping[str, tuple[Figure, str]] = MappingProxyType({})) -> str:
    """The page; `more` are charts with their sections, by name."""
    sections = [_summary(page)]
    figures: dict[str, Figure] = {}
    if page.total.report.samples:
        figures = _figures(page)
        text = f"The share of {page.what} that took at most this time. The delay axis is logarithmic."
        sections.append(chart("cdf", f"How long {page.what} take", text, below=_delays_table([page.total, *page.legs])))
        for name, (figure, section) in more.items():
            figures[name] = figure
            sections.append(section)
        if page.timeline:
            length = format_duration(page.timeline[0][0].length_ns)
            sections.append(
                chart(
                    "quantiles", "Over time", f"Half of the {page.what} {_QUANTILES_TEXT} Each point covers {length}."
                )
            )
            sections.append(
                chart(
                    "heat",
                    "Every delay over time",
                    f"How many {page.what} took how long, and when. {_HEAT_TEXT}",
                    below=scale(figures["heat"], page.what) + _time_table(page.timeline),
                )
            )
        if page.groups:
            height = 110 + 26 * min(MOST_BARS, len(page.groups))
            title = f"Slowest by {page.by}"
            sections.append(chart("groups", title, _groups_text(page), height, _groups_table(page)))
    sections.append(coverage(page))
    return document(page, "\n".join(sections), figures)


# ---- text and tables ----

_QUANTILES_TEXT: Final = (
    "were faster than p50, 90% faster than p90, 99% faster than p99. Bands are 95% intervals; where there is none, "
    "there were too few samples."
)
_HEAT_TEXT: Final = "Both the delay axis and the colours are logarithmic."


def _summary(page: Page) -> str:
    report = page.total.report
    if not report.samples:
        reason = report.reason or "no samples"
        return f'<section><p class="lead">Nothing could be measured: {escape(reason)}.</p></section>'
    parts = [
        f"{label} of {report.samples:,} {escape(page.what)} took at most {_said(report, q)}" if q == "0.5" else
        f"{label} at most {_said(report, q)}"
        for q, label in zip(QUANTILES, ("Half", "90%", "99%"), strict=True)
    ]  # fmt: skip
    tiles = "".join(
        f"<div><dt>p{float(q) * 100:g}</dt>"
        f"<dd>{delay(report.quantiles[q])}<small>{bounds(report, q, 'too few samples for an interval')}</small>"
        "</dd></div>"
        for q in QUANTILES
    )
    return (
        f'<section><p class="lead">{"; ".join(parts)}. <span>95% intervals in brackets.</span></p>'
        f'<dl class="tiles">{tiles}</dl>{listed(page.notes)}</section>'
    )


def _said(report: Report, q: str) -> str:
    low_high = report.ci95.get(q)
    between = f" ({duration(low_high[0])} to {duration(low_high[1])})" if low_high else ""
    return f"<strong>{duration(report.quantiles[q])}</strong>{between}"


_NUMBERS: Final = ("samples", "p50", "p90", "p99", "mean", "mean, 95% interval", "least", "most")


def _numbers(report: Report) -> list[str]:
    quantiles = [delay(report.quantiles.get(q)) for q in QUANTILES]
    return [
        f"{report.samples:,}",
        *quantiles,
        delay(report.mean),
        bounds(report, "mean", "-"),
        delay(report.min),
        delay(report.max),
    ]


def _delays_table(entries: Sequence[Entry]) -> str:
    rows = [[escape(entry.key), *_numbers(entry.report)] for entry in entries]
    return table("Delays", ("", *_NUMBERS), rows)


def _time_table(timeline: Parts) -> str:
    rows = [
        [clock(interval.start_ns, interval.length_ns), f"{delays.samples:,}", *_quantile_cells(delays)]
        for interval, delays in timeline
    ]
    return folded("Figures over time", table("Delays over time", ("from (UTC)", "samples", "p50", "p90", "p99"), rows))


def _quantile_cells(delays: Distribution) -> list[str]:
    values = [delays.quantile_ns(float(q)) for q in QUANTILES]
    return [delay(None if value is None else value / 1e9) for value in values]


def _groups_text(page: Page) -> str:
    shown = min(MOST_BARS, len(page.groups))
    of = f"The {shown} slowest of {len(page.groups):,} groups" if shown < len(page.groups) else "All groups"
    return f"{of}, in order of p50: the marks are p50, p90 and p99."


def _groups_table(page: Page) -> str:
    shown = list(page.groups[:MOST_GROUPS])
    rows = [[escape(entry.key), *_numbers(entry.report)] for entry in shown]
    more = len(page.groups) - len(shown)
    note = f"<p>and {more:,} more, which are faster: --format csv lists all.</p>" if more else ""
    return table(f"Delays by {page.by}, slowest first", (page.by, *_NUMBERS), rows) + note


def _figures(page: Page) -> dict[str, Figure]:
    figures = {"cdf": cdf([page.total, *page.legs], page.what)}
    if page.timeline:
        figures |= {"quantiles": over_time(page.timeline), "heat": heat(page.timeline)}
    if page.groups:
        figures["groups"] = bars(page.groups[:MOST_BARS])
    return figures
