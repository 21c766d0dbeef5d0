"""Delays of groups over time, for charts: how each group's delays are distributed, and when.

Guarantee: a delay is known within 4.5%, its time within a slot; slots are 1 us at first, and two or five times as long
whenever there would be more than MOST_SLOTS, or memory would be half full (kernels/group_times.hpp). With two slots,
groups that come when memory is full are left out, and `left_out` says so. Memory: at most MOST_CELLS cells of 1.3 kB,
43 MB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final

from wirelag import _kernels
from wirelag.packets.interval import Interval
from wirelag.stats.distribution import Distribution, bin_of
from wirelag.synopses.samples import LEGS, SampleBatch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.packets.batch import PacketBatch
    from wirelag.stats.distributions import Distributions

MOST_SLOTS: Final = 120
MOST_CELLS: Final = 1 << 15
PER_OCTAVE: Final = 8
BINS: Final = _kernels.EIGHTHS


@cache
def middles_ns() -> npt.NDArray[np.int64]:
    """The middle of each eighth of an octave."""
    import numpy as np

    return np.rint(2.0 ** ((np.arange(BINS) + 0.5) / PER_OCTAVE)).astype(np.int64)


@cache
def _fine() -> npt.NDArray[np.int64]:
    """Their bins in a distribution."""
    import numpy as np

    return np.array([bin_of(ns) for ns in middles_ns().tolist()])


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

    def of(self, tag: int) -> GroupTime | None:
        """The delays of a group in each part of the time of all groups, without gaps; None if it was left out."""
        import numpy as np

        slots, length_ns = range(self.kernel.first, self.kernel.last + 1), self.kernel.length_ns
        counts = np.zeros((len(slots), BINS), np.uint32)
        if not self.kernel.counts(tag, counts.reshape(-1)):
            return None
        return GroupTime([Interval(slot * length_ns, (slot + 1) * length_ns) for slot in slots], counts)


@dataclass(frozen=True)
class GroupTime:
    """The delays of a group over time, each in the middle of its eighth of an octave."""

    when: list[Interval]
    counts: npt.NDArray[np.uint32]  # of each part, by eighth

    def quantiles_ns(self, q: float) -> list[float | None]:
        """A quantile of the delays of each part; None without any."""
        return [None if math.isnan(ns) else ns for ns in self._parts.quantile_ns(q).tolist()]

    @cached_property
    def _parts(self) -> Distributions:
        import numpy as np

        from wirelag.stats.distributions import Distributions

        rows, eighths = np.nonzero(self.counts)
        sums = np.zeros((len(self.counts), 8), np.uint64)
        sums[:, 0] = sums[:, 1] = self.counts.sum(axis=1)
        first = np.searchsorted(rows, np.arange(len(sums) + 1))
        held = np.flatnonzero(sums[:, 0])
        sums[held, 6], sums[held, 7] = middles_ns()[eighths[first[held]]], middles_ns()[eighths[first[held + 1] - 1]]
        weights = self.counts[rows, eighths].astype(np.uint64)
        return Distributions.of_cells(sums, rows, _fine()[eighths], weights)

    @property
    def whole(self) -> Distribution:
        """All delays, to read."""
        import numpy as np

        counts, found = self.counts.sum(axis=0, dtype=np.int64), Distribution()
        held = np.flatnonzero(counts)
        found.add(middles_ns()[held], counts[held])
        return found.compact()
