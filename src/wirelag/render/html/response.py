"""The page about response latency: estimates by group and over time, and where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from wirelag.render.html.charts import Figure, clock, duration, spoken
from wirelag.render.html.frame import Frame, bounds, chart, coverage, delay, document, folded, listed, mean, table
from wirelag.render.html.oneway_charts import SpanEntry, means
from wirelag.render.html.page import MOST_BARS, MOST_GROUPS, Page, render
from wirelag.render.html.response_charts import height, over_time, split
from wirelag.render.rows import method_of, timed
from wirelag.report import Report
from wirelag.synopses.epochs import MEANING, Epochs

if TYPE_CHECKING:
    from wirelag.measure.result import Entry

WAY_OUT: Final = {
    "too_few": "Flows are short or slow: --fewest takes fewer responses, --epoch waits longer.",
    "spontaneous": "The client does not wait for responses: capture where these pass, too.",
    "joined": "Capture from before the connection begins; new connections and later epochs may have estimates.",
    "think": "Turn TCP timestamps on, at both ends.",
    "reordered": "Capture before the point that reorders, such as a link bundle.",
    "coalesced": "Capture before packets are coalesced, or where responses pass, too.",
    "no_gap": "Let --method auto choose; it needs no gap.",
    "crowd": "Capture before the tunnel, or look inside with --tunnels.",
    "initial": "Capture where responses pass, too, or use --method auto where there are TCP headers.",
    "not_tcp": "Use --method auto or blind.",
    "multicast": "Nobody has to respond. Measure one-way delay between two points (wirelag oneway).",
    "tunnel": "Capture before the tunnel, or look inside with --tunnels.",
    "paced": "There are no responses to time. Measure one-way delay between two points (wirelag oneway).",
    "acks": "Capture where responses pass, too.",
    "doubtful": "Capture where responses pass, too.",
    "too_fast": "Inspect these flows: requests may be missing, or the packets may not be requests.",
}

Entries = Sequence[tuple[str, Report]]


@dataclass(frozen=True, kw_only=True)
class ResponsePage(Frame):
    """The content of a page about response latency. Reports are those of `Epochs.report`."""

    total: Report
    epochs: Epochs
    spans: Sequence[SpanEntry]  # in order of time, without gaps; empty if there are no epochs
    groups: Entries  # in order
    by: str
    order: str = "largest mean first"  # what they are in order of


def render_response(page: ResponsePage) -> str:
    """The page."""
    sections = [_summary(page)]
    figures: dict[str, Figure] = {}

    def add(name: str, figure: Figure, title: str, text: str, tall: int, below: str = "") -> None:
        figures[name] = figure
        sections.append(chart(name, title, text, tall, below))

    if page.spans:
        length = duration(page.spans[0].end_s - page.spans[0].start_s)
        text = f"{_POINTS_TEXT if page.total.samples else ''}{_STRIP_TEXT} Each part of the time is {length} long."
        add("time", over_time(page.epochs, page.spans), "Over time", text, height(page.epochs), _time_table(page))
    few = page.groups[:MOST_BARS]
    if any(report.samples for _, report in few):
        of = f"The first {len(few)} of {len(page.groups):,}" if len(few) < len(page.groups) else "All"
        text = f"{of}, {page.order}; lines are 95% intervals."
        figure = means(few, "mean latency")
        add("groups", figure, f"Means by {page.by}", text, 110 + 26 * len(few), _groups_table(page))
    elif few:
        sections.append(f"<section><h2>By {escape(page.by)}</h2>{_groups_table(page)}</section>")
    sections.append(_abstained(page.total))
    sections.append(coverage(page))
    return document(page, "\n".join(sections), figures)


# ---- text ----

_POINTS_TEXT: Final = (
    "Each point is an epoch of one flow, half a second or more; lines are means, with their 95% intervals. The "
    "axes of latency and think time are logarithmic; values below 1 us are drawn at 1 us. "
)
_STRIP_TEXT: Final = "The strip shows the share of epochs with an estimate, and without one by reason: darker is more."


def _summary(page: ResponsePage) -> str:
    report, said = page.total, page.total.details
    if report.mean is None:
        lead = f"No latency could be estimated: {escape(report.reason or 'no epoch has an estimate')}."
        return f'<section><p class="lead">{lead}</p>{listed(page.notes)}</section>'
    took = spoken(report.mean, report.ci95.get("mean"), is_open=report.is_open())
    lead = (
        f"A response took <strong>{took}</strong> on average, from the request "
        f"to its last byte, over {report.samples:,} responses with {said['in_flight']:.1f} requests in flight at once, "
        f"in {said['answered'] / said['epochs']:.0%} of epochs"
    )
    if said["think"] is not None:
        lead += f"; clients then thought for <strong>{duration(said['think'])}</strong>"
    tiles = (
        ("mean latency", mean(report), bounds(report, "mean", "too few flows for an interval")),
        ("think time", delay(said["think"]), f"{said['think_samples']:,} times"),
        ("network", delay(said["network"]), _network(report)),
        ("answered", f"{said['answered'] / said['epochs']:.1%}",
         f"{said['answered']:,} of {said['epochs']:,} epochs, confidence {said['confidence']:.0%}"),
    )  # fmt: skip
    shown = "".join(f"<div><dt>{name}</dt><dd>{value}<small>{small}</small></dd></div>" for name, value, small in tiles)
    return (
        f'<section><p class="lead">{lead}. <span>95% interval in brackets.</span></p>'
        f'<dl class="tiles four">{shown}</dl>{listed(page.notes)}</section>'
    )


def _network(report: Report) -> str:
    """The network's share of the latency."""
    network = report.details["network"]
    if network is None or not report.mean:
        return "no handshake was seen"
    share = min(1.0, network / report.mean)
    return f"from SYN to ACK, {f'{share:.0%}' if share >= 0.01 else 'below 1%'} of the latency"


# ---- tables ----

_HEADS: Final = (
    *("method", "responses", "mean", "95% interval", "think time", "network", "in flight", "answered"),
    "confidence",
)


def _cells(report: Report) -> list[str]:
    said = report.details
    return [
        escape(method_of(report)),
        f"{report.samples:,}",
        mean(report),
        bounds(report, "mean", "-"),
        delay(said["think"]),
        delay(said["network"]),
        _said(said["in_flight"], ".1f"),
        f"{said['answered']:,} of {said['epochs']:,}{_why(report)}",
        _said(said["confidence"], ".0%"),
    ]


def _said(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _why(report: Report) -> str:
    """The most frequent reason for no estimate."""
    reasons = report.details["abstained"]
    return "" if report.samples or not reasons else f"<small>{escape(max(reasons, key=reasons.get))}</small>"


def _groups_table(page: ResponsePage) -> str:
    rows = [[escape(name), *_cells(report)] for name, report in page.groups[:MOST_GROUPS]]
    shown = table(f"Latency by {page.by}, {page.order}", (page.by, *_HEADS), rows[:MOST_BARS])
    if len(rows) > MOST_BARS:
        rest = rows[MOST_BARS:]
        shown += folded(f"The next {len(rest)}", table("The next", (page.by, *_HEADS), rest))
    more = len(page.groups) - len(rows)
    return shown + (f"<p>and {more:,} more: --format csv lists all.</p>" if more else "")


def _time_table(page: ResponsePage) -> str:
    rows = []
    for span in page.spans:
        start_ns, length_ns = round(span.start_s * 1e9), round((span.end_s - span.start_s) * 1e9)
        rows.append([clock(start_ns, length_ns), *_cells(span.report)])
    return folded("Figures over time", table("Latency over time", ("from (UTC)", *_HEADS), rows))


_WORDS: Final = (MEANING, WAY_OUT)


def _text(words: str) -> str:
    return f'<small class="text">{escape(words)}</small>'


def _abstained(total: Report) -> str:
    """Reasons, what they mean and what to do."""
    said = total.details
    if not said["abstained"]:
        text = "Every epoch has an estimate." if said["epochs"] else "No epochs: no request was seen."
        return f"<section><h2>Epochs without an estimate</h2><p>{text}</p></section>"
    rows = [
        [escape(reason), f"{n:,}", f"{n / said['epochs']:.1%}", *(_text(words.get(reason, "")) for words in _WORDS)]
        for reason, n in sorted(said["abstained"].items(), key=lambda pair: -pair[1])
    ]
    shown = table("Reasons", ("reason", "epochs", "of all", "what it means", "what helps"), rows)
    text = "The latency of these epochs is unknown; they are neither slow nor fast."
    return f"<section><h2>Epochs without an estimate</h2><p>{text}</p>{shown}</section>"


# ---- both directions ----

_CUT_TEXT: Final = " Bars that are much longer than the others are cut; their means stand at the right end."
_SPLIT_TEXT: Final = (
    "Means. Network is the round trip to the server, the shortest so far on each connection; server is the rest of the "
    "time to the first byte; transfer is the time from the first byte to the last."
)
_SPLIT_HEADS: Final = ("method", "responses", "mean", "network", "server", "transfer", "think time", "batch")


_ESTIMATED_TEXT: Final = (
    "Of these servers or flows only packets of clients were seen, or their clients do not wait for responses. Their "
    "means are estimated; the figures above are without them."
)


def render_pairs(page: Page, estimated: Entries = ()) -> str:
    """The page where requests and responses were both seen: every response time and its parts.

    Reports are those of `Exchanges.report`. `estimated` are reports of `Epochs.report`: the total, then the groups.
    """
    more: dict[str, tuple[Figure, str]] = {}
    known = [entry for entry in (page.views[0].entry, *page.groups[:MOST_BARS]) if entry.report.samples]
    if known:
        figure = split(known)
        cut = _CUT_TEXT if any(one["draw"] == "words" for one in figure["panels"][0]["series"]) else ""
        below = _split_table(page.by, known)
        more["split"] = figure, chart("split", "Where the time goes", _SPLIT_TEXT + cut, 130 + 26 * len(known), below)
    if estimated:
        more["estimated"] = _estimated(page.by, estimated)
    return render(page, more)


def _estimated(by: str, entries: Entries) -> tuple[Figure, str]:
    title, few = "Estimated from packets of clients", [one for one in entries[: MOST_BARS + 1] if one[1].samples]
    rows = [[escape(name), *_cells(report)] for name, report in entries[:MOST_GROUPS]]
    below = table(f"Estimates by {by}", (by, *_HEADS), rows)
    if few:
        return means(few, "mean latency"), chart("estimated", title, _ESTIMATED_TEXT, 110 + 26 * len(few), below)
    return {}, f"<section><h2>{title}</h2><p>{_ESTIMATED_TEXT}</p>{below}</section>"


def _split_table(by: str, entries: Sequence[Entry]) -> str:
    rows = [
        [escape(entry.key), escape(method_of(entry.report)), timed(entry.report), delay(entry.report.mean),
         *(delay(entry.report.details[name]) for name in ("network", "server", "transfer", "think", "batch"))]
        for entry in entries
    ]  # fmt: skip
    return table("Parts of response times", (by, *_SPLIT_HEADS), rows)
