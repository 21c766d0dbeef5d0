"""Confidence intervals of samples from connections cover the truth; without random_groups they do not."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.random_groups import between as plain_between
from tests.support.effort import scaled
from wirelag.stats.distribution import Distribution
from wirelag.stats.over_time import half95
from wirelag.stats.random_groups import RandomGroups, between
from wirelag.synopses.samples import Samples, facts

RUNS = scaled(400)


def delays_of_connections(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """400 connections of 1 to 60 samples; most of a delay depends on the connection."""
    sizes = rng.integers(1, 61, 400)
    own = np.repeat(rng.lognormal(16, 0.8, 400), sizes)
    keys = np.repeat(rng.integers(0, 2**64, 400, dtype=np.uint64), sizes)
    return keys, (own * rng.lognormal(0, 0.1, len(own))).astype(np.int64)


def in_rows(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A column of flow keys, a row for each sample, and a leg."""
    return keys, np.arange(len(keys), dtype=np.uint32), np.zeros(len(keys), np.uint8)


def coverage(with_crowds: bool) -> dict[str, float]:
    true = {"mean": math.exp(16 + 0.65 / 2), "0.5": math.exp(16), "0.9": math.exp(16 + 1.2815516 * math.sqrt(0.65))}
    covered: dict[str, list[bool]] = {name: [] for name in true}
    for seed in range(RUNS):
        keys, delays = delays_of_connections(np.random.default_rng(seed))
        samples = Samples()
        samples.add(np.zeros(len(delays), np.uint8), delays)
        times = np.random.default_rng(seed).integers(0, 10**11, len(delays))
        samples.spread.add(keys, times, *in_rows(keys)[1:], delays)
        found = samples.distribution()
        found.certainty = found.certainty if with_crowds else None
        said = facts(found)["ci95"]
        for name, value in true.items():
            if name in said:  # in one run of a hundred, chance looks like a slow change
                covered[name].append(said[name][0] <= value / 1e9 <= said[name][1])
    assert all(len(told) > 0.95 * RUNS for told in covered.values())
    return {name: float(np.mean(told)) for name, told in covered.items()}


def test_intervals_cover_the_truth_although_connections_are_alike() -> None:
    """95%, within four standard errors for the number of runs, and a little more for skewed means."""
    slack = 4 * math.sqrt(0.95 * 0.05 / RUNS)
    for name, share in coverage(with_crowds=True).items():
        assert 0.95 - slack - 0.01 <= share <= 1, name


def test_without_crowds_they_do_not() -> None:
    assert max(coverage(with_crowds=False).values()) < 0.7


def test_independent_samples_keep_their_intervals() -> None:
    """One sample per connection: random_groups add only the noise of 31 degrees of freedom."""
    rng = np.random.default_rng(3)
    ratios = []
    for _ in range(50):
        delays = rng.lognormal(16, 0.5, 4_000).astype(np.int64)
        random_groups, plain = RandomGroups(), Distribution()
        random_groups.add(*in_rows(rng.integers(0, 2**64, len(delays), dtype=np.uint64)), delays)
        plain.add(delays)
        alone = plain.mean_error_ns() or 0.0
        error = random_groups.mean_error_ns(alone)
        assert error is not None
        ratios.append(error[0] / alone)
    # A variance has a spread of sqrt(2 / 31), its root half of that: as often below the error alone as above it.
    spread = math.sqrt(2 / 31) / 2
    assert abs(np.mean(ratios) - 1) < 4 * spread / math.sqrt(50) + 0.02
    assert np.std(ratios) < 2 * spread


def few_and_many(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Twelve groups with levels around 100, one of them with two thirds of all samples."""
    sizes = np.array([660.0, *[30.0] * 11])
    return sizes * rng.normal(100.0, 10.0, 12), sizes


def test_one_large_group_does_not_hide_how_much_they_differ() -> None:
    """It draws the mean towards itself. The usual variance of random groups does not know that, and is too small."""
    rng, runs, covered, usual = np.random.default_rng(2), 1_000, 0, 0
    for _ in range(runs):
        totals, sizes = few_and_many(rng)
        mean, found = totals.sum() / sizes.sum(), between(totals, sizes, 0.0)
        assert found is not None
        covered += abs(mean - 100) <= half95(found[1]) * found[0]
        residuals = (totals - mean * sizes) / sizes.sum()
        usual += abs(mean - 100) <= half95(11) * math.sqrt(residuals @ residuals * 12 / 11)
    slack = 4 * math.sqrt(0.95 * 0.05 / runs)
    assert covered / runs > 0.95 - slack
    assert usual / runs < 0.95 - slack


def test_merged_crowds_equal_those_of_all_samples_and_few_give_no_interval() -> None:
    keys, delays = delays_of_connections(np.random.default_rng(1))
    whole, one, other = RandomGroups(), RandomGroups(), RandomGroups()
    whole.add(*in_rows(keys), delays)
    one.add(*in_rows(keys[:1_000]), delays[:1_000])
    other.add(*in_rows(keys[1_000:]), delays[1_000:])
    one.merge(other)
    assert list(one.weights) == list(whole.weights)
    assert whole.of_leg(0).mean_error_ns(1.0) == whole.mean_error_ns(1.0) is not None
    assert whole.of_leg(1).mean_error_ns(1.0) is None
    few = RandomGroups()
    few.add(*in_rows(np.zeros(100, np.uint64)), delays[:100])
    assert few.mean_error_ns(1.0) is None


@pytest.mark.parametrize("wrong", [np.zeros(3, np.uint64), np.zeros(5, np.uint64)])
def test_arrays_that_do_not_fit_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="shape of crowds"):
        RandomGroups().add(*in_rows(wrong), np.zeros(4, np.int64))


@given(st.lists(st.tuples(st.floats(-1e6, 1e9), st.integers(0, 10**6)), min_size=1, max_size=40), st.floats(0, 1e6))
def test_the_same_bits_as_the_plain_twin(groups: list[tuple[float, int]], alone: float) -> None:
    totals, sizes = np.array([total for total, _ in groups]), np.array([float(size) for _, size in groups])
    assert between(totals, sizes, alone) == plain_between(totals.tolist(), sizes.tolist(), alone)
