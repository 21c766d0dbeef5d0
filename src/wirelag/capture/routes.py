"""Where this host forwards packets, as its kernel says (man 7 rtnetlink); in the network namespace of this thread.

Law: every answer is the kernel's own, of one destination at a time: the entry of its forwarding table with the longest
prefix. Nothing is kept here, so that a large table costs nothing. Whether anything has changed is known at once.
"""

from __future__ import annotations

import errno
import socket
import struct
from types import TracebackType
from typing import Final

from wirelag.capture.netlink import attributes, messages
from wirelag.errors import WirelagError
from wirelag.packets.address import Address

_ROUTE, _REQUEST, _DUMP = 0, 1, 0x300
_DONE, _ERROR = 3, 2
_GET_ADDRESS, _NEW_ROUTE, _GET_ROUTE = 22, 24, 26
_TO, _OUT, _SEVERAL = 1, 4, 9  # attributes of a route
_HOST_ADDRESS, _OWN_ADDRESS = 1, 2  # attributes of an address
_ENTRY: Final = 0x2000  # a flag: the entry of the table, not what it gives for one packet
_UNICAST: Final = 1
_GONE: Final = 0x1 | 0x10  # a next hop that is dead, or whose link is down
_ROUTES: Final = 0x40 | 0x400  # groups of IPv4 and IPv6
_NEXT_HOPS: Final = 32  # a group by number
_NETLINK, _JOIN = 270, 1


class ForwardingTable:
    """The kernel's forwarding table: ask it, and learn when it changes. One thread uses it."""

    def __init__(self) -> None:
        self._asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _ROUTE)
        self._news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _ROUTE)
        self._news.bind((0, _ROUTES))
        self._news.setsockopt(_NETLINK, _JOIN, _NEXT_HOPS)
        self._news.setblocking(False)

    def __enter__(self) -> ForwardingTable:
        """Return itself; leaving the context closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def interfaces(self, to: Address) -> frozenset[int]:
        """The interfaces by which packets to this address may leave, by number; none if they do not leave."""
        self._asking.send(question(to, _ENTRY))
        kind, said = next(messages(self._asking.recv(1 << 16)))
        if kind != _NEW_ROUTE or said[7] != _UNICAST:
            return frozenset()
        found = attributes(said[12:])
        if _SEVERAL in found:
            return frozenset(_next_hops(found[_SEVERAL]))
        return frozenset(struct.unpack("=I", found[_OUT])) if _OUT in found else frozenset()

    def changed(self) -> bool:
        """Whether it has changed since the last call."""
        news = False
        while True:
            try:
                news = bool(self._news.recv(1 << 16)) or news
            except BlockingIOError:
                return news
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                news = True  # more changes than it could hold

    def close(self) -> None:
        """Ask no more."""
        self._asking.close()
        self._news.close()


def question(to: Address, flags: int = 0) -> bytes:
    """The message that asks for the route to an address."""
    family = socket.AF_INET if to.version == 4 else socket.AF_INET6
    about = struct.pack("=BBBBBBBBI", family, to.max_prefixlen, 0, 0, 0, 0, 0, 0, flags)
    body = about + struct.pack("=HH", 4 + len(to.packed), _TO) + to.packed
    return struct.pack("=IHHII", 16 + len(body), _GET_ROUTE, _REQUEST, 1, 0) + body


def _next_hops(data: bytes) -> list[int]:
    found = []
    while len(data) >= 8:
        length, flags, _, interface = struct.unpack_from("=HBBi", data)
        if length < 8:
            break
        if not flags & _GONE:
            found.append(interface)
        data = data[(length + 3) & ~3 :]
    return found


def interface_of(name: str) -> int:
    """The number of an interface; a WirelagError names those that exist."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        known = ", ".join(sorted(found for _, found in socket.if_nameindex()))
        raise WirelagError(f"{name}: there is no such interface; there are {known}") from None


def interfaces_by_address() -> dict[str, int]:
    """The number of the interface that has each of this host's addresses."""
    found: dict[str, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _ROUTE) as netlink:
        netlink.send(struct.pack("=IHHII8x", 24, _GET_ADDRESS, _REQUEST | _DUMP, 1, 0))
        while True:
            for kind, body in messages(netlink.recv(1 << 18)):
                if kind in (_DONE, _ERROR):
                    return found
                family, index = struct.unpack_from("=B3xI", body)
                said = attributes(body[8:])
                address = said.get(_OWN_ADDRESS) or said.get(_HOST_ADDRESS)
                if address is not None and family in (socket.AF_INET, socket.AF_INET6):
                    found[socket.inet_ntop(family, address)] = index
