"""How much of a collector one point may use: messages and bytes per second, and the collector's time. No I/O.

Law: a point that stays within its rates never waits. Beyond them it waits its turn, after a burst of BURST_S seconds'
worth, so that a backlog passes at the rate; others do not notice. What a broker keeps until its turn gets a turn of its
own: if all came back together, they would only be sent away again. Memory: a few numbers for each of MOST points.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wirelag.protocol.messages import MOST_BYTES

BURST_S: Final = 10.0
MOST: Final = 1 << 16
_LEAST_WAIT_S: Final = 0.05  # for a message that is sent away: each costs the collector and the broker some work


@dataclass(frozen=True, slots=True)
class Limits:
    """What one point may use; what is shared has its own limits where it is kept."""

    messages: int = 500  # per second
    bytes: int = 8 << 20  # per second
    time: float = 0.25  # share of the time of the thread that processes messages
    connections: int = 32  # open at once
    strangers: int = 256  # open at once, of one address, before a right token was seen
    held: int = 2 * MOST_BYTES + (1 << 16)  # bytes of messages that have come and are not stored yet


class Quotas:
    """The use of all points. Any thread may call it."""

    def __init__(self, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self._clock = limits or Limits(), clock
        # By point: until when messages, bytes and time are paid for, and turns are given out.
        self._paid_s: dict[str, list[float]] = {}
        self._turn = threading.Lock()

    def wait_s(self, point: str, size: int, most_s: float) -> float:
        """How long a message of this size must wait; it counts unless that is longer than `most_s`."""
        with self._turn:
            now_s, paid_s = self._clock(), self._of(point)
            wait_s = max(0.0, max(paid_s[:3]) - BURST_S - now_s)
            if wait_s <= most_s:
                self._pay(paid_s, size, now_s)
            return wait_s

    def turn_s(self, point: str, size: int, has_waited: bool) -> float:
        """How long a message that comes again must wait for its turn, behind those that wait already; 0: it is now.

        It counts if its turn is now.
        """
        with self._turn:
            now_s, paid_s = self._clock(), self._of(point)
            free_s = max(paid_s[:3]) - BURST_S
            if free_s <= now_s and (has_waited or paid_s[3] <= now_s):
                self._pay(paid_s, size, now_s)
                return 0.0
            turn_s = max(free_s, paid_s[3], now_s + _LEAST_WAIT_S)
            paid_s[3] = turn_s + max(1 / self.limits.messages, size / self.limits.bytes)
            return turn_s - now_s

    def came(self, point: str, size: int) -> None:
        """Count bytes of a message whose size was not known when it waited."""
        with self._turn:
            paid_s = self._of(point)
            paid_s[1] = max(paid_s[1], self._clock()) + size / self.limits.bytes

    def spent(self, point: str, seconds: float) -> None:
        """Count time that a message of a point took."""
        with self._turn:
            paid_s = self._of(point)
            paid_s[2] = max(paid_s[2], self._clock()) + seconds / self.limits.time

    def _pay(self, paid_s: list[float], size: int, now_s: float) -> None:
        paid_s[0] = max(paid_s[0], now_s) + 1 / self.limits.messages
        paid_s[1] = max(paid_s[1], now_s) + size / self.limits.bytes

    def _of(self, point: str) -> list[float]:
        if point not in self._paid_s and len(self._paid_s) >= MOST:
            now_s = self._clock()
            self._paid_s = {name: paid_s for name, paid_s in self._paid_s.items() if max(paid_s) > now_s}
        return self._paid_s.setdefault(point, [0.0, 0.0, 0.0, 0.0])
