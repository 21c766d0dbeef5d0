"""The frame of every page: title, coverage, and a self-contained document.

The page loads nothing: scripts and data are inside, and a content security policy with the hashes of the scripts
forbids everything else. Text from a capture or the command line is escaped. The same result gives the same
bytes.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Final

from wirelag import __version__
from wirelag.render.html.charts import Bounds, Figure, duration, interval
from wirelag.report import Report
from wirelag.units import format_time

if TYPE_CHECKING:
    from wirelag.measure.result import Result
    from wirelag.measure.slowest import Slow

CHARTS: Final = ("axes.js", "shapes.js", "tips.js", "charts.js", "page.js", "marked.js", "own.js")
_NOT_AGAIN: Final = ("--from", "--to", "--html", "-o", "--output", "--samples", "--resume")
TABLES: Final = ("tables.js",)
SCRIPTS: Final = (*CHARTS, *TABLES)  # of a page with both


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The fields that every page has; each kind of page adds its own."""

    title: str
    subject: str  # names of the captures
    command_line: str = ""
    notes: Sequence[str] = ()  # under the summary, one sentence each
    warnings: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)  # coverage: packets, by what is counted
    slowest: Sequence[Slow] = ()  # samples to look at
    version: str = __version__


def document(frame: Frame, body: str, figures: Mapping[str, Figure]) -> str:
    """The page around its sections, with the scripts of charts and tables and a policy that blocks everything else."""
    data = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        data = data.replace(char, f"\\u{ord(char):04x}")
    names = (*(CHARTS if figures else ()), *(TABLES if "<tbody>" in body else ()))
    scripts = [asset(name) for name in names]
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts) or "'none'"
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
    policy += "form-action 'none'; base-uri 'none'"
    return "".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            f'<meta name="generator" content="wirelag {escape(frame.version)}">\n',
            f"<title>{escape(frame.title)}: {escape(frame.subject)}</title>\n",
            f"<style>{asset('charts.css')}{asset('page.css')}</style>\n</head>\n<body>\n",
            f"<header><h1>{escape(frame.title)}</h1><p>{escape(frame.subject)}</p></header>\n<main{_again(frame.command_line)}>\n{body}\n</main>\n",
            f"<footer>wirelag {escape(frame.version)}</footer>\n",
            f'<script type="application/json" id="figures">{data}</script>\n' if figures else "",
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body>\n</html>\n",
        )
    )


def _again(command_line: str) -> str:
    """The command of a page, for a part of its time: without its own times, and without files that it would replace."""
    try:
        words = shlex.split(command_line)
    except ValueError:
        return ""
    kept, skip = [], False
    for word in words:
        if not skip and not word.startswith(tuple(f"{name}=" for name in _NOT_AGAIN)) and word not in _NOT_AGAIN:
            kept.append(word)
        skip = not skip and word in _NOT_AGAIN
    return f' data-command="{escape(shlex.join(kept))}"' if kept else ""


def asset(name: str) -> str:
    """A script or a style sheet of pages; the collector's page uses those of charts, too."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def _sha256(script: str) -> str:
    return binascii.b2a_base64(hashlib.sha256(script.encode()).digest(), newline=False).decode()


def table_page(result: Result) -> str:
    """The page of a result without charts: its table."""
    lines = escape("\n".join(result.table()))
    frame = Frame(title=f"wirelag {result.command}", subject="", command_line=result.command_line)
    frame = replace(frame, warnings=result.warnings)
    return document(frame, f"<section><pre>{lines}</pre></section>{coverage(frame)}", {})


# ---- sections ----


def chart(name: str, title: str, text: str, height: int = 380, below: str = "") -> str:
    """A section with the place of a chart."""
    return (
        f'<section><h2>{escape(title)}</h2><p>{prose(text)}</p><div class="chart" id="{name}" role="group" '
        f'aria-label="{escape(title)}" style="height:{height}px"><noscript>The chart needs JavaScript; the figures '
        f"are in the tables.</noscript></div>{below}</section>"
    )


def coverage(frame: Frame) -> str:
    """Coverage: packets, warnings, and the command."""
    rows = [[escape(what), f"{count:,}"] for what, count in frame.counts.items()]
    known = table("Coverage", ("", "packets"), rows) if rows else ""
    command = escape(frame.command_line)
    made = f"<h3>The command that made this page</h3><pre><code>{command}</code></pre>" if command else ""
    return f"<section><h2>Coverage</h2>{known}{listed(frame.warnings)}{made}</section>"


def slowest(frame: Frame) -> list[str]:
    """A section with the slowest samples, if they are known, and the display filters that show their packets."""
    if not frame.slowest:
        return []
    legs = any(one.leg for one in frame.slowest)
    rows = [
        [
            delay(one.delay_ns / 1e9),
            *([f"to the {one.leg}"] if legs else []),
            escape(format_time(one.time_ns)),
            "<br>".join(f"{escape(capture)}: <code>{escape(text)}</code>" for capture, text in one.filters.items()),
        ]
        for one in frame.slowest
    ]
    text = "To look at these packets, paste a filter into Wireshark."
    shown = table("Slowest", ("delay", *(["leg"] if legs else []), "from (UTC)", "display filter"), rows)
    return [f"<section><h2>The slowest</h2><p>{text}</p>{shown}</section>"]


def listed(lines: Iterable[str]) -> str:
    """Sentences as a list; empty without any."""
    items = "".join(f"<li>{prose(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def prose(text: str) -> str:
    """A sentence as HTML. An option stays in one line: browsers would break it after its hyphens."""
    return re.sub(r"--[a-z][a-z0-9-]*", r'<span class="whole">\g<0></span>', escape(text))


def folded(title: str, content: str) -> str:
    """A section that is closed at first."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def scale(heat_map: Figure, what: str) -> str:
    """What the colours of a heat map mean."""
    most = heat_map["panels"][0]["series"][0]["most"]
    return f'<p class="scale">colours: 1 <i></i> {max(most, 2):,} {what}</p>'


# ---- tables ----


def mean(report: Report) -> str:
    """The mean, with as many digits as its 95% interval needs."""
    return delay(report.mean, report.ci95.get("mean"))


def bounds(report: Report, name: str, otherwise: str) -> str:
    """A 95% interval."""
    low_high = report.ci95.get(name)
    if low_high and report.is_bare(name):
        return otherwise + "".join(f'<data value="{end!r}" hidden></data>' for end in low_high)
    if low_high and report.is_open(name):
        return f'at least {delay(low_high[0])}<data value="{low_high[1]!r}" hidden></data>'
    return ends(low_high) if low_high else otherwise


def ends(low_high: Bounds | None) -> str:
    """An interval as text, with its exact ends for programs; a dash without one."""
    if low_high is None:
        return "-"
    texts = interval(low_high).split(" to ")
    return " to ".join(_exact(end, text) for end, text in zip(low_high, texts, strict=True))


def delay(seconds: float | None, low_high: Bounds | None = None) -> str:
    """A delay as text, with as many digits as its interval needs, and the exact value for programs."""
    return "-" if seconds is None else _exact(seconds, duration(seconds, low_high))


def _exact(seconds: float, text: str) -> str:
    return f'<data value="{seconds!r}">{text}</data>'


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are HTML, and the first of a row is its heading."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>\n' for row in rows
    )
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )
