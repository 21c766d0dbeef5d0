"""The running collector: messages come in, are stored, become results; results are stored and sent to listeners.

Laws. A message is acknowledged once it is on disk, and what is derived from it, but a first result: that follows again.
Work is done when a message arrives; a clock that is never set tells when to stop waiting. After kill -9, stored
messages are processed again, and questions are asked again. Unreadable messages are counted and acknowledged: they
would not get better.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy.ma  # noqa: F401  # numpy imports it on first use, when file descriptors may have run out

from wirelag.collector.agents import Agents, Presence
from wirelag.collector.batches import BATCH, Batches
from wirelag.collector.clock_check import RIGHT, Behind, how_far, is_ahead, may_pass
from wirelag.collector.following import Follow, Following, TopologyChange
from wirelag.collector.health import Apart, Health
from wirelag.collector.listeners import Listeners
from wirelag.collector.metrics import InUse, Metrics
from wirelag.collector.read_again import is_settled, others
from wirelag.collector.recent import Recent
from wirelag.collector.store import Fenced, Kept, Store, next_of
from wirelag.collector.tally import Tally
from wirelag.collector.upkeep import Upkeep
from wirelag.errors import WirelagError
from wirelag.estimators.catalogue import load
from wirelag.network.topology import Topology
from wirelag.protocol.messages import Message, UnknownVersion, decode, encode, peek
from wirelag.protocol.results import Ask, Done, Ends, Outcome, Rank, Result
from wirelag.protocol.session import LINGER_NS, Rounds
from wirelag.transport import Acknowledge, Inbox, all_of
from wirelag.transport.audit import Audit
from wirelag.transport.notices import Notices
from wirelag.transport.quotas import Quotas

MOST_QUEUED: Final = 64 << 20  # bytes of messages that wait for the worker, or of a part when it resumes
TICK_S: Final = 1.0
PRUNE_S: Final = 600.0
CHECK_S: Final = 86400.0
CHECK_AGAIN_S: Final = 30.0  # if it could not be done
RESULT_S: Final = 150e-6  # about what it takes to store a result of a class
MOST_ASKS: Final = 1024  # asks waiting for an inbox; the oldest are dropped
MOST_UNSAVED: Final = 100_000

Arrived = tuple[bytes, Acknowledge, Inbox]


class Collector:
    """Processes messages from inboxes until it is stopped."""

    def __init__(
        self,
        rounds: Rounds,
        store: Store,
        clock: Callable[[], int] = time.time_ns,
        follow: Follow | None = None,
        quotas: Quotas | None = None,
        steady: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`clock` tells the time, `steady` how much of it has passed."""
        self.rounds, self.store, self.clock, self.quotas = rounds, store, clock, quotas or Quotas()
        self.steady = steady
        store.failed, store.damaged = self._failed, self._damaged
        self.following = None if follow is None else Following(follow)
        load()
        self.agents, self.metrics = Agents(store.agents()), Metrics()
        self.presence = Presence(self.agents.lively(clock()), time.monotonic())
        self.counted: Counter[str] = Counter()
        self.audit = Audit(None)
        self.health = Health()
        self.notices = Notices()
        self.in_use: Callable[[], dict[str, InUse]] = dict  # the server knows
        self.upkeep = Upkeep(store, self.health, self.counted)
        self.inboxes: list[Inbox] = []
        self.recent = Recent()
        self.exported: deque[tuple[str, dict[str, Any]]] | None = None  # intervals that wait to be sent (push.py)
        self._batches: Batches[Arrived] = Batches()
        self._queued, self._taken = 0, asyncio.Event()  # bytes that wait, and whether some were taken
        self._asked: list[tuple[Inbox, asyncio.Queue[tuple[str, bytes]]]] = []  # asks waiting for each inbox
        self._loop: asyncio.AbstractEventLoop
        self.listeners = Listeners()
        self._worker = ThreadPoolExecutor(1, "collector")  # the store and the rounds belong to this thread
        self._spoke: dict[str, int] = {}  # points of the last batch, and the index of their message
        self._left: set[int] = set()  # messages of the last batch that were not accepted
        self._behind = Behind()
        self._apart = Apart(self.notices)
        self._by_point: dict[str, Inbox] = {}  # the inbox by which a point was last heard
        self._began_ns = steady()
        self._unsaved: list[Result] = []
        self._trimmed_s = 0.0  # when `recent` was, by a clock that is never set
        self._pruner = ThreadPoolExecutor(1, "pruning")
        self._resumed = False
        self.is_shared = False  # with others, in one store (sharing.py):
        self.entries: list[Inbox] = []  # their messages come by way of another
        self.owns: Callable[[Message], bool] = lambda message: True  # is it for this one?
        self.fenced: Callable[[Iterable[int]], None] = lambda parts: None  # another has taken over
        self.elsewhere: Callable[[str, bool], dict[str, Any] | None] = lambda segment, settled: None  # told lately
        self._checked = asyncio.Event()  # the store was, once

    async def run(self, inboxes: list[Inbox], read: Callable[[], Topology] | None = None) -> None:
        """Run until cancelled. `read` returns the current topology, if it is followed."""
        self.inboxes, self._loop = [*inboxes, *self.entries], asyncio.get_running_loop()
        self._asked = [(inbox, asyncio.Queue(MOST_ASKS)) for inbox in inboxes]
        self.listeners.tell(await self.in_worker(self.resume) or [])
        async with asyncio.TaskGroup() as group:
            for inbox in inboxes:
                group.create_task(self._receive(inbox))
            group.create_task(self._work())
            for inbox, asked in self._asked:
                group.create_task(self._ask(inbox, asked))
            group.create_task(self._tick())
            group.create_task(self._prune())
            group.create_task(self._check())
            if read is not None:
                group.create_task(self._follow(read))

    async def close(self) -> None:
        """Disconnect listeners, and close the store."""
        self.listeners.close()
        await self.in_worker(self.store.close)
        self._worker.shutdown()
        self._pruner.shutdown()

    def measure(self, ends: Iterable[Ends], named_by_agents: bool) -> None:
        """Measure these segments from now on, in the worker; results of others stay in the store."""
        self.no_longer(self.rounds.measure(ends, named_by_agents=named_by_agents))

    def no_longer(self, segments: Iterable[str]) -> None:
        """Show these no more, in the worker."""
        gone = set(segments)
        self.recent.forget(gone)
        self.metrics.forget(gone)

    def give_up(self, segments: Iterable[str]) -> None:
        """Forget all about these: they are another collector's now; in the worker."""
        gone = set(segments)
        self.rounds.give_up(gone)
        self._unsaved = [one for one in self._unsaved if one.segment not in gone]
        self.no_longer(gone)

    # ---- tasks ----

    async def _receive(self, inbox: Inbox) -> None:
        async for data, acknowledge in inbox.messages():
            while self._batches.are_full or (self._queued and self._queued + len(data) > MOST_QUEUED):
                self._taken.clear()
                await self._taken.wait()
            self._queued += len(data)
            self._batches.add((data, acknowledge, inbox))

    async def _work(self) -> None:
        while True:
            batch = await self._batches.next()
            found = await self.in_worker(self._take, [data for data, _, _ in batch])
            self._queued -= sum(len(data) for data, _, _ in batch)
            self._taken.set()
            left = range(len(batch)) if found is None else self._left  # not stored: their senders will repeat them
            await all_of(acknowledge(i not in left) for i, (_, acknowledge, _) in enumerate(batch))
            if found is None:
                continue
            self._by_point |= {point: batch[i][2] for point, i in self._spoke.items()}
            self.listeners.tell(found)

    def _send_all(self, asks: list[Message]) -> None:
        for ask in asks:
            self._send(ask)

    def _send(self, ask: Message) -> None:
        """Ask an agent at once, before the store is written: what is not answered is asked again."""
        data, by = encode(ask), self._by_point.get(ask.point)
        self.counted["asked bytes"] += len(data)
        for inbox, asked in self._asked:
            if by not in (None, inbox):
                continue
            if asked.full():
                asked.get_nowait()
                self.counted["asks dropped"] += 1
            asked.put_nowait((ask.point, data))

    async def _ask(self, inbox: Inbox, asked: asyncio.Queue[tuple[str, bytes]]) -> None:
        """Serve each inbox separately: an unresponsive broker delays only those who use it."""
        while True:
            point, data = await asked.get()
            with suppress(WirelagError):  # it is asked again after a restart, or the result does without it
                await inbox.ask(point, data)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            found = await self.in_worker(self._pass_time)
            if found is not None:
                self.listeners.tell(found)

    async def _prune(self) -> None:
        await self._checked.wait()  # where pages are damaged, rows that are there may not be found
        while True:
            await self._loop.run_in_executor(self._pruner, self.upkeep.prune, self.clock())
            await asyncio.sleep(PRUNE_S)

    async def _check(self) -> None:
        while True:
            if done := await asyncio.to_thread(self.upkeep.check):
                self._checked.set()
            await asyncio.sleep(CHECK_S if done else CHECK_AGAIN_S)

    async def _follow(self, read: Callable[[], Topology]) -> None:
        following = self.following
        assert following is not None
        while True:
            try:
                topology = await asyncio.to_thread(read)
                alive = await self.in_worker(self.agents.following, self.steady(), self._began_ns)
                inside = await self.in_worker(self.agents.inside)
                change = await asyncio.to_thread(following.take, topology, alive, self.clock(), inside)  # may take long
                for told in await self.in_worker(self._followed, alive, change):
                    self._send(told)
                self.listeners.tell(change or [])
            except WirelagError as error:  # the previous topology stays valid
                self.counted["topology not read"] += 1
                if following.failed(error):
                    _log(f"{error}; keeping the previous topology")
            await asyncio.sleep(following.every_s)

    async def in_worker(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run in the thread that the store and the rounds belong to."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)

    # ---- in the worker ----

    def _kept(self, work: Callable[[int, list[Outcome]], None]) -> list[Kept] | None:
        """Do some work and store everything derived from it, which it appends; None if the disk fails.

        Then what was derived until there is stored later: messages that come again do not lead to it again.
        """
        outcomes: list[Outcome] = []
        try:
            self.store.begin()
            try:
                work(self.clock(), outcomes)
            finally:
                self._ask_for([one.message for one in outcomes if isinstance(one, Ask)])
                found = [one for one in outcomes if isinstance(one, Result)]
                self._unsaved = (self._unsaved + found)[-MOST_UNSAVED:]
            kept = [one for one in map(self._keep, self._unsaved) if one is not None]
            self._drop(outcomes)
            self.store.put_agents(self.agents.changed())
            self.store.commit()
            if self.store.beyond:
                self.counted["results of classes beyond the limit"] = self.store.beyond
        except Fenced as error:
            with suppress(*self.store.errors):
                self.store.rollback()
            self.fenced(error.parts)
            return None
        except self.store.errors as error:
            with suppress(*self.store.errors):
                self.store.rollback()
            self._resumed &= not self.upkeep.failed(error)
            return None
        self._unsaved = []
        self.upkeep.works()
        self._count(kept)
        return [one for one in kept if one.taken]

    def _drop(self, outcomes: list[Outcome]) -> None:
        if keys := [key for one in outcomes if isinstance(one, Done) for key in one.keys]:
            self.store.drop_messages(keys)

    def _ask_for(self, asks: list[Message]) -> None:
        if asks:
            sent_ns = self.clock()
            self._loop.call_soon_threadsafe(self._send_all, [replace(ask, sent_ns=sent_ns) for ask in asks])

    def _keep(self, result: Result) -> Kept | None:
        """Store a result; None if its figures are invalid: then it is skipped, and others are stored."""
        try:
            tallies = {key: Tally.of(result, key) for key in {None: 0, **result.crossings}}
            tallies[None].check()
            most = self.rounds.classes_of(result.segment)
            put = [
                self.store.put(result.segment, key, result.interval, result.rank, one, most)
                for key, one in tallies.items()
            ]
        except self.store.errors:
            raise
        except Exception as error:
            self._failed(f"a result of {result.segment}", error)
            return None
        return Kept(result, tallies[None], *put[0])

    def _failed(self, what: str, error: Exception) -> None:
        """Report an internal error: a bad message may cost its own result, not the collector."""
        self.counted["internal errors"] += 1
        kind = type(error).__name__
        self.notices.say("internal errors", kind, f"{what} caused {kind}: {error}; please report it")

    def _damaged(self, row: str) -> None:
        """Report a row that the disk has changed; from any thread."""
        self.counted["damaged in the store"] += 1
        self.notices.say("damaged in the store", row, f"{self.store.path}: {row} is damaged: left out; check the disk")

    def _count(self, kept: list[Kept]) -> None:
        now_ns, steady_ns = self.clock(), self.steady()
        for one in kept:
            rank, before = one.result.rank, -1 if one.before is None else one.before
            if one.taken:
                self.recent.take(one)
                self.metrics.ready(one.result, now_ns)
            if rank >= Rank.ALONE > before:
                self.recent.settle(one)
                if self.exported is not None:
                    self.exported.append((one.result.segment, one.report))
                self.metrics.settled(one.result.segment, one.tally, one.result.interval)
                self._apart.say(one.result.segment, one.tally)
            elif rank == Rank.FIRST and before == Rank.UNSEEN:
                self.metrics.came(one.result.segment, one.result.interval)
            elif rank == Rank.UNSEEN and before < rank:
                self.metrics.missed(one.result.segment, one.result.interval, steady_ns)
        self.metrics.pass_time(steady_ns)

    def _take(self, batch: list[bytes]) -> list[Kept] | None:
        def work(now_ns: int, found: list[Outcome]) -> None:
            for i, data in enumerate(batch):
                try:
                    outcomes = self._take_one(data, i, now_ns)
                    found += [one for one in outcomes if not isinstance(one, Done)]
                    self._drop(outcomes)  # now: the next message must not find them
                except self.store.errors:
                    raise
                except Exception as error:
                    self._failed("a message", error)

        self._spoke, self._left = {}, set()
        return self._kept(work)

    def _followed(self, alive: Mapping[str, int], change: TopologyChange | None) -> list[Message]:
        """Store a change; return the messages for agents whose m-sets are outdated."""
        if change is not None:
            self.counted["topology changes"] += 1
            _log(f"topology: {change}")
            try:
                self.store.begin()
                self.store.put_change(change.at_ns, change.to_json())
                self.store.commit()
            except self.store.errors:  # m-sets follow all the same
                self.counted["store failed"] += 1
                with suppress(*self.store.errors):
                    self.store.rollback()
        if self.following is None:
            return []
        told = list(self.following.messages(alive, self.clock()))
        self.counted["m-sets told"] += len(told)
        for message in filter(self.following.is_new, told):
            since = message.interval.start_ns / 1e9
            self.audit.say("m-set told", point=message.point, segments=len(message.records), since=since)
        return told

    def _take_one(self, data: bytes, place: int, now_ns: int) -> list[Outcome]:
        self.counted["bytes"] += len(data)
        try:
            message = decode(data)
        except UnknownVersion as error:
            if not self.counted["of an unknown version"]:
                _log(f"a message {error}; its sender keeps it until this wirelag is upgraded")
            self.counted["of an unknown version"] += 1
            self._left.add(place)
            return []
        except ValueError:
            self.counted["garbage"] += 1
            return []
        self.counted[message.type] += 1
        if self.agents.heard(message, len(data), now_ns, self.steady()):
            self._spoke[message.point] = place
            is_ending = message.type == "status" and any(record.get("ending") is True for record in message.records)
            if line := self.presence.heard(message.point, is_ending, time.monotonic()):
                self.notices.say("agents heard or not", line, line)
            if self.following is not None and any("m_set_ns" in record for record in message.records):
                self.following.terms[message.point] = message.terms
        if message.type == "status":
            return []
        began_s = time.thread_time()
        found = self._process(message, data, place, now_ns)
        results = sum(1 + len(one.crossings) for one in found if isinstance(one, Result))
        self.quotas.spent(message.point, time.thread_time() - began_s + RESULT_S * results)
        return found

    def _process(self, message: Message, data: bytes, place: int, now_ns: int) -> list[Outcome]:
        if message.type == "m-set":
            self.counted["not for a collector"] += 1
            return []
        if self._is_behind(message, now_ns) or may_pass(message, now_ns) or not self.owns(message):
            self._left.add(place)
            return []
        if is_ahead(message, now_ns):
            self.counted["from the future"] += 1
            return []
        found: list[Outcome] = []
        is_late = now_ns - message.interval.end_ns > LINGER_NS // 2
        if is_late and not self.rounds.awaits(message) and is_settled(self.store, self.rounds, message):
            self.counted["came too late, or again"] += 1
            return []
        if message.type != "crossing" and (
            is_late or message.terms.delimiters is not None or self.is_shared or self.rounds.lacks_stored(message)
        ):  # whatever the clock shows
            found += self._again_all(others(self.store, self.rounds, message), message)
        start_ns = message.interval.start_ns
        self.store.put_message(message.key, message.point, start_ns, bytes(data), now_ns, message.segment)
        return found + self._into_rounds(message)

    def _is_behind(self, message: Message, now_ns: int) -> bool:
        """Whether this host's clock is wrong, not the point's: all points are ahead of it."""
        behind = self._behind.is_behind(message, now_ns, self.steady())
        if behind is None:
            return False
        problem = how_far(message, now_ns) if behind else None
        self.health.note("clock", problem, RIGHT)
        self.counted["clock is behind"] += behind
        return behind

    def _into_rounds(self, message: Message) -> list[Outcome]:
        try:
            return self.rounds.take(message, self.steady())
        except self.store.errors:  # what this host lacks now, such as file descriptors: no fault of the message
            raise
        except Exception as error:
            self._failed(f"a message of {message.point}", error)
            return [Done((message.key,))]

    def _again_all(self, stored: Iterable[bytes], other: Message) -> list[Outcome]:
        return [outcome for data in stored for outcome in self._again(data, other)]

    def _again(self, data: bytes, other: Message | None = None) -> list[Outcome]:
        """Process a stored message again, if it is not in use, and not about another segment than `other`."""
        try:
            if other is not None and len({other.segment, peek(data).segment} - {None}) > 1:
                return []
            message = decode(data)
        except ValueError:  # the disk has changed it
            self._damaged(f"a message that begins with {data[:16].hex()}")
            return []
        return [] if self.rounds.has(message.key) else self._into_rounds(message)

    def resume(self) -> list[Kept] | None:
        """Process stored messages again, in parts of bounded size; None if the store fails."""
        self._resumed, said = False, list[Kept]()

        def work(now_ns: int, found: list[Outcome]) -> None:
            for data in part:
                found += self._again(data)

        try:
            newest_ns = self.store.newest_message_ns()  # not now: an outage may have been long
            stored = iter(()) if newest_ns is None else self.store.messages_since(newest_ns - 2 * LINGER_NS)
            while part := list(next_of(stored, BATCH, MOST_QUEUED)):
                if (found := self._kept(work)) is None:
                    return None
                said += found
                self.health.works()
        except self.store.errors as error:
            self.upkeep.failed(error)
            return None
        self._resumed = True
        self.rounds.unread_ns = -1 if newest_ns is None else newest_ns - 2 * LINGER_NS
        return said

    def _pass_time(self) -> list[Kept] | None:
        def work(now_ns: int, found: list[Outcome]) -> None:
            found += self.rounds.pass_time(self.steady())
            self.store.sum_up(now_ns)

        self.notices.pass_time()
        if self._behind.is_over(self.steady()):
            self.health.note("clock", None, RIGHT)
        for line in self.presence.silent(time.monotonic()):
            self.notices.say("agents heard or not", line, line)
        if self.upkeep.rescue():
            self._resumed = False
        if not self._resumed and self.resume() is None:  # it failed at the start, or messages were found again
            return None
        found = self._kept(work)
        self.health.works()
        if time.monotonic() - self._trimmed_s > PRUNE_S:
            self._trimmed_s = time.monotonic()
            names = {one.segment for one in self.rounds.segments}
            self.recent.keep(names)
        return found


def _log(line: str) -> None:
    print(f"wirelag: {line}", file=sys.stderr, flush=True)
