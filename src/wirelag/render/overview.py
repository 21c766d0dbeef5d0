"""What `wirelag report` prints and writes: a table, rows, a page that links to the pages of captures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from wirelag.units import format_duration, many

if TYPE_CHECKING:
    from wirelag.measure.overview import OverviewResult, Seen, Write
    from wirelag.measure.result import DelayResult
    from wirelag.report import Report

INDEX: Final = "index.html"
MOST_BARS: Final = 30  # captures in the chart
MOST_BROKEN: Final = 10  # agreements that the page names
SHOWN: Final = {"p50": "0.5", "p99": "0.99"}
QUANTITIES: Final = {"server": "to the server", "client": "to the client", "response": "response"}
SORTED: Final = "largest p99 to the server first"


class _Bar(NamedTuple):
    """A line of the chart."""

    key: str
    report: Report


def row_of(one: Seen) -> dict[str, Any]:
    """A capture as a row, with the 95% intervals of its figures."""
    row: dict[str, Any] = {"file": one.file, "packets": one.packets}
    for quantity in QUANTITIES:
        report = one.reports.get(quantity)
        row[f"{quantity}_samples"] = report.samples if report else 0
        for name, q in SHOWN.items():
            low, high = (report.ci95.get(q) if report else None) or (None, None)
            figure = {"": _figure(report, q), "_low": low, "_high": high}
            row |= {f"{quantity}_{name}{end}": value for end, value in figure.items()}
    return row | {"slowest": one.slowest, "broken": "; ".join(one.broken), "reason": one.error or one.reason}


def table(result: OverviewResult) -> list[str]:
    """A line for each capture, worst first."""
    shared = _shared([one.file for one in result.captures])
    names = [one.file.removeprefix(shared) for one in result.captures]
    width = max(len("capture"), *map(len, names))
    head = "  ".join(f"{what:>28}" for what in QUANTITIES.values())
    below = "  ".join([f"{'samples':>9} {'p50':>9} {'p99':>8}"] * len(QUANTITIES))
    lines = [f"{'':<{width}}  {'':>11}  {head}", f"{'capture':<{width}}  {'packets':>11}  {below}  slowest server"]
    for name, one in zip(names, result.captures, strict=True):
        start = f"{name:<{width}}  {one.packets:>11,}"
        if one.error or not one.reports:
            lines.append(f"{name:<{width}}  {one.error or f'nothing measured: {one.reason}'}")
            continue
        cells = "  ".join(_cells(one.reports.get(quantity)) for quantity in QUANTITIES)
        lines.append(f"{start}  {cells}  {one.slowest}" + "".join(f"  {text.split(';')[0]}" for text in one.broken))
    return [*(line.rstrip() for line in lines), summary(result), *result.notes]


def summary(result: OverviewResult) -> str:
    """How many captures there are, and of what kind."""
    captures = result.captures
    measured = sum(bool(one.reports) for one in captures)
    parts = [f"{many(len(captures), 'capture')}, {SORTED}", f"{measured:,} measured"]
    parts += [f"{len(result.errors):,} cannot be read"] if result.errors else []
    broken = sum(bool(one.broken) for one in captures)
    parts += [f"{broken:,} {'breaks' if broken == 1 else 'break'} an agreement"] if broken else []
    return "; ".join(parts)


def page(result: OverviewResult) -> str:
    """The page: the worst captures as a chart, all of them as a table with links, and what cannot be read."""
    from wirelag.render.html.charts import bars
    from wirelag.render.html.frame import Frame, chart, coverage, document, listed

    shared = _shared([one.file for one in result.captures])
    timed = [one for one in result.captures if (report := one.reports.get("server")) and report.samples]
    frame = Frame(
        title="Captures, worst first",
        subject=result.subject,
        command_line=result.command_line,
        warnings=result.warnings,
        counts={"all captures": sum(one.packets for one in result.captures)},
    )
    shown = timed[:MOST_BARS]
    figures = {}
    broken = [
        f"{one.file.removeprefix(shared)}: {text.split(';')[0]}" for one in result.captures for text in one.broken
    ]
    told = listed(
        [*broken[:MOST_BROKEN], *([f"and {len(broken) - MOST_BROKEN:,} more"] if broken[MOST_BROKEN:] else [])]
    )
    sections = [f'<section><p class="lead">{escape(summary(result)).capitalize()}.</p>{told}</section>']
    if shown:
        named = [_Bar(one.file.removeprefix(shared), one.reports["server"]) for one in shown]
        of = f"The {len(shown)} worst of {len(timed):,} captures" if len(shown) < len(timed) else "All captures"
        figures["captures"] = bars(named)
        text = f"{of}, {SORTED}: the marks are p50, p90 and p99."
        sections.append(chart("captures", "Round-trip delay to the server", text, 110 + 26 * len(shown)))
    sections += [_captures(result, shared), coverage(frame)]
    return document(frame, "\n".join(sections), figures)


def _captures(result: OverviewResult, shared: str) -> str:
    from wirelag.render.html.frame import bounds, delay, table

    heads = ["capture", *(f"{quantity} {name}" for quantity in QUANTITIES for name in SHOWN)]
    heads += ["slowest server, verdicts", "packets", *(f"{quantity} samples" for quantity in QUANTITIES)]
    rows = []
    for one in result.captures:
        name = escape(one.file.removeprefix(shared))
        links = [f'<a href="{quote(page)}">{name if i == 0 else escape(command)}</a>'
                 for i, (command, page) in enumerate(one.pages.items())]  # fmt: skip
        cells, counts = [" · ".join(links) or name], [f"{one.packets:,}"]
        for quantity in QUANTITIES:
            report = one.reports.get(quantity)
            if report is None or not report.samples:
                cells += ["-"] * len(SHOWN)
                counts.append("-")
                continue
            for q in SHOWN.values():
                between = f'<small class="whole">{bounds(report, q, "")}</small>'
                cells.append(delay(report.quantiles[q], report.ci95.get(q)) + between)
            counts.append(f"{report.samples:,}")
        asked = ", ".join(escape(text.partition(":")[0]) for text in one.broken)
        broken = f'<span class="bad">breaks {asked}</span>' if asked else ""
        said = one.error or (f"nothing measured: {one.reason}" if not one.reports else "")
        more = f'<small class="text">{broken}{escape(said)}</small>' if broken or said else ""
        rows.append([*cells, escape(one.slowest) + more, *counts])
    text = "A name leads to the page of its round trips: to the server, and to the client. Below a figure is its 95% "
    text += "interval, if there is one. A heading sorts."
    shown = table(f"Captures, {SORTED}", heads, rows)
    return f"<section><h2>Every capture</h2><p>{text}</p>{shown}</section>"


def write_pages(folder: str, inside: Sequence[str]) -> Write:
    """What writes the page of a capture into a folder: named after its place inside others, and the command."""
    from wirelag.render.output import write_html

    taken: set[str] = set()

    def write(path: str, result: DelayResult) -> str:
        place = min((os.path.relpath(path, one) for one in inside if os.path.isdir(one)), key=len, default=path)
        plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in place.lstrip("./"))
        name = stem = f"{plain}.{result.command}"
        number = 1
        while name in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name)
        write_html(os.path.join(folder, f"{name}.html"), result.page())
        return f"{name}.html"

    return write


def _shared(files: Sequence[str]) -> str:
    """The folders that all files are in."""
    folder = os.path.commonpath([os.path.dirname(file) for file in files]) if files else ""
    return folder + "/" if folder else ""


def _figure(report: Report | None, q: str) -> float | None:
    return report.quantiles.get(q) if report is not None and report.samples else None


def _cells(report: Report | None) -> str:
    p50, p99 = (_figure(report, q) for q in SHOWN.values())
    if report is None or p50 is None or p99 is None:
        return f"{'-':>28}"
    return f"{report.samples:>9,} {format_duration(p50 * 1e9):>9} {format_duration(p99 * 1e9):>8}"
