"""The kernel's network devices (man 7 rtnetlink), in the network namespace of this thread."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final

_ROUTE, _REQUEST, _DUMP = 0, 1, 0x300
_DONE, _ERROR = 3, 2
_GET_LINK: Final = 18
_LINK, _MASTER, _LINK_INFO, _KIND = 5, 10, 18, 1  # attributes of a device
_IFF_LOOPBACK: Final = 0x8
_ETHERNET: Final = 1  # a link layer
_STACKED: Final = {b"vlan", b"macvlan", b"macvtap", b"ipvlan", b"ipvtap", b"macsec"}  # each lies on one other device


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and content of each message."""
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        if not 16 <= length <= len(data):
            return
        yield kind, data[16:length]
        data = data[(length + 3) & ~3 :]


def attributes(data: bytes) -> dict[int, bytes]:
    """Values by number; the last one of each."""
    found = dict[int, bytes]()
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return found


def devices_above() -> list[int]:
    """The numbers of devices that see packets which another device also sees: stacked devices, and loopback.

    A bridge, a bond and a VRF lie on the devices that name them as master; a VLAN lies on its link.
    """
    above = set[int]()
    for index, _, flags, said in _devices():
        kind_of = attributes(said.get(_LINK_INFO, b"")).get(_KIND, b"").rstrip(b"\0")
        if flags & _IFF_LOOPBACK or (kind_of in _STACKED and _LINK in said):
            above.add(index)
        if len(said.get(_MASTER, b"")) == 4:
            above.add(struct.unpack("=I", said[_MASTER])[0])
    return sorted(above)


def ethernet_ports() -> frozenset[int]:
    """The numbers of Ethernet devices that lie on no other, those that `any` listens at."""
    return frozenset(index for index, kind, _, _ in _devices() if kind == _ETHERNET) - frozenset(devices_above())


def _devices() -> Iterator[tuple[int, int, int, dict[int, bytes]]]:
    """Number, link layer, flags and attributes of every device."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _ROUTE) as netlink:
        netlink.send(struct.pack("=IHHII16x", 32, _GET_LINK, _REQUEST | _DUMP, 1, 0))
        while True:
            for kind, body in messages(netlink.recv(1 << 18)):
                if kind in (_DONE, _ERROR):
                    return
                link, index, flags = struct.unpack_from("=2xHiI", body)
                yield index, link, flags, attributes(body[16:])
