"""Epochs added up for ever: their mean, and its 95% interval by the rule of `Epochs.report`.

Law: nothing depends on how epochs are split into parts. Memory: sums of at most 4,096 flows; beyond that, of as many
groups of flows, by the lower bits of their keys. A flow key is a hash, so that groups are as independent as flows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from wirelag.synopses.epochs import FEWEST, Z95, Epochs

MOST_FLOWS: Final = 4096


@dataclass(slots=True)
class EpochSums:
    """Samples and sums of latencies: in total, by flow, and squared for each epoch."""

    samples: int = 0
    sum_ns: int = 0
    _flows: dict[int, tuple[int, int]] = field(default_factory=dict)  # sum and samples
    _folded: bool = False  # whether flows are added up in groups
    _epochs: tuple[int, int, int, int] = (0, 0, 0, 0)  # number; sums of sum^2, sum * samples, samples^2

    def add(self, epochs: Epochs) -> None:
        """Add epochs; those without an estimate add nothing."""
        rows = epochs.rows[epochs.rows["count"] > 0]
        sums, counts = rows["sum_ns"].tolist(), rows["count"].tolist()
        self._square(zip(sums, counts, strict=True))
        keys, place = np.unique(rows["key"], return_inverse=True)
        by_flow = ([0] * len(keys), [0] * len(keys))
        for flow, sum_ns, count in zip(place.reshape(-1).tolist(), sums, counts, strict=True):
            by_flow[0][flow] += sum_ns
            by_flow[1][flow] += count
        self._take(zip(keys.tolist(), *by_flow, strict=True))

    def merge(self, other: EpochSums) -> None:
        """Add the sums of other epochs."""
        one, two = self._epochs, other._epochs
        self._epochs = one[0] + two[0], one[1] + two[1], one[2] + two[2], one[3] + two[3]
        if other._folded and not self._folded:
            self._fold()
        self._take((key, *sums) for key, sums in other._flows.items())

    def _square(self, epochs: Iterable[tuple[int, int]]) -> None:
        number, a, b, c = self._epochs
        for sum_ns, count in epochs:
            number, a, b, c = number + 1, a + sum_ns * sum_ns, b + sum_ns * count, c + count * count
        self._epochs = number, a, b, c

    def _take(self, flows: Iterable[tuple[int, int, int]]) -> None:
        for key, sum_ns, count in flows:
            place = key % MOST_FLOWS if self._folded else key
            before = self._flows.get(place, (0, 0))
            self._flows[place] = before[0] + sum_ns, before[1] + count
            self.sum_ns += sum_ns
            self.samples += count
            if len(self._flows) > MOST_FLOWS:
                self._fold()

    def _fold(self) -> None:
        flows, self._flows, self._folded = self._flows, {}, True
        self.sum_ns = self.samples = 0
        self._take((key, *sums) for key, sums in flows.items())

    @property
    def mean(self) -> float | None:
        """The mean in seconds."""
        return self.sum_ns / self.samples / 1e9 if self.samples else None

    @property
    def ci95(self) -> dict[str, tuple[float, float]]:
        """The interval of the mean, a ratio of sums. Flows are independent; if there are few, their epochs count."""
        if self.mean is None:
            return {}
        mean_ns = self.sum_ns / self.samples
        if len(self._flows) >= FEWEST:
            parts = len(self._flows)
            off = math.fsum((sum_ns - mean_ns * count) ** 2 for sum_ns, count in sorted(self._flows.values()))
        else:
            parts, a, b, c = self._epochs
            off = max(0.0, a - 2 * mean_ns * b + mean_ns * mean_ns * c)
        if parts < FEWEST:
            return {}
        bound = Z95 * math.sqrt(off * parts / (parts - 1)) / self.samples / 1e9
        return {"mean": (max(0.0, self.mean - bound), self.mean + bound)}
