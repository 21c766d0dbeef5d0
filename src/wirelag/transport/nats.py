"""Messages over NATS JetStream, both sides.

Law: an agent keeps a message until the collector says that it has stored it, and sends it again until then. The broker
only carries both: what it loses, whatever it had acknowledged, is sent again (stored.py). It keeps a message until the
collector has acknowledged it. When its stream is full it accepts no more. It keeps a limited number of messages of each
point, and accepts no more of that point: a flood of one does not stand before the messages of others.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final

from wirelag.errors import MissingExtraError
from wirelag.protocol.messages import MOST_BYTES, peek
from wirelag.transport import Acknowledge, Address, Declined, Refused, Unreachable, pauses
from wirelag.transport.http import RUN_HEADER
from wirelag.transport.nats_line import CLOSING_S, REFUSED, STORED, Line, hears, token
from wirelag.transport.nats_stalls import Stall
from wirelag.transport.quotas import Quotas
from wirelag.transport.runs import Runs
from wirelag.transport.stored import Awaited, all_stored

try:
    import nats.errors
    from nats.aio.msg import Msg
    from nats.js.api import AckPolicy, ConsumerConfig
    from nats.js.client import JetStreamContext

    from wirelag.transport.lease import Lease
    from wirelag.transport.nats_streams import (
        ASKED,
        ASKS,
        HEADERS,
        MESSAGES,
        STREAM,
        TELL_HEADER,
        bound,
        ensure,
    )
except ImportError:
    raise MissingExtraError("NATS") from None

COLLECTOR: Final = "collector"
_DAY_S: Final = 86400.0
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


def subject(kind: str, point: str) -> str:
    """The subject of messages of this type from, or for, a point; crossings take that of synopses, which they replace.

    >>> subject("crossing", "B")
    'wirelag.synopsis.B'
    """
    return f"wirelag.{'synopsis' if kind == 'crossing' else kind}.{token(point)}"


def named(word: str) -> str:
    """The point whose name is this word of a subject: the inverse of `token`; a word of none, if it cannot be shown."""
    plain = re.sub(rb"=([0-9A-F]{2})", lambda byte: bytes.fromhex(byte[1].decode()), word.encode())
    name = plain.decode(errors="replace")[:_MOST_SHOWN]
    return name if name.isprintable() else word[:_MOST_SHOWN]


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
            await self._line.say(hears(REFUSED, point), (message.headers or {}).get(RUN_HEADER, "")[:64].encode())
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
                await asyncio.wait_for(self._lease.release(await self._line.stream()), CLOSING_S)
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


async def _publish(
    line: Line, where: str, data: bytes, headers: dict[str, str] | None, shown: str, is_awaited: bool = True
) -> None:
    """Put a message into its stream, and wait for the broker's acknowledgement, if it is to be awaited."""
    stream = await line.stream()
    most = min(line.max_payload - HEADERS, MOST_BYTES)
    if len(data) > most:
        raise Refused(
            f"{shown}: a message of {len(data)} bytes is too large for the NATS server there (at most {most}); "
            f"raise its max_payload, or choose shorter intervals"
        )
    if is_awaited:
        await line.unless_lost(stream.publish(where, data, headers=headers))
    else:
        await line.say(where, data, headers)


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
            await line.unless_lost(context.add_consumer(stream, _consumer(name, only, again_s)))
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


def _consumer(name: str, only: str | None, again_s: float) -> ConsumerConfig:
    found = ConsumerConfig(
        durable_name=name, ack_policy=AckPolicy.EXPLICIT, ack_wait=again_s, max_ack_pending=_MOST_PENDING
    )
    if only is not None:
        found.filter_subject, found.inactive_threshold = only, _DAY_S  # agents may disappear
    return found


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


def _acknowledger(
    message: Msg, who: str | None = None, tell: Callable[[Msg, str, str], Awaitable[None]] | None = None
) -> Acknowledge:
    """`who` hears that it is stored, if it wants to; what is not stored soon is then left to it.

    `tell`: another way to say so.
    """
    name = (message.headers or {}).get(TELL_HEADER) if who is not None else None

    async def acknowledge(is_stored: bool | None = True) -> None:
        with suppress(nats.errors.Error):  # if it is lost, the message is repeated
            if is_stored is False:
                tries = message.metadata.num_delivered or 1
                if name is None or tries < _MOST_TRIES:
                    await message.nak(delay=min(_MOST_NOT_STORED_S, _NOT_STORED_S * 2 ** min(tries - 1, 10)))
                    return
            await message.ack()
            if is_stored and name is not None:
                await (tell or _tell)(message, str(who), name)

    return acknowledge


async def _tell(message: Msg, who: str, names: str) -> None:
    await message._client.publish(hears(STORED, who), names.encode())
