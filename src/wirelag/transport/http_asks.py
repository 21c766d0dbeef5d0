"""The asks of agents over HTTPS, the collector's side: each agent reads them from one reply that does not end.

Laws. An ask waits until its agent reports that it has replied; the oldest are dropped if too many wait. A client that
does not read costs no more than these: nothing is sent to it until it has read what was sent before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from wirelag.protocol.messages import MOST_BYTES
from wirelag.transport.http import FRAME, QUIET_S

MOST_ASKS: Final = 256  # asks that wait for one agent,
_MOST_ASKED: Final = MOST_BYTES  # and their bytes, if there are several


class Asks:
    """Those that wait for one agent, and the replies by which it reads them."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, bytes]] = deque()
        self.replies: set[AsksReply] = set()
        self._bytes = 0

    def add(self, number: int, data: bytes) -> int:
        """Add an ask, and send it to whoever reads now; returns how many were dropped."""
        self.waiting.append((number, data))
        self._bytes += len(data)
        dropped = 0
        while len(self.waiting) > MOST_ASKS or (len(self.waiting) > 1 and self._bytes > _MOST_ASKED):
            self._drop()
            dropped += 1
        for reply in self.replies:
            reply.tell(number, data)
        return dropped

    def answered(self, last: int) -> None:
        """Forget asks up to a number: the agent has replied to them."""
        while self.waiting and self.waiting[0][0] <= last:
            self._drop()

    def wake(self) -> None:
        """Have all replies look whether they should end."""
        for reply in self.replies:
            reply.wake()

    def _drop(self) -> None:
        self._bytes -= len(self.waiting.popleft()[1])


class AsksReply(Response):
    """All waiting asks, then each new one; and a keepalive while there is none. Until the agent leaves, or `ended`.

    Where the server lends a way to write a part of a reply at once (`state["part"]`), a new ask takes that way, past
    the steps that a part takes otherwise, each of which costs more than the ask.
    """

    def __init__(
        self,
        asks: Asks,
        ended: Callable[[], bool],
        around: AbstractAsyncContextManager[None],
        headers: dict[str, str],
        media_type: str,
    ) -> None:
        self.status_code, self.background, self.media_type = 200, None, media_type
        self.init_headers(headers)
        self._asks, self._ended, self._around = asks, ended, around
        self._sent, self._last_s = 0, 0.0  # the last ask that was sent, and when
        self._part: Callable[[bytes], bool] | None = None
        self._more: asyncio.Future[None] | None = None  # while all is sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        if scope["method"] == "GET" and scope["http_version"] == "1.1":  # else it has no body, or not in parts
            self._part = scope.get("state", {}).get("part")
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        left = asyncio.ensure_future(_left(receive))
        self._asks.replies.add(self)
        try:
            async with self._around:
                await self._run(send, left)
        finally:
            self._asks.replies.discard(self)
            left.cancel()

    async def _run(self, send: Send, left: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        self._last_s = loop.time()
        while not self._ended() and not left.done():
            if found := [one for one in self._asks.waiting if one[0] > self._sent]:
                for number, data in found:
                    await send(_part_of(_frame(number, data)))
                    self._sent, self._last_s = number, loop.time()
                continue
            quiet_s = loop.time() - self._last_s
            if quiet_s >= QUIET_S:
                await send(_part_of(_frame(0, b"")))
                self._last_s = loop.time()
                continue
            self._more = loop.create_future()
            await asyncio.wait((self._more, left), timeout=QUIET_S - quiet_s, return_when=asyncio.FIRST_COMPLETED)
            self._more = None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def tell(self, number: int, data: bytes) -> None:
        """Send a new ask."""
        if self._more is None or self._more.done():
            return  # it is about to look
        if self._part is not None and self._part(_frame(number, data)):
            self._sent, self._last_s = number, self._more.get_loop().time()
        else:
            self._more.set_result(None)

    def wake(self) -> None:
        """Look whether it should end."""
        if self._more is not None and not self._more.done():
            self._more.set_result(None)


async def _left(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _frame(number: int, data: bytes) -> bytes:
    return FRAME.pack(len(data), number) + data


def _part_of(body: bytes) -> Message:
    found: dict[str, Any] = {"type": "http.response.body", "body": body, "more_body": True}
    return found
