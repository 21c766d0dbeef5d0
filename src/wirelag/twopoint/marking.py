"""Alternate marking: packets carry a colour that changes every period, so that each point counts the same packets.

Guarantee: the loss of a period is exact (sent less received), as long as packets are late by less than half a period
and the clocks differ by less than that. The mean delay of a period without loss is exact. With loss, `low` and `high`
bound it whatever packets were lost: the L of n whose absence moves the mean of times most are the earliest or the
latest, and none of them was sent outside of the period's first and last packet. No packet is compared with another,
so that nothing but the colour has to survive the path.
Memory: 100 bytes for each period.
G. Fioccola et al., *Alternate-Marking Method*, RFC 9341, 2022; counters (section 3.1) and mean delay (section 3.2.1.1).

A block is what a point saw of one period. A packet of the newest block's colour belongs to it. A packet of the other
colour is late, and belongs to the block before, if it comes within half a period of the first packet of the newest
block and of the latest packet of its own; else it opens another block. So periods without packets change nothing, and
blocks begin half a period apart, whatever comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

FEWEST_CHANGES: Final = 3  # of the colour, to learn the period

Times = npt.NDArray[np.int64]
Colours = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Block:
    """Packets of one colour in one period at one point; `sum_ns` is exact."""

    colour: bool
    packets: int
    sum_ns: int
    first_ns: int
    last_ns: int

    def add(self, more: Block) -> None:
        """Count more packets."""
        self.packets += more.packets
        self.sum_ns += more.sum_ns
        self.first_ns, self.last_ns = min(self.first_ns, more.first_ns), max(self.last_ns, more.last_ns)


@dataclass
class MarkingMeter:
    """Blocks at one point. Packets come as the capture has them; how they are split into batches does not matter."""

    period_ns: int
    blocks: list[Block] = field(default_factory=list)
    _opened_ns: int = 0  # when the first packet of the newest block came

    def observe(self, time_ns: Times, colours: Colours) -> None:
        """Count these packets."""
        for start, end in _runs(colours, 2 * np.diff(time_ns) > self.period_ns):
            self._add(bool(colours[start]), time_ns[start:end])

    def _add(self, colour: bool, times: Times) -> None:
        """Packets of one colour, of which each but the first comes within half a period of the one before it."""
        if not self.blocks or self.blocks[-1].colour != colour:
            late = self._late(colour, times)
            if late:
                self.blocks[-2].add(_block(colour, times[:late]))
            if late == len(times):
                return
            times = times[late:]
            self._opened_ns = int(times[0])
            self.blocks.append(_block(colour, times))
        else:
            self.blocks[-1].add(_block(colour, times))

    def _late(self, colour: bool, times: Times) -> int:
        """How many of these, of another colour than the newest block, belong to the block before."""
        if len(self.blocks) < 2 or 2 * (int(times[0]) - self.blocks[-2].last_ns) > self.period_ns:
            return 0
        beyond = 2 * np.abs(times - self._opened_ns) > self.period_ns
        return int(beyond.argmax()) if beyond.any() else len(times)


def _block(colour: bool, times: Times) -> Block:
    when = int(times[0])
    return Block(colour, len(times), int((times - when).sum()) + when * len(times), int(times.min()), int(times.max()))


def _runs(colours: Colours, pauses: Colours | bool = False) -> Iterable[tuple[int, int]]:
    """Where runs of equal colours begin and end; a pause ends one, too."""
    if not len(colours):
        return ()
    ends = (np.diff(colours) | pauses).nonzero()[0] + 1
    return pairwise([0, *ends.tolist(), len(colours)])


@dataclass
class PeriodFinder:
    """Finds the period: the run of one colour in which half of the time lies; late packets make short ones."""

    _last: tuple[int, bool] | None = None  # the run that is open: its begin and colour
    lengths: list[int] = field(default_factory=list)  # of runs that ended; the first began before the capture

    def observe(self, time_ns: Times, colours: Colours) -> None:
        """Look at these packets."""
        for start, _ in _runs(colours):
            when, colour = int(time_ns[start]), bool(colours[start])
            if self._last is None:
                self._last = when, colour
            elif colour != self._last[1]:
                self.lengths.append(max(0, when - self._last[0]))
                self._last = when, colour

    @property
    def period_ns(self) -> int | None:
        """The period; None: the colour hardly changes."""
        lengths = sorted(self.lengths[1:])
        if len(lengths) < FEWEST_CHANGES - 1:
            return None
        reached, half = 0, sum(lengths) / 2
        for length in lengths:
            reached += length
            if reached >= half:
                return max(1, length)
        return None


class Period(NamedTuple):
    """What became of the packets of one period; times in ns."""

    start_ns: int  # its first packet at the upstream point
    end_ns: int
    colour: bool
    sent: int
    received: int
    mean_ns: float | None
    low_ns: float | None
    high_ns: float | None

    @property
    def lost(self) -> int:
        """Below 0: more arrived than was sent, since packets were duplicated or joined on the way."""
        return self.sent - self.received


class Matched(NamedTuple):
    """Periods that both points saw whole, and blocks that have no counterpart."""

    periods: list[Period]
    only_upstream: int
    only_downstream: int


def match(up: Sequence[Block], down: Sequence[Block], period_ns: int, offset_ns: int = 0) -> Matched:
    """Pair the blocks of two points: equal colours that begin within half a period of each other.

    `offset_ns` is what the downstream clock is ahead. The first and the last block of either point may be cut off by
    its capture, and are left out.
    """
    whole_up, whole_down = up[1:-1], down[1:-1]
    cut_off = {(one.colour, one.first_ns - shift) for side, shift in ((up, 0), (down, offset_ns)) for one in side[:1]}
    cut_off |= {(one.colour, one.first_ns - shift) for side, shift in ((up, 0), (down, offset_ns)) for one in side[-1:]}
    periods: list[Period] = []
    at = alone = missed = 0
    for sent in whole_up:
        while at < len(whole_down) and 2 * (whole_down[at].first_ns - offset_ns - sent.first_ns) < -period_ns:
            alone += not _is_near(whole_down[at], offset_ns, cut_off, period_ns)
            at += 1
        found = whole_down[at] if at < len(whole_down) else None
        if found is None or found.colour != sent.colour or 2 * (found.first_ns - offset_ns - sent.first_ns) > period_ns:
            missed += not _is_near(sent, 0, cut_off, period_ns)
            continue
        periods.append(_period(sent, found, offset_ns))
        at += 1
    alone += sum(not _is_near(block, offset_ns, cut_off, period_ns) for block in whole_down[at:])
    return Matched(periods, missed, alone)


def _is_near(block: Block, offset_ns: int, cut_off: set[tuple[bool, int]], period_ns: int) -> bool:
    """Whether its counterpart is one that a capture cut off."""
    return any(
        colour == block.colour and 2 * abs(block.first_ns - offset_ns - first_ns) <= period_ns
        for colour, first_ns in cut_off
    )


def _period(sent: Block, got: Block, offset_ns: int) -> Period:
    up_ns = sent.sum_ns / sent.packets - sent.first_ns  # small numbers, so that floats lose nothing
    down_ns = got.sum_ns / got.packets - sent.first_ns - offset_ns
    if sent.packets == got.packets:
        # exact: one division
        mean_ns = (got.sum_ns - sent.sum_ns - offset_ns * sent.packets) / sent.packets
        return Period(sent.first_ns, sent.last_ns, sent.colour, sent.packets, got.packets, mean_ns, mean_ns, mean_ns)
    lost = sent.packets - got.packets
    if lost < 0:
        return Period(sent.first_ns, sent.last_ns, sent.colour, sent.packets, got.packets, None, None, None)
    length_ns, share = sent.last_ns - sent.first_ns, lost / got.packets
    earliest_ns = max(0.0, up_ns - share * (length_ns - up_ns))  # the latest were lost
    latest_ns = min(float(length_ns), up_ns + share * up_ns)  # the earliest were lost
    bounds = down_ns - latest_ns, down_ns - earliest_ns
    return Period(sent.first_ns, sent.last_ns, sent.colour, sent.packets, got.packets, down_ns - up_ns, *bounds)
