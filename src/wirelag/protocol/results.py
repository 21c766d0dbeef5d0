"""The outcomes of session.py: results of intervals, and questions for agents. No I/O."""

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
    """How complete a result is: a higher rank replaces a lower one, never the reverse."""

    UNSEEN = 0  # one point has sent nothing
    FIRST = 1  # rounds may continue, and packets in flight at the end are unknown
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
        """Both points, upstream first."""
        return self.upstream, self.downstream


def named_ends(segment: str) -> Ends | None:
    """The ends of a segment that agents have named: they are its name; None if it does not name two points.

    >>> named_ends("A>B").points, named_ends("B[A>C]").points
    (('A', 'B'), ('B', 'B'))
    """
    if segment.endswith("]") and not segment.startswith("["):  # the inside of a router (inside.py)
        point = segment.partition("[")[0]
        return Ends(segment, point, point)
    upstream, _, downstream = segment.replace(">>", ">").partition(">")
    return None if upstream == downstream or not downstream else Ends(segment, upstream, downstream)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an interval of a segment, by class; None is everything."""

    segment: str
    interval: Interval
    rank: Rank
    estimator: str
    crossings: Mapping[Key, Crossing]
    losses: Mapping[Key, Loss]
    seen: tuple[Seen | None, Seen | None]
    clock: ClockReading | None  # both points' combined
    complete: bool = False  # the rounds are over: the mean is final except for packets that straddle the edges
    reason: str | None = None
    references: tuple[int, int] | None = None  # references used and lost; None: there are none


@dataclass(frozen=True, slots=True)
class Ask:
    """A message that must reach an agent."""

    message: Message


@dataclass(frozen=True, slots=True)
class Done:
    """Keys of messages that are no longer needed."""

    keys: tuple[str, ...]


Outcome = Result | Ask | Done


def together(clocks: Sequence[ClockReading]) -> ClockReading:
    """The error bound of a time difference measured by these clocks."""
    worst = max(clocks, key=lambda clock: clock.error_ns)
    return ClockReading(
        all(clock.synchronised for clock in clocks), sum(clock.error_ns for clock in clocks), worst.source
    )
