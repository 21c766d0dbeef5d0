"""The time by which retention goes: that of the results, not that of a clock. No I/O.

Law: nothing is deleted because a clock is wrong. Time passes as far as results have come, and never beyond the clock.
If it leaps by more than a day beyond what has really passed (the clock was wrong, before or now, or nothing was
collected for long), nothing is deleted until a day of results has come at the new time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from wirelag.collector.store import DAY_NS
from wirelag.units import format_duration

LEAP_NS: Final = DAY_NS


@dataclass(slots=True)
class DataTime:
    """How far time has come; kept in the store, so that it survives the process."""

    trusted_ns: int | None = None  # results before this, less their retention, may go
    last_ns: int = 0  # the newest time that was seen,
    since_ns: int | None = None  # and the first one after a leap

    @classmethod
    def of(cls, text: str | None) -> DataTime:
        """As it was stored; anew if it was not, or if the disk has changed it."""
        try:
            found = cls(**json.loads(text or "{}"))
        except (ValueError, TypeError):
            return cls()
        times = (found.trusted_ns, found.last_ns, found.since_ns)
        return found if all(one is None or type(one) is int for one in times) and found.last_ns is not None else cls()

    def passed(self, now_ns: int, newest_ns: int, elapsed_ns: int) -> int | None:
        """The time for retention, None after a leap. `elapsed_ns`: since the last call, by a steady clock."""
        time_ns = min(now_ns, newest_ns)
        before_ns, self.last_ns = self.last_ns, time_ns
        if self.trusted_ns is None or time_ns <= self.trusted_ns + elapsed_ns + LEAP_NS:
            self.trusted_ns, self.since_ns = time_ns, None
            return time_ns
        if self.since_ns is None or time_ns < self.since_ns or time_ns > before_ns + elapsed_ns + LEAP_NS:
            self.since_ns = time_ns
        if time_ns < self.since_ns + LEAP_NS:
            return None
        self.trusted_ns, self.since_ns = time_ns, None
        return time_ns

    @property
    def problem(self) -> str | None:
        """Why nothing is deleted, in words."""
        if self.since_ns is None or self.trusted_ns is None:
            return None
        leap = format_duration(self.since_ns - self.trusted_ns)
        return (
            f"results are suddenly {leap} newer than those before: a clock was wrong, or nothing came for long; "
            f"nothing is deleted until results of {format_duration(LEAP_NS)} have come"
        )

    def to_fields(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
