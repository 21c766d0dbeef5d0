"""Intervals of several reports on one time grid.

Methods that cut at packets have intervals of about one length: each is assigned by its midpoint, and intervals in the
same cell are added up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from wirelag.network.localise import Figures
from wirelag.network.reports import SegmentReport
from wirelag.network.segments import Segment


@dataclass(frozen=True, slots=True)
class Cell:
    """A time range, and the figures of segments in it; seconds since 1970."""

    start: float
    end: float
    figures: Mapping[Segment, Figures]


def cells(reports: Iterable[SegmentReport]) -> list[Cell]:
    """The grid, in order of time; empty if no report has intervals."""
    known = [report for report in reports if report.length]
    if not known:
        return []
    length = median(report.length or 1.0 for report in known)
    found: dict[int, dict[Segment, list[Figures]]] = {}
    for report in known:
        for one in report.intervals:
            if one.start is not None and one.end is not None:
                place = math.floor((one.start + one.end) / 2 / length)
                found.setdefault(place, {}).setdefault(report.segment, []).append(one)
    return [
        Cell(place * length, (place + 1) * length, {segment: together(several) for segment, several in by.items()})
        for place, by in sorted(found.items())
    ]


def together(several: Sequence[Figures]) -> Figures:
    """Merge neighbouring intervals, weighted by their samples."""
    known = [one for one in several if one.mean is not None]
    if len(several) == 1 or not known:
        return several[0]
    weight = sum(max(1, one.samples) for one in known)
    shares = [max(1, one.samples) / weight for one in known]
    mean = math.fsum(share * (one.mean or 0.0) for share, one in zip(shares, known, strict=True))
    error = std = None
    if all(one.error is not None for one in known):
        error = math.hypot(*(share * (one.error or 0.0) for share, one in zip(shares, known, strict=True)))
    if all(one.std is not None for one in known):
        parts = zip(shares, known, strict=True)
        std = math.sqrt(sum(share * ((one.std or 0.0) ** 2 + ((one.mean or 0.0) - mean) ** 2) for share, one in parts))
    floors = [one.floor for one in known if one.floor is not None]
    counts = [(one.sent, one.lost) for one in several if one.sent is not None and one.lost is not None]
    return Figures(
        mean,
        error,
        std,
        min(floors, default=None),
        sum(one.samples for one in known),
        sum(sent for sent, _ in counts) if counts else None,
        sum(lost for _, lost in counts) if counts else None,
        several[0].start,
        several[-1].end,
    )
