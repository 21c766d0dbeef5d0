"""One contract for all estimators: any split gives the same result, memory is bounded, the input is not changed."""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wirelag
from tests.support.effort import examples
from tests.support.simulated_captures import write_simulation
from wirelag.capture.writer import CaptureWriter
from wirelag.estimators.finecomb import Finecomb
from wirelag.estimators.fridge import Fridge
from wirelag.estimators.join import Join
from wirelag.estimators.lda import Lda
from wirelag.estimators.match import Match
from wirelag.estimators.protocol import Estimator
from wirelag.estimators.rda import Rda
from wirelag.estimators.rli import FED, Rli
from wirelag.packets.batch import COLUMNS, PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.stamp import PORT, STANDARD_BYTES
from wirelag.sim import Scenario, simulate
from wirelag.sim.queue import QueueScenario, run
from wirelag.sim.queue_frames import downstream_frames
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.flows import COLUMN, Flows
from wirelag.synopses.samples import Samples
from wirelag.twopoint.spans import spans_between

ESTIMATORS: dict[str, Callable[[], Estimator[Samples]]] = {
    "match": Match,
    "match first copies": lambda: Match(first_copy=True),
    "match timestamps": lambda: Match(("tcp-timestamps",)),
    "match in little memory": lambda: Match(memory=64 << 10),
    "fridge": Fridge,
    "fridge by hand": lambda: Fridge(slots=(256, 64), probabilities=(0.5, 0.125)),
    "fridge uncorrected": lambda: Fridge(slots=(256,), probabilities=(1.0,), variant="overwrite"),
}
one_of_each = pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)


@pytest.fixture(scope="module")
def packets(tmp_path_factory: pytest.TempPathFactory) -> PacketBatch:
    path = tmp_path_factory.mktemp("contract") / "capture.pcap"
    write_simulation(simulate(Scenario(packets=6_000, seed=2, loss=0.02, reorder=0.02, duplicate=0.02)), path)
    return PacketBatch.concatenate(list(wirelag.read(str(path))))


def answers(make: Callable[[], Estimator[Samples]], parts: list[PacketBatch], interval_ns: int | None) -> list[dict]:
    return [report.to_json() for report in wirelag.run(make(), {"tap": parts}, interval_ns, Grouping("server"))]


@pytest.mark.every(2)
@one_of_each
@examples(8)
@given(cuts=st.lists(st.integers(0, 6_000), max_size=12), interval_ns=st.sampled_from([None, 10**9, 7 * 10**9]))
def test_any_split_gives_the_same_result(
    packets: PacketBatch, make: Callable[[], Estimator[Samples]], cuts: list[int], interval_ns: int | None
) -> None:
    edges = [0, *sorted(cuts), len(packets)]
    parts = [packets[start:end] for start, end in itertools.pairwise(edges)]
    assert answers(make, parts, interval_ns) == answers(make, [packets], interval_ns)


@pytest.mark.every(2)
@one_of_each
def test_the_input_is_not_changed(packets: PacketBatch, make: Callable[[], Estimator[Samples]]) -> None:
    before = {name: getattr(packets, name).copy() for name, _, _ in COLUMNS}
    answers(make, [packets], 10**9)
    for name, column in before.items():
        assert (getattr(packets, name) == column).all(), name


@one_of_each
def test_empty_input_gives_an_empty_result(make: Callable[[], Estimator[Samples]]) -> None:
    (answer,) = answers(make, [PacketBatch.empty()], None)
    assert answer["samples"] == 0
    assert answer["mean"] is None
    assert answer["reason"]


def hostile(rng: np.random.Generator, rows: int) -> PacketBatch:
    """Columns of random values, times that jump, few or many flow keys."""
    columns = {}
    for name, dtype, width in COLUMNS:
        limits = np.iinfo(dtype)
        shape = (rows, width) if width > 1 else rows
        columns[name] = rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    columns["kind"] %= np.uint8(10)
    columns["time_ns"] >>= 8
    columns["flow_key"][::2] %= np.uint64(5)
    return PacketBatch(columns)


@one_of_each
def test_random_input_gives_no_negative_delay(make: Callable[[], Estimator[Samples]]) -> None:
    rng = np.random.default_rng(7)
    reports = list(wirelag.run(make(), {"tap": (hostile(rng, 4_000) for _ in range(10))}))
    assert all(report.min is None or report.min >= 0 for report in reports)
    assert sum(report.packets for report in reports) == 40_000


def resident_kb() -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])


@pytest.mark.every(2)
@one_of_each
def test_memory_does_not_grow_with_the_input(make: Callable[[], Estimator[Samples]]) -> None:
    """After the first quarter of an endless stream of new connections memory stays constant."""
    rng = np.random.default_rng(8)
    used = []

    def stream() -> Iterator[PacketBatch]:
        for i in range(200):
            yield hostile(rng, 8_000)
            if i % 50 == 49:
                used.append(resident_kb())

    small = replace(make(), memory=min(make().memory, 8 << 20))  # type: ignore[attr-defined,type-var]
    list(wirelag.run(small, {"tap": stream()}))
    assert used[-1] - used[0] < 12 << 10  # kB: filled tables, and other memory of the process


@one_of_each
def test_merged_synopses_equal_a_single_one(packets: PacketBatch, make: Callable[[], Estimator[Samples]]) -> None:
    """In any order: merging is associative, commutative and loses nothing."""
    from wirelag.measure.loop import cut

    parts = [part for _, (part,) in cut(make(), {"tap": [packets]}, 5 * 10**9)]
    forward, backward = Samples(), Samples()
    for part in parts:
        forward.merge(part)
    for part in reversed(parts):
        backward.merge(part)
    assert forward.report("x", "round_trip") == backward.report("x", "round_trip")
    assert forward.packets == len(packets)


# ---- two points ----

Between = Join | Lda | Finecomb | Rda

BETWEEN: dict[str, Between] = {
    "join": Join(),
    "join in little memory": Join(memory=16 << 10),
    "lda": Lda(),
    "lda collapsed": Lda(128, (0, 2), "collapse", tail=50, seed=1),
    "finecomb": Finecomb(),
    "finecomb by hand": Finecomb(64, 2, 32, "collapse", tail=50),
    "rda": Rda(),
    "rda in little memory": Rda(memory=16 << 10, tail=20),
    "rda as in the paper": Rda(banks=2, buckets=600, check=False, cache_assisted=False),
    "rda without a tail": Rda(banks=4, tail=0),
    "rda rateless": Rda(rateless=True, rows=64),
}
each_between = pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
Sources = dict[str, list[PacketBatch]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    paths = [tmp_path_factory.mktemp("between") / name for name in ("upstream.pcap", "downstream.pcap")]
    scenario = Scenario(
        packets=3_000, seed=3, points=2, loss=0.02, reorder=0.02, duplicate=0.02, duration_ns=12 * 10**9
    )
    write_simulation(simulate(scenario), *paths)
    return {path.stem: [PacketBatch.concatenate(list(wirelag.read(str(path))))] for path in paths}


def answers_between(between: Between, sources: Sources, interval_ns: int | None) -> list[dict]:
    return [report.to_json() for report in wirelag.run(between, sources, interval_ns)]


@each_between
@examples(8)
@given(
    cuts=st.tuples(*[st.lists(st.integers(0, 3_000), max_size=8)] * 2),
    interval_ns=st.sampled_from([None, 10**9, 5 * 10**9]),
)
def test_any_split_of_two_points_gives_the_same_result(
    both: Sources, between: Between, cuts: tuple[list[int], list[int]], interval_ns: int | None
) -> None:
    parts = {}
    for (point, (packets,)), at in zip(both.items(), cuts, strict=True):
        parts[point] = [packets[start:end] for start, end in itertools.pairwise([0, *sorted(at), len(packets)])]
    answers = answers_between(between, parts, interval_ns)
    assert answers == answers_between(between, both, interval_ns)
    assert len(answers) == 1 or interval_ns is not None


@each_between
@pytest.mark.parametrize("interval_ns", [None, 10**9])
def test_the_input_of_two_points_is_not_changed(both: Sources, between: Between, interval_ns: int | None) -> None:
    columns = [(packets, name) for (packets,) in both.values() for name, _, _ in COLUMNS]
    before = [getattr(packets, name).copy() for packets, name in columns]
    answers_between(between, both, interval_ns)
    for (packets, name), column in zip(columns, before, strict=True):
        assert (getattr(packets, name) == column).all(), name


@each_between
def test_empty_input_of_two_points_gives_an_empty_result(both: Sources, between: Between) -> None:
    nothing = [PacketBatch.empty()]
    for up, down in ((nothing, nothing), (both["upstream"], nothing), (nothing, both["downstream"]), ([], [])):
        (answer,) = answers_between(between, {"upstream": up, "downstream": down}, None)
        assert (answer["samples"], answer["mean"], answer["std"]) == (0, None, None)
        assert answer["reason"]
        assert (answer["sent"], answer["received"]) == (sum(map(len, up)), sum(map(len, down)))
        assert answer["start"] <= answer["end"]


@each_between
def test_an_interval_missed_by_one_point_is_reported(both: Sources, between: Between) -> None:
    for point in both:
        answers = answers_between(between, {**both, point: []}, 10**9)
        assert sum(answer["packets"] for answer in answers) == sum(
            len(p) for name in both if name != point for p in both[name]
        )
        assert all(answer["reason"] for answer in answers)


def hostile_between(rng: np.random.Generator, rows: int, ids: int, span_ns: int) -> PacketBatch:
    """Times anywhere in 64 bits, or close together; few or many ids."""
    packets = hostile(rng, rows)
    packets.packet_id[:] = rng.integers(0, ids, rows, np.uint64, endpoint=True)
    packets.time_ns[:] = rng.integers(-span_ns, span_ns, rows, np.int64)
    packets.time_ns[:3] = -(2**63), 2**63 - 1, -(2**63)
    return packets


@each_between
@pytest.mark.parametrize("span_ns", [2**63 - 1, 10**10])
@pytest.mark.parametrize("ids", [0, 20, 2_000, 2**64 - 1])
@pytest.mark.every(4)
def test_two_points_accept_random_input(between: Between, ids: int, span_ns: int) -> None:
    rng = np.random.default_rng(ids % 1000 + 9)
    for interval_ns in (None, 10**9):
        sources = {point: [hostile_between(rng, 600, ids, span_ns) for _ in range(2)] for point in between.points}
        answers = answers_between(between, sources, interval_ns)
        assert sum(answer["packets"] for answer in answers) == 2_400
        assert json.loads(json.dumps(answers, allow_nan=False)) == answers
        for answer in answers:
            counts = [answer[name] for name in ("samples", "lost", "only_upstream", "only_downstream", "reordered")]
            assert all(count is None or count >= 0 for count in counts)
            assert answer["samples"] <= min(answer["sent"], 2_400)


@pytest.mark.every(2)
@each_between
def test_memory_of_two_points_does_not_grow_with_the_input(between: Between) -> None:
    rng = np.random.default_rng(8)
    used = []

    def stream() -> Iterator[PacketBatch]:
        for i in range(80):
            yield hostile_between(rng, 8_000, 2**64 - 1, 10**10)
            if i % 20 == 19:
                used.append(resident_kb())

    small = replace(between, memory=2 << 20) if isinstance(between, (Join, Rda)) else between
    list(wirelag.run(small, {"upstream": stream(), "downstream": stream()}))
    assert len(used) == 8
    assert used[-1] - used[0] < 12 << 10  # kB: 80 batches are 10 MB of ids and times at each point, and 1 MB is kept


@each_between
def test_crossings_add_up_in_any_order(both: Sources, between: Between) -> None:
    parts = [span.whole for span in spans_between(between, both, 10**9, None)]
    forward, backward = Crossing(), Crossing()
    for part in parts:
        forward.add(part)
    for part in reversed(parts):
        backward.add(part)
    names = (
        "sent",
        "received",
        "used",
        "sum_ns",
        "only_upstream",
        "only_downstream",
        "duplicated",
        "ambiguous",
        "lost",
    )
    assert [getattr(forward, name) for name in names] == [getattr(backward, name) for name in names]
    assert (forward.min_ns, forward.max_ns) == (backward.min_ns, backward.max_ns)
    assert forward.mean_ns == pytest.approx(backward.mean_ns, rel=1e-12)
    assert forward.std_ns == pytest.approx(backward.std_ns, rel=1e-9)
    assert (forward.sent, forward.received) == (len(both["upstream"][0]), len(both["downstream"][0]))


# ---- references among the packets ----

KNOWN = Rli(bytes_per_s=250_000_000, noise_ns=0.0, memory=4 << 20)
BEHIND: dict[str, Rli] = {
    "rli": Rli(memory=4 << 20),
    "rli with a known queue": KNOWN,
    "rli linear": replace(KNOWN, method="linear"),
    "rli left": replace(KNOWN, method="left"),
    "rli in little memory": replace(KNOWN, memory=4 << 10, buffer=16, most_flows=500),
    "rli sample and hold": replace(KNOWN, hold=0.1, inactive_ns=10**7, active_ns=3 * 10**7, seed=1),
}
each_behind = pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)


@pytest.fixture(scope="module")
def arrived(tmp_path_factory: pytest.TempPathFactory) -> PacketBatch:
    path = tmp_path_factory.mktemp("behind") / "behind.pcap"
    with CaptureWriter(str(path), 128) as writer:
        for frames in downstream_frames(run(QueueScenario(0.55, seed=3, seconds=0.1))):
            writer.write(frames.time_ns, frames.buffer, frames.offset, frames.captured, frames.wire)
    return PacketBatch.concatenate(list(wirelag.read(str(path))))


def answers_behind(behind: Rli, parts: list[PacketBatch], interval_ns: int | None) -> list[dict]:
    return [report.to_json() for report in wirelag.run(behind, {"downstream": parts}, interval_ns)]


def flows_behind(behind: Rli, packets: PacketBatch, interval_ns: int | None) -> list[Flows]:
    from wirelag.measure.loop import cut

    return [part for _, (part,) in cut(behind, {"downstream": [packets]}, interval_ns)]


@each_behind
@examples(8)
@given(cuts=st.lists(st.integers(0, 20_000), max_size=12), interval_ns=st.sampled_from([None, 10**7, 7 * 10**7]))
def test_any_split_with_references_gives_the_same_result(
    arrived: PacketBatch, behind: Rli, cuts: list[int], interval_ns: int | None
) -> None:
    edges = [0, *sorted(min(cut, len(arrived)) for cut in cuts), len(arrived)]
    parts = [arrived[start:end] for start, end in itertools.pairwise(edges)]
    answers = answers_behind(behind, parts, interval_ns)
    assert answers == answers_behind(behind, [arrived], interval_ns)
    assert sum(answer["samples"] for answer in answers) > 0.8 * len(arrived)  # one in eleven may be a reference


@each_behind
def test_the_input_with_references_is_not_changed(arrived: PacketBatch, behind: Rli) -> None:
    before = {name: getattr(arrived, name).copy() for name, _, _ in COLUMNS}
    answers_behind(behind, [arrived], 10**7)
    for name, column in before.items():
        assert (getattr(arrived, name) == column).all(), name


@each_behind
def test_empty_input_with_references_gives_an_empty_result(behind: Rli) -> None:
    for parts in ([], [PacketBatch.empty()]):
        (answer,) = answers_behind(behind, parts, None)
        assert (answer["samples"], answer["mean"], answer["std"]) == (0, None, None)
        assert answer["reason"]


def hostile_behind(rng: np.random.Generator, rows: int, span_ns: int) -> PacketBatch:
    """Random rows, many on STAMP's port, at times anywhere or close together."""
    packets = hostile(rng, rows)
    packets.time_ns[:] = rng.integers(-span_ns // 100, span_ns, rows, np.int64)
    packets.kind[::5], packets.dst_port[::5], packets.payload_length[::5] = 9, PORT, STANDARD_BYTES
    packets.flow_key[::5] = 3
    packets.transaction[::5] = packets.time_ns[::5].view(np.uint64) // 10**9 << np.uint64(32)
    packets.message[::5] = 0x40
    packets.seq[::5] = np.arange(len(packets.seq[::5]))
    return packets


@each_behind
@pytest.mark.parametrize("span_ns", [2**62, 10**10, 1_000])
def test_references_accept_random_input(behind: Rli, span_ns: int) -> None:
    rng = np.random.default_rng(9)
    for interval_ns in (None, 10**9) if span_ns < 2**62 else (None,):
        answers = answers_behind(behind, [hostile_behind(rng, 3_000, span_ns) for _ in range(5)], interval_ns)
        assert sum(answer["packets"] for answer in answers) == 15_000
        assert json.loads(json.dumps(answers, allow_nan=False)) == answers
        assert all(count >= 0 for answer in answers for count in answer["counts"].values())
        assert sum(answer["references"]["accepted"] for answer in answers) > 0


@pytest.mark.every(2)
@each_behind
def test_memory_with_references_does_not_grow_with_the_input(behind: Rli) -> None:
    rng = np.random.default_rng(8)
    used = []

    def stream() -> Iterator[PacketBatch]:
        for i in range(80):
            yield hostile_behind(rng, 8_000, 10**10)
            if i % 20 == 19:
                used.append(resident_kb())

    list(wirelag.run(replace(behind, memory=1 << 20, most_flows=1 << 12), {"downstream": stream()}))
    assert used[-1] - used[0] < 12 << 10  # kB: records of the 500,000 flows that left would take 68 MB


@each_behind
def test_adding_flows_loses_nothing(arrived: PacketBatch, behind: Rli) -> None:
    """In any order, except for values that only the first or the last has: addresses, reasons, the queue."""
    one, two, three = flows_behind(behind, arrived, 4 * 10**7)[:3]
    forward, backward = (one + two) + three, three + (two + one)
    names = ("key", "first_ns", "last_ns", "packets", "bytes", "timed", "sum_ns", "squares", "squares_high", "brackets")
    columns = [COLUMN[name] for name in names]
    assert (forward.records[:, columns] == backward.records[:, columns]).all()
    assert forward.counts == backward.counts
    for name in ("packets", "bytes", "timed", "sum_ns", "squares"):
        parts = [getattr(part, name) for part in (one, two, three)]
        assert getattr(forward, name) == getattr(backward, name) == sum(parts)


def test_more_flows_than_one_read_takes() -> None:
    """A table is emptied in parts: each flow is in one part, with its addresses, and the excess is counted."""
    rows = 3 * FED
    columns = {name: np.zeros((rows, width) if width > 1 else rows, dtype) for name, dtype, width in COLUMNS}
    columns["flow_key"] += np.arange(2, 2 * rows + 2, 2, dtype=np.uint64)
    columns["src"][:, 1], columns["dst"][:, 0] = columns["flow_key"], columns["flow_key"] + np.uint64(1)
    columns["src_port"][:], columns["dst_port"][:], columns["protocol"][:] = 7, 8, 9
    roomy = replace(KNOWN, memory=rows * 128 * 4)
    (whole,), (short,) = (
        flows_behind(replace(roomy, most_flows=most), PacketBatch(columns), None) for most in (rows, FED + 5)
    )
    records = whole.merged().records
    assert (records[:, COLUMN["key"]] == columns["flow_key"]).all()
    assert (records[:, COLUMN["src_low"]] == columns["flow_key"]).all()
    assert (records[:, COLUMN["dst_high"]] == columns["flow_key"] + np.uint64(1)).all()
    assert (records[:, COLUMN["ports"]] == (7 << 32 | 8 << 16 | 9)).all()
    assert (short.records == whole.records[: FED + 5]).all()
    assert short.counts["unlisted"] == rows - FED - 5
