"""The intervals of a segment that wait, and what neighbouring ones tell about each other. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from wirelag.packets.interval import Interval
from wirelag.protocol.delimited import Chain
from wirelag.protocol.loss import Loss, loss_of, unknown
from wirelag.protocol.messages import Message
from wirelag.protocol.pairing import Key, Pairing
from wirelag.protocol.results import Ends, Rank
from wirelag.protocol.shares import Held
from wirelag.synopses.crossing import Crossing
from wirelag.twopoint.spans import PATIENCE_NS, Span, settled

MOST_GONE: Final = 8192  # finished intervals of a segment that are remembered
MOST_REACH: Final = 16  # neighbours on each side, if intervals are short
SIDES: Final = ("upstream", "downstream")


@dataclass(slots=True)
class Place:
    """An interval of a segment, and its last result."""

    pairing: Pairing
    keys: list[str]
    held: Held = field(default_factory=Counter)  # bytes of each point in it
    rank: Rank | None = None
    known: frozenset[int] = frozenset()  # the places that the last result included


class Segment:
    """A segment's intervals, by the clock and between packets."""

    def __init__(self, ends: Ends, named_by: str | None = None) -> None:
        self.ends, self.named_by = ends, named_by
        self.heard_ns: int | None = None
        self.places: dict[int, Place] = {}  # by start time of the interval
        self.gone: dict[int, int] = {}  # finished places, and when they finished
        self.left_ns = -1  # start of the latest place that was dropped while its messages stay in the store
        self.chain = Chain()  # for intervals delimited by packets

    def is_first(self, message: Message, now_ns: int, kind: str, counted: Counter[str]) -> bool:
        """Whether a message that says all there is of an interval is the first one, and says it of all packets."""
        start_ns = message.interval.start_ns
        if all(record["class"] is not None for record in message.records):
            kind = "not comparable"
        elif start_ns in self.gone:
            kind = "duplicates"
        else:
            self.gone[start_ns] = now_ns
        counted[kind] += 1
        return kind not in ("not comparable", "duplicates")

    def forget_gone(self, before_ns: int) -> None:
        """Remember finished intervals since then only, and not too many."""
        kept = [(key, at_ns) for key, at_ns in self.gone.items() if at_ns > before_ns]
        self.gone = dict(kept[-MOST_GONE:])

    def starts_of(self, point: str) -> Iterator[int]:
        """The times of all intervals with messages of a point."""
        if point in self.ends.points:
            yield from (start_ns for start_ns, one in self.places.items() if point in one.held)
            yield from self.chain.sides[self.ends.points.index(point)].waiting

    def remove(self, place: Place) -> None:
        """Remove a place; unless it is finished, its messages stay in the store."""
        start_ns = place.pairing.interval.start_ns
        del self.places[start_ns]
        if start_ns not in self.gone:
            self.left_ns = max(self.left_ns, start_ns)

    def lacks_stored(self, interval: Interval, side: int, unread_ns: float) -> bool:
        """Whether an interval's other half is not here, and may be in the store, or a neighbour of it may."""
        place = self.places.get(interval.start_ns)
        if interval.length_ns <= 0 or (place is not None and place.pairing.said[1 - side] is not None):
            return False
        return interval.start_ns - reach(interval.length_ns) * interval.length_ns <= max(unread_ns, self.left_ns)

    def near(self, interval: Interval, first: int, last: int) -> dict[int, Place | None]:
        """The places around an interval, as many as packets may straddle."""
        start_ns, length_ns, places = interval.start_ns, interval.length_ns, self.places
        far_ns = reach(length_ns) * length_ns
        starts = range(start_ns + first * far_ns, start_ns + last * far_ns + 1, length_ns)
        return {start_ns: places.get(start_ns) for start_ns in starts}


def reach(length_ns: int) -> int:
    """How many intervals on each side packets may straddle."""
    return min(MOST_REACH, -(-PATIENCE_NS // length_ns))


def with_neighbours(place: Place, near: Iterable[Place]) -> Mapping[Key, Crossing]:
    """Pair packets that straddle the edges with the neighbours', which are not changed."""
    final = [one.pairing for one in near if one.pairing.crossings]
    keys = sorted({key for pairing in final for key in pairing.crossings}, key=str)
    spans = [
        Span(one.interval, {tag: one.crossings[key].copied() for tag, key in enumerate(keys) if key in one.crossings})
        for one in final
    ]
    mine = place.pairing.interval
    found = next((span for span in settled(spans, mine.length_ns, only=mine) if span.interval == mine), None)
    return {} if found is None else {keys[tag]: crossing for tag, crossing in found.crossings.items()}


def loss_in(
    pairing: Pairing, crossings: Mapping[Key, Crossing], key: Key, rank: Rank, around: list[Place | None]
) -> Loss:
    crossing = crossings[key]
    seen = [message.seen for message in pairing.said if message is not None]
    for side, one in zip(SIDES, seen, strict=True):
        if one.covered_ns < pairing.interval.length_ns:
            part = f"{one.covered_ns / 1e9:g} s of {pairing.interval.length_ns / 1e9:g} s"
            return unknown(crossing, f"the {side} point covered {part}")
    if rank == Rank.FIRST:
        return unknown(crossing, "packets in flight at its end are not known yet")
    if rank == Rank.ALONE:
        return unknown(crossing, "the next interval was not seen: packets in flight look like lost ones")
    if key in pairing.untimed:
        return unknown(crossing, "a point no longer has the times of packets that differ")
    if any(near is not None and near.pairing.interval > pairing.interval and _differs(near, key) for near in around):
        return unknown(crossing, "what differs in the next interval is not known: packets in flight look lost")
    moved = [
        max((abs(one.unseen - _unseen(near, side)) for near in around), default=0) for side, one in enumerate(seen)
    ]
    return loss_of(crossing, crossings[None], seen, moved)


def _differs(place: Place, key: Key) -> bool:
    """Whether packets differ in it, but it is unknown which."""
    crossing = place.pairing.crossings.get(key)
    return key in place.pairing.untimed or (crossing is not None and crossing.lost is None)


def _unseen(place: Place | None, side: int) -> int:
    message = None if place is None else place.pairing.said[side]
    return 0 if message is None else message.seen.unseen
