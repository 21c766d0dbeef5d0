"""A range of time."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """The time range `[start_ns, end_ns)`."""

    start_ns: int
    end_ns: int
    name: int | None = field(default=None, compare=False)  # the packet that opened it, where packets delimit intervals

    @property
    def length_ns(self) -> int:
        """Length in ns."""
        return self.end_ns - self.start_ns
