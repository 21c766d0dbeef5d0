"""An HTTP/3 client by aioquic: http3_client.py ADDRESS PORT CONNECTIONS IN_FLIGHT BYTES SECONDS LOG.

Each connection keeps IN_FLIGHT requests in flight, each on its own stream. The log has the format of load.c.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import sys
import time
from pathlib import Path
from typing import Any

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent

ENTRY = struct.Struct("<qqIHH8x")


class Protocol(QuicConnectionProtocol):
    """One connection."""

    in_flight = 1
    size = 0
    end_ns = 0
    entries: list[bytes]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._http = H3Connection(self._quic)
        self._asked: dict[int, tuple[int, int]] = {}  # by stream: send time, and number in flight then
        self._done = asyncio.Event()
        self._port = 0
        self._round = 0

    async def work(self) -> None:
        """Run until the time is over and all requests have responses."""
        assert self._transport is not None
        self._port = self._transport.get_extra_info("sockname")[1]
        for _ in range(self.in_flight):
            self._ask()
        self.transmit()
        await self._done.wait()

    def quic_event_received(self, event: QuicEvent) -> None:
        """Called by aioquic."""
        for received in self._http.handle_event(event):
            if isinstance(received, DataReceived | HeadersReceived) and received.stream_ended:
                self._answered(received.stream_id)

    def _ask(self) -> None:
        stream = self._quic.get_next_available_stream_id()
        path = f"/{self.size}".encode()
        headers = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"lab"), (b":path", path)]
        self._asked[stream] = (time.monotonic_ns(), len(self._asked) + 1)
        self._http.send_headers(stream, headers, end_stream=True)

    def _answered(self, stream: int) -> None:
        now_ns = time.monotonic_ns()
        asked_ns, in_flight = self._asked.pop(stream)
        self.entries.append(ENTRY.pack(asked_ns, now_ns, self._round, self._port, in_flight))
        self._round += 1
        if now_ns < self.end_ns:
            self._ask()
            self.transmit()
        elif not self._asked:
            self._done.set()


async def main(address: str, port: int, connections: int, seconds: float, log: Path) -> None:
    """Run all connections and write the log."""
    Protocol.end_ns = time.monotonic_ns() + int(seconds * 1e9)
    Protocol.entries = []
    offset_ns = time.time_ns() - time.monotonic_ns()

    async def one() -> None:
        configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE)
        async with connect(address, port, configuration=configuration, create_protocol=Protocol) as protocol:
            assert isinstance(protocol, Protocol)
            await protocol.work()

    await asyncio.wait_for(asyncio.gather(*(one() for _ in range(connections))), seconds + 120)
    log.write_bytes(struct.pack("<q", offset_ns) + b"".join(Protocol.entries))


if __name__ == "__main__":
    Protocol.in_flight, Protocol.size = int(sys.argv[4]), int(sys.argv[5])
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[6]), Path(sys.argv[7])))
