"""Rows over time: one that is short for how slowly delays change has no 95% interval, and says why."""

from pathlib import Path

import numpy as np

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
