"""The law of calm: few delays of a busy queue look steady now and then; independent ones keep their intervals."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.queues import waits
from wirelag.stats.over_time import FEWEST_DELAYS, over_time
from wirelag.stats.sla import Mean, Sla
from wirelag.stats.time_slots import TimeSlots
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.delay_sample import DelaySample

Floats = npt.NDArray[np.float64]


def sample(delays: Floats) -> DelaySample:
    """One delay after the other."""
    return DelaySample.of(np.arange(len(delays)), np.round(delays * 1e6).astype(np.int64), 1)


@pytest.mark.parametrize("count", [FEWEST_DELAYS, 100])
@pytest.mark.parametrize("law", [
    lambda rng, count: rng.exponential(1.0, count),
    lambda rng, count: rng.lognormal(0.0, 1.2, count),
    lambda rng, count: rng.normal(10.0, 1.0, count),
])  # fmt: skip
def test_independent_delays_keep_their_interval(law: Callable[[np.random.Generator, int], Floats], count: int) -> None:
    rng = np.random.default_rng(count)
    told = [sample(5 + law(rng, count)).why_no_interval() is None for _ in range(120)]
    assert np.mean(told) >= 0.9


def test_few_packets_of_a_busy_queue_have_no_interval() -> None:
    """Without the law of calm, 100 packets in a row at 95% load have one in about one of six cases."""
    rng, runs = np.random.default_rng(4), 150
    found = [sample(waits(rng, 100, 0.95)).over_time() for _ in range(runs)]
    told = sum(over is not None and over.stretches >= 2 and over.returns >= 2.5 for over in found)
    assert told <= 0.05 * runs


def test_slots_of_time_do_not_hide_that_packets_wait_for_each_other() -> None:
    """Packets that a queue serves one by one, 0.1 ms apart: slots of 1 ms hold ten, and seem steady."""
    rng = np.random.default_rng(2)
    delays = np.round(waits(rng, 1_000, 0.9) * 1e5).astype(np.int64)
    times_ns = 1_700_000_000 * 10**9 + np.cumsum(rng.exponential(1e5, 1_000)).astype(np.int64)
    slots = TimeSlots()
    slots.add(times_ns, np.ones(1_000, np.bool_), delays)
    one_by_one, by_slot = over_time(delays.astype(np.float64), np.ones(1_000), 1_000), slots.over_time(1_000)
    assert one_by_one is not None
    assert by_slot is not None
    assert by_slot.error[0] == pytest.approx(one_by_one.error[0], rel=0.2)
    assert by_slot.returns == pytest.approx(one_by_one.returns, rel=0.3)


def test_a_verdict_says_that_too_few_delays_carry_a_quantile() -> None:
    few, enough = Crossing(), Crossing()
    few.add_delays(np.arange(12), np.arange(1, 13) * 10**6)
    enough.add_delays(np.arange(100), np.arange(1, 101) * 10**4)
    p99 = Sla.parse("p99<50ms")
    assert p99.sentence(few) == (
        "p99<50ms: holds, it is 12 ms (the longest of 12: too few to be sure, p99 takes 100 delays)"
    )
    assert "too few" not in p99.sentence(enough)
    assert "too few" not in Sla.parse("p90<50ms").sentence(few)
    assert "too few" not in Sla.parse("mean<50ms").sentence(few)
    assert Sla.parse("p99<5ms").sentence(few).startswith("p99<5ms: does not hold, it is 12 ms (the longest of 12")
    assert p99.sentence(Mean(1e6)) == "p99<50ms: cannot say"
