"""The outbox: a sender and a spool as one. Every message put into it arrives eventually.

Law: every message is on disk before it is sent, and until it is acknowledged; except a reply, which can be requested
again, and is written to disk only if it cannot be sent. Waiting messages are sent in order; once the collector is
reachable again, new messages alternate with waiting ones, so that neither starves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from wirelag.errors import WirelagError
from wirelag.transport import Refused, Sender, Unreachable, pauses
from wirelag.transport.spool import Spool, key_of


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
    def dropped(self) -> int:
        """Number of messages that did not fit into the spool."""
        return self._spool.dropped

    async def put(self, data: bytes, key: str) -> None:
        """Return once the message is on disk. If the disk fails, send it at once, or raise a WirelagError."""
        try:
            async with self._disk:
                name = await asyncio.to_thread(self._spool.put, data, key)
        except WirelagError as error:
            self._tell(str(error))
            await self._sender.send(data, key)
            self.sent += 1
            return
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
                self._something.clear()
                self._nothing_left.set()
                await self._something.wait()
                continue
            async with self._disk:
                data = await asyncio.to_thread(self._spool.read, name)
            if data is None:
                continue
            await self._deliver(data, name)
            async with self._disk:
                await asyncio.to_thread(self._spool.remove, name)

    async def drained(self) -> None:
        """Return once no message waits."""
        await self._nothing_left.wait()

    def _next(self) -> str | None:
        new, waited = self._new, self._waited
        if new and (self._turn_of_new or not waited):
            self._turn_of_new = False
            return new.popleft()
        self._turn_of_new = True
        return waited.popleft() if waited else None

    async def _deliver(self, data: bytes, name: str) -> None:
        for pause in pauses():
            try:
                await self._sender.send(data, key_of(name))
            except Unreachable as error:
                self._waited = deque(waits for waits in self._spool.names if waits != name)  # all of them wait now
                self._new.clear()
                if self.reachable is not False:
                    self._tell(f"{error}; messages wait on disk until it answers")
                self.reachable = False
                await asyncio.sleep(pause)
                continue
            except Refused as error:
                self.refused += 1
                self._tell(str(error))
            else:
                self.sent += 1
                if self.reachable is False:
                    self._tell("the collector answers again")
            self.reachable = True
            return
