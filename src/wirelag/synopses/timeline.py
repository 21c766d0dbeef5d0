"""Delays over time, for charts. Memory: at most `MOST_SLOTS` distributions for each leg, 46 MB, and 5 MB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wirelag import _kernels
from wirelag.packets.interval import Interval
from wirelag.stats.distribution import WORDS, Distribution
from wirelag.synopses.samples import LEGS, SampleBatch

if TYPE_CHECKING:
    from wirelag.packets.batch import PacketBatch
    from wirelag.stats.distribution import Words

MOST_SLOTS: Final = 300
MOST_POINTS: Final = 120
AT_ONCE: Final = 64  # slots that get memory together: so much is not cleared before it is used, page by page


class Timeline:
    """Delays over time, as a sink that takes them as they come: no length need be known before the end.

    Slots are 1 us at first and ten times as long whenever there would be more than `MOST_SLOTS`. With an interval,
    they are that long at first. A delay belongs to the time of its response.
    """

    def __init__(self, interval_ns: int | None = None) -> None:
        self._asked = interval_ns is not None
        self._length_ns = interval_ns or 1_000
        self._slots: dict[tuple[int, int], Distribution] = {}  # by place in time, and leg
        self._reach: tuple[int, int] | None = None  # the first and the last place
        self._free: list[Words] = []

    def __getstate__(self) -> dict[str, Any]:
        """What is merged, without memory that nothing was added to."""
        return vars(self) | {"_free": []}

    def add(self, packets: PacketBatch, samples: SampleBatch) -> None:
        """Take in samples."""
        import numpy as np

        times_ns = packets.time_ns[samples.rows]
        self._make_room(first_ns := int(times_ns.min()), int(times_ns.max()))
        first, legs = first_ns // self._length_ns, samples.legs.astype(np.int64)
        places = legs + (times_ns // self._length_ns - first) * len(LEGS)
        for place in np.flatnonzero(np.bincount(places)).tolist():
            mine = places == place
            slot = self._slot(first + place // len(LEGS), place % len(LEGS))
            slot.add(samples.delays_ns[mine], None if samples.weights is None else samples.weights[mine])

    def memory_of(self, first_ns: int, last_ns: int) -> tuple[int, int, list[Words]]:
        """Where samples of this time are added: the first slot, its length, and memory, leg by leg of each slot."""
        self._make_room(first_ns, last_ns)
        first, last = first_ns // self._length_ns, last_ns // self._length_ns
        slots = [self._slot(index, leg).memory for index in range(first, last + 1) for leg in range(len(LEGS))]
        return first, self._length_ns, slots

    def _slot(self, index: int, leg: int) -> Distribution:
        """The delays of a leg in a slot, which may be new."""
        slot = self._slots.get((index, leg))
        if slot is None:
            if not self._free:
                memory = _kernels.words(AT_ONCE * WORDS)
                self._free = [memory[at : at + WORDS] for at in range(0, len(memory), WORDS)]
            slot = self._slots[index, leg] = Distribution(self._free.pop())
        return slot

    def merge(self, other: Timeline) -> None:
        """Add the delays of another."""
        if other._reach is None:
            return
        first, last = (place * other._length_ns for place in other._reach)
        self._make_room(first, last)
        longest = max(self._length_ns, other._length_ns)
        self._lengthen(longest // self._length_ns)
        for place, delays in _merged(other._slots, longest // other._length_ns).items():
            self._slots.setdefault(place, Distribution()).merge(delays)
        places = [place for place, _ in self._slots]
        self._reach = min(places), max(places)

    def _make_room(self, first_ns: int, last_ns: int) -> None:
        if self._reach is not None:
            first_ns = min(first_ns, self._reach[0] * self._length_ns)
            last_ns = max(last_ns, self._reach[1] * self._length_ns)
        factor = 1
        while last_ns // (self._length_ns * factor) - first_ns // (self._length_ns * factor) >= MOST_SLOTS:
            factor *= 10
        self._lengthen(factor)
        self._reach = first_ns // self._length_ns, last_ns // self._length_ns

    def _lengthen(self, factor: int) -> None:
        """Make slots longer by this factor, in the memory of the first of those that become one."""
        if factor == 1:
            return
        before, self._slots = self._slots, {}
        for (index, leg), delays in before.items():
            mine = self._slots.setdefault((index // factor, leg), delays)
            if mine is not delays:
                mine.merge(delays)
        self._length_ns *= factor

    def parts(self, leg: str) -> list[tuple[Interval, Distribution]]:
        """The delays of a leg in each part of the time, without gaps; both legs have the same parts.

        There are 30 to 120 parts, or up to 300 of the interval asked for; fewer where the capture is shorter.
        """
        if self._reach is None:
            return []
        first, last = self._reach
        span = last - first + 1
        factor = 1 if self._asked else next(f for f in (1, 2, 5) if span <= f * MOST_POINTS or f == 5)
        slots = self._slots if factor == 1 else _merged(self._slots, factor)
        length = self._length_ns * factor
        return [
            (Interval(index * length, (index + 1) * length), slots.get((index, LEGS.index(leg)), Distribution()))
            for index in range(first // factor, last // factor + 1)
        ]


def _merged(slots: Mapping[tuple[int, int], Distribution], factor: int) -> dict[tuple[int, int], Distribution]:
    merged: dict[tuple[int, int], Distribution] = {}
    for (index, leg), delays in slots.items():
        place = index // factor, leg
        if place not in merged:
            merged[place] = Distribution()
        merged[place].merge(delays)
    return merged
