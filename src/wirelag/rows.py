"""Rows of (packets, summed delay): the mean and the deviation of methods that add timestamps up.

Law: each row is a random handful of packets, chosen by a coin. Its summed delay is exact, so the mean over rows is;
and what rows differ by, beyond what their sizes explain, is the deviation of single delays
(docs/reference/crossing.md, "LDA").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Deviation = Literal["rows", "collapse"]
Counts = npt.NDArray[np.uint64]
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of all banks, one behind the other: packets, summed delay (signed), and whether both can be used."""

    counts: npt.NDArray[np.int64]
    sums_ns: npt.NDArray[np.int64]
    usable: npt.NDArray[np.bool_]

    @classmethod
    def difference(cls, up_sums: Counts, down_sums: Counts, counts: Counts, usable: Array, banks: int) -> Rows:
        """Downstream less upstream, modulo 2^64: what wraps in both sums cancels out."""
        sums_ns = (down_sums - up_sums).view(np.int64)
        shape = (banks, -1)
        useful = np.asarray(usable, bool) & (counts > 0)
        return cls(counts.view(np.int64).reshape(shape), sums_ns.reshape(shape), useful.reshape(shape))

    @property
    def used(self) -> int:
        """Packets in usable rows."""
        return int(self.counts[self.usable].sum())

    @property
    def sum_ns(self) -> int:
        """Their summed delay, exact."""
        sums = self.sums_ns[self.usable]
        return (int((sums >> np.int64(32)).sum()) << 32) + int((sums & np.int64(0xFFFFFFFF)).sum())

    def variance_ns2(self, deviation: Deviation = "rows") -> float | None:
        """The variance of single delays; None with too few rows."""
        if not self.used:
            return None
        return self._between_rows() if deviation == "rows" else self._collapsed(self.sum_ns / self.used)

    def _between_rows(self) -> float | None:
        """Sum (D_i - mu n_i)^2 / n_i over (rows - 1), in all banks."""
        whole, part = divmod(self.sum_ns, self.used)  # an integer: a clock's offset would leave no digits for the rest
        counts = np.where(self.usable, self.counts, 1).astype(np.float64)
        rest = (self.sums_ns - np.int64(whole) * self.counts).astype(np.float64) - part / self.used * counts
        squares = np.where(self.usable, rest * rest / counts, 0.0).sum(axis=1)
        freedom = np.maximum(self.usable.sum(axis=1) - 1, 0)
        enough = freedom > 0
        return float(squares[enough].sum() / freedom[enough].sum()) if enough.any() else None

    def _collapsed(self, mean_ns: float) -> float | None:
        """The papers': usable rows two and two, with opposite signs, F - mu^2. For comparison; it can be far off."""
        squares, total = 0.0, 0
        for counts, sums_ns, usable in zip(self.counts, self.sums_ns, self.usable, strict=True):
            places = np.flatnonzero(usable)
            pairs = places[: len(places) // 2 * 2].reshape(-1, 2)
            apart = (sums_ns[pairs[:, 1]] - sums_ns[pairs[:, 0]]).astype(np.float64)
            squares += float((apart * apart).sum())
            total += int(counts[pairs].sum())
        return max(0.0, squares / total - mean_ns**2) if total else None

    def squares_ns2(self, deviation: Deviation = "rows") -> float | None:
        """The variance times the packets, as a crossing adds it up."""
        variance = self.variance_ns2(deviation)
        return None if variance is None else variance * self.used
