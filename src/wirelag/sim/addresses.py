"""Addresses of simulated hosts, from the ranges reserved for private use, documentation and benchmarks."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

import numpy as np

from wirelag.sim.traffic import Bools, Ints

if TYPE_CHECKING:
    import polars as pl

DOCUMENTATION_NETS: Final = np.array([0xC0000200, 0xC6336400, 0xCB007100])  # 192.0.2.0, 198.51.100.0, 203.0.113.0
BENCHMARK_NET: Final = 0xC6120000  # 198.18.0.0
CLIENT_NET: Final = 0x0A000000  # 10.0.0.0
IPV6_HIGH: Final = (0x20010DB8_00010000, 0x20010DB8_00020000)  # 2001:db8:1::, 2001:db8:2:: for clients, servers


def client_ipv4(client: Ints) -> Ints:
    """10.0.0.1 and up."""
    return CLIENT_NET + 1 + client


def server_ipv4(server: Ints) -> Ints:
    """The three documentation networks in turn, then 198.18.0.0/15."""
    documented = DOCUMENTATION_NETS[server % 3] + 1 + server // 3
    return np.where(server < 3 * 254, documented, BENCHMARK_NET + server)


def address_text(ipv4: Ints, side: int, host: Ints, ipv6: Bools) -> pl.Series:
    """Addresses as text; each distinct one is formatted once."""
    import polars as pl

    address = host * 2 + ipv6
    row = np.full(int(address.max(initial=0)) + 1, -1)
    row[address] = np.arange(len(address))
    known = np.flatnonzero(row >= 0)
    texts = [
        str(ipaddress.IPv6Address((IPV6_HIGH[side] << 64) + int(host[i]) + 1))
        if ipv6[i]
        else str(ipaddress.IPv4Address(int(ipv4[i])))
        for i in row[known]
    ]
    row[known] = np.arange(len(known))
    return pl.Series(texts, dtype=pl.String).gather(row[address])
