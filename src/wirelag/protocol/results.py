"""The outcomes of session.py: results of intervals, and questions for agents. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from wirelag.packets.interval import Interval
from wirelag.protocol.loss import Loss
from wirelag.protocol.messages import BEYOND_NS, STAMP, ClockReading, Message, Seen
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


def compared(clock: ClockReading, ahead_ns: Iterable[tuple[int, int] | None]) -> ClockReading:
    """The error bound of a time difference, with the bounds that two-way times (STAMP) set to it, if there are any.

    Law: no packet arrives before it is sent, so two-way times are certain. They bound the difference where the clocks
    themselves do not; if the clocks' own bounds contradict them, the clocks are not synchronised.
    """
    low_ns, high_ns = -BEYOND_NS, BEYOND_NS  # what the downstream clock is ahead
    for found in ahead_ns:
        if found is not None:
            low_ns, high_ns = max(low_ns, found[0]), min(high_ns, found[1])
    if (low_ns, high_ns) == (-BEYOND_NS, BEYOND_NS) or low_ns > high_ns:
        return clock
    most_ns = max(abs(low_ns), abs(high_ns))
    if clock.synchronised and (low_ns > clock.error_ns or high_ns < -clock.error_ns):
        return ClockReading(False, most_ns, STAMP)
    if clock.synchronised and clock.error_ns <= most_ns:
        return clock
    return ClockReading(True, most_ns, STAMP)


def together(clocks: Sequence[ClockReading]) -> ClockReading:
    """The error bound of a time difference measured by these clocks."""
    worst = max(clocks, key=lambda clock: clock.error_ns)
    return ClockReading(
        all(clock.synchronised for clock in clocks), sum(clock.error_ns for clock in clocks), worst.source
    )
