"""Samples of fridges in the kernel, one by one, for their groups (`wl_tell` in bpf/fridge.bpf.c).

Law: a sample is added to the groups of its interval, in the order of its CPU, as the meter outside the kernel would: so
on one CPU the groups are the same, bit for bit, and as bounded (synopses/group_delays.py). A sample that found no place
in the log counts in the figures of everything, but in no group.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.ebpf.hooks import Hooks
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import Grouping

LOG: Final = 1 << 14  # places of a CPU: it is read every 10 ms
TOLD: Final = np.dtype(
    [
        ("name", "u8"),
        ("delay_ns", "i8"),
        ("weight", "i8"),
        ("src", "u8", 2),
        ("dst", "u8", 2),
        *((name, "u8") for name in ("flow_key", "transaction")),
        *((name, "u2") for name in ("src_port", "dst_port")),
        *((name, "u1") for name in ("leg", "kind", "traffic_class", "spare")),
    ]
)
COLUMNS: Final = ("src", "dst", "flow_key", "transaction", "src_port", "dst_port", "kind", "traffic_class")


class Told:
    """The logs of all CPUs, and the grouping of the open interval."""

    def __init__(self, hooks: Hooks) -> None:
        self._counters = hooks.counters
        self._log = hooks.memory("sample_log", TOLD).reshape(hooks.cpus, -1)
        self._waiting: list[npt.NDArray[Any]] = []
        self._open: int | None = None  # the interval whose samples come
        self.grouping: Grouping | None = None  # of that interval

    @property
    def overflowed(self) -> int:
        """Samples that are in no group."""
        return int(self._counters["overflowed"].sum())

    def collect(self) -> None:
        """Add new samples of the open interval to their groups; those of the next one wait."""
        for counted, log in zip(self._counters, self._log, strict=True):
            read, written = int(counted["read"]), int(counted["written"])
            if read != written:
                self._waiting.append(log[np.arange(read, written) % len(log)])
                counted["read"] = written
        if self._waiting and self.grouping is not None:
            self._open = self._open or min(int(some["name"].min()) for some in self._waiting)
            self._add_until(self._open)

    def end(self, name: int) -> None:
        """Add the rest of an interval; the next one needs a fresh grouping."""
        self.collect()
        self._add_until(name)
        self._open, self.grouping = name + 1, None

    def _add_until(self, name: int) -> None:
        waiting, self._waiting = self._waiting, []
        for some in waiting:
            mine = some[some["name"] <= np.uint64(name)]
            if len(mine) and self.grouping is not None:
                packets = PacketBatch({column: np.ascontiguousarray(mine[column]) for column in COLUMNS})
                rows, legs = np.arange(len(mine), dtype=np.uint32), np.ascontiguousarray(mine["leg"])
                delays_ns, weights = (np.ascontiguousarray(mine[column]) for column in ("delay_ns", "weight"))
                self.grouping.add(packets, rows, legs, delays_ns, weights)
            if len(mine) < len(some):
                self._waiting.append(some[some["name"] > np.uint64(name)])
