"""The relation of two points' clocks, from the times of the same packets at both.

Law: a clock is corrected only if there is something to correct; captures on one clock stay as they are. A clock that
runs fast makes the smallest delays of one direction rise and those of the other fall with the same slope; a clock that
is set makes them jump by opposite amounts at the same time. Congestion and routes do neither. If every constant offset
leaves negative delays, the clock drifted or was set, and an offset without skew or steps is not the whole correction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from wirelag.clocks.envelope import (
    BLOCK_PACKETS,
    CLEAR,
    MOST_BLOCKS,
    PRECISION_NS,
    Floats,
    Ints,
    Step,
    Way,
    find_steps,
    line_through,
    spread_of,
    two_ways,
)
from wirelag.units import format_duration

__all__ = ["FEWEST", "LONGEST_DELAY_NS", "Clock", "Step", "fit"]

FEWEST: Final = 8  # packets without copies: with fewer, the others are compared too
MOST_SKEW: Final = 1e-3
LONGEST_DELAY_NS: Final = 10 * 10**9  # a one-way delay this large is an offset
_LONGEST_NS: Final = 2**63 - 1
_BINS: Final = 1 << 13  # number of minima from which a convex hull is computed
_AGREED: Final = 0.05  # by how much hulls of both directions and both halves may differ if only a clock is the cause
_NEAR: Final = 0.05  # share of the span: how close to the first packet a drifting clock may have been right
_ALIKE: Final = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # quantiles by which two directions are compared


@dataclass(frozen=True, slots=True)
class Clock:
    """The correction subtracted from downstream times to put them on upstream's clock.

    It is `offset_ns` at `origin_ns`, plus `skew` seconds per second since then, plus the size of each step from its
    time on. `offset_bound_ns` bounds the error of the offset; None if no offset was estimated, or no bound is known.
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
        """A clock with a given offset."""
        return cls(offset_ns=offset_ns, method="given", offset_bound_ns=0.0)

    @property
    def corrects(self) -> bool:
        """Whether there is anything to correct."""
        return bool(round(self.offset_ns) or self.skew or self.steps)

    def correct(self, times_ns: Ints) -> Ints:
        """Downstream times on upstream's clock; the same array if there is nothing to correct."""
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
    """Relate the clocks, from packets that travel up->down (forward) and down->up (backward, may be empty)."""
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
        found_skew = _find_skew(moved) if found else 0.0
        if found and _possible(moved, found_skew, found[1]):
            ways, skew = moved, found_skew
            steps, blur, jumps = found
            if steps:
                steps, skew, blur = _sharpen(ways, steps, skew, blur, origin)
            notes += jumps + [_step_note(step, origin) for step in steps]
        elif not _possible(ways, 0.0, 0.0):
            skew = _needed_skew(ways)
        if skew:
            notes.append(_skew_note(skew, len(ways) == 1))
    offset, early, bound, method = _offset(ways, skew, steps, blur, notes)
    parts = [part for part, there in ((method, method), ("skew", skew), ("steps", steps)) if there]
    if not parts:
        return Clock(notes=tuple(notes))
    return Clock(offset, skew, origin - early, tuple(steps), "+".join(parts), bound, tuple(notes))


def _possible(ways: list[Way], skew: float, blur: float) -> bool:
    """Whether some offset leaves no delay negative; if not, the skew is not the clock's."""
    slack = 2 * (PRECISION_NS + blur) + sum(spread_of(way.residuals()[1]) for way in ways)
    return len(ways) == 1 or ways[0].smallest_ns(skew) + ways[1].smallest_ns(-skew) > -slack


def _skew_note(skew: float, one_way: bool) -> str:
    note = f"the downstream clock runs {abs(skew) * 1e6:.3g} ppm {'fast' if skew > 0 else 'slow'}: corrected"
    if not one_way:
        return note
    return f"{note}; but with packets of one direction only, a slow change of the smallest delay itself looks the same"


def _step_note(step: Step, origin: int) -> str:
    return (
        f"the downstream clock was set {'ahead' if step.size_ns > 0 else 'back'} by"
        f" {format_duration(abs(step.size_ns))} {format_duration(step.time_ns - origin)} after the first common packet:"
        " corrected"
    )


def _slope(way: Way) -> tuple[float, bool]:
    """The slope of the smallest delays, and whether they have an edge.

    If many packets come close to the smallest possible delay, the hull is exact. If few do, and each sample of packets
    has its own minimum, the line through the middle of the block minima is better.
    """
    slope, above = way.residuals()
    edge = bool(np.median(above) - above.min() < 2 * spread_of(above))
    return _hull_slope(way.time, way.delay - way.detour) if edge else slope, edge


def _hull_slope(times: Floats, delays: Floats) -> float:
    """The slope of the line below all delays that is closest to them: the hull's edge over the mean time."""
    # The smallest delay per bin is enough: a hull has few corners.
    span = max(float(times[-1] - times[0]), 1.0)
    bins = ((times - times[0]) * (_BINS / span)).astype(np.int64)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    least = np.repeat(np.minimum.reduceat(delays, starts), np.diff(starts, append=len(bins)))
    smallest = np.flatnonzero(delays == least)
    smallest = smallest[np.diff(bins[smallest], prepend=-1) != 0]
    time, delay = (values.tolist() for values in _may_be_corners(times[smallest], delays[smallest]))
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
    edge = min(max(int(np.searchsorted([time[i] for i in corners], times.mean())), 1), len(corners) - 1)
    a, b = corners[edge - 1], corners[edge]
    return float((delay[b] - delay[a]) / (time[b] - time[a]))


def _may_be_corners(time: Floats, delay: Floats) -> tuple[Floats, Floats]:
    """The points that may be corners of the hull: one above the line between its neighbours is none."""
    while len(time) > 2:
        before, after = (np.diff(delay)[:-1], np.diff(time)[:-1]), (delay[2:] - delay[:-2], time[2:] - time[:-2])
        below = before[0] * after[1] < after[0] * before[1]
        kept = np.concatenate(([True], below, [True]))
        if kept.all():
            break
        time, delay = time[kept], delay[kept]
    return time, delay


def _find_skew(ways: list[Way]) -> float:
    """The skew, if the minima drift clearly more than they scatter, and both directions agree."""
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
    clear = math.hypot(*drifts) > CLEAR
    if abs(skew) > MOST_SKEW:
        return 0.0
    if len(ways) == 1:
        negative = ways[0].smallest_ns(0.0) >= 0 > ways[0].smallest_ns(skew)
        if not clear or negative or not _straight(ways[0], slopes[0], spreads[0]):
            return 0.0
        return skew
    if all(way.edge for way in ways) and _agreed(ways, slopes):
        return skew
    unlike = abs(slopes[0] - slopes[1]) * min(spans)
    if not clear or min(drifts) <= CLEAR / 2:
        return 0.0
    if unlike > max(0.25 * abs(skew) * min(spans), 2 * math.hypot(*spreads)):
        return 0.0
    if slopes[0] * slopes[1] < 0 or not all(map(_straight, ways, (slopes[0], -slopes[1]), spreads)):
        return 0.0
    return skew


def _agreed(ways: list[Way], slopes: list[float]) -> bool:
    """Whether the hulls of both directions, and of each half of them, have one slope: load would not do that.

    This holds however much the block minima scatter, because few of them determine a hull.
    """
    all_slopes = list(slopes)
    for way, sign in zip(ways, (1, -1), strict=True):
        half = int(np.searchsorted(way.time, way.time[-1] / 2))
        if min(half, len(way.time) - half) < 4 * BLOCK_PACKETS:
            return False
        flat = way.delay - way.detour
        all_slopes += [sign * _hull_slope(way.time[part], flat[part]) for part in (slice(half), slice(half, None))]
    least = min(map(abs, all_slopes))
    drift = least * min(float(way.time[-1]) for way in ways)
    return drift > 10 * CLEAR * PRECISION_NS and max(all_slopes) - min(all_slopes) < _AGREED * least


def _needed_skew(ways: list[Way]) -> float:
    """The skew of a clock that must drift because no constant offset fits: the slope of both hulls, if it fits.

    It cannot be confused with a step: where no constant offset fits around a step, no line does.
    """
    slopes = [sign * _hull_slope(way.time, way.delay) for way, sign in zip(ways, (1, -1), strict=True)]
    skew = sum(slopes) / 2
    if abs(skew) > MOST_SKEW or abs(slopes[0] - slopes[1]) > 0.25 * abs(skew) or not _possible(ways, skew, 0.0):
        return 0.0
    return skew


def _sharpen(
    ways: list[Way], steps: list[Step], skew: float, blur: float, origin: int
) -> tuple[list[Step], float, float]:
    """Refine steps, skew and the uncertainty of sizes with all packets between steps: blocks give only rough values.

    If packets come close to the smallest possible delay, that delay is the same before and after a step. Each direction
    gives a size; half of their difference is the uncertainty.
    """
    _, edge = zip(*map(_slope, ways), strict=True)
    if not all(edge):
        return steps, skew, blur
    cuts = [step.time_ns - origin for step in steps]
    parts: list[list[tuple[Floats, Floats]]] = []
    for way in ways:
        at = np.searchsorted(way.time, cuts)
        parts.append(list(zip(np.split(way.time, at), np.split(way.delay - way.detour, at), strict=True)))
    if min(len(time) for way_parts in parts for time, _ in way_parts) < 4 * BLOCK_PACKETS:
        return steps, skew, blur
    if skew:  # between steps, because it would absorb a part of them
        slopes = [np.array([_hull_slope(time, delay) for time, delay in way_parts]) for way_parts in parts]
        spans = [float(np.ptp(time)) ** 2 for time, _ in parts[0]]
        skew = float(np.average(slopes[0] - slopes[1], weights=spans)) / 2
    levels = [
        np.diff([(delay - sign * skew * time).min() for time, delay in way_parts])
        for way_parts, sign in zip(parts, (1, -1), strict=True)
    ]
    sizes = (levels[0] - levels[1]) / 2
    for way, sign in zip(ways, (1, -1), strict=True):
        for cut, size in zip(cuts, sizes, strict=True):
            way.move(cut, sign * float(size), clock=True)
    steps = [Step(step.time_ns, step.size_ns + round(float(size))) for step, size in zip(steps, sizes, strict=True)]
    return steps, skew, min(float(np.abs(levels[0] + levels[1]).sum()) / 2 + PRECISION_NS, blur)


def _straight(way: Way, slope: float, spread: float) -> bool:
    """Whether both halves rise alike, as with a clock and unlike with load."""
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
) -> tuple[int, int, float | None, str]:
    """The offset, how long before the origin it applied, its bound, and the name of the method.

    Delays are not negative: that leaves a range of offsets.
    """
    highest = ways[0].smallest_ns(skew)
    if len(ways) == 1:
        delays = ways[0].delay - skew * ways[0].time + ways[0].base_ns
        # A few negative delays do not come from a clock.
        if highest < LONGEST_DELAY_NS and np.count_nonzero(delays < -PRECISION_NS) < 0.01 * len(delays):
            return 0, 0, None, ""
        notes.append(
            f"the clocks differ by about {format_duration(abs(highest))}; packets of one direction only cannot show how"
            " much of it is delay: what is given is delay above the smallest one"
        )
        return highest, 0, None, "minimum"
    lowest = -ways[1].smallest_ns(-skew)
    slack = PRECISION_NS + blur
    if lowest > highest:
        return _moving_offset(ways, skew, slack, (highest, lowest), notes)
    middle = min(max(_middle(ways, skew), lowest), highest)
    # Between two steps the clock may have been right: there it needs no correction.
    right = [
        0,
        *(-int(size) for size in np.cumsum([step.size_ns for step in steps], dtype=np.int64) if abs(size) > slack),
    ]
    possible = [offset for offset in right if lowest - slack <= offset <= highest + slack]
    offset = min(possible, key=lambda offset: abs(offset - middle)) if possible else middle
    # If a drifting clock was right near the first packet, it was right when the smallest delays were equal both ways.
    near = skew and possible and abs(middle - offset) <= _NEAR * abs(skew) * ways[0].time[-1]
    early = round((middle - offset) / skew) if near else 0
    there = middle if near else offset
    bound = max(highest - there, there - lowest) + blur
    if not possible:
        notes.append(
            f"the downstream clock is {format_duration(abs(offset))} {'ahead' if offset > 0 else 'behind'}: corrected,"
            " as if the smallest delays were the same both ways; if they are not, all delays are wrong by the same"
            f" amount, at most {format_duration(bound)}"
        )
    return offset, early, bound if offset or skew or steps else None, "offset" if offset else ""


def _moving_offset(
    ways: list[Way], skew: float, slack: float, between: tuple[int, int], notes: list[str]
) -> tuple[int, int, float | None, str]:
    """The offset if none leaves all delays positive, because the clock drifts in an unknown way.

    Each period has its own range of offsets; the bound covers all of them.
    """
    offset = min(max(_middle(ways, skew), between[0]), between[1])
    if between[0] - slack <= 0 <= between[1] + slack:
        offset = 0
    whiles = []
    for way, sign in zip(ways, (1, -1), strict=True):
        flat = way.delay - sign * skew * way.time + float(way.base_ns - sign * offset)
        count = min(max(len(flat) // BLOCK_PACKETS, 1), MOST_BLOCKS)
        whiles.append(np.array([part.min() for part in np.array_split(flat, count)]))
    bound = max(float(np.abs(smallest).max()) for smallest in whiles) + slack - PRECISION_NS
    # Delays that are always negative do not come from a drifting clock: the direction is wrong.
    if between[1] - between[0] > 2 * slack and sum(float(np.median(smallest)) for smallest in whiles) > 0:
        notes.append(
            "the clocks drift: every constant offset leaves some delays negative, and no skew or step was found"
            f" that explains it; delays are wrong by up to {format_duration(bound)}, and not all by the same amount"
        )
    return offset, 0, bound if offset or skew else None, "offset" if offset else ""


def _middle(ways: list[Way], skew: float) -> int:
    """The offset that makes the smallest delays the same both ways.

    If few packets come close to the smallest delay, but delays are distributed alike in both directions, all packets
    together give the same offset with less variance.
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
