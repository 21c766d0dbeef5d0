"""What packets show about their conversations, packet by packet: the plain twin of kernels/survey.h."""

from __future__ import annotations

from collections import Counter

from tests.oracles.roles import rank
from wirelag.packets.batch import Flag, Kind, PacketBatch, TcpFlag


class Survey:
    """Counts by kind and flag, and the facts of each conversation."""

    def __init__(self, most: int) -> None:
        self.most, self.level = most, 0
        self.kinds: Counter[Kind] = Counter()
        self.flags: Counter[Flag] = Counter()
        self.conversations: dict[int, set[str]] = {}

    def observe(self, packets: PacketBatch) -> None:
        """Add packets."""
        for row in range(len(packets)):
            flags, kind = Flag(int(packets.flags[row])), Kind(int(packets.kind[row]))
            self.kinds[kind] += 1
            self.flags.update(flag for flag in Flag if flag in flags)
            if Flag.LATER not in flags:
                self._show(int(packets.flow_key[row]), self._facts(packets, row, flags, kind))

    def _facts(self, packets: PacketBatch, row: int, flags: Flag, kind: Kind) -> set[str]:
        facts = {"backward" if Flag.REVERSE in flags else "forward"}
        ports = [int(packets.src_port[row]), int(packets.dst_port[row])]
        sender, receiver = ((rank(port), port) for port in ports)
        if sender != receiver:
            facts.add("to server" if sender > receiver else "to client")
        if kind == Kind.TCP:
            facts.add("tcp")
            match int(packets.message[row]) & (TcpFlag.SYN | TcpFlag.ACK):
                case TcpFlag.SYN:
                    facts.add("syn")
                case 18:
                    facts.add("syn/ack")
        if kind in (Kind.DNS, Kind.NTP, Kind.ICMP, Kind.QUIC):
            facts.add("timed")
        return facts

    def _show(self, key: int, facts: set[str]) -> None:
        self.conversations.setdefault(key, set()).update(facts)
        while True:
            if self.level:
                edge = 2**64 // 2**self.level - 1
                self.conversations = {key: facts for key, facts in self.conversations.items() if key < edge}
            if len(self.conversations) <= self.most:
                return
            self.level += 1
