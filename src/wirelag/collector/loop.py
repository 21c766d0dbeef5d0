"""The collector at work: messages come in, are kept, become results; results are kept and told to whoever listens.

Laws. A message is acknowledged once it and all that follows from it are on disk. Work is done when a message arrives;
a clock is only looked at to give up waiting. After kill -9 what was kept is taken in again, and questions are asked
again. What cannot be read is counted and acknowledged: it would not get better. A listener that does not keep up is
sent away.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from wirelag.collector.agents import Agents
from wirelag.collector.metrics import Metrics
from wirelag.collector.store import Store
from wirelag.collector.tally import Tally
from wirelag.errors import WirelagError
from wirelag.messages import Message, decode, encode
from wirelag.results import Ask, Done, Outcome, Rank, Result
from wirelag.rounds import LINGER_NS, Rounds
from wirelag.transport import Acknowledge, Inbox

BATCH: Final = 256  # messages that are committed together
NEAR: Final = 4  # intervals to both sides, in which the other halves of those may lie that packets cut
TICK_S: Final = 1.0
PRUNE_NS: Final = 600 * 10**9
MOST_LISTENERS: Final = 256
MOST_UNHEARD: Final = 256  # results that wait for a listener
MOST_UNSAVED: Final = 100_000

Arrived = tuple[bytes, Acknowledge, Inbox]


@dataclass(frozen=True, slots=True)
class Said:
    """A result of a whole segment as it is told to listeners."""

    segment: str
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kept:
    """A result, what it says of the whole segment, and how much was known before."""

    result: Result
    tally: Tally
    before: Rank | None

    def to_json(self) -> dict[str, Any]:
        """As the API has it."""
        interval = self.result.interval
        return self.tally.to_json(interval.start_ns, interval.length_ns, self.result.rank >= Rank.ALONE)


class Collector:
    """Takes from inboxes until it is stopped."""

    def __init__(self, rounds: Rounds, store: Store, clock: Callable[[], int] = time.time_ns) -> None:
        self.rounds, self.store, self.clock = rounds, store, clock
        self.agents, self.metrics = Agents(store.agents()), Metrics()
        self.counted: Counter[str] = Counter()
        self.inboxes: list[Inbox] = []
        self.latest: dict[str, Kept] = {}  # by segment
        self.settled: dict[str, Kept] = {}
        self._arrived: asyncio.Queue[Arrived] = asyncio.Queue(4 * BATCH)
        self._listeners: set[asyncio.Queue[list[Said] | None]] = set()
        self._worker = ThreadPoolExecutor(1, "collector")  # the store and the rounds belong to this thread
        self._spoke: dict[str, int] = {}  # points of the last batch, and which message of it was theirs
        self._by_point: dict[str, Inbox] = {}  # by which way a point was last heard
        self._unsaved: list[Result] = []
        self._pruned_ns = 0
        self._disk_full = False

    async def run(self, inboxes: list[Inbox]) -> None:
        """Until cancelled."""
        self.inboxes = inboxes
        await self._tell(*await self._in_worker(self._resume))
        async with asyncio.TaskGroup() as group:
            for inbox in inboxes:
                group.create_task(self._receive(inbox))
            group.create_task(self._work())
            group.create_task(self._tick())

    async def close(self) -> None:
        """Send listeners away, and let the store go."""
        for listener in list(self._listeners):
            self._dismiss(listener)
        await self._in_worker(self.store.close)
        self._worker.shutdown()

    async def listen(self) -> AsyncIterator[list[Said]]:
        """Results as they come; it ends if the listener does not keep up, or too many listen."""
        if len(self._listeners) >= MOST_LISTENERS:
            return
        mine: asyncio.Queue[list[Said] | None] = asyncio.Queue(MOST_UNHEARD)
        self._listeners.add(mine)
        try:
            while (said := await mine.get()) is not None:
                yield said
        finally:
            self._listeners.discard(mine)

    # ---- tasks ----

    async def _receive(self, inbox: Inbox) -> None:
        async for data, acknowledge in inbox.messages():
            await self._arrived.put((data, acknowledge, inbox))

    async def _work(self) -> None:
        while True:
            batch = [await self._arrived.get()]
            while len(batch) < BATCH and not self._arrived.empty():
                batch.append(self._arrived.get_nowait())
            found = await self._in_worker(self._take, [data for data, _, _ in batch])
            if found is None:  # not kept: who sent it will send it again
                await asyncio.sleep(TICK_S)
                continue
            await asyncio.gather(*(acknowledge() for _, acknowledge, _ in batch))
            self._by_point |= {point: batch[i][2] for point, i in self._spoke.items()}
            await self._tell(*found)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            found = await self._in_worker(self._pass_time)
            if found is not None:
                await self._tell(*found)

    async def _in_worker(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)

    async def _tell(self, asks: list[Message], said: list[Said]) -> None:
        for ask in asks:
            data = encode(ask)
            self.counted["asked bytes"] += len(data)
            by = self._by_point.get(ask.point)
            for inbox in self.inboxes if by is None else [by]:
                with suppress(WirelagError):  # it is asked again after a restart, or the result does without
                    await inbox.ask(ask.point, data)
        for listener in list(self._listeners) if said else ():
            try:
                listener.put_nowait(said)
            except asyncio.QueueFull:
                self._dismiss(listener)

    def _dismiss(self, listener: asyncio.Queue[list[Said] | None]) -> None:
        self._listeners.discard(listener)
        while not listener.empty():
            listener.get_nowait()
        listener.put_nowait(None)

    # ---- in the worker ----

    def _kept(self, work: Callable[[int], list[Outcome]]) -> tuple[list[Message], list[Said]] | None:
        """Do some work and keep all that follows from it; None where the disk does not take it."""
        now_ns = self.clock()
        try:
            self.store.begin()
            outcomes = work(now_ns)
            results = self._unsaved + [one for one in outcomes if isinstance(one, Result)]
            self._unsaved = results[-MOST_UNSAVED:]
            kept = [self._keep(result) for result in results]
            self.store.drop_messages(key for one in outcomes if isinstance(one, Done) for key in one.keys)
            self.store.put_agents(self.agents.changed())
            self.store.commit()
        except (sqlite3.Error, OSError) as error:
            with suppress(sqlite3.Error):
                self.store.rollback()
            self.counted["store failed"] += 1
            if not self._disk_full:
                print(
                    f"wirelag: {self.store.path}: cannot write ({error}); agents keep their messages", file=sys.stderr
                )
            self._disk_full = True
            return None
        self._unsaved, self._disk_full = [], False
        self._count(kept)
        asks = [one.message for one in outcomes if isinstance(one, Ask)]
        return asks, [Said(one.result.segment, one.to_json()) for one in kept]

    def _keep(self, result: Result) -> Kept:
        whole = Tally.of(result, None)
        before = self.store.put(result.segment, None, result.interval, result.rank, whole)
        for key in result.crossings:
            if key is not None:
                self.store.put(result.segment, key, result.interval, result.rank, Tally.of(result, key))
        return Kept(result, whole, before)

    def _count(self, kept: list[Kept]) -> None:
        now_ns = self.clock()
        for one in kept:
            rank, before = one.result.rank, -1 if one.before is None else one.before
            if rank >= before:
                for known in (self.latest, self.settled) if rank >= Rank.ALONE else (self.latest,):
                    last = known.get(one.result.segment)
                    if last is None or one.result.interval >= last.result.interval:
                        known[one.result.segment] = one
                self.metrics.ready(one.result, now_ns)
            if rank >= Rank.ALONE > before:
                self.metrics.settled(one.result.segment, one.tally)
            if rank == Rank.UNSEEN and before < rank:
                self.metrics.missed(one.result.segment)

    def _take(self, batch: list[bytes]) -> tuple[list[Message], list[Said]] | None:
        def work(now_ns: int) -> list[Outcome]:
            return [outcome for i, data in enumerate(batch) for outcome in self._take_one(data, i, now_ns)]

        self._spoke = {}
        return self._kept(work)

    def _take_one(self, data: bytes, place: int, now_ns: int) -> list[Outcome]:
        self.counted["bytes"] += len(data)
        try:
            message = decode(data)
        except ValueError:
            self.counted["garbage"] += 1
            return []
        self.counted[message.type] += 1
        if self.agents.heard(message, len(data), now_ns):
            self._spoke[message.point] = place
        if message.type == "status":
            return []
        found: list[Outcome] = []
        if now_ns - message.interval.end_ns > LINGER_NS // 2:
            if all(
                (self.store.rank_of(name, message.interval) or 0) >= Rank.ALONE for name in self.rounds.about(message)
            ):
                self.counted["came too late, or again"] += 1
                return []
            delimiters = message.terms.delimiters
            around_ns = 0 if delimiters is None else NEAR * delimiters.length_ns
            partners = (
                self.rounds.partners(message) if delimiters is None else self.rounds.partners(message) | {message.point}
            )
            for other in self.store.messages_about(message.interval.start_ns, partners, around_ns):
                found += self._again(other, now_ns)
        self.store.put_message(message.key, message.point, message.interval.start_ns, data, now_ns)
        return found + self._into_rounds(message, now_ns)

    def _into_rounds(self, message: Message, now_ns: int) -> list[Outcome]:
        """Whatever a message holds: it must not end the collector."""
        try:
            return self.rounds.take(message, now_ns)
        except Exception as error:
            self.counted["internal errors"] += 1
            print(f"wirelag: a message of {message.point} caused {type(error).__name__}: {error}", file=sys.stderr)
            return [Done((message.key,))]

    def _again(self, data: bytes, now_ns: int) -> list[Outcome]:
        """A message that was kept, if it is not in use."""
        try:
            message = decode(data)
        except ValueError:
            return []
        return [] if self.rounds.has(message.key) else self._into_rounds(message, now_ns)

    def _resume(self) -> tuple[list[Message], list[Said]]:
        def work(now_ns: int) -> list[Outcome]:
            kept = list(self.store.messages_since(now_ns - 2 * LINGER_NS))
            return [outcome for data in kept for outcome in self._again(data, now_ns)]

        return self._kept(work) or ([], [])

    def _pass_time(self) -> tuple[list[Message], list[Said]] | None:
        def work(now_ns: int) -> list[Outcome]:
            outcomes = self.rounds.pass_time(now_ns)
            self.store.sum_up(now_ns)
            return outcomes

        found = self._kept(work)
        if found is not None and abs(self.clock() - self._pruned_ns) > PRUNE_NS:
            self._pruned_ns = self.clock()
            with suppress(sqlite3.Error):
                self.store.begin()
                self.store.prune(self.clock())
                self.store.commit()
                self.store.shrink()
        return found
