"""Intervals of means and quantiles of delays that are correlated in time: coverage, by simulated queues."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from tests.oracles import over_time as oracle
from tests.support.effort import FULL, scaled
from tests.support.queues import waits
from wirelag import _kernels
from wirelag.stats.distribution import Z95, wilson
from wirelag.stats.in_order import InOrder
from wirelag.stats.over_time import (
    A_QUEUE,
    FEWEST_DELAYS,
    STRETCHES,
    Alike,
    Chance,
    OverTime,
    bounds,
    half95,
    over_time,
    too_short,
    welch,
    with_the_mean,
    within_whole,
)
from wirelag.stats.shares import quantile_shares, share_bounds
from wirelag.synopses.delay_sample import DelaySample

Floats = npt.NDArray[np.float64]
LOADS = (0.55, 0.7, 0.85, 0.95)
COUNTS = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, *((100_000,) if FULL else ()))


def sample(delays: Floats) -> DelaySample:
    """As a method yields them."""
    return DelaySample.of(np.arange(len(delays)), np.round(delays * 1e6).astype(np.int64), 1)


def mean_interval(found: DelaySample) -> tuple[float, float] | None:
    """In units of a service."""
    error = found.error_of_mean()
    if error is None or found.why_no_interval() is not None:
        return None
    mean, floor = float(found.delays_ns.mean()), float(found.delays_ns.min())
    low, high = bounds(mean, error, mean - floor, found.chance(found.over_time()))
    return low / 1e6, high / 1e6


def test_intervals_of_correlated_delays_hold_the_truth() -> None:
    """Pooled over loads and lengths 93 to 97%, and nowhere confidently wrong: few are told where recordings are short.

    The uncorrected variant, independent samples, is right in a third of the cases.
    """
    rng, runs = np.random.default_rng(5), scaled(60, 12)
    told: dict[tuple[float, int], list[bool]] = {(load, count): [] for load in LOADS for count in COUNTS}
    quantiles: list[bool] = []
    naive: list[bool] = []
    for load, count in told:
        for _ in range(runs):
            delays = waits(rng, count, load)
            truth = 1 / (1 - load)
            found = sample(delays)
            if (ends := mean_interval(found)) is not None:
                told[load, count].append(ends[0] <= truth <= ends[1])
            naive.append(abs(delays.mean() - truth) <= 1.96 * delays.std() / math.sqrt(count))
            for q, (_, low_high) in zip((0.5, 0.9, 0.99), found.quantiles_ns([0.5, 0.9, 0.99]), strict=True):
                if low_high is not None:
                    quantiles.append(low_high[0] / 1e6 <= -math.log(1 - q) * truth <= low_high[1] / 1e6)
    every = [hit for hits in told.values() for hit in hits]
    assert len(every) / len(naive) > 0.4
    for hits in (every, quantiles):
        by_chance = 0.0 if FULL else 2 * math.sqrt(0.05 * 0.95 / len(hits))  # of a fifth of the recordings
        assert 0.93 - by_chance <= np.mean(hits) <= 0.98
    assert np.mean(naive) < 0.5
    for (load, count), hits in told.items():
        if count * (1 - load) ** 2 > 40:  # long enough: an interval as a rule, and right in each cell
            assert len(hits) > 0.4 * runs, (load, count)
            assert np.mean(hits) >= 0.95 - 3.5 * math.sqrt(0.95 * 0.05 / len(hits)), (load, count)
        assert sum(not hit for hit in hits) <= 0.05 * runs + 3.5 * math.sqrt(0.05 * 0.95 * runs), (load, count)
    assert not any(told[load, 10] for load in LOADS)


def test_short_recordings_of_a_busy_queue_have_right_intervals_or_none() -> None:
    """95% load, 200 to 1,000 packets: shorter than waits stay alike, or about as long.

    Without the laws of returns and of calm, more have an interval, and at least three times as many are wrong.
    """
    rng, load, counts, runs = np.random.default_rng(3), 0.95, (200, 300, 1_000), 100
    told: list[bool] = []
    before: list[bool] = []
    for count in counts * runs:
        found = sample(waits(rng, count, load))
        over, mean = found.over_time(), float(found.delays_ns.mean())
        assert over is not None
        above, truth = mean - float(found.delays_ns.min()), 1e6 / (1 - load)
        for hits, is_told, chance in (
            (told, found.why_no_interval() is None, found.chance(over)),
            (before, over.stretches >= STRETCHES, found.chance()),
        ):
            if is_told:
                low, high = bounds(mean, over.error, above, chance)
                hits.append(low <= truth <= high)
    every = runs * len(counts)
    wrong, wrong_before = (sum(not hit for hit in hits) for hits in (told, before))
    assert len(told) > 0.1 * every
    assert wrong <= 0.05 * len(told) + 2 * math.sqrt(0.05 * 0.95 * len(told))  # of those that are told
    assert 3 * wrong <= wrong_before


def drifting(rng: np.random.Generator, count: int, memory_s: float, noise: float) -> DelaySample:
    """30 s of delays around a level that is forgotten within `memory_s` (Ornstein-Uhlenbeck), plus noise."""
    times = np.sort(rng.uniform(0, 30, count))
    keeps = np.exp(-np.diff(times, prepend=-np.inf) / memory_s)
    level, steps = np.zeros(count), rng.normal(0, np.sqrt(1 - keeps**2))
    for place in range(count):
        level[place] = keeps[place] * level[place - 1] + steps[place]
    delays = 20 + 3 * level + rng.normal(0, noise, count)
    return DelaySample.of(np.round(times * 1e9).astype(np.int64), np.round(delays * 1e6).astype(np.int64), 1)


@pytest.mark.every(2)
@pytest.mark.parametrize("memory_s", [0.05, 0.3, 1.5])
@pytest.mark.parametrize("noise", [0.0, 6.0])
def test_a_part_is_doubted_by_the_memory_of_the_whole(memory_s: float, noise: float) -> None:
    """Twice the memory counts as one; a part of 7.5 s of its own shows too little of a memory of 1.5 s."""
    rng, length_ns = np.random.default_rng(7), 7_500_000_000
    alone: list[bool] = []
    left: list[bool] = []
    found_ns: list[float] = []
    for _ in range(25):
        found = drifting(rng, 3_000, memory_s, noise)
        alike_ns = found.alike_over_time().lasts
        assert noise or alike_ns > 1.3e9 * memory_s
        found_ns.append(alike_ns)
        for start_ns in range(0, 30_000_000_000, length_ns):
            mine = (found.sent_ns >= start_ns) & (found.sent_ns < start_ns + length_ns)
            ends = mean_interval(DelaySample(found.sent_ns[mine], found.delays_ns[mine], found.weights[mine]))
            if ends is not None:
                alone.append(ends[0] <= 20 <= ends[1])
                if too_short(length_ns, alike_ns) is None:
                    left.append(alone[-1])
    assert np.median(found_ns) < 6e9 * memory_s
    if memory_s < 0.1:
        assert len(left) > 0.9 * len(alone)
        assert np.mean(left) > 0.9
    elif memory_s > 1:
        assert len(left) < 0.25 * len(alone) + 10  # a part holds two or three stretches: what it shows is not enough
    else:
        assert np.mean(left) >= 0.95 - 3.5 * math.sqrt(0.95 * 0.05 / len(left))


def two_states(rng: np.random.Generator, count: int, spell_s: float) -> DelaySample:
    """30 s of delays of 10 or 30, for a random while each, plus a wait of 2 on average."""
    times = np.sort(rng.uniform(0, 30, count))
    slow = (np.searchsorted(np.cumsum(rng.exponential(spell_s, 2_000)), times) + rng.integers(2)) % 2
    delays = 10 + 20 * slow + rng.exponential(2, count)
    return DelaySample.of(np.round(times * 1e9).astype(np.int64), np.round(delays * 1e6).astype(np.int64), 1)


@pytest.mark.every(2)
@pytest.mark.parametrize("count", [100, 1_000])
@pytest.mark.parametrize(("process", "slow_s", "truth", "least"), [
    ("level", 0.1, 20.0, 0.85), ("level", 0.5, 20.0, 0.5), ("level", 3.0, 20.0, 0.0),
    ("two states", 0.5, 22.0, 0.85), ("two states", 5.0, 22.0, 0.0),
])  # fmt: skip
def test_levels_that_change_have_right_intervals_or_none(
    process: str, slow_s: float, truth: float, least: float, count: int
) -> None:
    """Where 30 s hold enough independent stretches there are intervals; where they hold three to five, few are wrong.

    The uncorrected variant, independent samples, is right far too rarely wherever samples are close in time.
    """
    rng, runs = np.random.default_rng(11), 120
    told: list[bool] = []
    naive = 0
    for _ in range(runs):
        found = drifting(rng, count, slow_s, 1.0) if process == "level" else two_states(rng, count, slow_s)
        if (ends := mean_interval(found)) is not None:
            told.append(ends[0] <= truth <= ends[1])
        delays = found.delays_ns / 1e6
        naive += abs(delays.mean() - truth) <= 1.96 * delays.std() / math.sqrt(count)
    wrong = runs * 0.05 + 3.5 * math.sqrt(runs * 0.05 * 0.95)
    assert len(told) >= least * runs
    if least:
        assert np.mean(told) >= 0.95 - 3.5 * math.sqrt(0.95 * 0.05 / len(told))
    assert sum(not hit for hit in told) <= wrong
    assert runs - naive > wrong or (count == 100 and slow_s == 0.1)


def test_independent_delays_are_not_alike() -> None:
    rng = np.random.default_rng(8)
    found = [drifting(rng, 3_000, 1e-9, 0.0).alike_over_time().lasts for _ in range(50)]
    assert sum(alike_ns > 0 for alike_ns in found) <= 5  # eight looks at three standard errors
    assert sample(np.full(1_000, 5.0)).alike_over_time().lasts == 0
    assert DelaySample.empty().alike_over_time().lasts == 0


@pytest.mark.parametrize("count", [100, 10_000])
def test_independent_delays_have_about_the_usual_interval(count: int) -> None:
    rng, widths, hits = np.random.default_rng(count), [], 0
    for _ in range(200):
        delays = rng.normal(100.0, 1.0, count)
        ends = mean_interval(sample(delays))
        if ends is not None:
            widths.append((ends[1] - ends[0]) / (2 * 1.96 / math.sqrt(count)))
            hits += ends[0] <= 100.0 <= ends[1]
    assert len(widths) >= 190
    assert 1.0 < np.median(widths) < 1.5
    assert hits / len(widths) >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 200)


@pytest.mark.parametrize("count", [FEWEST_DELAYS, 150])
def test_independent_skewed_delays_are_not_taken_for_a_calm_queue(count: int) -> None:
    """The interval is hardly wider than chance makes it."""
    rng = np.random.default_rng(4)
    ends = [mean_interval(sample(5 + rng.exponential(1.0, count))) for _ in range(40)]
    assert np.median([high - 6 for _, high in filter(None, ends)]) < 4.3 / math.sqrt(count)


def test_no_interval_is_longer_than_waits_vary() -> None:
    """The wider it is, the more of the long waits the recording has seen."""
    for ratio in (0.1, 0.5, 1.0, 2.0, 5.0):
        low, high = bounds(15.0, (10 * ratio / Z95, math.inf), 10.0)  # 5 are the floor
        assert 15 - 10 * ratio < low
        assert 15 + 10 * min(ratio, 2) < high < 15 + 25
    assert bounds(15.0, (1.0, math.inf), 10.0, A_QUEUE._replace(higher=70.0))[1] == pytest.approx(85)
    ends, sure = (5.0, 1e9), (1e-9, math.inf)
    for q, most in ((0.5, 25), (0.9, 105)):  # half of all delays are 5, the others 25
        assert with_the_mean(q, ends, 5.0, 5.0, sure, 10.0, A_QUEUE)[1] == pytest.approx(most)


def reflected(rng: np.random.Generator, paths: int, returns: float) -> Floats:
    """Mean waits, by the true one, of queues that are reflected Brownian motion, over a time with so many returns."""
    step = 0.05
    waits, total, count = rng.exponential(1.0, paths), np.zeros(paths), round(4 * returns / step)
    for _ in range(count):  # a mean of 1: drift -1/2, variance 1
        after = waits + rng.normal(-step / 2, math.sqrt(step), paths)
        lowest = (waits + after - np.sqrt((after - waits) ** 2 - 2 * step * np.log(rng.random(paths)))) / 2
        waits = after + np.maximum(-lowest, 0.0)
        total += waits
    return total / count


@pytest.mark.parametrize("returns", [12.0, 40.0, 120.0])
def test_both_ends_of_a_queue_miss_equally_often(returns: float) -> None:
    """If the error is known, which is 1.96 sqrt(2 / returns) of the mean, by what was seen of both.

    An interval of equal halves ends below the truth five times as often as above.
    """
    means = reflected(np.random.default_rng(round(returns)), scaled(6_000, 3_000), returns)
    errors = [(math.sqrt(2 / returns) * mean**2, math.inf) for mean in means.tolist()]
    ends = np.array([bounds(mean, error, mean) for mean, error in zip(means.tolist(), errors, strict=True)])
    below, above = np.mean(ends[:, 1] < 1), np.mean(ends[:, 0] > 1)
    assert below < 0.03
    assert 0.015 < above < 0.035
    halves = [half95(freedom) * error for error, freedom in errors]
    assert np.mean(means + halves < 1) > 5 * np.mean(means - halves > 1)


def test_why_there_is_no_interval() -> None:
    few = sample(np.arange(FEWEST_DELAYS - 1.0))
    assert few.why_no_interval() == "fewer than 64 delays do not show how they vary over time"
    rising = sample(np.arange(1000.0))
    assert "change too slowly" in (rising.why_no_interval() or "")
    assert rising.quantiles_ns([0.5])[0][1] is None
    assert rising.share_above_ci(500) is None


def test_equal_delays_have_no_error() -> None:
    assert over_time(np.full(32, 3.0), np.ones(32), 32) == OverTime((0.0, 31.0), math.inf)
    assert InOrder(np.arange(64), np.ones(64)).over_time(np.full(64, 7.0)) == OverTime((0.0, 63.0), math.inf)
    assert over_time(np.full(3, 3.0), np.ones(3), 3) is None


def test_time_and_weight_count_not_the_order_given() -> None:
    rng = np.random.default_rng(1)
    times, values, weights = rng.permutation(640), rng.random(640), rng.integers(1, 4, 640)
    twice = np.repeat(np.arange(640), weights)  # each sample as often as it stands for
    found, again = (
        InOrder(times, weights).over_time(values),
        InOrder(times[twice], np.ones(len(twice))).over_time(values[twice]),
    )
    assert found is not None
    assert again is not None
    assert found.error[0] == pytest.approx(again.error[0], rel=0.2)


def test_delays_that_came_together_are_as_alike_as_one_after_the_other() -> None:
    """A level that wanders, seen by 1 to 6 delays at a time: as sums of so many each, it would look like noise."""
    rng = np.random.default_rng(6)
    level, counts = np.cumsum(rng.integers(-9, 10, 60)).astype(float), rng.integers(1, 7, 60)
    samples = int(counts.sum())
    one_by_one = over_time(np.repeat(level, counts), np.ones(samples), samples)
    assert over_time(level * counts, counts, samples) == one_by_one  # integers are exact
    apart = over_time(level * counts, counts.astype(float), samples - 1)  # these are weights, not delays
    assert one_by_one is not None
    assert apart is not None
    assert one_by_one.returns < apart.returns


def test_errors_add_as_squares() -> None:
    assert welch([(3.0, 10.0), (4.0, 10.0)]) == (5.0, pytest.approx(625 / ((81 + 256) / 10)))
    assert welch([(2.0, 7.0), (0.0, 1.0)]) == (2.0, pytest.approx(7.0))
    assert welch([]) == (0.0, math.inf)


def test_shares_and_quantiles_keep_the_interval_of_independent_samples() -> None:
    exact = (0.0, math.inf)
    low, high = share_bounds(0.1, exact, 1000)
    assert (low, high) == pytest.approx((0.083, 0.120), abs=0.001)
    assert share_bounds(0.0, exact, 100)[0] < 1e-9
    assert share_bounds(0.9, (0.02, 30.0), 1000)[0] < 1 - share_bounds(0.1, exact, 1000)[1]
    assert quantile_shares(0.99, exact, 100) is None  # too few beyond
    shares = quantile_shares(0.5, exact, 10_000)
    assert shares is not None
    assert shares == pytest.approx((0.4902, 0.5098), abs=0.0005)
    assert half95(math.inf) == pytest.approx(1.96, abs=0.001)


def _misses(draw: Callable[[], Floats], truth: float, runs: int, shaped: bool) -> tuple[float, float]:
    """The shares of intervals that lie below the truth, and above it."""
    below = above = 0
    for _ in range(runs):
        found = sample(draw())
        error, mean = found.error_of_mean(), float(found.delays_ns.mean())
        assert error is not None
        shape = [found.chance(found.over_time())] if shaped else []
        low, high = bounds(mean, error, mean - found.delays_ns.min(), *shape)
        below, above = below + (high < 1e6 * truth), above + (low > 1e6 * truth)
    return below / runs, above / runs


def test_chance_of_skewed_delays_gives_the_interval_its_shape() -> None:
    """As many intervals lie below the truth as above. As if waits of a queue made all of the error, none lies below.

    500 delays: of fewer the law of calm makes the upper end.
    """
    rng, runs = np.random.default_rng(2), 600
    shaped = _misses(lambda: 5 + rng.exponential(1.0, 500), 6.0, runs, shaped=True)
    queue = _misses(lambda: 5 + rng.exponential(1.0, 100), 6.0, runs, shaped=False)
    slack = 3.5 * math.sqrt(0.025 * 0.975 / runs)
    assert all(abs(share - 0.02) < slack for share in shaped), shaped
    assert queue[0] == pytest.approx(0.0, abs=0.004)
    assert sum(queue) < sum(shaped)


def test_the_skewness_moves_an_interval_as_edgeworth_says() -> None:
    """Of exponential delays: nearly the exact interval, from quantiles of the gamma distribution of their sum."""
    n, mean = 100, 1.0
    chance = Chance(0.1, 2.0, n)
    low, high = bounds(mean, (0.1, math.inf), mean, chance)
    assert low == pytest.approx(2 * n / 241.06, abs=0.01)  # chi square with 200 degrees: its 97.5% quantile
    assert high == pytest.approx(2 * n / 162.73, abs=0.01)  # and the 2.5% one
    assert bounds(mean, (0.1, math.inf), mean, Chance(0.1, 0.0, n)) == pytest.approx((0.804, 1.196), abs=1e-3)
    symmetric = bounds(mean, (0.3, math.inf), mean, Chance(0.1, 0.0, n))
    assert symmetric == pytest.approx((1 - 0.588, 1 + 0.588), abs=1e-3)
    queue = bounds(mean, (0.3, math.inf), mean, Chance(0.0, 2.0, n))
    assert queue == bounds(mean, (0.3, math.inf), mean)
    assert queue[1] - mean > 2 * (mean - queue[0])


def test_shares_of_independent_delays_have_binomial_intervals() -> None:
    """Of 1,000 delays, 100 beyond: 2.5% and 97.5% quantiles of the binomial distribution are 82 and 119."""
    alone = math.sqrt(0.9 * 0.1 / 1000)
    ends = quantile_shares(0.9, (alone, math.inf), 1000)
    assert ends == pytest.approx((1 - 0.119, 1 - 0.082), abs=1e-3)
    alike = quantile_shares(0.9, (1.5 * alone, math.inf), 1000)
    assert ends is not None
    assert alike is not None
    assert (alike[1] - 0.9) / (ends[1] - 0.9) > 1.5
    assert share_bounds(0.1, (alone, math.inf), 1000) == wilson(0.1, 1000)


def test_a_row_is_as_wide_as_the_level_of_the_whole() -> None:
    """A level that varies by 1 s^2 over 1 s: over 4 s its mean has an error of 0.5 s."""
    alike, figures = Alike(0.1e9, 1e18 * 1e9), {"mean": 3.0, "0.5": 2.0}
    own = {"mean": (2.9, 3.2), "0.5": (1.9, 2.1)}
    wide, why = within_whole(own, figures, 4e9, alike)
    assert why is None
    assert wide["mean"][1] - wide["mean"][0] == pytest.approx(2 * 1.96 * 0.5, abs=1e-3)
    assert (wide["mean"][1] - 3) / (3 - wide["mean"][0]) == pytest.approx(2)
    assert wide["0.5"] == pytest.approx((2 - 0.6533, 2 + 0.6533), abs=1e-3)
    assert within_whole(own, figures, 4e9, Alike(0.1e9, 0.0)) == (own, None)
    none, why = within_whole(own, figures, 0.3e9, alike)
    assert none == {}
    assert "change too slowly" in (why or "")


def test_rows_of_a_level_under_noise_hold_the_truth() -> None:
    """Rows of 7.5 s of a level that lasts 1 s, under noise as large: each looks steady, and alone it is too sure."""
    rng, row_ns = np.random.default_rng(13), 7_500_000_000
    alone: list[bool] = []
    within: list[bool] = []
    for _ in range(60):
        found = drifting(rng, 300, 1.0, 4.0)
        alike = found.alike_over_time()
        for start_ns in range(0, 30_000_000_000, row_ns):
            mine = (found.sent_ns >= start_ns) & (found.sent_ns < start_ns + row_ns)
            row = DelaySample(found.sent_ns[mine], found.delays_ns[mine], found.weights[mine])
            if (ends := mean_interval(row)) is not None:
                mean = float(row.delays_ns.mean()) / 1e6
                said, why = within_whole({"mean": (ends[0] / 1e3, ends[1] / 1e3)}, {"mean": mean / 1e3}, row_ns, alike)
                if why is None:
                    alone.append(ends[0] <= 20 <= ends[1])
                    within.append(said["mean"][0] <= 0.02 <= said["mean"][1])
    assert len(within) > 45
    assert np.mean(alone) < 0.9
    assert np.mean(within) > 0.95 - 3.5 * math.sqrt(0.95 * 0.05 / len(within))


@pytest.mark.parametrize("count", [4, 30, 127, 129, 1_000, 3_000])
def test_the_same_bits_as_the_plain_twin(count: int) -> None:
    """Delays one by one, delays that came together, and many in each part."""
    rng = np.random.default_rng(count)
    for load in (0.3, 0.9):
        delays = np.round(waits(rng, count, load) * 1e6)
        together = rng.integers(0, 4, count).astype(np.float64)
        for weights in (np.ones(count), together, together * 1_000):
            sums, samples = delays * weights, int(weights.sum())
            expected = oracle.over_time(sums.tolist(), weights.tolist(), samples)
            assert _kernels.over_time(sums, weights, samples) == expected
        weights = together + 1
        expected = oracle.over_batches(*oracle.equal_batches((delays * weights).tolist(), weights.tolist()), count)
        assert _kernels.over_samples(delays * weights, weights) == expected
    same = np.ones(count)
    assert _kernels.over_time(same, same, count) == oracle.over_time(same.tolist(), same.tolist(), count)
    assert _kernels.over_time(same[:3], same[:3], 3) is None
