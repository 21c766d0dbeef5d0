"""How sure a number is when samples come in connections, whose own samples are alike.

Guarantee: intervals cover the truth in 95% of cases however alike the samples of one connection are, if there are many
connections. Connections fall by their flow key, a hash, into 32 crowds. Crowds are independent of each other, so their
differences tell the variance of a mean or of a share (the method of random groups). Memory: a count for each crowd and
bin, 1.2 MB at most. Merging is adding.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.distribution import BINS, MIDDLES_NS, Z95

CROWDS: Final = _kernels.CROWDS
LEAST: Final = 4  # crowds with samples; fewer cannot tell a variance
_NO_WEIGHTS: Final = np.empty(0, np.int64)


class Crowds:
    """Weights of delays by crowd and bin."""

    __slots__ = ("weights",)

    def __init__(self) -> None:
        self.weights = np.zeros((CROWDS, BINS), np.uint64)

    def add(
        self,
        flow_keys: npt.NDArray[np.uint64],
        delays_ns: npt.NDArray[np.int64],
        weights: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Take in samples, each with the flow key of its connection."""
        of_each = _NO_WEIGHTS if weights is None else weights
        _kernels.crowd(self.weights.reshape(-1), flow_keys, delays_ns, of_each)

    def merge(self, other: Crowds) -> None:
        """Take in the samples of another."""
        self.weights += other.weights

    def share_bound(self, below: int) -> float:
        """Half the 95% interval of the share of delays in bins below this one; 0 where crowds are too few to tell."""
        return self._bound(self.weights[:, :below].sum(axis=1).astype(np.float64))

    def mean_bound_ns(self) -> float:
        """Half the 95% interval of the mean delay; 0 where crowds are too few to tell."""
        return self._bound(self.weights @ MIDDLES_NS)

    def _bound(self, totals: npt.NDArray[np.float64]) -> float:
        """Half the 95% interval of sum(totals) / sum(weights), a ratio of two sums over crowds."""
        sizes = self.weights.sum(axis=1).astype(np.float64)
        present = int(np.count_nonzero(sizes))
        if present < LEAST:
            return 0.0
        residuals = totals - totals.sum() / sizes.sum() * sizes
        variance = float((residuals**2).sum()) * present / (present - 1) / float(sizes.sum()) ** 2
        return _student(present - 1) * math.sqrt(variance)


def _student(freedom: int) -> float:
    """The 97.5% point of Student's distribution (Cornish and Fisher's expansion, within 1% from 3 on)."""
    z = Z95
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return z + first + second + third
