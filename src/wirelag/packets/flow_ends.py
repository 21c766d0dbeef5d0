"""The two ends of a flow, as values: loaded only where flows are written for other programs."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from wirelag.packets.address import to_address
from wirelag.packets.grouping import PING

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Ends(NamedTuple):
    """Who talks to whom: the key of the flow, its ends and its protocol."""

    key: int
    client: Address
    client_port: int
    server: Address
    server_port: int
    protocol: int


def ends_of(words: Sequence[int]) -> Ends:
    """The ends of a group by flow, from its row of `Grouping.words`."""
    client, server = to_address(*words[1:3]), to_address(*words[3:5])
    if words[5] & PING:
        return Ends(words[0], client, 0, server, 0, 1 if client.version == 4 else 58)
    ports, protocol = words[5] & 0xFFFFFFFF, words[5] >> 32
    return Ends(words[0], client, ports >> 16, server, ports & 0xFFFF, protocol)
