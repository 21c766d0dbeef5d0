"""The clock of programs in the kernel, from this side."""

import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from wirelag.io import ktime

SECOND_NS = 10**9


def test_it_is_the_real_time_and_a_difference_that_stays() -> None:
    variable = np.zeros(1, np.int64)
    ktime.follow_clock(variable)
    assert abs(ktime.now_ns() - int(variable[0]) - time.time_ns()) < SECOND_NS // 100
    known = int(variable[0])
    for _ in range(100):
        ktime.follow_clock(variable)
    assert abs(int(variable[0]) - known) < ktime.SETTLED_NS * 100  # nobody sets the clock; a slow reading is not taken


def test_readings_that_differ_a_little_change_nothing_and_a_step_does() -> None:
    variable = np.array([ktime.ahead_ns() + ktime.SETTLED_NS // 4], np.int64)
    before = int(variable[0])
    for _ in range(20):
        if abs(ktime.ahead_ns() - before) < ktime.SETTLED_NS // 2:  # undisturbed
            break
    ktime.follow_clock(variable)
    assert abs(int(variable[0]) - before) <= 10 * ktime.SETTLED_NS
    variable[0] += 5 * SECOND_NS  # the time was set
    ktime.follow_clock(variable)
    assert abs(int(variable[0]) - before) <= 10 * ktime.SETTLED_NS


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a time namespace needs root and unshare")
def test_a_time_namespace_does_not_shift_it() -> None:
    code = "from wirelag.io import ktime; import time; print(ktime.now_ns(), time.monotonic_ns())"
    command = ["unshare", "--time", "--monotonic", "1000000", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode and "unshare failed" in done.stderr:
        pytest.skip(f"no time namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    ours, shifted = map(int, done.stdout.split())
    assert abs(ours - time.monotonic_ns()) < 30 * SECOND_NS
    assert abs(shifted - ours - 10**6 * SECOND_NS) < 30 * SECOND_NS
