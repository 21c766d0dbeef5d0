"""One contract for all estimators: any split gives the same answer, memory is bounded, the input stays as it is."""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wirelag
from simulated import write_simulation
from wirelag.estimator import Estimator
from wirelag.estimators.fridge import Fridge
from wirelag.estimators.match import Match
from wirelag.grouping import Grouping
from wirelag.packets import COLUMNS, PacketBatch
from wirelag.samples import Samples
from wirelag.sim import Scenario, simulate

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
    return [report.to_json() for report in wirelag.measure(make(), {"tap": parts}, interval_ns, Grouping("server"))]


@one_of_each
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(0, 6_000), max_size=12), interval_ns=st.sampled_from([None, 10**9, 7 * 10**9]))
def test_any_split_gives_the_same_answer(
    packets: PacketBatch, make: Callable[[], Estimator[Samples]], cuts: list[int], interval_ns: int | None
) -> None:
    edges = [0, *sorted(cuts), len(packets)]
    parts = [packets[start:end] for start, end in itertools.pairwise(edges)]
    assert answers(make, parts, interval_ns) == answers(make, [packets], interval_ns)


@one_of_each
def test_the_input_stays_as_it_is(packets: PacketBatch, make: Callable[[], Estimator[Samples]]) -> None:
    before = {name: getattr(packets, name).copy() for name, _, _ in COLUMNS}
    answers(make, [packets], 10**9)
    for name, column in before.items():
        assert (getattr(packets, name) == column).all(), name


@one_of_each
def test_nothing_gives_an_answer_that_says_so(make: Callable[[], Estimator[Samples]]) -> None:
    (answer,) = answers(make, [PacketBatch.empty()], None)
    assert answer["samples"] == 0
    assert answer["mean"] is None
    assert answer["reason"]


def hostile(rng: np.random.Generator, rows: int) -> PacketBatch:
    """Columns full of anything, times that jump, few flow keys and many."""
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
def test_anything_is_survived_and_no_delay_is_negative(make: Callable[[], Estimator[Samples]]) -> None:
    rng = np.random.default_rng(7)
    reports = list(wirelag.measure(make(), {"tap": (hostile(rng, 4_000) for _ in range(10))}))
    assert all(report.min is None or report.min >= 0 for report in reports)
    assert sum(report.packets for report in reports) == 40_000


def resident_kb() -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])


@one_of_each
def test_memory_does_not_grow_with_what_arrives(make: Callable[[], Estimator[Samples]]) -> None:
    """After the first quarter of an endless stream of new connections nothing more is taken."""
    rng = np.random.default_rng(8)
    used = []

    def stream() -> Iterator[PacketBatch]:
        for i in range(200):
            yield hostile(rng, 8_000)
            if i % 50 == 49:
                used.append(resident_kb())

    small = replace(make(), memory=min(make().memory, 8 << 20))  # type: ignore[attr-defined,type-var]
    list(wirelag.measure(small, {"tap": stream()}))
    assert used[-1] - used[0] < 12 << 10  # kB: the memory there is to fill, and what the process took meanwhile


@one_of_each
def test_merging_synopses_is_measuring_in_one(packets: PacketBatch, make: Callable[[], Estimator[Samples]]) -> None:
    """In any order: merging is associative, commutative and loses nothing."""
    from wirelag.driver import cut

    parts = [part for _, (part,) in cut(make(), {"tap": [packets]}, 5 * 10**9)]
    forward, backward = Samples(), Samples()
    for part in parts:
        forward.merge(part)
    for part in reversed(parts):
        backward.merge(part)
    assert forward.report("x", "round_trip") == backward.report("x", "round_trip")
    assert forward.packets == len(packets)
