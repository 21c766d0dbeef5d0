"""Whether an agent keeps up: with its disk, with the way to the collector, with the room of its spool. No I/O.

Law: each thing is told once when it begins and once when it is over, however long it lasts. An agent is behind when its
oldest message has waited for BEHIND intervals, and BEHIND_S at least, although the collector answers; while it does not
answer, that was told already. It has caught up when the oldest waits for half of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wirelag.units import format_duration

BEHIND: Final = 5  # intervals
BEHIND_S: Final = 10.0
QUIET_S: Final = 60.0  # without another loss, after which the losses are over


@dataclass(frozen=True, slots=True)
class Load:
    """What waits, and what was dropped since the start."""

    waited_s: float  # the oldest message
    waiting: int  # messages
    lost_parts: int  # intervals that came faster than the disk takes them
    dropped: int  # messages that did not fit into the spool
    reachable: bool


class KeepingUp:
    """`look` now and then; it returns the lines that are due."""

    def __init__(self, interval_ns: int) -> None:
        self.most_s = max(BEHIND_S, BEHIND * interval_ns / 1e9)
        self._behind_since_s: float | None = None
        self._losses = {
            "lost_parts": _Losses("the disk is too slow for {} intervals: they are lost", "the disk keeps up again"),
            "dropped": _Losses(
                "the spool is full: the oldest messages are dropped, {} so far; the newest are kept",
                "the spool has room again",
            ),
        }

    def look(self, load: Load, now_s: float) -> list[str]:
        """The lines that are due now."""
        lines = [losses.look(getattr(load, name), now_s) for name, losses in self._losses.items()]
        return [line for line in (*lines, self._of_time(load, now_s)) if line is not None]

    def _of_time(self, load: Load, now_s: float) -> str | None:
        if self._behind_since_s is None:
            if load.reachable and load.waited_s > self.most_s:
                self._behind_since_s = now_s
                return (
                    f"behind: the oldest of {load.waiting:,} messages has waited for {_whole(load.waited_s)}; the disk "
                    f"or the way to the collector is too slow, or it catches up after an outage"
                )
        elif load.waited_s < self.most_s / 2:
            after_s, self._behind_since_s = now_s - self._behind_since_s, None
            return f"has caught up after {_whole(after_s)}"
        return None


class _Losses:
    """A counter of losses: told when it begins to grow, and when it has not grown for QUIET_S."""

    def __init__(self, begin: str, end: str) -> None:
        self._begin, self._end = begin, end
        self._before = self._last = 0
        self._grown_s: float | None = None

    def look(self, count: int, now_s: float) -> str | None:
        grows, self._last = count > self._last, count
        if grows:
            first, self._grown_s = self._grown_s is None, now_s
            return self._begin.format(f"{count - self._before:,}") if first else None
        if self._grown_s is not None and now_s - self._grown_s >= QUIET_S:
            lost, self._before, self._grown_s = count - self._before, count, None
            return f"{self._end}; {lost:,} were lost in all"
        return None


def _whole(seconds: float) -> str:
    return format_duration(round(seconds) * 10**9)
