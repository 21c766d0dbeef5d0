"""Law: a quantile is the same wherever it is computed: of single delays, in bins, of many distributions at once."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from wirelag.collector.tally import Tally
from wirelag.stats.distribution import Distribution
from wirelag.stats.distributions import Distributions
from wirelag.synopses.delay_sample import DelaySample

SHARES = (0.0, 0.1, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)


def binned(delays_ns: np.ndarray, weights: np.ndarray) -> Distribution:
    found = Distribution()
    found.add(delays_ns, weights)
    return found


def plain(delays_ns: np.ndarray, q: float) -> float:
    """The law, in words of documentation: place q n, and the mean with the one before of few if that is whole."""
    ordered, place = np.sort(delays_ns).tolist(), Fraction(str(q)) * len(delays_ns)
    at = min(math.floor(place), len(ordered) - 1)
    between = len(ordered) < 20 and place.denominator == 1 and 0 < place < len(ordered)
    return (ordered[at - 1] + ordered[at]) / 2 if between else float(ordered[at])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 10, 18, 19, 20, 100])
@pytest.mark.parametrize("most", [1, 4])
def test_every_home_of_a_quantile_has_the_same_law(n: int, most: int) -> None:
    rng = np.random.default_rng(n)
    delays_ns = rng.lognormal(15, 1, n).astype(np.int64)
    weights = rng.integers(1, most + 1, n)
    one = binned(delays_ns, weights)
    many = Distributions.of_delays(np.zeros(n, np.int64), delays_ns, 1)
    sample = DelaySample(np.arange(n), delays_ns, weights)
    tally = Tally()
    held = np.flatnonzero(one.weights)
    tally.bins, tally.weights = held, one.weights[held].astype(np.int64)
    for q in SHARES:
        expected = plain(np.repeat(delays_ns, weights), q)
        assert sample.quantiles_ns([q])[0][0] == pytest.approx(expected, rel=1e-12)
        assert one.quantile_ns(q) == pytest.approx(expected, rel=0.008)  # the width of a bin
        assert tally.quantile_ns(q) == pytest.approx(expected, rel=0.008)
        if most == 1:
            assert many.quantile_ns(q)[0] == one.quantile_ns(q)


@pytest.mark.parametrize(("delays_ns", "median"), [([10], 10), ([10, 200], 105), ([10, 20, 200], 20)])
def test_the_median_of_few_delays(delays_ns: list[int], median: float) -> None:
    """Neither the upper nor the lower of two; below 256 ns bins are exact."""
    one = binned(np.array(delays_ns), np.ones(len(delays_ns), np.int64))
    assert one.quantile_ns(0.5) == median
    assert DelaySample.of(np.arange(len(delays_ns)), np.array(delays_ns), 1).quantiles_ns([0.5])[0][0] == median
