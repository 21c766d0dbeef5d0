"""Rows of (packets, summed delay): mean and deviation for methods that sum timestamps.

Law: each row is a random set of packets, chosen by a coin. Its summed delay is exact, so the mean over rows is exact.
The differences between rows that their sizes do not explain give the deviation of single delays
(docs/reference/crossing.md, "LDA").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.codec import array_of

Deviation = Literal["rows", "collapse"]
Counts = npt.NDArray[np.uint64]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """The rows of all banks, concatenated: packets, summed delay (signed), and whether the row is usable.

    `base_ns` is subtracted from every delay: with clocks far apart, sums of whole delays would not fit.
    """

    counts: npt.NDArray[np.int64]
    sums_ns: npt.NDArray[np.int64]
    usable: npt.NDArray[np.bool_]
    base_ns: int = 0

    @classmethod
    def difference(
        cls, up_sums: Counts, down_sums: Counts, counts: Counts, usable: Array, banks: int, base_ns: int = 0
    ) -> Rows:
        """Downstream minus upstream, modulo 2^64: wraps in both sums cancel out."""
        sums_ns = (down_sums - up_sums - counts * np.uint64(base_ns & 2**64 - 1)).view(np.int64)
        shape = (banks, -1)
        useful = np.asarray(usable, bool) & (counts > 0)
        return cls(counts.view(np.int64).reshape(shape), sums_ns.reshape(shape), useful.reshape(shape), base_ns)

    @cached_property
    def _totals(self) -> tuple[int, int, int, float]:
        """Usable rows, their packets, their summed delay, and the sum of (D_i - mean n_i)^2 / n_i over them."""
        return _kernels.row_totals(self.counts.reshape(-1), self.sums_ns.reshape(-1), self.usable.reshape(-1))

    @property
    def used(self) -> int:
        """Packets in usable rows."""
        return self._totals[1]

    @property
    def sum_ns(self) -> int:
        """Their summed delay, exact."""
        return self._totals[2] + self.base_ns * self.used

    def first(self) -> Rows:
        """The first bank."""
        if len(self.counts) == 1:
            return self
        return Rows(self.counts[:1], self.sums_ns[:1], self.usable[:1], self.base_ns)

    def variance_ns2(self, deviation: Deviation = "rows") -> float | None:
        """The variance of single delays; None if there are too few rows."""
        if not self.used:
            return None
        return self._between_rows() if deviation == "rows" else self._collapsed(self.sum_ns / self.used)

    def _between_rows(self) -> float | None:
        """Sum (D_i - mu n_i)^2 / n_i, over usable rows less one for the mean."""
        rows, _, _, squares = self._totals
        return squares / (rows - 1) if rows > 1 else None

    def _collapsed(self, mean_ns: float) -> float | None:
        """The papers' estimator: usable rows in pairs with opposite signs, F - mu^2. For comparison; often far off."""
        squares, total = 0.0, 0
        for counts, sums_ns, usable in zip(self.counts, self.sums_ns, self.usable, strict=True):
            places = np.flatnonzero(usable)
            first, second = places[: len(places) // 2 * 2].reshape(-1, 2).T
            apart = (sums_ns[second] - sums_ns[first]).astype(np.float64)
            apart += float(self.base_ns) * (counts[second] - counts[first])
            squares += float((apart * apart).sum())
            total += int(counts[first].sum() + counts[second].sum())
        return max(0.0, squares / total - mean_ns**2) if total else None


def lowered(name: str, sums: Counts, counts: Counts, times_ns: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Sums for transport: a nearby time is subtracted from each summand, so that few bytes hold them."""
    base_ns = int(times_ns.min()) if len(times_ns) else 0
    return {name: sums - counts * np.uint64(base_ns & 2**64 - 1), "base_ns": base_ns}


def raised(name: str, fields: Mapping[str, Any], counts: Counts) -> Counts:
    """The inverse of `lowered`; a ValueError if the fields do not fit."""
    sums, base_ns = array_of(fields, name, np.uint64), fields.get("base_ns")
    if not isinstance(base_ns, int) or len(sums) != len(counts):
        raise ValueError(f"{len(sums)} {name} for {len(counts)} counts, above {base_ns}")
    return np.asarray(sums + counts * np.uint64(base_ns & 2**64 - 1))
