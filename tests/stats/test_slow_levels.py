"""Slow levels: the same as plain twins, near the truth for levels that are known, and wider than without a level."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from tests.oracles import over_time as oracle
from tests.oracles.over_time import SLOWEST, STEADY
from wirelag import _kernels
from wirelag.stats.over_time import RETURNS, STRETCHES

Floats = npt.NDArray[np.float64]
LOWEST = 0.05  # of the batches tell where the floor is


class Slowness(NamedTuple):
    """What the kernel tells."""

    half: float
    level: float
    stretches: float
    returns: float
    part: float


def powers_of(values: Floats) -> Floats:
    """Powers of cosines, by their definition."""
    return 2 * (_waves(len(values)) @ (values - values.mean())) ** 2


@cache
def _waves(n: int) -> Floats:
    return np.array(
        [[math.cos(math.pi * k * (i + 0.5) / n) for i in range(n)] for k in range(1, min(SLOWEST, n - 1) + 1)]
    )


def reach_of(values: Floats) -> float:
    """How far the mean lies above the lowest values."""
    return float(values.mean() - np.quantile(values, LOWEST))


def found_of(values: Floats) -> Slowness:
    return Slowness(*_kernels.slowness(powers_of(values).tolist(), len(values), reach_of(values)))


def plain(powers: Floats, n: int, reach: float) -> Slowness:
    """The same but the level, kind by kind."""
    kinds: list[tuple[float, float, float, float, float]] = []  # likelihood (log), variance, stretches, returns, part
    times = []
    time = 0.5
    while time < 2 * n * (1 - 1e-9):
        times.append(time)
        time *= math.sqrt(2)
    sizes = [2.0**power for power in range(-1, 17, 2)]
    for time, size in [(0.0, 0.0), *((time, size) for time in times for size in sizes)]:
        kept = math.exp(-1 / time) if time else 0.0
        before = (1 - STEADY) / (len(times) * len(sizes)) if time else STEADY
        log, left = math.log(before), 0.0
        for k, power in enumerate(powers, 1):
            level = (1 - kept) ** 2 / (1 - 2 * kept * math.cos(math.pi * k / n) + kept**2)
            spectrum = (1 + size * level) / (1 + size)
            log -= math.log(spectrum) / 2
            left += float(power) / spectrum
        variance = left / len(powers)
        of_level, of_noise = (part / (1 + size) * variance / n for part in (size, 1.0))
        of_batch = of_level * (1 - kept) / (1 + kept) + of_noise
        returns = n * (1 - kept) / 2 * of_batch / reach**2 if time else math.inf
        part = math.sqrt(1 - of_noise / of_batch)
        kinds.append((log - len(powers) / 2 * math.log(left), variance, n / (2 * time) if time else n, returns, part))
    top = max(log for log, *_ in kinds)
    weights = [math.exp(log - top) for log, *_ in kinds]
    whole = sum(weights)
    low, high = 0.0, 1e3 * math.sqrt(max(variance for _, variance, *_ in kinds))
    for _ in range(80):
        half = (low + high) / 2
        beyond = (
            sum(w * math.erfc(half / math.sqrt(2 * v)) for w, (_, v, *_) in zip(weights, kinds, strict=True)) / whole
        )
        low, high = (half, high) if beyond > 0.05 else (low, half)
    fewest, least = (_doubted(weights, [one[place] for one in kinds]) for place in (2, 3))
    return Slowness(half, math.nan, kinds[fewest][2], *kinds[least][3:])


def _doubted(weights: list[float], values: list[float]) -> int:
    """The kind with the value that there are fewer than with a chance of one in three."""
    fewer = 0.0
    for _, kind, weight in sorted(zip(values, range(len(values)), weights, strict=True)):
        fewer += weight / sum(weights)
        if fewer >= 1 / 3:
            return kind
    raise AssertionError


def forgets(rng: np.random.Generator, count: int, time: float, noise: float) -> Floats:
    """A level that is forgotten within a time, in batches, and noise."""
    kept, level, found = math.exp(-1 / time), rng.normal(), []
    for _ in range(count):
        level = kept * level + math.sqrt(1 - kept**2) * rng.normal()
        found.append(level + noise * rng.normal())
    return np.array(found)


@pytest.mark.parametrize(
    ("count", "time", "noise"), [(128, 0.01, 1.0), (128, 6.0, 1.0), (128, 30.0, 3.0), (20, 2.0, 0.5)]
)
def test_the_same_as_the_plain_twin(count: int, time: float, noise: float) -> None:
    values = forgets(np.random.default_rng(count), count, time, noise)
    found, expected = found_of(values), plain(powers_of(values), count, reach_of(values))
    assert found.half == pytest.approx(expected.half, rel=0.01)
    assert found.stretches == pytest.approx(expected.stretches)
    assert found.returns == pytest.approx(expected.returns)
    assert found.part == pytest.approx(expected.part)


@pytest.mark.parametrize("count", [2, 3, 5, 17, 100, 128])
def test_the_same_bits_as_the_oracle(count: int) -> None:
    rng = np.random.default_rng(count)
    for time, noise in ((0.01, 1.0), (6.0, 1.0), (40.0, 0.1)):
        powers = powers_of(forgets(rng, count, time, noise)).tolist()
        for reach in (0.0, -1.0, 0.3, 5.0):
            assert _kernels.slowness(powers, count, reach) == oracle.slowness(powers, count, reach)


def test_powers_of_nothing_are_refused() -> None:
    for powers, batches in (([], 4), ([1.0], 1), ([1.0, 2.0, 3.0], 2)):
        with pytest.raises(ValueError, match="there must be a power"):
            _kernels.slowness(powers, batches, 1.0)


def test_intervals_of_levels_hold_and_without_a_level_they_do_not() -> None:
    """Also where the noise is as large as a level that lasts an eighth of the recording; twice that is doubted."""
    rng = np.random.default_rng(4)
    for time, noise in ((0.01, 1.0), (2.0, 1.0), (8.0, 0.0), (8.0, 1.0)):
        hits = naive = 0
        for _ in range(200):
            values = forgets(rng, 128, time, noise)
            total = abs(float(values.sum()))
            hits += total <= found_of(values).half
            naive += total <= 1.96 * float(values.std()) * math.sqrt(128)
        assert 0.95 - 3.5 * math.sqrt(0.95 * 0.05 / 200) <= hits / 200, (time, noise)
        assert (naive / 200 < 0.8) == (time > 1), (time, noise)
    drifts = np.linspace(0, 5, 128) + rng.normal(size=128)
    assert found_of(drifts).stretches < 4
    assert found_of(rng.normal(size=128)).stretches > 30


@pytest.mark.parametrize("part", [10, 6])
@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_levels_of_a_tenth_of_the_recording_and_longer_hold(part: int, noise: float) -> None:
    """Of those with two independent stretches, as it seems; independent batches are right in a third of the cases."""
    rng, n, runs = np.random.default_rng(part), 128, 150
    told: list[bool] = []
    naive = 0
    for _ in range(runs):
        values = forgets(rng, n, n / part, noise)
        found, total = found_of(values), abs(float(values.sum()))
        if found.stretches >= 2:
            told.append(total <= found.half)
        naive += total <= 1.96 * float(values.std()) * math.sqrt(n)
    assert len(told) > 0.3 * runs
    assert np.mean(told) >= 0.95 - 3.5 * math.sqrt(0.95 * 0.05 / len(told))
    assert naive / runs < 0.5


def test_the_level_is_the_part_of_the_variance_that_noise_is_not() -> None:
    rng = np.random.default_rng(6)
    steady = np.mean([found_of(rng.normal(size=128)).level for _ in range(50)]) / 128
    slow = np.median([found_of(forgets(rng, 128, 6.0, 1.0)).level for _ in range(50)]) / 128
    assert steady < 0.5
    assert 0.5 * 12 < slow < 4 * 12  # a level of variance 1 that lasts 6 has 12 at frequency 0; what is not sure widens


def test_returns_of_a_queue_are_as_its_drift_says() -> None:
    """Waits that move by a variance of 1 a step and have a mean of w return n / (4 w^2) times in n steps."""
    rng, n = np.random.default_rng(9), 4096
    for w in (8.0, 16.0):
        found = []
        for _ in range(80):
            steps = rng.normal(-1 / (2 * w), 1, n)
            steps[0] += rng.exponential(w)
            path = steps.cumsum()
            waits = path - np.minimum(np.minimum.accumulate(path), 0.0)
            found.append(found_of(waits.reshape(128, -1).sum(axis=1)).returns)
        assert 0.5 < np.median(found) / (n / (4 * w**2)) < 2


def test_a_level_that_never_returns_seems_to_return_in_one_case_of_eight() -> None:
    """A random walk has no mean to tell. The number of stretches alone lets one in seven or more through."""
    rng, runs = np.random.default_rng(10), 500
    found = [found_of(rng.normal(size=128).cumsum() + 0.5 * rng.normal(size=128)) for _ in range(runs)]
    stretched = [one for one in found if one.stretches >= STRETCHES]
    told = sum(one.returns >= RETURNS for one in stretched)
    assert told / runs < 0.125 + 3.5 * math.sqrt(0.125 * 0.875 / runs)
    assert told < len(stretched)
