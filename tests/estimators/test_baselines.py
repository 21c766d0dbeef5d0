"""Trajectory sampling and the multiflow estimator, compared with loops over packets written from the papers."""

import math

import numpy as np
import pytest

from tests.oracles.join import coin
from wirelag.estimators.rli import Rli
from wirelag.sim.baselines import LOST, Packets, multiflow, sampled, trajectory
from wirelag.sim.queue import QueueScenario, run
from wirelag.sim.scramble import scramble
from wirelag.stats.queue_drain import Drain
from wirelag.synopses.flows import RECORD

FLOWS = 12
NO = (0, math.nan, math.nan)


def traffic(seed: int, count: int = 400, loss: float = 0.3, fifo: bool = True) -> Packets:
    """Packets of a few flows in order of sending; some are lost, and without FIFO some overtake others."""
    rng = np.random.default_rng(seed)
    sent_ns = np.cumsum(rng.integers(1, 1000, count))
    left_ns = sent_ns + rng.integers(0, 100_000, count)
    if fifo:
        left_ns = np.maximum.accumulate(left_ns) + np.arange(count)
    left_ns[rng.random(count) < loss] = LOST
    flow = rng.integers(0, FLOWS - 1, count).astype(np.uint32)  # the last flow has no packet
    return Packets(flow, rng.integers(0, 2**64, count, dtype=np.uint64), sent_ns, left_ns)


def handmade(*rows: tuple[int, int, int | None]) -> Packets:
    """Packets as (flow, sent, left or None)."""
    flow, sent, left = zip(*rows, strict=True)
    left_ns = np.array([LOST if time is None else time for time in left])
    return Packets(np.array(flow, np.uint32), scramble(np.arange(len(rows)), 5), np.array(sent), left_ns)


# ---- the papers, packet by packet ----


def thrown(packet_id: int, share: float, seed: int) -> bool:
    return coin(packet_id, seed, 9) >> 32 < round(share * 2**32)


def spread(delays: list[int]) -> tuple[int, float, float]:
    if not delays:
        return NO
    mean = sum(delays) / len(delays)
    return len(delays), mean, math.sqrt(sum((delay - mean) ** 2 for delay in delays) / len(delays))


def naive_trajectory(packets: Packets, share: float, seed: int) -> list[tuple[int, float, float]]:
    """Each end reports (id, time) of the packets it samples; a collector pairs the reports by id."""
    rows = range(len(packets.id))
    sender = {int(packets.id[i]): int(packets.sent_ns[i]) for i in rows if thrown(int(packets.id[i]), share, seed)}
    receiver = {
        int(packets.id[i]): int(packets.left_ns[i])
        for i in rows
        if packets.left_ns[i] != LOST and thrown(int(packets.id[i]), share, seed)
    }
    flow = {int(packets.id[i]): int(packets.flow[i]) for i in rows}
    return [
        spread([receiver[i] - sender[i] for i in sender if i in receiver and flow[i] == wanted])
        for wanted in range(FLOWS)
    ]


Record = tuple[tuple[int, int], tuple[int, int]]  # first and last packet: time and id


def netflow(seen: list[tuple[int, int, int]], share: float, seed: int) -> dict[int, Record]:
    """The records of one end, by flow, from (time, id, flow) in order of time."""
    records: dict[int, Record] = {}
    for time, packet_id, flow in seen:
        if thrown(packet_id, share, seed):
            first, _ = records.get(flow, ((time, packet_id), None))
            records[flow] = first, (time, packet_id)
    return records


def naive_multiflow(packets: Packets, share: float, seed: int) -> list[tuple[int, float, float]]:
    """Every flow gives two delays, by its first and last packet; a flow uses those within its own lifetime."""
    rows = [tuple(int(column[i]) for column in packets) for i in range(len(packets.id))]
    sender = netflow([(sent, packet_id, flow) for flow, packet_id, sent, _ in rows], share, seed)
    arrived = sorted((left, packet_id, flow) for flow, packet_id, _, left in rows if left != LOST)
    receiver = netflow(arrived, share, seed)
    samples: dict[int, tuple[int, int]] = {}  # by packet: sending time, delay
    for flow in sender.keys() & receiver.keys():
        for (sent, near_id), (left, far_id) in zip(sender[flow], receiver[flow], strict=True):
            if near_id == far_id:
                samples[near_id] = sent, left - sent
    return [
        spread([delay for sent, delay in samples.values() if sender[flow][0][0] <= sent <= sender[flow][1][0]])
        if flow in sender
        else NO
        for flow in range(FLOWS)
    ]


@pytest.mark.parametrize("share", [1.0, 0.3, 0.05])
@pytest.mark.parametrize("fifo", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_both_equal_loops_over_packets(share: float, fifo: bool, seed: int) -> None:
    packets = traffic(seed, fifo=fifo)
    for ours, naive in (
        (trajectory(packets, FLOWS, share, seed), naive_trajectory(packets, share, seed)),
        (multiflow(packets, FLOWS, share, seed), naive_multiflow(packets, share, seed)),
    ):
        samples, means, deviations = zip(*naive, strict=True)
        assert ours.samples.tolist() == list(samples)
        assert ours.samples[-1] == 0
        # Sums of delays up to 2^17 ns in floats, and the square root of a difference of squares.
        assert ours.mean_ns == pytest.approx(means, abs=1e-6, nan_ok=True)
        assert ours.std_ns == pytest.approx(deviations, abs=0.1, nan_ok=True)


# ---- examples ----


def test_a_lost_packet_is_not_replaced_by_the_next_one() -> None:
    """The receiver's record of the flow begins with its second packet, and ends with its third."""
    packets = handmade((0, 0, None), (0, 1_000, 1_010), (0, 2_000, 2_020), (0, 3_000, None))
    assert trajectory(packets, 1, 1).mean_ns.tolist() == [15.0]
    assert multiflow(packets, 1, 1).samples.tolist() == [0]
    assert np.isnan(multiflow(packets, 1, 1).mean_ns).all()
    packets = handmade((0, 0, None), (0, 1_000, 1_010), (0, 3_000, 3_030))
    assert multiflow(packets, 1, 1).mean_ns.tolist() == [30.0]


def test_multiflow_uses_samples_of_other_flows_within_a_lifetime() -> None:
    packets = handmade((0, 0, 10), (1, 5, 25), (0, 8, 50), (1, 9, 39), (0, 20, 60), (2, 21, 1_000))
    found = multiflow(packets, 3, 1)
    # Flow 0: its own 10 and 40 (42 is neither its first nor its last), and 20 and 30 of flow 1. A single packet counts
    # once.
    assert found.mean_ns.tolist() == [25.0, 25.0, 979.0]
    assert found.samples.tolist() == [4, 2, 1]


def test_empty_input() -> None:
    empty = traffic(0, count=0)
    for found in (
        trajectory(empty, 3),
        multiflow(empty, 3),
        trajectory(traffic(1), 12, 0),
        multiflow(traffic(1), 12, 0),
    ):
        assert not found.samples.any()
        assert np.isnan(found.mean_ns).all()
        assert np.isnan(found.std_ns).all()
    assert len(trajectory(empty, 0).samples) == len(multiflow(empty, 0).samples) == 0


def test_the_share_of_sampled_packets() -> None:
    ids = scramble(np.arange(1_000_000), 1)
    count = int(sampled(ids).sum())
    assert abs(count - 1000) < 4 * math.sqrt(1000)
    assert (sampled(ids) == sampled(ids, seed=0)).all()
    assert int((sampled(ids) & sampled(ids, seed=1)).sum()) < 10  # expected: 1


def test_sample_and_hold_sees_the_same_flows() -> None:
    """RLI opens a flow at the first packet that trajectory sampling samples: both compare the same flows."""
    simulation = run(QueueScenario(0.7, seed=2, seconds=0.5))
    seen = simulation.receiver()
    regular = np.flatnonzero(seen.is_reference == 0)
    ids = scramble(seen.number[regular])
    kernel = Rli(method="linear", hold=0.01, memory=16 << 20).kernel(Drain(0, 0.0))
    none, words = np.empty(0, np.int64), np.empty(0, np.uint64)
    kernel.observe(
        seen.time_ns[regular], seen.is_reference[regular], seen.size[regular], seen.flow[regular] + np.uint64(1), ids,
        np.empty(0, np.uint32), none, none, words,
    )  # fmt: skip
    kernel.cut()
    records = np.empty((kernel.records, len(RECORD)), np.uint64)
    kernel.take(records)
    bursts = simulation.bursts
    packets = Packets(bursts.flow, scramble(np.arange(len(bursts))), bursts.time_ns, simulation.left_ns)
    found = np.flatnonzero(trajectory(packets, bursts.flows, 0.01).samples)
    assert len(found) > 100
    assert sorted(records[:, 0].tolist()) == (found + 1).tolist()
