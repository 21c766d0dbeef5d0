"""Bins with the rank of each in plain Python, float by float as the kernel rounds them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from wirelag.stats.distribution import BITS, halfway, place_of


class RankedBins:
    """Bins in order, each with a weight. `below` others are shorter than all."""

    def __init__(self, bins: Sequence[int], weights: Sequence[int], below: int = 0) -> None:
        held = [(bin_, weight) for bin_, weight in zip(bins, weights, strict=True) if weight]
        self._bins = [bin_ for bin_, _ in held]
        self._weights = [weight for _, weight in held]
        self._ranks = [below + rank for rank in accumulate(self._weights)]
        self._below = below
        self.weight = self._ranks[-1] if held else below

    def quantile(self, q: float) -> float | None:
        rank, between = min(max(q, 0.0), 1.0) * self.weight, halfway(q, self.weight)
        if not self.weight or (self._below and place_of(q, self.weight) - between < self._below):
            return None
        return (self._at(rank - 1) + self._at(rank)) / 2 if between else self._at(rank)

    def bin_at(self, q: float) -> int:
        return self._bins[bisect_left(self._ranks, q * self.weight)]

    def before(self, bin_: int) -> tuple[int, int]:
        place = bisect_left(self._bins, bin_)
        return place, self._ranks[place - 1] if place else self._below

    def _at(self, rank: float) -> float:
        """Inside a bin delays are taken to lie evenly, each in the middle of its share."""
        row = bisect_right(self._ranks, min(rank, self.weight - 1))
        bin_, count, before = self._bins[row], self._weights[row], self._ranks[row] - self._weights[row]
        shift = max((bin_ >> BITS) - 1, 0)
        inside = min(1.0, (rank - float(before) + 0.5) / float(count))
        return ((bin_ - (shift << BITS)) << shift) + ((1 << shift) - 1) * inside
