"""What charts show of distributions: the kernels are plain Python, bin by bin."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest

from tests.oracles.delay_figures import middle
from wirelag import _kernels
from wirelag.stats.distribution import BINS, Distribution


def filled(seed: int, sigma: float, count: int) -> Distribution:
    rng, found = np.random.default_rng(seed), Distribution()
    found.add(rng.lognormal(14, sigma, count).astype(np.int64), rng.integers(1, 5, count))
    return found


@pytest.mark.parametrize("sigma", [0.01, 1.0, 4.0])
def test_delays_in_order_are_the_middles_of_bins_between_the_ends(sigma: float) -> None:
    whole = filled(1, sigma, 500)
    held = [(middle(bin_), int(weight)) for bin_, weight in enumerate(whole.weights) if weight]
    assert whole.min_ns is not None
    assert whole.max_ns is not None
    expected = [min(max(ns, whole.min_ns, 1.0), float(whole.max_ns)) / 1e9 for ns, _ in held]
    shares = [up_to / whole.weight for up_to in accumulate(float(weight) for _, weight in held)]
    for one in (whole, whole.compact()):
        assert one.cumulated() == (expected, shares)
    assert Distribution().cumulated() == ([], [])


@pytest.mark.parametrize(("sigma", "per_octave"), [(0.01, 16), (1.0, 4), (4.0, 1)])
def test_a_heat_map_counts_delays_by_parts_of_octaves(sigma: float, per_octave: int) -> None:
    parts, most = [filled(seed, sigma, 300) for seed in range(3)] + [Distribution()], 60
    rows: dict[int, list[list[int]]] = {}
    for each in (16, 8, 4, 2, 1):
        places = [math.floor(math.log2(max(middle(bin_), 1.0)) * each) for bin_ in range(BINS)]
        used = [places[bin_] for one in parts for bin_ in np.flatnonzero(one.weights).tolist()]
        counts = [[0] * len(parts) for _ in range(min(used), max(used) + 1)]
        for at, one in enumerate(parts):
            for bin_ in np.flatnonzero(one.weights).tolist():
                counts[places[bin_] - min(used)][at] += int(one.weights[bin_])
        if len(counts) <= most or each == 1:
            rows = {min(used): counts}
            break
    ((first, expected),) = rows.items()
    assert _kernels.heat([one.by_bin for one in parts], most) == (each, first, expected)
    assert each == per_octave
    with pytest.raises(ValueError, match="no delays"):
        _kernels.heat([Distribution().by_bin], most)
