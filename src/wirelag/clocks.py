"""How the clocks of two points relate, from the times of the same packets at both.

Law: a clock is corrected only where there is something to correct; captures on one clock stay as they are. A clock
that runs fast makes the smallest delays of one direction rise and those of the other fall by the same slope; a clock
that is set makes them jump by opposite amounts at the same time. Congestion and routes do neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from wirelag.minima import CLEAR, PRECISION_NS, Ints, Step, Way, find_steps, line_through, spread_of, two_ways
from wirelag.units import format_duration

__all__ = ["FEWEST", "LONGEST_DELAY_NS", "Clock", "Step", "fit"]

FEWEST: Final = 8  # packets without copies: with fewer, the others are compared, too
MOST_SKEW: Final = 1e-3
LONGEST_DELAY_NS: Final = 10 * 10**9  # a one-way delay of this size is an offset
_LONGEST_NS: Final = 2**63 - 1
_BINS: Final = 1 << 13  # minima that a convex hull is made of
_ALIKE: Final = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # quantiles by which two directions are compared


@dataclass(frozen=True, slots=True)
class Clock:
    """What must be taken from downstream times so that they are on upstream's clock.

    That is `offset_ns` at `origin_ns`, and `skew` seconds per second since, and the size of each step from its time on.
    `offset_bound_ns` says how far off the offset may be; None where none was estimated, or nobody can say.
    """

    offset_ns: float = 0
    skew: float = 0.0
    origin_ns: int = 0
    steps: tuple[Step, ...] = ()
    method: str = "none"
    offset_bound_ns: float | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def given(cls, offset_ns: int) -> Clock:
        """A clock whose offset is known."""
        return cls(offset_ns=offset_ns, method="given", offset_bound_ns=0.0)

    @property
    def corrects(self) -> bool:
        """Whether there is anything to correct."""
        return bool(round(self.offset_ns) or self.skew or self.steps)

    def correct(self, times_ns: Ints) -> Ints:
        """Downstream times on upstream's clock; the same array where there is nothing to correct."""
        if not self.corrects:
            return times_ns
        corrected = times_ns - np.int64(min(max(round(self.offset_ns), -_LONGEST_NS), _LONGEST_NS))
        if self.skew:
            corrected -= np.rint((times_ns - np.int64(self.origin_ns)) * self.skew).astype(np.int64)
        for step in self.steps:
            corrected -= np.where(times_ns >= step.time_ns, np.int64(step.size_ns), np.int64(0))
        return corrected

    def to_json(self) -> dict[str, Any]:
        """The clock for a report, in seconds."""
        return {
            "offset": self.offset_ns / 1e9,
            "skew": self.skew,
            "method": self.method,
            "uncertainty": None if self.offset_bound_ns is None else self.offset_bound_ns / 1e9,
            "steps": [{"time": step.time_ns / 1e9, "size": step.size_ns / 1e9} for step in self.steps],
        }


def fit(forward_up_ns: Ints, forward_down_ns: Ints, backward_up_ns: Ints, backward_down_ns: Ints) -> Clock:
    """How the clocks relate, from packets that travel up->down (forward) and down->up (backward, may be empty)."""
    if not len(forward_down_ns):
        return Clock()
    origin = int(min(forward_down_ns.min(), backward_down_ns.min() if len(backward_down_ns) else forward_down_ns.min()))
    seen = [(forward_down_ns, forward_down_ns - forward_up_ns)]
    if len(backward_down_ns):
        seen.append((backward_down_ns, backward_up_ns - backward_down_ns))
    notes: list[str] = []
    ways = two_ways(seen, origin, notes)
    steps: list[Step] = []
    skew = blur = 0.0
    if all(way.enough for way in ways):
        moved = [replace(way) for way in ways]
        found = find_steps(moved, origin)
        found_notes = found[2] if found else []
        found_skew = _find_skew(moved, found_notes) if found else 0.0
        if found and _possible(moved, found_skew, found[1]):
            ways, skew, notes = moved, found_skew, notes + found_notes
            steps, blur, _ = found
    offset, bound, method = _offset(ways, skew, steps, blur, notes)
    parts = [part for part, there in ((method, method), ("skew", skew), ("steps", steps)) if there]
    if not parts:
        return Clock(notes=tuple(notes))
    return Clock(offset, skew, origin, tuple(steps), "+".join(parts), bound, tuple(notes))


def _possible(ways: list[Way], skew: float, blur: float) -> bool:
    """Whether some offset leaves no delay negative: else it is not the clock that did this."""
    slack = 2 * (PRECISION_NS + blur) + sum(spread_of(way.residuals()[1]) for way in ways)
    return len(ways) == 1 or ways[0].smallest_ns(skew) + ways[1].smallest_ns(-skew) > -slack


def _slope(way: Way) -> tuple[float, bool]:
    """The slope of the smallest delays, and whether they have an edge.

    Where many packets come close to the smallest possible delay, the hull is exact. Where few do and each sample of
    packets has a minimum of its own, the line through the middle of the block minima is better.
    """
    slope, above = way.residuals()
    edge = bool(np.median(above) - above.min() < 2 * spread_of(above))
    return _hull_slope(way) if edge else slope, edge


def _hull_slope(way: Way) -> float:
    """The slope of the line below all delays that comes closest to them: the hull's edge over the mean time."""
    # In bins the smallest delay is enough: a hull has few corners.
    span = max(float(way.time[-1]), 1.0)
    bins = (way.time * (_BINS / span)).astype(np.int64)
    flat = way.delay - way.detour
    order = np.lexsort((flat, bins))
    first = np.concatenate(([True], np.diff(bins[order]) != 0))
    time, delay = way.time[order][first], flat[order][first]
    corners: list[int] = []
    for i in range(len(time)):
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (delay[b] - delay[a]) * (time[i] - time[a]) < (delay[i] - delay[a]) * (time[b] - time[a]):
                break
            corners.pop()
        corners.append(i)
    if len(corners) < 2:
        return 0.0
    edge = min(max(int(np.searchsorted(time[corners], way.time.mean())), 1), len(corners) - 1)
    a, b = corners[edge - 1], corners[edge]
    return float((delay[b] - delay[a]) / (time[b] - time[a]))


def _find_skew(ways: list[Way], notes: list[str]) -> float:
    """The skew, where the minima drift by clearly more than they scatter, and both directions agree."""
    slopes, spreads, spans = [], [], []
    for way, sign in zip(ways, (1, -1), strict=False):
        there = ~np.isnan(way.minima)
        time, y = way.minima_time[there], way.minima[there]
        slope, way.edge = _slope(way)
        slopes.append(sign * slope)
        spreads.append(spread_of(y - slope * time))
        spans.append(float(np.ptp(time)))
    weights = [1 / spread**2 for spread in spreads]
    skew = float(np.average(slopes, weights=weights))
    drifts = [abs(slope) * span / spread for slope, span, spread in zip(slopes, spans, spreads, strict=True)]
    if abs(skew) > MOST_SKEW or math.hypot(*drifts) <= CLEAR:
        return 0.0
    if len(ways) == 1:
        negative = ways[0].smallest_ns(0.0) >= 0 > ways[0].smallest_ns(skew)
        if negative or not _straight(ways[0], slopes[0], spreads[0]):
            return 0.0
        notes.append(
            f"the downstream clock runs {abs(skew) * 1e6:.3g} ppm {'fast' if skew > 0 else 'slow'}: corrected; but with"
            " packets of one direction only, a slow change of the smallest delay itself looks the same"
        )
        return skew
    unlike = abs(slopes[0] - slopes[1]) * min(spans)
    if min(drifts) <= CLEAR / 2 or unlike > max(0.25 * abs(skew) * min(spans), 2 * math.hypot(*spreads)):
        return 0.0
    if slopes[0] * slopes[1] < 0 or not all(map(_straight, ways, (slopes[0], -slopes[1]), spreads)):
        return 0.0
    notes.append(f"the downstream clock runs {abs(skew) * 1e6:.3g} ppm {'fast' if skew > 0 else 'slow'}: corrected")
    return skew


def _straight(way: Way, slope: float, spread: float) -> bool:
    """Whether both halves rise alike, as they do with a clock and not with load."""
    there = np.flatnonzero(~np.isnan(way.minima))
    for half in (there[: len(there) // 2], there[len(there) // 2 :]):
        time, y = way.minima_time[half], way.minima[half]
        scale = max(float(np.ptp(time)), 1.0)
        coefficients = line_through(np.column_stack([np.ones(len(y)), time / scale]), y)
        if abs(float(coefficients[1]) - slope * scale) > max(0.3 * abs(slope) * scale, 2 * spread):
            return False
    return True


def _offset(
    ways: list[Way], skew: float, steps: list[Step], blur: float, notes: list[str]
) -> tuple[int, float | None, str]:
    """Offset, its bound and the word for it. Delays are not negative: that leaves a range of offsets."""
    highest = ways[0].smallest_ns(skew)
    if len(ways) == 1:
        delays = ways[0].delay - skew * ways[0].time + ways[0].base_ns
        # A few negative delays are not a clock's doing.
        if highest < LONGEST_DELAY_NS and np.count_nonzero(delays < -PRECISION_NS) < 0.01 * len(delays):
            return 0, None, ""
        notes.append(
            f"the clocks differ by about {format_duration(abs(highest))}, and with packets of one direction only nobody"
            " can say how much of it is delay: what is given is delay above the smallest one"
        )
        return highest, None, "minimum"
    lowest = -ways[1].smallest_ns(-skew)
    if lowest > highest:  # no offset makes all delays positive: a skew that is not quite constant
        lowest, highest = highest, lowest
    middle = min(max(_middle(ways, skew), lowest), highest)
    # Between two steps the clock may have been right: then it needs no correction there.
    slack = PRECISION_NS + blur
    right = [
        0,
        *(-int(size) for size in np.cumsum([step.size_ns for step in steps], dtype=np.int64) if abs(size) > slack),
    ]
    possible = [offset for offset in right if lowest - slack <= offset <= highest + slack]
    offset = min(possible, key=lambda offset: abs(offset - middle)) if possible else middle
    bound = max(highest - offset, offset - lowest) + blur
    if not possible:
        notes.append(
            f"the downstream clock is {format_duration(abs(offset))} {'ahead' if offset > 0 else 'behind'}: corrected,"
            " as if the smallest delays were the same both ways; if they are not, all delays are wrong by the same"
            f" amount, at most {format_duration(bound)}"
        )
    return offset, bound if offset or skew or steps else None, "offset" if offset else ""


def _middle(ways: list[Way], skew: float) -> int:
    """The offset that makes the smallest delays the same both ways.

    Where few packets come close to it but delays are spread alike in both directions, all of them together say the same
    with less chance.
    """
    smallest = (ways[0].smallest_ns(skew) - ways[1].smallest_ns(-skew)) // 2
    if all(way.edge for way in ways):
        return smallest
    quantiles = [
        np.quantile(way.delay - sign * skew * way.time, _ALIKE) for way, sign in zip(ways, (1, -1), strict=True)
    ]
    widths = [np.diff(quantile[:: len(_ALIKE) // 2]) for quantile in quantiles]
    if all(len(way.time) >= 1 / _ALIKE[0] for way in ways) and np.all(np.abs(widths[0] - widths[1]) < 0.2 * widths[0]):
        differences = float((quantiles[0] - quantiles[1]).mean())
        return (ways[0].base_ns - ways[1].base_ns + round(differences)) // 2
    return smallest
