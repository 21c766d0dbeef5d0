"""The queue equals its twin; traffic is as described; references are placed among it."""

from collections import deque
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.effort import examples
from wirelag import _kernels
from wirelag.packets.injection import Injection
from wirelag.packets.stamp import NONE
from wirelag.sim.bursts import Bursts, dispersion, draw_bursts, peak_to_mean
from wirelag.sim.queue import DROP_TAIL, QueueScenario, QueueSimulation, Red, run

ONE = 1 << 32
MASK = (1 << 64) - 1


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


class Twin:
    """The queue with exact fractions and a list of the packets inside."""

    def __init__(self, bytes_per_s: int, limit: int, red: tuple[int, int, int, int, int], seed: int) -> None:
        self.bytes_per_s, self.limit, self.red, self.key = (
            bytes_per_s,
            limit,
            red,
            mix(seed * 0x9E3779B97F4A7C15 & MASK),
        )
        self.inside: deque[int] = deque()
        self.busy_from_ns, self.work, self.left_ns = 0, 0, 0
        self.mean, self.passed = 0, -1

    def arrive(self, time_ns: int, size: int, number: int) -> int:
        while self.inside and self.inside[0] <= time_ns:
            self.inside.popleft()
        if (self.red[1] and self.refuses(time_ns, number)) or len(self.inside) == self.limit:
            self.passed = 0
            return NONE
        if time_ns >= self.left_ns:
            self.busy_from_ns, self.work = time_ns, 0
        self.work += size
        self.left_ns = self.busy_from_ns + int(Fraction(self.work * 10**9, self.bytes_per_s))
        self.inside.append(self.left_ns)
        return self.left_ns

    def refuses(self, time_ns: int, number: int) -> bool:
        begin, end, weight, steep, slot = self.red
        if not self.inside and time_ns > self.left_ns:
            slots = (time_ns - self.left_ns) // max(1, slot * 10**9 // self.bytes_per_s)
            self.mean = self.mean * power(ONE - weight, slots) >> 32
        self.mean = (self.mean * (ONE - weight) + (len(self.inside) << 32) * weight) >> 32
        if self.mean < begin << 32:
            self.passed = -1
            return False
        if self.mean >= end << 32:
            return True
        self.passed += 1
        chance = (self.mean - (begin << 32)) * steep // ((end - begin) << 32)
        if chance * self.passed >= ONE:
            return True
        return (mix(number ^ self.key) >> 32) * (ONE - chance * self.passed) >> 32 < chance


def power(base: int, exponent: int) -> int:
    if exponent >= ONE:
        return 0
    result = ONE
    while exponent:
        if exponent & 1:
            result = result * base >> 32
        base, exponent = base * base >> 32, exponent >> 1
    return result


arrivals = st.lists(
    st.tuples(st.sampled_from([0, 1, 50, 160, 1_000, 6_000, 10**6, 10**12]), st.sampled_from([0, 40, 77, 1500, 65535])),
    max_size=400,
)


@examples(150)
@given(
    arrivals=arrivals,
    bytes_per_s=st.sampled_from([1_000, 250_000_000, 333_333_333, 1_250_000_000]),
    limit=st.integers(1, 40),
    red=st.sampled_from([DROP_TAIL, (2, 9, ONE // 10, ONE // 3, 500), (0, 30, ONE // 2, ONE, 40), (1, 2, ONE, 0, 1)]),
    seed=st.integers(0, MASK),
)
def test_the_queue_equals_its_twin(
    arrivals: list[tuple[int, int]], bytes_per_s: int, limit: int, red: tuple[int, int, int, int, int], seed: int
) -> None:
    times_ns = np.cumsum([gap for gap, _ in arrivals]).astype(np.int64)
    sizes = np.array([size for _, size in arrivals], np.uint32)
    left, sent, _, _, _ = _kernels.queue_pass(times_ns, sizes, bytes_per_s, limit, red, None, seed)
    twin = Twin(bytes_per_s, limit, red, seed)
    assert left.tolist() == [
        twin.arrive(t, s, i) for i, (t, s) in enumerate(zip(times_ns.tolist(), sizes.tolist(), strict=True))
    ]
    assert len(sent) == 0


def test_references_wait_like_packets() -> None:
    red = Red(20, 100, 0.02, 0.1)
    injection = Injection(250_000_000, most_share=1, n_most=10)
    sim = run(QueueScenario(0.9, seconds=0.05, limit=200, red=red, injection=injection))
    twin = Twin(250_000_000, 200, red.rule, sim.scenario.seed)
    found, references = [], []
    events = [(int(t), 1, i) for i, t in enumerate(sim.bursts.time_ns)]
    events += [(int(t), 0, i) for i, t in enumerate(sim.reference_sent_ns)]
    for time_ns, regular, i in sorted(events):
        if regular:
            found.append(twin.arrive(time_ns, int(sim.bursts.size[i]), i))
        else:
            references.append(twin.arrive(time_ns, 92, (1 << 63) + i + 1))
    assert found == sim.left_ns.tolist()
    assert references == sim.reference_left_ns.tolist()
    assert NONE in found
    assert len(references) > 100


@pytest.mark.parametrize(
    ("times", "sizes", "rate", "limit"),
    [([5, 4], [1, 1], 1, 1), ([-1], [1], 1, 1), ([1 << 62], [1], 1, 1), ([0], [65536], 1, 1), ([0], [1, 2], 1, 1),
     ([0], [1], 0, 1), ([0], [1], 1, 1 << 23), ([0], [1], 1, 0), ([0], [1], 1, 1 << 24)],
)  # fmt: skip
def test_impossible_input_is_refused(times: list[int], sizes: list[int], rate: int, limit: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        _kernels.queue_pass(np.array(times, np.int64), np.array(sizes, np.uint32), rate, limit, DROP_TAIL, None)


# ---- traffic ----


@pytest.fixture(scope="module")
def bursts() -> Bursts:
    return draw_bursts(0.7 * 250e6, 4, seed=3)


def test_traffic_is_as_described(bursts: Bursts) -> None:
    assert abs(float(bursts.size.sum()) / (0.7 * 250e6 * 4) - 1) < 0.02  # half of the largest flow: 15 MB
    gaps = np.diff(bursts.time_ns)
    assert (gaps >= bursts.size[1:] * 0.8 - 1).all()  # one line of 10 Gb/s
    packets = np.bincount(bursts.flow, minlength=bursts.flows)
    began = np.full(bursts.flows, bursts.time_ns[-1])
    np.minimum.at(began, bursts.flow, bursts.time_ns)
    early = began < 2e9  # flows that are mostly complete by the end
    # P(at least k) of the bounded Pareto, at k = 3, 6, 12, 24; three sigma of a share of n flows
    for k in (3, 6, 12, 24):
        tail = (3 / 20_000) ** 1.2
        expected = ((3 / k) ** 1.2 - tail) / (1 - tail)
        measured = (packets[early & (packets >= 2)] >= k).mean()
        assert abs(measured - expected) < 3 * np.sqrt(0.25 / early.sum()) + 0.003
    largest = np.zeros(bursts.flows, np.int64)
    np.maximum.at(largest, bursts.flow, bursts.size)
    whole = packets >= 3
    three_sigma = 3 * np.sqrt(0.25 / whole.sum())
    assert abs((largest[whole] == 40).mean() - 0.40) < three_sigma
    assert abs((largest[whole] == 1500).mean() - 0.45) < three_sigma


def test_bursts_double(bursts: Bursts) -> None:
    flows = np.flatnonzero(np.bincount(bursts.flow) == 14)[:200]  # 2, 4 and 8 packets
    rows = np.flatnonzero(np.isin(bursts.flow, flows))
    order = rows[np.argsort(bursts.flow[rows], kind="stable")]
    gaps = np.diff(bursts.time_ns[order].reshape(len(flows), 14), axis=1)
    assert np.median(gaps[:, [1, 5]]) > 50 * np.median(np.delete(gaps, [1, 5], axis=1))


def test_the_same_seed_gives_the_same_traffic() -> None:
    one, two, other = (draw_bursts(50e6, 0.5, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.time_ns, two.time_ns)
    assert np.array_equal(one.flow, two.flow)
    assert not np.array_equal(one.time_ns[:100], other.time_ns[:100])


def test_burstiness_comes_from_bursts(bursts: Bursts) -> None:
    rng = np.random.default_rng(1)
    poisson = np.sort(rng.integers(0, 4 * 10**9, len(bursts)))
    assert abs(dispersion(poisson, 10**6) - 1) < 5 * np.sqrt(2 / 4_000)
    assert dispersion(bursts.time_ns, 10**6) > 10
    assert peak_to_mean(bursts.time_ns, bursts.size, 10**6) > 1.5


# ---- both ends ----


@pytest.fixture(scope="module")
def loaded() -> QueueSimulation:
    return run(QueueScenario(0.95, seconds=1, limit=500, red=None))


def test_the_receiver_sees_everything_in_order(loaded: QueueSimulation) -> None:
    seen = loaded.receiver()
    marked = seen.is_reference == 1
    assert (np.diff(seen.time_ns) >= seen.size[1:] * 4 - 1).all()  # 2 Gb/s
    assert int((~marked).sum()) == int((loaded.left_ns != NONE).sum()) < len(loaded.bursts)
    assert np.array_equal(np.sort(seen.number[marked]), np.flatnonzero(loaded.reference_left_ns != NONE))
    delay = seen.time_ns - seen.sent_ns
    assert np.array_equal(delay[~marked], loaded.delay_ns[seen.number[~marked]])
    assert (delay >= seen.size * 4).all()
    assert (seen.previous_sent_ns[~marked] == NONE).all()
    # First in, first out: the last packet before a reference that arrived, arrived right before it.
    behind = loaded.reference_behind[seen.number[marked]]
    assert np.array_equal(seen.previous_matches[marked] == 1, loaded.left_ns[behind] != NONE)
    assert (seen.sent_ns[marked] - seen.previous_sent_ns[marked] >= 0).all()
    assert 0 < loaded.loss < 0.5


def test_truth_of_flows(loaded: QueueSimulation) -> None:
    truth, flow = loaded.truth(), int(np.bincount(loaded.bursts.flow).argmax())
    delays = loaded.delay_ns[(loaded.bursts.flow == flow) & (loaded.left_ns != NONE)]
    assert truth.packets[flow] == len(delays)
    assert truth.mean_ns[flow] == pytest.approx(delays.mean())
    assert truth.std_ns[flow] == pytest.approx(delays.std())
    assert len(truth.packets) == loaded.bursts.flows


def test_without_references() -> None:
    sim = run(QueueScenario(0.5, seconds=0.2, injection=False))
    assert sim.reference_share == 0
    assert sim.receiver().is_reference.sum() == 0


@pytest.mark.acceptance
@pytest.mark.parametrize(("utilisation", "percent"), [(0.2, 9.9), (0.55, 9.35), (0.7, 6.3), (0.88, 1.4)])
def test_injection_rates_of_the_paper(utilisation: float, percent: float) -> None:
    rates, shares, added = [], [], []
    for seed in range(1, 6):
        free = run(QueueScenario(utilisation, seed, injection=Injection(250_000_000, most_share=1)))
        bound, bare = run(QueueScenario(utilisation, seed)), run(QueueScenario(utilisation, seed, injection=False))
        rates.append(100 * len(free.reference_sent_ns) / len(free.bursts))
        shares.append(bound.reference_share)
        added.append(bound.loss - bare.loss)
    assert abs(float(np.median(rates)) - percent) < 0.06 * percent + 0.1
    assert max(shares) <= 0.005
    assert np.median(added) <= 0.0001
