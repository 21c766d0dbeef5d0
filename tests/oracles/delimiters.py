"""Delimiters in plain Python: where packets themselves cut the time, and which intervals of two points belong together.

The tests' oracle for markers and control packets. It follows only `docs/reference/crossing.md`, section "Delimiters".
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.oracles.join import DELIMITER, Packet, coin

CONTROL = 1 << 63


class Control(NamedTuple):
    """A control packet among the packets: it delimits and is not measured."""

    number: int

    @property
    def name(self) -> int:
        return CONTROL + self.number


@dataclass
class Piece:
    """The packets of a point between two cuts. The name is the id of the packet that opened it, if any did."""

    name: int | None
    packets: list[Packet] = field(default_factory=list)


@dataclass
class Paired:
    """The packets of both points between the same two cuts. None: the first piece has no opening, the last no end."""

    opened: int | None
    ended: int | None
    upstream: list[Packet] = field(default_factory=list)
    downstream: list[Packet] = field(default_factory=list)


# One point


def is_marker(packet_id: int, bits: int, seed: int) -> bool:
    return coin(packet_id, seed, DELIMITER) >> (64 - bits) == 0


def cutting_rows(packets: Sequence[Packet], length_ns: int, bits: int, seed: int) -> list[int]:
    """The rows of the markers that open an interval: no marker within half a length has a smaller coin."""
    markers: list[tuple[int, int, int]] = []  # row, time, coin
    latest_ns: int | None = None
    for row, (packet_id, time_ns) in enumerate(packets):
        if is_marker(packet_id, bits, seed):
            latest_ns = time_ns if latest_ns is None else max(latest_ns, time_ns)
            markers.append((row, latest_ns, coin(packet_id, seed, DELIMITER)))
    rows = []
    for place, (row, time_ns, mine) in enumerate(markers):
        near = [m for m in enumerate(markers) if abs(m[1][1] - time_ns) <= length_ns // 2 and m[0] != place]
        if all(mine < other if earlier < place else mine <= other for earlier, (_, _, other) in near):
            rows.append(row)
    return rows


def by_markers(packets: Sequence[Packet], length_ns: int, bits: int, seed: int) -> list[Piece]:
    """Pieces cut at markers. The first, possibly empty, has no name. A marker belongs to the piece that it opens."""
    cuts = cutting_rows(packets, length_ns, bits, seed)
    ends = [*cuts, len(packets)]
    named = [Piece(packets[row][0], list(packets[row:end])) for row, end in zip(cuts, ends[1:], strict=True)]
    return [Piece(None, list(packets[: ends[0]])), *named]


def by_control(arrivals: Iterable[Packet | Control]) -> list[Piece]:
    """Pieces cut at control packets. A packet with the number of one of the last 8 that cut is a copy."""
    pieces = [Piece(None)]
    for arrival in arrivals:
        if isinstance(arrival, Control):
            if arrival.name not in [piece.name for piece in pieces[-8:]]:
                pieces.append(Piece(arrival.name))
        else:
            pieces[-1].packets.append(arrival)
    return pieces


def lost_controls(arrivals: Iterable[Packet | Control]) -> int:
    """The count of numbers missing between the smallest and the largest."""
    came = {arrival.number for arrival in arrivals if isinstance(arrival, Control)}
    return max(came) - min(came) + 1 - len(came) if came else 0


# Two points


def common_cuts(upstream: Sequence[Piece], downstream: Sequence[Piece]) -> list[int]:
    """The names at which both points cut, as many as possible in the order of both.

    A name at which a point cut twice (a copy of the marker) is ambiguous: it is not a common cut. Of the longest
    sequences, the one that ends last upstream is taken, and so on backwards.
    """
    there, here = unique_places(upstream), unique_places(downstream)
    names = sorted(there.keys() & here.keys(), key=lambda name: there[name])
    lengths: list[int] = []
    for n, name in enumerate(names):
        lengths.append(1 + max((lengths[m] for m in range(n) if here[names[m]] < here[name]), default=0))
    result: list[int] = []
    length, before = max(lengths, default=0), len(names)
    while length:
        before = max(n for n in range(before) if lengths[n] == length)
        result.append(names[before])
        length -= 1
    return result[::-1]


def unique_places(pieces: Sequence[Piece]) -> dict[int, int]:
    times = Counter(piece.name for piece in pieces)
    return {piece.name: i for i, piece in enumerate(pieces) if piece.name is not None and times[piece.name] == 1}


def pair(upstream: Sequence[Piece], downstream: Sequence[Piece]) -> list[Paired]:
    """Merge everything that either point cut between two neighbouring common cuts into one interval."""
    cuts = common_cuts(upstream, downstream)
    sent, came = gather(upstream, cuts), gather(downstream, cuts)
    edges = [None, *cuts, None]
    return [Paired(*between) for between in zip(edges[:-1], edges[1:], sent, came, strict=True)]


def gather(pieces: Sequence[Piece], cuts: Sequence[int]) -> list[list[Packet]]:
    result: list[list[Packet]] = [[]]
    for piece in pieces:
        if piece.name in cuts:
            result.append([])
        result[-1] += piece.packets
    return result
