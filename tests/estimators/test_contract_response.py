"""The contract of all estimators for those of response latency: pirate (every method) and pairs."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wirelag
from tests.support.effort import examples
from tests.support.places import DATA
from wirelag.estimators.pairs import Pairs
from wirelag.estimators.pirate import Pirate
from wirelag.packets.batch import COLUMNS, PacketBatch
from wirelag.packets.interval import Interval
from wirelag.packets.roles import Roles
from wirelag.synopses.epochs import METHODS

ALL: dict[str, Any] = {method: Pirate(method, memory=1 << 20) for method in METHODS} | {  # type: ignore[arg-type]
    "literal": Pirate("modes", literal=True, memory=1 << 20),
    "little memory": Pirate(memory=8 << 10),
    "few epochs": Pirate(most_epochs=3),
    "pairs": Pairs(memory=1 << 20),
    "pairs in little memory": Pairs(memory=8 << 10),
    "few pairs": Pairs(most=3),
}
each = pytest.mark.parametrize("estimator", ALL.values(), ids=ALL)


@pytest.fixture(scope="module")
def asked() -> PacketBatch:
    """Packets from clients to six servers without every eighth, to make holes."""
    packets = PacketBatch.concatenate(list(wirelag.read(str(DATA / "response.pcap.gz"))))
    packets = packets[np.flatnonzero(np.arange(len(packets)) % 8 > 0)]
    return packets[np.flatnonzero(Roles().from_client(packets))]


def synopsis(estimator: Any, parts: list[PacketBatch]) -> Any:
    meter = estimator.meter("tap")
    for part in parts:
        meter.observe(part)
    return meter.finish() if hasattr(meter, "finish") else meter.cut(Interval(0, 1))


@each
@examples(5)
@given(cuts=st.lists(st.integers(0, 20_000), max_size=6))
def test_any_split_gives_the_same_result(asked: PacketBatch, estimator: Any, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(asked)) for cut in cuts), len(asked)]
    parts = [asked[start:end] for start, end in itertools.pairwise(edges)]
    whole, split = synopsis(estimator, [asked]), synopsis(estimator, parts)
    assert whole.rows.tobytes() == split.rows.tobytes()
    assert whole.counts == split.counts
    assert whole.report().to_json() == split.report().to_json()


@each
def test_the_input_is_not_changed(asked: PacketBatch, estimator: Any) -> None:
    before = [np.array(getattr(asked, name)) for name, _, _ in COLUMNS]
    synopsis(estimator, [asked])
    for (name, _, _), column in zip(COLUMNS, before, strict=True):
        np.testing.assert_array_equal(getattr(asked, name), column)


@each
def test_empty_input_gives_an_empty_result(asked: PacketBatch, estimator: Any) -> None:
    for parts in ([], [asked[:0]]):
        report = synopsis(estimator, parts).report()
        assert (report.samples, report.mean) == (0, None)
        assert report.reason


@each
def test_random_input_is_accepted(asked: PacketBatch, estimator: Any) -> None:
    """Columns of random numbers: no fault, and no result that is negative or longer than the capture."""
    generator = np.random.default_rng(3)
    columns = {}
    for name, kind, width in COLUMNS:
        shape = (4_000, width) if width > 1 else 4_000
        high = min(np.iinfo(kind).max, 2**62)
        columns[name] = generator.integers(0, high, shape, kind, endpoint=True)
    columns["kind"] = generator.integers(0, 10, 4_000, np.uint8)
    columns["flow_key"] = generator.integers(0, 8, 4_000, np.uint64)
    for times in (columns["time_ns"], np.sort(columns["time_ns"] % 10**10)):
        mean = synopsis(estimator, [PacketBatch(columns | {"time_ns": times})]).report().mean
        # Sorted, all times are within ten seconds; blind multiplies a gap by the requests in flight.
        longest_s = 64 * 10 if times[-1] < 10**10 and (np.diff(times) >= 0).all() else 64 * 2**40 / 1e9
        assert mean is None or 0 <= mean <= longest_s


@each
def test_memory_does_not_grow_with_the_input(asked: PacketBatch, estimator: Any) -> None:
    meter = estimator.meter("tap")
    meter.observe(asked)
    before = meter.memory
    crowd = asked[:]
    crowd.flow_key = np.arange(len(asked), dtype=np.uint64) << np.uint64(8)
    for _ in range(3):
        meter.observe(crowd)
    assert meter.memory == before <= estimator.memory * 1.3 + (1 << 16)
    found = meter.finish() if hasattr(meter, "finish") else meter.cut(Interval(0, 1))
    assert len(found) <= getattr(estimator, "most_epochs", getattr(estimator, "most", 0))
