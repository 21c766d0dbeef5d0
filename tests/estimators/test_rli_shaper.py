"""RLI behind a shaper: a token bucket lets packets pass at once, which a link never does."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.support.rli_packets import RATE, measured, seen, shaped
from wirelag.estimators.rli import Rli
from wirelag.packets.batch import Kind, PacketBatch
from wirelag.sim.queue import QueueScenario, QueueSimulation, run
from wirelag.stats.queue_drain import learn_queue
from wirelag.synopses.flows import Flows

BURST = 15_000
LEARNED = Rli(memory=16 << 20)
RATED = replace(LEARNED, bytes_per_s=RATE)  # its burst is learned
LINK = replace(RATED, noise_ns=0)  # nothing is learned: it is a link


@cache
def simulation(utilisation: float) -> QueueSimulation:
    return shaped(run(QueueScenario(utilisation, seed=3, seconds=0.4)), BURST)


@cache
def packets(utilisation: float) -> PacketBatch:
    return seen(simulation(utilisation), padded=True)


def median_error(sim: QueueSimulation, flows: Flows) -> float:
    """Of flows with at least ten packets."""
    table, truth, order = flows.merged().table(), sim.truth(), np.argsort(sim.keys())
    flow = order[np.searchsorted(sim.keys(), table["key"], sorter=order)]
    large = truth.packets[flow] >= 10
    return float(np.nanmedian(np.abs(table["mean"][large] * 1e9 / truth.mean_ns[flow][large] - 1)))


@pytest.mark.parametrize("utilisation", [0.55, 0.7])
def test_flows_are_near_the_truth_and_the_law_of_a_link_is_not(utilisation: float) -> None:
    sim = simulation(utilisation)
    linear = measured(replace(LEARNED, method="linear"), packets(utilisation))
    link = measured(LINK, packets(utilisation))
    for estimator in (LEARNED, RATED):
        flows = measured(estimator, packets(utilisation))
        assert flows.drain.burst == pytest.approx(BURST, rel=0.03)
        assert flows.trusted
        assert flows.fallback is None
        assert median_error(sim, flows) < 0.12
        assert median_error(sim, flows) < 0.8 * median_error(sim, linear)
        assert median_error(sim, link) > 1.5 * median_error(sim, flows)


def known(batch: PacketBatch) -> tuple[np.ndarray, np.ndarray]:
    rows = np.flatnonzero(batch.kind == Kind.STAMP)
    sent_ns = (batch.transaction[rows] >> np.uint64(32)).astype(np.int64) * 10**9
    sent_ns += (batch.transaction[rows] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return rows, batch.time_ns[rows] - sent_ns


@pytest.mark.parametrize("utilisation", [0.55, 0.88])
def test_rate_and_burst_are_learned(utilisation: float) -> None:
    batch = packets(utilisation)[slice(0, 30_000)]
    rows, delays_ns = known(batch)
    drain = learn_queue(batch.time_ns, batch.wire_length, rows, delays_ns, int(delays_ns.min()))
    assert drain.bytes_per_s == pytest.approx(RATE, rel=0.01)
    assert drain.burst == pytest.approx(BURST, rel=0.03)


def test_without_an_empty_queue_nothing_is_learned() -> None:
    """Then a shaper looks like a link."""
    batch = packets(0.88)[slice(0, 30_000)]
    rows, delays_ns = known(batch)
    assert learn_queue(batch.time_ns, batch.wire_length, rows, delays_ns, -(10**9)).bytes_per_s == 0


@pytest.mark.parametrize("utilisation", [0.55, 0.88])
def test_a_link_is_still_a_link(utilisation: float) -> None:
    batch = seen(run(QueueScenario(utilisation, seed=3, seconds=0.3)), padded=True)
    rows, delays_ns = known(batch)
    drain = learn_queue(batch.time_ns, batch.wire_length, rows, delays_ns, int(delays_ns.min()))
    assert drain.bytes_per_s == pytest.approx(RATE, rel=0.001)
    assert drain.burst == 0
