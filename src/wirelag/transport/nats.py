"""Messages over NATS JetStream, both sides.

Law: an agent keeps a message until the collector says that it has stored it, and sends it again until then. The broker
only carries both: what it loses, whatever it had acknowledged, is sent again (stored.py). It keeps a message until the
collector has acknowledged it. When its stream is full it accepts no more. It keeps a limited number of messages of each
point, and accepts no more of that point: a flood of one does not stand before the messages of others. Every connection
is checked before any secret is sent. So the library's own reconnecting is not used: it would accept plain text.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from wirelag.errors import MissingExtraError
from wirelag.protocol.messages import MOST_BYTES, peek
from wirelag.transport import Acknowledge, Address, Declined, Refused, Unreachable, pauses, reason
from wirelag.transport.http import RUN_HEADER
from wirelag.transport.nats_stalls import Stall
from wirelag.transport.quotas import Quotas
from wirelag.transport.runs import Runs
from wirelag.transport.stored import Awaited, all_stored

try:
    import nats.errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.api import AckPolicy, ConsumerConfig
    from nats.js.client import JetStreamContext
    from nats.js.errors import APIError, NoStreamResponseError

    from wirelag.transport.lease import Lease
    from wirelag.transport.nats_streams import (
        ASKED,
        ASKS,
        HEADERS,
        MESSAGES,
        STREAM,
        TELL_HEADER,
        StreamClient,
        bound,
        ensure,
    )
except ImportError:
    raise MissingExtraError("NATS") from None

COLLECTOR: Final = "collector"
_DAY_S: Final = 86400.0
_TIMEOUT_S: Final = 5.0
_PING_S: Final = 3  # a broker that misses two of these is dead: TCP itself waits for minutes
_CLOSING_S: Final = 1.0  # after a failed handshake the library waits for ever
_POLL_S: Final = 2.0  # interval of requests: a restarted broker may have forgotten who waits
_AGAIN_S: Final = 10.0  # after which an unacknowledged message is repeated
_NOT_STORED_S: Final = 1.0  # the same for a message that could not be stored; twice as long each time,
_MOST_NOT_STORED_S: Final = 60.0  # and at most
_MOST_PENDING: Final = 100_000  # messages that may wait like this, or for their turn, before others do
_BOUND_AGAIN_S: Final = 60.0  # when it is tried again to set this limit
_MOST_PUT_OFF: Final = 64  # messages of a second agent of a point that the broker keeps
_PUT_OFF_S: Final = 15.0  # how long they and their agent wait for the next try
_STORED_S: Final = 10.0  # how long an agent waits for the word that a message is stored, before it sends it again
_NOT_STORED: Final = "is one running, and as new as this agent? upgrade collectors before agents"
_MOST_TRIES: Final = 4  # deliveries of a message that cannot be stored, if its sender waits: then that sends it again
_ASK_AGAIN_S: Final = 2.0  # the same for asks: the collector does not wait long for replies
_MOST_SHOWN: Final = 200  # characters of a point's name in the log

T = TypeVar("T")

# The standard library warns whenever a connection that was upgraded to TLS ends.
logging.getLogger("asyncio").addFilter(lambda record: "eof_received() has no effect" not in record.getMessage())


def subject(kind: str, point: str) -> str:
    """The subject of messages of this type from, or for, a point; crossings take that of synopses, which they replace.

    >>> subject("crossing", "B")
    'wirelag.synopsis.B'
    """
    return f"wirelag.{'synopsis' if kind == 'crossing' else kind}.{token(point)}"


def token(point: str) -> str:
    """A point's name as one word of a subject: all but letters, digits, _ and - become = and two hex digits."""
    return re.sub(rb"[^A-Za-z0-9_-]", lambda byte: b"=%02X" % byte[0][0], point.encode()).decode()


def named(word: str) -> str:
    """The point whose name is this word of a subject: the inverse of `token`; a word of none, if it cannot be shown."""
    plain = re.sub(rb"=([0-9A-F]{2})", lambda byte: bytes.fromhex(byte[1].decode()), word.encode())
    name = plain.decode(errors="replace")[:_MOST_SHOWN]
    return name if name.isprintable() else word[:_MOST_SHOWN]


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
        self._turn = asyncio.Lock()
        self._said = ""  # last error message of the broker
        self._tries = random.randrange(1 << 16)  # any server of several first
        self.closed = False

    async def stream(self) -> JetStreamContext:
        """The stream, ready to use; or Unreachable."""
        async with self._turn:
            if self.closed:
                raise self.unreachable("closed")
            if self._client is None or not self._client.is_connected:
                await self._hang_up()
                self._client = await self._connect()
            return self._client.jetstream(timeout=_TIMEOUT_S)

    async def say(self, where: str, text: str, headers: dict[str, str] | None = None) -> None:
        """Send without waiting for an acknowledgement."""
        await self.stream()
        if self._client is not None:
            await self.unless_lost(self._client.publish(where, text.encode(), headers=headers))

    async def ask(self, where: str) -> None:
        """Ask the broker itself for something, and wait for its reply, whatever it is."""
        await self.stream()
        if self._client is not None:
            await self.unless_lost(self._client.request(where, timeout=_TIMEOUT_S))

    async def subscribe(self, where: str, heard: Callable[[Msg], Awaitable[None]]) -> asyncio.Event:
        """Hear what is said there, until the connection is lost: then the event is set."""
        await self.stream()
        if self._client is not None:
            await self.unless_lost(self._client.subscribe(where, cb=heard))
        return self._lost

    @property
    def max_payload(self) -> int:
        """The largest message that the broker accepts."""
        return self._client.max_payload if self._client else 0

    async def unless_lost(self, action: Awaitable[T]) -> T:
        """The result of `action`, or Unreachable as soon as the connection is lost."""
        task = asyncio.ensure_future(action)
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait((task, lost), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self.unreachable("the connection was lost")
            return await task
        except NoStreamResponseError:
            raise self.unreachable("it has no wirelag stream yet; start the collector") from None
        except APIError as error:
            raise self.unreachable(str(error.description or error.code)) from None
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise self.unreachable(self._said or plain(error)) from None
        finally:
            task.cancel()
            lost.cancel()
            await asyncio.gather(task, lost, return_exceptions=True)

    def unreachable(self, reason: str) -> Unreachable:
        """An Unreachable with this reason."""
        return Unreachable(f"{self._address.shown}: cannot use the NATS server there ({reason[:200]})")

    async def close(self) -> None:
        """Close permanently."""
        self.closed = True
        self._lost.set()
        await self._hang_up()

    async def _connect(self) -> Client:
        client, self._lost, self._said = StreamClient(), asyncio.Event(), ""
        lost = self._lost

        async def end() -> None:
            lost.set()

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


class NatsSender:
    """The agent's side.

    The broker takes what a second agent of this name sends. So the collector tells that agent, which from then on sends
    one message at a time.
    """

    def __init__(self, address: Address, point: str) -> None:
        self._point = point
        self._address = address
        self._awaited = Awaited()
        self._line = Line(address, point, {REFUSED: self._told, STORED: self._awaited.stored})
        self._life = secrets.token_hex(8)
        self._is_second = False  # another agent of this name is running
        self._not_before_s, self._turn = 0.0, asyncio.Lock()

    async def send(self, data: bytes, key: str) -> None:
        """Return once a collector has stored it."""
        if not self._is_second:
            await self._until_stored(data, key)
            return
        async with self._turn:
            if time.monotonic() < self._not_before_s:
                raise self._declined()
            await self._until_stored(data, key)
            self._is_second = False

    async def _until_stored(self, data: bytes, key: str) -> None:
        headers = {RUN_HEADER: self._life, TELL_HEADER: key}
        with self._awaited.expect(key) as word:
            await _publish(self._line, subject(key.partition("-")[0], self._point), data, headers, self._address.shown)
            is_stored = await self._line.unless_lost(all_stored([word], _STORED_S))
        if is_stored is None:
            raise Declined(f"{self._address.shown}: no collector has stored it within {_STORED_S:g} s; {_NOT_STORED}")
        if not is_stored:
            raise self._declined()

    def _told(self, run: str) -> None:
        if run == self._life:
            self._is_second, self._not_before_s = True, time.monotonic() + _PUT_OFF_S
            self._awaited.refused()

    def _declined(self) -> Declined:
        return Declined(f"{self._address.shown}: another agent called {self._point} is running; give each its own name")

    async def _hold(self, context: JetStreamContext) -> None:
        """Leave the asks to the other agent of this name, if it is the one that may speak."""
        if self._is_second:
            raise self._declined()

    async def asks(self) -> AsyncIterator[bytes]:
        """Asks wait in the broker for at most ten minutes."""
        name = token(self._point)
        where = subject("ask", self._point)
        async for message in _consume(self._line, ASKS, name, where, _ASK_AGAIN_S, hold=self._hold):
            yield message.data
            await _acknowledger(message)(not self._is_second)

    async def close(self) -> None:
        """Close; `asks` ends too."""
        await self._line.close()


class NatsInbox:
    """The collector's side. It creates the streams, unless they exist, for example with other limits or replicas.

    `counts`: messages that were not accepted, by reason.
    """

    scheme = "nats"

    def __init__(
        self,
        address: Address,
        again_s: float = _AGAIN_S,
        name: str = COLLECTOR,
        quotas: Quotas | None = None,
        runs: Runs | None = None,
    ) -> None:
        """`name`: of this collector, the same after a restart; only one at a time reads from a broker.

        `runs`: shared with other inboxes, because an agent may have the name of one that sends another way.
        """
        self.counts: Counter[str] = Counter()
        self._lease = Lease(name)
        self._quotas = quotas or Quotas()
        self._runs = runs or Runs()
        self._put_offs: dict[str, set[int]] = {}  # by point: messages of a second agent that the broker keeps
        self._address = address
        self._again_s = again_s
        self._line = Line(address, COLLECTOR)
        self._said: str | None = None  # the broker's current problem
        self._bound_s: float | None = 0.0  # when to look again whether points have a limit there; None: they have

    async def messages(self) -> AsyncIterator[tuple[bytes, Acknowledge]]:
        """Messages are repeated after `again_s` seconds if they are not acknowledged."""
        async for message in _consume(self._line, STREAM, COLLECTOR, None, self._again_s, self._complain, self._hold):
            point, is_second = message.subject.rpartition(".")[2], self._is_second(message)
            acknowledge, again = _acknowledger(message, point), (message.metadata.num_delivered or 1) > 1
            if wait_s := self._quotas.turn_s(point, len(message.data), again):  # whatever it is, it takes time
                self.counts["waited for its turn"] += 1
                with suppress(nats.errors.Error):  # the broker keeps it
                    await message.nak(delay=wait_s)
            elif _of_another(message):
                self.counts["of another point"] += 1
                await acknowledge()
            elif is_second:
                await self._put_off(message, acknowledge)
            else:
                yield message.data, acknowledge

    def _is_second(self, message: Msg) -> bool:
        """Whether a message is of an agent that uses the name of another one that is running."""
        point, run = message.subject.rpartition(".")[2], (message.headers or {}).get(RUN_HEADER, "")[:64]
        if message.metadata.num_delivered == 1:
            return not self._runs.admits(named(point), run, time.monotonic())
        # A message that is delivered again does not show which agent runs now.
        is_second = self._runs.refuses(named(point), run, time.monotonic())
        if not is_second and point in self._put_offs:
            self._put_offs[point].discard(message.metadata.sequence.stream)
        return is_second

    async def _put_off(self, message: Msg, acknowledge: Acknowledge) -> None:
        """Leave a message of a second agent with the broker until the other one has ended; a few, and drop the rest."""
        point = message.subject.rpartition(".")[2]
        put_off = self._put_offs.setdefault(point, set())
        if not put_off:
            print(
                f"wirelag: two agents are called {named(point)} at the broker: the one that began later is refused, "
                f"give each its own name",
                file=sys.stderr,
                flush=True,
            )
        self.counts["of a second agent"] += 1
        with suppress(Unreachable):  # it is told again
            await self._line.say(hears(REFUSED, point), (message.headers or {}).get(RUN_HEADER, "")[:64])
        number = message.metadata.sequence.stream
        if number not in put_off and len(put_off) >= _MOST_PUT_OFF:
            self.counts["of a second agent, dropped"] += 1
            await acknowledge(None)
            return
        put_off.add(number)
        with suppress(nats.errors.Error):  # the broker keeps it
            await message.nak(delay=_PUT_OFF_S)

    async def ask(self, point: str, data: bytes) -> None:
        """Leave it with the broker. An ask may be repeated: replies are counted once."""
        await _publish(self._line, subject("ask", point), data, None, self._address.shown)

    async def close(self) -> None:
        """Close; `messages` ends too."""
        with suppress(Unreachable, TimeoutError):
            if not self._line.closed and self._said is None:
                await asyncio.wait_for(self._lease.release(await self._line.stream()), _CLOSING_S)
        await self._line.close()

    async def _hold(self, context: JetStreamContext) -> None:
        """Raise Unreachable while another collector reads from this broker."""
        if (other := await self._line.unless_lost(self._lease.hold(context))) is not None:
            raise self._line.unreachable(f"another collector, {other}, reads from it; stop one of the two")
        if self._bound_s is not None and time.monotonic() >= self._bound_s:
            is_bound = await self._line.unless_lost(bound(context))
            self._bound_s = None if is_bound else time.monotonic() + _BOUND_AGAIN_S

    def _complain(self, error: Unreachable | None) -> None:
        """Report a problem once, and its end once."""
        self.counts["broker failed"] += error is not None
        said, self._said = self._said, None if error is None else str(error)
        if self._said not in (None, said):
            print(f"wirelag: {self._said}; still trying", file=sys.stderr, flush=True)
        elif error is None and said is not None:
            print(f"wirelag: {self._address.shown}: can be used again", file=sys.stderr, flush=True)


async def _publish(line: Line, where: str, data: bytes, headers: dict[str, str] | None, shown: str) -> None:
    stream = await line.stream()
    most = min(line.max_payload - HEADERS, MOST_BYTES)
    if len(data) > most:
        raise Refused(
            f"{shown}: a message of {len(data)} bytes is too large for the NATS server there (at most {most}); "
            f"raise its max_payload, or choose shorter intervals"
        )
    await line.unless_lost(stream.publish(where, data, headers=headers))


async def _consume(
    line: Line,
    stream: str,
    name: str,
    only: str | None,
    again_s: float,
    complain: Callable[[Unreachable | None], None] = lambda error: None,
    hold: Callable[[JetStreamContext], Awaitable[None]] | None = None,
) -> AsyncIterator[Msg]:
    """Messages one by one, across reconnections; `hold` raises Unreachable when they are another's to read."""
    tries = pauses()
    while not line.closed:
        try:
            context = await line.stream()
            if hold is not None:
                await hold(context)
            if stream == STREAM:
                for each in (MESSAGES, ASKED):
                    await line.unless_lost(ensure(context, each))
            consumer = ConsumerConfig(
                durable_name=name, ack_policy=AckPolicy.EXPLICIT, ack_wait=again_s, max_ack_pending=_MOST_PENDING
            )
            if only is not None:
                consumer.filter_subject, consumer.inactive_threshold = only, _DAY_S  # agents may disappear
            await line.unless_lost(context.add_consumer(stream, consumer))
            pulled = await line.unless_lost(context.pull_subscribe_bind(name, stream))
            complain(None)
            stall = Stall(line, stream, name) if stream == STREAM else None  # an agent may not look
            while True:
                if hold is not None:
                    await hold(context)
                message = await line.unless_lost(_next(pulled))
                tries = pauses()
                if stall is not None:
                    await stall.watch(message is not None)
                if message is not None:
                    yield message
        except Unreachable as error:
            if not line.closed:
                complain(error)
                await asyncio.sleep(next(tries))


async def _next(pulled: JetStreamContext.PullSubscription) -> Msg | None:
    try:
        return (await pulled.fetch(1, _POLL_S))[0]
    except nats.errors.TimeoutError:
        return None


def _of_another(message: Msg) -> bool:
    """Whether a message is of another point than its subject: a broker checks subjects, not contents."""
    try:
        return token(peek(message.data).point) != message.subject.rpartition(".")[2]
    except ValueError:
        return False  # garbage is counted elsewhere


def _acknowledger(message: Msg, who: str | None = None) -> Acknowledge:
    """`who` hears that it is stored, if it wants to; what is not stored soon is then left to it."""
    name = (message.headers or {}).get(TELL_HEADER) if who is not None else None

    async def acknowledge(is_stored: bool | None = True) -> None:
        with suppress(nats.errors.Error):  # if it is lost, the message is repeated
            tries = message.metadata.num_delivered or 1
            if is_stored is False and (name is None or tries < _MOST_TRIES):
                await message.nak(delay=min(_MOST_NOT_STORED_S, _NOT_STORED_S * 2 ** min(tries - 1, 10)))
                return
            await message.ack()
            if is_stored and name is not None:
                await message._client.publish(hears(STORED, str(who)), name.encode())

    return acknowledge


async def _heard(tell: Callable[[str], None], message: Msg) -> None:
    tell(message.data.decode(errors="replace"))


async def _closed(client: Client) -> None:
    with suppress(nats.errors.Error, OSError, TimeoutError):
        await asyncio.wait_for(client.close(), _CLOSING_S)
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
