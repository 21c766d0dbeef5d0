"""Responses in several captures: each piece of them is heard by a meter of its own, on one machine and on many.

A piece is one capture, or captures that continue one another, begin at the same time and share connections, or share
some within `ALIVE_NS` (`pieces`). Who is a client is judged in each piece from its own packets: so the answer does not
depend on where pieces are heard, and a capture is not judged by what the first second of another one showed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Final

from wirelag.capture.files import Capture
from wirelag.capture.merging import in_order_of_time
from wirelag.capture.pcap import CaptureStatistics, can_be_read_again
from wirelag.capture.streams import is_remote
from wirelag.measure.looking import KeySample, look
from wirelag.measure.pieces import Piece, joined, pieces
from wirelag.measure.response_heard import ResponseSettings, hear_piece
from wirelag.measure.response_method import Heard, HeardInPieces

if TYPE_CHECKING:
    from wirelag.capture.source import Packets
    from wirelag.measure.points import Progress
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.frames import Frames
    from wirelag.packets.interval import Interval

ALIVE_NS: Final = 7200 * 10**9  # for so long a connection may be silent: then TCP asks whether the other end is there


def hear_pieces(
    packets: Packets, settings: ResponseSettings, frames: Frames | None, progress: Progress
) -> tuple[Interval, Heard]:
    """What meters hear in several captures, as one; packets that are no captures have one meter."""
    apart = InPieces.of(packets)
    if apart is None:
        return hear_piece(progress(packets), settings, frames)
    while True:
        total = HeardInPieces()
        for _, some in groupby(progress(apart), key=lambda _: apart.place):
            total.add(*hear_piece(some, settings, frames))
        if not apart.join():
            return total.together()


class InPieces:
    """Several captures, piece after piece; `place` is that of the piece which the last batch is of."""

    def __init__(self, capture: Capture, planned: list[Piece], paths: list[str]) -> None:
        self._capture, self._planned, self._paths = capture, planned, paths
        self._samples: list[KeySample] = []
        self.place = 0

    @classmethod
    def of(cls, packets: Packets) -> InPieces | None:
        """The captures of a source, looked at; None: there is no looking at it, and nothing to divide."""
        if not isinstance(packets, Capture) or not all(can_be_read_again(one.path) for one in packets.files):
            return None
        paths = [one.path if is_remote(one.path) else os.path.abspath(one.path) for one in packets.files]
        looks = [look(path, path, packets.files[0].tunnels, None) for path in paths]
        if any(one.problem for one in looks):
            return None  # reading says why
        return cls(packets, pieces(looks, 0, split=False), paths)

    def __iter__(self) -> Iterator[PacketBatch]:
        self._capture.ended = False
        self._samples = [KeySample() for _ in self._planned]
        for place, piece in enumerate(self._planned):
            for batch in self._of(piece):
                self._samples[place].add(batch)
                self.place = place
                yield batch
        self._capture.ended = True

    def _of(self, piece: Piece) -> Iterator[PacketBatch]:
        places = [self._paths.index(read.path) for read in piece.reads]
        files, first_ns = self._capture.files, self._capture.first_ns
        return in_order_of_time([files[i] for i in places], [first_ns[i] or 0 for i in places])

    def join(self) -> bool:
        """Make pieces that share connections one: whether there are some, so that packets are to be read again."""
        before = len(self._planned)
        if self._capture.ended:  # a part of the packets has no other answer
            self._planned = joined(self._planned, self._samples, ALIVE_NS)
        return len(self._planned) < before

    @property
    def statistics(self) -> CaptureStatistics:
        """Counts so far."""
        return self._capture.statistics

    @property
    def warnings(self) -> list[str]:
        """What could not be read, one line each."""
        return self._capture.warnings

    @property
    def names(self) -> list[str]:
        """What the captures are called."""
        return self._capture.names

    @property
    def progress(self) -> float | None:
        """The share of all captures that has been read."""
        return self._capture.progress
