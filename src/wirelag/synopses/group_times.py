"""Delays of groups over time, for charts: how each group's delays are distributed, and when.

Guarantee: a delay is known within 4.5%, its time within a slot; slots are 1 us at first, and two or five times as long
whenever there would be more than MOST_SLOTS, or memory would be half full (kernels/group_times.hpp). With two slots,
groups that come when memory is full are left out, and `left_out` says so. Memory: at most MOST_CELLS cells of 1.3 kB,
43 MB.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wirelag import _kernels
from wirelag.packets.interval import Interval
from wirelag.stats.distribution import Distribution
from wirelag.synopses.samples import LEGS, SampleBatch

if TYPE_CHECKING:
    from wirelag.packets.batch import PacketBatch

MOST_SLOTS: Final = 120
MOST_CELLS: Final = 1 << 15
BINS: Final = _kernels.EIGHTHS


class GroupTimes:
    """A sink of samples that know their group. `leg`: whose samples count; neither leg: all do."""

    def __init__(self, leg: str = "") -> None:
        self.legs = 1 << LEGS.index(leg) if leg in LEGS else 3
        self.kernel = _kernels.GroupTimes(MOST_CELLS, MOST_SLOTS)

    def add(self, packets: PacketBatch, samples: SampleBatch) -> None:
        """Take in samples."""
        import numpy as np

        if samples.tags is None:
            return
        self.kernel.add(
            np.ascontiguousarray(packets.time_ns),
            np.ascontiguousarray(samples.rows, np.uint32),
            np.ascontiguousarray(samples.legs),
            np.ascontiguousarray(samples.delays_ns),
            np.empty(0, np.int64) if samples.weights is None else np.ascontiguousarray(samples.weights),
            samples.tags,
            self.legs,
        )

    @property
    def left_out(self) -> int:
        """Samples of groups that came when memory was full."""
        return self.kernel.left_out

    def of(self, tag: int, shares: Sequence[float]) -> GroupTime | None:
        """The delays of a group in each part of the time of all groups, without gaps; None if it was left out."""
        found, length_ns = _kernels.group_times(self.kernel, tag, shares), self.kernel.length_ns
        if found is None:
            return None
        slots = range(self.kernel.first, self.kernel.last + 1)
        return GroupTime([Interval(slot * length_ns, (slot + 1) * length_ns) for slot in slots], *found)


@dataclass(frozen=True)
class GroupTime:
    """The delays of a group over time, each in the middle of its eighth of an octave."""

    when: list[Interval]
    quantiles_ns: list[list[float | None]]  # of each part, by share; None without any delays
    counts: list[int]  # of all delays, by eighth

    @property
    def whole(self) -> Distribution:
        """All delays."""
        found = Distribution()
        held = [(ns, count) for ns, count in zip(_kernels.eighth_middles(), self.counts, strict=True) if count]
        found.add(array("q", [ns for ns, _ in held]), array("q", [count for _, count in held]))
        return found
