"""The relation of two clocks, tested with known clocks; and captures on one clock, which must not change."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.support.effort import scaled
from wirelag.clocks.fit import Clock, Step, fit
from wirelag.sim.scenario import Scenario
from wirelag.sim.simulation import simulate
from wirelag.sim.traffic import CLIENT
from wirelag.sim.truth import START_NS as SIMULATED_NS
from wirelag.stats.modes import explain_clusters

START_NS = 1_700_000_000 * 10**9
SPAN = 60.0
NONE = np.empty(0, np.int64)


@dataclass
class Traffic:
    """Packets in both directions between two points, in seconds; delays are `base` plus an exponential `jitter`."""

    seed: int
    packets: int = 3_000
    base: tuple[float, float] = (1e-3, 1e-3)
    jitter: tuple[float, float] = (2e-4, 2e-4)
    extra: Callable[[int, np.ndarray], np.ndarray] = lambda way, t: np.zeros(len(t))
    offset: float = 0.0
    ppm: float = 0.0
    steps: tuple[tuple[float, float], ...] = ()
    one_way: bool = False
    delays: list[np.ndarray] = field(default_factory=list)

    def clock(self, t: np.ndarray) -> np.ndarray:
        shown = t * (1 + self.ppm * 1e-6) + self.offset
        for at, size in self.steps:
            shown = shown + np.where(t >= at, size, 0.0)
        return START_NS + np.rint(shown * 1e9).astype(np.int64)

    def times(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        times, self.delays = [], []
        for way in (0, 1):
            t = np.sort(rng.uniform(0, SPAN, self.packets))
            delay = self.base[way] + rng.exponential(self.jitter[way], self.packets) + self.extra(way, t)
            self.delays.append(delay)
            true = [START_NS + np.rint(when * 1e9).astype(np.int64) for when in (t, t + delay)]
            times += [true[0], self.clock(t + delay)] if way == 0 else [true[1], self.clock(t)]
        return [*times[:2], NONE, NONE] if self.one_way else times

    def fit(self) -> Clock:
        return fit(*self.times())

    def mean_error(self, clock: Clock) -> float:
        """The error of the mean delay after correction, relative to the truth."""
        up, down, *_ = self.times()
        return abs(float((clock.correct(down) - up).mean()) / 1e9 / float(self.delays[0].mean()) - 1)


def ramp(way: int, t: np.ndarray) -> np.ndarray:
    """A queue that grows in the forward direction."""
    return t / SPAN * 5e-3 * (way == 0)


def waves(way: int, t: np.ndarray) -> np.ndarray:
    return np.maximum(0, np.sin(t / (3 + way))) * 1e-2


class Bursts:
    """Standing queues that come and go, independent in each direction."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, way: int, t: np.ndarray) -> np.ndarray:
        queue, at = np.zeros(len(t)), 0.0
        while at < SPAN:
            at += self.rng.exponential(5)
            end = at + self.rng.uniform(1, 10)
            queue += np.where((t >= at) & (t < end), self.rng.uniform(1e-3, 2e-2), 0.0)
            at = end
        return queue


ONE_CLOCK = {
    "plain": {},
    "asymmetric": {"base": (5e-5, 2e-2), "jitter": (1e-3, 1e-5)},
    "ramp in one direction": {"extra": ramp},
    "growth both ways": {"extra": lambda way, t: t / SPAN * 5e-3},
    "waves": {"extra": waves},
    "new route": {"extra": lambda way, t: np.where((way == 0) & (t > 25), 1e-2, 0.0)},
    "new routes": {"extra": lambda way, t: np.where(t > 25, 1e-2, 0.0)},
    "few": {"packets": 6},
    "one way": {"one_way": True},
    "one way, waves": {"one_way": True, "extra": waves},
    "one way, growth that ends": {"one_way": True, "extra": lambda way, t: np.minimum(t, 30) / SPAN * 5e-3},
}


@pytest.mark.every(2)
@pytest.mark.parametrize("case", ONE_CLOCK)
@pytest.mark.parametrize("seed", range(scaled(5, 2)))
def test_one_clock_stays_as_it_is(case: str, seed: int) -> None:
    traffic = Traffic(seed, **ONE_CLOCK[case])  # type: ignore[arg-type]
    clock = traffic.fit()
    assert clock.method == "none", clock.notes
    down = traffic.times()[1]
    assert clock.correct(down) is down


@pytest.mark.parametrize("seed", range(scaled(20)))
def test_varying_load_is_not_a_clock(seed: int) -> None:
    assert Traffic(seed, extra=Bursts(seed)).fit().method == "none"


@pytest.mark.every(4)
@pytest.mark.parametrize("offset", [2000.0, -2000.0, 1.7e9])
@pytest.mark.parametrize("ppm", [50.0, -50.0, 500.0])
@pytest.mark.parametrize("jitter", [(2e-4, 2e-4), (5e-3, 1e-4)])
def test_offset_and_skew(offset: float, ppm: float, jitter: tuple[float, float]) -> None:
    traffic = Traffic(1, offset=offset, ppm=ppm, jitter=jitter)
    clock = traffic.fit()
    assert clock.method == "offset+skew"
    assert clock.skew == pytest.approx(ppm * 1e-6, rel=0.01)
    # A float near 1.7e9 s is exact to only 0.2 us: the simulated clock itself is coarse.
    assert traffic.mean_error(clock) < 0.01
    assert any("ppm" in note for note in clock.notes)
    assert any("same both ways" in note for note in clock.notes)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("seed", "offset", "ppm", "loss"),
    [
        (106, 2000, 50, 0.0),
        (109, 2000, 50, 0.0),
        (1, 2000, 50, 0.003),
        (26, 0, -50, 0.003),
        (23, 0, 50, 0.0),
        (47, 0, -50, 0.0),
        (104, 2000, 10, 0.003),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_bursts_do_not_hide_skew(seed: int, offset: int, ppm: float, loss: float, swapped: bool) -> None:
    """Many packets of a burst see one queue: this is neither a jump of the path nor a change of drift."""
    simulation = simulate(
        Scenario(
            packets=20_000, seed=seed, points=2, loss=loss, clock_offset_ns=offset * 10**9, clock_skew_ppm=float(ppm)
        )
    )
    first, second = simulation.captures
    row, *common = np.intersect1d(first.row, second.row, return_indices=True)
    up, down = first.time_ns[common[0]], second.time_ns[common[1]]
    forward = simulation.packets.sender[row] == CLIENT
    shown = (down - SIMULATED_NS - offset * 10**9) / (1 + ppm * 1e-6)  # true time since the start
    if swapped:
        up, down, forward = down, up, ~forward
    clock = fit(up[forward], down[forward], up[~forward], down[~forward])
    sign = -1 if swapped else 1
    assert clock.skew == pytest.approx(sign * ppm * 1e-6, rel=1e-3)
    assert not clock.steps
    delay = np.abs(shown + SIMULATED_NS - first.time_ns[common[0]])[forward].mean()
    assert (clock.correct(down) - up)[forward].mean() == pytest.approx(delay, rel=0.01)
    since = clock.origin_ns - SIMULATED_NS - (0 if swapped else offset * 10**9)
    assert clock.offset_bound_ns is not None
    assert abs(clock.offset_ns - sign * (offset * 1e9 + ppm * 1e-6 * since)) <= clock.offset_bound_ns + 1_000


@pytest.mark.parametrize("ppm", [50.0, -50.0])
def test_skew_that_no_offset_explains(ppm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the path seems to jump repeatedly, as 3 ms of drift do not fit into a round trip of 2 ms."""
    monkeypatch.setattr("wirelag.clocks.fit.find_steps", lambda ways, origin: None)
    traffic = Traffic(1, offset=2000.0, ppm=ppm)
    clock = traffic.fit()
    assert clock.skew == pytest.approx(ppm * 1e-6, rel=0.01)
    assert traffic.mean_error(clock) < 0.01
    small = Traffic(1, ppm=ppm / 5).fit()  # 0.6 ms fit: skew is uncertain
    assert small.method == "none"


@pytest.mark.parametrize("offset", [5, 0])
def test_an_undetected_drift_is_in_the_uncertainty(offset: int) -> None:
    """A clock that swings by 3 ms, with a round trip of 2 ms: neither an offset nor a skew fits."""
    for seed in range(5):
        traffic = Traffic(seed, offset=float(offset))
        times = traffic.times()
        right = times[1] - offset * 10**9
        for i in (1, 3):
            t = (times[i] - START_NS) / 1e9 - offset
            times[i] = times[i] + np.rint(3e6 * np.sin(2 * np.pi * t / SPAN)).astype(np.int64)
        clock = fit(*times)
        assert "not all by the same amount" in clock.notes[-1]
        if clock.method != "none":
            assert clock.offset_bound_ns is not None
            assert np.abs(clock.correct(times[1]) - right).max() <= clock.offset_bound_ns


def test_skew_alone_leaves_the_offset() -> None:
    traffic = Traffic(1, ppm=50)
    clock = traffic.fit()
    assert (clock.method, clock.offset_ns) == ("skew", 0)
    assert traffic.mean_error(clock) < 0.01


def test_offset_lies_within_its_uncertainty() -> None:
    rng = np.random.default_rng(5)
    for seed in range(scaled(40, 20)):
        base = tuple(rng.uniform(5e-5, 2e-2, 2))
        traffic = Traffic(
            seed, packets=500, base=base, jitter=tuple(rng.uniform(1e-5, 5e-3, 2)), offset=rng.choice([-7.0, 3.0])
        )
        clock = traffic.fit()
        assert clock.offset_bound_ns is not None
        assert abs(clock.offset_ns / 1e9 - traffic.offset) * 1e9 <= clock.offset_bound_ns + 1_000
        assert clock.offset_bound_ns == pytest.approx(sum(base) / 2 * 1e9, rel=0.3)


@pytest.mark.every(2)
@pytest.mark.parametrize("base", [5e-5, 1e-3, 2e-2])
@pytest.mark.parametrize("size", [1e-2, -1e-2])
@pytest.mark.parametrize("ppm", [0.0, 50.0])
def test_a_clock_that_was_set(base: float, size: float, ppm: float) -> None:
    traffic = Traffic(2, base=(base, base), jitter=(base / 5, base / 5), steps=((31.234, size),), ppm=ppm)
    clock = traffic.fit()
    (step,) = clock.steps
    assert step.size_ns == pytest.approx(size * 1e9, rel=0.02)
    # Packets in one direction are 20 ms apart on average.
    assert abs(step.time_ns - START_NS - 31.234e9) < 100e6
    assert bool(clock.skew) == bool(ppm)
    assert traffic.mean_error(clock) < 0.02
    assert any("was set" in note for note in clock.notes)


def test_the_size_of_a_step_is_exact() -> None:
    """In blocks the smallest delay exceeds the smallest possible one by chance; between steps it hardly does."""
    for seed in range(scaled(10)):
        for ppm in (0.0, 50.0):
            (step,) = Traffic(seed, steps=((31.234, 1e-2),), ppm=ppm).fit().steps
            # The smallest of 1,400 exponential delays exceeds the smallest possible one by 0.14 us on average.
            assert abs(step.size_ns - 1e7) < 10_000


def test_a_clock_that_was_set_twice() -> None:
    traffic = Traffic(3, steps=((20.1, 1e-2), (40.2, -1e-2)), ppm=-30, offset=5)
    clock = traffic.fit()
    assert [round(step.size_ns / 1e6) for step in clock.steps] == [10, -10]
    assert clock.skew == pytest.approx(-30e-6, rel=0.02)
    assert traffic.mean_error(clock) < 0.02


def test_a_clock_that_was_set_right() -> None:
    """It was 10 ms behind until it was set, so the first part needs the correction."""
    traffic = Traffic(4, offset=-1e-2, steps=((30.0, 1e-2),))
    clock = traffic.fit()
    assert clock.offset_ns == pytest.approx(-1e7, rel=0.01)
    assert traffic.mean_error(clock) < 0.02


def test_a_route_that_changed_is_noted() -> None:
    clock = Traffic(1, extra=lambda way, t: np.where((way == 0) & (t > 25), 1e-2, 0.0)).fit()
    assert len(clock.notes) == 1
    assert re.search(r"rose by (10\.0|9\.9\d) ms while the other direction did not follow", clock.notes[0])


def test_a_step_of_one_direction_is_noted_and_left() -> None:
    clock = Traffic(1, one_way=True, steps=((31.0, 1e-2),)).fit()
    assert clock.method == "none"
    assert "a clock step or a change of route" in clock.notes[0]


def test_one_direction_only() -> None:
    skewed = Traffic(1, one_way=True, ppm=50)
    clock = skewed.fit()
    assert clock.method == "skew"
    assert "one direction only" in clock.notes[0]
    assert skewed.mean_error(clock) < 0.01
    for offset in (-2000.0, -0.5, 30.0):
        away = Traffic(1, one_way=True, offset=offset)
        clock = away.fit()
        assert (clock.method, clock.offset_bound_ns) == ("minimum", None)
        up, down, *_ = away.times()
        assert int((clock.correct(down) - up).min()) == 0
        assert "above the smallest" in clock.notes[0]
    assert Traffic(1, one_way=True, offset=5).fit().method == "none"  # could be a delay


def test_one_wrong_pair_does_not_decide() -> None:
    times = Traffic(1).times()
    times[1][1_000] -= 5 * 10**9
    clock = fit(*times)
    assert clock.method == "none"
    assert "far apart" in clock.notes[0]


def test_few_packets() -> None:
    assert fit(NONE, NONE, NONE, NONE) == Clock()
    for packets in (1, 2, 7, 20, 100):
        traffic = Traffic(1, packets=packets, offset=2000, ppm=50, steps=((30, 1e-2),))
        clock = traffic.fit()
        assert clock.method == "offset"
        assert clock.skew == 0
        assert not clock.steps


def test_correct_is_exact() -> None:
    times = START_NS + np.array([0, 1, 10**9, 86_400 * 10**9], np.int64)
    assert Clock().correct(times) is times
    assert Clock.given(7).correct(times).tolist() == (times - 7).tolist()
    clock = Clock(3, 1e-6, START_NS, (Step(START_NS + 10**9, 500),), "offset+skew+steps", 10.0)
    drifted = [-3, -2, 10**9 - 3 - 1000 - 500, 86_400 * 10**9 - 3 - 86_400_000 - 500]
    assert (clock.correct(times) - START_NS).tolist() == drifted
    assert clock.correct(times).dtype == np.int64
    assert clock.to_json() == {
        "offset": 3e-9,
        "skew": 1e-6,
        "method": "offset+skew+steps",
        "uncertainty": 1e-8,
        "steps": [{"time": (START_NS + 10**9) / 1e9, "size": 5e-7}],
    }


def test_delays_in_groups() -> None:
    rng = np.random.default_rng(1)
    sent = np.arange(1_000) * 10**7
    delays = np.where(sent < 8 * 10**9, rng.uniform(2e7, 5e7, 1_000), rng.uniform(3e3, 1.3e5, 1_000)).astype(np.int64)
    delays[850] = 10**6  # between the groups
    fast, slow = explain_clusters(sent, delays)
    assert (fast.count, slow.count) == (200, 800) or (fast.count, slow.count) == (199, 801)
    assert fast.first_ns == 8 * 10**9
    assert slow.first_ns == 0
    assert fast.largest_ns < slow.smallest_ns
    assert "sent between +8.0 s and +10.0 s" in fast.describe(0)


def test_long_tails_are_one_group() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(1, 10_000))
        sent = np.arange(count)
        for delays in (
            rng.exponential(1e6, count),
            rng.pareto(1.5, count) * 1e6 + 1e6,
            rng.lognormal(14, 1, count),
            rng.weibull(0.6, count) * 1e6,
            np.zeros(count),
        ):
            assert explain_clusters(sent, delays.astype(np.int64)) == []
    assert explain_clusters(NONE, NONE) == []


def test_degenerate_input() -> None:
    rng = np.random.default_rng(1)
    for case in range(100):
        scale, counts = int(10 ** rng.uniform(0, 18.9)), rng.integers(0, 600, 2)
        times = [np.sort(rng.integers(-scale, scale, counts[i // 2])) for i in range(4)]
        if case % 3 == 0:
            times = [time // 10**9 * 10**9 for time in times]
        clock = fit(*times)
        assert len(clock.correct(times[1])) == counts[0]
        assert clock.to_json()["method"] == clock.method
        explain_clusters(times[0], times[1] - times[0])
