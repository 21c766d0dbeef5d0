"""Distributions of delay. Guarantee: a quantile is within 0.8% of that of the delays, or equal to it below 256 ns.

Memory: 4,736 bins of two 64-bit numbers and eight sums, 76 KB, whatever arrives. Merging is adding: it is associative
and loses nothing. Delays are integers in ns and so is everything kept: no float decides where a delay belongs.

A bin is 1/128 of an octave: delays below 256 ns have a bin each, above that the eight leading bits select it; delays
over 2.4 hours share the last one (kernels/distribution.h).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from wirelag import _kernels

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.stats.certainty import Certainty, Told

    Ints = npt.NDArray[np.int64]
    Words: TypeAlias = npt.NDArray[np.uint64] | memoryview[int] | array[int]

BITS: Final = 7
BINS: Final = _kernels.BINS
WORDS: Final = _kernels.DISTRIBUTION_WORDS
FEW: Final = _kernels.FEW_DELAYS  # of fewer, a quantile may lie between two of them
_WHOLE: Final = 1e-9  # q n is a whole number if it is as close to one
Z95: Final = 1.959963984540054  # 97.5% quantile of the normal distribution

_NOTHING: Final = _kernels.words(WORDS)  # of a distribution that is only read


def wilson(share: float, n: float) -> tuple[float, float]:
    """The 95% interval of a share of n, valid also at 0 and 1 (Wilson's)."""
    return _kernels.wilson(share, n)


def place_of(q: float, n: int) -> int:
    """The rule of quantiles: of n sorted delays, the one at this place, from 0."""
    return min(int(min(max(q, 0.0), 1.0) * n), n - 1)


def halfway(q: float, n: int) -> bool:
    """Whether a quantile of n delays is the mean of the one at its place and the one before.

    Of fewer than `FEW`, where exactly a share of q lies below its place: the median of two is neither the upper nor the
    lower one. Of more, the difference is lost in what chance does.
    """
    rank = min(max(q, 0.0), 1.0) * n
    return n < FEW and 1 <= rank < n and abs(rank - round(rank)) < _WHOLE


def add_by_leg(memory: Words, delays_ns: Ints, weights: Ints | None, legs: npt.NDArray[np.uint8]) -> None:
    """Add delays of two legs at once; the memory is that of two adjacent distributions."""
    _kernels.distribute(memory, delays_ns, weights, legs)


def bin_of(delay_ns: int) -> int:
    """The bin of a delay, as the kernel finds it."""
    shift = max(delay_ns.bit_length() - BITS - 1, 0)
    return min((shift << BITS) + (delay_ns >> shift), BINS - 1)


def _sums_of(one: Distribution, other: Distribution) -> list[int]:
    """The sums of both together, of which at least one holds delays."""
    smallest = min(d.min_ns for d in (one, other) if d.min_ns is not None)
    largest = max(d.max_ns for d in (one, other) if d.max_ns is not None)
    sums = [one.samples + other.samples, one.weight + other.weight]
    for total in (one.sum_ns + other.sum_ns, one.sum_squares + other.sum_squares):
        sums += [total & 2**64 - 1, total >> 64]
    return [*sums, smallest, largest]


class Distribution:
    """Delays, each with a weight: how many it represents (1, or more if a method samples)."""

    __slots__ = ("_bins", "_figures", "_memory", "_of", "_squares", "_sums", "_weights", "certainty")

    def __init__(self, memory: Words | None = None) -> None:
        memory = _kernels.words(WORDS) if memory is None else memory
        self._memory = memory
        self._bins: Ints | array[int] | None = None  # whose weights follow; None: every bin
        self._weights: Words = memory[:BINS]
        self._squares: Words = memory[BINS : 2 * BINS]  # squared weights, for the uncertainty
        self._sums: Words = memory[2 * BINS :]
        self._figures: _kernels.DelayFigures | None = None  # of so many samples:
        self._of = 0
        self.certainty: Certainty | None = None  # from how delays vary; None: they are independent

    @classmethod
    def of_bins(
        cls, bins: Ints | array[int], columns: Sequence[Words] | npt.NDArray[np.uint64], sums: Words
    ) -> Distribution:
        """A distribution to read: only bins that hold delays, in order; their weights and squares; and the sums."""
        found = cls(_NOTHING)
        found._bins, found._weights, found._squares, found._sums = bins, columns[0], columns[1], sums
        return found

    @classmethod
    def nothing(cls) -> Distribution:
        """A distribution to read that has no delays, in hardly any memory."""
        return cls.of_bins(array("q"), (array("Q"), array("Q")), array("Q", [0] * (WORDS - 2 * BINS)))

    @property
    def memory(self) -> Words:
        """Where a kernel adds delays: every bin's weight, then squares, then the sums."""
        return self._memory

    @property
    def bins(self) -> Ints:
        """The bins that are kept, in order: every one, or those that hold delays."""
        import numpy as np

        return np.arange(BINS) if self._bins is None else np.asarray(self._bins)

    @property
    def weights(self) -> npt.NDArray[np.uint64]:
        """The weight of each of them."""
        import numpy as np

        return np.asarray(self._weights)

    @property
    def by_bin(self) -> Words:
        """The same, of every bin, without numpy."""
        assert self._bins is None, "a distribution to read has fewer bins"
        return self._weights

    @property
    def squares(self) -> npt.NDArray[np.uint64]:
        """The sum of the squared weights in each."""
        import numpy as np

        return np.asarray(self._squares)

    def compact(self) -> Distribution:
        """The same, to read, in as much memory as it has bins that hold delays."""
        import numpy as np

        held = np.flatnonzero(self.weights)
        columns = np.stack([self.weights[held], self.squares[held]])
        bins = held if self._bins is None else self.bins[held]
        return Distribution.of_bins(bins, columns, np.array(self._sums))

    def __reduce__(self) -> tuple[Any, ...]:
        """It travels as what holds delays, to be read or merged; how sure it is does not."""
        import numpy as np

        small = self.compact()
        columns = np.stack([small.weights, small.squares])
        return _travelled, (small.bins.astype(np.uint16), columns, np.asarray(small._sums))

    def plus(self, other: Distribution) -> Distribution:
        """Both together, to read, in as much memory as it has bins that hold delays."""
        import numpy as np

        one, two = (each.compact() if each._bins is None else each for each in (self, other))
        if not one.samples or not two.samples:
            return one if one.samples else two
        bins = np.union1d(one.bins, two.bins)
        columns = np.zeros((2, len(bins)), np.uint64)
        for each in (one, two):
            places = np.searchsorted(bins, each.bins)
            columns[0, places] += each._weights
            columns[1, places] += each._squares
        return Distribution.of_bins(bins, columns, np.array(_sums_of(one, two), np.uint64))

    def add(self, delays_ns: Ints | array[int], weights: Ints | array[int] | None = None) -> None:
        """Add delays, of weight 1 by default."""
        _kernels.distribute(self._memory, delays_ns, weights, None)

    def merge(self, other: Distribution) -> None:
        """Add another distribution."""
        _kernels.merge_delays(self._memory, other._bins, other._weights, other._squares, other._sums)

    @property
    def samples(self) -> int:
        """How many delays were added."""
        return int(self._sums[0])

    @property
    def weight(self) -> int:
        """How many delays they represent."""
        return int(self._sums[1])

    @property
    def sum_ns(self) -> int:
        """The weighted sum of all delays."""
        return int(self._sums[2]) + (int(self._sums[3]) << 64)

    @property
    def sum_squares(self) -> int:
        """The weighted sum of their squares."""
        return int(self._sums[4]) + (int(self._sums[5]) << 64)

    @property
    def min_ns(self) -> int | None:
        """The shortest delay."""
        return int(self._sums[6]) if self.samples else None

    @property
    def max_ns(self) -> int | None:
        """The longest delay."""
        return int(self._sums[7]) if self.samples else None

    @property
    def mean_ns(self) -> float | None:
        """The mean delay."""
        return self.sum_ns / self.weight if self.weight else None

    @property
    def std_ns(self) -> float | None:
        """The standard deviation of the delays."""
        weight = self.weight
        if not weight:
            return None
        # An integer numerator: the difference of two large floats would lose everything.
        return math.sqrt(max(0, self.sum_squares * weight - self.sum_ns * self.sum_ns)) / weight

    @property
    def effective_samples(self) -> float:
        """The effective sample size: equally weighted samples with the same precision (Kish)."""
        squares = self._held().sum_squares if self.samples else 0
        return self.weight**2 / squares if squares else 0.0

    def _held(self) -> _kernels.DelayFigures:
        """What the bins tell, for several figures of the same."""
        if self._figures is None or self._of != self.samples:
            mean, std = self.mean_ns or 0.0, self.std_ns or 0.0
            self._figures = _kernels.DelayFigures(self._bins, self._weights, self._squares, mean, std)
            self._of = self.samples
        return self._figures

    def quantile_ns(self, q: float) -> float | None:
        """The delay below which a share of q lies (`place_of`, `halfway`)."""
        found = self._held().quantile(q)
        if found is None:
            return None
        return float(min(max(found, int(self._sums[6])), int(self._sums[7])))

    def quantiles_ns(self, shares: Sequence[float]) -> Sequence[float | None]:
        """The same of each share: quicker, if nothing else is asked of these delays."""
        return _kernels.quantiles(self._bins, self._weights, self._sums, shares)

    def share_above(self, limit_ns: int) -> float | None:
        """The share of delays above a limit (to the precision of a bin)."""
        return self._held().weight_from(_kernels.bin_above(limit_ns)) / self.weight if self.weight else None

    def share_above_ci(self, limit_ns: int) -> tuple[float, float] | None:
        """The 95% interval of that share."""
        return self.sure.share_above_ci(limit_ns)

    def certain(self, connections: Told | None, times: Told | None) -> _kernels.Sure:
        """How sure figures are, by what is told of how delays vary (stats/certainty.py)."""
        return _kernels.Sure(self._held(), self._sums, connections, times)

    def mean_error_ns(self) -> float | None:
        """The standard error of the mean if samples are independent; None with fewer than two."""
        samples, weight = self.samples, self.weight
        if samples < 2:
            return None
        variance = self._held().squared_apart * samples / (samples - 1)
        return math.sqrt(variance) / weight if weight else None

    @property
    def sure(self) -> Certainty:
        """The 95% intervals: of independent samples, if nothing else is known of how they vary."""
        from wirelag.stats.certainty import Certainty, Sources

        return self.certainty or Certainty(self, Sources)

    def cumulated(self) -> tuple[Sequence[float], Sequence[float]]:
        """The delays of bins in order, in seconds, and the share of delays up to each."""
        return _kernels.cumulated(self._bins, self._weights, self._sums)

    def by_octave(self) -> Sequence[float]:
        """How many delays there are in each octave of ns, for a small picture."""
        return _kernels.by_octave(self._bins, self._weights)


def _travelled(bins: Ints, columns: npt.NDArray[np.uint64], sums: npt.NDArray[np.uint64]) -> Distribution:
    import numpy as np

    return Distribution.of_bins(bins.astype(np.int64), columns, sums)
