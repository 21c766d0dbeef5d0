"""Captures of pings: any number of hosts, each with the delays that a test gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wirelag.capture.writer import CaptureWriter

FRAME = 42  # Ethernet, IPv4, ICMP
AT_ONCE = 1 << 16

Ints = npt.NDArray[Any]


def write_pings(path: Path, servers: Ints, sent_ns: Ints, delays_ns: Ints) -> None:
    """Echo requests to these servers (32-bit addresses) from one client, in order of time, and their replies."""
    count = len(servers)
    times = np.concatenate((sent_ns, sent_ns + delays_ns))
    order = np.argsort(times, kind="stable")
    with CaptureWriter(str(path), FRAME) as writer:
        for start in range(0, len(order), AT_ONCE):
            rows = order[start : start + AT_ONCE]
            reply, which = rows >= count, rows % count
            frame = np.zeros((len(rows), FRAME), np.uint8)
            frame[:, 12:18] = 8, 0, 0x45, 0, 0, 28
            frame[:, 22:24] = 64, 1
            client = np.full(len(rows), 0x0A000001)
            frame[:, 26:30] = _bytes(np.where(reply, servers[which], client), 4)
            frame[:, 30:34] = _bytes(np.where(reply, client, servers[which]), 4)
            frame[:, 34] = np.where(reply, 0, 8)
            frame[:, 38:42] = _bytes(which, 4)  # identifier and sequence number
            size = np.full(len(rows), FRAME, np.int64)
            writer.write(times[rows], frame.reshape(-1), np.arange(len(rows), dtype=np.int64) * FRAME, size, size)


def _bytes(values: Ints, width: int) -> Ints:
    return np.stack([values >> 8 * i & 255 for i in reversed(range(width))], axis=1).astype(np.uint8)
