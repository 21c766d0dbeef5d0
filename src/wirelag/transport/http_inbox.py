"""Messages over HTTPS, the collector's side: routes that its server mounts.

Law: a request succeeds once its message was acknowledged, so a message that was not stored stays with its agent.
Memory is bounded: beyond it agents are turned away and retry. The body is read only after the token and the length have
been checked, and counts as it comes, against the share of its point: a length that is only declared takes nothing. A
point that sends more than its quota waits (quotas.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple

from wirelag.errors import MissingExtraError
from wirelag.protocol.messages import MOST_BYTES, Opened, UnknownVersion, peek
from wirelag.transport import NOW, Acknowledge
from wirelag.transport.http import ASK_HEADER, MEDIA_TYPE, RUN_HEADER
from wirelag.transport.quotas import Quotas
from wirelag.transport.runs import Runs

try:
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from wirelag.transport.http_asks import MOST_ASKS, Asks, AsksReply
except ImportError:
    raise MissingExtraError("an HTTP server") from None

_TURN_S: Final = 10.0  # how long a message may wait for its turn
_LONG: Final = 1 << 16  # bytes; longer messages are parsed in a thread
_MOST_DOUBLED: Final = 100
_HELD: Final = 2048  # bytes that a message takes besides its own


TAKEN: Final = Response(status_code=204)
_SECRET: Final = secrets.token_bytes(32)


def _digest(token: str) -> bytes:
    """What stands for a token: of a key that nobody knows, so that the time of a look-up reveals nothing."""
    return hashlib.blake2b(token.encode(errors="replace"), key=_SECRET).digest()


def _by_digest(tokens: Mapping[str, str | None] | None) -> dict[bytes, str | None] | None:
    return None if tokens is None else {_digest(token): point for token, point in tokens.items()}


def _acknowledge(stored: asyncio.Future[bool | None], is_stored: bool | None = True) -> Awaitable[None]:
    if not stored.done():
        stored.set_result(is_stored)
    return NOW


class _Sender(NamedTuple):
    """Who sends: a point, if the token belongs to one; and whose share of memory it uses, else its address's."""

    point: str | None
    share: str


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
        quotas: Quotas | None = None,
        runs: Runs | None = None,
        admit: Callable[[Request, str | None], bool] = lambda request, point: True,
        refused: Callable[[Request, str], None] = lambda request, what: None,
    ) -> None:
        """`admit`: whether the connection of a right token may stay. `refused` is told of wrong tokens, and more.

        `runs`: shared with other inboxes.
        """
        self.counts: Counter[str] = Counter()
        self.held = 0  # bytes
        self._held_by: Counter[str] = Counter()  # the same by share
        self._quotas = quotas or Quotas()
        self._admit, self._refused = admit, refused
        self._tokens = _by_digest(tokens)
        self._shown = object()  # what changes with the tokens
        self.around: Callable[[str], AbstractAsyncContextManager[None]] = lambda point: (
            nullcontext()
        )  # an agent listens
        self.about: Callable[[str, list[str]], Mapping[str, Any]] = lambda point, segments: {}
        self._most, self.most_held, self._patience_s = most, most_held, patience_s
        self._came: asyncio.Queue[tuple[bytes, asyncio.Future[bool | None]] | None] = asyncio.Queue()
        self._patient: deque[tuple[float, asyncio.Future[bool | None]]] = deque()  # until when each is waited for
        self._waits = False  # whether a clock is set for them
        self._asks: dict[str, Asks] = {}
        self._runs = runs or Runs()
        self._doubled: set[str] = set()  # points whose name two agents use
        self._life = secrets.token_hex(4)  # numbers of asks mean nothing to the next process
        self._number = 0
        self._closed = False

    def use(self, tokens: Mapping[str, str | None] | None) -> None:
        """Accept these tokens from now on."""
        self._tokens = _by_digest(tokens)
        self._shown = object()  # those who wait for asks must show again who they are
        for asks in self._asks.values():
            asks.wake()

    def routes(self) -> list[Route]:
        """The routes for the collector's application."""
        return [
            Route("/v1/messages", self._take, methods=["POST"]),
            Route("/v1/asks/{point:path}", self._give, methods=["GET"]),
            Route("/v1/points/{point:path}", self._tell, methods=["GET"]),
        ]

    async def messages(self) -> AsyncIterator[tuple[bytes, Acknowledge]]:
        """Messages whose sender is still waiting; an agent that has given up will send again."""
        while (came := await self._came.get()) is not None:
            data, stored = came
            if stored.done():
                continue

            yield data, partial(_acknowledge, stored)

    async def ask(self, point: str, data: bytes) -> None:
        """Queue a message until the agent fetches it; the oldest are dropped if too many wait."""
        self._number += 1
        if dropped := self._asks.setdefault(point, Asks()).add(self._number, data):
            self.counts["asks dropped"] += dropped

    async def close(self) -> None:
        """Turn away all waiting requests."""
        self._closed = True
        self._came.put_nowait(None)
        for asks in self._asks.values():
            asks.wake()

    async def _take(self, request: Request) -> Response:
        sender = self._who(request)
        if sender is None:
            return self._unauthorised(request)
        if not self._admit(request, sender.point):
            return self._no(429, "too many connections", "this point has too many connections")
        if request.headers.get("content-type") != MEDIA_TYPE:
            return self._no(415, "garbage", f"the content type must be {MEDIA_TYPE}")
        length = request.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()) or "transfer-encoding" in request.headers:
            return self._no(411, "garbage", "send it whole, with its length and without a transfer encoding")
        size = int(length[:20])
        if size > self._most:
            return self._no(413, "too large", f"it has {size} bytes, more than the limit of {self._most}")
        if sender.point is not None and not await self._turn(sender.point, 0):  # a length is only declared yet
            return self._no(429, "over quota", "this point sends more than its quota")
        held: list[int] = []
        try:
            return await self._store(request, sender, size, held)
        finally:
            self._release(sender, sum(held))

    async def _turn(self, point: str, size: int) -> bool:
        """Wait until a point may send so much; return whether it may."""
        wait_s = self._quotas.wait_s(point, size, _TURN_S)
        if 0 < wait_s <= _TURN_S:
            self.counts["waited for its turn"] += 1
            await asyncio.sleep(wait_s)
        return wait_s <= _TURN_S

    def _has_room(self, sender: _Sender, size: int) -> bool:
        shares = self._quotas.limits.held if sender.point is not None else self.most_held
        return self.held + size <= self.most_held and self._held_by[sender.share] + size <= shares

    def _release(self, sender: _Sender, size: int) -> None:
        """Give back bytes that were held, and count them for their point if that was not done before."""
        self.held -= size
        self._held_by[sender.share] -= size
        if not self._held_by[sender.share]:
            del self._held_by[sender.share]
        if sender.point is not None:
            self._quotas.came(sender.point, size)

    def _hold(self, sender: _Sender, size: int, held: list[int]) -> bool:
        """Count bytes that have come; return whether there is room."""
        if not self._has_room(sender, size):
            return False
        self.held += size
        self._held_by[sender.share] += size
        held.append(size)
        return True

    async def _body(self, request: Request, sender: _Sender, size: int, held: list[int]) -> bytes | Response:
        """The message, or the reply to a sender of too much."""
        parts, left = list[bytes](), size
        if self._closed or not self._hold(sender, _HELD, held):
            return self._no(503, "busy", "too many messages are waiting")
        async for part in request.stream():
            left -= len(part)
            if left < 0:
                return self._no(400, "garbage", "it is longer than its length")
            if not self._hold(sender, len(part), held):
                return self._no(503, "busy", "too many messages are waiting")
            parts.append(part)
        return b"".join(parts)

    async def _store(self, request: Request, sender: _Sender, size: int, held: list[int]) -> Response:
        try:
            data = await asyncio.wait_for(self._body(request, sender, size, held), self._patience_s)
        except (TimeoutError, ClientDisconnect):
            return self._no(408, "slow", "it did not come in time")
        if isinstance(data, Response):
            return data
        try:
            opening = await asyncio.to_thread(peek, data, self._most) if len(data) > _LONG else peek(data, self._most)
        except ValueError as error:
            return self._unread(error)
        if (no := self._another(request, sender, opening.point) or self._twice(request, opening.point)) is not None:
            return no
        if sender.point is None and not await self._turn(opening.point, size):
            return self._no(429, "over quota", "this point sends more than its quota")
        stored = self._pass_on(request, opening.point, data)
        try:
            is_stored: bool | None = await asyncio.wait_for(stored, self._patience_s)
        except TimeoutError:
            is_stored = None
        return self._fate(is_stored)

    def direct(self, request: Request, body: bytes, reply: Callable[[Response], None]) -> bool:
        """Take a whole message at once, without a task of its own, and call `reply` when its fate is known.

        False, and nothing was counted, if it must wait for its turn or is not of the usual kind: then the other way
        decides. What both decide is the same.
        """
        if self._tokens is None or self._closed or len(body) > _LONG:
            return False
        if (sender := self._who(request)) is None or not body or request.headers.get("content-type") != MEDIA_TYPE:
            return False
        body = Opened(body)
        try:
            opening = peek(body, self._most)
        except ValueError:
            return False
        point, size = sender.point or opening.point, _HELD + len(body)
        if sender.point not in (None, opening.point) or not self._has_room(sender, size):
            return False
        if self._quotas.wait_s(point, 0 if sender.point is not None else len(body), 0.0) > 0:
            return False
        if not self._admit(request, sender.point):
            reply(self._no(429, "too many connections", "this point has too many connections"))
            return True
        if (no := self._another(request, sender, opening.point) or self._twice(request, opening.point)) is not None:
            reply(no)
            return True
        self._hold(sender, size, [])
        stored = self._pass_on(request, opening.point, body)

        def known(stored: asyncio.Future[bool | None]) -> None:
            self._release(sender, size)
            reply(self._fate(None if stored.cancelled() else stored.result()))

        stored.add_done_callback(known)
        self._patient.append((stored.get_loop().time() + self._patience_s, stored))
        self._wait()
        return True

    def _wait(self) -> None:
        """Set one clock for all that wait, the first of them first."""
        patient = self._patient
        while patient and patient[0][1].done():
            patient.popleft()
        if patient and not self._waits:
            self._waits = True
            patient[0][1].get_loop().call_at(patient[0][0], self._give_up)

    def _give_up(self) -> None:
        """Wait no longer for those whose time is over."""
        self._waits = False
        now_s = asyncio.get_running_loop().time()
        for _, stored in takewhile(lambda one: one[0] <= now_s, self._patient):
            stored.cancel()
        self._wait()

    def _unread(self, error: ValueError) -> Response:
        """The reply to what cannot be read."""
        if isinstance(error, UnknownVersion):
            return self._no(503, "of an unknown version", f"it {error}")
        return self._no(400, "garbage", f"it {error}")

    def _twice(self, request: Request, point: str) -> Response | None:
        """The reply to an agent that uses the name of another one."""
        if self._runs.admits(point, request.headers.get(RUN_HEADER, "")[:64], time.monotonic()):
            return None
        return self._second(point, request)

    def _pass_on(self, request: Request, point: str, data: bytes) -> asyncio.Future[bool | None]:
        """Hand a message to the collector."""
        if point in self._asks:
            self._asks[point].answered(self._number_of(request.headers.get(ASK_HEADER, "")))
        stored = asyncio.get_running_loop().create_future()
        self._came.put_nowait((data, stored))
        return stored

    def _fate(self, is_stored: bool | None) -> Response:
        """The reply when a message was stored or not; None: it is not known yet."""
        if is_stored is None:
            return self._no(503, "busy", "it was not processed in time")
        if not is_stored:
            return self._no(503, "not stored", "the collector cannot store it now; its log says why")
        self.counts["taken"] += 1
        return TAKEN

    async def _give(self, request: Request) -> Response:
        sender, point = self._who(request), request.path_params["point"]
        if sender is None:
            return self._unauthorised(request)
        if (no := self._another(request, sender, point)) is not None:
            return no
        if not self._admit(request, sender.point):
            return self._no(429, "too many connections", "this point has too many connections")
        asks = self._asks.setdefault(point, Asks()) if len(self._asks) < 1 << 16 else self._asks.get(point, Asks())
        asks.answered(self._number_of(request.query_params.get("after", "")))
        headers = {ASK_HEADER: self._life, "X-Accel-Buffering": "no"}
        shown = self._shown
        return AsksReply(
            asks, lambda: self._closed or self._shown is not shown, self.around(point), headers, MEDIA_TYPE
        )

    async def _tell(self, request: Request) -> Response:
        """What the collector knows of a point and these segments, for `wirelag agent --check`."""
        sender, point = self._who(request), request.path_params["point"]
        if sender is None:
            return self._unauthorised(request)
        if (no := self._another(request, sender, point)) is not None:
            return no
        return JSONResponse(self.about(point, request.query_params.getlist("segment")[:MOST_ASKS]))

    def _number_of(self, name: str) -> int:
        """The number of an ask; 0 if another process named it."""
        life, _, number = name.partition("-")
        return int(number[:20]) if life == self._life and number.isascii() and number.isdigit() else 0

    def _another(self, request: Request, sender: _Sender, point: str) -> Response | None:
        """The reply to a sender that is not this point, by its token or by its certificate."""
        named: frozenset[str] | None = request.scope.get("state", {}).get("points")
        if sender.point not in (None, point):
            what, own = "token", f", {sender.point}"
        elif named is not None and point not in named:
            names = ", ".join(sorted(named))[:200] or "none, or may sign others (CA:TRUE)"
            what, own = "certificate", f": it names {names}"
        else:
            return None
        self._refused(request, f"a {what} of another point")
        return self._no(403, "unauthorised", f"the {what} belongs to another point{own}")

    def _unauthorised(self, request: Request) -> Response:
        self._refused(request, "a wrong token")
        return self._no(401, "unauthorised", "the token is missing or wrong")

    def _who(self, request: Request) -> _Sender | None:
        """The sender, if it is authorised."""
        address = "" if request.client is None else request.client.host
        if self._tokens is None:
            return _Sender(None, address)
        word, _, given = request.headers.get("authorization", "").partition(" ")
        digest = _digest(given.strip())
        if word.lower() != "bearer" or not given or digest not in self._tokens:
            return None
        point = self._tokens[digest]
        return _Sender(point, address if point is None else f"point {point}")

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
        if status in (429, 503):
            headers["Retry-After"] = "1"
        return Response(line, status, headers, "text/plain")
