"""The collector's server: access control, routes, and its life from start to end.

Laws. With tokens every request needs one: `Authorization: Bearer`, or for the page a session opened with a token.
Without tokens it listens on loopback only, and serves only requests that name it, so that no page of another site can
use it. No secret is logged. The page talks only to this server.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import os
import re
import signal
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from html import escape
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qs

from wirelag import __version__
from wirelag.collector.reload import Reload
from wirelag.collector.sessions import SESSION_S, scope_of
from wirelag.collector.sessions import opened as opened_session
from wirelag.collector.settings import Settings
from wirelag.collector.tokens import AGENT, METRICS, READ, Tokens, refusal, senders
from wirelag.errors import MissingExtraError, WirelagError

try:
    import prometheus_client  # noqa: F401 (metrics.py uses it when it is first asked)
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, RedirectResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    from wirelag.collector.api import Api, wrong
    from wirelag.collector.certificates import Encryption
    from wirelag.collector.connections import Briefly, Door, Visitors, close_idle, read_by_record, room
    from wirelag.collector.desk import Desk
    from wirelag.collector.following import pointed
    from wirelag.collector.loop import Collector
    from wirelag.collector.metrics import InUse
    from wirelag.collector.objectives import Objectives
    from wirelag.collector.overview import Overview, Sites
    from wirelag.collector.replies import METRICS, Replies
    from wirelag.collector.requests import NamedProtocol
    from wirelag.collector.store import Store, StoreUnavailable
    from wirelag.collector.stores import name_of, opened, shown
    from wirelag.transport.audit import Audit
    from wirelag.transport.http_inbox import HttpInbox
    from wirelag.transport.notices import lasting_log
except ImportError:
    raise MissingExtraError("wirelag collect") from None

from wirelag.network.topology import read_topology
from wirelag.protocol.results import Ends
from wirelag.protocol.session import Rounds
from wirelag.render.html.frame import asset
from wirelag.transport import Inbox, loopback
from wirelag.transport.quotas import Quotas
from wirelag.transport.runs import Runs
from wirelag.transport.service_manager import watched

MOST_LOGIN: Final = 4096  # bytes
LOGIN_S: Final = 10.0
COOKIE: Final = "wirelag"
ENDING_S: Final = 3
MOST_KNOWN: Final = 64  # segments that an agent is told
AGAIN_S: Final = 2.0  # between two attempts to open the store
HEADERS: Final = (
    (b"content-security-policy", b"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
     b"frame-ancestors 'none'; form-action 'self'; base-uri 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)  # fmt: skip
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[0-9a-zA-Z.-]+)(:\d{1,5})?")
_CHARTS: Final = ("axes.js", "shapes.js", "tips.js", "charts.js", "charts.css")  # of every page
OWN: Final = (
    "view.js", "list.js", "map.js", "segments.js", "one.js", "network.js", "page.js", "page.css",
)  # fmt: skip
_TYPES: Final = {"js": "text/javascript", "css": "text/css"}


class Guard:
    """Checks access; adds headers that keep browsers from contacting other sites."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens | None,
        encrypted: bool,
        admit: Callable[[Request, str | None, bool], bool] = lambda request, point, reads: True,
        refused: Callable[[Request, str], None] = lambda request, what: None,
        opened: Callable[[Request, str], None] = lambda request, scope: None,
        is_strange: Callable[[Request], bool] = lambda request: False,
    ) -> None:
        """`admit` is told of connections with a right token, `refused` of other requests, `opened` of logins."""
        self._app, self._encrypted, self._admit, self._refused = app, encrypted, admit, refused
        self._opened, self._is_strange = opened, is_strange
        self._tokens: Tokens | None = None
        self.use(tokens)

    def use(self, tokens: Tokens | None) -> None:
        """Accept these tokens from now on, and their sessions."""
        self._tokens = None if tokens is None else dict(tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        agents = scope["path"].startswith("/v1/")  # not browsers: headers would only cost bytes

        async def with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start" and not (agents and message["status"] < 400):  # type: ignore[operator]
                message["headers"] = [*message.get("headers", ()), *HEADERS]  # type: ignore[misc]
            if message["type"] == "http.response.start" and self._is_strange(request):  # nothing more is read from it
                kept = [one for one in message.get("headers", ()) if one[0].lower() != b"connection"]  # type: ignore[attr-defined]
                message["headers"] = [*kept, (b"connection", b"close")]
            await send(message)

        request = Request(scope, receive)
        refusal = await self._refusal(request)
        await (refusal or self._app)(scope, receive, with_headers)  # type: ignore[arg-type]

    async def _refusal(self, request: Request) -> Response | None:
        if self._tokens is None:
            named = _HOST.fullmatch(request.headers.get("host", ""))
            if named is not None and loopback(named[1].strip("[]")):
                self._admit(request, None, False)
                return None
            return wrong(403, "this collector has no token: it serves loopback only")
        path = request.scope["path"]  # as routes see it; `url` is made from what the client calls this host
        if path.startswith("/v1/") or path in ("/-/healthy", "/-/ready"):  # messages have tokens of their own
            return None
        if path == "/login" and request.method == "POST":
            return await self._login(request)
        word, _, given = request.headers.get("authorization", "").partition(" ")
        scope = (self._scope(given.strip()) if word.lower() == "bearer" else None) or self._in_session(request)
        if scope is not None:
            point = scope.removeprefix(AGENT) if scope.startswith(AGENT) else None
            if not self._admit(request, point, scope in (READ, METRICS)):
                return wrong(429, "too many connections with this token")
            why = refusal(scope, request.method, path)
            if why:
                self._refused(request, f"a token of scope {scope} for {request.method} {path}")
            return wrong(403, f"this token does not allow that: {why}") if why else None
        self._refused(request, "a wrong token" if given else "no token")
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(
                _login_page(request.scope["query_string"].decode("latin-1")), 401, {"WWW-Authenticate": "Bearer"}
            )
        return wrong(401, "the token is missing or wrong")

    def _scope(self, given: str) -> str | None:
        """The scope of a token; None if it is wrong. All are compared, so that timing reveals nothing."""
        tokens = (self._tokens or {}).items()
        found = [scope for token, scope in tokens if hmac.compare_digest(token.encode(), given.encode())]
        return found[0] if found else None

    def _in_session(self, request: Request) -> str | None:
        return scope_of(request.cookies.get(COOKIE, ""), self._tokens or {}, time.time())

    async def _login(self, request: Request) -> Response:
        body = b""
        try:
            async with asyncio.timeout(LOGIN_S):
                async for part in request.stream():
                    body += part
                    if len(body) > MOST_LOGIN:
                        return wrong(413, "that is not a token")
        except TimeoutError:
            return wrong(408, "the token did not come in time")
        fields = parse_qs(body.decode(errors="replace"))
        given, view = (fields.get(name, [""])[0].strip() for name in ("token", "view"))
        scope = self._scope(given)
        if scope is None or refusal(scope, "GET", "/"):
            self._refused(request, "a wrong login")
            return HTMLResponse(_login_page(view, "That token is wrong."), 401, {"WWW-Authenticate": "Bearer"})
        self._admit(request, None, scope == READ)
        self._opened(request, scope)
        answer, session = RedirectResponse(f"/?{view}".rstrip("?"), 303), opened_session(given, time.time())
        answer.set_cookie(COOKIE, session, max_age=SESSION_S, httponly=True, samesite="strict", secure=self._encrypted)
        return answer


def application(collector: Collector, settings: Settings, inbox: HttpInbox, desk: Desk) -> tuple[Guard, Api]:
    """The whole application, and the API in it."""
    topology = None
    if settings.topology is not None and settings.follow is None:
        topology = read_topology(settings.topology)
        topology = pointed(topology, settings.names) if settings.names else topology
    overview = Overview(collector, Objectives(settings.objectives), Sites(settings.sites))
    api = Api(collector, topology, settings.slow_ns / 1e9, overview)
    pages = [Route("/", _page), Route("/assets/{name}", _asset)]
    app = Starlette(routes=[*pages, *api.routes(), *inbox.routes()])
    told = desk.admit, desk.refused, desk.opened, desk.is_strange
    in_turn = Replies(Replies(app, collector.counted), collector.counted, METRICS)
    return Guard(in_turn, settings.tokens, settings.certificate is not None, *told), api


async def _page(request: Request) -> Response:
    return HTMLResponse(_text("page.html"), headers={"Cache-Control": "no-store"})


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in (*_CHARTS, *OWN):
        return Response("not found", 404, media_type="text/plain")
    text = asset(name) if name in _CHARTS else _text(name)
    return Response(text, media_type=_TYPES[name.rpartition(".")[2]], headers={"Cache-Control": "no-cache"})


def _text(name: str) -> str:
    return (resources.files("wirelag.collector") / name).read_text()


def _login_page(view: str, problem: str = "") -> str:
    """The page that asks for a token; `view`: the query of the page that was wanted."""
    said = f'<p class="bad">{escape(problem)}</p>' if problem else ""
    wanted = f'<input name="view" type="hidden" value="{escape(view)}">'
    return _text("login.html").replace("<!-- problem -->", said).replace("<!-- view -->", wanted)


# ---- life cycle ----


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    async def main_loop(self) -> None:
        """Wait for `end`. The library looks ten times a second: two thirds of all that an idle collector took."""
        await self._ending.wait()

    def end(self) -> None:
        """Take no more connections, and end when replies are sent."""
        self.should_exit = True
        self._ending.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the collector handles signals."""
        yield


def listening(settings: Settings) -> socket.socket:
    """The listening socket; a one-line error if it cannot be opened."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        both = settings.host == "::" and socket.has_dualstack_ipv6()  # [::] is every address, including IPv4
        where = settings.host, settings.port
        return socket.create_server(where, family=family, backlog=512, dualstack_ipv6=both)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WirelagError(f"{settings.host}:{settings.port}: cannot listen ({reason}); choose with --listen") from None


def encryption(settings: Settings) -> Encryption | None:
    """TLS according to the settings."""
    return None if settings.certificate is None else Encryption(settings)


async def serve(settings: Settings, read: Callable[[], Settings]) -> None:
    """Collect until stopped (SIGINT, SIGTERM); `read` reads the settings again (SIGHUP)."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: None)  # nothing to reload yet
    encrypted = encryption(settings)
    context = None if encrypted is None else encrypted.context
    with lasting_log(), listening(settings) as sock, ExitStack() as stack:
        store = await _opened(settings, stack, sock, context, ended)
        if store is not None:
            await _serve(settings, read, store, sock, encrypted, ended)


async def _opened(
    settings: Settings, stack: ExitStack, sock: socket.socket, context: ssl.SSLContext | None, ended: asyncio.Event
) -> Store | None:
    """The store; while the disk is full or read-only, all requests get 503 and agents keep their messages."""
    said, waiting, works = "", None, None
    name = f"{socket.gethostname()} {settings.host}:{sock.getsockname()[1]}"  # hosts may have one name
    session = name_of(socket.gethostname(), sock.getsockname()[1]) if settings.shares else ""
    try:
        while not ended.is_set():
            try:
                return await asyncio.to_thread(opened, settings, stack, name, session)
            except StoreUnavailable as error:
                stack.close()
                if said != str(error):
                    said = str(error)
                    print(f"wirelag: {said}; agents keep their messages", file=sys.stderr, flush=True)
            if waiting is None:
                limits = settings.limits
                visitors = Visitors(room(), limits.strangers, limits.connections, Counter(), context is not None)
                waiting = _server(_not_yet, context, visitors)
                serving = asyncio.create_task(waiting.serve([Door.at(sock.dup(), visitors)]))
                works = asyncio.create_task(watched(lambda: True))  # a restart would not help
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), AGAIN_S)
        return None
    finally:
        if waiting is not None:
            waiting.end()
            await serving
        if works is not None:
            works.cancel()


async def _not_yet(scope: Scope, receive: Receive, send: Send) -> None:
    """The application while there is no store: alive, but not ready."""
    alive = scope["path"] == "/-/healthy"
    said = "store: it cannot be opened: agents keep their messages\n"
    headers = {"Retry-After": "1", "Connection": "close"}
    await Response(said, 200 if alive else 503, headers, "text/plain")(scope, receive, send)


def _server(
    app: ASGIApp, context: ssl.SSLContext | None, visitors: Visitors, inbox: HttpInbox | None = None
) -> _Server:
    protocol: Any = partial(NamedProtocol, visitors=visitors, inbox=inbox)
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", http=protocol, ws="none", server_header=False,
        date_header=False, timeout_graceful_shutdown=ENDING_S, log_config=None,
    )  # fmt: skip
    config.load()
    config.ssl = context
    read_by_record()
    return _Server(config)


def _in_use(collector: Collector, settings: Settings, inbox: HttpInbox, visitors: Visitors) -> dict[str, InUse]:
    """What is in use of what there is, for the metrics; and what one point may use."""
    limits = settings.limits
    return {
        "waiting_bytes": InUse(settings.most_waiting, collector.rounds.bytes),
        "held_bytes": InUse(inbox.most_held, inbox.held),
        "connections": InUse(visitors.most, len(visitors)),
        "strangers": InUse(visitors.most // 2, visitors.strangers),
        "messages_per_second_of_a_point": InUse(limits.messages),
        "bytes_per_second_of_a_point": InUse(limits.bytes),
        "time_of_a_point": InUse(limits.time),
        "connections_of_a_point": InUse(limits.connections),
        "strangers_of_an_address": InUse(limits.strangers),
        "segments_of_a_point": InUse(settings.most_named),
        "classes_of_a_point": InUse(settings.most_classes),
    }


async def _pushed(settings: Settings, collector: Collector, api: Api) -> None:
    """Send metrics to those who are named in the settings."""
    if settings.push is not None:
        from wirelag.collector.push import Push, settled_since

        name, settled = f"{socket.gethostname()}:{settings.port}", settled_since()
        collector.exported = settled if settings.push.ipfix is not None else None
        push = Push(settings.push, collector.metrics, api.measured, name, settled)
        await push.run(collector.counted, collector.notices)


def _by_agents(ends: Sequence[Ends], running: Settings) -> bool:
    """Whether agents may name segments."""
    return not ends or running.follow is not None


def _about(collector: Collector, point: str, segments: list[str]) -> dict[str, Any]:
    """What an agent asks before it starts."""
    rounds = collector.rounds
    known = [one.segment for one in rounds.segments if point in one.points][:MOST_KNOWN]
    return {
        "version": __version__,
        "now": collector.clock() / 1e9,
        "ready": collector.health.ready,
        "segments": {name: rounds.end_of(name, point) for name in segments},
        "known": known,
    }


async def _serve(
    settings: Settings,
    read: Callable[[], Settings],
    store: Store,
    sock: socket.socket,
    encrypted: Encryption | None,
    ended: asyncio.Event,
) -> None:
    rounds = Rounds(
        settings.ends,
        named_by_agents=_by_agents(settings.ends, settings),
        most_bytes=settings.most_waiting,
        most_named=settings.most_named,
        most_classes=settings.most_classes,
    )
    quotas = Quotas(settings.limits)
    collector = Collector(rounds, store, follow=settings.follow, quotas=quotas)
    limits, encrypts = settings.limits, encrypted is not None
    visitors = Visitors(room(), limits.strangers, limits.connections, collector.counted, encrypts)
    audit = Audit(settings.audit)
    collector.audit = audit
    desk = Desk(visitors, collector.counted, collector.notices, audit)
    if settings.client_ca is not None:
        visitors.unmet = desk.unmet
    following = None
    if settings.follow is not None and settings.topology is not None:
        following = partial(read_topology, settings.topology)
        following()  # a topology that cannot be read now is a wrong setting; later it is an outage
    runs = Runs()
    inbox = HttpInbox(senders(settings.tokens), quotas=quotas, runs=runs, admit=desk.admit, refused=desk.refused)
    collector.in_use = partial(_in_use, collector, settings, inbox, visitors)
    inboxes: list[Inbox] = [inbox]
    sharing = None
    if settings.shares:
        from wirelag.collector.sharing import shared

        sharing = shared(settings, collector, store, inbox, quotas, runs)
        inboxes = sharing.inboxes
    elif settings.nats is not None:
        from wirelag.transport.nats import NatsInbox

        name = f"{socket.gethostname()}:{os.path.realpath(settings.store)}"
        inboxes.append(NatsInbox(settings.nats, name=name, quotas=quotas, runs=runs))
    app, api = application(collector, settings, inbox, desk)
    inbox.about = partial(_about, collector)

    async def take(new: Settings) -> None:
        if (settings.tokens is None) != (new.tokens is None):
            raise WirelagError(
                "token_file: a collector with tokens cannot become one without, nor the reverse; restart"
            )
        if (settings.certificate is None) != (new.certificate is None):
            raise WirelagError("certificate: HTTP cannot become HTTPS, nor the reverse; restart")
        if encrypted is not None and new.certificate is not None:
            encrypted.renew(new)  # first: it alone can fail
        inbox.use(senders(new.tokens))
        app.use(new.tokens)
        if new.client_ca is not None:
            visitors.unmet = desk.unmet
            for one in list(server.server_state.connections):
                one.shutdown()  # when its request is done: whoever is still admitted connects again
        store.retain(new.retention)
        api.slow, quotas.limits = new.slow_ns / 1e9, new.limits
        api.overview.judge_by(Objectives(new.objectives), Sites(new.sites))
        visitors.allow(new.limits.strangers, new.limits.connections)
        collector.in_use = partial(_in_use, collector, new, inbox, visitors)
        await collector.in_worker(rounds.allow, new.most_waiting, new.most_named, new.most_classes)
        await collector.in_worker(collector.measure, new.ends, _by_agents(new.ends, settings))
        audit.say("reload", tokens=len(new.tokens or ()), segments=len(new.ends))

    reload = Reload(settings, read, take)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.begin)
    door = Door.at(sock, visitors)
    gc.freeze()  # what is there stays: collecting cycles is quick,
    gc.set_threshold(20_000, 20, 50)  # and seldom: messages and results have none
    server = _server(app, None if encrypted is None else encrypted.context, visitors, inbox)
    Briefly(collector.notices).instead()
    working = asyncio.create_task(collector.run(inboxes, following))
    together = asyncio.create_task(ended.wait() if sharing is None else sharing.run())
    serving = asyncio.create_task(server.serve([door]))
    closing = asyncio.create_task(close_idle(server, visitors, collector.counted))
    waiting = asyncio.create_task(ended.wait())
    watching = asyncio.create_task(watched(lambda: collector.health.healthy))
    pushing = asyncio.create_task(_pushed(settings, collector, api))
    scheme = "http" if encrypted is None else "https"
    host, port = door.getsockname()[:2]
    print(
        f"collecting at {scheme}://{f'[{host}]' if ':' in host else host}:{port}/, store {shown(settings.store)}",
        file=sys.stderr,
    )
    sys.stderr.flush()
    try:
        await asyncio.wait([working, serving, closing, waiting, together], return_when=asyncio.FIRST_COMPLETED)
        if closing.done():
            closing.result()  # it ends only by an error
    finally:
        if sharing is not None:
            await sharing.close()
        together.cancel()
        await asyncio.gather(together, return_exceptions=True)
        for one in inboxes:
            await one.close()
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        await collector.close()
        server.end()
        await serving
        waiting.cancel()
        closing.cancel()
        watching.cancel()
        pushing.cancel()
