"""Segments whose other end only reflects test packets (STAMP, RFC 8762): what a session tells of an interval. No I/O.

Law: this point measures both directions alone. Delays are corrected by the middle of the bounds that two-way times set
to the clocks' offset, together with those that both clocks state; half of their distance is the clock's error. If what
the clocks state contradicts the times, the times count. Loss is told by direction where the reflector numbers its
replies; else only that of the round trip is known. A reply counts if it answers a request that waits, says when that
was sent, and is credible (two_way.py). An interval is settled a second after its end.
Memory: the requests of an interval and of that second, at most `MOST_REQUESTS` an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from wirelag.packets.interval import Interval
from wirelag.packets.stamp import stated_error_ns
from wirelag.packets.stamp_session import Reply
from wirelag.protocol.inside import ROUND_TRIP, message_of
from wirelag.protocol.loss import Loss
from wirelag.protocol.messages import STAMP, ClockReading, Message, Seen
from wirelag.protocol.pairing import Key
from wirelag.protocol.results import Rank, Result
from wirelag.protocol.terms import Terms
from wirelag.synopses.crossing import Crossing
from wirelag.twopoint.two_way import APART, Offset, Trip, offset_of

WAIT_NS: Final = 10**9  # for replies
MOST_REQUESTS: Final = 1 << 14  # of an interval
NUMBERS: Final = 1 << 32  # of packets, then they begin anew
ROUNDING_NS: Final = 2  # of NTP's timestamps
REPEATS: Final = "the reflector repeats sequence numbers: which way packets were lost is not known"
ANEW: Final = "the reflector began to count anew: which way packets were lost is not known"
SILENT: Final = "no reply came: which way packets were lost is not known"


@dataclass
class _Asked:
    """Requests of an interval, and replies to them."""

    first: int
    requests: int = 0
    trips: dict[int, Trip] = field(default_factory=dict)
    stated_ns: int | None = 0  # the largest error that the reflector states; None: its clock is not synchronised


class Session:
    """A session with one reflector: takes times, yields messages about the segments to it and from it."""

    def __init__(self, point: str, name: str, terms: Terms, began_ns: int, link: bool = True) -> None:
        """`link`: the reflector is the next router."""
        assert terms.interval_ns is not None
        self._point, self._terms, self._length_ns = point, terms, terms.interval_ns
        self._segments = tuple(f"{a}{'>' if link else '>>'}{b}" for a, b in ((point, name), (name, point)))
        self._began_ns = began_ns
        self._waiting: dict[int, tuple[int, int]] = {}  # by number: when it was sent, and in which interval
        self._asked: dict[int, _Asked] = {}  # by interval
        self._before = 0  # requests without a reply since the last one that has one, up to the last interval told
        self._gap = 0  # of that one
        self._numbered = False  # the reflector numbers its replies
        self._step = -1  # the last interval told
        self.offset: tuple[Offset, int] | None = None  # of the reflector's clock by two-way times alone, and when
        self.sent = self.strange = self.incredible = self.contradictions = 0

    def ask(self, now_ns: int) -> int:
        """A request is sent now; its number."""
        place = now_ns // self._length_ns
        if place <= self._step:  # the clock was set back
            self._step = place - 1
            self._asked.clear()
            self._waiting.clear()
        asked = self._asked.setdefault(place, _Asked(self.sent))
        asked.requests += 1
        self._waiting[self.sent] = now_ns, place
        self.sent += 1
        return (self.sent - 1) % NUMBERS

    def take(self, reply: Reply, came_ns: int) -> None:
        """A packet that has come."""
        number = self.sent - 1 - (self.sent - 1 - reply.request) % NUMBERS
        sent_ns, place = self._waiting.get(number, (None, 0))
        if sent_ns is None or abs(reply.sent_ns - sent_ns) > ROUNDING_NS:
            self.strange += 1
            return
        gap = (reply.request - reply.sequence) % NUMBERS
        gap -= NUMBERS if gap > NUMBERS // 2 else 0
        trip = Trip(number, gap, sent_ns, reply.received_ns, reply.replied_ns, came_ns)
        if not trip.credible:
            self.incredible += 1
            return
        del self._waiting[number]
        asked = self._asked[place]
        asked.trips[number] = trip
        stated_ns = stated_error_ns(reply.estimate)
        asked.stated_ns = None if stated_ns is None or asked.stated_ns is None else max(asked.stated_ns, stated_ns)

    def settled(self, now_ns: int, clock: ClockReading) -> list[Message]:
        """Messages about intervals whose time for replies is over."""
        found: list[Message] = []
        for place in sorted(self._asked):
            if now_ns < (place + 1) * self._length_ns + WAIT_NS:
                break
            asked = self._asked.pop(place)
            for number in range(asked.first, asked.first + asked.requests):
                self._waiting.pop(number, None)
            self._step = place
            found += self._messages(Interval(place * self._length_ns, (place + 1) * self._length_ns), asked, clock)
        return found

    def _messages(self, interval: Interval, asked: _Asked, clock: ClockReading) -> list[Message]:
        trips = [asked.trips[number] for number in sorted(asked.trips)]
        sent, answered = asked.requests, len(trips)
        forth, back = self._losses(asked, trips)
        arrived = answered if forth.lost is None else sent - round(forth.lost)
        offset, reason = self._offset(asked, trips, clock)
        there, here = Crossing(sent, arrived, reason=reason), Crossing(arrived, answered, reason=reason)
        whole = Crossing(sent, answered, reason=None if trips else SILENT)
        if trips:
            sent_ns, left_ns = (np.array([getattr(trip, name) for trip in trips]) for name in ("sent_ns", "replied_ns"))
            whole.add_delays(sent_ns, np.array([trip.round_ns for trip in trips]))
            if offset is not None:
                ahead_ns = offset.middle_ns
                there.add_delays(sent_ns, np.array([trip.forward_ns - ahead_ns for trip in trips]))
                here.add_delays(left_ns - ahead_ns, np.array([trip.backward_ns + ahead_ns for trip in trips]))
        covered_ns = interval.end_ns - max(interval.start_ns, min(self._began_ns, interval.end_ns))
        bound = ClockReading(False, 0, STAMP) if offset is None else ClockReading(True, offset.error_ns, STAMP)
        up, middle, down = (Seen(packets, 0, covered_ns) for packets in (sent, arrived, answered))
        crossings: dict[Key, Crossing] = {None: there, ROUND_TRIP: whole}
        losses: dict[Key, Loss] = {None: forth, ROUND_TRIP: _exactly(sent - answered)}
        to, back_from = self._segments
        results = (
            Result(to, interval, Rank.SETTLED, STAMP, crossings, losses, (up, middle), bound, True),
            Result(back_from, interval, Rank.SETTLED, STAMP, {None: here}, {None: back}, (middle, down), bound, True),
        )
        return [message_of(result, self._point, self._terms, interval.end_ns) for result in results]

    def _offset(self, asked: _Asked, trips: Sequence[Trip], clock: ClockReading) -> tuple[Offset | None, str | None]:
        """What the reflector's clock is ahead; or why that is unknown."""
        if not trips:
            return None, SILENT
        found = offset_of(trips)
        if not found.possible:
            return None, APART
        self.offset = found, trips[-1].came_ns
        if asked.stated_ns is not None and clock.synchronised:
            most_ns = asked.stated_ns + clock.error_ns
            both = found.within(Offset(-most_ns, most_ns))
            if both.possible:
                return both, None
            self.contradictions += 1
        return found, None

    def _losses(self, asked: _Asked, trips: Sequence[Trip]) -> tuple[Loss, Loss]:
        """Requests that did not arrive, and replies that did not."""
        unanswered, before = asked.requests - len(trips), self._before
        if not trips:
            self._before += asked.requests
            return _unknown(unanswered, SILENT), _unknown(unanswered, SILENT)
        last = trips[-1]
        after = asked.first + asked.requests - 1 - last.number
        grown, self._gap, self._before = last.gap - self._gap, last.gap, after
        self._numbered |= any(trip.gap for trip in trips)
        if not unanswered and not before:
            return _exactly(0), _exactly(0)
        if not self._numbered:
            return _unknown(unanswered, REPEATS), _unknown(unanswered, REPEATS)
        if not 0 <= grown <= unanswered - after + before:
            return _unknown(unanswered, ANEW), _unknown(unanswered, ANEW)
        low, high = max(0, grown - before), min(unanswered, grown + after)
        lost = min(max(grown, low), high)
        return (
            Loss(lost, low, high),
            Loss(unanswered - lost, unanswered - high, unanswered - low),
        )


def _exactly(lost: int) -> Loss:
    return Loss(lost, lost, lost)


def _unknown(most: int, why: str) -> Loss:
    return Loss(None, 0, most, why)
