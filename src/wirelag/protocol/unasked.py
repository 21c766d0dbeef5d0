"""What a point tells of an interval before it is asked: the times of packets under way at its edges. No I/O.

Law: it tells what it was last asked for, if that was all near the edges, as it is where hardly any packet is lost or
overtaken. What it tells is what it would reply, so results are the same; only the question is saved. A point that is
asked for anything else tells nothing unasked, since it is asked anyway. After LATELY intervals it waits to be asked
again, and learns how far from the edges is enough now, and how many packets differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from wirelag.codec import array_of, number_of
from wirelag.packets.interval import Interval
from wirelag.synopses.cache import Cached
from wirelag.synopses.reordering import UNTOLD_NS, before, times_of
from wirelag.synopses.symbols import MOST_UNASKED, Rows, SymbolSynopsis, Unasked, Words, numbers_of

LATELY: Final = 64  # intervals
MARGIN: Final = 3, 2  # how much further from the edges than what was asked for
SPARE: Final = 16, 2  # packets told at most, and for each that was asked for: more take more bytes than the question
NEAR: Final = 8  # the first and the last part of an interval, of this many


@dataclass(frozen=True, slots=True)
class Habit:
    """What a point tells unasked: packets this near to the start and to the end, and perhaps the order."""

    head_ns: int
    tail_ns: int
    order: bool
    difference: int  # packets that differ
    until_ns: int  # intervals that begin then are asked about again


def habit_of(
    cached: Cached, tail: Cached, ask: Mapping[str, Any], interval: Interval, last: Habit | None
) -> Habit | None:
    """What would have made a question needless; None if nothing would. `tail`: the sample sent of these packets."""
    numbers, wanted = numbers_of(cached.ids), array_of(ask, "wanted", np.uint64)
    order = array_of(ask, "order", np.uint64) if "order" in ask else None
    if not len(wanted) and order is None:
        return None
    if order is not None and not np.isin(order, before(cached, tail, numbers)).all():
        return None
    times_ns = times_of(numbers, cached.times_ns, wanted)
    head_ns, tail_ns, near_ns = times_ns - interval.start_ns, interval.end_ns - times_ns, interval.length_ns // NEAR
    at_start, at_end = head_ns < near_ns, tail_ns <= near_ns
    if not _is_plain(cached, numbers) or (times_ns == UNTOLD_NS).any() or not (at_start | at_end).all():
        return None
    far_ns = [int(one[there].max(initial=-1)) + 1 for one, there in ((head_ns, at_start), (tail_ns, at_end))]
    first_ns, last_ns = (one_ns * MARGIN[0] // MARGIN[1] for one_ns in far_ns)
    if last is not None and interval.start_ns < last.until_ns:
        first_ns, last_ns = max(first_ns, last.head_ns), max(last_ns, last.tail_ns)
    until_ns = interval.start_ns + LATELY * interval.length_ns
    habit = Habit(first_ns, last_ns, order is not None, number_of(ask, "difference"), until_ns)
    return habit if len(_near(cached, interval, habit)) <= SPARE[0] + SPARE[1] * len(wanted) else None


def unasked(
    synopsis: SymbolSynopsis, cached: Cached, numbers: Words, interval: Interval, habit: Habit
) -> Unasked | None:
    """What is told unasked about an interval; None if that is too much, or packets have copies."""
    rows, times_ns = _near(cached, interval, habit), cached.times_ns
    if interval.start_ns >= habit.until_ns or len(rows) > MOST_UNASKED or not _is_plain(cached, numbers):
        return None
    before_ns = times_of(numbers, times_ns, synopsis.before) if habit.order else None
    return Unasked(numbers[rows], times_ns[rows], before_ns)


def _near(cached: Cached, interval: Interval, habit: Habit) -> Rows:
    """The packets that are told by habit."""
    first_ns, last_ns = interval.start_ns + habit.head_ns, interval.end_ns - habit.tail_ns
    return np.flatnonzero((cached.times_ns < first_ns) | (cached.times_ns >= last_ns))


def _is_plain(cached: Cached, numbers: Words) -> bool:
    """Whether no packet has copies: the number of a copy is not its id."""
    return bool((numbers == cached.ids).all())
