"""The questions of `--sla` and `--above`, put to all delays and to every group alike.

A group without an estimate fails no agreement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wirelag.errors import SettingError
from wirelag.stats.sla import Delays, Sla
from wirelag.units import Duration, duration_ns, format_duration

MOST_NAMED: Final = 3  # groups in a sentence


@dataclass(frozen=True, slots=True)
class Questions:
    """Shares of delays above limits, and service-level agreements."""

    above_ns: tuple[int, ...] = ()
    slas: tuple[Sla, ...] = ()

    @classmethod
    def parse(cls, above: Sequence[Duration] | Duration | None, sla: Sequence[str] | str | None) -> Questions:
        """Questions as people write them."""
        limits = [above] if isinstance(above, Duration) else above or []
        texts = [sla] if isinstance(sla, str) else sla or []
        try:
            slas = tuple(Sla.parse(text) for text in texts)
        except ValueError as error:
            raise SettingError("sla", str(error)) from None
        return cls(tuple(duration_ns(limit, "above") for limit in limits), slas)

    def of(self, delays: Delays) -> Verdicts:
        """The verdicts and shares of these delays."""
        return Verdicts(
            self, [_share(limit, delays) for limit in self.above_ns], [sla.to_dict(delays) for sla in self.slas]
        )

    def sentences(self, delays: Delays) -> list[str]:
        """The same in words."""
        return [_share_text(limit, delays) for limit in self.above_ns] + [sla.sentence(delays) for sla in self.slas]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts and shares, as JSON holds them."""

    asked: Questions = field(default_factory=Questions)
    above: list[dict[str, Any]] = field(default_factory=list)
    sla: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The fields of the questions asked, and no others."""
        return ({"above": self.above} if self.above else {}) | ({"sla": self.sla} if self.sla else {})

    @property
    def hold(self) -> bool:
        """Whether every agreement is known to hold."""
        return all(verdict["holds"] for verdict in self.sla)

    @property
    def fail(self) -> bool:
        """Whether an agreement is known to fail."""
        return any(verdict["holds"] is False for verdict in self.sla)


def failing_groups(groups: Sequence[tuple[str, Verdicts]]) -> list[str]:
    """A sentence for each agreement that groups break."""
    broken: dict[str, list[str]] = {}
    for key, verdicts in groups if len(groups) > 1 else ():
        for verdict in verdicts.sla:
            if verdict["holds"] is False:
                broken.setdefault(verdict["question"], []).append(key)
    return [
        f"{question}: does not hold for {len(keys):,} of {len(groups):,} groups: "
        f"{', '.join(keys[:MOST_NAMED])}{', ...' if len(keys) > MOST_NAMED else ''}"
        for question, keys in broken.items()
    ]


def _share(limit_ns: int, delays: Delays) -> dict[str, Any]:
    bounds = delays.share_above_ci(limit_ns)
    return {
        "limit": limit_ns / 1e9,
        "share": delays.share_above(limit_ns),
        "ci95": None if bounds is None else [*bounds],
    }


def _share_text(limit_ns: int, delays: Delays) -> str:
    share, bounds = delays.share_above(limit_ns), delays.share_above_ci(limit_ns)
    said = f"{share:.2%} (95% interval {bounds[0]:.2%} to {bounds[1]:.2%})" if bounds else "cannot say"
    return f"above {format_duration(limit_ns)}: {said}"
