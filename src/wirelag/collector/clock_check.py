"""Whose clock is wrong: this host's, or that of a point whose packets lie in the future.

Law: if one point alone is ahead, it is wrong, and its messages fit nothing. If all points are ahead, this host is
behind: their messages are right, so they must keep them. In any case they keep what is less than a day ahead. What
points sent before this host's clock was set says nothing about the clock that it has now.
"""

from __future__ import annotations

from typing import Final

from wirelag.protocol.messages import Message
from wirelag.units import format_duration

AHEAD_NS: Final = 5 * 10**9  # an interval that ends later than this from now is due to a wrong clock
LATELY_NS: Final = 60 * 10**9
SOON_NS: Final = 86400 * 10**9
MOST_POINTS: Final = 4096
RIGHT: Final = "the clock of this host is right again, or no point is ahead of it any more"
STEP_NS: Final = 10**9  # more than any slewing between two messages


def is_ahead(message: Message, now_ns: int) -> bool:
    """Whether a message is about a time that has not come for this host."""
    return message.interval.end_ns > now_ns + AHEAD_NS


def may_pass(message: Message, now_ns: int) -> bool:
    """Whether a message is ahead of this host's clock by so little that its time comes soon: its agent keeps it.

    Whose clock is wrong may not be known: what waited on a point's disk is in the past for a clock that is behind, too.
    """
    return is_ahead(message, now_ns) and message.interval.end_ns - now_ns < SOON_NS


def how_far(message: Message, now_ns: int) -> str:
    """That this host's clock is behind, in words."""
    ahead = format_duration(message.interval.end_ns - now_ns)
    return (
        f"the clock of this host is behind: {message.point} is {ahead} ahead of it, and so are all others; agents keep "
        f"their messages until it is right"
    )


class Behind:
    """Watches the times of points; `steady_ns` is a clock that is never set."""

    def __init__(self) -> None:
        # By point: when it was heard, and when it last sent something that was not ahead.
        self._heard: dict[str, tuple[int, int | None]] = {}
        self._apart_ns: int | None = None  # this host's clock minus the steady one
        self._found_ns = 0  # when this host was last found behind

    def is_behind(self, message: Message, now_ns: int, steady_ns: int) -> bool | None:
        """Whether a message is ahead of this host's clock and that clock is wrong; None if it shows nothing of clocks.

        A point is ahead if all that it has sent lately is: one message of a clock that was wrong may have waited on
        its disk.
        """
        before_ns, self._apart_ns = self._apart_ns, now_ns - steady_ns
        if before_ns is not None and abs(self._apart_ns - before_ns) > STEP_NS:
            self._heard.clear()
        end_ns = message.interval.end_ns
        if end_ns < now_ns - LATELY_NS:  # it waited on disk
            return None
        ahead = is_ahead(message, now_ns)
        _, right_ns = self._heard.pop(message.point, (0, None))
        self._heard[message.point] = steady_ns, right_ns if ahead else steady_ns
        while len(self._heard) > MOST_POINTS:
            del self._heard[next(iter(self._heard))]
        if not ahead:
            return False
        lately = [right_ns for heard_ns, right_ns in self._heard.values() if steady_ns - heard_ns < LATELY_NS]
        if not all(right_ns is None or steady_ns - right_ns >= LATELY_NS for right_ns in lately):
            return False
        self._found_ns = steady_ns
        return True

    def is_over(self, steady_ns: int) -> bool:
        """Whether nothing has shown lately that this host is behind: agents would repeat their messages.

        No message can show that it is right while a proxy that asks /-/ready lets none through.
        """
        return steady_ns - self._found_ns >= 2 * LATELY_NS
