"""How frames reach a backend: by its own MAC address, or by that of the next hop towards the end of its tunnel.

Law: packets leave by the interface at which they came. A VLAN on it has the same MAC address, and counts as it.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from typing import TYPE_CHECKING, Final

from wirelag.ebpf.service import Way
from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.balance.settings import BackendSettings, Config

_MAC_OF: Final = 0x8927  # SIOCGIFHWADDR


def way_to(one: BackendSettings, config: Config, patience_s: float) -> Way:
    """The way to a backend, as far as this host knows it; a WirelagError says what is missing."""
    from wirelag.capture.neighbours import mac_of

    interface = config.interface
    assert interface is not None
    if one.via == "l2":
        return Way(one.mac or mac_of(one.address, _link_of(one.address, interface), patience_s))
    source = _source(one.address, config)
    if source and one.mac:
        return Way(one.mac, source)
    from wirelag.capture.next_hop import next_hop

    hop = next_hop(one.address)
    if one.mac:
        return Way(one.mac, source or hop.source)
    if not _is_on(hop.interface, interface):
        out = "packets leave where they came in: change the route, or set its mac"
        raise WirelagError(f"{one.address}: the route leaves by {hop.interface}, not by {interface}: {out}")
    return Way(mac_of(hop.address, hop.interface, patience_s), source or hop.source)


def _source(address: str, config: Config) -> str:
    """The source address of the settings for tunnels to this one."""
    version = ipaddress.ip_address(address).version
    return next((one for one in config.tunnel.sources if ipaddress.ip_address(one).version == version), "")


def _link_of(address: str, interface: str) -> str:
    """The interface whose neighbour a backend is: this one, or a VLAN on it."""
    from wirelag.capture.next_hop import next_hop

    try:
        found = next_hop(address).interface
    except WirelagError:  # the neighbour's table may know it all the same
        return interface
    return found if _is_on(found, interface) else interface


def _is_on(name: str, interface: str) -> bool:
    if name == interface:
        return True
    with socket.socket() as any_socket:
        try:
            macs = [fcntl.ioctl(any_socket, _MAC_OF, struct.pack("16s16x", n.encode())) for n in (name, interface)]
        except OSError:
            return False
    return macs[0][18:24] == macs[1][18:24]
