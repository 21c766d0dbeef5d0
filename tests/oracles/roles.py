"""Who is the client, packet by packet, from docs/reference/roles.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "roles.md"
SERVICES = {int(word) for word in PAGE.read_text().split("```text\n")[1].split("```")[0].split()}

Endpoint = Hashable


@dataclass(frozen=True)
class Packet:
    """What roles depend on."""

    time_ns: int
    conversation: int
    backwards: bool  # the flag REVERSE
    src: Endpoint
    src_port: int
    dst: Endpoint
    dst_port: int
    payload: int
    tcp: bool
    asks: bool = False  # SYN, or an initiation
    grants: bool = False  # its response

    @property
    def ends(self) -> tuple[tuple[Endpoint, int], tuple[Endpoint, int]]:
        """Sender and receiver."""
        return (self.src, self.src_port), (self.dst, self.dst_port)


def rank(port: int) -> int:
    """The lower, the more likely a server's."""
    if port == 0:
        return 3
    if port < 1024:
        return 0
    if port in SERVICES:
        return 1
    return 2 if port < 32768 else 3


def by_client(src_port: int, dst_port: int) -> bool:
    """Whether the sender is the client, if nothing but ports is known."""
    of, to = rank(src_port), rank(dst_port)
    return of > to or (of == to and src_port >= dst_port)


@dataclass
class Roles:
    """What has been learned; without bounds of memory."""

    servers: set[tuple[Endpoint, int]] = field(default_factory=set)
    popular: set[tuple[Endpoint, int]] = field(default_factory=set)
    guesses: dict[int, bool] = field(default_factory=dict)  # whether the client's packets are backwards

    def study(self, packets: list[Packet]) -> None:
        """Look ahead."""
        peers = defaultdict(set)
        for packet in packets:
            self._learn(packet)
            if packet.tcp:
                of, to = packet.ends
                peers[of].add(to)
                peers[to].add(of)
        self.popular = {end for end, others in peers.items() if len(others) > 1}
        doubtful = defaultdict(list)
        for packet in packets:
            if self._told(packet) is None:
                doubtful[packet.conversation].append(packet)
        for conversation, its_packets in doubtful.items():
            self.guesses[conversation] = guess(its_packets)

    def from_client(self, packet: Packet) -> bool:
        """Whether a client sent it."""
        self._learn(packet)
        told = self._told(packet)
        if told is not None:
            return told
        return self.guesses.setdefault(packet.conversation, packet.backwards) == packet.backwards

    def _learn(self, packet: Packet) -> None:
        of, to = packet.ends
        if packet.asks:
            self.servers.add(to)
        if packet.grants:
            self.servers.add(of)

    def _told(self, packet: Packet) -> bool | None:
        of, to = packet.ends
        if (of in self.servers) != (to in self.servers):
            return to in self.servers
        low_of, low_to = packet.src_port in range(1, 1024), packet.dst_port in range(1, 1024)
        if low_of != low_to:
            return low_to
        if low_of and packet.src_port != packet.dst_port:
            return packet.dst_port < packet.src_port
        if (of in self.popular) != (to in self.popular):
            return to in self.popular
        if rank(packet.src_port) != rank(packet.dst_port):
            return rank(packet.dst_port) < rank(packet.src_port)
        return None


def guess(packets: list[Packet]) -> bool:
    """Whether the client's packets are backwards."""
    data = [packet for packet in packets if packet.payload > 1]
    speaks = (data or packets)[0].backwards
    if len({packet.backwards for packet in packets}) == 1:
        return speaks
    sent = [sum(packet.payload for packet in data if packet.backwards == way) for way in (False, True)]
    gaps: list[list[int]] = [[], []]
    for before, after in pairwise(data):
        if before.backwards != after.backwards:
            gaps[after.backwards].append(max(0, after.time_ns - before.time_ns) // 1000)
    spread = [0, 0]
    for way, times in enumerate(gaps):
        if times:
            median = sorted(times)[(len(times) - 1) // 2]
            spread[way] = max(times).bit_length() - median.bit_length()
    score = sent[1].bit_length() - sent[0].bit_length() + spread[0] - spread[1]
    return speaks if score == 0 else score < 0
