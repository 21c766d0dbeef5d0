"""Who may keep a connection to the collector, and for how long: the server itself waits for them for ever.

Laws. A client that sends a whole request and reads the response is left alone, however long the response takes. Until a
connection has shown a right token it is a stranger's; if strangers have too many, the oldest of the address that has
most is closed, before TLS and HTTP: so strangers cannot shut out a newcomer. A handshake costs a server more than its
client: of connections that show no right token, an address gets HANDSHAKES_PER_S after a burst; the rest is closed
before TLS. There are always file descriptors left for the store. A stranger has one request: its connection ends with
the reply. Handshakes that were sent off are closed, and their memory is free, before more connections are taken.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import resource
import socket
import time
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from wirelag.transport.http import notice_silence
from wirelag.transport.notices import Notices

TICK_S: Final = 1.0
SILENT_S: Final = 10.0  # without a whole request
UNREAD_S: Final = 60.0  # with a response that is not read
STRANGE_S: Final = 15.0  # without a right token
MOST_CONNECTIONS: Final = 4096
CONNECTION_BYTES: Final = 96 << 10  # what one takes at most while nothing waits on it, with TLS
TLS_RECORD: Final = 16 << 10  # bytes: no read gives more, and asyncio's buffer of 256 KiB is never filled
RESERVED: Final = 128  # file descriptors for everything else
MOST_LEAVING: Final = 256  # handshakes that were sent off and are not closed yet: each has a buffer,
MOST_GARBAGE: Final = 256  # and when it has failed keeps it until cycles are collected: its error holds its frames
HANDSHAKES_PER_S: Final = 128.0  # of strangers of one address,
HANDSHAKES: Final = 1024  # after this many at once
MOST_ADDRESSES: Final = 1 << 16  # whose handshakes are counted
MOST_REFUSED: Final = 64  # connections that are refused before others get a turn

Idle = dict[H11Protocol, tuple[RequestResponseCycle, float]]  # the last request of each, and since when it is idle
Peer = tuple[str, int]


def room() -> int:
    """How many connections fit, after asking for as many file descriptors as are needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + RESERVED
    if soft < wanted and soft != resource.RLIM_INFINITY:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MOST_CONNECTIONS, soft - RESERVED))


def read_by_record() -> None:
    """Give each connection with TLS a buffer for one record, from now on; asyncio allots sixteen times as much."""
    sslproto.SSLProtocol.max_size = TLS_RECORD


class Visitors:
    """All open connections: strangers by address, in the order of arrival; the others by point."""

    def __init__(self, most: int, of_one: int, of_point: int, counted: Counter[str], tls: bool = False) -> None:
        """`most` in all; `of_one`: strangers of one address; `of_point`: connections of one point."""
        self._tls = tls
        self._paid_s: dict[str, float] = {}  # by address: until when its handshakes are paid for
        self.most, self._of_one, self._of_point, self.counted = most, of_one, of_point, counted
        self._by_peer: dict[Peer, Visitor] = {}
        self._strangers: dict[str, dict[Visitor, None]] = {}
        self._of: Counter[str] = Counter()
        self.unmet: Callable[[str], None] = lambda address: None  # told of those that ended before `met`
        self.open = 0  # with those that were sent off and are not closed yet
        self.leaving = 0  # of these, those whose TLS has not begun
        self.failed = 0  # handshakes, since cycles were collected

    def allow(self, of_one: int, of_point: int) -> None:
        """Change the limits; connections that are open stay."""
        self._of_one, self._of_point = of_one, of_point

    def __len__(self) -> int:
        return len(self._by_peer)

    @property
    def strangers(self) -> int:
        """Connections that have not shown a right token."""
        return sum(map(len, self._strangers.values()))

    def come(self, visitor: Visitor) -> bool:
        """Take a new connection, if necessary instead of a stranger's; False if there is no room at all."""
        if self._tls and not self._may_shake_hands(visitor.address, visitor.since_s):
            self.counted["connections refused"] += 1
            return False
        mine = self._strangers.get(visitor.address, {})
        if len(mine) >= self._of_one:
            self._send_off(next(iter(mine)))
        elif self.strangers >= self.most // 2 or len(self) >= self.most:
            if not self._strangers:
                self.counted["connections refused"] += 1
                return False
            most = max(self._strangers, key=lambda address: len(self._strangers[address]))
            self._send_off(next(iter(self._strangers[most])))
        self._by_peer[visitor.peer] = visitor
        self._strangers.setdefault(visitor.address, {})[visitor] = None
        return True

    def known(self, peer: Peer | None, point: str | None, reads: bool = False) -> bool:
        """Note that a connection has shown a right token; False if its point has too many.

        If the token only `reads`, its address stands for the point, and has as many as a stranger's.
        """
        visitor = None if peer is None else self._by_peer.get(peer)
        if visitor is None or visitor.is_known:
            return True
        point = f"readers at {visitor.address}" if reads else point
        if point is not None and self._of[point] >= (self._of_one if reads else self._of_point):
            return False
        self._forget(visitor)
        if visitor.address in self._paid_s:
            self._paid_s[visitor.address] -= 1 / HANDSHAKES_PER_S  # whoever has a token is no burden
        visitor.is_known, visitor.point = True, point
        self._by_peer[visitor.peer] = visitor
        self._of[point or ""] += 1
        return True

    def is_strange(self, peer: Peer) -> bool:
        """Whether a connection is open that has not shown a right token."""
        visitor = self._by_peer.get(peer)
        return visitor is not None and not visitor.is_known

    def met(self, peer: Peer) -> None:
        """Note that TLS, if there is any, has begun."""
        if (visitor := self._by_peer.get(peer)) is not None:
            visitor.is_met = True

    def leave(self, visitor: Visitor) -> None:
        """Forget a connection that has ended."""
        if self._by_peer.get(visitor.peer) is visitor:
            self._forget(visitor)

    def send_off_old(self, now_s: float) -> None:
        """Close strangers that have had enough time."""
        for mine in list(self._strangers.values()):
            for visitor in [one for one in mine if now_s - one.since_s > STRANGE_S]:
                self._send_off(visitor)

    def _may_shake_hands(self, address: str, now_s: float) -> bool:
        paid_s = max(self._paid_s.get(address, now_s), now_s)
        if (paid_s - now_s) * HANDSHAKES_PER_S > HANDSHAKES - 1:
            return False
        if len(self._paid_s) >= MOST_ADDRESSES and address not in self._paid_s:
            self._paid_s.clear()
        self._paid_s[address] = paid_s + 1 / HANDSHAKES_PER_S
        return True

    def _forget(self, visitor: Visitor) -> None:
        self._by_peer.pop(visitor.peer, None)
        mine = self._strangers.get(visitor.address, {})
        mine.pop(visitor, None)
        if not mine:
            self._strangers.pop(visitor.address, None)
        if visitor.is_known:
            self._of[visitor.point or ""] -= 1

    def _send_off(self, visitor: Visitor) -> None:
        self._forget(visitor)
        self.counted["strangers sent off"] += 1
        visitor.is_leaving = not visitor.is_met
        self.leaving += visitor.is_leaving
        with suppress(OSError):
            visitor.shutdown(socket.SHUT_RDWR)  # its owner sees the end, and closes it


class Visitor(socket.socket):
    """A connection; its owner closes it."""

    visitors: Visitors
    is_open: bool = True
    peer: Peer
    address: str  # or the network of an IPv6 address, of which a stranger has many
    since_s: float
    is_met: bool = False
    is_leaving: bool = False
    is_known: bool = False
    point: str | None = None

    def close(self) -> None:
        """Close it, and leave."""
        super().close()
        if self.is_open and not self.is_met:
            self.visitors.unmet(self.address)
            self.visitors.failed += 1
        self.visitors.leaving -= self.is_leaving
        self.is_leaving = False
        self.visitors.open -= self.is_open
        self.is_open = False
        self.visitors.leave(self)


class Door(socket.socket):
    """A listening socket that admits connections by the rules of `Visitors`."""

    visitors: Visitors

    @classmethod
    def at(cls, listening: socket.socket, visitors: Visitors) -> Door:
        """The same socket, guarded."""
        door = cls(fileno=listening.detach())
        door.visitors = visitors
        return door

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that is admitted; BlockingIOError if there is none now."""
        for _ in range(MOST_REFUSED):
            if self.visitors.failed >= MOST_GARBAGE:
                self.visitors.failed = 0
                gc.collect()
            if self.visitors.open >= self.visitors.most + RESERVED // 2 or self.visitors.leaving >= MOST_LEAVING:
                raise BlockingIOError  # until those that were sent off are closed
            line, where = super().accept()
            visitor = Visitor(fileno=line.detach())
            visitor.visitors, visitor.since_s = self.visitors, time.monotonic()
            self.visitors.open += 1
            visitor.peer, visitor.address = (where[0], where[1]), _network(where[0])
            if self.visitors.come(visitor):
                notice_silence(visitor)
                return visitor, where
            visitor.is_met = True  # no handshake has begun, so none has failed
            visitor.close()
        raise BlockingIOError


def _network(address: str) -> str:
    """An IPv4 address, or the /64 of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        mapped = found.ipv4_mapped
        return str(mapped) if mapped is not None else str(ipaddress.ip_network((found, 64), strict=False))
    return address


class Briefly(logging.Handler):
    """Says errors of the server and of its library once, in one line."""

    def __init__(self, notices: Notices) -> None:
        super().__init__(logging.ERROR)
        self._notices = notices

    def emit(self, record: logging.LogRecord) -> None:
        """Say a record."""
        what = record.getMessage().partition("\n")[0]
        error = record.exc_info[1] if record.exc_info else None
        why = "" if error is None else f" ({type(error).__name__}: {error})"
        self._notices.say("errors of the server", f"{record.name} {record.msg[:80]}", f"{what}{why}")

    def instead(self) -> None:
        """Say what the server and asyncio log, in place of their handlers."""
        for name in ("uvicorn.error", "asyncio"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [self], False


async def close_idle(server: uvicorn.Server, visitors: Visitors, counted: Counter[str]) -> None:
    """Check all connections regularly, without end."""
    since: Idle = {}
    while True:
        await asyncio.sleep(TICK_S)
        now, idle = time.monotonic(), Idle()
        visitors.send_off_old(now)
        for each in list(server.server_state.connections):
            if not isinstance(each, H11Protocol):
                continue
            unread = each.flow.write_paused
            if not unread and each.cycle is not None and not each.cycle.response_complete:
                continue  # it waits for us
            last, began = since.get(each, (each.cycle, now))
            idle[each] = (each.cycle, began if last is each.cycle else now)
            if now - idle[each][1] > (UNREAD_S if unread else SILENT_S):
                counted["slow connections"] += 1
                each.transport.abort()
        since = idle
