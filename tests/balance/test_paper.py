"""The paper's controller: the same weights as its plain twin, and what it does beside ours."""

from random import Random

import pytest

from tests.oracles.paper_controller import Heard, Twin
from tests.support.effort import scaled
from wirelag.balance.controller import Policy
from wirelag.balance.paper import PaperController
from wirelag.balance.simulation import Farm, Slowdown, simulate
from wirelag.ebpf.service import Counts

NAMES = "abcdef"


def heard(rng: Random, slow: set[int]) -> list[Heard]:
    found = []
    for place in range(len(NAMES)):
        count = rng.choice((0, 1, 50, 400))
        mean = rng.choice((10, 11, 12, 20)) * (rng.choice((2, 5, 30)) if place in slow else 1)
        found.append(
            Heard(count * mean * 10**6 + rng.randrange(10), count, count + rng.randrange(9), rng.randrange(30))
        )
    return found


def test_the_twin_has_the_same_weights() -> None:
    rng = Random(1)
    for _ in range(scaled(40, 8)):
        fair = [rng.choice((1.0, 2.0, 0.5)) for _ in NAMES]
        policy = Policy(
            high=1.5, low=1.25, increment=rng.choice((0.125, 0.5)), quiet=rng.choice((1, 3)), regression=0.25
        )
        twin = Twin(fair, policy.high, policy.low, policy.increment, policy.quiet, policy.regression)
        controller = PaperController(dict(zip(NAMES, fair, strict=True)), policy)
        slow = set[int]()
        for interval in range(60):
            if interval % 10 == 0:
                slow = {place for place in range(len(NAMES)) if rng.random() < 0.3}
            # The same for a while, so that latencies rest.
            rows = heard(Random(interval // 5 + 1000 * len(slow)), slow)
            twin.step(rows)
            counts = {
                name: Counts(sum_ns=one.sum_ns, count=one.count, requests=one.requests, connections=one.open_at_end)
                for name, one in zip(NAMES, rows, strict=True)
            }
            decision = controller.step(counts)
            assert list(decision.weights.values()) == pytest.approx(twin.weights, abs=1e-12)
            assert sum(decision.weights.values()) == pytest.approx(1)
            assert {change.name for change in decision.changes} <= set(NAMES)


def test_backends_come_and_go() -> None:
    controller = PaperController({"a": 1.0, "b": 1.0}, weights={"a": 0.9, "b": 0.1})
    changes = {one.name: (one.reason, one.after) for one in controller.change({"a": 1.0, "b": 1.0, "c": 2.0})}
    assert controller.weights == pytest.approx({"a": 0.45, "b": 0.05, "c": 0.5})
    assert changes["c"] == ("added", 0.5)
    controller.change({"c": 1.0})
    assert controller.weights == {"c": 1.0}
    controller.change({"d": 1.0})
    assert controller.weights == {"d": 1.0}


def test_it_sheds_a_slow_server_without_a_floor() -> None:
    farm = Farm(think_s=0.02, clients=64, seconds=20, slowdowns=(Slowdown(0, 5, 20),))
    decisions = simulate(farm, "paper", interval_s=0.5).decisions
    assert min(one.weights["server1"] for at, one in decisions if at > 5) < 0.05
    equal, paper = (simulate(farm, chooser, interval_s=0.5).quantile(0.9) for chooser in ("equal", "paper"))
    assert paper < equal
