"""The clock of programs in the kernel, read from user space."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.support import needs
from tests.support.waiting import PATIENCE_S
from wirelag.capture import ktime

SECOND_NS = 10**9


def test_it_is_the_real_time_with_a_constant_offset() -> None:
    variable = np.zeros(1, np.int64)
    ktime.follow_clock(variable)
    before_ns = time.time_ns()
    now_ns = ktime.now_ns() - int(variable[0])
    assert before_ns - SECOND_NS // 100 < now_ns < time.time_ns() + SECOND_NS // 100
    found = [ktime.ahead_ns() for _ in range(100)]
    assert all(within_ns >= 0 for _, within_ns in found)
    low, high = max(f - w for f, w in found), min(f + w for f, w in found)
    assert low <= high + ktime.SETTLED_NS  # the clock is not set: all readings agree


def test_only_a_change_beyond_the_reading_error_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = np.array([5000], np.int64)
    for found_ns, within_ns, then_ns in (
        (5000 + ktime.SETTLED_NS, 90, 5000),
        (5001 + ktime.SETTLED_NS, 90, 5001 + ktime.SETTLED_NS),
        (9000, 3000, 5001 + ktime.SETTLED_NS),  # a slow reading
        (-(10**15), 3000, -(10**15)),  # the clock was set
    ):
        monkeypatch.setattr(ktime, "ahead_ns", lambda said=(found_ns, within_ns): said)
        ktime.follow_clock(variable)
        assert variable[0] == then_ns


@pytest.mark.skipif(os.geteuid() != 0, reason=needs.ROOT)
@pytest.mark.skipif(needs.find("unshare") is None, reason=needs.program("unshare"))
def test_a_time_namespace_does_not_shift_it() -> None:
    code = "from wirelag.capture import ktime; import time; print(ktime.now_ns(), time.monotonic_ns())"
    command = ["unshare", "--time", "--monotonic", "1000000", sys.executable, "-c", code]
    before_ns = time.monotonic_ns()
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    after_ns = time.monotonic_ns()
    if done.returncode and "unshare failed" in done.stderr:
        pytest.skip(needs.needs("time namespaces"))
    assert done.returncode == 0, done.stderr
    ours, shifted = map(int, done.stdout.split())
    assert before_ns <= ours <= shifted - 10**6 * SECOND_NS <= after_ns
