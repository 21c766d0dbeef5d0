"""Objectives of segments, which the operator sets: `p99<20ms`, `loss<0.1%`, `fra-*: mean<5ms`.

Laws. An objective is missed, or holds, only if the whole 95% interval of its figure is on that side; otherwise nobody
can say. Of objectives for one figure of a segment the last one counts. `*` stands for any characters, nothing else is
special: names have brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from wirelag.units import parse_duration_ns, parse_share

Verdict = Literal["missed", "unsure", "holds"]
VERDICTS: Final[tuple[Verdict, ...]] = ("missed", "unsure", "holds")  # worst first
FIGURES: Final = {"mean": "mean", "p50": "0.5", "p90": "0.9", "p95": "0.95", "p99": "0.99", "p99.9": "0.999"}
_TEXT: Final = re.compile(r"(?:(?P<of>.+):)?\s*(?P<figure>[a-z0-9.]+)\s*<\s*(?P<bound>[^<>\s]+)\s*")


def pattern_of(text: str) -> re.Pattern[str]:
    """Names with `*` for any characters."""
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


@dataclass(frozen=True, slots=True)
class Objective:
    """A figure of some segments, and what it must be below."""

    text: str
    of: str  # segments, `*` for any characters
    figure: str
    bound: float  # seconds, or a share

    @classmethod
    def parse(cls, text: str) -> Objective:
        """An objective from its text; a ValueError says how to write one.

        >>> Objective.parse("fra-*: p99<5ms").bound
        0.005
        """
        found = _TEXT.fullmatch(text.strip())
        if found is None or found["figure"] not in (*FIGURES, "loss"):
            known = ", ".join((*FIGURES, "loss"))
            raise ValueError(
                f"{text!r} is not an objective: write p99<20ms, loss<0.1%, or for some segments 'fra-*: p99<5ms'; "
                f"figures: {known}"
            )
        figure = found["figure"]
        bound = parse_share(found["bound"]) if figure == "loss" else parse_duration_ns(found["bound"]) / 1e9
        if bound <= 0:
            raise ValueError(f"{text!r}: nothing is below 0")
        return cls(f"{figure}<{found['bound']}", (found["of"] or "*").strip(), figure, bound)

    def judge(self, report: Mapping[str, Any]) -> tuple[float | None, Verdict | None]:
        """The figure of a report, and the verdict; None without a figure."""
        name = FIGURES.get(self.figure, self.figure)
        value = report["quantiles"][name] if name in report["quantiles"] else report[name]
        if value is None:
            return None, None
        low, high = report["ci95"].get(name) or (0.0, float("inf"))
        return value, "missed" if low >= self.bound else "holds" if high < self.bound else "unsure"


class Objectives:
    """All objectives of a collector."""

    def __init__(self, objectives: Iterable[Objective] = ()) -> None:
        self._all = [(pattern_of(one.of), one) for one in objectives]

    def of(self, segment: str) -> list[Objective]:
        """Those of a segment, one for each figure."""
        return list({one.figure: one for pattern, one in self._all if pattern.fullmatch(segment)}.values())
