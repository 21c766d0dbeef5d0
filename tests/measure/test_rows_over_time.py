"""Rows over time: one that is short for how slowly delays change has no 95% interval, and says why."""

from pathlib import Path

import numpy as np
import pytest

import wirelag
from tests.support.pings import write_pings

WHY = "delays of the whole change too slowly for so short a part"


def test_a_short_row_of_slowly_changing_delays_has_no_interval(tmp_path: Path) -> None:
    """The level is 10 or 30 ms for 2 s each, and every delay has noise: a row of 1 s looks steady."""
    path, rng, count = tmp_path / "slow.pcap", np.random.default_rng(3), 12_000
    sent_ns = 10**18 + np.sort(rng.integers(0, 60 * 10**9, count))
    level_ns = np.where((sent_ns // (2 * 10**9)) % 2, 30e6, 10e6)
    write_pings(path, np.full(count, 0x20000000), sent_ns, (level_ns + rng.exponential(2e6, count)).astype(np.int64))
    short, long = (wirelag.rtt(path, interval=length).to_dict() for length in ("1s", "30s"))
    rows = [row for row in short["intervals"] if row["samples"] > 100]
    assert len(rows) > 50
    for row in rows:
        server = row["legs"]["server"]
        assert row["ci95"] == server["ci95"] == {}
        assert row["no_interval"] == server["no_interval"]
        assert row["no_interval"].startswith((WHY, "delays change too slowly"))
    assert sum(row["no_interval"].startswith(WHY) for row in rows) > 30
    assert short["ci95"] == long["ci95"]


def test_rows_of_steady_delays_keep_their_intervals(tmp_path: Path) -> None:
    path, rng, count = tmp_path / "steady.pcap", np.random.default_rng(4), 12_000
    sent_ns = 10**18 + np.sort(rng.integers(0, 60 * 10**9, count))
    write_pings(path, np.full(count, 0x20000000), sent_ns, (10e6 + rng.exponential(2e6, count)).astype(np.int64))
    rows = wirelag.rtt(path, interval="1s").to_dict()["intervals"]
    told = [row["ci95"]["mean"] for row in rows if "mean" in row["ci95"]]
    assert len(told) > 0.9 * len(rows)
    assert np.mean([low <= 12e-3 <= high for low, high in told]) > 0.85


@pytest.mark.parametrize("leg", ["server", "mixed"])
def test_the_only_row_is_the_whole(tmp_path: Path, leg: str) -> None:
    """Delays of 10 or 14 ms for a random while each: the whole doubts its parts, not itself."""
    path, rng, count = tmp_path / "changing.pcap", np.random.default_rng(0), 3_000
    sent_ns = 10**18 + np.sort(rng.integers(0, 20 * 10**9, count))
    slow = np.searchsorted(10**18 + np.cumsum(rng.exponential(3e8, 100)), sent_ns) % 2
    delays_ns = (10e6 + 4e6 * slow + rng.exponential(4e6, count)).astype(np.int64)
    write_pings(path, np.full(count, 0x20000000), sent_ns, delays_ns)
    found = wirelag.rtt(path, interval="1h", leg=leg).to_dict()
    (row,) = found["intervals"]
    assert found["ci95"]
    assert (row["ci95"], row["legs"], row["no_interval"]) == (found["ci95"], found["legs"], found["no_interval"])
    halves = wirelag.rtt(path, interval="10s", leg=leg).to_dict()["intervals"]
    widths = [np.ptp(half["ci95"]["mean"]) for half in halves if half["samples"] > 1_000]
    assert min(widths) > 1.2 * np.ptp(found["ci95"]["mean"])


def test_the_only_row_of_responses_is_the_whole(shared_data: Path) -> None:
    capture = shared_data / "rtt" / "zeek" / "1000-requests-one-dropped-response.pcap.gz"
    found = wirelag.response(capture, interval="1h").to_dict()
    (row,) = found["intervals"]
    assert found["ci95"]
    assert row["ci95"] == found["ci95"]
