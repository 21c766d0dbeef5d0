"""What `wirelag watch` shows: now, the last minutes, the slowest groups, drops and memory."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wirelag.cli.options import clock_text
from wirelag.cli.output import BLOCKS, Line, axis, octaves, picture, time_text
from wirelag.cli.watch_measures import Groups, Part, Sums, numbers
from wirelag.report import Report
from wirelag.stats.distribution import Distribution
from wirelag.stats.random_groups import Crowds
from wirelag.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from wirelag.capture.live import LiveStatistics, Source
    from wirelag.cli.watch_measures import Responses, RoundTrips

    Measure = RoundTrips | Responses

MINUTE_NS: Final = 60 * 10**9
SPANS: Final = (("last minute", MINUTE_NS), ("last 10 minutes", 10 * MINUTE_NS))
SLOTS: Final = 6
GROUP_SLOTS: Final = 2
SHOWN_GROUPS: Final = 8
SHOWN_INTERVALS: Final = 60


class Recent:
    """Delays of the last so many ns, forgotten piece by piece. Memory: 380 KB a piece, 76 KB for each group in it."""

    def __init__(self, span_ns: int, pieces: int = SLOTS, most_groups: int = 0) -> None:
        self._pieces = pieces
        self._slot_ns = span_ns // pieces
        self._most = most_groups
        self._slots: deque[tuple[int, Distribution, Sums, Crowds, Groups]] = deque()

    def add(self, part: Part) -> None:
        """Take in an interval, and forget what is too old."""
        slot = part.interval.end_ns // self._slot_ns
        if not self._slots or self._slots[-1][0] < slot:
            self._slots.append((slot, Distribution(), Sums(), Crowds(), Groups(self._most)))
        while self._slots[0][0] <= slot - self._pieces:
            self._slots.popleft()
        _, delays, sums, crowds, groups = self._slots[-1]
        delays.merge(part.delays)
        if part.crowds:
            crowds.merge(part.crowds)
        sums.add(part.report.samples, round((part.report.mean or 0.0) * 1e9 * part.report.samples))
        if self._most:
            groups.add(part)

    def line(self, name: str, measure: Measure) -> Line:
        """All of it."""
        delays, total, crowds = Distribution(), Sums(), Crowds()
        for _, one, sums, crowd, _ in self._slots:
            delays.merge(one)
            total.merge(sums)
            crowds.merge(crowd)
        return Line("all", name, _report(measure, delays, total, crowds), delays)

    def slowest(self, measure: Measure) -> list[Line]:
        """Groups by their mean, slowest first."""
        delays: dict[str, Distribution] = {}
        totals: dict[str, Sums] = {}
        for _, _, _, _, groups in self._slots:
            for key, sums in groups.sums.items():
                totals.setdefault(key, Sums()).merge(sums)
            for key, one in groups.delays.items():
                delays.setdefault(key, Distribution()).merge(one)
        keys = sorted(totals, key=lambda key: -(totals[key].mean or -1.0))[:SHOWN_GROUPS]
        found = ((key, delays.get(key, Distribution())) for key in keys)
        return [Line("group", key, _report(measure, one, totals[key]), one) for key, one in found]


def _report(measure: Measure, delays: Distribution, sums: Sums, crowds: Crowds | None = None) -> Report:
    return Report(measure.estimator, measure.quantity, **numbers(delays, sums, crowds))


class View:
    """Keeps what is shown, and draws it."""

    def __init__(self, source: Source, measure: Measure, by: str | None) -> None:
        self._source, self._measure, self._by = source, measure, by
        self._began_ns: int | None = None
        self._spans = [(name, Recent(span_ns)) for name, span_ns in SPANS]
        self._groups = Recent(MINUTE_NS, GROUP_SLOTS, measure.groups.most if by else 0)
        self._past: deque[Report] = deque(maxlen=SHOWN_INTERVALS)
        self._part: Part | None = None

    def add(self, part: Part) -> None:
        """Take in an interval."""
        self._part = part
        self._began_ns = self._began_ns or part.interval.start_ns
        self._past.append(part.report)
        for _, recent in self._spans:
            recent.add(part)
        if self._by:
            self._groups.add(part)

    def draw(self) -> RenderableType:
        """All of it, as something that rich prints."""
        from rich.text import Text

        lines = [self._head()]
        if self._part is None:
            return Text("\n".join([*lines, "waiting for the first interval to end"]))
        now = Line("interval", "now", self._part.report, self._part.delays)
        rows = [now, *(recent.line(name, self._measure) for name, recent in self._spans)]
        slowest = self._groups.slowest(self._measure) if self._by else []
        lines += table(rows, slowest, f"by {self._by}, slowest of the last minute first")
        lines += self._over_time()
        text = Text("\n".join([*lines, "Ctrl-C ends it with a final report"]), no_wrap=True, overflow="ellipsis")
        text.highlight_regex(r"[1-9][0-9,]* dropped[^;]*", "bold red")
        text.highlight_regex(r"^(now|last .*?minutes?)", "bold")
        return text

    def _head(self) -> str:
        since = "" if self._began_ns is None else format_duration(self._source.now_ns() - self._began_ns)
        return (
            f"{self._source.name}: {self._measure.quantity.replace('_', ' ')}; {since or 'just begun'}; {self.status()}"
        )

    def status(self) -> str:
        """What was seen and what was not, and the memory of this program."""
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
                scale = f"{time_text(min(known))} to {time_text(max(known))}"
                lines.append(f"{name:<5}{_heights(values)}  {scale} in the last {len(values)} intervals")
        return lines


def _heights(values: list[float | None]) -> str:
    """A block for each value, as high as it is; a gap where nothing is known."""
    known = [value for value in values if value is not None]
    low, high = min(known), max(known)
    step = (high - low) / 7 or 1.0
    return "".join(" " if value is None else BLOCKS[int((value - low) / step)] for value in values)


def coverage(statistics: LiveStatistics) -> str:
    """What was seen and what was not."""
    parts = [f"{statistics.packets:,} packets", f"{statistics.dropped:,} dropped by the capture"]
    skipped = sum(statistics.skipped.values())
    if skipped:
        parts.append(f"{skipped:,} skipped ({', '.join(f'{n:,} {why}' for why, n in statistics.skipped.items())})")
    return "; ".join(parts)


def table(rows: list[Line], groups: list[Line], title: str) -> list[str]:
    """Lines for a person, with a small picture of each distribution."""
    width = min(44, max(len(line.key) for line in (*rows, *groups)))
    delays = Distribution()
    for line in (*rows, *groups):
        delays.merge(line.delays)
    span = octaves(delays)
    head = f"{'':<{width}}  {'samples':>9}  {'p50':>8}  {'p90':>8}  {'p99':>8}  {'mean, 95% interval':<28}"
    lines = [f"{head}  {axis(span)}" if delays.samples else head]
    lines += [_row(line, width, span) for line in rows]
    return lines + ([title, *(_row(line, width, span) for line in groups)] if groups else [])


def _row(line: Line, width: int, span: tuple[int, int]) -> str:
    report = line.report
    key = line.key if len(line.key) <= width else line.key[: width - 1] + "…"
    if not report.samples:
        return f"{key:<{width}}  {0:>9,}  {report.reason or 'no samples'}"
    values = "  ".join(f"{time_text(report.quantiles.get(q)):>8}" for q in ("0.5", "0.9", "0.99"))
    bounds = report.ci95.get("mean")
    mean = time_text(report.mean) + (f", {time_text(bounds[0])} to {time_text(bounds[1])}" if bounds else "")
    shape = picture(line, span) if line.delays.samples else ""
    return f"{key:<{width}}  {report.samples:>9,}  {values}  {mean:<28}  {shape}".rstrip()


def plain_line(part: Part, dropped: int) -> str:
    """One interval where there is no terminal."""
    report = part.report
    when = clock_text(part.interval.start_ns)
    if not report.samples:
        return f"{when}  {0:>9,}  {report.reason or 'no samples'}; {dropped:,} dropped"
    values = "  ".join(f"{q} {time_text(report.quantiles.get(key))}" for q, key in (("p50", "0.5"), ("p99", "0.99")))
    shown = values if report.quantiles else f"mean {time_text(report.mean)}"
    return f"{when}  {report.samples:>9,}  {shown}; {dropped:,} dropped"


def memory_bytes() -> int:
    """What this program has in memory, the ring too."""
    resident = Path("/proc/self/statm").read_bytes().split()[1]
    return int(resident) * os.sysconf("SC_PAGE_SIZE")
