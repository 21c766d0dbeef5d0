"""The clock of programs in the kernel, bpf_ktime_get_ns: CLOCK_MONOTONIC, which is never set and no namespace shifts.

Law: CLOCK_REALTIME and it run at the same rate, also while NTP corrects them; they move against each other only when
the time is set, at a leap second, and while the host sleeps. So one is the other and a difference, read again now and
then, right within SETTLED_NS.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

SETTLED_NS: Final = 1000
_READINGS: Final = 5


@cache
def _shifted_ns() -> int:
    """How far this process's time namespace is ahead of the kernel."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text(encoding="ascii").splitlines()
    except OSError:  # a kernel without such namespaces
        return 0
    offsets = {name: int(seconds) * 10**9 + int(ns) for name, seconds, ns in map(str.split, lines)}
    return offsets.get("monotonic", 0)


def now_ns() -> int:
    """By the programs' clock."""
    return time.monotonic_ns() - _shifted_ns()


def ahead_ns() -> tuple[int, int]:
    """By how much the programs' clock is ahead of CLOCK_REALTIME, right within; of several readings the quickest."""

    def read() -> tuple[int, int]:
        before_ns, real_ns, after_ns = now_ns(), time.time_ns(), now_ns()
        return after_ns - before_ns, (before_ns + after_ns) // 2 - real_ns

    took_ns, found_ns = min(read() for _ in range(_READINGS))
    return found_ns, took_ns // 2


def follow_clock(variable: npt.NDArray[np.int64]) -> None:
    """A program's `ahead_ns`: as it is now, and as it was where only the reading differs."""
    found_ns, within_ns = ahead_ns()
    if abs(found_ns - int(variable[0])) > max(SETTLED_NS, within_ns):
        variable[0] = found_ns
