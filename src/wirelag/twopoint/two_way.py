"""Test packets there and back: delays of both directions, and bounds of what the clocks differ by. No I/O.

A request leaves at t1 and arrives at t2, the reply leaves at t3 and arrives at t4; t2 and t3 are on the other clock,
which is ahead by d. No packet arrives before it is sent: d lies between -min(t4 - t3) and min(t2 - t1), for certain,
as long as the other end tells the truth. One that lies can shift d, and the delays of both directions against each
other, but it cannot shorten the round trip below 0: what claims so is not credible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

APART = "the clocks changed against each other meanwhile: only the round trip is known"


class Trip(NamedTuple):
    """A request and its reply; times in ns."""

    number: int  # of the request, from 0
    gap: int  # by how much the reply's own number is behind: requests that had not arrived until then
    sent_ns: int
    received_ns: int
    replied_ns: int
    came_ns: int

    @property
    def forward_ns(self) -> int:
        """The way there, with what the other clock is ahead."""
        return self.received_ns - self.sent_ns

    @property
    def backward_ns(self) -> int:
        """The way back, less that."""
        return self.came_ns - self.replied_ns

    @property
    def round_ns(self) -> int:
        """Both ways, without the time inside the other end."""
        return self.forward_ns + self.backward_ns

    @property
    def credible(self) -> bool:
        """Whether the other end cannot be shown to be wrong: it took no time backwards, nor more than there was."""
        return self.replied_ns >= self.received_ns and self.round_ns >= 0


class Offset(NamedTuple):
    """Bounds of what the other clock is ahead."""

    low_ns: int
    high_ns: int

    @property
    def middle_ns(self) -> int:
        """The best guess."""
        return (self.low_ns + self.high_ns) // 2

    @property
    def error_ns(self) -> int:
        """How far it may be off."""
        return -(-(self.high_ns - self.low_ns) // 2)

    @property
    def possible(self) -> bool:
        """Whether there is any offset between the bounds."""
        return self.low_ns <= self.high_ns

    def within(self, other: Offset) -> Offset:
        """What both allow."""
        return Offset(max(self.low_ns, other.low_ns), min(self.high_ns, other.high_ns))


def offset_of(trips: Sequence[Trip]) -> Offset:
    """The bounds that trips set."""
    return Offset(-min(trip.backward_ns for trip in trips), min(trip.forward_ns for trip in trips))
