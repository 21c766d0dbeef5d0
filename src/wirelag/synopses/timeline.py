"""Delays over time, for charts. Memory: at most `MOST_SLOTS` distributions for each leg, 46 MB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval
from wirelag.stats.distribution import WORDS, Distribution, add_by_leg
from wirelag.synopses.samples import LEGS, SampleBatch

MOST_SLOTS: Final = 300
MOST_POINTS: Final = 120

Ints = npt.NDArray[Any]


class Timeline:
    """Delays over time, as a sink that takes them as they come: no length need be known before the end.

    Slots are 1 us at first and ten times as long whenever there would be more than `MOST_SLOTS`. With an interval,
    they are that long at first. A delay belongs to the time of its response.
    """

    def __init__(self, interval_ns: int | None = None) -> None:
        self._asked = interval_ns is not None
        self._length_ns = interval_ns or 1_000
        self._slots: dict[tuple[int, int], Distribution] = {}  # by place in time, and leg
        self._memory: dict[int, npt.NDArray[np.uint64]] = {}  # of both legs of a slot, in one piece

    def add(self, packets: PacketBatch, samples: SampleBatch) -> None:
        """Take in samples."""
        times_ns = packets.time_ns[samples.rows]
        memory = self.memory_of(int(times_ns.min()), int(times_ns.max()))
        if memory is not None:
            add_by_leg(memory, samples.delays_ns, samples.weights, samples.legs)
        else:
            self.add_times(times_ns, samples.legs, samples.delays_ns, samples.weights)

    def memory_of(self, first_ns: int, last_ns: int) -> npt.NDArray[np.uint64] | None:
        """Where samples of this time are added, by leg: of most batches, in one slot; None: in several."""
        self._make_room(first_ns, last_ns)
        first = first_ns // self._length_ns
        return self._both_legs(first) if last_ns // self._length_ns == first else None

    def add_times(self, times_ns: Ints, legs: Ints, delays_ns: Ints, weights: Ints | None = None) -> None:
        """Take in samples of any time that there is room for."""
        first = int(times_ns.min()) // self._length_ns
        places = legs.astype(np.int64) + (times_ns // self._length_ns - first) * len(LEGS)
        for place in np.flatnonzero(np.bincount(places)).tolist():
            mine = places == place
            index, leg = first + place // len(LEGS), place % len(LEGS)
            self._both_legs(index)
            slot = self._slots.setdefault((index, leg), Distribution())
            slot.add(delays_ns[mine], None if weights is None else weights[mine])

    def _both_legs(self, index: int) -> npt.NDArray[np.uint64] | None:
        """The memory of both legs of a slot, a new one if need be; None if they were merged."""
        if index not in self._memory and not any((index, leg) in self._slots for leg in range(len(LEGS))):
            memory = self._memory[index] = np.zeros(len(LEGS) * WORDS, np.uint64)
            for leg in range(len(LEGS)):
                self._slots[index, leg] = Distribution(memory[leg * WORDS : (leg + 1) * WORDS])
        return self._memory.get(index)

    def __getstate__(self) -> dict[str, Any]:
        """What is merged: a timeline that travelled is not added to."""
        return vars(self) | {"_memory": {}}

    def merge(self, other: Timeline) -> None:
        """Add the delays of another."""
        if not other._slots:
            return
        self._memory = {}
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
            self._memory = {}

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
