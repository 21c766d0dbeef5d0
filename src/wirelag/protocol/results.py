"""What the collector says of intervals, and what it wants of agents: the words of rounds.py. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from wirelag.packets.intervals import Interval
from wirelag.protocol.loss import Loss
from wirelag.protocol.messages import ClockReading, Message, Seen
from wirelag.protocol.pairing import Key
from wirelag.synopses.crossing import Crossing


class Rank(IntEnum):
    """How much a result knows: a higher one takes the place of a lower one, never the other way round."""

    UNSEEN = 0  # one point has said nothing
    FIRST = 1  # rounds may be going on, and packets in flight at the end are not known
    ALONE = 2  # the next interval is missing
    SETTLED = 3


@dataclass(frozen=True, slots=True)
class Ends:
    """A segment and the points at its ends."""

    segment: str
    upstream: str
    downstream: str

    @property
    def points(self) -> tuple[str, str]:
        """Both, upstream first."""
        return self.upstream, self.downstream


@dataclass(frozen=True, slots=True)
class Result:
    """What is known of an interval of a segment: by class, None being everything."""

    segment: str
    interval: Interval
    rank: Rank
    estimator: str
    crossings: Mapping[Key, Crossing]
    losses: Mapping[Key, Loss]
    seen: tuple[Seen | None, Seen | None]
    clock: ClockReading | None  # both points' together
    complete: bool = False  # the rounds are over: the mean is as exact as it will be but for what straddles the edges
    reason: str | None = None
    references: tuple[int, int] | None = None  # that came and were used, and that got lost; None: there are none


@dataclass(frozen=True, slots=True)
class Ask:
    """A message that must reach an agent."""

    message: Message


@dataclass(frozen=True, slots=True)
class Done:
    """Messages that nobody needs any more, by their keys."""

    keys: tuple[str, ...]


Outcome = Result | Ask | Done


def together(clocks: Sequence[ClockReading]) -> ClockReading:
    """What a difference of times by these clocks is right within."""
    worst = max(clocks, key=lambda clock: clock.error_ns)
    return ClockReading(
        all(clock.synchronised for clock in clocks), sum(clock.error_ns for clock in clocks), worst.source
    )
