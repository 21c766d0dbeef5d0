"""Packets that an agent sends: STAMP reference packets at a bounded rate, and control packets that cut intervals.

Law: a stream has one reference each `every`, never more than its share of the link's bytes (injection.py); one that was
due while the host was busy is left out, not sent late in a burst.
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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wirelag.agent.config import Reference
from wirelag.errors import WirelagError
from wirelag.injection import Injector
from wirelag.intervals import control_payload
from wirelag.stamp import PORT, payload

SO_ATTACH_FILTER: Final = 26
NOTHING: Final = struct.pack("HBBI", 0x06, 0, 0, 0)  # a filter that lets nothing pass: return 0


@dataclass(slots=True)
class _References:
    """One stream of references."""

    stream: Reference
    injector: Injector
    opened: socket.socket
    sequence: int = 0

    def send(self, now_ns: int) -> bool:
        """Send one, if one is due and the share allows it."""
        due = sum(1 for _ in self.injector.due(now_ns)) > 0
        if due:
            self.opened.sendto(payload(self.sequence, time.time_ns()), (self.stream.to, PORT))
            self.sequence += 1
        return due

    @property
    def every_ns(self) -> int:
        """How often one is due."""
        return self.stream.injection.tau_ns


@dataclass(slots=True)
class _Control:
    """Control packets, one at the beginning of each interval."""

    to: tuple[str, int]
    every_ns: int
    opened: socket.socket

    def send(self, now_ns: int) -> bool:
        """Send one; its number is that of the interval."""
        self.opened.sendto(control_payload(now_ns // self.every_ns), self.to)
        return False


class Emitter:
    """A thread that sends what is due."""

    def __init__(
        self,
        references: tuple[Reference, ...],
        control: tuple[str, int] | None,
        interval_ns: int,
        tell: Callable[[str], None],
    ) -> None:
        """Open the sockets; `tell` is told when sending fails, and when it works again."""
        self.sent = self.failed = 0
        self._tell = tell
        self._failing: set[int] = set()
        self._ended = threading.Event()
        now_ns = time.time_ns()
        self._senders: list[_References | _Control] = []
        for stream in references:
            injector = Injector(stream.injection)
            injector.packet(now_ns, 0)  # from here on time counts
            opened = _socket(stream.to, stream.dscp, stream.source_port)
            self._senders.append(_References(stream, injector, opened))
        if control is not None:
            self._senders.append(_Control(control, interval_ns, _socket(control[0], 0, 0)))
        self._thread = threading.Thread(target=self._run, name="references", daemon=True)

    @property
    def refused(self) -> int:
        """References that the share did not allow."""
        return sum(each.injector.refused for each in self._senders if isinstance(each, _References))

    def start(self) -> None:
        """Begin to send, if there is anything to."""
        if self._senders:
            self._thread.start()

    def close(self) -> None:
        """Send no more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        for sender in self._senders:
            sender.opened.close()

    def _run(self) -> None:
        now_ns = time.time_ns()
        due = [(_next_ns(now_ns, sender.every_ns), i) for i, sender in enumerate(self._senders)]
        heapq.heapify(due)
        while not self._ended.wait(max(0.0, (due[0][0] - time.time_ns()) / 1e9)):
            number, now_ns = due[0][1], time.time_ns()
            if now_ns < due[0][0]:
                continue
            sender = self._senders[number]
            try:
                self.sent += sender.send(now_ns)
                if number in self._failing:
                    self._failing.discard(number)
                    self._tell(f"{_to(sender)}: packets can be sent again")
            except OSError as error:
                self.failed += 1
                if number not in self._failing:
                    self._failing.add(number)
                    self._tell(f"{_to(sender)}: cannot send packets ({error.strerror}); it is tried again and again")
            heapq.heapreplace(due, (_next_ns(time.time_ns(), sender.every_ns), number))


def _next_ns(now_ns: int, every_ns: int) -> int:
    return (now_ns // every_ns + 1) * every_ns


def _to(sender: _References | _Control) -> str:
    return sender.stream.to if isinstance(sender, _References) else sender.to[0]


def _socket(to: str, dscp: int, source_port: int) -> socket.socket:
    """Not connected: that nobody listens there is no error."""
    six = ipaddress.ip_address(to).version == 6
    opened = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        opened.setblocking(False)
        if six:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
        else:
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        if source_port:
            opened.bind(("::" if six else "0.0.0.0", source_port))
    except OSError as error:
        opened.close()
        raise WirelagError(f"references to {to}: cannot send from port {source_port} ({error.strerror})") from None
    return opened


def sink(port: int = PORT) -> list[socket.socket]:
    """Sockets that take references and drop them in the kernel, so that their sender gets no errors back."""
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
            f"and nobody else may have it"
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
