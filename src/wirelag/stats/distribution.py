"""Distributions of delay. Guarantee: a quantile is within 0.8% of that of the delays, or equal to it below 256 ns.

Memory: 4,736 bins of two 64-bit numbers and eight sums, 76 KB, whatever arrives. Merging is adding: it is associative
and loses nothing. Delays are integers in ns and so is everything kept: no float decides where a delay belongs.

A bin is 1/128 of an octave: delays below 256 ns have a bin each, above that the eight leading bits select it; delays
over 2.4 hours share the last one (kernels/distribution.h).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels

if TYPE_CHECKING:
    from wirelag.stats.certainty import Certainty

BITS: Final = 7
BINS: Final = _kernels.BINS
WORDS: Final = _kernels.DISTRIBUTION_WORDS
FEW: Final = _kernels.FEW_DELAYS  # of fewer, a quantile may lie between two of them
_WHOLE: Final = 1e-9  # q n is a whole number if it is as close to one
Z95: Final = 1.959963984540054  # 97.5% quantile of the normal distribution

Ints = npt.NDArray[np.int64]
_NO_WEIGHTS: Final = np.empty(0, np.int64)
_NO_LEGS: Final = np.empty(0, np.uint8)


def wilson(share: float, n: float) -> tuple[float, float]:
    """The 95% interval of a share of n, valid also at 0 and 1 (Wilson's)."""
    middle = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 * math.sqrt(share * (1 - share) / n + (Z95 / (2 * n)) ** 2) / (1 + Z95**2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def _bins_ns() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The shortest delay of each bin, and how much longer the longest is."""
    bins = np.arange(BINS)
    shift = np.maximum((bins >> BITS) - 1, 0)
    return ((bins - (shift << BITS)) << shift).astype(np.float64), ((1 << shift) - 1).astype(np.float64)


SHORTEST_NS, WIDTH_NS = _bins_ns()
MIDDLES_NS: Final = SHORTEST_NS + WIDTH_NS / 2
_EVERY_BIN: Final = np.arange(BINS)
_NOTHING: Final = np.zeros(WORDS, np.uint64)  # of a distribution that is only read
_OCTAVES: Final = np.log2(np.maximum(MIDDLES_NS, 1)).astype(int)  # of each bin


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


def add_by_leg(
    memory: npt.NDArray[np.uint64], delays_ns: Ints, weights: Ints | None, legs: npt.NDArray[np.uint8]
) -> None:
    """Add delays of two legs at once; the memory is that of two adjacent distributions."""
    _kernels.distribute(memory, delays_ns, _NO_WEIGHTS if weights is None else weights, legs)


def bin_of(delay_ns: int) -> int:
    """The bin of a delay, as the kernel finds it."""
    shift = max(delay_ns.bit_length() - BITS - 1, 0)
    return min((shift << BITS) + (delay_ns >> shift), BINS - 1)


def bin_above(limit_ns: int) -> int:
    """The first bin whose delays count as above a limit."""
    return int(np.searchsorted(MIDDLES_NS, limit_ns, side="right"))


def _sums_of(one: Distribution, other: Distribution) -> npt.NDArray[np.uint64]:
    """The sums of both together, of which at least one holds delays."""
    smallest = min(d.min_ns for d in (one, other) if d.min_ns is not None)
    largest = max(d.max_ns for d in (one, other) if d.max_ns is not None)
    sums = [one.samples + other.samples, one.weight + other.weight]
    for total in (one.sum_ns + other.sum_ns, one.sum_squares + other.sum_squares):
        sums += [total & 2**64 - 1, total >> 64]
    return np.array([*sums, smallest, largest], np.uint64)


class _Bins:
    """What several quantiles of the same delays need: bins that hold any."""

    __slots__ = ("longest_ns", "ranked", "samples", "shortest_ns")

    def __init__(self, delays: Distribution, sums: npt.NDArray[np.uint64]) -> None:
        self.samples, *_, self.shortest_ns, self.longest_ns = sums.tolist()
        self.ranked = _kernels.RankedBins(delays.bins, delays.weights)


class _Middles:
    """What other figures need: what the middles of these bins tell. There is a delay at least."""

    __slots__ = ("apart_ns", "effective", "mean_error_ns", "moments", "samples", "squares", "std_ns", "weights")

    def __init__(self, delays: Distribution) -> None:
        held = np.flatnonzero(delays.weights)  # places among the bins kept
        weight, squares = delays.weight, delays.squares[held]
        self.samples, sum_squares = delays.samples, int(squares.sum())
        self.weights = delays.weights[held]
        self.apart_ns = MIDDLES_NS[delays.bins[held]] - (delays.mean_ns or 0.0)  # from the mean
        self.moments = self.weights * self.apart_ns
        self.squares = None if sum_squares == weight else np.cumsum(squares)  # None: all weights are 1
        self.effective = weight**2 / sum_squares if sum_squares else 0.0
        self.std_ns = delays.std_ns or 0.0
        self.mean_error_ns: float | None = None
        if self.samples > 1 and weight:
            # The spread within bins is lost in their middles: at most 0.4% of it.
            variance = float((squares * self.apart_ns**2).sum()) * self.samples / (self.samples - 1)
            self.mean_error_ns = math.sqrt(variance) / weight


class Distribution:
    """Delays, each with a weight: how many it represents (1, or more if a method samples)."""

    __slots__ = ("_memory", "_ranked", "_read", "_sums", "bins", "certainty", "squares", "weights")

    def __init__(self, memory: npt.NDArray[np.uint64] | None = None) -> None:
        self._memory = np.zeros(WORDS, np.uint64) if memory is None else memory
        self._ranked: _Bins | None = None  # what was found of as many samples
        self._read: _Middles | None = None  # the same
        self.bins = _EVERY_BIN  # whose weights follow
        self.certainty: Certainty | None = None  # from how delays vary; None: they are independent
        self.weights = self._memory[:BINS]
        self.squares = self._memory[BINS : 2 * BINS]  # squared weights, for the uncertainty
        self._sums = self._memory[2 * BINS :]

    @classmethod
    def of_bins(cls, bins: Ints, columns: npt.NDArray[np.uint64], sums: npt.NDArray[np.uint64]) -> Distribution:
        """A distribution to read: only bins that hold delays, in order; their weights and squares; and the sums."""
        found = cls(_NOTHING)
        found.bins, found.weights, found.squares, found._sums = bins, columns[0], columns[1], sums
        return found

    def compact(self) -> Distribution:
        """The same, to read, in as much memory as it has bins that hold delays."""
        held = np.flatnonzero(self.weights)
        columns = np.stack([self.weights[held], self.squares[held]])
        return Distribution.of_bins(self.bins[held], columns, self._sums.copy())

    def __reduce__(self) -> tuple[Any, ...]:
        """It travels as what holds delays, to be read or merged; how sure it is does not."""
        small = self.compact()
        return _travelled, (small.bins.astype(np.uint16), np.stack([small.weights, small.squares]), small._sums)

    def plus(self, other: Distribution) -> Distribution:
        """Both together, to read, in as much memory as it has bins that hold delays."""
        one, two = (each if each.bins is not _EVERY_BIN else each.compact() for each in (self, other))
        if not one.samples or not two.samples:
            return one if one.samples else two
        bins = np.union1d(one.bins, two.bins)
        columns = np.zeros((2, len(bins)), np.uint64)
        for each in (one, two):
            places = np.searchsorted(bins, each.bins)
            columns[0, places] += each.weights
            columns[1, places] += each.squares
        return Distribution.of_bins(bins, columns, _sums_of(one, two))

    def _bins_below(self, bin_: int) -> int:
        """How many of the bins kept lie below this one."""
        return bin_ if self.bins is _EVERY_BIN else int(np.searchsorted(self.bins, bin_))

    def add(self, delays_ns: Ints, weights: Ints | None = None) -> None:
        """Add delays, of weight 1 by default."""
        _kernels.distribute(self._memory, delays_ns, _NO_WEIGHTS if weights is None else weights, _NO_LEGS)

    def merge(self, other: Distribution) -> None:
        """Add another distribution."""
        if not other.samples:
            return
        self._sums[:] = _sums_of(self, other)
        # Only non-empty bins: untouched memory of a distribution costs nothing.
        held = slice(*(other._bins_below(bin_of(ns or 0) + i) for i, ns in enumerate((other.min_ns, other.max_ns))))
        into = held if other.bins is _EVERY_BIN else other.bins[held]
        self.weights[into] += other.weights[held]
        self.squares[into] += other.squares[held]

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
        return self._held().effective if self.samples else 0.0

    def _held(self) -> _Middles:
        """What the middles of bins tell, for several figures of the same."""
        if self._read is None or self._read.samples != self.samples:
            self._read = _Middles(self)
        return self._read

    def quantile_ns(self, q: float) -> float | None:
        """The delay below which a share of q lies (`place_of`, `halfway`)."""
        bins = self._ranks()
        found = bins.ranked.quantile(q)
        return None if found is None else float(min(max(found, bins.shortest_ns), bins.longest_ns))

    def _ranks(self) -> _Bins:
        """The bins that hold delays, for several quantiles of the same."""
        if self._ranked is None or self._ranked.samples != self.samples:
            self._ranked = _Bins(self, self._sums)
        return self._ranked

    def share_above(self, limit_ns: int) -> float | None:
        """The share of delays above a limit (to the precision of a bin)."""
        above = self.weights[self._bins_below(bin_above(limit_ns)) :]
        return float(above.sum()) / self.weight if self.weight else None

    def share_above_ci(self, limit_ns: int) -> tuple[float, float] | None:
        """The 95% interval of that share."""
        return self.sure.share_above_ci(limit_ns)

    def share_error(self, below: int) -> float:
        """The standard error of the share of delays that lie in bins below this one.

        Each sample counts with its weight w, W is their sum; the share F is a ratio, and its variance is the sum of
        w^2 (1[below] - F)^2, over W^2.
        """
        held, weight = self._held(), self.weight
        place, shorter = self._ranks().ranked.before(below)
        share, inside, whole = float(shorter) / weight, shorter, weight
        if held.squares is not None:
            inside, whole = int(held.squares[place - 1]) if place else 0, int(held.squares[-1])
        return math.sqrt(inside * (1 - share) ** 2 + (whole - inside) * share**2) / weight

    def follows_mean(self, below: int) -> float:
        """How much of the share of delays in bins below this one follows the mean: their squared correlation."""
        held, weight = self._held(), self.weight
        place, shorter = self._ranks().ranked.before(below)
        share = float(shorter) / weight
        if not held.std_ns or not 0 < share < 1:
            return 1.0
        together = float(held.moments[:place].sum()) / weight
        return min(1.0, together**2 / (share * (1 - share) * held.std_ns**2))

    def mean_error_ns(self) -> float | None:
        """The standard error of the mean if samples are independent; None with fewer than two."""
        return self._held().mean_error_ns if self.samples > 1 else None

    @property
    def skewness(self) -> float:
        """The skewness of the delays; 0 without any, or if they are equal."""
        if not self.samples or not (held := self._held()).std_ns:
            return 0.0
        cubes = float((held.weights * held.apart_ns**3).sum()) / self.weight
        return cubes / held.std_ns**3

    def bin_at(self, q: float) -> int:
        """The bin in which a quantile lies."""
        return self._ranks().ranked.bin_at(q)

    def first_above(self, limit_ns: int) -> int:
        """The first bin whose delays count as above a limit."""
        return bin_above(limit_ns)

    @property
    def sure(self) -> Certainty:
        """The 95% intervals: of independent samples, if nothing else is known of how they vary."""
        from wirelag.stats.certainty import Certainty, Sources

        return self.certainty or Certainty(self, Sources)

    def by_octave(self) -> npt.NDArray[np.float64]:
        """How many delays there are in each octave of ns, for a small picture."""
        return np.bincount(_OCTAVES[self.bins], weights=self.weights.astype(float), minlength=64).astype(np.float64)


def _travelled(bins: Ints, columns: npt.NDArray[np.uint64], sums: npt.NDArray[np.uint64]) -> Distribution:
    return Distribution.of_bins(bins.astype(np.int64), columns, sums)
