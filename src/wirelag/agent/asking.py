"""The thread that asks reflectors (STAMP), at its own pace, and gathers what their replies tell.

Law: a request is never sent sooner than `every` after the one before it, whatever was missed. A reflector that does not
answer, or the network that refuses, ends nothing. What is settled waits here until the loop fetches it, bounded.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from wirelag.agent.config import Config
from wirelag.agent.reflecting import Session
from wirelag.agent.reflectors import Reflecting
from wirelag.capture.host_clock import DRIFT
from wirelag.packets.stamp import UNSYNCHRONISED_PTP, error_estimate
from wirelag.protocol.messages import ClockReading, Message
from wirelag.transport.stamp import Asker

LATELY_NS: Final = 60 * 10**9  # how long what is known of a clock is of use; it drifts meanwhile
LONGEST_S: Final = 0.2  # until the thread looks whether it is to end
MOST_WAITING: Final = 4096  # messages


class _Asked:
    """One reflector."""

    def __init__(self, config: Config, one: Reflecting, number: int, began_ns: int) -> None:
        terms = replace(config.terms, delimiters=None, by=None, direction=None, filter=None)
        self.name, self._every_s, self.clock_only = one.name, one.every_ns / 1e9, one.clock_only
        self.session = Session(config.point, one.name, terms, began_ns, one.link)
        self.asker = Asker(one.to, one.port, number, one.key)
        self.due = time.monotonic()
        self.told = 0  # contradictions

    def ask(self, estimate: int) -> None:
        """Send a request; the next one is due a whole pause later, however late this one was."""
        sent_ns = time.time_ns()
        self.asker.send(self.session.ask(sent_ns), sent_ns, estimate)
        self.due = time.monotonic() + self._every_s


class Asking:
    """Asks all reflectors of an agent."""

    def __init__(self, config: Config, tell: Callable[[str], None], clock: Callable[[], ClockReading]) -> None:
        self._tell, self._clock = tell, clock
        began_ns = time.time_ns()
        self._all = [_Asked(config, one, number, began_ns) for number, one in enumerate(config.reflectors, 1)]
        self._settled: deque[Message] = deque(maxlen=MOST_WAITING)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Ask from now on."""
        if self._all:
            self._thread = threading.Thread(target=self._run, name="reflectors", daemon=True)
            self._thread.start()

    def settled(self) -> list[Message]:
        """The messages that are due."""
        return [self._settled.popleft() for _ in range(len(self._settled))]

    def ahead_ns(self, segment: str | None, now_ns: int) -> tuple[int, int] | None:
        """Bounds of what the clock at the downstream end of a segment is ahead, if the other end is a reflector, too.

        They grow with time, as far as clocks may drift apart.
        """
        up, _, down = (segment or "").replace(">>", ">").partition(">")
        for one in self._all:
            if one.name not in (up, down) or one.session.offset is None:
                continue
            offset, at_ns = one.session.offset
            if not 0 <= now_ns - at_ns <= LATELY_NS:
                continue
            drift_ns = round((now_ns - at_ns) * DRIFT)
            low_ns, high_ns = offset.low_ns - drift_ns, offset.high_ns + drift_ns
            return (low_ns, high_ns) if one.name == down else (-high_ns, -low_ns)
        return None

    def counted(self) -> dict[str, int]:
        """Requests, and packets that were no replies or claimed what cannot be, for the status."""
        return {
            "requests_sent": sum(one.session.sent for one in self._all),
            "replies_strange": sum(one.session.strange + one.asker.strange for one in self._all),
            "replies_incredible": sum(one.session.incredible for one in self._all),
        }

    def close(self) -> None:
        """Ask no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        for one in self._all:
            one.asker.close()

    def _run(self) -> None:
        while not self._over.is_set():
            now, clock = time.monotonic(), self._clock()
            estimate = error_estimate(clock.error_ns) if clock.synchronised else UNSYNCHRONISED_PTP
            for one in self._all:
                if one.due <= now:
                    one.ask(estimate)
            left_s = max(0.0, min(LONGEST_S, min(one.due for one in self._all) - time.monotonic()))
            sockets = [each for one in self._all for each in one.asker.sockets()]
            if sockets:
                select.select(sockets, [], [], left_s)
            else:
                self._over.wait(left_s)
            for one in self._all:
                for got in one.asker.replies():
                    one.session.take(got.reply, got.came_ns)
                settled = one.session.settled(time.time_ns(), clock)
                self._settled.extend([] if one.clock_only else settled)
                self._say(one)

    def _say(self, one: _Asked) -> None:
        if one.asker.refused:
            self._tell(f"{one.name}: test packets are refused ({one.asker.refused})")
            one.asker.refused = ""
        if one.session.contradictions > one.told:
            one.told = one.session.contradictions
            self._tell(
                f"{one.name}: its clock and this one differ by more than both state: the bound of two-way times is used"
            )
