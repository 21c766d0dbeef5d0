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
from hmac import compare_digest
from typing import Any, Final, NamedTuple

from wirelag.errors import MissingExtraError
from wirelag.protocol.messages import MOST_BYTES, Opened, UnknownVersion, peek
from wirelag.transport import NOW, Acknowledge
from wirelag.transport.http import ASK_HEADER, MEDIA_TYPE, RUN_HEADER
from wirelag.transport.quotas import Quotas
from wirelag.transport.runs import Runs

try:
    from starlette.datastructures import Address
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


Reply = Callable[[Response], None]
TAKEN: Final = Response(status_code=204)
_SECRET: Final = secrets.token_bytes(32)


def _digest(token: str) -> bytes:
    """What stands for a token: of a key that nobody knows, so that the time of a look-up reveals nothing."""
    return hashlib.blake2b(token.encode(errors="replace"), key=_SECRET).digest()


def _by_digest(tokens: Mapping[str, str | None] | None) -> dict[bytes, str | None] | None:
    return None if tokens is None else {_digest(token): point for token, point in tokens.items()}


class _Sender(NamedTuple):
    """Who sends: a point, if the token belongs to one; and whose share of memory it uses, else its address's."""

    point: str | None
    share: str


class Caller:
    """The other end of a connection, and the points that its certificate names; None: it has none.

    It remembers the last token that was right, as long as tokens are the same.
    """

    __slots__ = ("_for", "_sender", "_token", "client", "points")

    def __init__(self, client: Address | None, points: frozenset[str] | None) -> None:
        self.client, self.points = client, points
        self._token, self._for, self._sender = "", object(), _Sender(None, "")

    @classmethod
    def of(cls, request: Request) -> Caller:
        """The one that a request came from."""
        return cls(request.client, request.scope.get("state", {}).get("points"))

    def last(self, token: str, shown: object) -> _Sender | None:
        """Whom this token stands for, if it is the last one that was right."""
        return self._sender if self._for is shown and compare_digest(token, self._token) else None

    def remember(self, token: str, shown: object, sender: _Sender) -> None:
        """Note a right token; a connection that was admitted once stays so."""
        self._token, self._for, self._sender = token, shown, sender


class _Waiting:
    """A message that has come. It is told its fate once, by whoever acknowledges it or by the clock."""

    __slots__ = ("_tell", "data", "until_s")

    def __init__(self, data: bytes, tell: Callable[[bool | None], None], until_s: float) -> None:
        self.data, self.until_s = data, until_s
        self._tell: Callable[[bool | None], None] | None = tell

    def __call__(self, is_stored: bool | None = True) -> Awaitable[None]:
        """Acknowledge it, unless that was done."""
        if (tell := self._tell) is not None:
            self._tell, self.data = None, b""  # it may stand behind one that waits longer
            tell(is_stored)
        return NOW

    @property
    def is_over(self) -> bool:
        """Whether its sender no longer waits."""
        return self._tell is None


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
        admit: Callable[[Caller, str | None], bool] = lambda caller, point: True,
        refused: Callable[[Caller, str], None] = lambda caller, what: None,
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
        self._came: deque[_Waiting] = deque()
        self._some = asyncio.Event()  # whether some have come, or none will any more
        self._patient: deque[_Waiting] = deque()  # those whose senders wait, the one that gives up first in front
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
        while True:
            while self._came:
                if not (came := self._came.popleft()).is_over:
                    yield came.data, came
            if self._closed:
                return
            self._some.clear()
            await self._some.wait()

    async def ask(self, point: str, data: bytes) -> None:
        """Queue a message until the agent fetches it; the oldest are dropped if too many wait."""
        self._number += 1
        if dropped := self._asks.setdefault(point, Asks()).add(self._number, data):
            self.counts["asks dropped"] += dropped

    async def close(self) -> None:
        """Turn away all waiting requests."""
        self._closed = True
        self._some.set()
        for asks in self._asks.values():
            asks.wake()

    async def _take(self, request: Request) -> Response:
        caller, sender = self._who(request)
        if sender is None:
            return self._unauthorised(caller)
        if not self._admit(caller, sender.point):
            return self._crowded()
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
            return await self._store(request, caller, sender, size, held)
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

    def _hold(self, sender: _Sender, size: int) -> bool:
        """Count bytes that have come; return whether there is room."""
        if not self._has_room(sender, size):
            return False
        self.held += size
        self._held_by[sender.share] += size
        return True

    async def _body(self, request: Request, sender: _Sender, size: int, held: list[int]) -> bytes | Response:
        """The message, or the reply to a sender of too much."""
        parts, left = list[bytes](), size
        if self._closed or not self._hold(sender, _HELD):
            return self._no(503, "busy", "too many messages are waiting")
        held.append(_HELD)
        async for part in request.stream():
            left -= len(part)
            if left < 0:
                return self._no(400, "garbage", "it is longer than its length")
            if not self._hold(sender, len(part)):
                return self._no(503, "busy", "too many messages are waiting")
            held.append(len(part))
            parts.append(part)
        return b"".join(parts)

    async def _store(self, request: Request, caller: Caller, sender: _Sender, size: int, held: list[int]) -> Response:
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
        run, ask = request.headers.get(RUN_HEADER, ""), request.headers.get(ASK_HEADER, "")
        if (no := self._another(caller, sender, opening.point) or self._twice(caller, opening.point, run)) is not None:
            return no
        if sender.point is None and not await self._turn(opening.point, size):
            return self._no(429, "over quota", "this point sends more than its quota")
        fate: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._pass_on(opening.point, data, ask, lambda is_stored: None if fate.done() else fate.set_result(is_stored))
        return self._fate(await fate)

    def direct(self, caller: Caller, token: str, run: str, ask: str, body: Opened, reply: Reply) -> bool:
        """Take a whole message at once, without a task of its own, and call `reply` when its fate is known.

        False, and nothing was counted, if it must wait for its turn or is not of the usual kind: then the other way
        decides. What both decide is the same.
        """
        size = _HELD + len(body)
        if self._tokens is None or self._closed or not _HELD < size <= _HELD + _LONG:
            return False
        known = caller.last(token, self._shown)
        sender = known or self._sender(caller, token)
        if sender is None or not self._has_room(sender, size):
            return False
        try:
            point = peek(body, self._most).point
        except ValueError:
            return False
        if sender.point not in (None, point):
            return False
        if self._quotas.wait_s(point, 0 if sender.point is not None else len(body), 0.0) > 0:
            return False
        if known is None:
            if not self._admit(caller, sender.point):
                reply(self._crowded())
                return True
            caller.remember(token, self._shown, sender)
        if (no := self._another(caller, sender, point) or self._twice(caller, point, run)) is not None:
            reply(no)
            return True
        self._hold(sender, size)

        def tell(is_stored: bool | None) -> None:
            self._release(sender, size)
            reply(self._fate(is_stored))

        self._pass_on(point, body, ask, tell)
        return True

    def _pass_on(self, point: str, data: bytes, ask: str, tell: Callable[[bool | None], None]) -> None:
        """Hand a message to the collector, and have `tell` called with its fate, when it is known or time is over."""
        if ask and point in self._asks:
            self._asks[point].answered(self._number_of(ask))
        waiting = _Waiting(data, tell, asyncio.get_running_loop().time() + self._patience_s)
        self._came.append(waiting)
        self._some.set()
        self._patient.append(waiting)
        self._wait()

    def _wait(self) -> None:
        """Set one clock for all that wait, the first of them first."""
        patient = self._patient
        while patient and patient[0].is_over:
            patient.popleft()
        if patient and not self._waits:
            self._waits = True
            asyncio.get_running_loop().call_at(patient[0].until_s, self._give_up)

    def _give_up(self) -> None:
        """Wait no longer for those whose time is over."""
        self._waits = False
        now_s = asyncio.get_running_loop().time()
        while self._patient and (self._patient[0].is_over or self._patient[0].until_s <= now_s):
            self._patient.popleft()(None)
        self._wait()

    def _unread(self, error: ValueError) -> Response:
        """The reply to what cannot be read."""
        if isinstance(error, UnknownVersion):
            return self._no(503, "of an unknown version", f"it {error}")
        return self._no(400, "garbage", f"it {error}")

    def _twice(self, caller: Caller, point: str, run: str) -> Response | None:
        """The reply to an agent that uses the name of another one."""
        return None if self._runs.admits(point, run[:64], time.monotonic()) else self._second(point, caller)

    def _fate(self, is_stored: bool | None) -> Response:
        """The reply when a message was stored or not; None: it is not known yet."""
        if is_stored is None:
            return self._no(503, "busy", "it was not processed in time")
        if not is_stored:
            return self._no(503, "not stored", "the collector cannot store it now; its log says why")
        self.counts["taken"] += 1
        return TAKEN

    async def _give(self, request: Request) -> Response:
        (caller, sender), point = self._who(request), request.path_params["point"]
        if sender is None:
            return self._unauthorised(caller)
        if (no := self._another(caller, sender, point)) is not None:
            return no
        if not self._admit(caller, sender.point):
            return self._crowded()
        asks = self._asks.setdefault(point, Asks()) if len(self._asks) < 1 << 16 else self._asks.get(point, Asks())
        asks.answered(self._number_of(request.query_params.get("after", "")))
        headers = {ASK_HEADER: self._life, "X-Accel-Buffering": "no"}
        shown = self._shown
        return AsksReply(
            asks, lambda: self._closed or self._shown is not shown, self.around(point), headers, MEDIA_TYPE
        )

    async def _tell(self, request: Request) -> Response:
        """What the collector knows of a point and these segments, for `wirelag agent --check`."""
        (caller, sender), point = self._who(request), request.path_params["point"]
        if sender is None:
            return self._unauthorised(caller)
        if (no := self._another(caller, sender, point)) is not None:
            return no
        return JSONResponse(self.about(point, request.query_params.getlist("segment")[:MOST_ASKS]))

    def _number_of(self, name: str) -> int:
        """The number of an ask; 0 if another process named it."""
        life, _, number = name.partition("-")
        return int(number[:20]) if life == self._life and number.isascii() and number.isdigit() else 0

    def _another(self, caller: Caller, sender: _Sender, point: str) -> Response | None:
        """The reply to a sender that is not this point, by its token or by its certificate."""
        if sender.point not in (None, point):
            what, own = "token", f", {sender.point}"
        elif caller.points is not None and point not in caller.points:
            names = ", ".join(sorted(caller.points))[:200] or "none, or may sign others (CA:TRUE)"
            what, own = "certificate", f": it names {names}"
        else:
            return None
        self._refused(caller, f"a {what} of another point")
        return self._no(403, "unauthorised", f"the {what} belongs to another point{own}")

    def _unauthorised(self, caller: Caller) -> Response:
        self._refused(caller, "a wrong token")
        return self._no(401, "unauthorised", "the token is missing or wrong")

    def _crowded(self) -> Response:
        return self._no(429, "too many connections", "this point has too many connections")

    def _who(self, request: Request) -> tuple[Caller, _Sender | None]:
        """Who calls, and as which sender, if it is authorised."""
        caller = Caller.of(request)
        word, _, given = request.headers.get("authorization", "").partition(" ")
        return caller, self._sender(caller, given.strip() if word.lower() == "bearer" else "")

    def _sender(self, caller: Caller, token: str) -> _Sender | None:
        """The sender that a token stands for; None if it is wrong."""
        address = "" if caller.client is None else caller.client.host
        if self._tokens is None:
            return _Sender(None, address)
        if not token or (digest := _digest(token)) not in self._tokens:
            return None
        point = self._tokens[digest]
        return _Sender(point, address if point is None else f"point {point}")

    def _second(self, point: str, caller: Caller) -> Response:
        """Refuse an agent that uses the name of another one that is running; told once for each point."""
        if point not in self._doubled and len(self._doubled) < _MOST_DOUBLED:
            self._doubled.add(point)
            where = "an unknown address" if caller.client is None else caller.client.host
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
