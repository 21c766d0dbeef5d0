"""The document: text, tables, places for the charts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Final

from wirelag.render.html.charts import QUANTILES, Entry, Figure, Parts, bars, cdf, clock, duration, heat, over_time
from wirelag.report import Report
from wirelag.stats.distribution import Distribution
from wirelag.units import format_duration

MOST_GROUPS: Final = 100  # in the table
MOST_BARS: Final = 20


@dataclass(frozen=True, slots=True)
class Page:
    """All that a page tells."""

    title: str
    subject: str  # what was measured: the names of the captures
    total: Entry
    command_line: str
    version: str
    legs: Sequence[Entry] = ()
    timeline: Parts = ()
    groups: Sequence[Entry] = ()  # slowest first
    by: str = ""
    answers: Sequence[str] = ()  # to what was asked besides, a sentence each
    warnings: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)  # coverage: what, and how many
    what: str = "round trips"  # as people call several of what is measured


def render(page: Page, more: Mapping[str, tuple[Figure, str]] = MappingProxyType({})) -> str:
    """The page; `more` are charts with their sections, by name."""
    sections = [_summary(page)]
    figures: dict[str, Figure] = {}
    if page.total.report.samples:
        figures = _figures(page)
        text = f"The share of {page.what} that took no longer than this. The delay axis is logarithmic."
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
    sections.append(coverage(page.counts, page.warnings, page.command_line))
    return document(page.title, page.subject, page.version, "\n".join(sections), figures)


# ---- text and tables ----

_QUANTILES_TEXT: Final = (
    "were faster than p50, 90% faster than p90, 99% faster than p99. Bands are 95% intervals; where there is none, "
    "there were too few samples to say."
)
_HEAT_TEXT: Final = "Both the delay axis and the colours are logarithmic."


def _summary(page: Page) -> str:
    report = page.total.report
    if not report.samples:
        reason = report.reason or "there are no samples"
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
        f'<dl class="tiles">{tiles}</dl>{listed(page.answers)}</section>'
    )


def _said(report: Report, q: str) -> str:
    low_high = report.ci95.get(q)
    between = f" ({duration(low_high[0])} to {duration(low_high[1])})" if low_high else ""
    return f"<strong>{duration(report.quantiles[q])}</strong>{between}"


def bounds(report: Report, name: str, otherwise: str) -> str:
    """A 95% interval."""
    low_high = report.ci95.get(name)
    return f"{delay(low_high[0])} to {delay(low_high[1])}" if low_high else otherwise


def delay(seconds: float | None) -> str:
    """A delay for people, with the exact value for programs."""
    return "-" if seconds is None else f'<data value="{seconds!r}">{duration(seconds)}</data>'


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the cells are HTML already, the first of a row names it."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>\n' for row in rows
    )
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )


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
    rows = [[escape(entry.name), *_numbers(entry.report)] for entry in entries]
    return table("Delays", ("", *_NUMBERS), rows)


def scale(heat_map: Figure, what: str) -> str:
    """What the colours of a heat map mean."""
    most = heat_map["layout"]["meta"]["most"]
    return f'<p class="scale">colours: 1 <i></i> {max(most, 2):,.0f} {what}</p>'


def _time_table(timeline: Parts) -> str:
    rows = [
        [clock(interval.start_ns, interval.length_ns), f"{delays.samples:,}", *_quantile_cells(delays)]
        for interval, delays in timeline
    ]
    return folded(
        "The numbers over time", table("Delays over time", ("from (UTC)", "samples", "p50", "p90", "p99"), rows)
    )


def folded(title: str, content: str) -> str:
    """What only those see who ask for it."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _quantile_cells(delays: Distribution) -> list[str]:
    values = [delays.quantile_ns(float(q)) for q in QUANTILES]
    return [delay(None if value is None else value / 1e9) for value in values]


def _groups_text(page: Page) -> str:
    shown = min(MOST_BARS, len(page.groups))
    of = f"The {shown} slowest of {len(page.groups):,} groups" if shown < len(page.groups) else "All groups"
    return f"{of}, in order of p50: the marks are p50, p90 and p99."


def _groups_table(page: Page) -> str:
    shown = list(page.groups[:MOST_GROUPS])
    rows = [[escape(entry.name), *_numbers(entry.report)] for entry in shown]
    more = len(page.groups) - len(shown)
    note = f"<p>and {more:,} more, which are faster: --format csv lists all.</p>" if more else ""
    return table(f"Delays by {page.by}, slowest first", (page.by, *_NUMBERS), rows) + note


def coverage(counts: Mapping[str, int], lines: Iterable[str], command_line: str) -> str:
    """What the page rests on: how many packets, what to know of them, and the command."""
    rows = [[escape(what), f"{count:,}"] for what, count in counts.items()]
    known = table("Coverage", ("", "packets"), rows)
    return (
        f"<section><h2>What this rests on</h2>{known}{listed(lines)}"
        f"<h3>The command that made this page</h3><pre><code>{escape(command_line)}</code></pre></section>"
    )


def listed(lines: Iterable[str]) -> str:
    """Sentences as a list; nothing where there are none."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


# ---- the document ----


def _figures(page: Page) -> dict[str, Figure]:
    figures = {"cdf": cdf([page.total, *page.legs], page.what)}
    if page.timeline:
        figures |= {"quantiles": over_time(page.timeline), "heat": heat(page.timeline)}
    if page.groups:
        figures["groups"] = bars(page.groups[:MOST_BARS])
    return figures


def chart(name: str, title: str, text: str, height: int = 380, below: str = "") -> str:
    """A section with the place of a chart."""
    return (
        f'<section><h2>{escape(title)}</h2><p>{escape(text)}</p><div class="chart" id="{name}" role="img" '
        f'aria-label="{escape(title)}" style="height:{height}px"><noscript>The chart needs JavaScript; the numbers '
        f"are in the tables.</noscript></div>{below}</section>"
    )


def document(title: str, subject: str, version: str, body: str, figures: Mapping[str, Figure]) -> str:
    """The page around its sections, with what draws the charts and a policy that lets nothing else in."""
    data = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        data = data.replace(char, f"\\u{ord(char):04x}")
    scripts = [_plotly(), _beside("page.js")] if figures else []
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts) or "'none'"
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
    policy += "form-action 'none'; base-uri 'none'"
    return "".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            f'<meta name="generator" content="wirelag {escape(version)}">\n',
            f"<title>{escape(title)}: {escape(subject)}</title>\n",
            f"<style>{_beside('page.css')}</style>\n</head>\n<body>\n",
            f"<header><h1>{escape(title)}</h1><p>{escape(subject)}</p></header>\n<main>\n{body}\n</main>\n",
            f"<footer>wirelag {escape(version)}</footer>\n",
            f'<script type="application/json" id="figures">{data}</script>\n' if figures else "",
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body>\n</html>\n",
        )
    )


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _plotly() -> str:
    script = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    # A browser reads line ends as \n, and so does the hash.
    return script.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
