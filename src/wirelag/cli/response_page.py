"""The page of `wirelag response --html`: what was measured, in the shape the page wants."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from wirelag.cli.output import write_html
from wirelag.cli.response_table import abstained_lines, intervals_of

if TYPE_CHECKING:
    from wirelag.capture.files import Capture
    from wirelag.cli.output import Answer, Line
    from wirelag.cli.response_table import Synopsis
    from wirelag.packets.intervals import Interval
    from wirelag.synopses.epochs import Epochs

PARTS: Final = 60  # of the time, if nobody asks for intervals
SHORTEST_NS: Final = {"pirate": 500_000_000, "pairs": 1_000_000}


def write_page(path: str, answer: Answer, found: Synopsis, capture: Capture) -> None:
    """Write it, or say why that is not possible."""
    from wirelag.synopses.epochs import Epochs

    clients = answer.extra["clients"]
    counts = {"packets": capture.statistics.packets, "from clients to servers": clients["packets"]}
    counts |= {"not from clients": clients["not_used"]} if clients["not_used"] else {}
    counts |= {f"skipped: {why}": n for why, n in capture.statistics.skipped.items()}
    subject = ", ".join(file.name for file in capture.files)
    if isinstance(found, Epochs):
        write_html(path, _of_epochs(answer, found, subject, capture.warnings, counts))
    else:
        write_html(path, _of_exchanges(answer, found, subject, capture.warnings, counts))


def _of_epochs(answer: Answer, epochs: Epochs, subject: str, warnings: Sequence[str], counts: Mapping[str, int]) -> str:
    from wirelag import __version__
    from wirelag.render.html import ResponsePage, SpanEntry, render_response

    told = abstained_lines(answer.total.report)  # which the page has as a table
    nothing = replace(epochs, rows=epochs.rows[:0]).report()
    page = ResponsePage(
        title="Response latency",
        subject=subject,
        command_line=shlex.join(["wirelag", *sys.argv[1:]]),
        version=__version__,
        total=answer.total.report,
        epochs=epochs,
        spans=[
            SpanEntry(when.start_ns / 1e9, when.end_ns / 1e9, line.report if line else nothing)
            for when, line in parts_of(answer, epochs)
        ],
        groups=[(line.key, line.report) for line in answer.groups],
        by=answer.by,
        notes=[line for line in answer.notes if line not in told],
        warnings=warnings,
        counts=counts,
    )
    return render_response(page)


def _of_exchanges(
    answer: Answer, found: Synopsis, subject: str, warnings: Sequence[str], counts: Mapping[str, int]
) -> str:
    from wirelag import __version__
    from wirelag.render.html import Entry, Page, render_pairs
    from wirelag.stats.distribution import Distribution

    page = Page(
        title="Response time",
        subject=subject,
        total=Entry("all", answer.total.report, answer.total.delays),
        command_line=shlex.join(["wirelag", *sys.argv[1:]]),
        version=__version__,
        timeline=[(when, line.delays if line else Distribution()) for when, line in parts_of(answer, found)],
        groups=[Entry(line.key, line.report, line.delays) for line in answer.groups if line.report.samples],
        by=answer.by,
        answers=answer.notes,
        warnings=warnings,
        counts=counts,
        what="responses",
    )
    return render_pairs(page)


def parts_of(answer: Answer, found: Synopsis) -> list[tuple[Interval, Line | None]]:
    """Parts of the time without gaps: the interval asked for, or one that gives few enough; None: nothing was seen."""
    from wirelag.packets.intervals import Interval
    from wirelag.render.html.oneway_charts import MOST_PARTS

    if not len(found.times_ns):
        return []
    whole_ns = int(found.times_ns.max() - found.times_ns.min())
    asked = answer.intervals[0].report.interval if answer.intervals else None
    chosen_ns = _round_ns(max(whole_ns // PARTS, SHORTEST_NS[answer.total.report.estimator]))
    length_ns = asked.length_ns if asked and whole_ns // asked.length_ns < MOST_PARTS else chosen_ns
    known = {line.report.interval: line for line in intervals_of(found, length_ns)}
    starts = [when.start_ns for when in known if when]
    every = [Interval(ns, ns + length_ns) for ns in range(min(starts), max(starts) + 1, length_ns)]
    return [(when, known.get(when)) for when in every]


def _round_ns(length_ns: int) -> int:
    """1, 2 or 5 times a power of ten, at least this long."""
    unit = int("1".ljust(len(str(length_ns)), "0"))
    return next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= length_ns)
