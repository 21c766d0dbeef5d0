"""The page about a distribution of delay: round trips, or responses seen both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from wirelag.render.html.charts import (
    QUANTILES,
    Figure,
    Intervals,
    Own,
    Parts,
    bars,
    cdf,
    clock,
    heat,
    over_time,
    quantiles_of,
    spoken,
)
from wirelag.render.html.frame import (
    Frame,
    bounds,
    chart,
    coverage,
    delay,
    document,
    folded,
    listed,
    mean,
    scale,
    slowest,
    table,
)
from wirelag.render.rows import timed
from wirelag.report import Report
from wirelag.units import format_duration

if TYPE_CHECKING:
    from wirelag.measure.result import Entry

MOST_GROUPS: Final = 100  # groups in the table
MOST_BARS: Final = 20


@dataclass(frozen=True)
class View:
    """A distribution with its figures, and how it changed over time: all there is, or one leg of it."""

    name: str  # "to the server"; empty where there is only one
    entry: Entry
    timeline: Parts = ()
    intervals: Intervals = ()  # 95% intervals of the quantiles of each part, in seconds

    @property
    def suffix(self) -> str:
        """What tells its charts from those of others."""
        return f"-{self.name.split()[-1]}" if self.name else ""


@dataclass(frozen=True, kw_only=True)
class Page(Frame):
    """A page about distributions of delay."""

    views: Sequence[View]
    groups: Sequence[Entry] = ()  # in order
    order: str = ""  # what they are in order of: "largest p50 first"
    sort: str = ""  # that figure
    ranked: str = ""  # the leg by which they are in order
    by: str = ""
    what: str = "round trips"  # as people call several of what is measured
    reason: str = ""  # why there is nothing
    own: Callable[[Entry], Own | None] | None = None  # the delays of a group over time


def render(page: Page, more: Mapping[str, tuple[Figure, str]] = MappingProxyType({})) -> str:
    """The page; `more` are charts with their sections, by name; an empty chart is a section only."""
    sections = [_summary(page)]
    figures: dict[str, Figure] = {}
    known = [view for view in page.views if view.entry.report.samples]
    if known:
        text = f"The share of {page.what} that took no longer than this. The delay axis is logarithmic."
        named = [replace(view.entry, key=view.name or view.entry.key) for view in known]
        figures["cdf"] = cdf(named, page.what)
        sections.append(chart("cdf", f"How long {page.what} take", text, below=_delays_table(named)))
    for name, (figure, section) in more.items():
        figures |= {name: figure} if figure else {}
        sections.append(section)
    if known:
        for view in known:
            _add_timeline(page, view, figures, sections)
        if page.groups:
            height = 110 + 26 * min(MOST_BARS, len(page.groups))
            title = f"Delays by {page.by}{f', to the {page.ranked}' if page.ranked else ''}"
            figures["groups"] = bars([_ranked(entry, page.ranked) for entry in page.groups[:MOST_BARS]])
            own = _add_own(page, figures)
            sections.append(chart("groups", title, _groups_text(page), height, _groups_table(page, len(own))))
            if own:
                sections.append(_own_section(page, own))
    sections += slowest(page)
    sections.append(coverage(page))
    return document(page, "\n".join(sections), figures)


def _add_timeline(page: Page, view: View, figures: dict[str, Figure], sections: list[str]) -> None:
    if not view.timeline:
        return
    length, where = format_duration(view.timeline[0][0].length_ns), f", {view.name}" if view.name else ""
    quantiles, every = f"quantiles{view.suffix}", f"heat{view.suffix}"
    intervals = view.intervals or [{}] * len(view.timeline)
    when, values_ns = [when for when, _ in view.timeline], quantiles_of(view.timeline)
    figures |= {quantiles: over_time(when, values_ns, intervals), every: heat(view.timeline, page.what)}
    bands = _BANDS_TEXT if any(intervals) else _NO_BANDS_TEXT
    text = f"Half of the {page.what} {_QUANTILES_TEXT} {bands} Each point covers {length}."
    sections.append(chart(quantiles, f"Over time{where}", text))
    below = scale(figures[every], page.what) + _time_table(view.timeline, values_ns)
    text = f"How many {page.what} took how long, and when. {_HEAT_TEXT}"
    sections.append(chart(every, f"Every delay over time{where}", text, below=below))


def _ranked(entry: Entry, leg: str) -> Entry:
    """The entry of the leg by which groups are in order."""
    return replace(entry.legs[leg], key=entry.key) if leg in entry.legs else entry


# ---- text and tables ----

_QUANTILES_TEXT: Final = "were faster than p50, 90% faster than p90, 99% faster than p99."
_BANDS_TEXT: Final = (
    "Bands are 95% intervals; where there is none, there were too few samples, or delays changed too slowly."
)
_NO_BANDS_TEXT: Final = "There are no 95% intervals: these parts are too short for them (--interval)."
_HEAT_TEXT: Final = "Both the delay axis and the colours are logarithmic."


def _summary(page: Page) -> str:
    known = [view for view in page.views if view.entry.report.samples]
    if not known:
        lead = f'<p class="lead">Nothing could be measured: {escape(page.reason or "no samples")}.</p>'
        return f"<section>{lead}{listed(page.notes)}</section>"
    leads = "".join(_lead(page, view) for view in known)
    return f"<section>{leads}{listed(page.notes)}</section>"


def _lead(page: Page, view: View) -> str:
    """The quantiles of a view, as a sentence and as tiles."""
    report = view.entry.report
    where = f"{escape(view.name[:1].upper() + view.name[1:])}, half" if view.name else "Half"
    what = escape(page.what) + _exchanges(report)
    parts = [
        f"{label} of {report.samples:,} {what} took at most {_said(report, q)}" if q == "0.5" else
        f"{label} at most {_said(report, q)}"
        for q, label in zip(QUANTILES, (where, "90%", "99%"), strict=True)
    ]  # fmt: skip
    tiles = "".join(
        f"<div><dt>p{float(q) * 100:g}</dt>"
        f"<dd>{delay(report.quantiles[q], report.ci95.get(q))}<small>{bounds(report, q, 'no 95% interval')}</small>"
        "</dd></div>"
        for q in QUANTILES
    )
    told = any(q in report.ci95 for q in QUANTILES)
    brackets = " <span>95% intervals in brackets.</span>" if told else ""
    return f'<p class="lead">{"; ".join(parts)}.{brackets}</p><dl class="tiles">{tiles}</dl>'


def _exchanges(report: Report) -> str:
    """How many exchanges there were, if some have no time of their own."""
    exchanges = report.details.get("exchanges", report.samples)
    return f" (of {exchanges:,} exchanges)" if exchanges > report.samples else ""


def _said(report: Report, q: str) -> str:
    return spoken(report.quantiles[q], report.ci95.get(q), "<strong>{}</strong>", report.is_open(q))


_NUMBERS: Final = ("samples", "p50", "p90", "p99", "mean", "mean, 95% interval", "least", "most")


def _numbers(report: Report) -> list[str]:
    quantiles = [delay(report.quantiles.get(q)) for q in QUANTILES]
    return [
        timed(report),
        *quantiles,
        mean(report),
        bounds(report, "mean", "-"),
        delay(report.min),
        delay(report.max),
    ]


def _delays_table(entries: Sequence[Entry]) -> str:
    rows = [[escape(entry.key), *_numbers(entry.report)] for entry in entries]
    return table("Delays", ("", *_NUMBERS), rows)


def _time_table(timeline: Parts, values_ns: Mapping[str, Sequence[float | None]]) -> str:
    cells = [[delay(None if ns is None else ns / 1e9) for ns in values_ns[q]] for q in QUANTILES]
    rows = [
        [clock(interval.start_ns, interval.length_ns), f"{delays.samples:,}", *quantiles]
        for (interval, delays), quantiles in zip(timeline, zip(*cells, strict=True), strict=True)
    ]
    return folded("Figures over time", table("Delays over time", ("from (UTC)", "samples", "p50", "p90", "p99"), rows))


def _groups_text(page: Page) -> str:
    shown = min(MOST_BARS, len(page.groups))
    of = f"The first {shown} of {len(page.groups):,} groups" if shown < len(page.groups) else "All groups"
    return f"{of}, {page.order}: the marks are p50, p90 and p99."


def _add_own(page: Page, figures: dict[str, Figure]) -> list[str]:
    """The charts of the first groups, each on its own, drawn when it is chosen; returns their names."""
    names: list[str] = []
    for entry in page.groups[:MOST_BARS] if page.own else ():
        own = page.own(entry) if page.own else None
        if own is None or not own.whole.samples:
            break  # memory was full
        figures[f"own-delays-{len(names)}"] = cdf([replace(entry, delays=own.whole)], page.what)
        figures[f"own-time-{len(names)}"] = over_time(own.when, own.quantiles_ns, [{}] * len(own.when))
        names.append(entry.key)
    return names


def _own_section(page: Page, names: Sequence[str]) -> str:
    options = "".join(f'<option value="{i}">{escape(name)}</option>' for i, name in enumerate(names))
    by, to = escape(page.by), f" to the {page.ranked}" if page.ranked else ""
    chosen = f'<p class="find"><label>{by} <select id="own">{options}</select></label></p>'
    text = f"How its {page.what}{to} are distributed, and p50, p90 and p99 over time; delays within 4.5%."
    places = "".join(
        f'<div class="chart" id="{name}" role="group" aria-label="{escape(title)}" style="height:300px"></div>'
        for name, title in (("own-delays", "Its own distribution"), ("own-time", "Its own time line"))
    )
    return f"<section><h2>One {by}</h2><p>{escape(text)}</p>{chosen}{places}</section>"


def _groups_table(page: Page, choosable: int = 0) -> str:
    shown = list(page.groups[:MOST_GROUPS])
    legs, own = bool(page.ranked), [page.sort] * (page.sort not in ("", *_NUMBERS, "max"))
    rows: list[list[str]] = []
    for i, entry in enumerate(shown):
        name = escape(entry.key)
        if i < choosable:
            name = f'<button type="button" data-own="{i}" title="show it on its own">{name}</button>'
        each = {f"to the {leg}": one for leg, one in entry.legs.items()} if legs else {"": entry}
        for leg, one in each.items():
            numbers = [*_numbers(one.report), *(delay(one.report.figure(figure)) for figure in own)]
            rows.append([name, *([leg] if legs else []), *numbers])
    more = len(page.groups) - len(shown)
    note = f"<p>and {more:,} more: --format csv lists all.</p>" if more else ""
    heads = (page.by, *(("leg",) if legs else ()), *_NUMBERS, *own)
    return table(f"Delays by {page.by}, {page.order}", heads, rows) + note
