"""A connection to a NATS broker, which is made when it is needed and again after a loss.

Laws. Every connection is checked before any secret is sent. So the library's own reconnecting is not used: it would
accept plain text. What waits for a connection ends when it is lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from wirelag.errors import MissingExtraError
from wirelag.transport import Address, Unreachable, reason

try:
    import nats.errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.client import JetStreamContext
    from nats.js.errors import APIError, NoStreamResponseError

    from wirelag.transport.nats_streams import StreamClient
except ImportError:
    raise MissingExtraError("NATS") from None

_TIMEOUT_S: Final = 5.0
_PING_S: Final = 3  # a broker that misses two of these is dead: TCP itself waits for minutes
CLOSING_S: Final = 1.0  # after a failed handshake the library waits for ever

T = TypeVar("T")


# The standard library warns whenever a connection that was upgraded to TLS ends.
logging.getLogger("asyncio").addFilter(lambda record: "eof_received() has no effect" not in record.getMessage())


def token(point: str) -> str:
    """A point's name as one word of a subject: all but letters, digits, _ and - become = and two hex digits."""
    return re.sub(rb"[^A-Za-z0-9_-]", lambda byte: b"=%02X" % byte[0][0], point.encode()).decode()


REFUSED, STORED = "refused", "stored"  # what a sender hears


def hears(what: str, who: str) -> str:
    """The subject on which a sender hears that it is refused, or what is stored; `who` as in subjects."""
    return f"_INBOX.{who}.{what}"


class Line:
    """A connection that is made when needed, and again after a loss."""

    def __init__(self, address: Address, name: str, told: Mapping[str, Callable[[str], None]] | None = None) -> None:
        """`told`: by subject (`hears`), what is called with what collectors say about this name's messages."""
        self._address = address
        self._told = told or {}
        self._context = address.context()
        self._name = name
        self._client: Client | None = None
        self._lost = asyncio.Event()
        self._under_way: set[asyncio.Future[Any]] = set()  # what ends when it is lost
        self._turn = asyncio.Lock()
        self._said = ""  # last error message of the broker
        self._tries = random.randrange(1 << 16)  # any server of several first
        self.closed = False

    async def client(self) -> Client:
        """The connection; or Unreachable."""
        async with self._turn:
            if self.closed:
                raise self.unreachable("closed")
            if self._client is None or not self._client.is_connected:
                await self._hang_up()
                self._client = await self._connect()
            return self._client

    async def stream(self) -> JetStreamContext:
        """The stream, ready to use; or Unreachable."""
        return (await self.client()).jetstream(timeout=_TIMEOUT_S)

    async def say(self, where: str, data: bytes, headers: dict[str, str] | None = None, reply: str = "") -> None:
        """Send without waiting for an acknowledgement."""
        client = await self.client()
        await self.unless_lost(client.publish(where, data, reply, headers))

    async def ask(self, where: str) -> None:
        """Ask the broker itself for something, and wait for its reply, whatever it is."""
        client = await self.client()
        await self.unless_lost(client.request(where, timeout=_TIMEOUT_S))

    async def subscribe(self, where: str, heard: Callable[[Msg], Awaitable[None]]) -> asyncio.Event:
        """Hear what is said there, until the connection is lost: then the event is set."""
        client = await self.client()
        await self.unless_lost(client.subscribe(where, cb=heard))
        return self._lost

    @property
    def max_payload(self) -> int:
        """The largest message that the broker accepts."""
        return self._client.max_payload if self._client else 0

    async def unless_lost(self, action: Awaitable[T]) -> T:
        """The result of `action`, or Unreachable as soon as the connection is lost."""
        lost, under_way = self._lost, self._under_way
        task = asyncio.ensure_future(action)
        under_way.add(task)
        if lost.is_set():
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if not lost.is_set() or _is_cancelled():
                raise
            raise self.unreachable("the connection was lost") from None
        except NoStreamResponseError:
            raise self.unreachable("it has no wirelag stream yet; start the collector") from None
        except APIError as error:
            raise self.unreachable(str(error.description or error.code)) from None
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise self.unreachable(self._said or plain(error)) from None
        finally:
            under_way.discard(task)

    def unreachable(self, reason: str) -> Unreachable:
        """An Unreachable with this reason."""
        return Unreachable(f"{self._address.shown}: cannot use the NATS server there ({reason[:200]})")

    async def close(self) -> None:
        """Close permanently."""
        self.closed = True
        _end(self._lost, self._under_way)
        await self._hang_up()

    async def _connect(self) -> Client:
        client, self._said = StreamClient(), ""
        self._lost, self._under_way = asyncio.Event(), set()
        lost, under_way = self._lost, self._under_way

        async def end() -> None:
            _end(lost, under_way)

        async def complain(error: Exception) -> None:
            if not self._said or not isinstance(error, OSError):  # a broken pipe is a consequence, not the cause
                self._said = plain(error)

        def secret(part: int) -> str:
            self._check_encrypted(client)
            words = (self._address.secret or "").split(":", 1)
            return words[part if len(words) > 1 else 0]

        options: dict[str, Any] = {"tls": self._context} if self._context else {}
        if ":" in (self._address.secret or ""):
            options |= {"user": lambda: secret(0), "password": lambda: secret(1)}
        elif self._address.secret:
            options |= {"token": lambda: secret(0)}
        urls = self._address.urls
        parts, self._tries = urlsplit(urls[self._tries % len(urls)]), self._tries + 1
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        try:
            await asyncio.wait_for(
                client.connect(
                    f"{parts.scheme}://{host}:{parts.port or 4222}",
                    name=self._name,
                    inbox_prefix=f"_INBOX.{token(self._name)}",  # so that replies can be hidden from others
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(_TIMEOUT_S),
                    ping_interval=_PING_S,
                    max_outstanding_pings=2,
                    disconnected_cb=end,
                    closed_cb=end,
                    error_cb=complain,
                    **options,
                ),
                3 * _TIMEOUT_S,
            )
            self._check_encrypted(client)
            for what, tell in self._told.items():
                await client.subscribe(hears(what, token(self._name)), cb=partial(_heard, tell))
        except (nats.errors.Error, OSError, TimeoutError) as error:
            await _closed(client)
            raise self.unreachable(self._said or plain(error)) from None
        except BaseException:
            await _closed(client)
            raise
        return client

    def _check_encrypted(self, client: Client) -> None:
        """Check encryption: the library upgrades to TLS only if the server requires it."""
        if self._context is not None and not client._server_info.get("tls_required"):
            raise nats.errors.SecureConnWantedError

    async def _hang_up(self) -> None:
        if self._client is not None:
            await _closed(self._client)
            self._client = None


def _end(lost: asyncio.Event, under_way: set[asyncio.Future[Any]]) -> None:
    lost.set()
    for one in under_way:
        one.cancel()


def _is_cancelled() -> bool:
    """Whether the caller itself was cancelled, and not only what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _heard(tell: Callable[[str], None], message: Msg) -> None:
    tell(message.data.decode(errors="replace"))


async def _closed(client: Client) -> None:
    with suppress(nats.errors.Error, OSError, TimeoutError):
        await asyncio.wait_for(client.close(), CLOSING_S)
    for subscription in client._subs.values():  # created while the library was closing; it does not end these
        if (task := subscription._wait_for_msgs_task) is not None:
            task.cancel()


def plain(error: Exception) -> str:
    """The library's message, without its name."""
    if isinstance(error, nats.errors.SecureConnWantedError):
        return "it does not speak TLS"
    if isinstance(error, OSError | TimeoutError):
        return reason(error)
    text = str(error).removeprefix("nats: ").strip("'") or type(error).__name__
    return "".join(filter(str.isprintable, text.partition("\n")[0]))
