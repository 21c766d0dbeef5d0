"""The meter of Rli: choice of the reference stream, learning, errors of sets of flows, large sums."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.rli_packets import (
    EVERYTHING,
    KNOWN,
    MARK,
    MARKED,
    RATE,
    STREAM,
    inserted,
    marked,
    measured,
    references,
    seen,
    set_sent,
)
from wirelag.estimators.rli import LEARNING, PATIENCE, Rli
from wirelag.measure.flow_references import Meters
from wirelag.measure.flow_rows import Choice, _as_one, flow_rows
from wirelag.packets.batch import Kind, PacketBatch
from wirelag.packets.filters import Filter
from wirelag.packets.interval import Interval
from wirelag.sim.queue import QueueScenario, QueueSimulation, run
from wirelag.stats.queue_drain import learn_drain
from wirelag.synopses.flows import COLUMN, SHOWN, Flows, added

LINEAR = replace(KNOWN, method="linear")
FOREIGN = 99


@cache
def simulation(seed: int = 3, seconds: float = 0.3, utilisation: float = 0.7) -> QueueSimulation:
    return run(QueueScenario(utilisation, seed=seed, seconds=seconds))


def in_front(packets: PacketBatch, count: int, later_s: int = 0) -> PacketBatch:
    """`count` references of another stream before all others, with sending times that may be much earlier."""
    rows = np.repeat(references(packets)[:1], count)
    sent_ns = np.repeat(packets.time_ns[:1], count) - 1000 - later_s * 10**9
    made = inserted(packets, rows, np.zeros(count, np.intp), flow_key=FOREIGN, seq=(1 << 31) + np.arange(count))
    set_sent(made.transaction, np.flatnonzero(made.flow_key == FOREIGN), sent_ns)
    return made


# ---- choice of the stream ----


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_false_first_packets_cost_twice_as_many_references(count: int) -> None:
    packets = seen(simulation())
    flows, expected = measured(LINEAR, in_front(packets, count)), measured(LINEAR, packets)
    assert flows.counts["accepted"] >= expected.counts["accepted"] - 2 * count
    assert flows.counts["restarts"] == 1
    lost = references(packets)[2 * count]
    assert flows.timed >= expected.timed - lost
    later = flows.merged().column("first_ns") > packets.time_ns[lost]
    mine, all_of = flows.merged(), expected.merged()
    same_keys = np.isin(all_of.column("key"), mine.column("key")[later])
    columns = [COLUMN[name] for name in ("key", "packets", "timed", "sum_ns", "squares", "brackets")]
    assert later.sum() > 500
    assert (mine.records[later][:, columns] == all_of.records[same_keys][:, columns]).all()


def test_a_flood_at_the_beginning_costs_64_references() -> None:
    packets = seen(simulation())
    flows = measured(LINEAR, in_front(packets, 500))
    assert flows.counts["accepted"] >= len(references(packets)) - PATIENCE


def test_an_implausible_time_selects_no_stream() -> None:
    packets = seen(simulation())
    flows, expected = measured(LINEAR, in_front(packets, 5, later_s=2000)), measured(LINEAR, packets)
    assert flows.counts["accepted"] == expected.counts["accepted"]
    assert flows.counts["restarts"] == 0


def test_a_marked_first_packet_does_not_silence_the_rest() -> None:
    packets = marked(seen(simulation(), padded=True))
    before = measured(MARKED, packets).counts["accepted"]
    first = np.flatnonzero(packets.protocol == 17)[:1]
    packets.flow_key[first] = FOREIGN
    assert measured(MARKED, packets).counts["accepted"] >= before - 3
    assert MARKED.mark == MARK


@pytest.mark.parametrize("every", [1, 2, 50])
def test_a_continuing_stream_is_not_replaced(every: int) -> None:
    """Not even by one that sends 50 times as often, once it has had 32."""
    packets = seen(simulation())
    behind = np.repeat(references(packets)[40 if every > 2 else 3 :], every)
    both = inserted(packets, behind, behind, flow_key=FOREIGN)
    flows = measured(LINEAR, both)
    assert flows.counts["restarts"] == 0
    assert flows.counts["accepted"] == len(references(packets))
    assert flows.counts["rejected_foreign"] == len(behind)


def test_with_several_streams_any_split_gives_the_same_result() -> None:
    """Streams that come and go, in parts of odd sizes."""
    packets = seen(simulation())
    rows, rng = references(packets), np.random.default_rng(1)
    packets.flow_key[rows] = np.repeat(rng.integers(50, 54, len(rows) // 20 + 1, np.uint64), 20)[: len(rows)]
    whole = measured(LINEAR, packets)
    assert whole.counts["restarts"] > 3
    edges = [0, *np.sort(rng.integers(0, len(packets), 40)), len(packets)]
    split = measured(LINEAR, *(packets[a:b] for a, b in itertools.pairwise(edges)))
    assert (whole.records == split.records).all()
    assert whole.counts == split.counts


# ---- learning ----


@pytest.mark.parametrize("cuts", [[0], [0, 100], [1, 5000], [LEARNING - 1], [LEARNING, LEARNING + 1]])
def test_early_cuts_do_not_prevent_learning(cuts: list[int]) -> None:
    packets = seen(simulation())
    meter = Rli(memory=16 << 20).meter("downstream")
    parts = []
    for start, end in itertools.pairwise([0, *cuts, len(packets)]):
        meter.observe(packets[start:end])
        parts.append(meter.cut(EVERYTHING))
    assert [part.packets for part in parts] == np.diff([0, *cuts, len(packets)]).tolist()
    assert parts[-1].drain.bytes_per_s == pytest.approx(RATE, rel=1e-3)
    assert parts[-1].trusted
    together = added(parts)
    assert together.counts["regular"] == np.count_nonzero(packets.kind != Kind.STAMP)
    assert together.timed > 0.98 * together.counts["regular"]


def test_learning_does_not_depend_on_batches() -> None:
    """More references than are shown; after the packets used for learning they contradict the drain rate."""
    packets = seen(simulation(seconds=1.0))
    rows = references(packets)
    late = rows[rows > LEARNING][:200]
    rng = np.random.default_rng(2)
    packets.time_ns[late] += rng.integers(0, 100, len(late))
    packets.wire_length[late] = rng.integers(1, 200_000, len(late))
    whole = measured(Rli(memory=16 << 20), packets)
    edges = [0, *np.sort(rng.integers(0, len(packets), 30)), len(packets)]
    split = measured(Rli(memory=16 << 20), *(packets[a:b] for a, b in itertools.pairwise(edges)))
    assert whole.drain == split.drain
    assert whole.drain.bytes_per_s
    assert whole.counts["accepted"] > SHOWN >= len(whole.references_ns) > SHOWN / 2
    assert (whole.references_ns == split.references_ns).all()


def test_packets_without_a_size_teach_nothing() -> None:
    with np.errstate(all="raise"):
        learn_drain(np.arange(1000, dtype=np.int64) * 100, np.zeros(1000, np.uint32))


# ---- errors ----


def grouped(flows: Flows, sim: QueueSimulation, groups: int) -> tuple[Flows, npt.NDArray[np.float64]]:
    """Flows in `groups` groups by their keys, and the groups' true means, in seconds."""
    merged, shift, count = flows.merged(), np.uint64(5), np.uint64(groups)
    found = _as_one(merged, (merged.column("key") >> shift) % count)
    there = sim.left_ns >= 0
    group = ((sim.keys()[sim.bursts.flow[there]] >> shift) % count).astype(np.int64)
    true_s = np.bincount(group, sim.delay_ns[there], groups) / np.bincount(group, minlength=groups) / 1e9
    return found, true_s[found.column("key").astype(np.int64)]


def test_intervals_of_groups_and_of_everything_cover_the_truth() -> None:
    """Nominal 95%. 240 groups of 12 runs share the errors of their run: required are 90%, and 10 of 12 runs."""
    hits, whole = [], 0
    for seed in range(12):
        sim = simulation(200 + seed, 0.5)
        flows = measured(KNOWN, seen(sim))
        found, true_s = grouped(flows, sim, 20)
        table, report = found.table(), flows.report()
        hits += ((table["low"] <= true_s) & (true_s <= table["high"])).tolist()
        low, high = report.ci95["mean"]
        whole += low <= sim.delay_ns[sim.left_ns >= 0].mean() / 1e9 <= high
    assert np.mean(hits) > 0.9
    assert whole >= 10


@pytest.mark.parametrize("groups", [2, 20, 300])
def test_no_set_has_a_smaller_error_than_the_whole(groups: int) -> None:
    """Except for packets without a delay, less than one in a hundred, which not every set has."""
    flows = measured(KNOWN, seen(simulation()))
    low, high = flows.report().ci95["mean"]
    for some in (flows.merged(), grouped(flows, simulation(), groups)[0]):
        table = some.table()
        assert np.nanmin(table["high"] - table["low"]) >= 0.999 * (high - low)
    one = Choice(Filter()).of(flows)
    assert one.report().ci95 == flows.report().ci95


def test_the_interval_of_a_set_is_the_same_alone_and_as_a_group() -> None:
    """The interval of a selection of flows is that of the same flows as a group."""
    flows = measured(KNOWN, seen(simulation())).merged()
    records = flows.records[::3]
    one = replace(flows, records=records)
    one = _as_one(one, np.zeros(len(records), np.uint64))
    sums = {name: int(one.column(name)[0]) for name in ("timed", "sum_ns", "squares", "packets")}
    chosen = replace(
        flows, records=records, timed=sums["timed"], sum_ns=sums["sum_ns"], squares=sums["squares"],
        counts=flows.counts | {"regular": sums["packets"]},
    )  # fmt: skip
    table = one.table()
    assert chosen.report().ci95["mean"] == pytest.approx((table["low"][0], table["high"][0]), rel=1e-9)


def test_ways_keep_their_own_errors() -> None:
    """The same queue with 5 ms more: its flows waited as long and have the same errors, whatever is added."""
    packets = seen(simulation())
    near = measured(KNOWN, packets).merged()
    far = measured(KNOWN, packets.at_times(packets.time_ns + 5 * 10**6)).merged()
    far.records[:, 0] += np.uint64(1 << 40)
    assert np.allclose(far.column("error"), near.column("error"), equal_nan=True)
    for both in (near + far, far + near):
        mine = np.isin(both.column("key"), near.column("key"))
        assert np.array_equal(both.column("error")[mine], near.column("error"), equal_nan=True)
    assert (near + far).error == pytest.approx(near.error)
    assert (near + far).brackets == pytest.approx(2 * near.brackets)


# ---- sums and records ----


def test_large_sums_are_added_without_loss() -> None:
    """Records of 2^22 packets with delays of 18 minutes, or of minus 18 minutes."""
    flows = measured(LINEAR, seen(simulation()))
    for sign in (1, -1):
        records = flows.records[:1].repeat(5, axis=0)
        delay, n = sign * ((1 << 40) - 7), 1 << 22
        for name, value in (
            ("packets", n), ("timed", n), ("sum_ns", delay * n), ("sum_high", delay * n >> 64),
            ("squares", delay**2 * n), ("squares_high", delay**2 * n >> 64),
        ):  # fmt: skip
            records[:, COLUMN[name]] = value & (1 << 64) - 1
        table = replace(flows, records=records).merged().table()
        assert table["mean"].tolist() == [delay / 1e9]
        assert table["std"].tolist() == [0]


def test_intervals_do_not_change_the_whole() -> None:
    packets, whole = seen(simulation()), Interval(0, 10**12)
    plain, in_parts = Meters(LINEAR, False), Meters(LINEAR, True)
    for start in range(0, len(packets), 2_000):
        batch = packets[np.arange(start, min(start + 2_000, len(packets)))]
        plain.observe(batch)
        in_parts.observe(batch)
        assert in_parts.cut(Interval(start, start + 1), False).packets == len(batch)
    flows, same = plain.finish(whole), in_parts.finish(whole)
    assert (flows.records == same.records).all()
    assert flows.report() == same.report()
    short = flows.shortened(100)
    assert len(short) == 100
    assert short.counts["unlisted"] > 0
    assert (short.timed, short.sum_ns) == (flows.timed, flows.sum_ns)


def test_meters_of_many_ways_share_the_memory_of_one() -> None:
    ways = np.arange(16, dtype=np.uint64)
    meters, fixed = Meters(LINEAR, False, ways)._sets[0], 64 << 10
    assert sum(meter.memory for meter in meters) <= LINEAR.meter("downstream").memory + fixed * len(meters)
    assert sum(meter._estimator.most_flows for meter in meters) <= LINEAR.most_flows


def test_only_requested_flows_are_named() -> None:
    flows = measured(KNOWN, seen(simulation()))
    assert list(flow_rows(flows, 3)) == list(flow_rows(flows))[:3]
    assert STREAM not in flows.column("key")
