"""How figures are grouped, and how many groups are kept; the rest is "other"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wirelag.units import one_of, within

if TYPE_CHECKING:
    from wirelag.measure.result import Entry
    from wirelag.packets.grouping import Grouping
    from wirelag.report import Report

MOST: Final = 1 << 20
FIGURES: Final = ("p50", "p90", "p95", "p99", "p99.9", "mean", "max", "std", "samples")
OTHER: Final = "other"
_SIDES: Final = {"source": "client", "destination": "server"}  # a packet's source is what rtt calls the client


@dataclass(frozen=True, slots=True)
class Groups:
    """What `by` and the options around it ask for; None: no groups."""

    by: str | None = None
    allowed: tuple[str, ...] = ()
    most: int = 1000
    ipv4_prefix: int = 24
    ipv6_prefix: int = 48
    sort: str | None = None  # the figure that groups are in order of, the largest first; None: as the question prefers
    top: int = 20  # groups that a table shows

    def __post_init__(self) -> None:
        if self.sort is not None:
            one_of(self.sort, FIGURES, "sort")
        within(self.top, 0, MOST, "top")
        if self.by is not None:
            one_of(self.by, self.allowed, "by")
        within(self.most, 1, MOST, "most_groups")
        within(self.ipv4_prefix, 0, 32, "ipv4_prefix")
        within(self.ipv6_prefix, 0, 128, "ipv6_prefix")

    def grouping(self) -> Grouping | None:
        """A fresh grouping."""
        from wirelag.packets.grouping import Grouping

        if self.by is None:
            return None
        return Grouping(_SIDES.get(self.by, self.by), self.ipv4_prefix, self.ipv6_prefix, self.most)  # type: ignore[arg-type]


def figure(report: Report, name: str) -> float | None:
    """A figure of a report by its name in tables."""
    if name.startswith("p"):
        return report.quantiles.get(f"{float(name[1:]) / 100:g}")
    found: float | None = getattr(report, name)
    return found


def in_order(entries: list[Entry], name: str) -> list[Entry]:
    """Groups by a figure, the largest first; those without it next, and "other" last."""

    def place(entry: Entry) -> tuple[bool, bool, float]:
        value = figure(entry.report, name) if entry.report.samples else None
        return entry.key == OTHER, value is None, -(value or 0.0)

    return sorted(entries, key=place)


def other_note(groups: Sequence[Entry], samples: int, most: int) -> list[str]:
    """How much the groups hold that were not kept."""
    held = sum(entry.report.samples for entry in groups if entry.key == OTHER)
    if not held:
        return []
    share = held / max(1, samples)
    return [f"other holds {share:.1%} of the samples: of groups beyond the {most:,} that are kept (--most-groups)"]
