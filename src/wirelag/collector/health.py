"""What is wrong with the collector now: told once in the log, once more when it is over, and served meanwhile.

Laws. *Ready*: it can store what agents send; not if its worker has not worked for LATE_S, as while a database hangs,
or a damaged store is rescued. *Healthy*: its worker works; if it has not for STUCK_S, a restart may help. What is
served names kinds of problems only: details are in the log.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, Literal

from wirelag.collector.tally import Tally
from wirelag.transport.notices import Notices

LATE_S, STUCK_S = 15.0, 120.0
What = Literal["store", "clock", "pruning", "room"]
KINDS: Final[dict[What, str]] = {  # and what each means
    "store": "the store cannot be written: agents keep their messages",
    "clock": "the clock of this host is behind: agents keep their messages",
    "pruning": "results are not deleted by age: time leapt, or deleting failed",
    "room": "the store is full: the oldest is deleted before its time",
}
_REFUSING: Final = {"store", "clock"}


class Health:
    """Read and written by any thread."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._worked = steady()
        self.long_work = False  # what it does now may take minutes: a rescue
        self._problems: dict[What, str] = {}

    def note(self, what: What, problem: str | None, over: str) -> None:
        """Note a problem, or with None that there is none: `over` is what the log says if there was one."""
        before = self._problems.get(what)
        if problem is not None:
            self._problems[what] = problem
        elif before is not None:
            del self._problems[what]
        if (problem is None) != (before is None):
            print(f"wirelag: {over if problem is None else problem}", file=sys.stderr, flush=True)

    def works(self) -> None:
        """Note that the worker has just done its work."""
        self._worked = self._steady()

    @property
    def problems(self) -> list[What]:
        """The kinds of problems that there are now."""
        return [what for what in KINDS if what in self._problems]

    @property
    def healthy(self) -> bool:
        """Whether the worker works."""
        return self.long_work or self._steady() - self._worked < STUCK_S

    @property
    def _late(self) -> bool:
        return self._steady() - self._worked >= LATE_S

    @property
    def ready(self) -> bool:
        """Whether messages can be stored."""
        return not self._late and not _REFUSING.intersection(self._problems)

    def text(self) -> str:
        """For `/-/healthy` and `/-/ready`: a line for each problem."""
        lines = [f"{what}: {KINDS[what]}" for what in self.problems]
        if not self.healthy:
            lines.insert(0, f"worker: has not worked for {STUCK_S:g} s")
        elif self._late:
            lines.insert(0, f"worker: waits for the store for {LATE_S:g} s: agents keep their messages")
        return "\n".join([*(lines or ["no problem"]), ""])


class Apart:
    """Reports once that the points of a segment cannot be compared."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._why: dict[str, str | None] = {}  # by segment

    def say(self, segment: str, tally: Tally) -> None:
        """Report it, if a settled result shows it for the first time."""
        reason = None if tally.comparable else tally.reason
        if reason is not None and self._why.get(segment) != reason:
            self._notices.say("segments that are not measured", segment, f"{segment} is not measured: {reason}")
        self._why[segment] = reason
