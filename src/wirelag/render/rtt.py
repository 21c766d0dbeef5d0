"""What `wirelag rtt` prints: its table and its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from wirelag.render.tables import (
    Pictures,
    figures,
    layout,
    mean_cells,
    more_groups,
    order_text,
    shown_groups,
    slowest_lines,
    sorted_by,
)
from wirelag.stats.distribution import Distribution

if TYPE_CHECKING:
    from wirelag.measure.result import Entry
    from wirelag.measure.rtt import RttResult
    from wirelag.render.html.charts import Intervals, Own, Parts
    from wirelag.report import Report
    from wirelag.synopses.group_times import GroupTimes

SHOWN: Final = ("p50", "p90", "p99")  # figures that every table has


def table(result: RttResult) -> list[str]:
    """Each entry with both legs below each other, and a small picture of each distribution."""
    both = [leg.delays for leg in result.total.legs.values()]
    whole = Distribution()
    for delays in (*both, result.total.delays):
        whole.merge(delays)
    pictures = Pictures(whole)
    names = [*SHOWN, *sorted_by(result, (*SHOWN, "mean"))]
    head = [f"{'':<13}", f"{'samples':>9}", *(f"{name:>8}" for name in names)]
    where = {"both": " of both legs", "mixed": " of both legs mixed"}.get(result.ranked, f" {_leg_text(result.ranked)}")
    title = f"by {result.by}, {order_text(result, where)}"
    parts = [("", [result.total]), ("over time (UTC)", result.intervals), (title, shown_groups(result))]
    lined = [(title, [line for entry in entries for line in _lines(entry)]) for title, entries in parts]
    title, mean = mean_cells(line.entry for _, lines in lined for line in lines)
    head += [title, pictures.axis]
    places = sorted((3, 4, 2, 5)[: len(names)], key=lambda at: names[at - 2] == result.sort)  # that column goes last
    drop = (len(head) - 1, *places)

    def cells(line: _Line) -> list[str]:
        return [f"{line.leg:<13}", *_delay_cells(line.entry, pictures, names, mean)]

    lines = layout(lined, head, cells, drop=drop)
    return lines + more_groups(result) + slowest_lines(result) + result.notes


class _Line(NamedTuple):
    """A line of the table: an entry, or one leg of it."""

    key: str
    leg: str
    entry: Entry


def _leg_text(leg: str) -> str:
    return {"server": "to the server", "client": "to the client", "both": "both legs"}.get(leg, leg)


def _lines(entry: Entry) -> Iterator[_Line]:
    """Both legs, and what was asked for if it is neither; the key stands on the first of them."""
    for i, (leg, one) in enumerate(entry.by_leg().items()):
        yield _Line(entry.key if i == 0 else "", _leg_text(leg), one)


def _delay_cells(entry: Entry, pictures: Pictures, names: Sequence[str], mean: Callable[[Report], str]) -> list[str]:
    """The figures of a distribution."""
    report = entry.report
    if not report.samples:
        return [f"{0:>9,}", report.reason or "no samples"]
    return [f"{report.samples:>9,}", *figures(report, names), mean(report), pictures.of(entry)]


def parts_over_time(result: RttResult, leg: str) -> tuple[Parts, Intervals]:
    """The parts of the time, and the 95% intervals of each: those of the same interval, if it was asked for."""
    if not result.timeline or leg not in result.total.legs:
        return (), ()
    known = {one.report.interval: one.legs[leg].report.ci95 for one in result.intervals if leg in one.legs}
    parts = result.timeline.parts(leg)
    return parts, [known.get(when, {}) for when, _ in parts]


def page(result: RttResult) -> str:
    """The page with charts: both legs, and no mixture unless it was asked for."""
    from wirelag.render.html.page import Page, View, render

    views = [View(_leg_text(leg), entry, *parts_over_time(result, leg)) for leg, entry in result.total.by_leg().items()]
    return render(
        Page(
            title="Round-trip delay",
            subject=result.subject,
            command_line=result.command_line,
            views=views,
            groups=result.groups,
            order=order_text(result),
            sort=result.sort,
            ranked=result.ranked if result.ranked in ("server", "client") else "",
            by=result.by,
            notes=[note for note in result.notes if note != result.coverage],
            warnings=result.warnings,
            counts=result.counts,
            slowest=result.slowest,
            reason=result.report.reason or "",
            own=None if result.group_times is None else _own(result.group_times),
        )
    )


def _own(times: GroupTimes) -> Callable[[Entry], Own | None]:
    """The delays of a group over time."""
    from wirelag.render.html.charts import QUANTILES, Own

    def own(entry: Entry) -> Own | None:
        if entry.tag is None or (found := times.of(entry.tag, [float(q) for q in QUANTILES])) is None:
            return None
        return Own(found.when, dict(zip(QUANTILES, found.quantiles_ns, strict=True)), found.whole)

    return own
