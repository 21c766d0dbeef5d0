"""Packets that an agent sends: STAMP reference packets at a bounded rate, and control packets that cut intervals.

Law: packets that were captured, and time, make references of a stream due (kernels/injection.h), never more than its
share of the link's bytes; of several that were due while the host was busy one is sent, not all late in a burst. Those
of a stream without packets are due by the clock, but if it is set, in whatever direction, they go on: rates and shares
go by a clock that is never set, whatever the times of packets are. A reference carries the time at which the capture
sees it leave, as far as can be told before: it is captured a little later than it is made, and by how much is known of
those before it. Each states the error of its time (STAMP's error estimate): the clock's error, plus the time that the
host takes to send one, or how much that varies; and time and id of the last packet that was captured.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import ipaddress
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.agent.config import Reference
from wirelag.capture.host_clock import Steps
from wirelag.errors import WirelagError
from wirelag.packets.batch import Kind, PacketBatch
from wirelag.packets.intervals import CONTROL_COPIES, control_payload
from wirelag.packets.stamp import PORT, UNSYNCHRONISED_PTP, error_estimate, parse, payload
from wirelag.protocol.messages import ClockReading

SO_ATTACH_FILTER: Final = 26
CLOCK_NS: Final = 10**8  # interval at which the clock's error is read
RECENT: Final = 16  # references over which the sending time is averaged
LATEST_NS: Final = 10**7  # longest time that the host takes to send one; longer: a copy that came back
NOTHING: Final = struct.pack("HBBI", 0x06, 0, 0, 0)  # a filter that drops everything: return 0


@dataclass(slots=True)
class _Lateness:
    """How long after it was made a reference leaves: of those that the capture has seen."""

    made: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # by number: the time it carries, and when it was made
    found_ns: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))

    def sent(self, number: int, stated_ns: int, made_ns: int) -> None:
        """Remember a reference, for a while."""
        self.made[number] = stated_ns, made_ns
        if len(self.made) > 4 * RECENT:
            self.made.pop(next(iter(self.made)))

    def captured(self, packets: PacketBatch) -> None:
        """Look for references of this stream among packets."""
        rows = np.flatnonzero(packets.of_kind(Kind.STAMP) & (packets.dst_port == PORT))
        read = parse(packets, rows)
        for number, stated_ns, seen_ns in zip(read.sequence, read.sent_ns, packets.time_ns[rows], strict=True):
            expected = self.made.get(int(number))
            if expected is not None and expected[0] == stated_ns:
                del self.made[int(number)]
                if 0 <= seen_ns - expected[1] < LATEST_NS:
                    self.found_ns.append(int(seen_ns - expected[1]))

    def usual_ns(self) -> tuple[int, int]:
        """The median of the last ones, and how far they are from it on average; 0 and 0 while there are few."""
        if len(self.found_ns) < RECENT // 2:
            return 0, 0
        middle_ns = sorted(self.found_ns)[len(self.found_ns) // 2]
        return middle_ns, sum(abs(each - middle_ns) for each in self.found_ns) // len(self.found_ns)


@dataclass(slots=True)
class _References:
    """One stream of references."""

    stream: Reference
    injector: _kernels.Injector
    opened: list[socket.socket]  # empty until the first is sent
    clock: Callable[[], ClockReading]
    sequence: int = 0
    late_ns: float = 0.0  # upper bound of the time from a packet's timestamp to its departure
    lateness: _Lateness = field(default_factory=_Lateness)  # this time as captured, if the stream watches
    error_ns: int | None = None  # error of the clock; None: not synchronised
    read_ns: int = 0  # when it was read
    heard_ns: int = 0  # the last time that the injector has heard of
    is_due: bool = False
    previous: tuple[int, int] | None = None  # time and id of the last packet

    def open(self) -> None:
        """Open a socket for each source port."""
        stream = self.stream
        self.opened = [
            _socket(stream.to, stream.dscp, stream.source_port, stream.source, stream.hops)
            for _ in range(stream.spread)
        ]

    def hear(self, packets: PacketBatch) -> bool:
        """Packets have passed; return whether a reference is due.

        What decides is the clock that is never set: packets passed after those heard of before, and before now.
        """
        self.lateness.captured(packets)
        rows = self._among(packets)
        now_ns, ahead_ns = time.monotonic_ns(), time.time_ns()
        if len(rows):
            times_ns = np.clip(packets.time_ns[rows] - (ahead_ns - now_ns), self.heard_ns, now_ns)
            times_ns = np.maximum.accumulate(times_ns)
            sizes = np.ascontiguousarray(packets.wire_length[rows], np.uint32)
            self.is_due |= len(self.injector.observe(times_ns, sizes)) > 0
            self.previous = int(packets.time_ns[rows[-1]]), int(packets.packet_id[rows[-1]])
        return self._due(now_ns)

    def _among(self, packets: PacketBatch) -> npt.NDArray[np.intp]:
        """The rows of packets that references travel among, none of which is a reference."""
        wanted = ~(packets.of_kind(Kind.STAMP) & (packets.dst_port == PORT))
        if self.stream.among:
            wanted &= np.logical_or.reduce([way.rows(packets) for way in self.stream.among])
        return np.flatnonzero(wanted)

    def _due(self, now_ns: int) -> bool:
        self.heard_ns = max(self.heard_ns, now_ns)
        self.is_due |= len(self.injector.due(self.heard_ns)) > 0
        return self.is_due

    def send(self, now_ns: int) -> bool:
        """Send one, if one is due and the share allows it."""
        if not self.opened:
            self.open()
        due, self.is_due = self._due(time.monotonic_ns()), False
        if due:
            by = self.opened[self.sequence % len(self.opened)]
            (later_ns, vague_ns), to = self.lateness.usual_ns(), (self.stream.to, PORT)
            estimate = self._estimate(now_ns, vague_ns if later_ns else round(self.late_ns))
            made_ns = time.time_ns()
            by.sendto(payload(self.sequence, made_ns + later_ns, self.previous, estimate), to)
            took_ns = min(max(0, time.time_ns() - made_ns), CLOCK_NS)
            self.late_ns += (took_ns - self.late_ns) / RECENT if self.sequence else took_ns
            if self.stream.watches:
                self.lateness.sent(self.sequence & 0xFFFFFFFF, made_ns + later_ns, made_ns)
            self.sequence += 1
        return due

    def _estimate(self, now_ns: int, vague_ns: int) -> int:
        if abs(now_ns - self.read_ns) >= CLOCK_NS:
            reading, self.read_ns = self.clock(), now_ns
            self.error_ns = reading.error_ns if reading.synchronised else None
        return UNSYNCHRONISED_PTP if self.error_ns is None else error_estimate(self.error_ns + vague_ns)

    @property
    def every_ns(self) -> int:
        """Time between two references; 0: packets alone make them due."""
        return self.stream.injection.every_ns

    @property
    def phase_ns(self) -> int:
        """Phase within this time: different for each stream, or streams would collide, at all hosts at once."""
        return crc32(repr((self.stream.to, self.stream.source, self.stream.source_port)).encode()) % self.every_ns

    @property
    def until_ns(self) -> int | None:
        """When it ends."""
        return self.stream.until_ns


@dataclass(slots=True)
class _Control:
    """Control packets, and their copies, at the beginning of each interval."""

    to: tuple[str, int]
    every_ns: int
    opened: list[socket.socket]
    until_ns: int | None = None
    phase_ns: int = field(default=0, init=False)  # at the edges of intervals

    def send(self, now_ns: int) -> bool:
        """Send them; their number is that of the interval."""
        for _ in range(CONTROL_COPIES):
            self.opened[0].sendto(control_payload(now_ns // self.every_ns), self.to)
        return False


class Emitter:
    """A thread that sends what is due."""

    def __init__(
        self,
        references: tuple[Reference, ...],
        control: tuple[str, int] | None,
        interval_ns: int,
        tell: Callable[[str], None],
        clock: Callable[[], ClockReading] = ClockReading,
    ) -> None:
        """Open the sockets; `tell` is called when sending fails and when it works again. `clock`: its accuracy."""
        self.sent = self.failed = self._refused = 0
        self._tell, self._clock = tell, clock
        self._failing: set[int] = set()
        self._changed = threading.Condition()
        self._ended = False
        self._senders: dict[int, _References | _Control] = {}
        self._turned: dict[Reference, int] = {}  # streams started by `turn`
        self._due: list[tuple[int, int]] = []  # time and sender: a heap
        self._steps = Steps()
        self._number = 0
        for stream in references:
            sender = self._stream(stream)
            try:
                sender.open()
            except OSError as error:
                origin = f"{stream.source or 'port'} {stream.source_port or ''}".strip()
                raise WirelagError(f"references to {stream.to}: cannot send from {origin} ({error.strerror})") from None
            self._add(sender)
        if control is not None:
            self._add(_Control(control, interval_ns, [_socket(control[0], 0, 0)]))
        self._thread = threading.Thread(target=self._run, name="references", daemon=True)

    @property
    def refused(self) -> int:
        """References that exceeded the share."""
        with self._changed:
            now = sum(each.injector.refused for each in self._senders.values() if isinstance(each, _References))
            return self._refused + now

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def turn(self, references: Iterable[Reference]) -> None:
        """Send these besides the initial ones, and nothing else; streams that stay continue unchanged."""
        wanted = set(references)
        with self._changed:
            for stream in [one for one in self._turned if one not in wanted]:
                self._remove(self._turned[stream])
            for stream in wanted - self._turned.keys():
                self._turned[stream] = self._add(self._stream(stream))
            self._changed.notify()

    def hear(self, packets: PacketBatch) -> None:
        """Packets were captured: send what they make due. Called by the capture, which it does not keep waiting."""
        with self._changed:
            for number, sender in self._senders.items():
                if isinstance(sender, _References) and sender.stream.watches and sender.hear(packets):
                    self._send(number, sender, time.time_ns())

    def close(self) -> None:
        """Stop sending."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        for number in list(self._senders):
            self._remove(number)

    def _stream(self, stream: Reference) -> _References:
        now_ns = time.monotonic_ns()
        sender = _References(stream, _kernels.Injector(stream.injection.rule), [], self._clock, heard_ns=now_ns)
        if sender.every_ns:  # time counts from here on
            sender.injector.observe(np.array([now_ns], np.int64), np.zeros(1, np.uint32))
        return sender

    def _add(self, sender: _References | _Control) -> int:
        self._number += 1
        self._senders[self._number] = sender
        if sender.every_ns:
            heapq.heappush(self._due, (_next_ns(time.time_ns(), sender), self._number))
        return self._number

    def _remove(self, number: int) -> None:
        sender = self._senders.pop(number)
        self._failing.discard(number)
        if isinstance(sender, _References):
            self._refused += sender.injector.refused
            self._turned.pop(sender.stream, None)
        for each in sender.opened:
            each.close()

    def _run(self) -> None:
        with self._changed:
            while not self._ended:
                self._notice_step()
                left_ns = self._due[0][0] - time.time_ns() if self._due else None
                if left_ns is None or left_ns > 0:
                    self._changed.wait(None if left_ns is None else left_ns / 1e9)
                    continue
                number, now_ns = heapq.heappop(self._due)[1], time.time_ns()
                sender = self._senders.get(number)
                if sender is None:
                    continue
                if sender.until_ns is not None and now_ns >= sender.until_ns:
                    self._remove(number)
                    continue
                self._send(number, sender, now_ns)
                heapq.heappush(self._due, (_next_ns(time.time_ns(), sender), number))

    def _notice_step(self) -> None:
        """If the clock was set, what is due is due by the new time."""
        if self._steps.taken_ns():
            now_ns = time.time_ns()
            self._due = [(_next_ns(now_ns, self._senders[n]), n) for _, n in self._due if n in self._senders]
            heapq.heapify(self._due)

    def _send(self, number: int, sender: _References | _Control, now_ns: int) -> None:
        try:
            self.sent += sender.send(now_ns)
            if number in self._failing:
                self._failing.discard(number)
                self._tell(f"{_to(sender)}: packets can be sent again")
        except OSError as error:
            self.failed += 1
            if number not in self._failing:
                self._failing.add(number)
                self._tell(f"{_to(sender)}: cannot send packets ({error.strerror}); still trying")


def _next_ns(now_ns: int, sender: _References | _Control) -> int:
    every_ns, phase_ns = sender.every_ns, sender.phase_ns
    return ((now_ns - phase_ns) // every_ns + 1) * every_ns + phase_ns


def _to(sender: _References | _Control) -> str:
    return sender.stream.to if isinstance(sender, _References) else sender.to[0]


def _socket(to: str, dscp: int, source_port: int, source: str | None = None, hops: int = 0) -> socket.socket:
    """An unconnected socket: a missing listener is not an error."""
    six = ipaddress.ip_address(to).version == 6
    opened = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    level = socket.IPPROTO_IPV6 if six else socket.IPPROTO_IP
    try:
        opened.setblocking(False)
        opened.setsockopt(level, socket.IPV6_TCLASS if six else socket.IP_TOS, dscp << 2)
        if hops:
            opened.setsockopt(level, socket.IPV6_UNICAST_HOPS if six else socket.IP_TTL, hops)
        if source_port or source:
            opened.bind((source or ("::" if six else "0.0.0.0"), source_port))
    except OSError:
        opened.close()
        raise
    return opened


def sink(port: int = PORT) -> list[socket.socket]:
    """Sockets that receive references and drop them in the kernel, so that their sender gets no errors."""
    program = ctypes.create_string_buffer(NOTHING)
    filtered = struct.pack("HP", 1, ctypes.addressof(program))
    opened: list[socket.socket] = []
    try:
        for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
            with contextlib.suppress(_NoFamily):
                opened.append(_dropping(family, address, port, filtered))
    except OSError as error:
        for each in opened:
            each.close()
        raise WirelagError(
            f"port {port}: cannot receive references ({error.strerror}); below 1024 that needs CAP_NET_BIND_SERVICE, "
            f"and no other program may use it"
        ) from None
    return opened


class _NoFamily(Exception):  # noqa: N818
    """Such addresses are not in use on this host."""


def _dropping(family: socket.AddressFamily, address: str, port: int, filtered: bytes) -> socket.socket:
    try:
        opened = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    except OSError:
        raise _NoFamily from None
    try:
        opened.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filtered)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind((address, port))
    except OSError as error:
        opened.close()
        if family == socket.AF_INET6 and not isinstance(error, PermissionError):
            raise _NoFamily from None
        raise
    return opened
