"""Fridges that several threads fill from a file: they find what the twin finds, packet by packet."""

from pathlib import Path

import numpy as np
import pytest

from tests.oracles import fridge as naive
from tests.support.captures import packets, pcap
from tests.support.simulated_captures import write_simulation
from wirelag.capture import undecoded
from wirelag.capture.pcap import CaptureFile
from wirelag.capture.undecoded import Undecoded
from wirelag.estimators.fridge import Fridge
from wirelag.estimators.matchers import matcher_bits
from wirelag.estimators.records import RecordsMeter
from wirelag.sim import Scenario, simulate
from wirelag.stats.distribution import Distribution
from wirelag.synopses.slowest import Slowest


@pytest.mark.parametrize("matchers", [("tcp", "dns"), ("flow-duration", "dns")], ids=",".join)
def test_threads_find_what_the_twin_finds(
    tmp_path: Path, matchers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More requests than numbers are kept for; each packet comes twice, so that half of them are repeated."""
    monkeypatch.setattr(undecoded, "BYTES_A_THREAD", 50_000)
    path, twice = tmp_path / "one.pcap", tmp_path / "twice.pcap"
    write_simulation(simulate(Scenario(packets=23_000, seed=3)), path)
    data = path.read_bytes()
    frames = [(one.time_ns, one.frame, one.wire_length) for one in packets(data) for _ in range(2)]
    twice.write_bytes(pcap(frames, magic=0xA1B23C4D))
    estimator = Fridge(matchers, slots=(32, 16, 2), probabilities=(0.5, 0.25, 0.125), seed=5)
    chosen = estimator.first()
    twin = naive.Fridge(matcher_bits(matchers), chosen.slots, chosen.probabilities, 5)
    found = [sample for batch in CaptureFile(str(twice)) for sample in twin.observe(batch)]
    expected = [Distribution(), Distribution()]
    for one in found:
        expected[one.leg].add(np.array([one.delay_ns]), np.array([one.weight]))
    assert twin.arrivals > 1 << 14 or matchers[0] != "tcp"
    for threads in (1, 2, 3):
        rows = estimator.rows_meter(threads)
        meter = RecordsMeter(rows, threads, Slowest(0))
        (whole,) = meter.intervals(Undecoded(CaptureFile(str(twice)), meter.finish, threads))
        got = rows.cut(whole)
        assert got.counts == {"requests": twin.arrivals, "backwards": twin.backwards, "too_long": twin.too_long}
        for leg, delays in enumerate(expected):
            assert np.array_equal(got.distribution(leg).weights, delays.weights)
            assert np.array_equal(got.distribution(leg).squares, delays.squares)
    assert len(found) > 50
