"""The clock of programs in the kernel, bpf_ktime_get_ns: CLOCK_MONOTONIC, which is never set or shifted by a namespace.

Law: it and CLOCK_REALTIME run at the same rate, even while NTP corrects them; their difference changes only when the
time is set, at a leap second, and while the host sleeps. So one is converted to the other by a difference, which is
read regularly and is accurate to SETTLED_NS.
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
    except OSError:  # the kernel has no time namespaces
        return 0
    offsets = {name: int(seconds) * 10**9 + int(ns) for name, seconds, ns in map(str.split, lines)}
    return offsets.get("monotonic", 0)


def now_ns() -> int:
    """The time on the programs' clock."""
    return time.monotonic_ns() - _shifted_ns()


def ahead_ns() -> tuple[int, int]:
    """How far the programs' clock is ahead of CLOCK_REALTIME, and the error bound; the quickest of several readings."""

    def read() -> tuple[int, int]:
        before_ns, real_ns, after_ns = now_ns(), time.time_ns(), now_ns()
        return after_ns - before_ns, (before_ns + after_ns) // 2 - real_ns

    took_ns, found_ns = min(read() for _ in range(_READINGS))
    return found_ns, took_ns // 2


def follow_clock(variable: npt.NDArray[np.int64]) -> None:
    """Update a program's `ahead_ns`, unless it differs only by the error of the reading."""
    found_ns, within_ns = ahead_ns()
    if abs(found_ns - int(variable[0])) > max(SETTLED_NS, within_ns):
        variable[0] = found_ns
