"""Figures of a distribution in plain Python, float by float as the kernel rounds them (quantiles: ranked_bins.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wirelag.stats.distribution import BITS


def middle(bin_: int) -> float:
    """The middle of a bin."""
    shift = max((bin_ >> BITS) - 1, 0)
    return float((bin_ - (shift << BITS)) << shift) + ((1 << shift) - 1) / 2


class DelayFigures:
    """Bins with their weights and squared weights."""

    def __init__(
        self, bins: Sequence[int], weights: Sequence[int], squares: Sequence[int], mean: float, std: float
    ) -> None:
        self._cells = [cell for cell in zip(bins, weights, squares, strict=True) if cell[1]]
        self._mean, self._std = mean, std
        self._weight = sum(weight for _, weight, _ in self._cells)
        self.sum_squares = sum(square for _, _, square in self._cells)
        self.squared_apart = self._third = 0.0
        for bin_, weight, square in self._cells:
            apart = middle(bin_) - mean
            self.squared_apart += square * (apart * apart)
            self._third += weight * (apart * apart * apart)

    @property
    def skewness(self) -> float:
        return self._third / self._weight / (self._std * self._std * self._std) if self._std > 0 else 0.0

    def _below(self, below: int) -> list[tuple[int, int, int]]:
        return [cell for cell in self._cells if cell[0] < below]

    def weight_from(self, bin_: int) -> int:
        return self._weight - sum(weight for _, weight, _ in self._below(bin_))

    def share_error(self, below: int) -> float:
        cells = self._below(below)
        share = sum(weight for _, weight, _ in cells) / self._weight
        inside = sum(square for *_, square in cells)
        outside = self.sum_squares - inside
        return math.sqrt(inside * ((1 - share) * (1 - share)) + outside * (share * share)) / self._weight

    def follows_mean(self, below: int) -> float:
        cells, together = self._below(below), 0.0
        share = sum(weight for _, weight, _ in cells) / self._weight
        if not self._std > 0 or not 0 < share < 1:
            return 1.0
        for bin_, weight, _ in cells:
            together += weight * (middle(bin_) - self._mean)
        together /= self._weight
        return min(1.0, together * together / (share * (1 - share) * (self._std * self._std)))
