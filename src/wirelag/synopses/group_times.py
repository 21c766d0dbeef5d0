"""Delays of groups over time, for charts: how each group's delays are distributed, and when.

Guarantee: a delay is known within 4.5%, its time within a slot; slots are 1 us at first, and two or five times as long
whenever there would be more than MOST_SLOTS, or memory would be full. With as long slots as the capture, groups that
come when memory is full are left out, and `left_out` says so. Memory: at most MOST_CELLS cells of 1.3 kB, 43 MB.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag.packets.batch import PacketBatch
from wirelag.packets.intervals import Interval
from wirelag.stats.distribution import Distribution
from wirelag.synopses.samples import LEGS, SampleBatch

MOST_SLOTS: Final = 120
MOST_CELLS: Final = 1 << 15
PER_OCTAVE: Final = 8
BINS: Final = 41 * PER_OCTAVE  # up to 2^41 ns, 37 minutes
MIDDLES_NS: Final = np.rint(2.0 ** ((np.arange(BINS) + 0.5) / PER_OCTAVE)).astype(np.int64)
Counts = npt.NDArray[np.uint32]


class GroupTimes:
    """A sink of samples that know their group. `leg`: whose samples count; neither leg: all do."""

    def __init__(self, leg: str = "") -> None:
        self._leg = LEGS.index(leg) if leg in LEGS else None
        self._length_ns = 1_000
        self._cells: dict[tuple[int, int], int] = {}  # by tag and slot: the row of its counts
        self._counts: Counts = np.zeros((64, BINS), np.uint32)
        self.left_out = 0  # samples

    def add(self, packets: PacketBatch, samples: SampleBatch) -> None:
        """Take in samples."""
        if samples.tags is None:
            return
        mine = slice(None) if self._leg is None else samples.legs == self._leg
        delays_ns, tags = samples.delays_ns[mine], samples.tags[mine]
        if not len(delays_ns):
            return
        times_ns = packets.time_ns[samples.rows[mine]]
        weights = np.ones(len(delays_ns), np.uint32) if samples.weights is None else samples.weights[mine]
        self._make_room(int(times_ns.min()), int(times_ns.max()))
        bins = np.minimum(np.log2(np.maximum(delays_ns, 1)) * PER_OCTAVE, BINS - 1).astype(np.int64)
        known, group = np.unique(tags, return_inverse=True)
        slots = times_ns // self._length_ns
        first = int(slots.min())
        width = int(slots.max()) - first + 1
        cells, cell = np.unique(group.reshape(-1) * width + (slots - first), return_inverse=True)
        rows = np.array([self._row(int(known[one // width]), first + int(one % width)) for one in cells.tolist()])
        at = rows[cell.reshape(-1)]
        kept = at >= 0
        self.left_out += int(weights[~kept].sum())
        np.add.at(self._counts, (at[kept], bins[kept]), weights[kept].astype(np.uint32))

    def _row(self, tag: int, slot: int) -> int:
        """The row of a cell, a new one if need be; -1 if there is no room."""
        row = self._cells.get((tag, slot))
        if row is not None:
            return row
        if len(self._cells) >= MOST_CELLS:
            return -1
        row = self._cells[tag, slot] = len(self._cells)
        if row >= len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        return row

    def _make_room(self, first_ns: int, last_ns: int) -> None:
        slots = [slot for _, slot in self._cells]
        if slots:
            first_ns = min(first_ns, min(slots) * self._length_ns)
            last_ns = max(last_ns, max(slots) * self._length_ns)
        span_ns = last_ns - first_ns
        while span_ns // self._length_ns >= MOST_SLOTS or (
            2 * len(self._cells) > MOST_CELLS and span_ns >= self._length_ns
        ):
            self._lengthen()

    def _lengthen(self) -> None:
        before, counts = self._cells, self._counts
        factor = 5 if str(self._length_ns).startswith("2") else 2  # 1, 2, 10, 20, 100: each is a part of the next
        self._length_ns *= factor
        self._cells, self._counts = {}, np.zeros((max(64, len(before)), BINS), np.uint32)
        for (tag, slot), row in before.items():
            self._counts[self._row(tag, slot // factor)] += counts[row]

    def parts(self, tag: int) -> list[tuple[Interval, Distribution]]:
        """The delays of a group in each part of the time of all groups, without gaps; empty if it was left out."""
        mine = {slot: row for (one, slot), row in self._cells.items() if one == tag}
        if not mine:
            return []
        slots, length_ns = [slot for _, slot in self._cells], self._length_ns
        return [
            (Interval(slot * length_ns, (slot + 1) * length_ns), self._distribution(mine.get(slot)))
            for slot in range(min(slots), max(slots) + 1)
        ]

    def _distribution(self, row: int | None) -> Distribution:
        found = Distribution()
        if row is not None:
            held = np.flatnonzero(self._counts[row])
            found.add(MIDDLES_NS[held], self._counts[row, held].astype(np.int64))
        return found
