"""Delays of groups over time, for charts: how each group's delays are distributed, and when.

Guarantee: a delay is known within 4.5%, its time within a slot; slots are 1 us at first, and two or five times as long
whenever there would be more than MOST_SLOTS, or memory would be half full (kernels/group_times.hpp). With two slots,
groups that come when memory is full are left out, and `left_out` says so. Memory: at most MOST_CELLS cells of 1.3 kB,
43 MB.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.batch import PacketBatch
from wirelag.packets.intervals import Interval
from wirelag.stats.distribution import Distribution, bin_of
from wirelag.synopses.samples import LEGS, SampleBatch

MOST_SLOTS: Final = 120
MOST_CELLS: Final = 1 << 15
PER_OCTAVE: Final = 8
BINS: Final = _kernels.EIGHTHS
MIDDLES_NS: Final = np.rint(2.0 ** ((np.arange(BINS) + 0.5) / PER_OCTAVE)).astype(np.int64)
_FINE: Final = np.array([bin_of(ns) for ns in MIDDLES_NS.tolist()])  # their bins in a distribution
_APART: Final = 6 * PER_OCTAVE  # from here on no two of them are in one bin
_NO_WEIGHTS: Final = np.empty(0, np.int64)


class GroupTimes:
    """A sink of samples that know their group. `leg`: whose samples count; neither leg: all do."""

    def __init__(self, leg: str = "") -> None:
        self._legs = 1 << LEGS.index(leg) if leg in LEGS else 3
        self._kernel = _kernels.GroupTimes(MOST_CELLS, MOST_SLOTS)

    def add(self, packets: PacketBatch, samples: SampleBatch) -> None:
        """Take in samples."""
        if samples.tags is None:
            return
        self._kernel.add(
            np.ascontiguousarray(packets.time_ns),
            np.ascontiguousarray(samples.rows, np.uint32),
            np.ascontiguousarray(samples.legs),
            np.ascontiguousarray(samples.delays_ns),
            _NO_WEIGHTS if samples.weights is None else np.ascontiguousarray(samples.weights),
            samples.tags,
            self._legs,
        )

    @property
    def left_out(self) -> int:
        """Samples of groups that came when memory was full."""
        return self._kernel.left_out

    def parts(self, tag: int) -> list[tuple[Interval, Distribution]]:
        """The delays of a group in each part of the time of all groups, without gaps; empty if it was left out."""
        slots, length_ns = range(self._kernel.first, self._kernel.last + 1), self._kernel.length_ns
        counts = np.zeros((len(slots), BINS), np.uint32)
        held = [self._kernel.counts(tag, slot, row) for slot, row in zip(slots, counts, strict=True)]
        if not any(held):
            return []
        return [
            (Interval(slot * length_ns, (slot + 1) * length_ns), _distribution(row))
            for slot, row in zip(slots, counts, strict=True)
        ]


def _distribution(counts: npt.NDArray[np.uint32]) -> Distribution:
    """Delays to read, each in the middle of its eighth of an octave."""
    held = np.flatnonzero(counts)
    if len(held) and held[0] < _APART:
        found = Distribution()
        found.add(MIDDLES_NS[held], counts[held].astype(np.int64))
        return found
    delays, weights = MIDDLES_NS[held].tolist(), counts[held].tolist()
    sums = [len(held), sum(weights)]
    for total in (
        sum(weight * ns for weight, ns in zip(weights, delays, strict=True)),
        sum(weight * ns * ns for weight, ns in zip(weights, delays, strict=True)),
    ):
        sums += [total & 2**64 - 1, total >> 64]
    ends = [delays[0], delays[-1]] if delays else [0, 0]
    columns = np.array([weights, [weight * weight for weight in weights]], np.uint64)
    return Distribution.of_bins(_FINE[held], columns, np.array([*sums, *ends], np.uint64))
