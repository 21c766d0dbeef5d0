"""The running agent: one thread captures and cuts, another sends references, and an event loop sends and replies.

Law: the capture waits for nothing but packets. Every cut is on disk before it is sent, and stays there until the
collector has it. On SIGTERM or SIGINT the open interval is sent with its coverage. After a kill nothing is invented:
unfinished intervals are not reported at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from wirelag import __version__
from wirelag.agent.asking import Asking
from wirelag.agent.composing import encoded
from wirelag.agent.config import Config
from wirelag.agent.cutting import CutPart
from wirelag.agent.exporting import of_message, of_part
from wirelag.agent.history import History
from wirelag.agent.in_kernel import KernelMeters, open_kernel
from wirelag.agent.inside import Inside
from wirelag.agent.keeping_up import KeepingUp, Load
from wirelag.agent.msets import FOREVER_NS, Cutters, MSet, m_set_of
from wirelag.agent.references import Emitter, sink
from wirelag.agent.settling import Settling
from wirelag.capture.card_clock import CardClock
from wirelag.capture.fanout import Fanout, over_cores
from wirelag.capture.host_clock import ASK_S, HostClock, Steps, card_clock
from wirelag.capture.live import POLL_MS, Live, Replay
from wirelag.capture.privileges import drop_privileges
from wirelag.capture.ring import Clock
from wirelag.ebpf.source import KernelSource
from wirelag.errors import WirelagError
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import Message, Seen, decode, encode
from wirelag.render.ipfix_stream import IpfixStream
from wirelag.transport import Sender, sender
from wirelag.transport.notices import Notices, lasting_log
from wirelag.transport.outbox import Outbox
from wirelag.transport.service_manager import watched
from wirelag.transport.spool import Spool
from wirelag.units import format_duration

MOST_WAITING: Final = 256  # parts between capture and disk
LOOK_S: Final = 1.0  # how often the agent looks whether it keeps up
WATCH_MS: Final = 1  # how late the capture may tell of packets, if they make references due
NOTHING: Final = "less 0"  # a filter that no packet passes
LAST_S: Final = 3.0  # to send what is left at the end; the rest waits on disk
STATUS_S: Final = 5.0  # how long a status may take


def _about(m_set: MSet) -> dict[str, int]:
    """The m-set's description for the collector."""
    return {"m_set_ns": m_set.since_ns, "segments": len(m_set.measured), "segments_left_out": m_set.left_out}


class Agent:
    """`run` returns when stopped, or at the end of the captures."""

    def __init__(self, config: Config, tell: Callable[[str], None]) -> None:
        """Open everything that may fail; `tell` gets a line whenever something changes."""
        self.config = config
        self._notices = Notices(put=tell)
        self.intervals = self.packets = self.unseen = self.lost_parts = self.clock_steps = 0
        self._sinks: list[socket.socket] = sink() if config.receive_references else []
        self._in_kernel: KernelMeters | None = None
        self._card = self._card_clock()
        self._source = self._open()
        self._clock = HostClock(config.clock_error_ns, self._card)
        self._clock.ask()
        self._began_ns = self._source.now_ns()
        self._spool = Spool(config.spool, config.spool_bytes)
        assert config.collector is not None
        self._sender: Sender = sender(config.collector, config.point)
        self._emitter = Emitter(config.references, config.control, config.interval_ns, self.tell, self._clock.steady)
        self._flows = None if config.ipfix is None else IpfixStream(config.ipfix, f"agent {config.point}", self.tell)
        self._asking = Asking(config, self.tell, self._clock.steady)
        self._ways = None if config.inside is None else Inside(config, config.inside, self.tell)
        self._settling = Settling(config.point, (config.inside or config).terms, config.past_bytes // 2, self._began_ns)
        live = not isinstance(self._source, Replay)
        self._cutters = Cutters(config, self._began_ns, live, self._in_kernel, self._ways)
        self._m_set: MSet | None = None
        self._past = History(config.point, config.past_bytes, self._began_ns)
        self._stopped_ns: int | None = None
        self._problem: BaseException | None = None

    def tell(self, line: str) -> None:
        """Write a line to the log; the same one at most once a minute."""
        self._notices.say("lines", line, line)

    def _open(self) -> Live | Fanout | Replay | KernelSource:
        config, packet_id = self.config, self.config.terms.packet_id
        if config.in_kernel and (opened := open_kernel(config, self.tell)):
            source, self._in_kernel = opened
            return source
        interface, wanted = config.interface, config.filter if config.needs_packets else NOTHING
        if interface is None:
            return Replay(config.captures, speed=config.speed, packet_id=packet_id, tunnels=config.tunnels)

        def listen(clock: Clock, fanout: int | None) -> Live:
            return Live(
                interface,
                filter=wanted,
                packet_id=packet_id,
                tunnels=config.tunnels,
                promiscuous=config.promiscuous,
                ring_bytes=config.ring_bytes // config.cores,
                fanout=fanout,
                poll_ms=WATCH_MS if config.watches else POLL_MS,
                few=config.m_set is None
                and config.inside is None
                and not config.watches
                and all(each.needs_few for each in config.measured),
                clock=clock,
                ports=config.inside is not None,
            )

        if self._card is not None:
            try:
                return over_cores(config.cores, config.interval_ns, partial(listen, "hardware"))
            except WirelagError as problem:
                self._without_card(problem)
        return over_cores(config.cores, config.interval_ns, partial(listen, "kernel"))

    def _card_clock(self) -> CardClock | None:
        """The clock of the card, if its timestamps are wanted and can be had."""
        if self.config.interface is None or self.config.clock == "kernel":
            return None
        try:
            return card_clock(self.config.interface)
        except WirelagError as problem:
            self._without_card(problem)
            return None

    def _without_card(self, problem: WirelagError) -> None:
        self._card = None
        self.tell(f"{problem}; the kernel's timestamps are used instead")

    def run(self) -> None:
        """Run until SIGTERM, SIGINT, or the end of captures; a WirelagError if the interface is gone."""
        drop_privileges(stay=True)  # before any thread starts, so that none keeps them; the spool is the user's
        try:
            with lasting_log():
                asyncio.run(self._main())
        finally:
            self._emitter.close()
            self._asking.close()
            if self._flows is not None:
                self._flows.close()
            self._source.close()
            if self._ways is not None:
                self._ways.close()
            self._spool.close()
            for each in self._sinks:
                each.close()
        if self._problem is not None:
            raise self._problem

    def stop(self) -> None:
        """Cut the open interval, send it, and end."""
        if self._stopped_ns is None:
            self._stopped_ns = self._source.now_ns()
            self._source.stop()

    # ---- the capture's thread ----

    def _capture(self, hand: Callable[[CutPart | None], None]) -> None:
        source, live = self._source, not isinstance(self._source, Replay)
        steps = Steps()
        try:
            for batch in source:
                if live and (step_ns := steps.taken_ns()):
                    self._cutters.stepped(time.time_ns())
                    self.clock_steps += 1
                    way = "forward" if step_ns > 0 else "back"
                    self.tell(
                        f"the clock was set {way} by {format_duration(abs(step_ns))}: intervals that it skipped or "
                        f"repeats are not covered"
                    )
                if self.config.watches and len(batch):
                    self._emitter.hear(batch)
                now_ns = source.now_ns() if len(batch) else source.quiet_ns
                for part in self._cutters.take(batch, now_ns, source.dropped):
                    hand(part)
        except Exception as error:  # reported by the thread that joins it
            self._problem = error
        finally:
            for part in self._cutters.end(source.now_ns() if self._stopped_ns is None else self._stopped_ns):
                hand(part)
            hand(None)

    # ---- the event loop ----

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(
            signal.SIGHUP, self.tell, "SIGHUP: settings are read at the start; restart to change them"
        )
        self._parts: deque[CutPart | None] = deque()
        self._some = asyncio.Event()
        self._outbox = Outbox(self._sender, self._spool, self.tell)
        thread = threading.Thread(
            target=self._capture, args=(lambda part: loop.call_soon_threadsafe(self._take, part),), name="capture"
        )
        beside = [
            asyncio.create_task(task)
            for task in (
                self._outbox.run(),
                self._answers(),
                self._statuses(),
                self._clocks(),
                self._keep_up(),
                watched(thread.is_alive),
            )
        ]
        for each in beside:
            each.add_done_callback(self._ended)
        self._emitter.start()
        self._asking.start()
        thread.start()  # before any of these tasks runs
        self._greet()
        try:
            await self._ship()
            if self._outbox.reachable is not False:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._outbox.drained(), LAST_S)
            await self._status(ending=True)
        finally:
            self.stop()
            for task in beside:
                task.cancel()
            await self._sender.close()
            await asyncio.gather(*beside, return_exceptions=True)
            thread.join()
            self._part()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nothing but the capture ends by itself: if a task does, so does the agent."""
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._problem = self._problem or problem
            self.stop()

    def _part(self) -> None:
        unseen = f", {self.unseen:,} unseen" if self.unseen else ""
        waiting = f"; {len(self._spool):,} messages wait" if len(self._spool) else ""
        self.tell(f"ends after {self.intervals:,} intervals, {self.packets:,} packets{unseen}{waiting}")

    def _greet(self) -> None:
        config = self.config
        assert config.collector is not None
        where = f"listening at {config.interface}" if config.interface else f"reading {', '.join(config.captures)}"
        waiting = f"; {len(self._spool):,} messages wait" if len(self._spool) else ""
        self.tell(
            f"{config.point}: {where}, an interval every {format_duration(config.interval_ns)}, "
            f"to {config.collector.shown}{waiting}"
        )
        for name in self._spool.damaged:
            self.tell(f"{config.spool}/{name}: is damaged: its messages are lost, the file is kept as {name}.damaged")

    def _take(self, part: CutPart | None) -> None:
        if len(self._parts) >= MOST_WAITING:
            self._parts.popleft()  # the disk is too slow: drop it, and count it (keeping_up.py tells)
            self.lost_parts += 1
        self._parts.append(part)
        self._some.set()

    async def _ship(self) -> None:
        """Put parts as messages into the outbox, until the last one; what has come meanwhile goes together."""
        while True:
            await self._some.wait()
            self._some.clear()
            parts = [part for part in self._parts if part is not None]
            ended = len(parts) < len(self._parts)
            self._parts.clear()
            if inside := [part for part in parts if part.measured.end is not None]:
                await self._put_settled(await asyncio.to_thread(self._settling.take, inside))
            if own := [part for part in parts if part.measured.end is None]:
                if self._flows is not None:
                    self._flows.segments([of_part(part, self.config.point) for part in own])
                await self._put_all([await self._message(part) for part in own])
            if ended:
                await self._put_settled(await asyncio.to_thread(self._settling.end) + self._asking.settled())
                return

    async def _put_settled(self, messages: list[Message]) -> None:
        """Put results of ways inside this router."""
        for message in messages:
            self.intervals += 1
            self.packets += message.seen.packets
            self.unseen += message.seen.unseen
        if messages and self._flows is not None:
            self._flows.segments([of_message(message) for message in messages])
        if messages:
            await self._put_all([(encode(message), message.key) for message in messages])

    async def _message(self, part: CutPart) -> tuple[bytes, str]:
        """A part as a message's bytes, and its key."""
        interval, terms = part.cut.interval, part.measured.terms
        part = replace(part, ahead_ns=self._asking.ahead_ns(part.measured.segment, time.time_ns()))
        self.intervals += 1
        self.packets += part.seen.packets
        self.unseen += part.seen.unseen
        if terms.estimator.can.second_round:
            self._past.keep(part)
        about = Message(
            "synopsis",
            self.config.point,
            part.measured.segment,
            interval,
            terms,
            self._clock.reading(),
            part.seen,
            sent_ns=time.time_ns(),
        )
        return await asyncio.to_thread(encoded, part, about, self._past)

    async def _put_all(self, messages: list[tuple[bytes, str]]) -> None:
        """Put messages; one that is larger than the spool is sent, or lost."""
        try:
            await self._outbox.put_all(messages)
        except WirelagError as problem:
            self.lost_parts += 1
            self.tell(str(problem))

    async def _keep_up(self) -> None:
        """Tell when the agent falls behind, and when it has caught up."""
        keeping = KeepingUp(self.config.interval_ns)
        while True:
            await asyncio.sleep(LOOK_S)
            outbox = self._outbox
            load = Load(outbox.waited_s, outbox.waiting, self.lost_parts, outbox.dropped, outbox.reachable is not False)
            for line in keeping.look(load, time.monotonic()):
                self.tell(line)
            await self._put_settled(await asyncio.to_thread(self._settling.pass_time))
            await self._put_settled(self._asking.settled())
            self._notices.pass_time()

    async def _answers(self) -> None:
        """Reply to the collector's questions, and follow its m-sets."""
        async for data in self._sender.asks():
            try:
                ask = await asyncio.to_thread(decode, data)
            except ValueError as error:
                self.tell(f"a question from the collector {error}")
                continue
            if ask.point != self.config.point:
                continue
            if ask.type == "ask":
                data, key = await asyncio.to_thread(self._past.answer, ask)
                with contextlib.suppress(WirelagError):  # the collector asks again, or does without
                    await self._outbox.answer(data, key)
            elif ask.type == "m-set" and self.config.m_set is not None:
                await self._turn(m_set_of(ask, self.config))

    async def _turn(self, m_set: MSet) -> None:
        """Measure this from now on, and report it; an older one is ignored."""
        if self._m_set is not None and m_set.since_ns < self._m_set.since_ns:
            return
        before, self._m_set = self._m_set, m_set
        self._cutters.turn(m_set)
        self._emitter.turn(m_set.references)
        now_ns = time.time_ns()
        if before is None or before.held(now_ns) != m_set.held(now_ns) or before.ways != m_set.ways:
            ending = sum(until_ns != FOREVER_NS for until_ns in m_set.measured.values())
            self.tell(
                f"m-set of {len(m_set.measured)} segments"
                + ("" if m_set.ways is None else f" and {len(m_set.ways.until_ns or ())} ways inside")
                + (f", {ending} of them for a while" if ending else "")
                + (f"; {m_set.left_out} left out" if m_set.left_out else "")
            )
        await self._status()

    async def _clocks(self) -> None:
        while True:
            await asyncio.sleep(ASK_S)
            await asyncio.to_thread(self._clock.ask)

    async def _statuses(self) -> None:
        while True:
            await self._status()
            await asyncio.sleep(self.config.status_ns / 1e9)

    async def _status(self, ending: bool = False) -> None:
        """Send the agent's status, ahead of what waits. It is soon outdated: one that does not arrive is not kept."""
        if self._outbox.reachable is False:
            return
        config, now_ns = self.config, time.time_ns()
        interval = Interval(now_ns, now_ns)  # each is a separate message
        record = {"start_ns": interval.start_ns, "end_ns": interval.end_ns, "name": None, "class": None} | {
            "version": __version__,
            "began_ns": self._began_ns,
            "ending": ending,
            "intervals": self.intervals,
            "packets": self.packets,
            "unseen": self.unseen,
            "lost_parts": self.lost_parts,
            "spooled": self._outbox.waiting,
            "spooled_bytes": self._outbox.waiting_bytes,
            "spool_age_ns": round(self._outbox.waited_s * 1e9),
            "spool_dropped": self._outbox.dropped,
            "spool_failing": self._outbox.disk_fails,
            "clock_steps": self.clock_steps,
            "refused": self._outbox.refused,
            "past_intervals": len(self._past),
            "past_bytes": self._past.bytes,
            "answered": self._past.answered,
            "unanswered": self._past.refused,
            "references_sent": self._emitter.sent,
            "references_refused": self._emitter.refused,
            "references_failed": self._emitter.failed,
        }
        if config.reflectors:
            record |= self._asking.counted()
        if self._ways is not None:
            record |= {"inside": True} | {f"left_out_{why}": count for why, count in list(self._ways.left_out.items())}
        if config.m_set is not None:
            m_set = self._m_set
            record |= {"m_set_ns": 0, "segments": 0} if m_set is None else _about(m_set)
        seen = Seen(self.packets, self.unseen, 0)
        message = Message(
            "status", config.point, None, interval, config.terms, self._clock.reading(), seen, (record,), now_ns
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._outbox.try_now(encode(message), message.key), STATUS_S)
