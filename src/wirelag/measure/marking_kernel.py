"""Blocks of marked packets at interfaces, counted inside the kernel: by LDA with one counter, cut where colours do."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

from wirelag.ebpf.lda import KernelLda, Piece
from wirelag.ebpf.source import POLL_MS, KernelSource
from wirelag.estimators.lda import Lda
from wirelag.packets.addresses import Direction
from wirelag.packets.intervals import Delimiters
from wirelag.packets.packet_id import PacketId
from wirelag.twopoint.marking import Block
from wirelag.twopoint.spans import ALL

COUNTER: Final = Lda(1, (0,), tail=1)


class KernelBlocks:
    """The blocks of one interface, in order: those that MarkingMeter finds."""

    def __init__(
        self, interface: str | None, colour: int, period_ns: int, way: Direction | None = None, tunnels: bool = False
    ) -> None:
        """Without an interface packets are replayed to it."""
        self.inside = KernelLda(
            COUNTER,
            interface,
            period_ns,
            packet_id=PacketId(prefix=0),
            tunnels=tunnels,
            delimiters=Delimiters(period_ns, 0, colour=colour),
            room=1,
        )
        self._segment = self.inside.open(way)
        self.blocks: list[Block] = []

    def read(self, now_ns: int) -> None:
        """Take the blocks to which no late packet can come any more."""
        for piece, _ in self._segment.pieces(now_ns):
            self._take(piece)

    def end(self) -> None:
        """Take the rest."""
        for piece, _ in self._segment.pieces():
            self._take(piece)
        self._take(self._segment.rest())

    def _take(self, piece: Piece) -> None:
        packets = piece.synopses[ALL].packets
        if not packets:
            return
        sum_ns = int(piece.synopses[ALL].buckets[1])
        since_ns = (sum_ns - packets * piece.first_ns) % (1 << 64)  # sums wrap, what is since the first packet does not
        since_ns -= (1 << 64) if since_ns >> 63 else 0  # a time that went back
        whole_ns = since_ns + packets * piece.first_ns
        self.blocks.append(Block(bool(piece.number & 1), packets, whole_ns, piece.first_ns, piece.latest_ns))


def count(
    interfaces: tuple[str, str],
    colour: int,
    period_ns: int,
    way: Direction | None,
    tunnels: bool,
    length_ns: int,
) -> list[KernelBlocks]:
    """Count at both interfaces for so long; what one counted before the other could does not count."""
    with ExitStack() as opened:
        points = []
        for interface in interfaces:
            points.append(KernelBlocks(interface, colour, period_ns, way, tunnels))
            opened.callback(points[-1].inside.close)
        began_ns, until_ns = time.time_ns(), time.monotonic_ns() + length_ns
        while time.monotonic_ns() < until_ns:
            time.sleep(POLL_MS / 1e3)
            for point in points:
                point.inside.hooks.check()
                point.read(KernelSource.now_ns())
        for point in points:
            point.end()
            point.blocks = [block for block in point.blocks if block.last_ns >= began_ns]
    return points
