"""The certainty of means of delays from one queue: coverage and false blame, by simulation."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from wirelag.network.certainty import FEWEST, batch_error, bounds, sample_error
from wirelag.network.changes import changes
from wirelag.network.localise import Figures, Path, judge, trials
from wirelag.network.reports import surer
from wirelag.network.segments import Segment
from wirelag.stats.over_time import half95, welch

Floats = npt.NDArray[np.float64]
SEGMENT = Segment.inside("F", "A", "C")
PATH = Path(("A", "F", "C"), 1.0, (SEGMENT,), ())
RATE, BURST, WARM_S = 500.0, 4.0, 20.0


def queue(rng: np.random.Generator, seconds: float, busy: float = 0.7) -> tuple[Floats, Floats]:
    """Arrival times at a queue in steady state, with bursts, and the time of each packet in it."""
    count = int((seconds + WARM_S) * RATE / BURST * 1.3) + 50
    bursts = np.cumsum(rng.exponential(BURST / RATE, count)) - WARM_S
    bursts = bursts[bursts < seconds]
    times = np.repeat(bursts, rng.geometric(1 / BURST, len(bursts)))
    served = np.cumsum(busy / RATE * rng.uniform(0.13, 1.87, len(times)))
    left = served + np.maximum.accumulate(times - np.concatenate(([0.0], served[:-1])))
    return times[times >= 0], (left - times)[times >= 0]


def figures_of(times: Floats, delays: Floats) -> Figures:
    """The figures that `path` takes from captures."""
    sent_ns, delays_ns = (np.round(column * 1e9).astype(np.int64) for column in (times, delays))
    plain = Figures(float(delays.mean()), float(delays.std()) / math.sqrt(len(delays)), float(delays.std()), 0.0)
    return surer(plain, sample_error(sent_ns, delays_ns, np.ones(len(delays), np.int64)), "batches")


@pytest.fixture(scope="module")
def true() -> float:
    """The mean delay over some hours."""
    return float(queue(np.random.default_rng(0), 10_000.0)[1].mean())


@pytest.mark.every(3)
@pytest.mark.parametrize(("seconds", "runs", "least"), [(1.5, 600, 0.88), (5.0, 400, 0.93), (60.0, 100, 0.93)])
def test_the_interval_covers_the_true_mean_and_false_blame_is_rare(
    true: float, seconds: float, runs: int, least: float
) -> None:
    """The worst case for blame: the queue adds exactly the allowed delay."""
    rng, covered, wrong = np.random.default_rng(round(seconds)), 0, 0
    for _ in range(runs):
        figures = {SEGMENT: figures_of(*queue(rng, seconds))}
        verdict = judge([PATH], figures, trials(figures, true))
        low, high = verdict.total.ci95 or (0.0, 0.0)
        covered += low <= true <= high
        wrong += bool(verdict.culprits)
    assert covered / runs >= least
    assert wrong / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_many_queues_together_cause_no_more_false_blame(true: float) -> None:
    rng, runs, wrong, found = np.random.default_rng(9), 60, 0, 0
    segments = [Segment.link(str(i), "x") for i in range(20)]
    for _ in range(runs):
        figures = {segment: figures_of(*queue(rng, 1.5)) for segment in segments}
        wrong += any(one.blamed for one in trials(figures, true).values())
        found += sum(one.blamed for one in trials(figures, true / 14).values())
    assert wrong / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert found / runs / len(segments) > 0.95  # a queue that is far too slow is found in a second and a half


def test_assuming_independent_packets_gives_far_too_small_errors(true: float) -> None:
    """This is why there are batches."""
    rng, runs, covered = np.random.default_rng(4), 200, 0
    for _ in range(runs):
        delays = queue(rng, 1.5)[1]
        covered += abs(float(delays.mean()) - true) <= 1.96 * float(delays.std()) / math.sqrt(len(delays))
    assert covered / runs < 0.3


def test_independent_delays_have_the_usual_error() -> None:
    rng = np.random.default_rng(5)
    found = []
    for _ in range(200):
        error = sample_error(np.arange(4000), rng.integers(0, 10**6, 4000), np.ones(4000, np.int64))
        assert error is not None
        found.append(error[0] ** 2)
    assert 0.95 < math.sqrt(float(np.mean(found))) / (1e-3 / math.sqrt(12 * 4000)) < 1.25


def test_too_few_samples() -> None:
    one = np.ones(1, np.int64)
    assert sample_error(one, one, one) is None
    assert batch_error([1.0] * (FEWEST - 1), [1.0] * (FEWEST - 1)) is None
    assert batch_error([0.0] * 8, [0.0] * 8) is None
    two = np.array([5, 5])
    assert sample_error(two, np.array([10**9, 3 * 10**9]), np.ones(2, np.int64)) is not None  # sent at the same time


def test_empty_batches_are_not_zero_delays() -> None:
    full = [5.0, 5.1, 4.9, 5.0] * 4
    error = batch_error([x for value in full for x in (value, 0.0)], [1.0, 0.0] * 16)
    assert error is not None
    assert error[0] < 0.05


def test_intervals_are_ratios_and_longer_upwards() -> None:
    low, high = bounds(3.0, (0.1, math.inf), 1.0)
    assert 1 - (low - 2.0) < high - 3.0
    assert bounds(3.0, (0.1, math.inf)) == pytest.approx((3 - 0.196, 3 + 0.196), abs=1e-4)
    low, high = bounds(1.0, (1e6, 5.0), 1e-9)  # an error far above the value
    assert 1 - 1e-9 <= low <= 1 < high < 1e8
    assert welch([(3.0, 5.0), (4.0, 5.0)])[0] == 5.0
    assert 5 < welch([(3.0, 5.0), (3.0, 5.0)])[1] <= 10
    assert welch([(0.0, 5.0)]) == (0.0, math.inf)
    assert half95(5.0) == pytest.approx(2.571, rel=0.01)


@pytest.mark.every(4)
@pytest.mark.parametrize("count", [12, 30, 60])
def test_an_unchanged_queue_did_not_move(count: int) -> None:
    """Means of seconds in which packets waited for each other, with errors that assume independence."""
    rng, runs, wrong = np.random.default_rng(count), 150, 0
    for _ in range(runs):
        times, delays = queue(rng, float(count))
        series = []
        for second in range(count):
            mine = delays[(times >= second) & (times < second + 1)]
            error = float(mine.std()) / math.sqrt(len(mine))
            series.append(Figures(float(mine.mean()), error, 0.0, 0.0, len(mine), start=second, end=second + 1.0))
        wrong += bool(changes({SEGMENT: series}, 1e-3))
    assert wrong / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
