"""What `wirelag watch` shows: now, the last minutes, the slowest groups, drops and memory."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wirelag.render.output import legible
from wirelag.render.rows import method_cells, method_of
from wirelag.render.tables import BLOCKS, Pictures, duration, figures, fit, layout, mean_cells
from wirelag.stats.distribution import Distribution
from wirelag.stats.ranking import FEWEST
from wirelag.units import format_duration, format_size, format_time

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from wirelag.capture.live import LiveStatistics, Source
    from wirelag.measure.live import LiveInterval
    from wirelag.measure.recent import Recent
    from wirelag.measure.result import Entry
    from wirelag.report import Report

SHOWN_INTERVALS: Final = 60


class View:
    """Holds the recent intervals, and draws them."""

    def __init__(self, source: Source, quantity: str, recent: Recent, by: str | None) -> None:
        self._source, self._quantity, self._recent, self._by = source, quantity, recent, by
        self._began_ns: int | None = None
        self._past: deque[Report] = deque(maxlen=SHOWN_INTERVALS)
        self._part: LiveInterval | None = None

    def add(self, part: LiveInterval) -> None:
        """Add an interval."""
        self._part = part
        self._began_ns = self._began_ns or part.interval.start_ns
        self._past.append(part.report)
        self._recent.add(part)

    def draw(self, console: Console) -> RenderableType:
        """The whole view, for rich, as wide as this console, and in characters that it has."""
        from rich.text import Text

        lines = [self._head()]
        if self._part is None:
            return Text("\n".join([*lines, "waiting for the first interval to end"]))
        leg = self._recent.leg
        rows = table(self._recent.entries(), self._recent.slowest(), self._by, leg, " in the last minute")
        lines += fit(rows, console.width, told=False)
        lines += self._over_time()
        shown = legible("\n".join([*lines, "Ctrl-C stops and prints a final report"]), console.encoding)
        text = Text(shown, no_wrap=True, overflow="ellipsis")
        text.highlight_regex(r"[1-9][0-9,]* dropped[^;]*", "bold red")
        text.highlight_regex(r"^(now|last .*?minutes?)", "bold")
        return text

    def _head(self) -> str:
        since = "" if self._began_ns is None else format_duration(self._source.now_ns() - self._began_ns)
        return f"{self._source.name}: {self._quantity.replace('_', ' ')}; {since or 'just begun'}; {self.status()}"

    def status(self) -> str:
        """Packets seen and dropped, and the memory of this process."""
        return f"{coverage(self._source.statistics)}; {format_size(memory_bytes())} of memory"

    def _over_time(self) -> list[str]:
        """The median, or the mean, and the 99th percentile of the last intervals."""
        quantiles = any(report.quantiles for report in self._past)
        wanted = (("p50", "0.5"), ("p99", "0.99")) if quantiles else (("mean", None),)
        lines = []
        for name, quantile in wanted:
            values = [report.quantiles.get(quantile) if quantile else report.mean for report in self._past]
            known = [value for value in values if value is not None]
            if known:
                scale = f"{duration(min(known))} to {duration(max(known))}"
                lines.append(f"{name:<5}{_heights(values)}  {scale} in the last {len(values)} intervals")
        return lines


def _heights(values: list[float | None]) -> str:
    """A block for each value, as high as the value; a gap where it is unknown."""
    known = [value for value in values if value is not None]
    low, high = min(known), max(known)
    step = (high - low) / 7 or 1.0
    return "".join(" " if value is None else BLOCKS[int((value - low) / step)] for value in values)


def coverage(statistics: LiveStatistics) -> str:
    """Packets seen, dropped and skipped."""
    parts = [f"{statistics.packets:,} packets", f"{statistics.dropped:,} dropped by the capture"]
    skipped = sum(statistics.skipped.values())
    if skipped:
        parts.append(f"{skipped:,} skipped ({', '.join(f'{n:,} {why}' for why, n in statistics.skipped.items())})")
    return "; ".join(parts)


def table(rows: Sequence[Entry], groups: Sequence[Entry], by: str | None, leg: str, when: str = "") -> list[str]:
    """Lines of a table, with a small picture of each distribution; figures of groups may be of one leg."""
    delays = Distribution()
    for entry in (*rows, *groups):
        delays.merge(entry.delays)
    pictures = Pictures(delays)
    groups = [_named(one, leg) for entry in groups for one in entry.by_method()]
    methods, method_of_row = _methods([*rows, *groups]) if _of_responses(rows) else ([], lambda _: [])
    named, mean = mean_cells([*rows, *groups])
    head = [f"{'samples':>9}", *methods, f"{'p50':>8}", f"{'p90':>8}", f"{'p99':>8}", named]
    head += [pictures.axis] if delays.samples else []
    figures_at = 1 + len(methods)

    def cells(entry: Entry) -> list[str]:
        return _cells(entry, method_of_row(entry.report), mean, pictures)

    few = [entry.report.samples < FEWEST for entry in groups if entry.report.samples]
    order = f"largest mean{f' to the {leg}' if leg else ''}{when} first" if few else "none has a mean"
    title = f"by {by}, {order}{', those with few samples last' if any(few) and not all(few) else ''}"
    drop = (*([len(head) - 1] if delays.samples else []), figures_at + 1, figures_at + 2, figures_at)
    return layout([("", rows), (title, groups)], head, cells, drop=drop)


def _named(group: Entry, leg: str) -> Entry:
    """A group with figures of another leg than the others says so."""
    other = group.report.details.get("leg", leg)
    return group if other == leg else replace(group, key=f"{group.key}, to the {other}")


def _cells(entry: Entry, method: list[str], mean: Callable[[Report], str], pictures: Pictures) -> list[str]:
    report = entry.report
    if not report.samples:
        return [f"{0:>9,}", *method, report.reason or "no samples"]
    picture = [pictures.of(entry) if entry.delays.samples else ""] * bool(pictures.axis)
    return [f"{report.samples:>9,}", *method, *figures(report, ("p50", "p90", "p99")), mean(report), *picture]


def _methods(entries: Sequence[Entry]) -> tuple[list[str], Callable[[Report], list[str]]]:
    """The column that names methods: its head, and the cell of a report."""
    title, method = method_cells(entries)
    return [title.removesuffix("  ")], lambda report: [method(report).removesuffix("  ")]


def _of_responses(rows: Sequence[Entry]) -> bool:
    return any(entry.report.quantity == "response" for entry in rows)


def plain_line(part: LiveInterval, dropped: int) -> str:
    """One interval as a line, without a terminal."""
    report = part.report
    when = f"{format_time(part.interval.start_ns)} UTC"
    legs: dict[str, Any] = report.details.get("legs", {})
    if legs:
        said = "; ".join(
            f"to the {leg} {known['samples']:,}: p50 {duration(known['quantiles']['0.5'])}, "
            f"p99 {duration(known['quantiles']['0.99'])}"
            for leg, known in legs.items()
        )
        return f"{when}  {said}; {dropped:,} dropped"
    said = "; ".join(_figures(one) for one in part.by_method())
    return f"{when}  {said}; {dropped:,} dropped"


def _figures(report: Report) -> str:
    """How many samples, by which method, and their median or mean."""
    method = f"{method_of(report)}  " if report.quantity == "response" else ""
    if not report.samples:
        return f"{0:>9,}  {method}{report.reason or 'no samples'}"
    values = "  ".join(f"{q} {duration(report.quantiles.get(key))}" for q, key in (("p50", "0.5"), ("p99", "0.99")))
    shown = values if report.quantiles else f"mean {duration(report.mean)}"
    return f"{report.samples:>9,}  {method}{shown}"


def memory_bytes() -> int:
    """The memory of this process, including the ring."""
    resident = Path("/proc/self/statm").read_bytes().split()[1]
    return int(resident) * os.sysconf("SC_PAGE_SIZE")


def json_line(part: LiveInterval, dropped: int, source: Source) -> str:
    """An interval as a line of JSON."""
    plain = part.report.to_json("watch") | {"dropped": dropped, "capture": captured(source)}
    plain |= {} if part.estimated is None else {"estimated": part.estimated.to_json()}
    plain["groups"] = [{"key": entry.key} | entry.to_dict() for entry in part.groups()]
    return json.dumps(plain)


def captured(source: Source) -> dict[str, Any]:
    """What the capture has counted."""
    known = source.statistics
    return {"received": known.received, "dropped": known.dropped, "freezes": known.freezes}
