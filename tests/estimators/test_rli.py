"""Rli: the delay of every flow on simulated queues; false references; bounded memory."""

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import wirelag
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
from wirelag.capture.writer import CaptureWriter
from wirelag.estimators.rli import Method, Rli, RliMeter
from wirelag.packets.batch import COLUMNS, Kind, PacketBatch
from wirelag.packets.stamp import PAYLOAD_BYTES, PORT, STANDARD_BYTES
from wirelag.sim.queue import QueueScenario, QueueSimulation, run
from wirelag.sim.queue_frames import downstream_frames
from wirelag.stats.queue_drain import learn_drain
from wirelag.synopses.flows import COLUMN, Flows


@cache
def simulation(utilisation: float, seconds: float = 1.0) -> QueueSimulation:
    return run(QueueScenario(utilisation, seed=3, seconds=seconds))


def median_error(sim: QueueSimulation, flows: Flows) -> float:
    table = flows.merged().table()
    return float(np.nanmedian(np.abs(table["mean"] / true_means(sim, flows) - 1)))


def true_means(sim: QueueSimulation, flows: Flows) -> npt.NDArray[np.float64]:
    keys, order = sim.keys(), np.argsort(sim.keys())
    known = flows.merged().column("key")
    return np.asarray(sim.truth().mean_ns[order[np.searchsorted(keys, known, sorter=order)]] / 1e9)


def same(one: Flows, other: Flows) -> bool:
    return bool((one.merged().records == other.merged().records).all())


# ---- accuracy ----


@pytest.mark.parametrize(
    ("method", "utilisation", "most"),
    [
        ("linear", 0.7, 0.25),
        ("linear", 0.55, 0.3),
        ("busy", 0.7, 0.1),
        ("busy", 0.55, 0.1),
        ("busy", 0.2, 0.1),
    ],
)
def test_the_mean_of_a_flow_is_near_the_truth(method: str, utilisation: float, most: float) -> None:
    """A second of traffic: twice the error of eight seconds (docs/reference/rli.md), as it has less time to learn."""
    sim = simulation(utilisation)
    flows = measured(replace(KNOWN, method=method), seen(sim))  # type: ignore[arg-type]
    assert median_error(sim, flows) < most
    assert flows.fallback is None
    assert flows.timed > 0.97 * flows.counts["regular"]


def test_each_method_is_better_than_the_one_before() -> None:
    sim = simulation(0.55)
    left, linear, busy = (
        median_error(sim, measured(replace(KNOWN, method=method), seen(sim))) for method in ("left", "linear", "busy")
    )
    assert busy < linear < left


@pytest.mark.parametrize("method", ["linear", "busy"])
@pytest.mark.parametrize("utilisation", [0.2, 0.55, 0.7])
def test_intervals_cover_the_truth(method: str, utilisation: float) -> None:
    """Errors are not normal, brackets not independent: nominal 95%, required 90%."""
    sim = simulation(utilisation)
    flows = measured(replace(KNOWN, method=method), seen(sim))  # type: ignore[arg-type]
    table, truth = flows.merged().table(), true_means(sim, flows)
    known = ~np.isnan(table["mean"])
    assert ((table["low"] <= truth) & (truth <= table["high"]))[known].mean() > 0.9


def test_all_packets_together() -> None:
    sim = simulation(0.55)
    report = measured(KNOWN, seen(sim)).report()
    arrived = sim.delay_ns[sim.delay_ns >= 0]
    assert report.mean == pytest.approx(arrived.mean() / 1e9, rel=0.05)
    assert report.std == pytest.approx(arrived.std() / 1e9, rel=0.1)
    assert report.quantity == "one_way"
    assert report.details["coverage"] > 0.97


def test_clocks_hours_apart_do_not_affect_the_deviation() -> None:
    """Sums of squares are whole numbers; clocks may differ by 2^40 ns."""
    packets = seen(simulation(0.55))
    shifted = packets.at_times(packets.time_ns + 10**12)
    near, far = measured(KNOWN, packets).merged().table(), measured(KNOWN, shifted).merged().table()
    np.testing.assert_allclose(far["std"], near["std"], atol=2e-9)
    np.testing.assert_allclose(far["mean"] - 1000, near["mean"], atol=2e-9)


def test_the_packet_before_a_reference_improves_it() -> None:
    sim = simulation(0.2)
    plain, padded = measured(KNOWN, seen(sim)), measured(KNOWN, seen(sim, padded=True))
    assert padded.counts["previous_used"] > 0.99 * padded.counts["accepted"]
    assert plain.counts["previous_used"] == 0
    assert median_error(sim, padded) < 0.9 * median_error(sim, plain)


def test_a_false_time_of_the_packet_before_is_counted_and_not_used() -> None:
    sim = simulation(0.2)
    plain, padded = measured(KNOWN, seen(sim)), seen(sim, padded=True)
    fields = padded.blocks[0].data.reshape(-1, PAYLOAD_BYTES)
    fields[:, 48] ^= 1  # 2^24 s
    flows = measured(KNOWN, padded)
    assert flows.counts["previous_rejected"] == flows.counts["accepted"]
    assert same(flows, plain)
    fields[:, 48] ^= 1
    fields[:, 56] ^= 0x80  # the id of no packet
    flows = measured(KNOWN, padded)
    assert flows.counts["previous_missed"] > 0.99 * flows.counts["accepted"]


# ---- what busy needs ----


def test_drain_rate_and_noise_are_learned() -> None:
    packets = seen(simulation(0.55))
    rng = np.random.default_rng(5)
    for noise_ns in (0, 30, 100):
        times = packets.time_ns[:8192] + np.rint(rng.normal(0, noise_ns, 8192)).astype(np.int64)
        drain = learn_drain(times, packets.wire_length[:8192])
        assert drain.bytes_per_s == pytest.approx(RATE, rel=0.01)
        assert noise_ns * 0.8 <= drain.noise_ns <= noise_ns * 1.3 + 1
    learned = measured(Rli(memory=16 << 20), packets)
    assert learned.drain.bytes_per_s == pytest.approx(RATE, rel=1e-3)
    assert median_error(simulation(0.55), learned) < 0.1


def test_without_a_queue_nothing_is_learned() -> None:
    rng = np.random.default_rng(6)
    times = np.cumsum(rng.exponential(1e6, 8192)).astype(np.int64)
    assert learn_drain(times, rng.integers(40, 1500, 8192)).bytes_per_s == 0
    assert learn_drain(times[:3], np.full(3, 100)).bytes_per_s == 0


def test_without_a_drain_rate_busy_is_linear_and_says_so() -> None:
    packets = seen(simulation(0.55))
    unknown = measured(replace(KNOWN, bytes_per_s=0), packets)
    assert "drain rate" in str(unknown.report().details["fallback"])
    linear = measured(replace(KNOWN, bytes_per_s=0, method="linear"), packets)
    delays = [np.delete(one.merged().records, COLUMN["error"], axis=1) for one in (unknown, linear)]
    assert (delays[0] == delays[1]).all()  # errors are not looked up by waits that are not known


def test_with_a_wrong_drain_rate_busy_is_linear_and_says_so() -> None:
    """A queue with too high a rate seems idle while packets wait."""
    packets = seen(simulation(0.7))
    flows = measured(replace(KNOWN, bytes_per_s=2 * RATE), packets)
    assert flows.fallback
    assert flows.counts["untrusted"] > 0.9 * flows.counts["regular"]


# ---- false references ----


def test_lost_references_only_widen_the_brackets() -> None:
    sim = simulation(0.55)
    packets = seen(sim)
    lost = np.random.default_rng(7).random(len(packets)) < 0.5
    flows = measured(KNOWN, packets[~(lost & (packets.kind == Kind.STAMP))])
    assert median_error(sim, flows) < 0.2
    assert not any(n for name, n in flows.counts.items() if name.startswith("rejected"))


@pytest.mark.every(2)
@pytest.mark.parametrize("fault", ["copied", "late", "far future", "far past", "other size", "foreign", "impossible"])
def test_a_false_reference_is_counted_and_changes_nothing(fault: str) -> None:
    """`linear` uses only references, so flows are the same to the last bit."""
    linear = replace(KNOWN, method="linear", stream=STREAM)
    packets = seen(simulation(0.55))
    true = references(packets)[10::10]
    behind = np.minimum(true + 3, len(packets) - 1)
    sent = packets.transaction[true]
    second = np.uint64(1 << 32)
    faults: dict[str, tuple[dict[str, object], str]] = {
        "copied": ({}, "rejected_repeated"),
        "late": ({"seq": packets.seq[true] - np.uint32(5)}, "rejected_sequence"),
        "far future": ({"seq": packets.seq[true] + np.uint32(1), "transaction": sent + second}, "rejected_time"),
        "far past": (
            {"seq": packets.seq[true] + np.uint32(1), "transaction": sent - second * np.uint64(30)},
            "rejected_time",
        ),
        "other size": ({"payload_length": 60}, "rejected_size"),
        "foreign": ({"flow_key": 99}, "rejected_foreign"),
        "impossible": ({"transaction": sent | np.uint64(0xFFFFFFFF)}, "rejected_malformed"),
    }
    changed, reason = faults[fault]
    expected, flows = measured(linear, packets), measured(linear, inserted(packets, true, behind, **changed))
    keys = flows.merged().column("key")
    mine = flows.merged().records[keys != 99] if fault == "foreign" else flows.merged().records
    assert (mine == expected.merged().records).all()
    assert flows.counts["accepted"] == expected.counts["accepted"]
    # If the next true reference came first, the sequence number decides.
    later = flows.counts["rejected_sequence"] + flows.counts["rejected_repeated"]
    assert flows.counts[reason] > 0
    assert flows.counts[reason] == len(true) or flows.counts["rejected_time"] + later == len(true)


def test_a_forged_first_reference_is_given_up() -> None:
    """The first reference is far off, so all true ones seem to be; the second true one outvotes it."""
    packets = seen(simulation(0.2, 3.0))
    first = references(packets)[:1]
    set_sent(packets.transaction, first, packets.time_ns[first] - 500 * 10**9)
    flows = measured(KNOWN, packets)
    assert flows.counts["restarts"] == 1
    assert flows.base_ns == pytest.approx(0, abs=10)
    assert flows.timed > 0.99 * flows.counts["regular"]


def test_packets_far_from_references_are_not_timed() -> None:
    packets = seen(simulation(0.2))
    times = packets.time_ns
    gone = (packets.kind == Kind.STAMP) & (times > times[0] + 3 * 10**8) & (times < times[0] + 6 * 10**8)
    flows = measured(replace(KNOWN, bracket_ns=10**8), packets[~gone])
    within = (times > times[0] + 3 * 10**8) & (times < times[0] + 6 * 10**8) & (packets.kind != Kind.STAMP)
    assert flows.counts["wide"] == pytest.approx(within.sum(), rel=0.05)


# ---- bounds ----


def test_a_full_buffer_is_settled_and_counted() -> None:
    sim = simulation(0.55)
    flows = measured(replace(KNOWN, buffer=4), seen(sim))
    assert flows.counts["full"] > 0
    assert flows.timed > 0.97 * flows.counts["regular"]
    assert median_error(sim, flows) < 0.4


def test_records_without_room_leave_and_nothing_is_lost() -> None:
    packets = seen(simulation(0.55))
    roomy, tight = measured(KNOWN, packets), measured(replace(KNOWN, memory=16 << 10), packets)
    assert tight.counts["evicted"] > 100
    twice = ("brackets", "error", "reason")  # an eviction splits a bracket, which counts twice; errors are of parts
    kept = [at for name, at in COLUMN.items() if name not in twice]
    assert (tight.merged().records[:, kept] == roomy.merged().records[:, kept]).all()


def test_a_synopsis_lists_a_limited_number_of_flows_and_counts_the_rest() -> None:
    packets = seen(simulation(0.55))
    whole, short = measured(KNOWN, packets), measured(replace(KNOWN, most_flows=100), packets)
    assert len(short) == 100
    assert short.counts["unlisted"] == len(whole) - 100
    assert short.report().mean == whole.report().mean


def test_flows_end_when_silent_or_open_for_too_long() -> None:
    packets = seen(simulation(0.55))
    whole = measured(KNOWN, packets)
    parts = measured(replace(KNOWN, inactive_ns=10**7, active_ns=10**8), packets)
    assert parts.counts["inactive"] > 0 < parts.counts["active"]
    span = parts.column("last_ns") - parts.column("first_ns")
    assert span.max() <= 10**8
    assert (parts.merged().column("packets") == whole.column("packets")[np.argsort(whole.column("key"))]).all()


def test_sample_and_hold_takes_its_share() -> None:
    """A flow of n packets is held with probability 1 - (1 - p)^n."""
    sim = simulation(0.55)
    whole, held = measured(KNOWN, seen(sim)), measured(replace(KNOWN, hold=0.1), seen(sim))
    expected = (1 - 0.9 ** whole.column("packets").astype(float)).sum()
    assert len(held) == pytest.approx(expected, abs=5 * expected**0.5)
    assert held.timed == whole.timed
    assert held.counts["unheld"] + held.column("packets").sum() == held.counts["regular"]


def hostile(rng: np.random.Generator, rows: int) -> PacketBatch:
    columns = {}
    for name, dtype, width in COLUMNS:
        limits = np.iinfo(dtype)
        columns[name] = rng.integers(limits.min, limits.max, (rows, width) if width > 1 else rows, dtype, endpoint=True)
    columns["kind"] %= np.uint8(10)
    columns["protocol"][::4], columns["traffic_class"][::8] = 17, MARK << 2
    columns["dst_port"][columns["kind"] == Kind.STAMP] = PORT
    columns["payload_length"][columns["kind"] == Kind.STAMP] = STANDARD_BYTES
    columns["flow_key"][::2] %= np.uint64(2)
    columns["flags"][::2] = 0
    columns["time_ns"][::3] >>= 30
    return PacketBatch(columns)


@pytest.mark.parametrize("method", ["linear", "left", "busy"])
@pytest.mark.parametrize("mark", [None, MARK])
def test_random_input_is_accepted(method: Method, mark: int | None) -> None:
    rng = np.random.default_rng(9)
    estimator = Rli(method, bytes_per_s=RATE, noise_ns=0, memory=1 << 20, buffer=64, seed=1, mark=mark)
    flows = measured(estimator, *(hostile(rng, 3000) for _ in range(20)))
    assert flows.packets == 60_000
    flows.report().to_json()
    flows.merged().table()


def test_any_split_gives_the_same_result() -> None:
    packets = seen(simulation(0.55))
    rng = np.random.default_rng(10)
    for estimator in (KNOWN, Rli(memory=16 << 20)):
        whole = measured(estimator, packets)
        edges = [0, *np.sort(rng.integers(0, len(packets), 30)), len(packets)]
        split = measured(estimator, *(packets[a:b] for a, b in itertools.pairwise(edges)))
        assert (whole.records == split.records).all()
        assert whole.counts == split.counts


def test_intervals_add_up() -> None:
    packets = seen(simulation(0.55))
    meter = KNOWN.meter("downstream")
    parts = []
    for part in (packets[:50_000], packets[50_000:]):
        meter.observe(part)
        parts.append(meter.cut(EVERYTHING))
    whole = measured(KNOWN, packets)
    assert sum(part.counts["regular"] for part in parts) == whole.counts["regular"]
    assert sum(part.sum_ns for part in parts) == pytest.approx(whole.sum_ns, rel=1e-3)
    assert sum(part.counts["accepted"] for part in parts) == whole.counts["accepted"]


def test_it_runs_like_every_estimator() -> None:
    packets = seen(simulation(0.55))
    reports = list(wirelag.run(KNOWN, {"downstream": [packets[:70_000], packets[70_000:]]}, 10**8))
    assert 10 <= len(reports) <= 12
    assert sum(report.packets for report in reports) == len(packets)
    assert all(report.mean is not None and report.interval for report in reports)


def test_empty_input_gives_an_empty_result() -> None:
    report = measured(Rli(), PacketBatch.empty()).report()
    assert report.samples == 0
    assert report.mean is None
    assert report.reason


# ---- references from captures of both sides ----


def test_packets_that_both_sides_captured_are_references() -> None:
    sim = simulation(0.7)
    r = sim.receiver()
    packets = seen(sim)
    regular = np.flatnonzero(packets.kind != Kind.STAMP)
    packets, sent = packets[regular], r.sent_ns[regular]
    rows = np.arange(0, len(packets), 20)
    meter: RliMeter = replace(KNOWN, method="linear").meter("downstream")
    half = len(packets) // 2
    for start, end in ((0, half), (half, len(packets))):
        mine = rows[(rows >= start) & (rows < end)]
        meter.observe_with(packets[start:end], mine - start, sent[mine])
    flows = meter.cut(EVERYTHING)
    assert flows.counts["accepted"] == len(rows)
    assert flows.counts["regular"] == len(packets) - len(rows)
    assert median_error(sim, flows) < 0.25


def test_endpoints_are_those_of_the_first_packet() -> None:
    packets = seen(simulation(0.55))
    packets.src[:, 1] = 0xFFFF00000000 + packets.flow_key % np.uint64(1 << 32)
    packets.src_port[:] = (packets.flow_key % np.uint64(65521)).astype(np.uint16)
    flows = measured(replace(KNOWN, memory=64 << 10), packets)
    for row in range(0, len(flows), 500):
        key = int(flows.column("key")[row])
        src, port, *_ = flows.ends(row)
        address = key % (1 << 32)
        assert src == ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))
        assert port == key % 65521


# ---- references with a mark ----


@pytest.mark.parametrize(("length", "captured", "padded"), [(64, 64, True), (44, 44, False), (44, 14, False)])
def test_marked_references_equal_those_on_their_own_port(length: int, captured: int, padded: bool) -> None:
    sim = simulation(0.55)
    expected = measured(KNOWN, seen(sim, padded))
    flows = measured(MARKED, marked(seen(sim, padded=True), length, captured))
    assert flows.counts == expected.counts
    assert same(flows, expected)
    assert flows.counts["accepted"] > 1000


def test_with_a_mark_other_packets_are_not_references() -> None:
    packets = seen(simulation(0.55))
    for estimator, batch in (
        (MARKED, packets),
        (replace(MARKED, mark=10), marked(seen(simulation(0.55), padded=True))),
    ):
        flows = measured(estimator, batch)
        assert flows.counts["accepted"] == flows.timed == 0
        assert flows.counts["regular"] == len(packets)


def test_truncated_marked_references_are_counted() -> None:
    packets = marked(seen(simulation(0.55), padded=True), captured=13)
    flows = measured(replace(MARKED, stream=STREAM), packets)
    assert flows.counts["accepted"] == 0
    assert flows.counts["rejected_size"] + flows.counts["rejected_malformed"] == (packets.protocol == 17).sum()


def test_marked_packets_that_are_not_references_stay_in_their_flows() -> None:
    packets = marked(seen(simulation(0.55), padded=True))
    expected = measured(MARKED, packets)
    others = np.flatnonzero(packets.protocol != 17)[1000::7]
    packets.protocol[others], packets.traffic_class[others] = 17, MARK << 2
    packets.payload_length[others] = packets.captured_length[others] = 30
    flows = measured(MARKED, packets)
    assert flows.counts["rejected_foreign"] == len(others)
    assert flows.counts["accepted"] == expected.counts["accepted"]
    names = [at for name, at in COLUMN.items() if name != "ports"]  # ports include the protocol of the first packet
    assert (flows.merged().records[:, names] == expected.merged().records[:, names]).all()


def test_marked_packets_of_the_stream_are_in_no_flow() -> None:
    """A packet that is not STAMP, by its size or its time, only occupies the link."""
    packets = marked(seen(simulation(0.55), padded=True))
    expected = measured(MARKED, packets)
    others = np.flatnonzero(packets.protocol != 17)[1000::7]
    packets.protocol[others], packets.traffic_class[others], packets.flow_key[others] = 17, MARK << 2, STREAM
    packets.payload_length[others] = np.where(np.arange(len(others)) % 2, 30, PAYLOAD_BYTES)
    flows = measured(MARKED, packets)
    assert flows.counts["rejected_size"] == len(others) // 2
    assert flows.counts["rejected_malformed"] == len(others) - len(others) // 2
    assert flows.counts["accepted"] == expected.counts["accepted"]
    assert flows.counts["regular"] == expected.counts["regular"] - len(others)
    assert STREAM not in flows.column("key")


def test_marked_references_of_a_capture(tmp_path: Path) -> None:
    """The bytes of a file, split into many batches."""
    answers = []
    sim = run(QueueScenario(0.55, seed=3, seconds=0.3))
    for mark in (None, MARK):
        path = tmp_path / f"{mark}.pcap"
        with CaptureWriter(str(path), 128) as writer:
            for frames in downstream_frames(sim):
                at = frames.offset[frames.buffer[frames.offset + 23] == 17]
                if mark is not None:
                    frames.buffer[at + 15], frames.buffer[at + 36] = mark << 2, 77
                writer.write(frames.time_ns, frames.buffer, frames.offset, frames.captured, frames.wire)
        answers.append(measured(replace(KNOWN, mark=mark), *wirelag.read(str(path))))
    plain, by_mark = answers
    assert plain.counts == by_mark.counts
    assert same(plain, by_mark)
    assert plain.counts["previous_used"] > 0


def test_a_mark_is_a_dscp() -> None:
    with pytest.raises(ValueError, match="0 to 63"):
        Rli(mark=64)
