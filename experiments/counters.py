"""Counters of the processor for what this thread does, kernel included: perf_event_open(2). Needs root.

Many virtual machines have none: opening one then fails with ENOENT or EOPNOTSUPP.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Callable
from typing import Final

HARDWARE: Final = 0
SOFTWARE: Final = 1
CACHE: Final = 3
COUNTERS: Final = {
    "cycles": (HARDWARE, 0),
    "instructions": (HARDWARE, 1),
    "branches": (HARDWARE, 4),
    "branch misses": (HARDWARE, 5),
    "data cache loads": (CACHE, 0x00000),  # first level, read, access
    "data cache misses": (CACHE, 0x10000),  # the same, miss
    "page faults": (SOFTWARE, 2),  # which every machine can count
}
SYSCALLS: Final = {"x86_64": 298, "aarch64": 241}
DISABLED: Final = 1
ATTRIBUTES: Final = struct.Struct("<IIQQQQQIIQ")  # perf_event_attr, its first version
ENABLE, DISABLE = 0x2400, 0x2401


def counted(name: str, work: Callable[[], object]) -> int:
    """How often this happens during the work; an OSError if this machine does not count it."""
    kind, event = COUNTERS[name]
    attributes = ATTRIBUTES.pack(kind, ATTRIBUTES.size, event, 0, 0, 0, DISABLED, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if platform.machine() not in SYSCALLS:
        raise OSError(errno.ENOSYS, f"{name}: the number of perf_event_open is unknown on {platform.machine()}")
    file = libc.syscall(SYSCALLS[platform.machine()], ctypes.c_char_p(attributes), 0, -1, -1, 0)
    if file < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    try:
        fcntl.ioctl(file, ENABLE, 0)
        work()
        fcntl.ioctl(file, DISABLE, 0)
        return int.from_bytes(os.read(file, 8), "little")
    finally:
        os.close(file)


def why_none(name: str = "cycles") -> str:
    """Why this machine cannot count this; empty: it can."""
    try:
        counted(name, lambda: None)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
            return f"no counters of the processor, as in most virtual machines ({errno.errorcode[error.errno]})"
        return str(error)
    return ""
