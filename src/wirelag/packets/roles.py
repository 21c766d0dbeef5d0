"""Which packets travel from a client to its server; docs/reference/roles.md is the law.

A SYN (WireGuard: an initiation) decides, then ports and the peers of an endpoint, then who speaks first and how
(`role_evidence`): that is a guess, and counted. `Roles.study` looks at the packets of the first second before any of
them is judged; the result does not depend on batches.
Memory: 8 bytes for each of at most 2^16 servers that SYNs named, 2^16 with several peers, and 9 for each of 2^16
conversations that are a guess; further ones are judged by their ports alone.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.addresses import Direction
from wirelag.packets.batch import Flag, Kind, PacketBatch, TcpFlag
from wirelag.packets.distinct import distinct
from wirelag.packets.role_evidence import endpoint_keys, popular_endpoints, ways_of_clients

Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Judged = npt.NDArray[np.int8]

LOOK_AHEAD: Final = 1 << 16  # packets at the beginning of the input that are studied, at most,
LOOK_AHEAD_NS: Final = 10**9  # and for how long
MOST_SERVERS: Final = 1 << 16
MOST_GUESSES: Final = 1 << 16
TIMED: Final = (Kind.TCP, Kind.UDP, Kind.QUIC, Kind.ESP, Kind.WIREGUARD)  # what `response` measures
_RANKS: Final = np.frombuffer(_kernels.PORT_RANKS, np.uint8)


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
    """Which end of a conversation is the client."""

    def __init__(self, servers: tuple[Server, ...] = ()) -> None:
        self._given = servers
        self._known: Words = np.empty(0, np.uint64)  # endpoints that SYNs name, in rising order
        self._popular: Words = np.empty(0, np.uint64)  # endpoints with several peers, in rising order
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
        to, of = endpoint_keys(packets)
        self._remember(self._learn(packets, to, of)[0])
        tcp = packets.of_kind(Kind.TCP)
        self._popular = popular_endpoints(to[tcp], of[tcp])[:MOST_SERVERS]
        open_to_doubt = np.flatnonzero(self._judged(packets, to, of, self._known_among(to), self._known_among(of)) < 0)
        self._guess(*ways_of_clients(packets, open_to_doubt))

    def from_client(self, packets: PacketBatch) -> Bools:
        """Mask of the packets from a client to its server; a row depends on what was studied and on rows before."""
        if self._given:
            return np.asarray(np.logical_or.reduce([server.rows(packets) for server in self._given]))
        to, of = endpoint_keys(packets)
        learned, since = self._learn(packets, to, of)
        rows = np.arange(len(packets))
        serves_to, serves_of = (self._serves(keys, rows, learned, since) for keys in (to, of))
        self._remember(learned)
        judged = self._judged(packets, to, of, serves_to, serves_of)
        doubtful = np.flatnonzero(judged < 0)
        if len(doubtful):
            judged[doubtful] = self._by_guess(packets[doubtful])
        return judged > 0

    def _judged(self, packets: PacketBatch, to: Words, of: Words, serves_to: Bools, serves_of: Bools) -> Judged:
        """For each row 1: from a client; 0: from a server; -1: neither SYNs nor ports nor peers tell."""
        rank_to, rank_of = _RANKS[packets.dst_port], _RANKS[packets.src_port]
        judged = np.where(rank_to < rank_of, 1, np.where(rank_to > rank_of, 0, -1)).astype(np.int8)
        well_known = np.flatnonzero((rank_to == 0) & (rank_of == 0) & (packets.dst_port != packets.src_port))
        judged[well_known] = (packets.dst_port < packets.src_port)[well_known]
        if len(self._popular):
            alike = np.flatnonzero((rank_to == 0) == (rank_of == 0))
            peers_to, peers_of = (_among(keys[alike], self._popular) for keys in (to, of))
            several = alike[peers_to != peers_of]
            judged[several] = peers_to[peers_to != peers_of]
        named = serves_to != serves_of
        judged[named] = serves_to[named]
        return judged

    def _by_guess(self, packets: PacketBatch) -> Judged:
        """The same for rows that nothing else tells: as was guessed before; else the first to speak is the client."""
        keys, backwards = packets.flow_key, packets.has(Flag.REVERSE)
        whole = ~packets.has(Flag.LATER)
        flows, first, _ = distinct(keys[whole])
        new = ~_among(flows, self._guessed)
        if new.any():
            at = np.flatnonzero(whole)[np.sort(first[new])]  # by time: batches do not matter when memory is full
            self._guess(keys[at], backwards[at], packets.kind[at])
        by_ports = by_client(packets.src_port, packets.dst_port)
        if not len(self._guessed):
            return by_ports.astype(np.int8)
        place = np.minimum(np.searchsorted(self._guessed, keys), len(self._guessed) - 1)
        by_guess = self._backwards[place] == backwards
        return np.where(self._guessed[place] == keys, by_guess, by_ports).astype(np.int8)

    def _guess(self, keys: Words, backwards: Bools, kinds: npt.NDArray[np.uint8]) -> None:
        room = max(0, MOST_GUESSES - len(self._guessed))
        self.guessed += int(np.count_nonzero(np.isin(kinds[:room], TIMED)))
        both = np.concatenate([self._guessed, keys[:room]])
        order = np.argsort(both)
        self._guessed, self._backwards = both[order], np.concatenate([self._backwards, backwards[:room]])[order]

    def _learn(self, packets: PacketBatch, to: Words, of: Words) -> tuple[Words, npt.NDArray[np.intp]]:
        """Servers that SYNs of this batch name, in rising order, and the first row of each."""
        tcp, wireguard = (packets.kind == np.uint8(kind) for kind in (Kind.TCP, Kind.WIREGUARD))
        message = packets.message
        asks = (tcp & ((message & (TcpFlag.SYN | TcpFlag.ACK)) == TcpFlag.SYN)) | (wireguard & (message == 1))
        grants = (tcp & ((message & TcpFlag.SYN) != 0) & ~asks) | (wireguard & (message == 2))
        opening = np.flatnonzero(asks | grants)
        answers = grants[opening]
        found = distinct(np.where(answers, of[opening], to[opening]))
        return found.rows, opening[found.first]

    def _serves(self, keys: Words, rows: npt.NDArray[np.intp], learned: Words, since: npt.NDArray[np.intp]) -> Bools:
        serves = self._known_among(keys)
        if len(learned):
            place = np.minimum(np.searchsorted(learned, keys), len(learned) - 1)
            serves |= (learned[place] == keys) & (since[place] <= rows)
        return serves

    def _known_among(self, keys: Words) -> Bools:
        return _among(keys, self._known)

    def _remember(self, learned: Words) -> None:
        new = learned[~_among(learned, self._known)][: MOST_SERVERS - len(self._known)]
        if len(new):
            self._known = np.sort(np.concatenate([self._known, new]))


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
