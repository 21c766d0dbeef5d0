"""Which packets travel from a client to its server; docs/reference/roles.md is the law.

A SYN (WireGuard: an initiation) decides, then ports and the peers of an endpoint, then who speaks first and how
(`role_evidence`): that is a guess, and counted. `Roles.study` looks at the packets of the first second before any of
them is judged; the result does not depend on batches.
Memory: 2 MB for at most 2^16 servers that SYNs named, as much for 2^16 with several peers, and 9 bytes for each of 2^16
conversations that are a guess; further ones are judged by their ports alone.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.addresses import Direction, words_of
from wirelag.packets.batch import Flag, Kind, PacketBatch
from wirelag.packets.distinct import distinct
from wirelag.packets.role_evidence import endpoint_keys, popular_endpoints, ways_of_clients

Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

LOOK_AHEAD: Final = 1 << 16  # packets at the beginning of the input that are studied, at most,
LOOK_AHEAD_NS: Final = 10**9  # and for how long
MOST_SERVERS: Final = 1 << 16
MOST_GUESSES: Final = 1 << 16
TIMED: Final = (Kind.TCP, Kind.UDP, Kind.QUIC, Kind.ESP, Kind.WIREGUARD)  # what `response` measures
_RANKS: Final = np.frombuffer(_kernels.PORT_RANKS, np.uint8)


class Server(NamedTuple):
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
    """Which end of a conversation is the client."""

    def __init__(self, servers: tuple[Server, ...] = ()) -> None:
        self._given = servers
        self._kernel = _kernels.Roles(MOST_SERVERS)  # knows endpoints that SYNs name, and those with several peers
        self.guessed = 0  # conversations that can be timed, of which it is a guess who the client is
        self._guessed: Words = np.empty(0, np.uint64)  # conversations, in rising order,
        self._backwards: Bools = np.empty(0, np.bool_)  # and whether the client's packets have the flag REVERSE

    def is_guess(self, packets: PacketBatch) -> bool:
        """Whether it is a guess who the client is in the conversation of the first of these packets."""
        return bool(_among(packets.flow_key[:1], self._guessed)[0])

    def of_servers(self, packets: PacketBatch) -> Bools:
        """Mask of the packets to or from the named servers."""
        ways = [way for server in self._given for way in (server.rows(packets), server.rows_back(packets))]
        return np.asarray(np.logical_or.reduce(ways))

    def study(self, packets: PacketBatch) -> None:
        """Learn from the first packets of the input (`ahead`) before any is judged."""
        if self._given or not len(packets):
            return
        packets = packets[np.flatnonzero(~packets.has(Flag.LATER))]
        self._judge(packets, np.empty(0, np.uint8))
        to, of = endpoint_keys(packets)
        tcp = packets.of_kind(Kind.TCP)
        self._kernel.add_popular(popular_endpoints(to[tcp], of[tcp]))
        roles = self._judge(packets, np.empty(len(packets), np.uint8))
        self._guess(*ways_of_clients(packets, np.flatnonzero(roles == _kernels.NOT_TOLD)))

    def from_client(self, packets: PacketBatch) -> Bools:
        """Mask of the packets from a client to its server; a row depends on what was studied and on rows before."""
        if self._given:
            return np.asarray(np.logical_or.reduce([server.rows(packets) for server in self._given]))
        roles = self._judge(packets, np.empty(len(packets), np.uint8))
        doubtful = np.flatnonzero(roles == _kernels.NOT_TOLD)
        if len(doubtful):
            roles[doubtful] = self._by_guess(packets[doubtful])
        return roles.view(np.bool_)

    def _judge(self, packets: PacketBatch, roles: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        source, destination = words_of(packets)
        of, to = np.ascontiguousarray(packets.src_port), np.ascontiguousarray(packets.dst_port)
        kind, message = np.ascontiguousarray(packets.kind), np.ascontiguousarray(packets.message)
        self._kernel.judge(source, destination, of, to, kind, message, roles)
        return roles

    def _by_guess(self, packets: PacketBatch) -> Bools:
        """Mask of a client's packets where nothing else tells: as guessed before; else the first to speak is one."""
        keys, backwards = packets.flow_key, packets.has(Flag.REVERSE)
        whole = ~packets.has(Flag.LATER)
        flows, first, _ = distinct(keys[whole])
        new = ~_among(flows, self._guessed)
        if new.any():
            at = np.flatnonzero(whole)[np.sort(first[new])]  # by time: batches do not matter when memory is full
            self._guess(keys[at], backwards[at], packets.kind[at])
        by_ports = by_client(packets.src_port, packets.dst_port)
        if not len(self._guessed):
            return by_ports
        place = np.minimum(np.searchsorted(self._guessed, keys), len(self._guessed) - 1)
        by_guess = self._backwards[place] == backwards
        return np.where(self._guessed[place] == keys, by_guess, by_ports)

    def _guess(self, keys: Words, backwards: Bools, kinds: npt.NDArray[np.uint8]) -> None:
        room = max(0, MOST_GUESSES - len(self._guessed))
        self.guessed += int(np.count_nonzero(np.isin(kinds[:room], TIMED)))
        both = np.concatenate([self._guessed, keys[:room]])
        order = np.argsort(both)
        self._guessed, self._backwards = both[order], np.concatenate([self._backwards, backwards[:room]])[order]


def ahead(packets: PacketBatch, begin_ns: int, before: int = 0) -> int:
    """How many of these packets are to be studied, if the input began then and `before` packets came before them."""
    late = np.flatnonzero(packets.time_ns - np.int64(begin_ns) >= LOOK_AHEAD_NS)
    return min(LOOK_AHEAD - before, int(late[0]) if len(late) else len(packets))


def by_client(src_port: npt.NDArray[np.uint16], dst_port: npt.NDArray[np.uint16]) -> Bools:
    """Mask of the rows from a client, if nothing but ports is known, as `wl_by_client` in kernels/ports.h."""
    of, to = _RANKS[src_port], _RANKS[dst_port]
    return np.where(of == to, src_port >= dst_port, of > to)


def _among(keys: Words, known: Words) -> Bools:
    """Which of the keys are known; these are in rising order."""
    if not len(known):
        return np.zeros(len(keys), np.bool_)
    return np.asarray(known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys)
