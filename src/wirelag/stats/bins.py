"""The bins of distributions (distribution.py) as columns: where they begin, how wide they are, their middles."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.stats.distribution import BINS, BITS

Floats = npt.NDArray[np.float64]


def _bins_ns() -> tuple[Floats, Floats]:
    """The shortest delay of each bin, and how much longer the longest is."""
    bins: npt.NDArray[Any] = np.arange(BINS)
    shift = np.maximum((bins >> BITS) - 1, 0)
    return ((bins - (shift << BITS)) << shift).astype(np.float64), ((1 << shift) - 1).astype(np.float64)


SHORTEST_NS, WIDTH_NS = _bins_ns()
MIDDLES_NS: Final = SHORTEST_NS + WIDTH_NS / 2
