"""The outbox: a sender and a spool as one. Every message put into it arrives eventually.

Law: every message is on disk before it is sent, and until it is acknowledged; except a reply, which can be requested
again, and is written to disk only if it cannot be sent, and a status, which is soon outdated, and except where the disk
fails (spool.py). Waiting messages are sent in order, up to LANES at a time, so that a long way to the collector does
not limit their rate; once the collector is reachable again, new messages alternate with waiting ones, so that neither
starves. While it is not, one message at a time tries. A message that the collector does not take now is set aside, and
does not hold up those behind it; while there are such messages, the oldest and the newest that wait take turns, since
those beside it may be like it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from wirelag.errors import WirelagError
from wirelag.transport import LANES, Declined, Refused, Sender, Unreachable, pauses
from wirelag.transport.spool import Spool, key_of
from wirelag.units import many

LEAST_ASIDE_S: Final = 1.0  # how long a message is set aside at first; then twice as long each time,
MOST_ASIDE_S: Final = 60.0  # and at most
IN_A_ROW: Final = 8  # messages declined one after the other: then it is not about them


class Outbox:
    """`put` messages, and let `run` run concurrently."""

    def __init__(self, sender: Sender, spool: Spool, tell: Callable[[str], None] = lambda line: None) -> None:
        self.sent = 0
        self.refused = 0
        self.reachable: bool | None = None  # None: not tried yet
        self._sender = sender
        self._spool = spool
        self._tell = tell  # called on changes with one line, without secrets
        self._waited = deque(spool.names)
        self._aside: dict[str, tuple[float, float]] = {}  # by name: until when, and for how long
        self._declined = 0  # messages in a row
        self._tries = pauses()
        self._not_before = 0.0  # after a failure
        self._sending: set[str] = set()
        self._problem: str | None = None  # of the spool, as it was told
        self._removed = 0  # messages whose files others have removed, as it was told
        self._large = False  # it was told that messages are larger than the spool
        self._new: deque[str] = deque()
        self._turn_of_new, self._turn_of_last = True, False
        self._something = asyncio.Event()
        self._nothing_left = asyncio.Event()
        self._disk = asyncio.Lock()  # one thread at a time uses the spool

    @property
    def waiting(self) -> int:
        """Number of messages that wait."""
        return len(self._spool)

    @property
    def waiting_bytes(self) -> int:
        """Disk space that they take."""
        return self._spool.bytes

    @property
    def disk_fails(self) -> bool:
        """Whether the spool cannot be used as it should."""
        return self._spool.problem is not None

    @property
    def dropped(self) -> int:
        """Number of messages that did not fit into the spool."""
        return self._spool.dropped

    @property
    def waited_s(self) -> float:
        """How long the oldest message has waited."""
        return self._spool.waited_s

    async def put(self, data: bytes, key: str) -> None:
        """Return once the message is on disk, or in memory if the disk fails; else send it, or raise a WirelagError."""
        await self.put_all([(data, key)])

    async def put_all(self, messages: Sequence[tuple[bytes, str]]) -> None:
        """The same for messages that come together: they share a write to disk."""
        fitting = [one for one in messages if self._spool.fits(one[0])]
        if fitting:
            async with self._disk:
                names = await asyncio.to_thread(self._spool.put_all, fitting)
            self._tell_disk()
            stored = [name for name in names if name is not None]
            if stored:
                (self._waited if self.reachable is False else self._new).extend(stored)
                self._nothing_left.clear()
                self._something.set()
        for data, key in messages:
            if not self._spool.fits(data):
                await self._send_large(data, key)

    async def _send_large(self, data: bytes, key: str) -> None:
        """Send a message that is larger than the spool."""
        try:
            async with self._disk:
                await asyncio.to_thread(self._spool.put, data, key)
        except WirelagError as error:
            if not self._large:
                self._tell(f"{error}: such messages are sent, but not kept")
            self._large = True
            await self._sender.send(data, key)
            self.sent += 1

    async def try_now(self, data: bytes, key: str) -> bool:
        """Send what is soon outdated, ahead of all that wait; return whether it arrived. It is not kept."""
        if self.reachable is False:
            return False
        try:
            await self._sender.send(data, key)
        except (Unreachable, Refused):
            return False
        self.sent += 1
        return True

    async def answer(self, data: bytes, key: str) -> None:
        """Send at once what can be requested again; spool it only if it cannot be sent."""
        if self.reachable is not False:
            try:
                await self._sender.send(data, key)
            except Unreachable:
                pass
            except Refused as error:
                self.refused += 1
                self._tell(str(error))
                return
            else:
                self.sent += 1
                return
        await self.put(data, key)

    async def run(self) -> None:
        """Deliver messages, without end."""
        sending: set[asyncio.Task[None]] = set()
        news: asyncio.Task[object] | None = None
        try:
            while True:
                self._begin(sending)
                news = news or asyncio.create_task(self._something.wait())
                done, _ = await asyncio.wait(
                    {*sending, news}, timeout=self._until_due(), return_when=asyncio.FIRST_COMPLETED
                )
                if news in done:
                    self._something.clear()
                    news = None
                for task in done & sending:
                    sending.discard(task)
                    task.result()
        finally:
            for task in (*sending, *([news] if news else [])):
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    def _begin(self, sending: set[asyncio.Task[None]]) -> None:
        """Begin to send as many messages as may be under way."""
        while len(sending) < (LANES if self.reachable else 1) and time.monotonic() >= self._not_before:
            name = self._next()
            if name is None:
                break
            self._sending.add(name)
            sending.add(asyncio.create_task(self._deliver(name)))
        if not (sending or self._aside or self._new or self._waited):
            self._nothing_left.set()

    def _until_due(self) -> float | None:
        """Seconds until a message that was set aside is due, or the next try after a failure; None: neither."""
        due = [until for until, _ in self._aside.values()]
        if time.monotonic() < self._not_before:
            due.append(self._not_before)
        first = min(due, default=float("inf"))
        return None if first == float("inf") else max(0.0, first - time.monotonic())

    async def drained(self) -> None:
        """Return once no message waits."""
        await self._nothing_left.wait()

    def _next(self) -> str | None:
        now = time.monotonic()
        for name in [name for name, (until, _) in self._aside.items() if until <= now]:
            self._aside[name] = float("inf"), self._aside[name][1]
            self._waited.appendleft(name)
        new, waited = self._new, self._waited
        if new and (self._turn_of_new or not waited):
            self._turn_of_new = False
            return new.popleft()
        self._turn_of_new = True
        self._turn_of_last = bool(self._aside) and not self._turn_of_last
        return None if not waited else waited.pop() if self._turn_of_last else waited.popleft()

    async def _deliver(self, name: str) -> None:
        """Try once to send a message, and remove it if it is no longer needed."""
        try:
            async with self._disk:
                data = await asyncio.to_thread(self._spool.read, name)
            if data is None:
                self._aside.pop(name, None)
            elif await self._arrives(data, name):
                async with self._disk:
                    await asyncio.to_thread(self._spool.remove, name)
        finally:
            self._sending.discard(name)
        self._tell_disk()

    async def _arrives(self, data: bytes, name: str) -> bool:
        """Send a message; return whether it is no longer needed."""
        try:
            await self._sender.send(data, key_of(name))
        except Declined as error:
            self._set_aside(name, error)
            return False
        except Unreachable as error:
            self._unreachable(error)
            self._waited.appendleft(name)
            self._not_before = time.monotonic() + next(self._tries)
            return False
        except Refused as error:
            self.refused += 1
            self._tell(str(error))
        else:
            self.sent += 1
        self._aside.pop(name, None)
        self._tries, self._declined = pauses(), 0
        if self.reachable is False:
            waiting = len(self._spool) - 1
            self._tell("the collector answers again" + (f"; {waiting:,} messages wait" if waiting else ""))
            self._all_wait()
        self.reachable = True
        return True

    def _set_aside(self, name: str, error: Declined) -> None:
        """Let others go on; if all are declined, it is not about this message."""
        _, last_s = self._aside.get(name, (0.0, 0.0))
        for_s = min(MOST_ASIDE_S, 2 * last_s or LEAST_ASIDE_S)
        if not self._aside and self.reachable is not False:
            self._tell(f"{error}; the message waits on disk, others go on")
        self._aside[name] = time.monotonic() + for_s, for_s
        self._declined += 1
        if self._declined >= IN_A_ROW:
            self._unreachable(error)
            self._not_before = time.monotonic() + min(for_s, 0.1 * self._declined)

    def _all_wait(self) -> None:
        """All messages but those under way wait now, in order."""
        aside = {name for name, (until, _) in self._aside.items() if until < float("inf")}  # others are due
        self._waited = deque(name for name in self._spool.names if name not in self._sending and name not in aside)
        self._new.clear()

    def _unreachable(self, error: Unreachable) -> None:
        if self.reachable is not False:
            self._tell(f"{error}; messages wait on disk until it answers")
            self._all_wait()
        self.reachable = False

    def _tell_disk(self) -> None:
        problem, self._problem = self._problem, self._spool.problem
        if (problem is None) != (self._problem is None):
            self._tell(self._problem or f"{self._spool.directory}: can be used again")
        if self._spool.removed > self._removed:
            lost = self._spool.removed - self._removed
            self._tell(f"{self._spool.directory}: others removed files of {many(lost, 'message')} that waited: lost")
            self._removed = self._spool.removed
