"""Delays over time, for charts. Memory: at most `MOST_SLOTS` distributions, 23 MB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from wirelag.packets.batch import PacketBatch
from wirelag.packets.intervals import Interval
from wirelag.stats.distribution import Distribution
from wirelag.synopses.samples import SampleBatch

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
        self._slots: dict[int, Distribution] = {}

    def add(self, packets: PacketBatch, samples: SampleBatch) -> None:
        """Take in samples."""
        times_ns = packets.time_ns[samples.rows]
        self._make_room(int(times_ns.min()), int(times_ns.max()))
        indexes = times_ns // self._length_ns
        for index in np.unique(indexes).tolist():
            mine = indexes == index
            weights = None if samples.weights is None else samples.weights[mine]
            self._slots.setdefault(index, Distribution()).add(samples.delays_ns[mine], weights)

    def _make_room(self, first_ns: int, last_ns: int) -> None:
        if self._slots:
            first_ns = min(first_ns, min(self._slots) * self._length_ns)
            last_ns = max(last_ns, max(self._slots) * self._length_ns)
        factor = 1
        while last_ns // (self._length_ns * factor) - first_ns // (self._length_ns * factor) >= MOST_SLOTS:
            factor *= 10
        if factor > 1:
            self._slots = _merged(self._slots, factor)
            self._length_ns *= factor

    def parts(self) -> list[tuple[Interval, Distribution]]:
        """The delays of each part of the time, without gaps: 30 to 120 parts, or up to 300 of the interval asked for.

        There are fewer where the capture is shorter than that.
        """
        if not self._slots:
            return []
        span = max(self._slots) - min(self._slots) + 1
        factor = 1 if self._asked else next(f for f in (1, 2, 5) if span <= f * MOST_POINTS or f == 5)
        slots, length = _merged(self._slots, factor), self._length_ns * factor
        return [
            (Interval(index * length, (index + 1) * length), slots.get(index, Distribution()))
            for index in range(min(slots), max(slots) + 1)
        ]


def _merged(slots: Mapping[int, Distribution], factor: int) -> dict[int, Distribution]:
    merged: dict[int, Distribution] = {}
    for index, delays in slots.items():
        merged.setdefault(index // factor, Distribution()).merge(delays)
    return merged
