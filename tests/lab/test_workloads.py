"""The lab's workloads: sizes of flows and when they begin, and shares of a processor that change."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from lab import quota
from lab.cross import CrossTraffic
from lab.processes import PATIENCE_S, Process, owner_name
from lab.workloads import ALIBABA_2018_CPU, DCTCP_BYTES, GOOGLE_2019_CPU, drawn_sizes, mean_size
from tests.support.in_lab import IN_LAB

COUNT = 100_000


def test_sizes_follow_the_table() -> None:
    sizes = drawn_sizes(np.random.default_rng(1), COUNT)
    for bytes_, share in DCTCP_BYTES:
        assert abs(float(np.mean(sizes <= bytes_)) - share) <= 4 * (share * (1 - share) / COUNT) ** 0.5 + 1e-4
    assert abs(sizes.mean() - mean_size()) < 4 * sizes.std() / COUNT**0.5


def test_flows_begin_as_a_poisson_process() -> None:
    plan = CrossTraffic(100.0).plan(2000.0, 1)
    expected = 2000 * 100e6 / 8 / mean_size()
    assert abs(len(plan) - expected) < 4 * expected**0.5
    begins = np.array([at_s for at_s, _ in plan])
    assert (np.diff(begins) >= 0).all()
    counts = np.bincount(begins.astype(np.int64), minlength=2000)
    assert abs(counts.var() / counts.mean() - 1) < 4 * (2 / 2000) ** 0.5  # at equal distances: far below 1
    assert plan == CrossTraffic(100.0).plan(2000.0, 1) != CrossTraffic(100.0).plan(2000.0, 2)


@pytest.mark.parametrize("series", [GOOGLE_2019_CPU, ALIBABA_2018_CPU])
def test_a_series_lasts_as_long_as_the_experiment(series: tuple[float, ...]) -> None:
    assert len(series) == 40
    assert all(0 < share < 1 for share in series)


@IN_LAB
def test_a_quota_follows_its_series(tmp_path: Path) -> None:
    """Each share in turn, and the first again; afterwards the group is gone."""
    process = Process(["sleep", "60"], tmp_path / "sleep.txt")
    os.sched_setscheduler(process.pid, os.SCHED_RR, os.sched_param(10))
    group = quota._root() / f"{quota.PREFIX}{owner_name()}"
    seen: list[int] = []
    try:
        with quota.cpu_quota(process.pid, (0.5, 0.25), each_s=0.02):
            assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER
            limit = next(group / name for name in ("cpu.max", "cpu.cfs_quota_us") if (group / name).exists())
            deadline = time.monotonic() + PATIENCE_S
            while len(seen) < 3 and time.monotonic() < deadline:
                now = int(limit.read_text().split()[0])
                seen += [now] if seen[-1:] != [now] else []
    finally:
        process.stop()
    assert {*seen} == {quota.PERIOD_US // 2, quota.PERIOD_US // 4}
    assert len(seen) == 3
    assert not group.exists()
