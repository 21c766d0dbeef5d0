"""Long replies, a few at a time: who asks for many of them and reads none costs no memory.

Laws. At most MOST replies of the API are made or under way, and OF_ONE of them to one address; others wait for their
turn, and get 503 if it does not come. The same holds for /metrics, apart: neither delays the other.
MADE are made at once: that takes several times their size, and the processor, which agents need, too. A reply leaves
in pieces, the next one when the client has read the last. So a reply holds its place until it was read, for REPLY_S at
most: then its connection is closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST: Final = 16
OF_ONE: Final = 8
MADE: Final = 2
TURN_S: Final = 10.0
REPLY_S: Final = 60.0
PIECE: Final = 64 << 10  # bytes
PREFIX, METRICS = "/api/", "/metrics"
ENDLESS: Final = ("/api/v1/events",)  # listeners.py bounds these


class Replies:
    """Passes requests on to `app`, those whose path begins with `prefix` in turn."""

    def __init__(self, app: ASGIApp, counted: Counter[str], prefix: str = PREFIX) -> None:
        self._app, self._counted, self._prefix = app, counted, prefix
        self._of: Counter[str] = Counter()  # replies by address
        self._ended, self._made = asyncio.Condition(), asyncio.Semaphore(MADE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        if scope["type"] != "http" or not scope["path"].startswith(self._prefix) or scope["path"] in ENDLESS:
            await self._app(scope, receive, send)
            return
        address = str((scope.get("client") or ("",))[0])
        try:
            async with asyncio.timeout(TURN_S), self._ended:
                await self._ended.wait_for(lambda: self._of.total() < MOST and self._of[address] < OF_ONE)
                self._of[address] += 1
        except TimeoutError:
            self._counted["replies refused"] += 1
            said = {"error": "too many replies are still being read; try again"}
            await JSONResponse(said, 503, {"Retry-After": "1"})(scope, receive, send)
            return
        try:
            async with asyncio.timeout(REPLY_S), AsyncExitStack() as making:
                await making.enter_async_context(self._made)
                await self._app(scope, receive, _in_pieces(send, making))
        except TimeoutError:
            self._counted["replies not read"] += 1  # the server closes a connection whose reply does not end
        finally:
            self._of[address] -= 1
            self._of += Counter()  # forget those that have none
            async with self._ended:
                self._ended.notify_all()


def _in_pieces(send: Send, making: AsyncExitStack) -> Send:
    """The same for long bodies; the server's `send` waits until the client has read what was sent before.

    With the first message the reply is made.
    """

    async def pieces(message: Message) -> None:
        await making.aclose()
        body: Any = message.get("body", b"")
        if message["type"] == "http.response.body" and len(body) > PIECE:
            for at in range(0, len(body), PIECE):
                more = at + PIECE < len(body) or message.get("more_body", False)
                await send({"type": message["type"], "body": body[at : at + PIECE], "more_body": more})
        else:
            await send(message)

    return pieces
