"""A collector that shares the work with others: it takes over partitions and gives them up, as others come and go.

Laws. A collector owns the partitions that protocol/sharing.py gives it among those whose lease holds (members.py). It
renews its own while it can write to the database. To take a partition over, in this order: raise its fence, which ends
all writing of the former owner; read the partition's messages, also those that the former owner did not acknowledge;
read those that are stored without their other half. To give one up: forget all of it; nothing is written. Whoever is
fenced off gives up, too, and rests for a lease before it tries again; it looks every second, since one that gets no
messages has nothing to commit. What is told to listeners is told by every collector, so that a page may be served by
any.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from psycopg import Error

from wirelag.collector.following import TopologyChange
from wirelag.collector.listeners import Listeners, News, Said
from wirelag.collector.loop import TICK_S, Collector
from wirelag.collector.postgres import PostgresStore
from wirelag.collector.settings import Settings
from wirelag.collector.store import Store
from wirelag.errors import WirelagError
from wirelag.protocol.messages import Message
from wirelag.protocol.session import MOST_SEGMENTS
from wirelag.protocol.sharing import owners, part_of
from wirelag.transport import Inbox, Unreachable, pauses
from wirelag.transport.http_inbox import HttpInbox
from wirelag.transport.members import RENEWALS, Members
from wirelag.transport.parts import EntryInbox, Parts
from wirelag.transport.quotas import Quotas
from wirelag.transport.runs import Runs

if TYPE_CHECKING:
    from nats.aio.msg import Msg

NEWS: Final = "wirelag.news"
LEARN_S: Final = 2.0  # how often to read what others know of agents
_LATELY_S: Final = 10.0
_MOST_TOLD: Final = 100  # results in one message to the others
_MOST_UNTOLD: Final = 1000  # messages to them that wait


class Shared(Listeners):
    """Tells the listeners of all collectors."""

    def __init__(self) -> None:
        super().__init__()
        self.untold: asyncio.Queue[str] = asyncio.Queue(_MOST_UNTOLD)
        self._heard: dict[tuple[str, bool], tuple[float, dict[str, Any]]] = {}  # when, and the report

    def tell(self, said: News) -> None:
        """Tell those who listen here, and the other collectors."""
        super().tell(said)
        if isinstance(said, TopologyChange):
            return  # every collector follows by itself
        for first in range(0, len(said), _MOST_TOLD):
            plain = [[one.segment, one.report] for one in said[first : first + _MOST_TOLD]]
            if not self.untold.full():
                self.untold.put_nowait(json.dumps(plain))

    def hear(self, text: str) -> None:
        """Tell those who listen here what another collector has said."""
        said, now_s = [Said(segment, report) for segment, report in json.loads(text)], time.monotonic()
        for one in said if len(self._heard) < 2 * MOST_SEGMENTS else ():
            for is_settled in {False, bool(one.report["settled"])}:
                self._heard[one.segment, is_settled] = now_s, one.report
        super().tell(said)

    def last(self, segment: str, settled: bool) -> dict[str, Any] | None:
        """What another collector has said of a segment lately: else the store knows."""
        heard_s, report = self._heard.get((segment, settled), (-math.inf, None))
        return report if time.monotonic() - heard_s < _LATELY_S else None


def shared(
    settings: Settings, collector: Collector, store: Store, inbox: HttpInbox, quotas: Quotas, runs: Runs
) -> Sharing:
    """The collector of these settings, which shares the work with all that have the same broker and database."""
    assert settings.nats is not None
    assert isinstance(store, PostgresStore)
    parts = Parts(settings.nats, store.session, settings.replicas)
    members = Members(parts.line, store.session, settings.lease_ns / 1e9, settings.replicas)
    entry = EntryInbox(settings.nats, f"collectors that share {store.path}", quotas, runs, settings.replicas)
    inbox.around = partial(parts.asks_for, inbox)
    return Sharing(collector, store, parts, members, [inbox, entry])


class Sharing:
    """Of one collector and its store. `entries`: the inboxes by which agents' messages come in."""

    def __init__(
        self, collector: Collector, store: PostgresStore, parts: Parts, members: Members, entries: list[Inbox]
    ) -> None:
        self._collector, self._store, self._parts, self._members = collector, store, parts, members
        self.inboxes: list[Inbox] = [parts]
        collector.entries = entries
        self._rests_until_s: dict[int, float] = {}  # partitions from which it was fenced off
        self._looked_s = 0.0  # when the fences were
        self._told = Shared()
        self._said: frozenset[str] | None = None  # the collectors of which the log has told
        self._loop = asyncio.get_running_loop()
        collector.listeners, collector.is_shared = self._told, True
        collector.owns, collector.fenced, collector.elsewhere = self._owns, self._fenced, self._told.last

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._members.listen())
            group.create_task(self._turns())
            group.create_task(self._learn())
            group.create_task(self._tell())
            group.create_task(self._hear())
            for one in self._collector.entries:
                group.create_task(self._parts.forward(one))

    async def close(self) -> None:
        """Let others take over at once."""
        await self._members.leave()
        for one in self._collector.entries:
            await one.close()

    # ---- partitions ----

    def _owns(self, message: Message) -> bool:
        """Whether a message is this collector's to process; in the worker."""
        if message.type == "status":
            return True
        held = self._store.held
        return bool(held) if message.segment is None else part_of(message.segment) in held

    @property
    def _works(self) -> bool:
        """Whether the database was written lately: the collector does so every TICK_S."""
        return time.monotonic() - self._store.committed_s < self._members.lease_s + 2 * TICK_S

    async def _turns(self) -> None:
        pause_s, woke_s = self._members.lease_s / RENEWALS, time.monotonic()
        while True:
            if self._works:
                await self._members.renew()
            late_s = time.monotonic() - woke_s - pause_s
            woke_s = time.monotonic()
            try:
                if late_s < 2 * pause_s:  # else what others have said waits to be heard
                    await self._turn()
            except (WirelagError, OSError, Error) as error:
                self._collector.counted["partitions not taken over"] += 1
                line = f"cannot take over partitions now ({error}); still trying"
                self._collector.notices.say("partitions not taken over", type(error).__name__, line)
            await asyncio.sleep(pause_s)

    async def _turn(self) -> None:
        """Own what it should."""
        alive, now_s = self._members.alive, time.monotonic()
        if now_s - self._looked_s > TICK_S and self._store.held:
            self._looked_s = now_s
            if lost := await self._collector.in_worker(self._store.lost):
                await self._collector.in_worker(self._fenced, lost)
        mine = {part for part, who in owners(alive).items() if who == self._members.me}
        held = set(self._store.held)
        if held - mine:
            await self._give_up(held - mine)
        gained = {part for part in mine - held if self._rests_until_s.get(part, 0.0) < now_s}
        if gained:
            await self._take_over(gained)
        if alive and alive != self._said:
            self._said = alive
            print(
                f"wirelag: shares the work with {len(alive) - 1} other collectors: has {len(self._store.held)} of "
                f"{len(owners(alive))} partitions",
                file=sys.stderr,
                flush=True,
            )

    async def _take_over(self, parts: Iterable[int]) -> None:
        tokens = await self._collector.in_worker(self._store.hold, sorted(parts))
        try:
            await self._parts.open(tokens)
        except BaseException:
            await self._give_up(tokens)
            raise
        self._told.tell(await self._collector.in_worker(self._collector.resume) or [])
        self._collector.counted["partitions taken over"] += len(tokens)

    async def _give_up(self, parts: Iterable[int]) -> None:
        gone = set(parts)
        await self._parts.shut(gone)
        await self._collector.in_worker(self._forget, gone)

    def _forget(self, parts: Iterable[int]) -> None:
        self._store.let_go(parts)
        gone = set(parts)
        self._collector.give_up(
            [one.segment for one in self._collector.rounds.segments if part_of(one.segment) in gone]
        )

    def _fenced(self, parts: Iterable[int]) -> None:
        """Another collector has taken over, as a commit has found; in the worker."""
        gone = set(parts)
        self._forget(gone)
        self._collector.counted["partitions lost to another"] += len(gone)
        until_s = time.monotonic() + self._members.lease_s
        self._rests_until_s |= dict.fromkeys(gone, until_s)
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._parts.shut(gone)))

    # ---- what all of them know ----

    async def _learn(self) -> None:
        """Read what others know of agents."""
        while True:
            with suppress(*self._store.errors):  # the worker says why
                await self._collector.in_worker(self._read_agents)
            await asyncio.sleep(LEARN_S)

    def _read_agents(self) -> None:
        heard = self._collector.agents.learn(self._store.agents(), self._store.agents(others=True))
        for point in heard:
            self._collector.presence.heard(point, False, time.monotonic())

    async def _tell(self) -> None:
        while True:
            text = await self._told.untold.get()
            with suppress(Unreachable):  # a page reads what it missed when it is loaded
                await self._parts.line.say(NEWS, text.encode(), {"From": self._members.me})

    async def _hear(self) -> None:
        tries = pauses()
        while True:
            try:
                lost = await self._parts.line.subscribe(NEWS, self._heard)
                tries = pauses()
                await lost.wait()
            except Unreachable:
                pass
            await asyncio.sleep(next(tries))

    async def _heard(self, message: Msg) -> None:
        headers: dict[str, Any] = message.headers or {}
        if headers.get("From") != self._members.me:
            try:
                self._told.hear(message.data.decode())
            except (ValueError, TypeError):
                self._collector.counted["news not understood"] += 1
