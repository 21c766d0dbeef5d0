"""Whose clock is wrong: this host's, or that of a point whose packets are in what is the future here.

Law: who is ahead alone is wrong, and what they say fits nothing. Where all who speak are ahead, this host is behind:
what they say is right, so they must keep it.
"""

from __future__ import annotations

from typing import Final

from wirelag.protocol.messages import Message
from wirelag.protocol.session import AHEAD_NS

LATELY_NS: Final = 60 * 10**9
MOST_POINTS: Final = 4096


class Behind:
    """Listens to points; `steady_ns` of its methods is a clock that nobody sets."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, bool]] = {}  # by point: when, and whether it was ahead

    def is_behind(self, message: Message, now_ns: int, steady_ns: int) -> bool:
        """Whether a message is ahead of this host's clock and that clock is to blame."""
        end_ns = message.interval.end_ns
        if end_ns < now_ns - LATELY_NS:  # it waited on a disk, and says nothing of clocks
            return False
        ahead = end_ns > now_ns + AHEAD_NS
        self._heard.pop(message.point, None)
        self._heard[message.point] = steady_ns, ahead
        while len(self._heard) > MOST_POINTS:
            del self._heard[next(iter(self._heard))]
        return ahead and all(was for heard_ns, was in self._heard.values() if steady_ns - heard_ns < LATELY_NS)
