"""Delays in buckets whose bounds are powers of one factor: what Prometheus calls native, OpenTelemetry exponential.

Guarantee: bucket i holds the delays above FACTOR^(i-1) s up to FACTOR^i s, 2.2% wide; a delay is counted by the middle
of its bin (distribution.py), so bounds are exact to 0.4%. Memory: 7 kB, whatever is added. Delays up to 1 us count as
zero, negative ones too: clocks differ by more; those above 128 s count in the last bucket.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.stats.bins import MIDDLES_NS

SCALE: Final = 5  # FACTOR is 2^(2^-SCALE)
PER_DOUBLING: Final = 1 << SCALE
LOWEST: Final = -20 * PER_DOUBLING  # index of the bucket that would end at ZERO_S
HIGHEST: Final = 7 * PER_DOUBLING
ZERO_S: Final = 2.0 ** (LOWEST // PER_DOUBLING)

_INDEXES: Final = np.ceil(np.log2(np.maximum(MIDDLES_NS, 0.5) / 1e9) * PER_DOUBLING)
_PLACES: Final = np.clip(_INDEXES, LOWEST, HIGHEST).astype(np.int64) - LOWEST  # 0 counts as zero


class Exponential:
    """Counts that only grow."""

    __slots__ = ("_counts", "seconds")

    def __init__(self) -> None:
        self._counts = np.zeros(HIGHEST - LOWEST + 1, np.int64)
        self.seconds = 0.0

    def add(self, bins: npt.NDArray[np.int64], weights: npt.NDArray[Any], negative: int, seconds: float) -> None:
        """Add delays in bins, those that are negative, and their sum."""
        _kernels.count_bins(bins, weights, _PLACES, self._counts)
        self._counts[0] += negative
        self.seconds += seconds

    def copy(self) -> Exponential:
        """The counts of now."""
        found = Exponential()
        found._counts, found.seconds = self._counts.copy(), self.seconds
        return found

    @property
    def zero(self) -> int:
        """Delays that count as zero."""
        return int(self._counts[0])

    @property
    def count(self) -> int:
        """All delays."""
        return int(self._counts.sum())

    def buckets(self) -> tuple[int, list[int]]:
        """The index of the first bucket that holds a delay, and the counts from it to the last one; (0, []) if none."""
        held = np.flatnonzero(self._counts[1:])
        if not len(held):
            return 0, []
        first, last = int(held[0]) + 1, int(held[-1]) + 1
        return LOWEST + first, self._counts[first : last + 1].tolist()
