"""Messages over HTTPS, the agent's side: the standard library's client in a thread."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import secrets
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from wirelag.errors import WirelagError
from wirelag.protocol.messages import MOST_BYTES
from wirelag.transport import LANES, Address, Declined, Refused, Unreachable, pauses, reason

if TYPE_CHECKING:
    import ssl

MEDIA_TYPE: Final = "application/vnd.wirelag.message"
ASK_HEADER: Final = "Wirelag-Ask"
RUN_HEADER: Final = "Wirelag-Run"
FRAME: Final = struct.Struct("<IQ")  # before each ask: its length, and its number
OWN_WORDS: Final = ("it ", "the content type ")  # how a collector's reasons to refuse a message begin
OLDER: Final = "of the format, this wirelag reads"  # older collectors reply 400 with this to versions they do not know
QUIET_S: Final = 20  # an ask of length 0 means that there was none for this long
_TIMEOUT_S: Final = QUIET_S + 15.0
_CONNECT_S: Final = 5.0
_MOST_SAID: Final = 4096  # bytes of a reply
_MOST_TOLD: Final = 1 << 18  # bytes of a reply about a point
_UNANSWERED_S: Final = 10  # silence after which a connection is dead: TCP itself waits for minutes


class _Trust:
    """TLS of an address, made anew when its files have changed: certificates are renewed while an agent runs."""

    def __init__(self, address: Address) -> None:
        """Raise a WirelagError if a file cannot be used."""
        self._address = address
        self._files = self._seen()
        self._context = address.context()

    def context(self) -> ssl.SSLContext | None:
        """For the next connection; files that cannot be used change nothing."""
        files = self._seen()
        if files != self._files:
            with suppress(WirelagError):
                self._context, self._files = self._address.context(), files
        return self._context

    def _seen(self) -> list[tuple[int, int, int]]:
        found = []
        for name in filter(None, (self._address.ca, self._address.certificate, self._address.key)):
            with suppress(OSError):
                file = os.stat(name)
                found.append((file.st_ino, file.st_mtime_ns, file.st_size))
        return found


class _Line:
    """One persistent connection. One thread at a time uses it; any thread may break it off."""

    def __init__(self, address: Address, trust: _Trust) -> None:
        self._address, self._trust = address, trust
        self._connection: http.client.HTTPConnection | None = None
        self._turn = threading.Lock()
        self._broken_off = False
        self._connected = self._heard = False  # ever
        self._asks: http.client.HTTPResponse | None = None  # a response without end

    def post(self, path: str, body: bytes, about: dict[str, str]) -> tuple[int, bytes]:
        """Status and body of a short reply; Unreachable if none comes. `about`: headers of this message."""
        headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(body))}
        try:
            with self._turn:
                return self._patiently(path, body, headers | about)
        finally:
            self._leave()

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a reply."""
        try:
            with self._turn:
                response = self._talk("GET", path, {})
                return response.status, self._rest(response, _MOST_TOLD)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self._address.shown}: {self._why(error)}") from None
        finally:
            self._leave()

    def next_ask(self, path: str) -> tuple[int, str, bytes]:
        """Status, and the next ask with its name, or why there is none; Unreachable if the connection breaks."""
        try:
            with self._turn:
                return self._next_ask(path)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self._address.shown}: {self._why(error)}") from None
        finally:
            self._leave()

    def _why(self, error: Exception) -> str:
        """Why no reply came. A collector that refuses a certificate, or wants one, hangs up when TLS seems to work."""
        hint = "if it demands client certificates, check collector.certificate, its CA and its dates"
        hung_up = self._connected and not self._heard and not isinstance(error, TimeoutError)
        return f"{reason(error)}; {hint}" if hung_up and self._address.encrypted else reason(error)

    def break_off(self) -> None:
        """Close permanently, and interrupt a thread that waits for a reply; that thread, if any, hangs up."""
        self._broken_off = True
        if (connection := self._connection) is not None and (line := connection.sock) is not None:
            with suppress(OSError):  # no thread waits
                line.shutdown(socket.SHUT_RDWR)
        self._leave()

    def close(self) -> None:
        """The same, and wait until it is done."""
        self.break_off()
        with self._turn:
            self._hang_up()

    def _leave(self) -> None:
        if self._broken_off and self._turn.acquire(blocking=False):
            try:
                self._hang_up()
            finally:
                self._turn.release()

    def _patiently(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        while True:
            kept_open = self._connection is not None
            try:
                response = self._talk("POST", path, headers, body)
                return response.status, self._rest(response)
            except (OSError, http.client.HTTPException) as error:
                self._hang_up()  # a persistent connection may have timed out
                if not kept_open or self._broken_off or isinstance(error, TimeoutError):
                    raise Unreachable(f"{self._address.shown}: {self._why(error)}") from None

    def _next_ask(self, path: str) -> tuple[int, str, bytes]:
        try:
            while True:
                response = self._asks = self._asks or self._talk("GET", path, {})
                if response.status != 200:
                    self._asks = None
                    return response.status, "", self._rest(response)
                length, number = FRAME.unpack(self._exactly(response, FRAME.size))
                if length > MOST_BYTES:
                    raise http.client.HTTPException("sent an ask that is too large")
                if length:
                    return 200, f"{response.headers.get(ASK_HEADER, '')}-{number}", self._exactly(response, length)
        except BaseException:
            self._hang_up()
            raise

    def _exactly(self, response: http.client.HTTPResponse, size: int) -> bytes:
        found = response.read(size)
        if len(found) < size:
            raise http.client.IncompleteRead(found, size - len(found))
        return found

    def _talk(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None = None
    ) -> http.client.HTTPResponse:
        """Send only necessary headers: with short intervals others would outweigh the message."""
        connection = self._connection = self._connection or self._connect()
        if self._broken_off:
            raise ConnectionAbortedError
        connection.putrequest(method, path, skip_accept_encoding=True)
        if self._address.secret:
            connection.putheader("Authorization", f"Bearer {self._address.secret}")
        for name, value in headers.items():
            connection.putheader(name, value)
        try:
            _corked(connection.sock, True)  # headers and body in one packet
            connection.endheaders(body)
            _corked(connection.sock, False)
        except (BrokenPipeError, ConnectionResetError):
            if body is None:
                raise  # else the reply may have come before the request was read
        response = connection.getresponse()
        self._heard = True
        return response

    def _rest(self, response: http.client.HTTPResponse, most: int = _MOST_SAID) -> bytes:
        content = response.read(most + 1)
        if response.will_close or not response.isclosed():
            self._hang_up()
        if len(content) > most:
            raise http.client.HTTPException("sent a reply that is too large")
        return content

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._address.url)
        assert parts.hostname is not None
        source = None if self._address.source is None else (self._address.source, 0)
        connection: http.client.HTTPConnection
        context = self._trust.context()
        if context is None:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, _CONNECT_S, source)
        else:
            connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=_CONNECT_S, source_address=source, context=context
            )
        try:
            connection.connect()
            connection.sock.settimeout(_TIMEOUT_S)
            notice_silence(connection.sock)
        except BaseException:
            connection.close()
            raise
        self._connected = True
        return connection

    def _hang_up(self) -> None:
        if self._asks is not None:
            self._asks.close()
            self._asks = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _corked(line: socket.socket, corked: bool) -> None:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, int(corked))


def notice_silence(line: socket.socket) -> None:
    """Detect a dead connection even when idle: an agent must notice that no ask comes, a collector that none goes."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _UNANSWERED_S // 2)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _UNANSWERED_S // 2)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_S * 1000)


class HttpSender:
    """Messages go out on a few connections, as many as are under way at once; asks come in on another.

    The response with asks never ends. A connection that was used last is used next, so that few of them stay open.
    """

    def __init__(self, address: Address, point: str) -> None:
        self._address = address
        self._path = urlsplit(address.url).path.rstrip("/")
        self._point = quote(point, safe="")
        self._trust = _Trust(address)
        self._in = _Line(address, self._trust)
        self._out: list[_Line] = []
        self._free: list[_Line] = []
        self._threads = ThreadPoolExecutor(LANES + 4, "messages")  # one for asks, and those of a moment ago
        self._run = secrets.token_hex(4)  # tells this process from another that uses the same name
        self._last = self._told = ""  # the ask last replied to, and the last one that the collector knows of
        self._closed = False

    async def send(self, data: bytes, key: str) -> None:
        """Return once the collector has stored it."""
        if len(data) > MOST_BYTES:
            raise Refused(f"{self._address.shown}: a message of {len(data)} bytes is too large (at most {MOST_BYTES})")
        last = self._last
        told = "" if last == self._told else last
        about = {RUN_HEADER: self._run} | ({ASK_HEADER: told} if told else {})
        if self._closed:
            raise Unreachable(f"{self._address.shown}: the connection was closed")
        line = self._free.pop() if self._free else self._another()
        try:
            status, said = await asyncio.get_running_loop().run_in_executor(
                self._threads, line.post, f"{self._path}/v1/messages", data, about
            )
        finally:
            self._free.append(line)
        self._check(status, said, 204)
        self._told = last

    def _another(self) -> _Line:
        self._out.append(_Line(self._address, self._trust))
        return self._out[-1]

    async def asks(self) -> AsyncIterator[bytes]:
        """Asks as they come. The next message or connection tells the collector which one was handled last."""
        tries, line = pauses(), self._in
        try:
            while not self._closed:
                path = f"{self._path}/v1/asks/{self._point}?after={quote(self._last, safe='')}"
                try:
                    status, name, said = await asyncio.get_running_loop().run_in_executor(
                        self._threads, line.next_ask, path
                    )
                    self._check(status, said, 200)
                except (Unreachable, Refused):
                    await asyncio.sleep(0 if self._closed else next(tries))
                    continue
                tries = pauses()
                yield said
                self._last = name
        finally:
            line.break_off()  # the waiting thread ends now, not when the collector replies
            self._in = _Line(self._address, self._trust)

    async def close(self) -> None:
        """Break off everything in progress."""
        self._closed = True
        await asyncio.gather(*(asyncio.to_thread(line.close) for line in (self._in, *self._out)))
        self._threads.shutdown(wait=False)

    def _check(self, status: int, body: bytes, success: int) -> None:
        """Raise an error unless the status is the one of success: any other may be that of a proxy."""
        where = self._address.shown
        if status == success:
            return
        said = "".join(filter(str.isprintable, body.decode(errors="replace").partition("\n")[0][:200]))
        if status in (401, 403):
            raise Unreachable(f"{where}: {_not_accepted(status, said)}")
        if status == 400 and OLDER in said:
            raise Declined(f"{where}: does not know this version of messages ({said})")
        if status in (400, 413, 415) and said.startswith(OWN_WORDS):
            raise Refused(f"{where}: refuses a message: {said}")
        if status < 400:
            raise Unreachable(f"{where}: does not answer as a collector does (status {status}); check the address")
        why = f": {said}" if status in (409, 503) and said else ""
        if status in (400, 413, 415):
            why = ", not in the words of a collector: check the proxy before it, and what size it lets pass"
        raise Declined(f"{where}: cannot take a message now (status {status}{why})")


def _not_accepted(status: int, said: str) -> str:
    """Why a collector does not let this agent in, and what to check; `said`: its reply."""
    if status == 403 and said.startswith("the certificate"):
        return f"does not accept the certificate ({said}); check collector.certificate"
    return f"does not accept the token ({said or status}); check the file of --token-file"


def told(address: Address, point: str, segments: Iterable[str]) -> Mapping[str, Any] | None:
    """What a collector knows of a point and these segments, None if it is too old to say.

    Otherwise Unreachable says why: its name, TLS, the token.
    """
    line = _Line(address, _Trust(address))
    path = urlsplit(address.url).path.rstrip("/")
    query = urlencode([("segment", one) for one in segments])
    try:
        status, body = line.get(f"{path}/v1/points/{quote(point, safe='')}?{query}")
    finally:
        line.close()
    said = "".join(filter(str.isprintable, body.decode(errors="replace").partition("\n")[0][:200]))
    if status in (401, 403):
        raise Unreachable(f"{address.shown}: {_not_accepted(status, said)}")
    try:
        found = json.loads(body) if status == 200 else None
    except ValueError:
        found = None
    if isinstance(found, dict) and "version" in found:
        return found
    if status == 404 and said == "Not Found":  # as collectors before this reply
        return None
    raise Unreachable(f"{address.shown}: does not answer as a collector does (status {status}); check the address")
