"""The MAC address of an IP address, from the kernel's neighbour table."""

from __future__ import annotations

import contextlib
import ipaddress
import select
import socket
import struct
import time
from typing import Final

from wirelag.capture.netlink import attributes, messages
from wirelag.errors import WirelagError

_ROUTE, _NEW, _GET, _DONE, _ERROR = 0, 28, 30, 3, 2
_REQUEST, _DUMP, _GROUP = 1, 0x300, 4
_ADDRESS, _LINK_ADDRESS = 1, 2
_VALID: Final = 0x02 | 0x04 | 0x08 | 0x10 | 0x80  # reachable, stale, delay, probe, permanent
PATIENCE_S: Final = 1.0


def mac_of(address: str, interface: str, patience_s: float = PATIENCE_S) -> bytes:
    """The MAC address on the interface's link; the kernel is made to resolve it if needed."""
    wanted = ipaddress.ip_address(address)
    try:
        index = socket.if_nametoindex(interface)
    except OSError:
        raise WirelagError(f"{interface}: there is no such interface") from None
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _ROUTE) as netlink:
        netlink.bind((0, _GROUP))
        family = socket.AF_INET if wanted.version == 4 else socket.AF_INET6
        message = struct.pack("=BxxxiHBB", family, 0, 0, 0, 0)
        netlink.send(struct.pack("=IHHII", 16 + len(message), _GET, _REQUEST | _DUMP, 1, 0) + message)
        end_s, asked = time.monotonic() + patience_s, False
        while (left_s := end_s - time.monotonic()) > 0:
            if not select.select([netlink], [], [], left_s)[0]:
                break
            for kind, body in messages(netlink.recv(1 << 16)):
                if kind == _NEW and (found := _entry(body, index)) and found[0] == wanted.packed:
                    return found[1]
                if kind in (_DONE, _ERROR) and not asked:
                    asked = True
                    _make_it_ask(family, address, interface)
    raise WirelagError(f"{address}: no reply on {interface}: set its mac in the settings")


def _make_it_ask(family: int, address: str, interface: str) -> None:
    """Send an empty datagram to the discard port: the kernel must first resolve the neighbour."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as datagram:
        datagram.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        datagram.sendto(b"", (address, 9))


def _entry(body: bytes, index: int) -> tuple[bytes, bytes] | None:
    """IP and MAC address of a neighbour on this link."""
    _, at, flags = struct.unpack_from("=BxxxiH", body)
    if at != index or not flags & _VALID:
        return None
    found = attributes(body[12:])
    address, mac = found.get(_ADDRESS, b""), found.get(_LINK_ADDRESS, b"")
    return (address, mac) if len(mac) == 6 else None
