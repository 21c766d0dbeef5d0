"""Messages over HTTPS, the agent's side: the standard library's client in a thread."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote, urlsplit

from wirelag.messages import MOST_BYTES
from wirelag.transport import Address, Refused, Unreachable, pauses, reason

MEDIA_TYPE: Final = "application/vnd.wirelag.message"
ASK_HEADER: Final = "Wirelag-Ask"
POLL_S: Final = 20  # how long the collector lets an agent wait for an ask
_TIMEOUT_S: Final = POLL_S + 15.0
_CONNECT_S: Final = 5.0


class _Line:
    """One connection, kept open. One thread at a time; any may break it off."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._context = address.context()
        self._connection: http.client.HTTPConnection | None = None
        self._turn = threading.Lock()
        self._broken_off = False

    def request(
        self, method: str, path: str, body: bytes | None = None, most: int = 4096
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and at most that much of the body; Unreachable if none comes."""
        with self._turn:
            while True:
                kept_open = self._connection is not None
                try:
                    return self._talk(method, path, body, most)
                except (OSError, http.client.HTTPException) as error:
                    self._hang_up()  # one that was kept open may just have grown old
                    if not kept_open or self._broken_off or isinstance(error, TimeoutError):
                        raise Unreachable(f"{self._address.shown}: {reason(error)}") from None

    def break_off(self) -> None:
        """End what waits for an answer."""
        self._broken_off = True
        if (connection := self._connection) is not None and (line := connection.sock) is not None:
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # nothing waits

    def close(self) -> None:
        """For good."""
        self.break_off()
        with self._turn:
            self._hang_up()

    def _talk(
        self, method: str, path: str, body: bytes | None, most: int
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = self._connection = self._connection or self._connect()
        if self._broken_off:
            raise ConnectionAbortedError
        headers = {"Content-Type": MEDIA_TYPE} if body is not None else {}
        if self._address.secret:
            headers["Authorization"] = f"Bearer {self._address.secret}"
        try:
            connection.request(method, path, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            if body is None:
                raise  # else: it may have been answered before it was read
        response = connection.getresponse()
        content = response.read(most + 1)
        if response.will_close or not response.isclosed():
            self._hang_up()
        if len(content) > most:
            raise http.client.HTTPException("answers with more than anybody asked for")
        return response.status, response.headers, content

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._address.url)
        assert parts.hostname is not None
        connection: http.client.HTTPConnection
        if self._context is None:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_CONNECT_S)
        else:
            connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=_CONNECT_S, context=self._context
            )
        connection.connect()
        connection.sock.settimeout(_TIMEOUT_S)
        return connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class HttpSender:
    """Messages go out on one connection, asks come in on another."""

    def __init__(self, address: Address, point: str) -> None:
        self._address = address
        self._path = urlsplit(address.url).path.rstrip("/")
        self._point = quote(point, safe="")
        self._out, self._in = _Line(address), _Line(address)
        self._closed = False

    async def send(self, data: bytes, key: str) -> None:
        """Return once the collector has stored it."""
        if len(data) > MOST_BYTES:
            raise Refused(f"{self._address.shown}: a message of {len(data)} bytes is too large (at most {MOST_BYTES})")
        status, _, body = await asyncio.to_thread(self._out.request, "POST", f"{self._path}/v1/messages", data)
        self._check(status, body)

    async def asks(self) -> AsyncIterator[bytes]:
        """Wait at the collector for the next ask, and tell it with that request which one was the last."""
        last, tries, line = "", pauses(), self._in
        try:
            while not self._closed:
                path = f"{self._path}/v1/asks/{self._point}?after={quote(last, safe='')}"
                try:
                    status, headers, body = await asyncio.to_thread(line.request, "GET", path, None, MOST_BYTES)
                    self._check(status, body)
                except (Unreachable, Refused):
                    await asyncio.sleep(0 if self._closed else next(tries))
                    continue
                tries = pauses()
                if status == 200:
                    last = headers.get(ASK_HEADER, "")
                    yield body
        finally:
            line.break_off()  # the thread that waits ends now, not when the collector answers
            self._in = _Line(self._address)

    async def close(self) -> None:
        """Break off whatever is under way."""
        self._closed = True
        await asyncio.gather(asyncio.to_thread(self._out.close), asyncio.to_thread(self._in.close))

    def _check(self, status: int, body: bytes) -> None:
        where = self._address.shown
        if status in (200, 204):
            return
        if status in (401, 403):
            raise Unreachable(f"{where}: does not accept the token ({status}); check the file that --token-file names")
        if status in (400, 413, 415):
            said = body.decode(errors="replace").partition("\n")[0][:200]
            raise Refused(f"{where}: refuses a message: {''.join(filter(str.isprintable, said))}")
        raise Unreachable(f"{where}: is not able to take messages now (status {status})")
