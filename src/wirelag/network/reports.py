"""Reports of segments: figures from the JSON of `wirelag oneway` or `wirelag flows`.

Law: a report states its error as if packets were independent. If it has intervals, these show how correlated
neighbours are, and the larger of the two errors counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from wirelag.errors import WirelagError
from wirelag.estimators.catalogue import capabilities_of
from wirelag.network.certainty import batch_error
from wirelag.network.changes import scatter
from wirelag.network.localise import Basis, Figures
from wirelag.network.segments import Segment, parse_segment
from wirelag.stats.distribution import Z95
from wirelag.stats.over_time import Error

# `oneway` gives the mean an interval of deviation * sqrt(2 ln(2 / 0.05) / used): this many standard errors.
BOUND: Final = math.sqrt(2 * math.log(2 / 0.05))  # what a bound of 95% spans, in standard errors
BOUND98: Final = math.sqrt(2 * math.log(2 / 0.02))  # and one of 98%
ANEW: Final = "write the report anew"
_LONGEST: Final = 1e9  # longest delay, in seconds
_LATEST: Final = 1e11  # seconds since 1970
_SHORTEST: Final = 1e-9  # shortest interval, in seconds


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """The measurement of a segment."""

    segment: Segment
    name: str  # name of the file, for messages
    estimator: str
    whole: Figures
    intervals: tuple[Figures, ...] = ()  # in order of time

    @property
    def span(self) -> tuple[float, float] | None:
        """Start and end; None if the report has none."""
        known = [one for one in (self.whole, *self.intervals) if one.start is not None and one.end is not None]
        return (min(one.start or 0.0 for one in known), max(one.end or 0.0 for one in known)) if known else None

    @property
    def length(self) -> float | None:
        """The typical length of an interval."""
        lengths = [one.end - one.start for one in self.intervals if one.start is not None and one.end is not None]
        return median(lengths) if lengths else None


def named(argument: str) -> tuple[Segment | None, str]:
    """Parse `SEGMENT=FILE`, a segment and a file; the file alone may name its segment.

    >>> str(named("B[A>C]=b.json")[0])
    'B[A>C]'
    """
    place = argument.find("=")
    while place > 0 and not _exists(argument):
        try:
            segment = parse_segment(argument[:place])
            if place + 1 == len(argument):
                raise WirelagError(f"{argument} has no file; write it as SEGMENT=FILE")
            return segment, argument[place + 1 :]
        except WirelagError:
            if place + 1 == len(argument):
                raise
            place = argument.find("=", place + 1)
    return None, argument


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long, or not a valid file name
        return False


def report_of(content: Mapping[str, Any], name: str, segment: Segment | None = None) -> SegmentReport:
    """A report of this segment, or of the one that its key `segment` or its file name gives."""
    command, quantity = content.get("command"), content.get("quantity")
    if command == "path" or (quantity != "one_way" and not (quantity is None and "flows" in content)):
        what = f"is what wirelag {command} prints" if isinstance(command, str) else 'has no "quantity"'
        raise WirelagError(f"{name}: {what}, not a report of a segment; use the JSON of wirelag oneway or flows")
    segment = segment or _said(content, name)
    try:
        whole = figures_of(content)
        intervals = [figures_of(_object(one)) for one in _list(content.get("intervals"))]
    except ValueError as error:
        raise WirelagError(f"{name}: {error}; {ANEW}") from None
    if whole.mean is None:
        reason = content.get("reason") or "it has no mean"
        raise WirelagError(f"{name}: has no figures for {segment}: {reason}; leave it out, or measure longer")
    if whole.floor is not None and whole.floor > whole.mean + 1e-9:
        raise WirelagError(f"{name}: its shortest delay is longer than its mean; {ANEW}")
    timed = sorted((one for one in intervals if one.start is not None), key=lambda one: one.start or 0.0)
    wider = scatter(timed)
    widened = tuple(replace(one, error=None if one.error is None else wider * one.error) for one in timed)
    whole = surer(whole, _between(timed), "intervals")
    return SegmentReport(segment, name, str(content.get("estimator") or "unknown"), whole, widened)


def _between(timed: Sequence[Figures]) -> Error | None:
    """The error shown by the intervals."""
    counts = [0.0 if one.mean is None else max(1.0, one.samples) for one in timed]
    return batch_error([count * (one.mean or 0.0) for one, count in zip(timed, counts, strict=True)], counts)


def surer(figures: Figures, seen: Error | None, basis: Basis) -> Figures:
    """With an error learned from the variation over time, if it is larger."""
    if seen is None:
        return figures
    return replace(figures, error=max(seen[0], figures.error or 0.0), freedom=seen[1], basis=basis)


def _said(content: Mapping[str, Any], name: str) -> Segment:
    said = content.get("segment")
    if isinstance(said, str):
        try:
            return parse_segment(said)
        except WirelagError as error:
            raise WirelagError(f"{name}: {error}") from None
    try:
        return parse_segment(Path(name).name.removesuffix(".json"))
    except WirelagError:
        raise WirelagError(
            f"{name}: does not name its segment; write SEGMENT={name}, or write it with oneway --segment"
        ) from None


def figures_of(content: Mapping[str, Any], errors: float = Z95) -> Figures:
    """The figures of a report or an interval, with the error of its mean if packets were independent.

    Its bound of 98% gives that error; if the mean is exact, its deviation does; without both, the upper half of its 95%
    interval spans `errors` of it.
    """
    mean, pair, bound = _number(content, "mean"), content.get("ci95"), _number(content, "bound98")
    pair = pair.get("mean") if isinstance(pair, Mapping) else pair
    std, samples = _number(content, "std"), _count(content, "samples") or 0
    error = None if bound is None else bound / BOUND98 or (std or 0.0) / math.sqrt(max(samples, 1))
    if bound is None and isinstance(pair, list | tuple) and len(pair) == 2:
        low, high = (_number({"ci95": end}, "ci95") for end in pair)
        # An interval that would reach below zero may be cut there: its upper half is complete.
        error = None if None in (low, high, mean) else max(0.0, (high or 0.0) - (mean or 0.0)) / errors
    floor, start, end = _number(content, "min"), _number(content, "start", _LATEST), _number(content, "end", _LATEST)
    if start is not None and end is not None and end - start < _SHORTEST:
        raise ValueError('"end" is not after "start"')
    if std is not None and std < 0:
        raise ValueError('"std" is negative')
    return Figures(
        mean,
        error,
        std,
        _number(content, "floor") if floor is None else floor,
        samples,
        _count(content, "sent"),
        _count(content, "lost"),
        start,
        end,
    )


def one_of_each(reports: Sequence[SegmentReport]) -> dict[Segment, SegmentReport]:
    """Reports by segment; refuses two reports of one segment, and reports of different times."""
    found: dict[Segment, SegmentReport] = {}
    for report in reports:
        if report.segment in found:
            first = found[report.segment].name
            raise WirelagError(f"{first} and {report.name} are both of segment {report.segment}; leave one out")
        found[report.segment] = report
    _same_time(reports)
    return found


def _same_time(reports: Sequence[SegmentReport]) -> None:
    spans = [(report, report.span) for report in reports]
    known = [(report, span) for report, span in spans if span]
    if known:
        latest, earliest = max(known, key=lambda one: one[1][0]), min(known, key=lambda one: one[1][1])
        if latest[1][0] >= earliest[1][1]:
            raise WirelagError(
                f"{earliest[0].name} ends before {latest[0].name} begins; measure all segments at the same time, or "
                "give the earlier ones as --baseline"
            )
    _same_edges([report for report in reports if report.length])


def _delimited(report: SegmentReport) -> bool:
    can = capabilities_of(report.estimator)
    return can is not None and can.delimited


def _same_edges(reports: Sequence[SegmentReport]) -> None:
    """Intervals must be the same ones. Those that end at packets need only about the same length."""
    if not reports:
        return
    short, long = (pick(reports, key=lambda one: one.length or 0.0) for pick in (min, max))
    fixed = [one for one in reports if not _delimited(one)]
    equal = [abs((one.length or 0.0) - (fixed[0].length or 0.0)) < 1e-6 for one in fixed]
    if not all(equal) or (long.length or 0.0) > 2 * (short.length or 0.0):
        raise WirelagError(
            f"{short.name} has intervals of {short.length:.6g} s, {long.name} of {long.length:.6g} s; write them "
            "with the same --interval"
        )
    for one in fixed:
        length = one.length or 1.0
        apart = ((one.intervals[0].start or 0.0) - (fixed[0].intervals[0].start or 0.0)) / length
        if abs(apart - round(apart)) > 1e-3:
            raise WirelagError(
                f"intervals of {one.name} begin at other times than those of {fixed[0].name}; write them with the same "
                "--interval"
            )


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError('one of its "intervals" is not an object')
    return value


def _list(value: Any) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise ValueError('"intervals" is not a list')
    return value or []


def _number(content: Mapping[str, Any], name: str, most: float = _LONGEST) -> float | None:
    value = content.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f'"{name}" is not a number')
    if not abs(value) <= most:
        raise ValueError(f'"{name}" is too large or too small')
    return float(value)


def _count(content: Mapping[str, Any], name: str) -> int | None:
    value = content.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63):
        raise ValueError(f'"{name}" is not a count')
    return value
