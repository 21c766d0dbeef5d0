"""Which run of an agent may speak for its point: one name, one running agent. No I/O.

Law: a run that starts takes over, because the one before usually has ended. If that one speaks again, both are running:
then the older keeps the name until it has been silent for SILENT_S. All others are refused meanwhile, and for DOUBT_S
after the last refusal also runs that start: a second agent gets no message in by starting again. What is refused stays
with its agent, so an agent that starts again in that time is only late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SILENT_S: Final = 60.0
DOUBT_S: Final = 600.0
MOST_POINTS: Final = 4096
MOST_FORMER: Final = 64  # runs of a point that are remembered


@dataclass(slots=True)
class _Point:
    run: str
    heard_s: float
    former: list[str] = field(default_factory=list)
    doubled_s: float | None = None  # when two were last seen running

    def refuses(self, run: str, now_s: float) -> bool:
        doubled = self.doubled_s is not None and now_s - self.doubled_s < DOUBT_S
        return doubled and run not in (self.run, *self.former) and now_s - self.heard_s < SILENT_S


class Runs:
    """The runs of all points; `now_s` is a clock that is never set."""

    def __init__(self) -> None:
        self._points: dict[str, _Point] = {}

    def refuses(self, point: str, run: str, now_s: float) -> bool:
        """Whether this run is refused now; nothing is learned from it: a broker repeats old messages."""
        known = self._points.get(point)
        return known is not None and known.refuses(run, now_s)

    def admits(self, point: str, run: str, now_s: float) -> bool:
        """Whether this run may speak for the point; agents that do not name their run may."""
        if not run:
            return True
        known = self._points.pop(point, None) or _Point(run, now_s)
        self._points[point] = known
        while len(self._points) > MOST_POINTS:
            del self._points[next(iter(self._points))]
        if known.refuses(run, now_s):
            known.doubled_s = now_s
            return False
        if run != known.run:
            if run in known.former:
                known.doubled_s = now_s  # the younger is not remembered
            else:
                known.former, known.doubled_s = [*known.former, known.run][-MOST_FORMER:], None
            known.run = run
        known.heard_s = now_s
        return True
