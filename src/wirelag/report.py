"""Reports: figures with their uncertainty and coverage.

Times are seconds, as in the JSON contract. A figure that cannot be given is None, and `reason` holds the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from wirelag.packets.interval import Interval

QUANTILES: Final = ("0.5", "0.9", "0.95", "0.99", "0.999")  # that reports have
ROUNDING: Final = 0.01  # of a delay: intervals are made of delays that are stored within 0.8%

Quantity = Literal["round_trip", "response", "one_way"]


@dataclass(frozen=True, slots=True)
class Report:
    """Figures over one interval, one group of packets, or everything."""

    estimator: str
    quantity: Quantity
    packets: int | None = 0  # None: not counted for this part
    samples: int = 0
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    quantiles: Mapping[str, float | None] = field(default_factory=dict)
    ci95: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None
    interval: Interval | None = None
    details: Mapping[str, Any] = field(default_factory=dict)  # fields that only this quantity has

    def during(self, interval: Interval | None) -> Report:
        """The same report for this interval."""
        return replace(self, interval=interval)

    def figure(self, name: str) -> float | None:
        """A figure by its name in tables: "mean", "p99", "samples"."""
        if name.startswith("p"):
            return self.quantiles.get(f"{float(name[1:]) / 100:g}")
        found: float | None = getattr(self, name)
        return found

    def is_open(self, name: str = "mean") -> bool:
        """Whether a 95% interval ends beyond the longest delay: then nothing that was seen bounds it from above."""
        return name in self.ci95 and self.max is not None and self.ci95[name][1] > self.max + ROUNDING * abs(self.max)

    def is_bare(self, name: str = "mean") -> bool:
        """Whether a 95% interval is open, and begins at nothing: then it says nothing."""
        return self.is_open(name) and self.ci95[name][0] <= 0 <= (self.min or 0.0)

    def to_json(self, command: str | None = None, intervals: Sequence[Report] = ()) -> dict[str, Any]:
        """The report as a dict of plain values, as the JSON contract defines it; times in seconds."""
        plain: dict[str, Any] = {"command": command} if command else {}
        plain |= {"estimator": self.estimator, "quantity": self.quantity}
        if self.interval:
            plain |= {"start": self.interval.start_ns / 1e9, "end": self.interval.end_ns / 1e9}
        plain |= {
            **({} if self.packets is None else {"packets": self.packets}),
            "skipped": dict(self.skipped),
            "samples": self.samples,
            "mean": self.mean,
            "std": self.std,
            "min": self.min,
            "max": self.max,
            "quantiles": dict(self.quantiles),
            "ci95": {name: list(bounds) for name, bounds in self.ci95.items()},
            **self.details,
        }
        if self.reason:
            plain["reason"] = self.reason
        if intervals:
            plain["intervals"] = [report.to_json() for report in intervals]
        return plain
