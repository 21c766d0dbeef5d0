"""Packets measured in the kernel, as a source: it yields no packets, but has a clock and counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from wirelag.capture.live import LiveStatistics
from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval

HELD_UP_NS: Final = 5_000_000
POLL_MS: Final = 10  # short enough to read an interval well before its side is reused


class KernelSource:
    """Empty batches, one every `poll_ms`; each time, `collect` fetches what waits, and `check` raises if it is over."""

    def __init__(
        self,
        name: str,
        *,
        statistics: Callable[[], LiveStatistics],
        check: Callable[[], None],
        collect: Callable[[], None] = lambda: None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.poll_ms = name, POLL_MS
        self.warnings: list[str] = []
        self.began_ns: int | None = time.time_ns()
        self._statistics, self._check, self._collect, self._close = statistics, check, collect, close
        self._told = 0  # drops already assigned to an interval
        self._stopped = False

    @staticmethod
    def now_ns() -> int:
        """The time on the packets' clock up to which everything has arrived: a CPU may be delayed within a packet."""
        return time.time_ns() - HELD_UP_NS

    @property
    def quiet_ns(self) -> int:
        """Nothing ever waits here."""
        return self.now_ns()

    def __iter__(self) -> Iterator[PacketBatch]:
        """Run until `stop`; a WirelagError if the interface is gone."""
        nothing = PacketBatch.empty()
        while not self._stopped:
            time.sleep(self.poll_ms / 1e3)
            self._check()
            self._collect()
            yield nothing

    @property
    def statistics(self) -> LiveStatistics:
        """Counts so far."""
        return self._statistics()

    @property
    def dropped(self) -> int:
        """Packets dropped so far."""
        return self._statistics().dropped

    def dropped_during(self, interval: Interval) -> int:
        """Packets dropped since the last call."""
        before, self._told = self._told, self._statistics().dropped
        return self._told - before

    def stop(self) -> None:
        """End the iteration."""
        self._stopped = True

    def close(self) -> None:
        """Detach."""
        self._stopped = True
        self._close()
