"""Delays of groups over time, sample by sample, from the text of kernels/group_times.hpp."""

from __future__ import annotations

from collections import Counter

BINS = 41 * 8


class NaiveGroupTimes:
    """Counts by tag and slot."""

    def __init__(self, most_cells: int, most_slots: int) -> None:
        self.most_cells, self.most_slots = most_cells, most_slots
        self.length_ns, self.first, self.last, self.left_out = 1_000, 0, -1, 0
        self.cells: dict[tuple[int, int], Counter[int]] = {}

    def add(self, tag: int, time_ns: int, delay_ns: int, weight: int) -> None:
        """Add a delay."""
        self._cover(time_ns)
        while (
            (tag, time_ns // self.length_ns) not in self.cells
            and 2 * len(self.cells) >= self.most_cells
            and self.last - self.first > 1
        ):
            self._lengthen()
        place = tag, time_ns // self.length_ns
        if place not in self.cells and len(self.cells) >= self.most_cells:
            self.left_out += weight
            return
        eighth = min((max(delay_ns, 1) ** 8).bit_length() - 1, BINS - 1)  # floor(log2(delay^8))
        self.cells.setdefault(place, Counter())[eighth] += weight

    def _cover(self, time_ns: int) -> None:
        if self.last < self.first:
            self.first = self.last = time_ns // self.length_ns
        while True:
            slot = time_ns // self.length_ns
            first, last = min(self.first, slot), max(self.last, slot)
            if last - first < self.most_slots:
                self.first, self.last = first, last
                return
            self._lengthen()

    def _lengthen(self) -> None:
        by = 5 if str(self.length_ns).startswith("2") else 2
        self.length_ns, self.first, self.last = self.length_ns * by, self.first // by, self.last // by
        before, self.cells = self.cells, {}
        for (tag, slot), counts in before.items():
            self.cells.setdefault((tag, slot // by), Counter()).update(counts)
