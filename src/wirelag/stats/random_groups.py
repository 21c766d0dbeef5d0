"""Confidence intervals where samples come in connections, and samples of one connection are alike.

Guarantee: intervals cover the truth in 95% of cases, however alike the samples of one connection are, if there are many
connections. Connections fall by their flow key, a hash, into 32 groups. Groups are independent, so their differences
give the variance of a mean (the method of random groups), however much their sizes differ. Memory: 303 KB, one count
per leg, group and coarse bin (1/16 of an octave: a variance need not be fine). Merging is addition.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.stats.distribution import BINS, MIDDLES_NS
from wirelag.stats.over_time import Error

CROWDS: Final = _kernels.CROWDS
COARSE: Final = 1 << _kernels.COARSE_BITS  # fine bins per coarse bin
LEAST: Final = 4  # groups with samples; fewer give no variance
MIDDLES_COARSE_NS: Final = MIDDLES_NS.reshape(-1, COARSE).mean(axis=1)
_NO_WEIGHTS: Final = np.empty(0, np.int64)

Ints = npt.NDArray[Any]


class RandomGroups:
    """Weights of delays by leg, crowd and coarse bin."""

    __slots__ = ("weights",)

    def __init__(self, weights: npt.NDArray[np.uint64] | None = None) -> None:
        self.weights = np.zeros((2, CROWDS, BINS // COARSE), np.uint64) if weights is None else weights

    def __reduce__(self) -> tuple[Any, ...]:
        held = np.flatnonzero(self.weights)
        return _of_held, (self.weights.shape, held.astype(np.uint32), self.weights.reshape(-1)[held])

    def add(self, flow_key: Ints, rows: Ints, legs: Ints, delays_ns: Ints, weights: Ints | None = None) -> None:
        """Add samples: the row of each in the column of flow keys, its leg and its delay."""
        of_each = _NO_WEIGHTS if weights is None else weights
        _kernels.crowd(self.weights.reshape(-1), flow_key, rows, legs, delays_ns, of_each)

    def merge(self, other: RandomGroups) -> None:
        """Add the samples of another, which may be of the first leg alone."""
        self.weights[: len(other.weights)] += other.weights

    def of_leg(self, leg: int) -> RandomGroups:
        """The samples of one leg alone."""
        return RandomGroups(self.weights[leg : leg + 1])

    def mean_error_ns(self, alone: float) -> Error | None:
        """The error of the mean delay; None if there are too few groups."""
        of_both = self.weights[0] if len(self.weights) == 1 else self.weights.sum(axis=0)
        weights = of_both.astype(np.float64)
        return between(weights @ MIDDLES_COARSE_NS, weights.sum(axis=1), alone)


def _of_held(shape: tuple[int, ...], held: Ints, values: Ints) -> RandomGroups:
    """The same again, from the weights that are not 0."""
    weights = np.zeros(shape, np.uint64)
    weights.reshape(-1)[held] = values
    return RandomGroups(weights)


def between(totals: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64], alone: float) -> Error | None:
    """The error of sum(totals) / sum(sizes), a ratio of two sums over groups that differ; None if there are too few.

    Law: a mean has the error that it would have alone, with independent samples, and that of levels, one of each group,
    with its share h of all samples: their variance times the sum of squared shares, k. A large group draws the mean
    towards itself, so that levels differ from the mean by 1 - 2h + k of their variance. Levels count as 1/k equal ones.
    By chance groups differ less than independent samples would, as often as more: then the error is below that alone,
    which is right on average; whoever puts errors together (certainty.py) never goes below it.
    """
    if np.count_nonzero(sizes) < LEAST:
        return None
    whole = float(sizes.sum())
    shares, residuals = sizes / whole, (totals - totals.sum() / whole * sizes) / whole
    kish = float(shares @ shares)
    levels = (float(residuals @ residuals) - alone**2 * (1 - kish)) / float(shares**2 @ (1 - 2 * shares + kish))
    return math.sqrt(max(0.0, alone**2 + kish * levels)), max(1 / kish - 1, 1.0)
