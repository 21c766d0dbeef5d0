"""What the collector reads of a request, before any of its own code sees it.

Laws. Nothing is parsed whose cost a client could multiply: bodies in chunks are refused with the request that announces
them, and a request has few lines before its body. Each turn of a connection reads little, so that others have theirs.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from wirelag.collector.certificates import points_of
from wirelag.collector.connections import Visitors

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


class NamedProtocol(H11Protocol):
    """Adds to each request the points that its connection's certificate names: `state["points"]`, None without one."""

    conn: Frugal

    def __init__(self, *given: Any, visitors: Visitors, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn, self._visitors = Frugal(), visitors

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note who connects; the handshake is over."""
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # with TLS the record's size holds
            transport.max_size = READ
        self.app_state = {**self.app_state, "points": points_of(transport.get_extra_info("ssl_object"))}
        if self.client is not None:
            self._visitors.met(self.client)

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
