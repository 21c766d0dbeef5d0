"""The smallest delays of two directions, block by block, and where they jump.

Queues only lengthen delays: the smallest delays of a period show the path and the clocks alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag.units import format_duration

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BLOCK_PACKETS: Final = 16  # packets of a direction per block
FEWEST_BLOCKS: Final = 8
MOST_BLOCKS: Final = 64
MOST_STEPS: Final = 4
CLEAR: Final = 6.0  # spreads of the block minima by which a drift or a step must stand out
PRECISION_NS: Final = 1_000.0  # precision of timestamps: smaller changes mean nothing
_MARGIN: Final = 3  # minimum of blocks on each side of a step
_REACH: Final = 8  # maximum of blocks on each side
_LAG: Final = 4  # distance in blocks over which a slope is taken


@dataclass(frozen=True, slots=True)
class Step:
    """The downstream clock was set ahead by `size_ns` at `time_ns` (its own time)."""

    time_ns: int
    size_ns: int


@dataclass(slots=True)
class Way:
    """One direction: arrival times of its packets (downstream, ns since the origin), and their delays minus a base."""

    time: Floats
    delay: Floats
    base_ns: int  # subtracted from all delays, so that they fit into floats
    detour: Floats  # jumps of this direction alone: not the clock's, but removed before a slope is fitted
    minima: Floats  # smallest delay of each block; NaN if it has too few packets
    minima_time: Floats
    edge: bool = True  # packets come close to the smallest possible delay

    def move(self, after: float, size: float, clock: bool) -> None:
        """Remove a jump, of the clock or of this direction alone."""
        if clock:
            self.delay = self.delay - np.where(self.time >= after, size, 0.0)
        else:
            self.detour = self.detour + np.where(self.time >= after, size, 0.0)
        self.minima = np.where(self.minima_time >= after, self.minima - size, self.minima)

    def leave_out(self, earliest: float, latest: float) -> None:
        """Drop packets between two times: it is unknown on which side of a step they were."""
        kept = (self.time < earliest) | (self.time > latest)
        self.time, self.delay, self.detour = self.time[kept], self.delay[kept], self.detour[kept]

    def share(self, earliest: float, latest: float) -> float:
        """The share of packets between two times."""
        return float(np.mean((self.time > earliest) & (self.time < latest)))

    @property
    def enough(self) -> bool:
        """Whether there are enough blocks to estimate skew and steps."""
        return int((~np.isnan(self.minima)).sum()) >= FEWEST_BLOCKS

    def residuals(self) -> tuple[float, Floats]:
        """The slope of the line through the block minima, and their distances from it."""
        there = ~np.isnan(self.minima)
        time, y = self.minima_time[there], self.minima[there]
        scale = max(float(np.ptp(time)), 1.0)
        columns = np.column_stack([np.ones(len(y)), time / scale])
        line = line_through(columns, y)
        return float(line[1]) / scale, y - columns @ line

    def smallest_ns(self, slope: float) -> int:
        """The smallest delay without the slope."""
        return self.base_ns + round(float((self.delay - slope * self.time).min()))


def two_ways(seen: list[tuple[Ints, Ints]], origin: int, notes: list[str]) -> list[Way]:
    ways = []
    for times, delays in seen:
        order = np.argsort(times, kind="stable")
        base = int(np.sort(delays)[len(delays) // 2])
        # Unsigned: nonsensical times may be further apart than an int64 reaches.
        time = (times[order] - origin).view(np.uint64).astype(np.float64)
        delay = delays[order].astype(np.float64) - base if _wild(delays) else (delays[order] - base).astype(np.float64)
        impossible = _impossible(delay)
        if impossible.any():
            count = int(impossible.sum())
            notes.append(f"{count:,} packets with times far apart from all others were not used to compare the clocks")
            time, delay = time[~impossible], delay[~impossible]
        ways.append(Way(time, delay, base, np.zeros(len(time)), np.empty(0), np.empty(0)))
    # Blocks have equally many packets, and the same times for both directions. But a block has a minimum length: all
    # packets of a burst see the same queue, and would make many blocks that show the same.
    blocks = int(min(MOST_BLOCKS, *(len(way.time) // BLOCK_PACKETS for way in ways)))
    if blocks >= FEWEST_BLOCKS:
        together = np.sort(np.concatenate([way.time for way in ways]))
        edges = _apart(together[np.arange(1, blocks) * len(together) // blocks], together[-1] / (2 * blocks))
        for way in ways:
            way.minima, way.minima_time = _minima(way, edges)
    return ways


def _apart(edges: Floats, least: float) -> Floats:
    """The edges at least `least` after the previous one."""
    kept: list[float] = []
    for edge in edges.tolist():
        if edge - (kept[-1] if kept else 0.0) >= least:
            kept.append(edge)
    return np.array(kept)


def _wild(delays: Ints) -> bool:
    """Whether delays are so far apart that their differences overflow 64 bits."""
    return int(delays.max()) - int(delays.min()) >= 2**63


def _impossible(delay: Floats) -> npt.NDArray[np.bool_]:
    """A few packets far below all others: two different packets taken for one. A single one would decide the fit."""
    most = max(3, len(delay) // 1000)
    if len(delay) < 4 * BLOCK_PACKETS:
        return np.zeros(len(delay), np.bool_)
    lowest = np.partition(delay, (most, len(delay) // 2))
    middle, lowest = lowest[len(delay) // 2], np.sort(lowest[: most + 1])
    far = np.flatnonzero(np.diff(lowest) > 4 * (middle - lowest[1:]) + PRECISION_NS)
    return np.asarray(delay <= lowest[far[-1]]) if len(far) else np.zeros(len(delay), np.bool_)


def _minima(way: Way, edges: Floats) -> tuple[Floats, Floats]:
    """The smallest delay of each block, and its time."""
    block = np.searchsorted(edges, way.time, side="right")
    count = np.bincount(block, minlength=len(edges) + 1)
    order = np.lexsort((way.delay, block))
    first = np.minimum(np.cumsum(count) - count, len(order) - 1)
    least = order[first]
    enough = count >= BLOCK_PACKETS // 4
    return np.where(enough, way.delay[least], np.nan), np.where(enough, way.time[least], np.nan)


def spread_of(minima: Floats) -> float:
    """Spread of block minima: up to a fifth may be outliers; never below the precision of timestamps."""
    return max(float(np.quantile(np.abs(minima - np.median(minima)), 0.8)) / 1.28, PRECISION_NS)


def line_through(columns: Floats, y: Floats, rounds: int = 12) -> Floats:
    """Least absolute deviations: a congested block does not move the line."""
    weight = np.ones(len(y))
    for _ in range(rounds):
        weighed = columns * weight[:, None]
        coefficients: Floats = np.linalg.lstsq(weighed, y * weight, rcond=None)[0].astype(np.float64)
        residual = np.abs(y - columns @ coefficients)
        weight = 1 / np.sqrt(np.maximum(residual, 1e-3 * PRECISION_NS))
    return coefficients


@dataclass(frozen=True, slots=True)
class _Jump:
    """A jump of one direction's minima."""

    size: float
    spread: float
    local: float  # the same from only a few blocks on both sides

    @property
    def clear(self) -> float:
        """By how many spreads it stands out; 0 if it is a slow change instead of a jump."""
        sudden = self.size * self.local > 0 and abs(self.local) > 0.6 * abs(self.size)
        return abs(self.size) / self.spread if sudden else 0.0


@dataclass(frozen=True, slots=True)
class _Level:
    """Blocks that have a minimum, their minima without the slope, and the chance difference between neighbours."""

    blocks: npt.NDArray[np.int64]
    minima: Floats
    still: float

    @classmethod
    def of(cls, way: Way, slope: float | None = None) -> _Level:
        """Without a given slope, use the median over blocks a few apart: a step affects few of those."""
        blocks = np.flatnonzero(~np.isnan(way.minima))
        time, y = way.minima_time[blocks], way.minima[blocks]
        if slope is None:
            slope = float(np.median((y[_LAG:] - y[:-_LAG]) / np.maximum(time[_LAG:] - time[:-_LAG], 1.0)))
        y = y - slope * time
        return cls(blocks, y, max(1.048 * float(np.median(np.abs(np.diff(y)))), PRECISION_NS))

    def jump(self, at: int) -> tuple[_Jump, float]:
        """The jump between blocks `at` - 1 and `at`, and how much better two levels explain the blocks around it."""
        place = int(np.searchsorted(self.blocks, at))
        before, after = self.minima[max(place - _REACH, 0) : place], self.minima[place : place + _REACH]
        if min(len(before), len(after)) < _MARGIN:
            return _Jump(0.0, 1.0, 0.0), 0.0
        around = np.concatenate([before, after])
        levels = np.repeat([np.median(before), np.median(after)], [len(before), len(after)])
        gain = float(np.abs(around - np.median(around)).sum() - np.abs(around - levels).sum())
        # The block that contains the jump belongs to either side: a median of three tolerates that.
        local = float(np.median(after[:_MARGIN]) - np.median(before[-_MARGIN:]))
        spread = max(self.still, spread_of(around - levels))
        return _Jump(float(levels[-1] - levels[0]), spread, local), gain / self.still


def find_steps(ways: list[Way], origin: int) -> tuple[list[Step], float, list[str]] | None:
    """Steps of the clock, the uncertainty of their sizes, and notes on other jumps.

    Jumps are removed from the directions that have them. None if the path itself jumps repeatedly, as that hides what a
    clock does.
    """
    steps: list[Step] = []
    notes: list[str] = []
    blur, detours = 0.0, 0
    for _ in range(MOST_STEPS):
        at, jumps = _best_jump(ways)
        # A slightly wrong slope looks like a jump: a real jump also stands out above the line through all blocks.
        clear = [
            min(jump.clear, _Level.of(way, way.residuals()[0]).jump(at)[0].clear)
            for way, jump in zip(ways, jumps, strict=True)
        ]
        if len(ways) == 2 and _opposite(*jumps) and min(clear) > CLEAR / 2 and math.hypot(*clear) > CLEAR:
            weights = [1 / jump.spread**2 for jump in jumps]
            size = round((jumps[0].size * weights[0] - jumps[1].size * weights[1]) / sum(weights))
            earliest, latest = _when(ways, at, size)
            if any(way.share(earliest, latest) > 0.5 / len(way.minima) for way in ways):
                return None  # the two directions did not jump at the same time
            time = (earliest + latest) / 2
            steps.append(Step(origin + round(time), size))
            blur += 2 / math.sqrt(sum(weights))
            for way, sign in zip(ways, (1, -1), strict=True):
                way.move(time, sign * size, clock=True)
                way.leave_out(earliest - abs(size), latest + abs(size))
            continue
        if max(clear) <= CLEAR:
            break
        time = float(min(np.nanmin(way.minima_time[at:]) for way in ways))
        notes.append(_jump_note(jumps, time))
        detours += 1
        for way, jump in zip(ways, jumps, strict=True):
            if jump.clear > CLEAR / 2:
                way.move(time, jump.size, clock=False)
    if detours > 1 or not all(way.enough for way in ways):
        return None
    calm = [spread_of(way.residuals()[1]) for way in ways]
    if any(math.hypot(*(step.size_ns / spread for spread in calm)) <= CLEAR for step in steps):
        return None
    return sorted(steps, key=lambda step: step.time_ns), blur, notes


def _best_jump(ways: list[Way]) -> tuple[int, list[_Jump]]:
    """The place where a jump explains most, both directions together."""
    levels = [_Level.of(way) for way in ways]
    best, place, found = -1.0, 0, [_Jump(0.0, 1.0, 0.0) for _ in ways]
    for at in range(1, len(ways[0].minima)):
        tried = [level.jump(at) for level in levels]
        gain = sum(gain for _, gain in tried)
        if gain > best:
            best, place, found = gain, at, [jump for jump, _ in tried]
    return place, found


def _opposite(one: _Jump, other: _Jump) -> bool:
    unlike = abs(one.size + other.size)
    return one.size * other.size < 0 and unlike < max(0.25 * abs(one.size), 2 * math.hypot(one.spread, other.spread))


def _jump_note(jumps: list[_Jump], time: float) -> str:
    one = max(jumps, key=lambda jump: jump.clear)
    which = "" if len(jumps) == 1 else " from upstream to downstream" if one is jumps[0] else " the other way"
    what = (
        f"{format_duration(time)} after the first common packet the smallest delay{which}"
        f" {'rose' if one.size > 0 else 'fell'} by {format_duration(abs(one.size))}"
    )
    if len(jumps) == 1:
        return f"{what}: a clock step or a change of route, which one direction cannot tell apart; not corrected"
    if min(jump.clear for jump in jumps) > CLEAR / 2 and jumps[0].size * jumps[1].size > 0:
        return f"{what.replace(which, ' of both directions')}: the route or the load changed, not a clock"
    return f"{what} while the other direction did not follow: the route or the load changed, not a clock"


def _when(ways: list[Way], at: int, size: float) -> tuple[float, float]:
    """The time range that contains a step, from the packets around it.

    The direction whose delays rose has packets below its new minimum only before the step; the one whose delays fell
    has packets below its old minimum only after it.
    """
    rose, fell = (ways[0], ways[1]) if size > 0 else (ways[1], ways[0])
    times = [way.minima_time[max(at - 2, 0) : at + 2] for way in ways]
    earliest, latest = float(np.nanmin(times)), float(np.nanmax(times))
    before = slice(max(at - _REACH, 0), at - 1)
    old, new = (
        way.time[
            (way.time >= earliest)
            & (way.time <= latest)
            & (way.delay - way.detour < np.nanmedian(way.minima[before]) + sign * abs(size) / 2)
        ]
        for way, sign in ((rose, 1), (fell, -1))
    )
    last_old, first_new = (float(old.max()) if len(old) else earliest), (float(new.min()) if len(new) else latest)
    return min(last_old, first_new), max(last_old, first_new)
