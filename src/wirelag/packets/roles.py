"""Which packets travel from a client to its server.

An endpoint that receives a SYN (WireGuard: an initiation), or replies to one, is a server from then on. Otherwise
ports decide: well-known ports (below 1024) are servers', then registered ones (below 32768). If both ports are of the
same class, or there are none, both directions count as a client's (`Epochs.one_way` keeps the one heard first), and the
user can name the servers.
Memory: 8 bytes for each of at most 2^16 servers; further servers are recognised by their ports only.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.addresses import Direction, address_keys
from wirelag.packets.batch import Kind, PacketBatch, TcpFlag

Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

MOST_SERVERS: Final = 1 << 16
WELL_KNOWN, REGISTERED = 1024, 32768
_ENDPOINTS: Final = 12  # purpose of a coin that only hashes
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Server:
    """Addresses of servers, and their port; 0 means any."""

    net: ipaddress.IPv4Network | ipaddress.IPv6Network
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Server:
        """Read PREFIX or PREFIX:PORT; with a port, an IPv6 prefix stands in brackets.

        >>> Server.parse("10.0.0.0/8:443").port
        443
        """
        prefix, colon, port = text.rpartition(":")
        if not colon or (":" in prefix and not prefix.endswith("]")):
            prefix, port = text, "0"
        try:
            net = ipaddress.ip_network(prefix.strip("[]"), strict=False)
            number = int(port)
        except ValueError:
            raise ValueError(
                f"{text!r} is not a server: write 10.0.0.0/8, 192.0.2.1:443 or [2001:db8::/32]:443"
            ) from None
        if not 0 <= number <= 65535 or (colon and prefix != text and not number):
            raise ValueError(f"{text!r}: the port must be 1 to 65535")
        return cls(net, number)

    def __str__(self) -> str:
        """As `parse` reads it, without the length of a prefix that is one address."""
        text = str(self.net.network_address if self.net.num_addresses == 1 else self.net)
        if not self.port:
            return text
        return f"[{text}]:{self.port}" if self.net.version == 6 else f"{text}:{self.port}"

    def rows(self, packets: PacketBatch) -> Bools:
        """Mask of the packets to these servers."""
        to = Direction((), (self.net,)).rows(packets)
        return to & (packets.dst_port == np.uint16(self.port)) if self.port else to

    def rows_back(self, packets: PacketBatch) -> Bools:
        """Mask of the packets from these servers."""
        of = Direction((self.net,), ()).rows(packets)
        return of & (packets.src_port == np.uint16(self.port)) if self.port else of


class Roles:
    """Which end of a conversation is the client; learned from SYNs."""

    def __init__(self, servers: tuple[Server, ...] = ()) -> None:
        self._given = servers
        self._known: Words = np.empty(0, np.uint64)  # in rising order

    def of_servers(self, packets: PacketBatch) -> Bools:
        """Mask of the packets to or from the named servers."""
        ways = [way for server in self._given for way in (server.rows(packets), server.rows_back(packets))]
        return np.asarray(np.logical_or.reduce(ways))

    def from_client(self, packets: PacketBatch) -> Bools:
        """Mask of the packets from a client to its server; each row depends only on the rows before it."""
        if self._given:
            return np.asarray(np.logical_or.reduce([server.rows(packets) for server in self._given]))
        to = _endpoints(packets.dst, packets.dst_port)
        of = _endpoints(packets.src, packets.src_port)
        learned, since = self._learn(packets, to, of)
        rows = np.arange(len(packets))
        serves_to, serves_of = (self._serves(keys, rows, learned, since) for keys in (to, of))
        self._remember(learned)
        likely = _class(packets.dst_port) <= _class(packets.src_port)
        return np.asarray(np.where(serves_to != serves_of, serves_to, likely))

    def _learn(self, packets: PacketBatch, to: Words, of: Words) -> tuple[Words, npt.NDArray[np.intp]]:
        """Servers that SYNs of this batch name, in rising order, and the first row of each."""
        tcp, wireguard = (packets.kind == np.uint8(kind) for kind in (Kind.TCP, Kind.WIREGUARD))
        message = packets.message
        asks = (tcp & ((message & (TcpFlag.SYN | TcpFlag.ACK)) == TcpFlag.SYN)) | (wireguard & (message == 1))
        grants = (tcp & ((message & TcpFlag.SYN) != 0) & ~asks) | (wireguard & (message == 2))
        opening = np.flatnonzero(asks | grants)
        answers = grants[opening]
        keys, first = np.unique(np.where(answers, of[opening], to[opening]), return_index=True)
        return keys, opening[first]

    def _serves(self, keys: Words, rows: npt.NDArray[np.intp], learned: Words, since: npt.NDArray[np.intp]) -> Bools:
        serves = np.isin(keys, self._known)
        if len(learned):
            place = np.minimum(np.searchsorted(learned, keys), len(learned) - 1)
            serves |= (learned[place] == keys) & (since[place] <= rows)
        return serves

    def _remember(self, learned: Words) -> None:
        new = learned[~np.isin(learned, self._known)][: MOST_SERVERS - len(self._known)]
        if len(new):
            self._known = np.sort(np.concatenate([self._known, new]))


def _endpoints(addresses: Words, ports: npt.NDArray[np.uint16]) -> Words:
    return _kernels.coins(address_keys(addresses) + ports.astype(np.uint64) * _SPREAD, 0, _ENDPOINTS)


def _class(ports: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """Class of each port: the smaller, the more likely a server's; no port counts as unknown."""
    return np.where(ports > 0, (ports >= WELL_KNOWN).astype(np.uint8) + (ports >= REGISTERED), 2).astype(np.uint8)
