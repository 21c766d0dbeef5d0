"""What the collector reads of a request, before any of its own code sees it.

A message as agents send it, whole and with the few headers that they use, takes a short way: the inbox gets it at once,
without the library's parser, routes and tasks, which cost several times as much as the message itself. Whatever is not
exactly like that takes the long way, which decides the same.

Laws. Nothing is parsed whose cost a client could multiply: bodies in chunks are refused with the request that announces
them, and a request has few lines before its body. Each turn of a connection reads little, so that others have theirs.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from starlette.datastructures import Address
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from wirelag import _kernels
from wirelag.collector.certificates import points_of
from wirelag.collector.connections import Visitors
from wirelag.protocol.messages import Opened
from wirelag.transport.http import MEDIA_TYPE
from wirelag.transport.http_inbox import TAKEN, Caller, HttpInbox

MOST_HEADERS: Final = 16 << 10  # bytes of a request before its body,
MOST_LINES: Final = 100  # and lines
READ: Final = 16 << 10  # bytes that a connection reads in a turn
_REFUSED: Final = {
    400: "this is not HTTP",
    411: "send it whole, with its length and without a transfer encoding",
    431: "it has too many headers",
}


class Frugal(h11.Connection):
    """HTTP, without what no client of a collector needs. `status`: why the last request was refused."""

    status = 400

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MOST_HEADERS)
        self._lines = 0  # of a request whose body has not begun

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they come; count lines that are not of a body."""
        super().receive_data(data)
        if self.their_state is h11.IDLE:
            self._lines += data.partition(b"\r\n\r\n")[0].count(b"\n")

    def next_event(self) -> Any:
        """The next part of a request; an error, before it is parsed, if it costs too much."""
        if self.their_state is h11.IDLE and self._lines > MOST_LINES:
            self._refuse(431)
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._lines = 0
            if any(name == b"transfer-encoding" for name, _ in event.headers):
                self._refuse(411)
        return event

    def _refuse(self, status: int) -> None:
        self.status = status
        raise h11.RemoteProtocolError(_REFUSED[status])


_NO_CONTENT: Final = b"HTTP/1.1 204 No Content\r\n\r\n"


def _in_bytes(response: Response) -> bytes:
    if response is TAKEN:
        return _NO_CONTENT
    phrase = STATUS_PHRASES[response.status_code]
    lines = [b"HTTP/1.1 %d " % response.status_code + phrase, *(b": ".join(one) for one in response.raw_headers)]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


class Short:
    """A request that takes the short way, as the server's other parts see it."""

    __slots__ = ("disconnected", "keep_alive", "protocol", "response_complete")
    message_event: Final = asyncio.Event()  # it is never waited for

    def __init__(self, protocol: NamedProtocol) -> None:
        self.protocol = protocol
        self.response_complete = self.disconnected = False
        self.keep_alive = True

    def reply(self, response: Response) -> None:
        """Send the response, which ends it."""
        self.protocol.end(self, response)


class NamedProtocol(H11Protocol):
    """Adds to each request the points that its connection's certificate names: `state["points"]`, None without one."""

    conn: Frugal

    def __init__(self, *given: Any, visitors: Visitors, inbox: HttpInbox | None = None, **named: Any) -> None:
        """`inbox`: takes messages by the short way."""
        super().__init__(*given, **named)
        self.conn, self._visitors, self._inbox = Frugal(), visitors, inbox
        self._short: Short | None = None  # the request that takes it now,
        self._next = b""  # and what has come after it
        self._replied_s = 0.0  # when the last one had its reply
        self._caller = Caller(None, None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note who connects; the handshake is over."""
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # with TLS the record's size holds
            transport.max_size = READ
        points = points_of(transport.get_extra_info("ssl_object"))
        self.app_state = {**self.app_state, "points": points, "part": self.part}
        if self.client is not None:
            self._caller = Caller(Address(*self.client), points)
            self._visitors.met(self.client)

    def data_received(self, data: bytes) -> None:
        """Take bytes as they come."""
        if self._short is not None:
            self._next += data
            self.flow.pause_reading()
            return
        if (
            self._inbox is None
            or self.client is None
            or (head := _kernels.message_head(data, MEDIA_TYPE)) is None
            or self.conn.their_state is not h11.IDLE
            or self.conn.trailing_data[0]
            or not self._take(self._inbox, data, *head)
        ):
            super().data_received(data)

    def _take(self, inbox: HttpInbox, data: bytes, token: str, run: str, ask: str, place: int) -> bool:
        """Hand a message to the inbox; False if it must take the long way."""
        short = self._short = Short(self)
        before, self.cycle = self.cycle, short  # type: ignore[assignment]
        if not inbox.direct(self._caller, token, run, ask, Opened(memoryview(data)[place:]), short.reply):
            self._short, self.cycle = None, before
            return False
        return True

    def end(self, short: Short, response: Response) -> None:
        """Send a response of the short way, and go on with what has come meanwhile."""
        self._short, short.response_complete = None, True
        if short.disconnected or self.transport.is_closing():
            return
        self.transport.write(_in_bytes(response))
        if response.status_code >= 400 or not short.keep_alive:
            self.transport.close()
            return
        self._replied_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._close_unless_used(self.timeout_keep_alive)
        self.flow.resume_reading()
        if self._next:
            data, self._next = self._next, b""
            self.loop.call_soon(self.data_received, data)

    def part(self, data: bytes) -> bool:
        """Write a part of a reply that has begun, in chunks; False if the client has to read others first."""
        if self.flow.write_paused or self.transport.is_closing():
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def _close_unless_used(self, after_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(after_s, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection. A message does not set the clock for it anew: this looks when the last one was."""
        idle_s = 0.0 if self._short is not None else self.loop.time() - self._replied_s
        if idle_s < self.timeout_keep_alive:
            self._close_unless_used(self.timeout_keep_alive - idle_s)
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not a request, and close the connection."""
        status, said = self.conn.status, _REFUSED[self.conn.status].encode()
        self._visitors.counted["requests refused"] += 1
        headers = [("content-type", "text/plain; charset=utf-8"), ("connection", "close")]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
            h11.Data(data=said),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
