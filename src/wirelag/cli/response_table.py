"""Epochs as answers: by server, flow or client, over time, as a table and as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Protocol

from wirelag.cli.options import clock_text
from wirelag.cli.output import Answer, Line, opened, time_text

if TYPE_CHECKING:
    from wirelag.report import Report
    from wirelag.stats.distribution import Distribution
    from wirelag.stats.sla import Delays, Sla
    from wirelag.synopses.epochs import Epochs

PARTS: Final = ("server", "network", "transfer", "think")  # of an exchange


class Synopsis(Protocol):
    """What answers are made of: epochs of flows, or exchanges."""

    rows: Any
    counts: dict[str, int]

    def report(self) -> Report:
        """All of it together."""

    def of(self, rows: Any) -> Synopsis:
        """Some of it."""

    def groups(self, by: str) -> Iterator[tuple[str, Synopsis]]:
        """By server, flow or client, the largest first."""

    @property
    def times_ns(self) -> Any:
        """When each was."""

    @property
    def delays(self) -> Distribution:
        """Single response times, where they are known."""


def answer_of(found: Synopsis, by: str, interval_ns: int | None, most_groups: int, questions: list[Sla]) -> Answer:
    """All that it says."""
    from wirelag.stats.sla import Mean

    total = _line("all", "all", found)
    answer = Answer("response", total, by=by, groups=_groups(found, by, most_groups))
    answer.intervals = intervals_of(found, interval_ns) if interval_ns else []
    mean = total.report.mean
    asked: Delays = total.delays if total.delays.samples else Mean(None if mean is None else mean * 1e9)
    answer.notes += abstained_lines(total.report) if "abstained" in total.report.details else _set_aside(total.report)
    answer.notes += [question.answer(asked) for question in questions]
    if questions:
        answer.extra["sla"] = [
            {"question": q.text, "holds": q.holds(asked), "value": q.value(asked)} for q in questions
        ]
    return answer


def _line(scope: str, key: str, found: Synopsis, report: Report | None = None) -> Line:
    return Line(scope, key, report or found.report(), found.delays)


def _groups(found: Synopsis, by: str, most: int) -> list[Line]:
    """Slowest first; those without an answer last; what is too many together."""
    import numpy as np

    lines: list[Line] = []
    rest: list[Any] = []
    for key, part in found.groups(by):
        if len(lines) < most - 1:
            lines.append(_line("group", key, part))
        else:
            rest.append(part.rows)
    lines.sort(key=lambda line: -(line.report.mean if line.report.mean is not None else -1.0))
    if rest:
        others = copy(found)
        others.rows = np.concatenate(rest)
        lines.append(_line("group", "other", others))
    return lines


def intervals_of(found: Synopsis, interval_ns: int) -> list[Line]:
    """By the time of each."""
    import numpy as np

    from wirelag.packets.intervals import Interval

    places = found.times_ns // interval_ns
    order = np.argsort(places, kind="stable")
    lines = []
    for rows in np.split(order, np.flatnonzero(np.diff(places[order])) + 1) if len(order) else []:
        place = int(places[rows[0]])
        when = Interval(place * interval_ns, (place + 1) * interval_ns)
        part = found.of(rows)
        lines.append(_line("interval", clock_text(when.start_ns), part, part.report().during(when)))
    return lines


def abstained_lines(report: Report) -> list[str]:
    """Epochs without an answer, and why."""
    from wirelag.synopses.epochs import MEANING

    reasons: dict[str, int] = report.details["abstained"]
    return [f"{n:,} epochs without an answer: {MEANING[reason]} ({reason})" for reason, n in reasons.items()]


def _set_aside(report: Report) -> list[str]:
    """Exchanges that give no single time, and why."""
    said, words = report.details, {
        "pipelined": "overlap with others (their batches are timed as a whole)",
        "joined": "began before the capture",
        "cut": "did not end in it",
        "unseen": "have bytes that did not pass here",
        "overlapping": "are of clients that do not wait for one response before they ask again (--method auto)",
    }  # fmt: skip
    lines = [f"{said[name]:,} of {said['exchanges']:,} exchanges {why}" for name, why in words.items() if said[name]]
    if said["retransmitted"]:
        lines.append(
            f"{said['retransmitted']:,} exchanges have packets that were sent twice: "
            "requests are timed from the first copy"
        )
    return lines


def pairs_table(answer: Answer) -> list[str]:
    """Exchanges that were seen both ways, for a person."""
    header = f"{'p50':>8}  {'p99':>8}  {'mean, 95% interval':^28}  " + "  ".join(f"{name:>8}" for name in PARTS)
    return _table(answer, header, _pairs_cells)


def _pairs_cells(report: Report) -> str:
    if report.mean is None:
        return report.reason or ""
    quantiles = "  ".join(f"{time_text(report.quantiles[q]):>8}" for q in ("0.5", "0.99"))
    parts = "  ".join(f"{time_text(report.details[name]):>8}" for name in PARTS)
    return f"{quantiles}  {_mean_text(report):^28}  {parts}"


def _mean_text(report: Report) -> str:
    bounds = report.ci95.get("mean")
    return time_text(report.mean) + (f", {time_text(bounds[0])} to {time_text(bounds[1])}" if bounds else "")


def as_table(answer: Answer) -> list[str]:
    """What the packets of clients say, for a person."""
    header = f"{'mean, 95% interval':^28}  {'think':>8}  {'network':>8}  {'in flight':>9}  {'answered':>14}  confidence"
    return _table(answer, header, _cells)


def _cells(report: Report) -> str:
    said = report.details
    epochs = f"{said['answered']:,} of {said['epochs']:,}"
    if report.mean is None:
        why = max(said["abstained"], key=said["abstained"].get) if said["abstained"] else "no requests"
        return f"{'cannot say: ' + why:^28}  {'-':>8}  {'-':>8}  {'-':>9}  {epochs:>14}  -"
    return (
        f"{_mean_text(report):^28}  {time_text(said['think']):>8}  {time_text(said['network']):>8}  "
        f"{said['in_flight']:>9.1f}  {epochs:>14}  {said['confidence']:.0%}"
    )


def _table(answer: Answer, header: str, cells: Callable[[Report], str]) -> list[str]:
    """A line for everything, each interval and each group: its name, its responses, and the cells."""
    width = min(48, max(len(line.key) for line in (answer.total, *answer.intervals, *answer.groups)))

    def row(line: Line) -> str:
        key = line.key if len(line.key) <= width else line.key[: width - 1] + "…"
        return f"{key:<{width}}  {line.report.samples:>9,}  {cells(line.report)}"

    lines = [f"{'':<{width}}  {'responses':>9}  {header}", row(answer.total)]
    for title, part in (("over time", answer.intervals), (f"by {answer.by}, slowest first", answer.groups)):
        if part:
            lines += [title, *map(row, part)]
    return lines + answer.notes


def write_epochs(path: str, epochs: Epochs) -> None:
    """A row for each epoch; times since 1970 in ns, latencies in seconds, null where it abstained."""
    import polars as pl

    from wirelag.synopses.epochs import METHODS, REASONS, ends_text

    rows = epochs.rows
    plain: dict[str, Any] = {
        "flow": [ends_text(words, "flow") for words in epochs.ends.tolist()],
        "flow_key": rows["key"],
        "start_ns": rows["start_ns"],
        "end_ns": rows["end_ns"],
        "responses": rows["count"],
        "mean": _means(rows["sum_ns"], rows["count"]),
        "batch": _means(rows["batch_sum_ns"], rows["batch_count"]),
        "think": _means(rows["think_sum_ns"], rows["think_count"]),
        "network": [None if n < 0 else n / 1e9 for n in rows["network_ns"].tolist()],
        "in_flight": rows["in_flight"],
        "requests": rows["requests"],
        "lost": rows["lost"],
        "method": [METHODS[i] for i in rows["method"]],
        "reason": [REASONS[i] or None for i in rows["reason"]],
        "confidence": rows["confidence"] / 100,
    }
    with opened(path, binary=True) as out:
        pl.DataFrame(plain).write_parquet(out)


def _means(sums_ns: Any, counts: Any) -> list[float | None]:
    return [s / n / 1e9 if n else None for s, n in zip(sums_ns.tolist(), counts.tolist(), strict=True)]
