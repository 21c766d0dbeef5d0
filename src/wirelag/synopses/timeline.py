"""Delays over time, for charts. Memory: at most `MOST_SLOTS` distributions for each leg, 46 MB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from wirelag.packets.interval import Interval
from wirelag.stats.distribution import Distribution
from wirelag.synopses.samples import LEGS, SampleBatch

if TYPE_CHECKING:
    from wirelag.packets.batch import PacketBatch
    from wirelag.stats.distribution import Words

MOST_SLOTS: Final = 300
MOST_POINTS: Final = 120


class Timeline:
    """Delays over time, as a sink that takes them as they come: no length need be known before the end.

    Slots are 1 us at first and ten times as long whenever there would be more than `MOST_SLOTS`. With an interval,
    they are that long at first. A delay belongs to the time of its response.
    """

    def __init__(self, interval_ns: int | None = None) -> None:
        self._asked = interval_ns is not None
        self._length_ns = interval_ns or 1_000
        self._slots: dict[tuple[int, int], Distribution] = {}  # by place in time, and leg

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
            slot = self._slots[index, leg] = Distribution()
        return slot

    def merge(self, other: Timeline) -> None:
        """Add the delays of another."""
        if not other._slots:
            return
        indexes = other._indexes
        self._make_room(min(indexes) * other._length_ns, max(indexes) * other._length_ns)
        longest = max(self._length_ns, other._length_ns)
        self._slots, self._length_ns = _merged(self._slots, longest // self._length_ns), longest
        for place, delays in _merged(other._slots, longest // other._length_ns).items():
            self._slots.setdefault(place, Distribution()).merge(delays)

    @property
    def _indexes(self) -> list[int]:
        return [index for index, _ in self._slots]

    def _make_room(self, first_ns: int, last_ns: int) -> None:
        if self._slots:
            first_ns = min(first_ns, min(self._indexes) * self._length_ns)
            last_ns = max(last_ns, max(self._indexes) * self._length_ns)
        factor = 1
        while last_ns // (self._length_ns * factor) - first_ns // (self._length_ns * factor) >= MOST_SLOTS:
            factor *= 10
        if factor > 1:
            self._slots = _merged(self._slots, factor)
            self._length_ns *= factor

    def parts(self, leg: str) -> list[tuple[Interval, Distribution]]:
        """The delays of a leg in each part of the time, without gaps; both legs have the same parts.

        There are 30 to 120 parts, or up to 300 of the interval asked for; fewer where the capture is shorter.
        """
        if not self._slots:
            return []
        indexes = self._indexes
        span = max(indexes) - min(indexes) + 1
        factor = 1 if self._asked else next(f for f in (1, 2, 5) if span <= f * MOST_POINTS or f == 5)
        slots = self._slots if factor == 1 else _merged(self._slots, factor)
        length = self._length_ns * factor
        return [
            (Interval(index * length, (index + 1) * length), slots.get((index, LEGS.index(leg)), Distribution()))
            for index in range(min(indexes) // factor, max(indexes) // factor + 1)
        ]


def _merged(slots: Mapping[tuple[int, int], Distribution], factor: int) -> dict[tuple[int, int], Distribution]:
    merged: dict[tuple[int, int], Distribution] = {}
    for (index, leg), delays in slots.items():
        place = index // factor, leg
        if place not in merged:
            merged[place] = Distribution()
        merged[place].merge(delays)
    return merged
