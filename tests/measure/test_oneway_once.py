"""The join reads captures once where packets fit into memory; the answer is that of reading them twice."""

import numpy as np
import pytest

import wirelag
from tests.support.simulated_captures import write_simulation
from wirelag import _kernels
from wirelag.capture.files import Capture
from wirelag.capture.pcap import CaptureFile
from wirelag.packets.packet_id import PacketId
from wirelag.sim import Scenario, simulate
from wirelag.twopoint.sketch import Sighting

SCENARIOS = {
    "both ways": Scenario(packets=30_000, seed=1, points=2, loss=0.02, duplicate=0.01, reorder=0.01),
    "clock": Scenario(packets=30_000, seed=2, points=2, clock_offset_ns=2_000 * 10**9, clock_skew_ppm=50),
    "one way": Scenario(packets=30_000, seed=3, points=2, direction="client", loss=0.02),
}


@pytest.fixture(scope="module", params=SCENARIOS)
def points(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("once")
    write_simulation(simulate(SCENARIOS[request.param]), folder / "up.pcap", folder / "down.pcap")
    return str(folder / "up.pcap"), str(folder / "down.pcap")


@pytest.mark.parametrize("interval", [None, "700ms"])
def test_the_answer_is_that_of_reading_twice(points: tuple[str, str], interval: str | None) -> None:
    """With samples, endpoints are needed, and these are not kept."""
    read: list[Capture] = []

    def counting(capture: Capture) -> Capture:
        read.append(capture)
        return capture

    once = wirelag.oneway(*points, interval=interval, progress=counting, cores=1)
    assert len(read) == 2
    threads = wirelag.oneway(*points, interval=interval, cores=3)
    read.clear()
    twice = wirelag.oneway(*points, interval=interval, progress=counting, samples=True)
    assert len(read) == (4 if interval is None else 6)
    assert once.to_dict() == threads.to_dict() == twice.to_dict()
    assert once.slowest == twice.slowest


def sighting(path: str, keep: int) -> Sighting:
    """What is seen as it is decoded."""
    seen = Sighting(keep=keep)
    assert sum(CaptureFile(path, packet_id=PacketId(), into=seen)) == seen.packets
    seen.settle()
    return seen


def test_packets_are_seen_alike_as_they_are_decoded_and_in_batches(points: tuple[str, str]) -> None:
    decoded, batches = sighting(points[0], 1 << 20), Sighting(keep=1 << 20)
    assert sum(Capture([points[0]], packet_id=PacketId(), take=batches.observe)) == batches.packets
    batches.settle()
    for name in ("ids", "times_ns", "keys", "payloads", "numbers"):
        assert np.array_equal(getattr(decoded, name), getattr(batches, name)), name
    for name in ("packets", "span_ns", "level", "prefix_cut", "tunnelled", "shortened", "least_prefix", "whole"):
        assert getattr(decoded, name) == getattr(batches, name), name
    assert np.array_equal(decoded.pairs.keys, batches.pairs.keys)
    assert np.array_equal(decoded.pairs.addresses, batches.pairs.addresses)


def test_no_more_packets_are_kept_than_may_be(points: tuple[str, str]) -> None:
    packets = sighting(points[0], 0).packets
    assert not sighting(points[0], 0).whole
    assert not sighting(points[0], packets - 1).whole
    assert sighting(points[0], packets).whole


def test_nothing_is_kept_of_more_pairs_than_fit(points: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirelag.twopoint.sketch.MOST_PAIRS", 3)
    assert not sighting(points[0], 1 << 20).whole


def test_packets_are_taken_once() -> None:
    nothing = _kernels.Sighting(1, 0, 1, 1)
    courses = np.empty(0, np.uint8)
    assert [len(column) for column in nothing.take(courses, 1, 2, 0, 1)[:3]] == [0, 0, 0]
    with pytest.raises(ValueError, match="must be kept"):
        nothing.take(courses, 1, 2, 0, 1)
