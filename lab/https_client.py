"""An HTTP/1.1 client: https_client.py ADDRESS PORT CONNECTIONS SECONDS LOG name=value...

tls=1: TLS 1.3; a new connection resumes the session of the one before it. each=N: requests of a connection before a new
one replaces it; 0: all. parts=N gap-us=US: a request is written in this many parts, this far apart. response=BYTES: as
requested. A request's time is that of its last part. The log has the format of load.c.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import threading
import time
from pathlib import Path

ENTRY = struct.Struct("<qqIHH8x")
PATIENCE_S = 60.0


class Client:
    """What the connections share."""

    def __init__(self, address: str, port: int, seconds: float, settings: dict[str, int]) -> None:
        self._to = (address, port)
        self._end_ns = time.monotonic_ns() + int(seconds * 1e9)
        self._settings = settings
        self._context = ssl.create_default_context()
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._request = f"GET /{settings.get('response', 500)} HTTP/1.1\r\nHost: lab\r\n\r\n".encode()
        self.entries: list[bytes] = []

    def work(self) -> None:
        """Make one connection after the other until the time is over."""
        session: ssl.SSLSession | None = None
        while time.monotonic_ns() < self._end_ns:
            connection = socket.create_connection(self._to, PATIENCE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            port = connection.getsockname()[1]
            if not self._settings.get("tls"):
                with connection:
                    self._converse(connection, port)
                continue
            with self._context.wrap_socket(connection, server_hostname="lab", session=session) as inside:
                self._converse(inside, port)
                session = inside.session

    def _converse(self, connection: socket.socket, port: int) -> None:
        most = self._settings.get("each", 0)
        done = 0
        while time.monotonic_ns() < self._end_ns and (not most or done < most):
            asked_ns = self._ask(connection)
            _receive(connection)
            self.entries.append(ENTRY.pack(asked_ns, time.monotonic_ns(), done, port, 1))
            done += 1

    def _ask(self, connection: socket.socket) -> int:
        parts = self._settings.get("parts", 1)
        size = -(-len(self._request) // parts)
        asked_ns = 0
        for i in range(0, len(self._request), size):
            if i:
                time.sleep(self._settings.get("gap-us", 0) * 1e-6)
            asked_ns = time.monotonic_ns()
            connection.sendall(self._request[i : i + size])
        return asked_ns


def _receive(connection: socket.socket) -> None:
    """Receive a whole response."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += _some(connection)
    head, _, body = got.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    length, have = int(fields[b"content-length"]), len(body)
    while have < length:
        have += len(_some(connection))


def _some(connection: socket.socket) -> bytes:
    got = connection.recv(1 << 16)
    if not got:
        raise ConnectionError("the server closed the connection within a response")
    return got


def main(address: str, port: int, connections: int, seconds: float, log: Path, settings: dict[str, int]) -> None:
    """Run all connections and write the log."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    client = Client(address, port, seconds, settings)
    threads = [threading.Thread(target=client.work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.write_bytes(struct.pack("<q", offset_ns) + b"".join(client.entries))


if __name__ == "__main__":
    given = dict(argument.split("=") for argument in sys.argv[6:])
    numbers = {name: int(value) for name, value in given.items()}
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]), numbers)
