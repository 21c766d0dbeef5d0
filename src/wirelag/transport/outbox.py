"""The outbox: a sender and a spool as one. Every message put into it arrives eventually.

Law: every message is on disk before it is sent, and until it is acknowledged; except a reply, which can be requested
again, and is written to disk only if it cannot be sent, and except where the disk fails (spool.py). Waiting messages
are sent in order; once the collector is reachable again, new messages alternate with waiting ones, so that neither
starves. A message that the collector does not take now is set aside, and does not hold up those behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from wirelag.errors import WirelagError
from wirelag.transport import Declined, Refused, Sender, Unreachable, pauses
from wirelag.transport.spool import Spool, key_of

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
        self._problem: str | None = None  # of the spool, as it was told
        self._new: deque[str] = deque()
        self._turn_of_new = True
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

    async def put(self, data: bytes, key: str) -> None:
        """Return once the message is on disk, or in memory if the disk fails; else send it, or raise a WirelagError."""
        try:
            async with self._disk:
                name = await asyncio.to_thread(self._spool.put, data, key)
        except WirelagError as error:
            self._tell(str(error))
            await self._sender.send(data, key)
            self.sent += 1
            return
        self._tell_disk()
        if name is not None:
            (self._waited if self.reachable is False else self._new).append(name)
            self._nothing_left.clear()
            self._something.set()

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
        while True:
            name = self._next()
            if name is None:
                await self._wait()
                continue
            async with self._disk:
                data = await asyncio.to_thread(self._spool.read, name)
            if data is not None and await self._deliver(data, name):
                async with self._disk:
                    await asyncio.to_thread(self._spool.remove, name)
            self._tell_disk()

    async def drained(self) -> None:
        """Return once no message waits."""
        await self._nothing_left.wait()

    async def _wait(self) -> None:
        """Wait for a new message, or until one that was set aside is due."""
        self._something.clear()
        due = min((until for until, _ in self._aside.values()), default=None)
        if due is None:
            self._nothing_left.set()
            await self._something.wait()
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._something.wait(), max(0.0, due - time.monotonic()))

    def _next(self) -> str | None:
        now = time.monotonic()
        for name in [name for name, (until, _) in self._aside.items() if until <= now]:
            self._aside[name] = float("inf"), self._aside[name][1]
            self._waited.append(name)
        new, waited = self._new, self._waited
        if new and (self._turn_of_new or not waited):
            self._turn_of_new = False
            return new.popleft()
        self._turn_of_new = True
        return waited.popleft() if waited else None

    async def _deliver(self, data: bytes, name: str) -> bool:
        """Try until its fate is known; return whether it is no longer needed."""
        for pause in pauses():
            try:
                await self._sender.send(data, key_of(name))
            except Declined as error:
                await self._set_aside(name, error)
                return False
            except Unreachable as error:
                self._all_wait(name)
                self._unreachable(error)
                await asyncio.sleep(pause)
                continue
            except Refused as error:
                self.refused += 1
                self._tell(str(error))
            else:
                self.sent += 1
            self._aside.pop(name, None)
            if self.reachable is False:
                self._tell("the collector answers again")
                self._aside.clear()
                self._all_wait(name)
            self.reachable, self._declined = True, 0
            return True
        raise AssertionError("pauses have no end")

    async def _set_aside(self, name: str, error: Declined) -> None:
        """Let others go on; if all are declined, it is not about this message."""
        _, last_s = self._aside.get(name, (0.0, 0.0))
        for_s = min(MOST_ASIDE_S, 2 * last_s or LEAST_ASIDE_S)
        if not self._aside and self.reachable is not False:
            self._tell(f"{error}; the message waits on disk, others go on")
        self._aside[name] = time.monotonic() + for_s, for_s
        self._declined += 1
        if self._declined >= IN_A_ROW:
            self._unreachable(error)
            self._waited.extend(self._new)
            self._new.clear()
            await asyncio.sleep(min(for_s, 0.1 * self._declined))

    def _all_wait(self, name: str) -> None:
        """All messages but this one wait now, in order."""
        self._waited = deque(waits for waits in self._spool.names if waits != name and waits not in self._aside)
        self._new.clear()

    def _unreachable(self, error: Unreachable) -> None:
        if self.reachable is not False:
            self._tell(f"{error}; messages wait on disk until it answers")
        self.reachable = False

    def _tell_disk(self) -> None:
        problem, self._problem = self._problem, self._spool.problem
        if (problem is None) != (self._problem is None):
            self._tell(self._problem or f"{self._spool.directory}: can be used again")
