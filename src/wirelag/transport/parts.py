"""Messages for collectors that share the work: each goes to the partition of its segment, and waits for the owner.

Law: a message is acknowledged to its agent once every owner that it is for has said that it is stored. So both ends of
a segment meet at one collector, whichever way they came in, and what the broker loses on the way its agent sends again.
It has no name by which the broker drops repetitions, since the owner does, and the broker's own acknowledgement is
awaited only where that word did not come: it would say why. A partition has one consumer, which whoever owns it reads
from: what a former owner had and did not acknowledge comes to the next one after _AGAIN_S, and what a former owner
still reads it cannot store, and gives back. What is for a partition that is open here does not go by way of the broker,
nor does an ask for an agent that listens here. Memory is bounded: _MOST_HELD bytes of messages of each inbox wait for
their owners, and others wait where they are.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Final

from wirelag.errors import MissingExtraError
from wirelag.protocol.messages import MOST_BYTES, UnknownVersion, peek
from wirelag.protocol.sharing import parts_of
from wirelag.transport import NOW, Acknowledge, Address, Inbox, Refused, Unreachable
from wirelag.transport.http import RUN_HEADER
from wirelag.transport.http_inbox import HttpInbox
from wirelag.transport.lease import Lease
from wirelag.transport.nats import (
    _ASK_AGAIN_S,
    NatsInbox,
    _acknowledger,
    _consumer,
    _publish,
    _tell,
    subject,
)
from wirelag.transport.nats_line import STORED, Line, token
from wirelag.transport.nats_pull import pull
from wirelag.transport.nats_stalls import Stall
from wirelag.transport.nats_streams import ASKED, ASKS, HEADERS, MESSAGES, TELL_HEADER, ensure
from wirelag.transport.quotas import Quotas
from wirelag.transport.runs import Runs
from wirelag.transport.stored import Awaited, all_stored

try:
    from nats.aio.msg import Msg
    from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StreamConfig
    from nats.js.client import JetStreamContext
except ImportError:
    raise MissingExtraError("NATS") from None

STREAM: Final = "WIRELAG_PARTS"
PARTED: Final = StreamConfig(
    name=STREAM,
    subjects=["wirelag.part.*.*.*"],
    retention=RetentionPolicy.WORK_QUEUE,
    discard=DiscardPolicy.NEW,
    max_bytes=2 << 30,
    max_age=7 * 86400.0,
    max_msg_size=MOST_BYTES + HEADERS,
)
_AGAIN_S: Final = 3.0  # after which an unacknowledged message comes again
_PENDING: Final = 512  # messages of a partition that wait for their acknowledgement
_WAITING: Final = 1024  # messages that wait for the collector
_MOST_AWAITED: Final = 4096  # messages of one inbox until their owners have stored them,
_MOST_HELD: Final = 64 << 20  # and their bytes
_STORED_S: Final = 8.0  # how long the word of an owner is waited for; less than agents and brokers wait
_SEVERAL: Final = "+"  # how names of messages begin of which several may be told at once: older collectors tell each


class EntryInbox(NatsInbox):
    """Messages that agents leave with the broker, of which each collector takes some: only to put them into parts."""

    def __init__(self, address: Address, group: str, quotas: Quotas, runs: Runs, replicas: int) -> None:
        """`group`: the name that all who share have in common."""
        super().__init__(address, name=group, quotas=quotas, runs=runs)
        self._lease = Lease(group, together=True)
        self._replicas = replicas
        self._made: JetStreamContext | None = None  # the connection on which the streams were found or made

    async def _hold(self, context: JetStreamContext) -> None:
        if self._made is not context:
            for each in (MESSAGES, ASKED):
                await self._line.unless_lost(ensure(context, each.evolve(num_replicas=self._replicas)))
            self._made = context
        await super()._hold(context)


class Parts:
    """The partitions at the broker, on a connection of their own. As an inbox: messages of those that are open."""

    scheme = "parts"

    def __init__(self, address: Address, me: str, replicas: int = 1) -> None:
        self.counts: Counter[str] = Counter()
        self._awaited, self._life, self._number = Awaited(), _SEVERAL + secrets.token_hex(8), 0
        self.line = Line(address, me, {STORED: self._stored})
        self._me, self._address, self._replicas = token(me), address, replicas
        self._doubted: set[int] = set()  # partitions from which no word came
        self._untold: dict[str, list[str]] = {}  # by collector: names of messages that are stored here
        self._came: asyncio.Queue[tuple[bytes, Acknowledge] | None] = asyncio.Queue(_WAITING)
        self._readers: dict[int, asyncio.Task[None]] = {}
        self._listening: dict[str, list[HttpInbox]] = {}  # by point: once for each reply by which it reads asks here

    # ---- into them ----

    async def forward(self, inbox: Inbox) -> None:
        """Put what an inbox receives into partitions, without end."""
        held, ended = 0, asyncio.Event()
        under_way: set[asyncio.Task[None]] = set()

        def end(task: asyncio.Task[None], size: int) -> None:
            nonlocal held
            held -= size
            under_way.discard(task)
            ended.set()

        async with asyncio.TaskGroup() as group:
            async for data, acknowledge in inbox.messages():
                while under_way and (held + len(data) > _MOST_HELD or len(under_way) >= _MOST_AWAITED):
                    ended.clear()
                    await ended.wait()
                held += len(data)
                task = group.create_task(self._forward(data, acknowledge))
                under_way.add(task)
                task.add_done_callback(partial(end, size=len(data)))

    async def _forward(self, data: bytes, acknowledge: Acknowledge) -> None:
        is_stored: bool | None = True
        try:
            opening = peek(data)
            with ExitStack() as stack:
                words, parts = [], parts_of(opening.segment, opening.point, opening.type == "status")
                for part in parts:
                    if part in self._readers:
                        words.append(await self._here(data))
                        continue
                    self._number += 1
                    name = f"{self._life}-{self._number}"
                    words.append(stack.enter_context(self._awaited.expect(name)))
                    headers = {RUN_HEADER: self._me, TELL_HEADER: name}
                    where = f"wirelag.part.{part}.{opening.type}.{token(opening.point)}"
                    is_awaited = part in self._doubted
                    await _publish(self.line, where, data, headers, self._address.shown, is_awaited)
                    self.counts["forwarded"] += 1
                is_stored = await all_stored(words, _STORED_S)
            self._doubted = self._doubted | set(parts) if is_stored is None else self._doubted - set(parts)
            self.counts["not stored in time"] += is_stored is None
        except UnknownVersion:
            self.counts["of an unknown version"] += 1
            is_stored = False  # its sender keeps it until this wirelag is upgraded
        except ValueError:
            self.counts["garbage"] += 1
        except Refused:
            self.counts["too large for the broker"] += 1
            is_stored = False
        except Unreachable:
            self.counts["broker failed"] += 1
            is_stored = False
        await acknowledge(is_stored)

    async def _here(self, data: bytes) -> asyncio.Future[bool]:
        """Hand a message to this collector; the result is whether it has stored it."""
        word = asyncio.get_running_loop().create_future()

        def acknowledge(is_stored: bool | None = True) -> Awaitable[None]:
            if not word.done():
                word.set_result(bool(is_stored))
            return NOW

        await self._came.put((data, acknowledge))
        return word

    def _stored(self, names: str) -> None:
        for name in names.split():
            self._awaited.stored(name)

    # ---- out of them ----

    async def ensure(self) -> None:
        """Make the streams, unless they exist."""
        context = await self.line.stream()
        for each in (PARTED, ASKED):
            await self.line.unless_lost(ensure(context, each.evolve(num_replicas=self._replicas)))

    async def open(self, parts: Iterable[int]) -> None:
        """Read these partitions from now on; what a former owner did not acknowledge comes within _AGAIN_S."""
        await self.ensure()
        context = await self.line.stream()
        wanted = [part for part in parts if part not in self._readers]
        done = await asyncio.gather(*(self._open(context, part) for part in wanted), return_exceptions=True)
        for failed in filter(None, done):  # after all have ended: none may begin to read when its partition is let go
            raise failed

    async def _open(self, context: JetStreamContext, part: int) -> None:
        consumer = ConsumerConfig(
            durable_name=f"part{part}", ack_policy=AckPolicy.EXPLICIT, ack_wait=_AGAIN_S, max_ack_pending=_PENDING,
            filter_subject=f"wirelag.part.{part}.*.*",
        )  # fmt: skip
        await self.line.unless_lost(context.add_consumer(STREAM, consumer))
        self._readers[part] = asyncio.create_task(self._read(f"part{part}"))

    async def shut(self, parts: Iterable[int]) -> None:
        """Read these partitions no more."""
        ended = [task for part in parts if (task := self._readers.pop(part, None)) is not None]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def _read(self, name: str) -> None:
        def failed() -> None:
            self.counts["broker failed"] += 1

        await pull(self.line, STREAM, name, self._take, self.line.client, failed, Stall(self.line, STREAM, name))

    async def _take(self, message: Msg) -> None:
        who = (message.headers or {}).get(RUN_HEADER)
        await self._came.put((message.data, _acknowledger(message, who, self._tell)))

    async def _tell(self, message: Msg, who: str, name: str) -> None:
        """Tell the collector that a message came from that it is stored, with all others that are stored now."""
        if not name.startswith(_SEVERAL):
            await _tell(message, who, name)
            return
        names = self._untold.setdefault(who, [])
        names.append(name)
        if len(names) == 1:
            await asyncio.sleep(0)  # others are acknowledged at the same time
            await _tell(message, who, " ".join(self._untold.pop(who)))

    async def messages(self) -> AsyncIterator[tuple[bytes, Acknowledge]]:
        """Messages of open partitions, without end."""
        while (came := await self._came.get()) is not None:
            yield came

    async def ask(self, point: str, data: bytes) -> None:
        """Leave it with the broker, for the agent or for the collector that the agent is connected to."""
        if here := self._listening.get(point):
            await here[0].ask(point, data)
            return
        await _publish(self.line, subject("ask", point), data, None, self._address.shown, is_awaited=False)

    @asynccontextmanager
    async def asks_for(self, inbox: HttpInbox, point: str) -> AsyncIterator[None]:
        """While an agent listens here, hand it the asks that any owner has left for it."""

        async def give(message: Msg) -> None:
            await inbox.ask(point, message.data)
            await _acknowledger(message)()

        async def prepare() -> None:
            context = await self.line.stream()
            consumer = _consumer(token(point), subject("ask", point), _ASK_AGAIN_S)
            await self.line.unless_lost(context.add_consumer(ASKS, consumer))

        passing = asyncio.create_task(pull(self.line, ASKS, token(point), give, prepare, lambda: None))
        here = self._listening.setdefault(point, [])
        here.append(inbox)
        try:
            yield
        finally:
            here.pop()
            if not here:
                del self._listening[point]
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)

    async def close(self) -> None:
        """Close; `messages` ends too."""
        await self.shut(list(self._readers))
        with suppress(asyncio.QueueFull):
            self._came.put_nowait(None)
        await self.line.close()
