"""The error of a mean whose samples come in groups, in plain Python: stats/random_groups.py states the law."""

from __future__ import annotations

import math
from collections.abc import Sequence


def between(totals: Sequence[float], sizes: Sequence[float], alone: float) -> tuple[float, float] | None:
    """The error and its degrees of freedom; None if fewer than four groups have a size."""
    if sum(size != 0 for size in sizes) < 4:
        return None
    whole = total = kish = squares = expected = 0.0
    for one, size in zip(totals, sizes, strict=True):
        whole += size
        total += one
    for size in sizes:
        kish += (size / whole) * (size / whole)
    for one, size in zip(totals, sizes, strict=True):
        share, residual = size / whole, (one - total / whole * size) / whole
        squares += residual * residual
        expected += share * share * (1 - 2 * share + kish)
    levels = (squares - alone * alone * (1 - kish)) / expected
    return math.sqrt(max(0.0, alone * alone + kish * levels)), max(1 / kish - 1, 1.0)
