"""The weight controller: its laws for any input, and its reaction when servers slow down, die, come and go."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.effort import FULL, examples, scaled
from wirelag.balance.controller import Controller, Decision, Policy, settled
from wirelag.balance.simulation import Farm, Slowdown, simulate
from wirelag.ebpf.service import Counts

MS = 10**6
FOUR = {f"web{i}": 1.0 for i in range(1, 5)}
ILL, EQUAL, AGAIN = 30, 120, 30  # intervals: one backend is slow; all are equal; time allowed to notice


def said(latency_ms: float | None, count: int = 200, connections: int = 20) -> Counts:
    """One interval of a backend with one request in flight on each connection."""
    if latency_ms is None:
        return Counts(connections=connections, opened=connections, repeated=connections, packets=2 * connections)
    return Counts(round(latency_ms * MS * count), count, 0, count, connections, connections, count)


def run(controller: Controller, steps: int, **latencies: float | None) -> list[Decision]:
    return [controller.step({name: said(ms) for name, ms in latencies.items()}) for _ in range(steps)]


COUNTS = st.builds(
    Counts,
    sum_ns=st.integers(0, 10**12),
    count=st.integers(0, 10**4),
    abstained=st.integers(0, 10),
    requests=st.integers(0, 10**5),
    connections=st.integers(0, 10**4),
    opened=st.integers(0, 10**3),
    packets=st.integers(0, 10**5),
)
FAIR = st.dictionaries(st.sampled_from("abcdefghij"), st.floats(0.01, 100), min_size=1, max_size=8)
POLICY = st.builds(
    Policy,
    floor=st.none() | st.floats(0.001, 0.05),
    increment=st.floats(0.1, 2),
    quiet=st.integers(1, 5),
    regression=st.floats(0.1, 1),
    chance=st.floats(1e-6, 0.5),
    forget=st.integers(1, 8),
)


def lawful(controller: Controller) -> None:
    weights, floors = controller.weights, controller.floors()
    assert weights.keys() == controller.fair.keys()
    assert sum(weights.values()) == pytest.approx(1, abs=1e-9)
    for name, weight in weights.items():
        assert weight >= floors[name] - 1e-12


@examples(50)
@given(st.data(), FAIR, POLICY)
def test_weights_add_up_to_1_and_none_is_under_its_floor(
    data: st.DataObject, fair: dict[str, float], policy: Policy
) -> None:
    controller = Controller(fair, policy)
    lawful(controller)
    for _ in range(8):
        if data.draw(st.integers(0, 4)) == 0:
            controller.change(data.draw(FAIR))
            lawful(controller)
        before = dict(controller.weights)
        controller.react({name: data.draw(COUNTS) for name in controller.fair if data.draw(st.booleans())})
        lawful(controller)
        decision = controller.step({name: data.draw(COUNTS) for name in controller.fair if data.draw(st.booleans())})
        lawful(controller)
        assert decision.weights == controller.weights
        told = {change.name for change in decision.changes}
        assert told == {name for name in before if abs(before[name] - decision.weights[name]) > 1e-9}
        assert all(change.reason for change in decision.changes)


@examples(25)
@given(st.lists(st.floats(1, 100), min_size=2, max_size=8), POLICY, st.integers(4, 2000))
def test_it_never_oscillates_on_constant_input(latencies: list[float], policy: Policy, count: int) -> None:
    """Once the slow backends are known, their weights only fall; then all weights settle."""
    names = [f"web{i}" for i in range(len(latencies))]
    controller = Controller(dict.fromkeys(names, 1.0), policy)
    constant = {name: said(ms, count) for name, ms in zip(names, latencies, strict=True)}
    decisions = [controller.step(constant) for _ in range(250)]
    last = decisions[-1]
    turns = sum(a.standings != b.standings for a, b in pairwise(decisions))
    assert turns <= len(names)  # a verdict is never reversed
    for before, after in pairwise([decision for decision in decisions if decision.standings == last.standings]):
        for name, standing in last.standings.items():
            assert standing != "slow" or after.weights[name] < before.weights[name] + 1e-9
    for name in names:
        assert last.weights[name] == pytest.approx(decisions[-20].weights[name], abs=0.02)


def test_weight_leaves_a_slow_backend_before_the_interval_ends() -> None:
    """Each connection that it gets until then stays with it."""
    controller = Controller(dict(FOUR))
    run(controller, 10, web1=10, web2=10, web3=10, web4=10)
    before = dict(controller.weights)
    well = {name: said(10, 40) for name in ("web2", "web3", "web4")}
    assert not controller.react(well | {"web1": said(None)}), "nothing was heard of it"
    assert not controller.react(well | {"web1": said(12, 40)}), "it is not slow"
    assert controller.react(well | {"web1": said(50, 40)})
    assert controller.weights["web1"] < 0.4 * before["web1"]
    assert not controller.react(well | {"web1": said(50, 40)}), "there is no more news of it"
    lawful(controller)
    decision = controller.step({name: said(50 if name == "web1" else 10) for name in FOUR})
    moved = {change.name: change for change in decision.changes}
    assert decision.standings["web1"] == "slow"
    assert moved["web1"].before == before["web1"], "the record is of the whole interval"
    for name in ("web2", "web3", "web4"):
        assert moved[name].after - before[name] <= controller.policy.increment / 4 + 1e-12


def test_a_slow_backend_goes_to_its_floor_and_comes_back() -> None:
    controller = Controller(FOUR)
    run(controller, 3, web1=5, web2=5, web3=5, web4=5)
    first = run(controller, 1, web1=25, web2=5, web3=5, web4=5)[0]
    assert first.standings["web1"] == "slow"
    assert first.weights["web1"] == pytest.approx(0.25 * 1.5 / 5, abs=0.001)  # in proportion to the watermark
    assert "5.0 times the fastest (25 ms against 5 ms)" in {c.name: c.reason for c in first.changes}["web1"]
    last = run(controller, 10, web1=25, web2=5, web3=5, web4=5)[-1]
    assert last.weights["web1"] == pytest.approx(0.008)
    assert last.weights["web2"] == pytest.approx(0.992 / 3)
    back = run(controller, 30, web1=5, web2=5, web3=5, web4=5)  # 15 s
    assert back[0].weights["web1"] == pytest.approx(0.008)
    assert back[2].weights["web1"] == pytest.approx(0.008)  # normal for fewer than 3 intervals
    assert back[-1].weights == pytest.approx(dict.fromkeys(FOUR, 0.25), abs=0.003)


def test_a_watermark_is_a_multiple_of_the_smallest_latency() -> None:
    for latency_ms, slow in ((7.0, False), (10.0, True)):
        controller = Controller(FOUR)
        decision = run(controller, 4, web1=latency_ms, web2=5, web3=5, web4=5)[-1]
        assert (decision.standings["web1"] == "slow") == slow


def test_equally_slow_backends_keep_their_weights() -> None:
    controller = Controller(FOUR)
    run(controller, 3, web1=5, web2=5, web3=5, web4=5)
    for decision in run(controller, 20, web1=50, web2=52, web3=48, web4=51):
        assert decision.weights == pytest.approx(dict.fromkeys(FOUR, 0.25))
        assert not decision.changes


SCATTERED: Mapping[str, Callable[[Random], float]] = {
    "exponential": lambda random: random.expovariate(1),
    "lognormal": lambda random: random.lognormvariate(0, 1.5),
    "bimodal": lambda random: 100.0 if random.random() < 0.02 else 1.0,
}


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("latencies", "backends", "samples"),
    [("exponential", 20, 10), ("exponential", 100, 4), *((name, n, 100) for name in SCATTERED for n in (4, 20))],
)
def test_chance_makes_no_backend_slow(latencies: str, backends: int, samples: int) -> None:
    """One backend is slow for a while; then all are equal, and requests follow the weights."""
    random = Random(7)
    controller = Controller({f"web{number}": 1.0 for number in range(backends)})
    slow = 0
    for step in range(ILL + EQUAL):
        counts = {}
        for name, weight in controller.weights.items():
            count = int(weight * backends * samples + random.random())
            factor = 5 if name == "web0" and step < ILL else 1
            total = sum(factor * SCATTERED[latencies](random) for _ in range(count))
            counts[name] = Counts(
                sum_ns=int(total * 1e6), count=count, requests=count, connections=-(-count // 10), opened=count // 10
            )
        decision = controller.step(counts)
        slow += step >= ILL + AGAIN and sum(standing == "slow" for standing in decision.standings.values())
    assert controller.weights["web0"] > 0.8 / backends
    assert slow <= 0.03 * backends * (EQUAL - AGAIN)


def test_a_dead_backend_is_reported_and_drained() -> None:
    controller = Controller(FOUR)
    run(controller, 4, web1=5, web2=5, web3=5, web4=5)
    dead = run(controller, 6, web1=None, web2=5, web3=5, web4=5)
    assert dead[0].weights["web1"] == pytest.approx(0.25)
    assert dead[-1].standings["web1"] == "silent"
    assert dead[-1].latencies["web1"] is None
    assert dead[-1].weights["web1"] == pytest.approx(0.008)
    reasons = [change.reason for decision in dead for change in decision.changes if change.name == "web1"]
    assert reasons[0] == "is asked and does not answer"
    back = run(controller, 30, web1=5, web2=5, web3=5, web4=5)
    assert back[0].standings["web1"] == "well"
    assert back[-1].weights["web1"] == pytest.approx(0.25, abs=0.003)


def test_a_backend_without_samples_is_unknown() -> None:
    controller = Controller(FOUR)
    run(controller, 8, web1=25, web2=5, web3=5, web4=5)
    assert controller.weights["web1"] == pytest.approx(0.008)
    quiet = [controller.step({name: said(5) for name in ("web2", "web3", "web4")}) for _ in range(40)]
    assert quiet[0].standings["web1"] == "slow"
    assert quiet[5].standings["web1"] == "unknown"
    reasons = {change.reason for decision in quiet for change in decision.changes if change.name == "web1"}
    assert reasons >= {"not heard of, is tried"}
    rising = [decision.weights["web1"] for decision in quiet]
    assert rising == sorted(rising)  # a backend without requests is not starved
    assert rising[-1] > 0.2


def test_a_suspect_is_tried_with_more_until_it_has_a_connection() -> None:
    controller = Controller(FOUR)
    run(controller, 8, web1=25, web2=5, web3=5, web4=5)
    others = {name: said(5) for name in ("web2", "web3", "web4")}
    while controller.weights["web1"] < 0.015:
        controller.step(others)
    asked = others | {"web1": Counts(requests=1, connections=1, opened=1, packets=2)}
    for _ in range(5):
        decision = controller.step(asked)
        assert decision.weights["web1"] == pytest.approx(0.008)
        assert not {change.name: change.reason for change in decision.changes}.get("web1", "").startswith("not heard")


def test_slow_backends_together_get_less_than_1_percent() -> None:
    """So p99 is that of the others. With a floor for each, as it was, half of six had 2.4%."""
    six = {f"web{i}": 1.0 for i in range(1, 7)}
    for ill in (1, 2, 3):
        controller = Controller(six)
        slow = {name: 25.0 if number < ill else 5.0 for number, name in enumerate(six)}
        decision = run(controller, 20, **slow)[-1]
        share = sum(decision.weights[name] for name in list(six)[:ill])
        assert share == pytest.approx(0.008, abs=1e-6)


@pytest.mark.parametrize(("servers", "ill"), [(4, 1), (6, 2), (6, 3)] if FULL else [(6, 2)])
def test_with_slow_backends_p99_is_the_others(servers: int, ill: int) -> None:
    """20 times as slow, for longer than it takes to notice; few of them are tried, whatever they say."""
    slow = tuple(Slowdown(number, 4, 100, 20.0) for number in range(ill))
    farm = Farm(servers=servers, clients=4 * servers, slowdowns=slow, seconds=scaled(60, 20), think_s=0.02, seed=2)
    sent = [one for one in simulate(farm, "latency").sent if one.time_s > 10]
    asked = [one.server < ill for one in sent if one.kind == "request"]
    assert sum(asked) < 0.006 * len(asked)
    assert len(asked) > 1000


def test_a_backend_without_measurable_answers_is_slow_and_not_silent() -> None:
    """Connections that keep asking were answered."""
    controller = Controller(FOUR)
    run(controller, 4, web1=5, web2=5, web3=5, web4=5)
    others = {name: said(5) for name in ("web2", "web3", "web4")}
    for _ in range(8):
        decision = controller.step(others | {"web1": Counts(0, 0, 9, requests=60, connections=20, opened=10)})
    assert decision.standings["web1"] == "slow"
    assert decision.weights["web1"] == pytest.approx(0.008)


def test_idle_connections_owe_no_answers() -> None:
    controller = Controller(FOUR)
    run(controller, 4, web1=5, web2=5, web3=5, web4=5)
    idle = Counts(connections=1000, packets=30)
    for _ in range(20):
        decision = controller.step({name: said(5) for name in ("web2", "web3", "web4")} | {"web1": idle})
    assert decision.standings["web1"] == "unknown"
    assert decision.weights["web1"] == pytest.approx(0.25)


def test_a_stale_backend_takes_no_weight() -> None:
    controller = Controller({"slow": 1.0, "fresh": 1.0, "stale": 1.0})
    counts = {"slow": said(25, 200, 20), "fresh": said(5, 400, 20), "stale": said(5, 100, 20)}
    controller.step(counts)
    decision = controller.step(counts)
    assert decision.weights["fresh"] > 1 / 3
    assert decision.weights["stale"] == pytest.approx(1 / 3)


def test_increments_are_capped() -> None:
    many = {f"web{i}": 1.0 for i in range(10)}
    controller = Controller(many)
    slow = {name: said(50 if name != "web0" else 5) for name in many}
    before = controller.weights["web0"]
    for _ in range(3):
        after = controller.step(slow).weights["web0"]
        assert after - before <= 0.25 * 0.1 + 1e-9
        before = after
    assert before == pytest.approx(0.175)


def test_a_backend_that_fails_fast_does_not_attract_all_requests() -> None:
    many = {f"web{i}": 1.0 for i in range(10)}
    controller = Controller(many)
    for _ in range(100):
        weights = controller.step({name: said(5 if name != "web0" else 0.1, connections=20) for name in many}).weights
    assert weights["web0"] == pytest.approx(0.3)


def test_healthy_backends_even_out_while_one_is_slow() -> None:
    """Otherwise a backend that was slow before would starve while another is slow."""
    controller = Controller(FOUR)
    run(controller, 8, web1=25, web2=5, web3=5, web4=5)
    last = run(controller, 40, web1=5, web2=25, web3=5, web4=5)[-1]
    assert last.weights["web2"] == pytest.approx(0.008)
    assert last.weights["web1"] == pytest.approx(0.992 / 3, abs=0.005)


def test_backends_come_and_go() -> None:
    controller = Controller(FOUR)
    run(controller, 3, web1=5, web2=5, web3=5, web4=5)
    changes = {change.name: change for change in controller.change(FOUR | {"web5": 2.0})}
    assert changes["web5"].reason == "added"
    assert controller.weights["web5"] == pytest.approx(0.008)
    steps = [controller.step({name: said(5) for name in controller.fair}) for _ in range(30)]
    assert steps[-1].weights["web5"] == pytest.approx(1 / 3, abs=0.005)
    changes = {change.name: change for change in controller.change({"web1": 1.0, "web2": 1.0, "web5": 2.0})}
    assert changes["web3"].reason == "removed"
    assert controller.weights == pytest.approx({"web1": 0.25, "web2": 0.25, "web5": 0.5}, abs=0.005)


def test_weights_of_an_inherited_table() -> None:
    controller = Controller(FOUR, weights={"web1": 0.01, "web2": 0.33, "web3": 0.33, "web4": 0.33})
    assert controller.weights["web1"] == pytest.approx(0.01, abs=1e-3)


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1), min_size=1))
def test_settled_weights_stay(weights: dict[str, float]) -> None:
    floors = dict.fromkeys(weights, 0.01)
    once = settled(weights, floors)
    assert settled(once, floors) == pytest.approx(once)


def reduction(farm: Farm) -> float:
    without, with_it = (simulate(farm, how, interval_s=0.5).quantile(0.99) for how in ("equal", "latency"))
    return 1 - with_it / without


def test_p99_falls_when_a_server_is_slow_and_stays_when_none_is() -> None:
    moving = tuple(Slowdown(i % 4, 15.0 * i, 15.0 * (i + 1)) for i in range(2))
    assert reduction(Farm(clients=32, think_s=0.02, seconds=30, slowdowns=moving)) > 0.37
    assert reduction(Farm(clients=32, think_s=0.02, seconds=15)) > -0.05


def test_weights_recover_within_15_s_in_a_simulation() -> None:
    farm = Farm(clients=48, think_s=0.02, seconds=25, slowdowns=(Slowdown(0, 2, 10),))
    decisions = simulate(farm, "latency", interval_s=0.5).decisions
    assert min(decision.weights["server1"] for t, decision in decisions if t < 10) < 0.01
    assert decisions[-1][1].weights["server1"] > 0.2
