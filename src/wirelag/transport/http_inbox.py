"""Messages over HTTPS, the collector's side: routes that its server mounts.

Law: a request succeeds once its message was acknowledged, so a message that was not stored stays with its agent.
Memory is bounded: beyond it agents are turned away and retry. The body is read only after the token and the length have
been checked.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from wirelag.errors import MissingExtraError
from wirelag.protocol.messages import MOST_BYTES, UnknownVersion, peek
from wirelag.transport import Acknowledge
from wirelag.transport.http import ASK_HEADER, FRAME, MEDIA_TYPE, QUIET_S, RUN_HEADER
from wirelag.transport.runs import Runs

try:
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route
except ImportError:
    raise MissingExtraError("an HTTP server") from None

_MOST_ASKS: Final = 256  # asks that wait for one agent
_LONG: Final = 1 << 16  # bytes; longer messages are parsed in a thread
_MOST_DOUBLED: Final = 100
_HELD: Final = 2048  # bytes that a message takes besides its own


@dataclass(slots=True)
class _Asks:
    """The asks that wait for one agent, until it reports that it has replied."""

    waiting: deque[tuple[int, bytes]] = field(default_factory=deque)
    more: asyncio.Event = field(default_factory=asyncio.Event)  # for those who wait now

    def wake(self) -> None:
        self.more.set()
        self.more = asyncio.Event()

    def answered(self, last: int) -> None:
        while self.waiting and self.waiting[0][0] <= last:
            self.waiting.popleft()


class HttpInbox:
    """`tokens`: who may send, and as which point (None: as any). Without `tokens` everyone may.

    `counts`: messages that were not accepted, by reason.
    """

    scheme = "http"

    def __init__(
        self,
        tokens: Mapping[str, str | None] | None,
        *,
        most: int = MOST_BYTES,
        most_held: int = 8 * MOST_BYTES,
        patience_s: float = 30.0,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.held = 0  # bytes
        self._tokens = tokens
        self._most, self._most_held, self._patience_s = most, most_held, patience_s
        self._came: asyncio.Queue[tuple[bytes, asyncio.Future[bool]] | None] = asyncio.Queue()
        self._asks: dict[str, _Asks] = {}
        self._runs = Runs()
        self._doubled: set[str] = set()  # points whose name two agents use
        self._life = secrets.token_hex(4)  # numbers of asks mean nothing to the next process
        self._number = 0
        self._closed = False

    def routes(self) -> list[Route]:
        """The routes for the collector's application."""
        return [
            Route("/v1/messages", self._take, methods=["POST"]),
            Route("/v1/asks/{point:path}", self._give, methods=["GET"]),
        ]

    async def messages(self) -> AsyncIterator[tuple[bytes, Acknowledge]]:
        """Messages whose sender is still waiting; an agent that has given up will send again."""
        while (came := await self._came.get()) is not None:
            data, stored = came
            if stored.done():
                continue

            async def acknowledge(is_stored: bool = True, stored: asyncio.Future[bool] = stored) -> None:
                if not stored.done():
                    stored.set_result(is_stored)

            yield data, acknowledge

    async def ask(self, point: str, data: bytes) -> None:
        """Queue a message until the agent fetches it; the oldest are dropped if too many wait."""
        asks = self._asks.setdefault(point, _Asks())
        self._number += 1
        asks.waiting.append((self._number, data))
        if len(asks.waiting) > _MOST_ASKS:
            asks.waiting.popleft()
            self.counts["asks dropped"] += 1
        asks.wake()

    async def close(self) -> None:
        """Turn away all waiting requests."""
        self._closed = True
        self._came.put_nowait(None)
        for asks in self._asks.values():
            asks.wake()

    async def _take(self, request: Request) -> Response:
        allowed, point = self._who(request)
        if not allowed:
            return self._no(401, "unauthorised", "the token is missing or wrong")
        if request.headers.get("content-type") != MEDIA_TYPE:
            return self._no(415, "garbage", f"the content type must be {MEDIA_TYPE}")
        length = request.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            return self._no(411, "garbage", "the length is missing")
        size = int(length[:20])
        if size > self._most:
            return self._no(413, "too large", f"it has {size} bytes, more than the limit of {self._most}")
        if self._closed or self.held + size + _HELD > self._most_held:
            return self._no(503, "busy", "too many messages are waiting")
        self.held += size + _HELD
        try:
            return await self._store(request, point)
        finally:
            self.held -= size + _HELD

    async def _store(self, request: Request, point: str | None) -> Response:
        try:
            data = await asyncio.wait_for(request.body(), self._patience_s)
        except (TimeoutError, ClientDisconnect):
            return self._no(408, "slow", "it did not come in time")
        try:
            opening = await asyncio.to_thread(peek, data, self._most) if len(data) > _LONG else peek(data, self._most)
        except UnknownVersion as error:
            return self._no(503, "of an unknown version", f"it {error}")
        except ValueError as error:
            return self._no(400, "garbage", f"it {error}")
        if point not in (None, opening.point):
            return self._no(403, "unauthorised", "the token belongs to another point")
        if not self._runs.admits(opening.point, request.headers.get(RUN_HEADER, "")[:64], time.monotonic()):
            return self._second(opening.point, request)
        if opening.point in self._asks:
            self._asks[opening.point].answered(self._number_of(request.headers.get(ASK_HEADER, "")))
        stored = asyncio.get_running_loop().create_future()
        self._came.put_nowait((data, stored))
        try:
            is_stored = await asyncio.wait_for(stored, self._patience_s)
        except TimeoutError:
            return self._no(503, "busy", "it was not processed in time")
        if not is_stored:
            return self._no(503, "not stored", "the collector cannot store it now; its log says why")
        self.counts["taken"] += 1
        return Response(status_code=204)

    async def _give(self, request: Request) -> Response:
        allowed, only = self._who(request)
        point = request.path_params["point"]
        if not allowed or only not in (None, point):
            return self._no(401, "unauthorised", "the token is missing or wrong")
        asks = self._asks.setdefault(point, _Asks()) if len(self._asks) < 1 << 16 else self._asks.get(point, _Asks())
        asks.answered(self._number_of(request.query_params.get("after", "")))
        headers = {ASK_HEADER: self._life, "X-Accel-Buffering": "no"}
        return StreamingResponse(self._frames(asks), headers=headers, media_type=MEDIA_TYPE)

    async def _frames(self, asks: _Asks) -> AsyncIterator[bytes]:
        """All waiting asks, then each new one; and a keepalive while there is none."""
        sent = 0
        while not self._closed:
            more, found = asks.more, [one for one in asks.waiting if one[0] > sent]
            for number, data in found:
                yield FRAME.pack(len(data), number) + data
                sent = number
            if found:
                continue
            try:
                await asyncio.wait_for(more.wait(), QUIET_S)
            except TimeoutError:
                yield FRAME.pack(0, 0)

    def _number_of(self, name: str) -> int:
        """The number of an ask; 0 if another process named it."""
        life, _, number = name.partition("-")
        return int(number[:20]) if life == self._life and number.isascii() and number.isdigit() else 0

    def _who(self, request: Request) -> tuple[bool, str | None]:
        """Whether the sender is authorised, and as which point."""
        if self._tokens is None:
            return True, None
        word, _, given = request.headers.get("authorization", "").partition(" ")
        found: list[str | None] = [
            point
            for token, point in self._tokens.items()
            if hmac.compare_digest(token.encode(), given.strip().encode(errors="replace"))
        ]
        if word.lower() != "bearer" or not given or not found:
            return False, None
        return True, found[0]

    def _second(self, point: str, request: Request) -> Response:
        """Refuse an agent that uses the name of another one that is running; told once for each point."""
        if point not in self._doubled and len(self._doubled) < _MOST_DOUBLED:
            self._doubled.add(point)
            where = "an unknown address" if request.client is None else request.client.host
            print(
                f"wirelag: two agents are called {point}: the one at {where}, which began later, is refused",
                file=sys.stderr,
                flush=True,
            )
        return self._no(409, "of a second agent", f"another agent called {point} is running; give each its own name")

    def _no(self, status: int, why: str, line: str) -> Response:
        self.counts[why] += 1
        headers = {"Connection": "close"}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if status == 503:
            headers["Retry-After"] = "1"
        return Response(line, status, headers, "text/plain")
