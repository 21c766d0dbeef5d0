"""Messages to a collector of flows: over UDP, TCP or TLS (RFC 7011, section 10)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from wirelag.errors import WirelagError
from wirelag.transport import Address, reason

PORTS: Final = {"ipfix+udp": 4739, "ipfix+tcp": 4739, "ipfix+tls": 4740}
MOST: Final = 65_535  # bytes of a message on a connection
MOST_UDP: Final = 1_400  # bytes of a datagram: no more than the path carries in one piece
LEAST_UDP: Final = 512  # where the path is not known
IP_MTU: Final = {socket.AF_INET: (socket.IPPROTO_IP, 14, 28), socket.AF_INET6: (socket.IPPROTO_IPV6, 24, 48)}
REFRESH: Final = 10  # datagrams after which templates are sent again: some may be lost
PACE: Final = 10_000_000  # bytes a second over UDP: more would overflow a collector's buffer
PATIENCE_S: Final = 10.0
_FILES: Final = ("ca", "cert", "key")


@dataclass(frozen=True)
class Target:
    """Where messages go: `ipfix+udp://HOST:PORT?domain=1`; with TLS also `ca`, `cert` and `key`, names of files."""

    scheme: str
    host: str
    port: int
    domain: int = 1
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """An address as a person writes it; a ValueError says what is wrong.

        >>> Target.parse("ipfix+udp://[::1]:9995?domain=7").domain
        7
        """
        parts = urlsplit(text)
        if parts.scheme not in PORTS or not parts.hostname:
            raise ValueError(f"{text!r} is not a collector of flows: write {'://HOST:PORT, '.join(PORTS)}://HOST:PORT")
        asked = dict(parse_qsl(parts.query))
        known = ("domain", *(_FILES if parts.scheme == "ipfix+tls" else ()))
        if unknown := [name for name in asked if name not in known]:
            raise ValueError(f"{text!r}: {unknown[0]} is not one of {', '.join(known)}")
        domain = asked.get("domain", "1")
        if not domain.isdecimal() or int(domain) >= 1 << 32:
            raise ValueError(f"{text!r}: domain must be a whole number below 2^32")
        if ("cert" in asked) != ("key" in asked):
            raise ValueError(f"{text!r}: cert and key belong together")
        files = {name: asked.get(name) for name in _FILES}
        return cls(parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme], int(domain), **files)

    @property
    def shown(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def refresh(self) -> int:
        """Messages after which templates are sent again."""
        return REFRESH if self.scheme == "ipfix+udp" else 0

    def send(self, messages: Callable[[int], Iterable[bytes]]) -> None:
        """Send messages of at most the size that `messages` is called with."""
        try:
            if self.scheme == "ipfix+udp":
                self._send_udp(messages)
            else:
                self._send_stream(messages(MOST))
        except OSError as error:  # TLS errors are such, too
            raise WirelagError(f"{self.scheme}://{self.shown}: {reason(error)}") from None

    def _send_udp(self, messages: Callable[[int], Iterable[bytes]]) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as out:
            out.connect(address)
            start, sent = time.monotonic(), 0
            for message in messages(_most(out)):
                out.send(message)
                sent += len(message)
                ahead_s = sent / PACE - (time.monotonic() - start)
                if ahead_s > 0.01:
                    time.sleep(ahead_s)

    def _send_stream(self, messages: Iterable[bytes]) -> None:
        import ssl

        with socket.create_connection((self.host, self.port), PATIENCE_S) as plain:
            if self.scheme == "ipfix+tcp":
                for message in messages:
                    plain.sendall(message)
                return
            address = Address(f"https://{self.shown}", ca=self.ca, certificate=self.cert, key=self.key)
            context = address.context()
            assert context is not None
            with context.wrap_socket(plain, server_hostname=self.host) as out:
                for message in messages:
                    out.sendall(message)
                with suppress(ssl.SSLEOFError):  # a collector may close at once
                    out.unwrap()  # a certificate that is refused shows only now


def _most(out: socket.socket) -> int:
    level, option, headers = IP_MTU[out.family]
    try:
        return max(LEAST_UDP, min(MOST_UDP, out.getsockopt(level, option) - headers))
    except OSError:  # not on Linux
        return LEAST_UDP
