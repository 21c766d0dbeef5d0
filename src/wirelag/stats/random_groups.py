"""Confidence intervals where samples come in connections, and samples of one connection are alike.

Guarantee: intervals cover the truth in 95% of cases, however alike the samples of one connection are, if there are many
connections. Connections fall by their flow key, a hash, into 32 groups. Groups are independent, so their differences
give the variance of a mean (the method of random groups), however much their sizes differ. Memory: 303 KB, one count
per leg, group and coarse bin (1/16 of an octave: a variance need not be fine). Merging is addition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wirelag import _kernels
from wirelag.stats.distribution import BINS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.stats.distribution import Words
    from wirelag.stats.over_time import Error

    Ints = npt.NDArray[Any]

CROWDS: Final = _kernels.CROWDS
COARSE: Final = 1 << _kernels.COARSE_BITS  # fine bins per coarse bin
OF_A_LEG: Final = CROWDS * (BINS // COARSE)  # words


class RandomGroups:
    """Weights of delays by leg, crowd and coarse bin."""

    __slots__ = ("weights",)

    def __init__(self, weights: Words | None = None) -> None:
        self.weights: Words = _kernels.words(2 * OF_A_LEG) if weights is None else weights

    def __reduce__(self) -> tuple[Any, ...]:
        import numpy as np

        weights = np.asarray(self.weights)
        held = np.flatnonzero(weights)
        return _of_held, (len(weights), held.astype(np.uint32), weights[held])

    def add(self, flow_key: Ints, rows: Ints, legs: Ints, delays_ns: Ints, weights: Ints | None = None) -> None:
        """Add samples: the row of each in the column of flow keys, its leg and its delay."""
        _kernels.crowd(self.weights, flow_key, rows, legs, delays_ns, weights)

    def merge(self, other: RandomGroups) -> None:
        """Add the samples of another, which may be of the first leg alone."""
        _kernels.add_words(self.weights, other.weights)

    def of_leg(self, leg: int) -> RandomGroups:
        """The samples of one leg alone."""
        return RandomGroups(self.weights[leg * OF_A_LEG : (leg + 1) * OF_A_LEG])

    def sum_ns(self, leg: int) -> tuple[float, float]:
        """How many delays there are on a leg, and their sum."""
        return _kernels.crowds_sum(self.of_leg(leg).weights)

    def mean_error_ns(self, alone: float) -> Error | None:
        """The error of the mean delay; None if there are too few groups."""
        return _kernels.crowds_error(self.weights, alone)


def _of_held(words: int, held: Ints, values: Ints) -> RandomGroups:
    """The same again, from the weights that are not 0."""
    found = RandomGroups(_kernels.words(words))
    for place, value in zip(held.tolist(), values.tolist(), strict=True):
        found.weights[place] = value
    return found


def between(totals: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64], alone: float) -> Error | None:
    """The error of sum(totals) / sum(sizes), a ratio of two sums over groups that differ; None if there are too few.

    Law: a mean has the error that it would have alone, with independent samples, and that of levels, one of each group,
    with its share h of all samples: their variance times the sum of squared shares, k. A large group draws the mean
    towards itself, so that levels differ from the mean by 1 - 2h + k of their variance. Levels count as 1/k equal ones.
    By chance groups differ less than independent samples would, as often as more: then the error is below that alone,
    which is right on average; whoever puts errors together (certainty.py) never goes below it.
    """
    return _kernels.between(totals, sizes, alone)
