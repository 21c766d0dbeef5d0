"""Whose clock is wrong: this host's, or that of a point whose packets lie in the future.

Law: if one point alone is ahead, it is wrong, and its messages fit nothing. If all points are ahead, this host is
behind: their messages are right, so they must keep them.
"""

from __future__ import annotations

from typing import Final

from wirelag.protocol.messages import Message
from wirelag.protocol.session import AHEAD_NS

LATELY_NS: Final = 60 * 10**9
MOST_POINTS: Final = 4096


class Behind:
    """Watches the times of points; `steady_ns` is a clock that is never set."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, bool]] = {}  # by point: time, and whether it was ahead

    def is_behind(self, message: Message, now_ns: int, steady_ns: int) -> bool:
        """Whether a message is ahead of this host's clock and that clock is wrong."""
        end_ns = message.interval.end_ns
        if end_ns < now_ns - LATELY_NS:  # it waited on disk, and shows nothing about clocks
            return False
        ahead = end_ns > now_ns + AHEAD_NS
        self._heard.pop(message.point, None)
        self._heard[message.point] = steady_ns, ahead
        while len(self._heard) > MOST_POINTS:
            del self._heard[next(iter(self._heard))]
        return ahead and all(was for heard_ns, was in self._heard.values() if steady_ns - heard_ns < LATELY_NS)
