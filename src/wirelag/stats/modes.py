"""Delays that fall into clearly separate groups. Their mean is meaningless, so the groups are listed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag.units import format_duration

FACTOR: Final = 8.0  # smallest ratio between neighbouring delays of different groups
LEAST_SHARE: Final = 0.005
FEWEST: Final = 5
PRECISION_NS: Final = 1_000  # precision of timestamps: below it ratios mean nothing


@dataclass(frozen=True, slots=True)
class Cluster:
    """A group of delays, and the time range in which its packets were sent."""

    count: int
    smallest_ns: int
    largest_ns: int
    mean_ns: float
    first_ns: int
    last_ns: int

    def describe(self, origin_ns: int) -> str:
        """The group in words; times count from `origin_ns`."""
        return (
            f"{self.count:,} packets took {format_duration(self.smallest_ns)} to {format_duration(self.largest_ns)}"
            f" (mean {format_duration(self.mean_ns)}), sent between"
            f" +{(self.first_ns - origin_ns) / 1e9:.1f} s and +{(self.last_ns - origin_ns) / 1e9:.1f} s"
        )


def explain_clusters(sent_ns: npt.NDArray[np.int64], delays_ns: npt.NDArray[np.int64]) -> list[Cluster]:
    """The groups that delays fall into, from the fastest to the slowest; empty if there is only one.

    Neighbouring groups are a factor of 8 apart, and each has 0.5% of the packets and at least 5: the longest of many
    long-tailed delays may be far from the others, but they are few. A delay between groups counts with the nearer one.
    """
    if not len(delays_ns):
        return []
    order = np.argsort(delays_ns, kind="stable")
    delays, sent = delays_ns[order], sent_ns[order]
    size = np.maximum(delays, PRECISION_NS).astype(np.float64)
    ratios = size[1:] / size[:-1]
    least = max(FEWEST, LEAST_SHARE * len(delays))
    cuts = [0, *(int(gap) + 1 for gap in np.flatnonzero(ratios >= FACTOR)), len(delays)]
    while len(cuts) > 2:
        counts = np.diff(cuts)
        small = int(np.argmin(counts))
        if counts[small] >= least:
            break
        sides = [cut for cut in cuts[small : small + 2] if 0 < cut < len(delays)]
        cuts.remove(min(sides, key=lambda cut: float(ratios[cut - 1])))
    if len(cuts) == 2:
        return []
    return [
        Cluster(
            end - start,
            int(delays[start]),
            int(delays[end - 1]),
            float(delays[start:end].mean()),
            int(sent[start:end].min()),
            int(sent[start:end].max()),
        )
        for start, end in itertools.pairwise(cuts)
    ]
