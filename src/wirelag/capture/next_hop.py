"""Where the kernel would send a packet: the next hop, its interface, and the source address."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from dataclasses import dataclass
from typing import Final

from wirelag.capture.netlink import attributes, messages
from wirelag.capture.routes import question
from wirelag.errors import WirelagError

_ROUTE: Final = 0
_NEW_ROUTE, _ERROR = 24, 2
_INTERFACE, _GATEWAY, _SOURCE, _VIA = 4, 5, 7, 18  # attributes of a route
_PLAIN: Final = 1  # type of a route to another host


@dataclass(frozen=True, slots=True)
class NextHop:
    """The first step towards an address."""

    interface: str
    address: str  # of the router, or of the host itself if it is on the link
    source: str


def next_hop(address: str) -> NextHop:
    """The next hop by the kernel's routes."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _ROUTE) as netlink:
        netlink.send(question(ipaddress.ip_address(address)))
        for kind, said in messages(netlink.recv(1 << 16)):
            if kind == _ERROR:
                (problem,) = struct.unpack_from("=i", said)
                raise WirelagError(f"{address}: no route ({os.strerror(-problem).lower()}): add one")
            if kind == _NEW_ROUTE:
                return _hop(address, said)
    raise WirelagError(f"{address}: no route: add one")


def _hop(address: str, said: bytes) -> NextHop:
    found = attributes(said[12:])
    if said[7] != _PLAIN or _INTERFACE not in found or _SOURCE not in found:
        raise WirelagError(f"{address}: the route leads to no other host: name another address, or change the route")
    by = found.get(_GATEWAY) or found.get(_VIA, b"")[2:]
    (index,) = struct.unpack("=I", found[_INTERFACE])
    router = str(ipaddress.ip_address(by)) if by else address
    return NextHop(socket.if_indextoname(index), router, str(ipaddress.ip_address(found[_SOURCE])))
