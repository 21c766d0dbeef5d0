"""Ranked bins, and the figures of a distribution: the kernels are their plain twins, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import delay_figures
from tests.oracles.ranked_bins import RankedBins
from wirelag import _kernels
from wirelag.stats.bins import MIDDLES_NS
from wirelag.stats.distribution import BINS, Distribution

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


WEIGHED = st.lists(
    st.tuples(st.integers(0, BINS - 1), st.integers(0, 1 << 20), st.integers(1, 4)),
    min_size=1,
    max_size=40,
    unique_by=lambda one: one[0],
).filter(lambda cells: any(weight for _, weight, _ in cells))


@given(WEIGHED, st.integers(-1, BINS), st.floats(0, 1e12), st.one_of(st.just(0.0), st.floats(1e-3, 1e12)))
def test_figures_are_those_of_the_plain_twin(
    cells: list[tuple[int, int, int]], below: int, mean: float, std: float
) -> None:
    bins, weights, times = zip(*sorted(cells), strict=True)
    squares = [weight * by for weight, by in zip(weights, times, strict=True)]
    plain = delay_figures.DelayFigures(bins, weights, squares, mean, std)
    columns = np.array(weights, np.uint64), np.array(squares, np.uint64)
    dense = [np.zeros(BINS, np.uint64), np.zeros(BINS, np.uint64)]
    for column, values in zip(dense, columns, strict=True):
        column[list(bins)] = values
    for found in (
        _kernels.DelayFigures(np.array(bins, np.int64), *columns, mean, std),
        _kernels.DelayFigures(None, *dense, mean, std),
    ):
        for name in ("sum_squares", "squared_apart", "skewness"):
            assert getattr(found, name) == getattr(plain, name)
        assert found.weight_from(below) == plain.weight_from(below)
        assert found.share_error(below) == plain.share_error(below)
        assert found.follows_mean(below) == plain.follows_mean(below)


def test_bins_and_octaves_are_where_their_middles_say() -> None:
    assert MIDDLES_NS.tolist() == [delay_figures.middle(bin_) for bin_ in range(BINS)]
    for limit_ns in (-1, 0, 1, 255, 256, 257, 1000, 10**9, 1 << 60):
        assert _kernels.bin_above(limit_ns) == np.searchsorted(MIDDLES_NS, limit_ns, side="right")
    delays = Distribution()
    delays.add(np.array([0, 1, 2, 3, 1000, 10**9, 1 << 50]))
    octaves = [int(middle).bit_length() - 1 if middle >= 1 else 0 for middle in MIDDLES_NS.tolist()]
    expected = np.bincount(octaves, delays.weights, 64).tolist()
    assert list(delays.by_octave()) == list(delays.compact().by_octave()) == expected
