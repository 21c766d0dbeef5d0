"""Two points read in step: nothing is lost or reordered, and a stop leaves both at the same packet."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from wirelag.packets.batch import PacketBatch
from wirelag.twopoint.in_step import in_step

DELAY_NS = 700


def batches(times_ns: np.ndarray, sizes: list[int]) -> Iterator[PacketBatch]:
    edges = np.minimum(np.cumsum([0, *sizes]), len(times_ns))
    for start, end in pairwise(edges.tolist()):
        yield PacketBatch({"time_ns": times_ns[start:end]})


def read(times: dict[str, np.ndarray], sizes: dict[str, list[int]], every: int, **how: object) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {point: [] for point in times}
    steps = times["upstream"][::every], times["downstream"][::every]
    for point, batch in in_step({p: batches(times[p], sizes[p]) for p in times}, steps, **how):  # type: ignore[arg-type]
        found[point] += batch.time_ns.tolist()
    return found


@pytest.fixture
def times() -> dict[str, np.ndarray]:
    up = np.cumsum(np.random.default_rng(5).integers(1, 200, 5_000)).astype(np.int64)
    return {"upstream": up, "downstream": up + DELAY_NS}


@pytest.mark.parametrize("every", [1, 37, 4_000])
def test_all_packets_come_in_order(times: dict[str, np.ndarray], every: int) -> None:
    sizes = {"upstream": [0, 1, 900, 4_099], "downstream": [3_000, 7, 1_993]}
    assert read(times, sizes, every) == {point: times[point].tolist() for point in times}
    times["downstream"][100:200] = times["downstream"][100:200][::-1]  # times that go back keep their place
    assert read(times, sizes, every) == {point: times[point].tolist() for point in times}


@pytest.mark.parametrize("stopped", ["upstream", "downstream"])
def test_a_stop_leaves_both_at_the_same_packet(times: dict[str, np.ndarray], stopped: str) -> None:
    """Without steps a point would have thousands of packets more than the other."""
    sizes = {point: [250] * 20 for point in times}
    sizes[stopped] = [250] * 8  # ends before its end
    found = read(times, sizes, 10, whole=lambda: False)
    assert 1_900 <= len(found["upstream"]) <= 2_000
    assert [ns + DELAY_NS for ns in found["upstream"]] == found["downstream"]


def test_a_stop_before_the_first_step_leaves_nothing(times: dict[str, np.ndarray]) -> None:
    sizes: dict[str, list[int]] = {"upstream": [100], "downstream": []}
    assert read(times, sizes, 1, whole=lambda: False) == {"upstream": [], "downstream": []}


def test_points_without_common_packets_come_one_after_the_other(times: dict[str, np.ndarray]) -> None:
    sizes = {point: [5_000] for point in times}
    found = read(times | {"downstream": times["downstream"]}, sizes, 10**6)
    assert {point: len(ns) for point, ns in found.items()} == {"upstream": 5_000, "downstream": 5_000}
