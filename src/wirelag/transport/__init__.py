"""Transport of messages between agents and the collector: HTTPS or NATS JetStream, and a spool while neither works.

Law: a message is delivered at least once. The sender keeps it until the collector has acknowledged it; a duplicate has
the same key, and the collector counts it once. Errors and `repr` contain no secrets.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from wirelag.errors import WirelagError

if TYPE_CHECKING:
    import ssl


class _Now:
    """What has happened already, to be awaited."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


NOW: Final[Awaitable[None]] = _Now()


async def all_of(told: Iterable[Awaitable[None]]) -> None:
    """Wait for all of these at once; what has happened already costs no task."""
    if waiting := [one for one in told if one is not NOW]:
        await asyncio.gather(*waiting)


class Acknowledge(Protocol):
    """Reports the fate of a message; the sender keeps one that is not stored. None: it may be, and is sent again."""

    def __call__(self, is_stored: bool | None = True) -> Awaitable[None]: ...


_SCHEMES: Final = {"https": True, "http": False, "tls": True, "nats": False}  # encrypted or not

LONGEST_PAUSE_S: Final = 5.0
LANES: Final = 16  # messages of an agent under way at the same time


class Unreachable(WirelagError):  # noqa: N818
    """A temporary failure: keep the message and try again."""


class Declined(Unreachable):
    """The collector answers, but does not take this message now; it may take others."""


class Refused(WirelagError):  # noqa: N818
    """A permanent failure: this message will never be accepted."""


class Sender(Protocol):
    """The agent's side. It connects on first use, and again after every failure."""

    async def send(self, data: bytes, key: str) -> None:
        """Return once the other side has stored the message; raise `Unreachable`, `Declined` or `Refused`."""

    def asks(self) -> AsyncIterator[bytes]:
        """Messages for this point, without end. One counts as delivered when the next is requested: reply before."""

    async def close(self) -> None:
        """Close the sender; `asks` ends too."""


class Inbox(Protocol):
    """The collector's side. `counts`: messages that were not accepted, by reason."""

    scheme: str  # its name in counters
    counts: Counter[str]

    def messages(self) -> AsyncIterator[tuple[bytes, Acknowledge]]:
        """Messages, without end. One is repeated until it is acknowledged: do so once its fate is known."""

    async def ask(self, point: str, data: bytes) -> None:
        """Leave a message for an agent."""

    async def close(self) -> None:
        """Close the inbox; `messages` ends too."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the other side is, and how to authenticate it.

    `secret` is the token, for NATS also `user:password`. `insecure` allows plain text to other hosts and untrusted
    certificates.
    """

    url: str  # https://HOST:PORT, tls://HOST:PORT[,tls://HOST:PORT...] (NATS); http:// and nats:// within the host
    secret: str | None = field(default=None, repr=False)
    ca: str | None = None
    insecure: bool = False
    source: str | None = None  # local address to send from: a router's own address outlives its ports
    certificate: str | None = None  # with its key, to show to the other side
    key: str | None = None

    def __post_init__(self) -> None:
        """Raise a WirelagError if the address is invalid, or would send secrets in plain text to another host."""
        for url in self.urls:
            self._check(url)
        if len(self.urls) > 1 and {urlsplit(url).scheme for url in self.urls} not in ({"tls"}, {"nats"}):
            raise WirelagError(f"{self.shown}: several addresses must all be tls:// or all nats://, of one cluster")

    def _check(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise WirelagError(
                "the collector's address is not a URL: write https://HOST:PORT, or tls://HOST:PORT for NATS"
            ) from None
        if parts.scheme not in _SCHEMES or not host:
            raise WirelagError(
                f"{self.shown}: not an address of a collector: write https://HOST:PORT, or tls://HOST:PORT for NATS"
            )
        if parts.username is not None or parts.query or parts.fragment:
            raise WirelagError(f"{self.shown}: secrets do not belong into an address: give them in a file")
        if self.source is not None and parts.scheme in ("tls", "nats"):
            raise WirelagError(f"{self.shown}: a source address works with https:// only")
        if self.certificate is not None and not self.encrypted:
            raise WirelagError(f"{self.shown}: a client certificate works with https:// and tls:// only")
        if not _SCHEMES[parts.scheme] and not self.insecure and not loopback(host):
            raise WirelagError(
                f"{self.shown}: would go to another host in plain text: write "
                f"{'https' if parts.scheme == 'http' else 'tls'}://, or allow it with --insecure"
            )

    @property
    def urls(self) -> list[str]:
        """One, or those of all servers of a NATS cluster, separated by commas."""
        return [url.strip() for url in self.url.split(",")]

    @property
    def encrypted(self) -> bool:
        """Whether it uses TLS."""
        return _SCHEMES[urlsplit(self.urls[0]).scheme]

    @property
    def shown(self) -> str:
        """The address without secrets."""
        parts = map(urlsplit, self.urls)
        return ",".join(f"{one.scheme}://{one.netloc.rpartition('@')[2]}{one.path}" for one in parts)

    def context(self) -> ssl.SSLContext | None:
        """How TLS checks the other side; None for plain text."""
        import ssl

        if not self.encrypted:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "it holds no certificate"
            raise WirelagError(f"{self.ca}: cannot be used as --ca ({reason})") from None
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except (OSError, ssl.SSLError) as error:
                raise WirelagError(
                    f"{self.certificate}: no certificate that fits {self.key} ({unusable(error)})"
                ) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def loopback(host: str) -> bool:
    """Whether messages to this host stay within this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def unusable(error: OSError) -> str:
    """Why a file of certificates or keys cannot be used, in words."""
    import ssl

    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not PEM"
    return error.strerror or str(error)


_CERTIFICATES: Final = {  # OpenSSL's verify codes, and what to do
    9: "check the clocks",
    10: "renew the collector's certificate",
    62: "use the collector's name from its certificate",
    64: "use the collector's name from its certificate",
}


def reason(error: Exception) -> str:
    """Why a connection fails, in words."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        way_out = _CERTIFICATES.get(error.verify_code, "name its CA with --ca")
        return f"its certificate is not trusted ({error.verify_message}); {way_out}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason})"
    if isinstance(error, TimeoutError):
        return "does not reply in time"
    if isinstance(error, socket.gaierror):
        return f"unknown host ({error.strerror})"
    if isinstance(error, OSError) and error.errno:
        return f"cannot be reached ({os.strerror(error.errno)})"
    return "closed the connection"


def pauses() -> Iterator[float]:
    """Seconds to wait after each failure in a row: increasing, and different for each agent."""
    pause = 0.1
    while True:
        yield pause * random.uniform(0.5, 1)
        pause = min(LONGEST_PAUSE_S, 2 * pause)


def sender(address: Address, point: str) -> Sender:
    """The agent's side of a collector at this address."""
    if urlsplit(address.url).scheme in ("http", "https"):
        from wirelag.transport.http import HttpSender

        return HttpSender(address, point)
    from wirelag.transport.nats import NatsSender

    return NatsSender(address, point)
