"""How the collector turns messages into results: the same interval at both ends of a segment, and rounds. No I/O.

Laws. Results depend only on the messages that arrived, not on their order or repetition: of two with the same key the
first counts, and a result is given again when a neighbour arrives that it should include. An agent's messages change
only results of segments of which it is an end. A point that sends nothing has seen nothing: that is not loss (loss.py).
Clocks with errors below a and b give delays with errors below a + b, the same for a whole interval. Waiting goes by a
clock that is never set (`now_ns`); no time of a message is compared with it.

A packet counts in the interval in which it was sent, even if it arrived in the next one. So an interval has a first
result when both points have sent and replied, or a reply is late, and is settled when the next interval is known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from wirelag.protocol.delimited import Chain, is_idle, result_of
from wirelag.protocol.inside import is_inside
from wirelag.protocol.inside import result_of as said_of_inside
from wirelag.protocol.messages import STAMP, Message
from wirelag.protocol.pairing import Key, Pairing
from wirelag.protocol.places import SIDES, Place, Segment, loss_in, with_neighbours
from wirelag.protocol.refusals import refusal, refusal_of
from wirelag.protocol.results import Ask, Done, Ends, Outcome, Rank, Result, compared, named_ends, together
from wirelag.protocol.shares import Shares, crossing_bytes, message_bytes
from wirelag.protocol.single_ended import result_of as said_alone
from wirelag.synopses.crossing import Crossing

SECOND_NS: Final = 10**9
LINGER_NS: Final = 60 * SECOND_NS  # how long incomplete intervals stay
SOON_NS: Final = 3 * SECOND_NS  # then a silent point is missing
PROMPT_NS: Final = SECOND_NS  # for a reply; then there is a result without it
ANSWER_NS: Final = 45 * SECOND_NS  # for a reply, even if cut off for half a minute
MOST_BYTES: Final = 256 << 20
MOST_SEGMENTS: Final = 4096
MOST_NAMED: Final = 512  # segments that one point may name: those of others are theirs,
MOST_CLASSES: Final = 8192  # and classes of all these segments
LEAST_CLASSES: Final = 16  # of each
IDLE_NS: Final = 3600 * SECOND_NS  # after that, a segment named by agents is dropped if no message is about it


class Rounds:
    """Takes messages and time; returns results, asks, and keys of messages no longer needed.

    Memory: intervals that wait for their other half or for their neighbours, at most `most_bytes`. Beyond that the
    oldest of the point that holds most is dropped; it can be read again when its other half comes.
    """

    def __init__(
        self,
        ends: Iterable[Ends],
        *,
        named_by_agents: bool = False,
        linger_ns: int = LINGER_NS,
        answer_ns: int = ANSWER_NS,
        most_bytes: int = MOST_BYTES,
        most_named: int = MOST_NAMED,
        most_classes: int = MOST_CLASSES,
    ) -> None:
        self._named, self._shares = named_by_agents, Shares(most_bytes)
        self._linger_ns, self._answer_ns = linger_ns, answer_ns
        self._most_named, self._most_classes = most_named, most_classes
        self._segments = {one.segment: Segment(one) for one in ends}
        self._needed: Counter[str] = Counter()  # by key: the number of places that hold the message
        self._names: Counter[str] = Counter()  # number of segments named by each point
        self.counted: Counter[str] = Counter()  # messages, by outcome
        self.unread_ns: float = math.inf  # messages about intervals that begin up to then may wait in the store

    @property
    def segments(self) -> list[Ends]:
        """All known segments."""
        return [segment.ends for segment in list(self._segments.values())]  # called from other threads

    def measure(self, ends: Iterable[Ends], *, named_by_agents: bool) -> list[str]:
        """Measure these segments from now on, and those that agents name, if they may; returns the names of others.

        What waits for these is given up.
        """
        wanted, self._named = {one.segment: one for one in ends}, named_by_agents
        gone = [
            segment
            for name, segment in self._segments.items()
            if segment.ends != wanted.get(name, None if segment.named_by is None else segment.ends)
            or (name not in wanted and not named_by_agents)
        ]
        self.give_up(segment.ends.segment for segment in gone)
        for segment in gone:
            self._segments.pop(segment.ends.segment, None)
        for name, one in wanted.items():
            known = self._segments.setdefault(name, Segment(one))
            if known.named_by is not None:
                self._names[known.named_by] -= 1
                known.named_by = None
        return [segment.ends.segment for segment in gone if segment.ends.segment not in wanted]

    def give_up(self, names: Iterable[str]) -> None:
        """Forget all that waits for these segments, and those that only agents have named."""
        for segment in [self._segments[name] for name in names if name in self._segments]:
            for place in list(segment.places.values()):
                self._forget(segment, place)
            self.unread_ns = max(self.unread_ns, segment.left_ns)
            self._used(segment.chain, [cut for side in segment.chain.sides for cut in side.waiting.values()])
            if segment.named_by is None:
                self._segments[segment.ends.segment] = Segment(segment.ends)
            else:
                self._unname(segment)

    def allow(self, most_bytes: int, most_named: int, most_classes: int) -> None:
        """Change the limits; what is beyond them goes with the next messages."""
        self._shares.most_bytes, self._most_named, self._most_classes = most_bytes, most_named, most_classes

    def forget(self, point: str) -> list[str]:
        """Forget segments that agents have named and of which a point is an end; returns their names.

        Those whose messages wait are forgotten once they are idle.
        """
        named = [one for one in self._segments.values() if one.named_by is not None and point in one.ends.points]
        for segment in named:
            if not segment.places:
                self._unname(segment)
        return [segment.ends.segment for segment in named]

    def end_of(self, name: str, point: str) -> str | None:
        """Which end of a segment a point is, or would be; None if it is none, or the segment is not measured."""
        known = self._segments.get(name)
        if known is None and not self._named:
            return None
        ends = tuple(name.replace(">>", ">").partition(">")[::2]) if known is None else known.ends.points
        return None if point not in ends or ends[0] == ends[1] else ("upstream", "downstream")[ends.index(point)]

    def classes_of(self, segment: str) -> int:
        """How many classes of a segment are kept: those of all segments that one point has named share a limit."""
        known = self._segments.get(segment)
        if known is None or known.named_by is None:
            return self._most_classes
        return max(LEAST_CLASSES, self._most_classes // max(1, self._names[known.named_by]))

    @property
    def bytes(self) -> int:
        """The memory of what waits."""
        return self._shares.bytes

    def has(self, key: str) -> bool:
        """Whether a message is in use."""
        return key in self._needed

    def awaits(self, message: Message) -> bool:
        """Whether it is a reply that is awaited."""
        if message.type != "times":
            return False
        places = ((segment.places.get(message.interval.start_ns), side) for segment, side in self._about(message))
        return any(place is not None and side in place.pairing.awaited for place, side in places)

    def about(self, message: Message) -> list[str]:
        """The segments that a message is about."""
        return [segment.ends.segment for segment, _ in self._about(message)]

    def partners(self, message: Message) -> set[str]:
        """The points at the other ends of a message's segments."""
        return {segment.ends.points[1 - side] for segment, side in self._about(message)}

    def has_partner(self, message: Message) -> bool:
        """Whether cuts of the other end wait: a cut of this one may complete a pair."""
        return any(segment.chain.sides[1 - side].waiting for segment, side in self._about(message))

    def lacks_stored(self, message: Message) -> bool:
        """Whether the other half of an interval is not in memory, but may be stored."""
        return any(one.lacks_stored(message.interval, side, self.unread_ns) for one, side in self._about(message))

    def take(self, message: Message, now_ns: int) -> list[Outcome]:
        """Process a message."""
        if message.type == "status":
            return [Done((message.key,))]
        refused, about = refusal(message), list[tuple[Segment, int]]()
        if refused is None:
            about = self._about(message)
            refused = refusal_of(message, len(about))
        if refused:
            self.counted[refused] += 1
            return [Done((message.key,))]
        found: list[Outcome] = []
        take = {"synopsis": self._synopsis, "crossing": self._crossing}.get(message.type, self._times)
        for segment, side in about:
            segment.heard_ns = now_ns
            found += take(segment, side, message, now_ns)
        if message.key not in self._needed:
            found.append(Done((message.key,)))
        return found + self._let_go(now_ns)

    def pass_time(self, now_ns: int) -> list[Outcome]:
        """Let time pass: stop waiting where it is too late."""
        found: list[Outcome] = []
        for segment in list(self._segments.values()):
            self._let_idle_go(segment, now_ns)
            segment.forget_gone(now_ns - 2 * self._linger_ns)
            self._used(segment.chain, segment.chain.old(now_ns - self._linger_ns))  # they stay in the store
            for start_ns in sorted(segment.places):
                place = segment.places.get(start_ns)
                try:
                    found += [] if place is None else self._age(segment, place, now_ns)
                except Exception:  # lose one place rather than the collector
                    self.counted["given up"] += 1
                    if start_ns in segment.places:
                        self._forget(segment, segment.places[start_ns])
        return found

    # ---- messages ----

    def _about(self, message: Message) -> list[tuple[Segment, int]]:
        """The segments that it is about, and which end its point is."""
        name = message.segment
        point, alone = message.point, message.type == "crossing"
        inside = alone and message.clock.source != STAMP
        if name is not None and name not in self._segments and self._named and is_inside(name, point) == inside:
            self._name(name, point)
        if name is None:
            segments = [] if alone else list(self._segments.values())
        else:
            segments = [self._segments[name]] if name in self._segments else []
        with_points = ((segment, segment.ends.points) for segment in segments)
        return [
            (segment, points.index(point))
            for segment, points in with_points
            if point in points and (points[0] == points[1]) == inside
        ]

    def _name(self, name: str, point: str) -> None:
        ends = Ends(name, point, point) if is_inside(name, point) else named_ends(name)
        if ends is None or point not in ends.points:
            return
        if len(self._segments) >= MOST_SEGMENTS or self._names[point] >= self._most_named:
            self.counted["segments beyond the limit"] += 1
            return
        self._segments[name] = Segment(ends, point)
        self._names[point] += 1

    def _let_idle_go(self, segment: Segment, now_ns: int) -> None:
        if segment.named_by is None or segment.places:
            return
        if segment.heard_ns is None:
            segment.heard_ns = now_ns
        elif now_ns - segment.heard_ns >= IDLE_NS:
            self._unname(segment)

    def _unname(self, segment: Segment) -> None:
        del self._segments[segment.ends.segment]
        self.unread_ns = max(self.unread_ns, segment.left_ns)
        if segment.named_by is not None:
            self._names[segment.named_by] -= 1
            self._names += Counter()  # forget points that have named none

    def _synopsis(self, segment: Segment, side: int, message: Message, now_ns: int) -> list[Outcome]:
        if message.terms.estimator.can.one_sided:
            return self._said_alone(segment, side, message, now_ns)
        if message.terms.delimiters is not None:
            return self._delimited(segment, side, message, now_ns)
        start_ns = message.interval.start_ns
        if (place := segment.places.get(start_ns)) is None:
            place = segment.places[start_ns] = Place(Pairing(message.interval, now_ns), [])
        pairing = place.pairing
        if pairing.said[side] is not None:
            self.counted["duplicates"] += 1
            return []
        self.counted["synopses"] += 1
        pairing.said[side], pairing.touched_ns = message, now_ns
        self._need(place, message)
        if not pairing.both:
            return []
        pairing.open()
        if pairing.reason is None:
            return self._converse(segment, place, now_ns)
        self.counted["not comparable"] += 1
        return self._finish(segment, place, now_ns)

    def _said_alone(self, segment: Segment, side: int, message: Message, now_ns: int) -> list[Outcome]:
        """One-sided: downstream says all there is; upstream speaks by its references."""
        if SIDES[side] == "upstream" or not segment.is_first(message, now_ns, "synopses", self.counted):
            return []
        return [said_alone(segment.ends, message)]

    def _crossing(self, segment: Segment, side: int, message: Message, now_ns: int) -> list[Outcome]:
        """Inside a router, or to a reflector: one point settles both ends itself."""
        return [said_of_inside(message)] if segment.is_first(message, now_ns, "crossings", self.counted) else []

    def _delimited(self, segment: Segment, side: int, message: Message, now_ns: int) -> list[Outcome]:
        pairs = segment.chain.take(side, message, now_ns)
        if pairs is None:
            self.counted["duplicates"] += 1
            return []
        self.counted["synopses"] += 1
        self._needed[message.key] += 1
        self._shares.take(segment.chain.held.setdefault(message.key, Counter()), message.point, message_bytes(message))
        found: list[Outcome] = []
        for sides in pairs:
            found.append(result_of(segment.ends.segment, sides))
            found += self._used(segment.chain, (cut for cuts in sides for cut in cuts))
        return found

    def _used(self, chain: Chain, messages: Iterable[Message]) -> list[Outcome]:
        """Release these messages from a segment."""
        done = []
        for message in messages:
            key = message.key
            self._shares.release(chain.held.pop(key, Counter()))
            self._needed[key] -= 1
            if self._needed[key] <= 0:
                del self._needed[key]
                done.append(key)
        return [Done(tuple(done))] if done else []

    def _times(self, segment: Segment, side: int, message: Message, now_ns: int) -> list[Outcome]:
        place = segment.places.get(message.interval.start_ns)
        if place is not None and message.key in place.keys:  # it must not pass for the reply to the next question
            self.counted["duplicates"] += 1
            return []
        if place is None or not place.pairing.take(side, message):
            self.counted["answers to nothing"] += 1
            return []
        self.counted["answers"] += 1
        place.pairing.touched_ns = now_ns
        self._need(place, message)
        return [] if place.pairing.awaited else self._converse(segment, place, now_ns)

    def _need(self, place: Place, message: Message) -> None:
        self._shares.take(place.held, message.point, message_bytes(message))
        key = message.key
        if key not in place.keys:
            place.keys.append(key)
            self._needed[key] += 1

    # ---- rounds and neighbours ----

    def _converse(self, segment: Segment, place: Place, now_ns: int) -> list[Outcome]:
        """Cross what has arrived; ask for what is missing, or finish."""
        pairing, found = place.pairing, list[Outcome]()
        for side, records in pairing.cross(now_ns, self.counted).items():
            said = pairing.said[side]
            assert said is not None
            found.append(Ask(said.with_records(records, "ask")))
            self.counted["asks"] += 1
        return found or self._finish(segment, place, now_ns)

    def _finish(self, segment: Segment, place: Place, now_ns: int) -> list[Outcome]:
        """A place is complete: settle it and its neighbours if possible."""
        place.pairing.free()
        most = max(place.held, key=place.held.__getitem__, default="")
        self._shares.release(place.held)
        self._shares.take(place.held, most, crossing_bytes(place.pairing.crossings))
        found: list[Outcome] = []
        for one in segment.near(place.pairing.interval, -1, 1).values():
            if one is not None and one.pairing.final:
                found += self._settle(segment, one, now_ns)
        for one in segment.near(place.pairing.interval, -2, 2).values():
            found += [] if one is None else self._drop(segment, one, now_ns)
        return found

    def _settle(self, segment: Segment, place: Place, now_ns: int, alone: bool = False) -> list[Outcome]:
        near = segment.near(place.pairing.interval, -1, 1)
        final = {start_ns: one for start_ns, one in near.items() if one is not None and one.pairing.final}
        known, rank = frozenset(final), Rank.SETTLED
        if not all(start_ns in known for start_ns in near if start_ns >= place.pairing.interval.start_ns):
            alone = alone or now_ns - place.pairing.touched_ns >= self._linger_ns
            known, rank = (known, Rank.ALONE) if alone else (frozenset((place.pairing.interval.start_ns,)), Rank.FIRST)
        if place.rank is not None and (rank < place.rank or (rank == place.rank and not known > place.known)):
            return []
        place.known = known
        crossings = with_neighbours(place, final.values()) if rank > Rank.FIRST else place.pairing.crossings
        around = [one for start_ns, one in near.items() if start_ns != place.pairing.interval.start_ns]
        return [self._result(segment, place, crossings, rank, around)]

    def _result(
        self,
        segment: Segment,
        place: Place,
        crossings: Mapping[Key, Crossing],
        rank: Rank,
        around: Iterable[Place | None] = (),
    ) -> Result:
        place.rank, pairing = rank, place.pairing
        up, down = pairing.said
        said = up or down
        assert said is not None
        clock = None if up is None or down is None else compared(together((up.clock, down.clock)), pairing.ahead_ns)
        silent = next((p for p, one in zip(segment.ends.points, pairing.said, strict=True) if one is None), None)
        return Result(
            segment.ends.segment,
            pairing.interval,
            rank,
            said.terms.estimator.name,
            dict(crossings),
            {key: loss_in(pairing, crossings, key, rank, list(around)) for key in crossings},
            (None if up is None else up.seen, None if down is None else down.seen),
            clock,
            pairing.final,
            pairing.reason if silent is None else f"{silent} has sent nothing about it",
        )

    # ---- time ----

    def _age(self, segment: Segment, place: Place, now_ns: int) -> list[Outcome]:
        pairing, found = place.pairing, list[Outcome]()
        if pairing.awaited and now_ns - pairing.asked_ns >= self._answer_ns:
            self.counted["asks without an answer"] += len(pairing.awaited)
            found += self._finish(segment, place, now_ns)
        elif pairing.awaited and not place.rank and now_ns - pairing.asked_ns >= PROMPT_NS:
            found.append(self._result(segment, place, pairing.crossings, Rank.FIRST))
        age_ns = now_ns - pairing.touched_ns
        is_missing = age_ns >= max(SOON_NS, 2 * pairing.interval.length_ns) and not pairing.both
        if is_missing and place.rank is None and not any(said and is_idle(said) for said in pairing.said):
            found.append(self._result(segment, place, {}, Rank.UNSEEN))
        if age_ns >= self._linger_ns:
            if pairing.both:
                found += self._settle(segment, place, now_ns) + self._drop(segment, place, now_ns)
            else:
                self._forget(segment, place)
        return found

    def _drop(self, segment: Segment, place: Place, now_ns: int) -> list[Outcome]:
        """Drop a place once no neighbour needs it; if one may come, messages stay in the store."""
        if place.rank is None or place.rank < Rank.ALONE or place.pairing.interval.start_ns not in segment.places:
            return []
        near = segment.near(place.pairing.interval, -1, 1).items()
        if all(key in segment.gone or (one is not None and (one.rank or 0) >= Rank.ALONE) for key, one in near):
            return self._end(segment, place, now_ns)
        if now_ns - place.pairing.touched_ns >= 2 * self._linger_ns:
            self._forget(segment, place)
        return []

    def _end(self, segment: Segment, place: Place, now_ns: int) -> list[Outcome]:
        """Drop a place that is settled."""
        segment.gone[place.pairing.interval.start_ns] = now_ns
        done = self._forget(segment, place)
        return [Done(done)] if done else []

    def _forget(self, segment: Segment, place: Place) -> tuple[str, ...]:
        """Drop a place; return the messages that no place holds any more."""
        segment.remove(place)
        self._shares.release(place.held)
        self._needed.subtract(place.keys)
        free = tuple(key for key in place.keys if self._needed[key] <= 0)
        for key in free:
            del self._needed[key]
        return free

    def _let_go(self, now_ns: int) -> list[Outcome]:
        """Stay within the limit: drop the oldest of the point that holds most."""
        found: list[Outcome] = []
        while (point := self._shares.excess()) is not None:
            before = self._shares.bytes
            held = [(start_ns, one) for one in self._segments.values() for start_ns in one.starts_of(point)]
            for start_ns, segment in sorted(held, key=lambda one: one[0]):
                if self._shares.enough(point):
                    break
                self.counted["dropped because memory was full"] += 1
                place = segment.places.get(start_ns)
                if place is None or point not in place.held:
                    self._used(segment.chain, segment.chain.let_go(segment.ends.points.index(point), start_ns))
                elif place.pairing.both:  # what is known now is its result
                    found += [] if place.pairing.final else self._finish(segment, place, now_ns)
                    if start_ns in segment.places:
                        found += self._settle(segment, place, now_ns, alone=True) + self._end(segment, place, now_ns)
                else:
                    self._forget(segment, place)
            if self._shares.bytes >= before:
                break
        return found
