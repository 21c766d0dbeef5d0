"""What the collector sends by itself: metrics by remote write and OpenTelemetry (OTLP over HTTP), intervals by IPFIX.

Laws. Metrics are what /metrics has at that moment. All their counts are cumulative: what could not be sent is not sent
again, because the next time has all of it. Intervals are sent once, when they are settled; those that could not be sent
wait, the newest 100,000 of them. A receiver that does not answer delays nothing but its next attempt.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from wirelag.collector.metrics import Metrics
from wirelag.collector.receivers import Receivers
from wirelag.errors import WirelagError
from wirelag.render import otlp, remote_write
from wirelag.render.ipfix import Exporter
from wirelag.transport import Address
from wirelag.transport.notices import Notices

Settled = deque[tuple[str, dict[str, Any]]]  # segments and their reports, as the API has them
Send = Callable[[tuple[Any, ...]], int]  # returns the requests that it took
PATIENCE_S: Final = 10.0  # between two bytes,
ANSWER_S: Final = 20.0  # and in all
MOST_WAITING: Final = 100_000  # intervals
_MOST_SAID: Final = 300  # characters of a refusal


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: a secret must not go elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Push:
    """Sends without end."""

    def __init__(
        self,
        receivers: Receivers,
        metrics: Metrics,
        measured: Callable[[], tuple[Any, ...]],
        instance: str,
        settled: Settled,
    ) -> None:
        """`measured`: what families are made from; `instance`: this collector; `settled`: intervals since the last."""
        self._settled, self._exporter = settled, Exporter()
        if receivers.ipfix is not None:
            self._exporter.domain = receivers.ipfix.domain
        self._to, self._metrics, self._measured, self._instance = receivers, metrics, measured, instance
        self._began_ns = time.time_ns()

    async def run(self, counted: Counter[str], notices: Notices) -> None:
        """Send regularly, until cancelled; to each receiver by itself."""
        to = self._to
        async with asyncio.TaskGroup() as group:
            for what, address, post in (
                ("remote write", to.remote_write, self._remote_write),
                ("otlp", to.otlp, self._otlp),
            ):
                if address is not None:
                    way = _Way(address)
                    group.create_task(self._run(what, partial(post, way), way.break_off, counted, notices))
            if to.ipfix is not None:
                group.create_task(self._run("ipfix", self._ipfix, lambda: None, counted, notices))

    async def _run(
        self, what: str, send: Send, break_off: Callable[[], None], counted: Counter[str], notices: Notices
    ) -> None:
        counted[f"{what} failed"] += 0  # Prometheus sees no increase of what was not there before
        try:
            while True:
                try:
                    counted[f"{what} requests"] += await asyncio.to_thread(send, self._measured())
                except Exception as error:  # whatever it is, the next attempt may succeed
                    counted[f"{what} failed"] += 1
                    notices.say("metrics not sent", what, f"{error}; the next attempt has everything")
                await asyncio.sleep(self._to.every_ns / 1e9)
        finally:
            break_off()  # the thread ends now, not when the receiver answers

    def _remote_write(self, way: _Way, given: tuple[Any, ...]) -> int:
        labels = {"job": "wirelag", "instance": self._instance}
        bodies = remote_write.to_remote_write(self._metrics.families(*given), labels, time.time_ns() // 10**6)
        for body in bodies:
            way.post(body, remote_write.HEADERS)
        return len(bodies)

    def _otlp(self, way: _Way, given: tuple[Any, ...]) -> int:
        resource = {"service.name": "wirelag", "service.instance.id": self._instance}
        families, natives = self._metrics.families(*given), self._metrics.natives()
        way.post(otlp.to_otlp(families, natives, resource, self._began_ns, time.time_ns()), otlp.HEADERS)
        return 1

    def _ipfix(self, _: tuple[Any, ...]) -> int:
        """Send what has been settled; over UDP as one session, over a connection as a session each time."""
        waiting = list(self._settled)
        if (target := self._to.ipfix) is None or not waiting:
            return 0
        if target.scheme != "ipfix+udp":
            self._exporter.sequence = 0

        def messages(most: int) -> Iterable[bytes]:
            self._exporter.most = most
            return self._exporter.segments(waiting, f"collect {self._instance}")

        target.send(messages)
        for sent in waiting:  # others may have come, and pushed these out
            if self._settled[0] is sent:
                self._settled.popleft()
        return 1


def settled_since() -> Settled:
    """Where intervals wait."""
    return deque(maxlen=MOST_WAITING)


class _Way:
    """Requests to one receiver, one after the other. Each ends within ANSWER_S, however slowly the reply comes."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._held: socket.socket | None = None  # of the request under way: another name for its connection
        self._is_broken_off = self._is_late = False

    def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a request, and wait for the reply; a WirelagError says what failed."""
        address, given = self._address, {"User-Agent": "wirelag", **headers}
        if address.secret:
            given["Authorization"] = f"Bearer {address.secret}"
        request = urllib.request.Request(address.url, body, given, method="POST")
        opener = urllib.request.build_opener(_Stay, _Http(self._connected), _Https(self._connected, address.context()))
        self._is_late, late = False, threading.Timer(ANSWER_S, self._give_up)
        late.daemon = True
        late.start()
        try:
            with opener.open(request, timeout=PATIENCE_S) as answer:
                answer.read(_MOST_SAID)
            if self._is_late:
                raise TimeoutError("its reply does not end")
        except urllib.error.HTTPError as error:
            said = ""
            with suppress(OSError, http.client.HTTPException), error:
                said = " ".join(error.read(_MOST_SAID).decode(errors="replace").split())
            status = f"status {error.code}{': ' * bool(said)}{said}"
            raise WirelagError(f"{address.shown}: refuses metrics ({status})") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error or type(error).__name__
            raise WirelagError(f"{address.shown}: cannot send metrics ({reason})") from None
        finally:
            late.cancel()
            if self._held is not None:
                self._held.close()
                self._held = None

    def break_off(self) -> None:
        """End a request that is under way, from another thread, and all later ones."""
        self._is_broken_off = True
        self._hang_up()

    def _give_up(self) -> None:
        self._is_late = True
        self._hang_up()

    def _hang_up(self) -> None:
        if (held := self._held) is not None:
            with suppress(OSError):  # it has ended
                held.shutdown(socket.SHUT_RDWR)

    def _connected(self, *given: Any) -> socket.socket:
        """A new connection."""
        made = socket.create_connection(*given)
        self._held = made.dup()
        if self._is_broken_off:
            self._hang_up()
        return made


class _Http(urllib.request.HTTPHandler):
    """Makes connections by `connected`."""

    def __init__(self, connected: Callable[..., socket.socket]) -> None:
        super().__init__()
        self._connected = connected

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(partial(_on, http.client.HTTPConnection, self._connected), req)


class _Https(urllib.request.HTTPSHandler):
    """The same with TLS."""

    def __init__(self, connected: Callable[..., socket.socket], context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._connected, self._trusts = connected, context

    def https_open(self, req: urllib.request.Request) -> Any:
        kind = partial(_on, http.client.HTTPSConnection, self._connected, context=self._trusts)
        return self.do_open(kind, req)


def _on(
    kind: type[http.client.HTTPConnection], connected: Callable[..., socket.socket], *given: Any, **named: Any
) -> Any:
    made = kind(*given, **named)
    made._create_connection = connected  # type: ignore[attr-defined]
    return made
