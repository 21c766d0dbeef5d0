"""Ranked bins: the kernel is its plain twin, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.ranked_bins import RankedBins
from wirelag import _kernels
from wirelag.stats.distribution import BINS

CELLS = st.lists(
    st.tuples(st.integers(0, BINS - 1), st.integers(0, 1 << 40)), max_size=40, unique_by=lambda one: one[0]
)
SHARES = st.one_of(st.floats(-0.1, 1.1), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0]))


@given(CELLS, st.integers(0, 30), st.lists(SHARES, min_size=1), st.integers(-1, BINS))
def test_the_same_as_the_plain_twin(cells: list[tuple[int, int]], below: int, shares: list[float], edge: int) -> None:
    bins, weights = zip(*sorted(cells), strict=True) if cells else ((), ())
    plain = RankedBins(bins, weights, below)
    for kind in (np.int64, np.uint64):
        found = _kernels.RankedBins(np.array(bins, np.int64), np.array(weights, kind), below)
        assert found.weight == plain.weight
        assert found.before(edge) == plain.before(edge)
        for q in shares:
            assert found.quantile(q) == plain.quantile(q)
            if any(weights) and q <= 1:
                assert found.bin_at(q) == plain.bin_at(q)


@given(
    st.lists(
        st.tuples(st.integers(0, BINS - 1), st.integers(1, 3)), min_size=1, max_size=8, unique_by=lambda one: one[0]
    )
)
def test_few_delays_too(cells: list[tuple[int, int]]) -> None:
    """Of these a quantile may lie between two."""
    bins, weights = zip(*sorted(cells), strict=True)
    plain = RankedBins(bins, weights)
    found = _kernels.RankedBins(np.array(bins), np.array(weights))
    for place in range(2 * plain.weight + 1):
        q = place / (2 * plain.weight)
        assert found.quantile(q) == plain.quantile(q)


def test_there_is_no_bin_beyond_all_delays() -> None:
    with pytest.raises(IndexError):
        _kernels.RankedBins(np.array([3]), np.array([1])).bin_at(2.0)
    with pytest.raises(ValueError, match="a weight for each bin"):
        _kernels.RankedBins(np.array([3, 4]), np.array([1]))
