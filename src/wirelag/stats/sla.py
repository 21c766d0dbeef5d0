"""Questions of service-level agreements: `p99<50ms`, `mean<=10ms`, `above(50ms)<5%`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from wirelag.units import format_duration, parse_duration_ns, parse_share

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.stats.distributions import Distributions

_QUESTION: Final = re.compile(
    r"\s*(?:(?P<leg>server|client|both)\.)?(?:p(?P<q>\d{1,2}(?:\.\d+)?)|(?P<name>mean|max|min)|above\((?P<limit>[^)]+)\))\s*(?P<sign><=?)\s*(?P<bound>\S+)\s*"
)


class Delays(Protocol):
    """Delays that questions can be put to; figures are None without data."""

    @property
    def samples(self) -> int:
        """How many delays are known one by one."""

    @property
    def mean_ns(self) -> float | None:
        """The mean delay."""

    @property
    def min_ns(self) -> int | None:
        """The shortest delay."""

    @property
    def max_ns(self) -> int | None:
        """The longest delay."""

    def quantile_ns(self, q: float) -> float | None:
        """The delay below which a share of q lies."""

    def share_above(self, limit_ns: int) -> float | None:
        """The share of delays above a limit."""

    def share_above_ci(self, limit_ns: int) -> tuple[float, float] | None:
        """The 95% interval of that share."""


@dataclass(frozen=True, slots=True)
class Sla:
    """An agreement about a distribution of delay."""

    text: str
    quantile: float | None
    name: str | None
    limit_ns: int | None
    inclusive: bool
    bound: float  # ns, or a share
    leg: str | None = None  # of a round trip, or both together; None: every leg there is

    @classmethod
    def parse(cls, text: str) -> Sla:
        """Parse a question; a ValueError says how to write one.

        >>> Sla.parse("p99<50ms").bound
        50000000
        """
        found = _QUESTION.fullmatch(text)
        if not found:
            raise ValueError(
                f"{text!r} is not a question: write p99<50ms, mean<10ms or 'above(50ms)<5%', "
                "and of rtt server.p99<50ms for one leg, both.p99<50ms for their sum"
            )
        limit = found["limit"]
        return cls(
            text=text.strip(),
            quantile=float(found["q"]) / 100 if found["q"] else None,
            name=found["name"],
            limit_ns=parse_duration_ns(limit) if limit else None,
            inclusive=found["sign"] == "<=",
            bound=parse_share(found["bound"]) if limit else parse_duration_ns(found["bound"]),
            leg=found["leg"],
        )

    @property
    def takes(self) -> float:
        """How many delays it takes for one to lie beyond the quantile that is asked about."""
        beyond = 0.5 if self.quantile is None else min(self.quantile, 1 - self.quantile)
        return math.ceil(1 / beyond - 1e-6) if beyond > 0 else math.inf

    def asks(self, leg: str) -> bool:
        """Whether it is about this leg."""
        return leg in ("server", "client") if self.leg is None else leg == self.leg

    def value(self, delays: Delays) -> float | None:
        """The figure asked about, in ns or as a share; None without samples."""
        found: float | None = self._value(delays)
        return found

    def _value(self, delays: Delays | Distributions) -> Any:
        if self.quantile is not None:
            return delays.quantile_ns(self.quantile)
        if self.limit_ns is not None:
            return delays.share_above(self.limit_ns)
        return getattr(delays, f"{self.name}_ns")

    def values(self, many: Distributions) -> npt.NDArray[np.float64]:
        """The figure asked about, of many distributions; NaN without samples."""
        found: npt.NDArray[np.float64] = self._value(many)
        return found

    def holds(self, delays: Delays) -> bool | None:
        """Whether it holds; None without data."""
        value = self.value(delays)
        if value is None:
            return None
        return value <= self.bound if self.inclusive else value < self.bound

    def broken_by(self, many: Distributions) -> npt.NDArray[np.bool_]:
        """Which of many distributions are known to break it."""
        value = self._value(many)  # NaN is neither above nor below
        found: npt.NDArray[np.bool_] = value > self.bound if self.inclusive else value >= self.bound
        return found

    def to_dict(self, delays: Delays) -> dict[str, str | bool | float | None]:
        """The verdict for JSON: durations in seconds, shares as they are."""
        value = self.value(delays)
        if value is not None and self.limit_ns is None:
            value /= 1e9
        return {"question": self.text, "holds": self.holds(delays), "value": value}

    def sentence(self, delays: Delays) -> str:
        """The verdict in words."""
        if self.value(delays) is None:
            return f"{self.text}: cannot say"
        return f"{self.text}: {'holds' if self.holds(delays) else 'does not hold'}, it is {self.value_text(delays)}"

    def value_text(self, delays: Delays) -> str:
        """The value, for a person, with digits enough to tell it from the bound; and whether delays are too few."""
        value = self.value(delays)
        return "unknown" if value is None else self.text_of(value) + self._too_few(delays.samples)

    def _too_few(self, samples: int) -> str:
        """What a quantile is of fewer delays than it takes for one to lie beyond it."""
        if self.quantile is None or samples >= self.takes:
            return ""
        end = "longest" if self.quantile >= 0.5 else "shortest"
        return f" (the {end} of {samples}: too few to be sure, p{100 * self.quantile:g} takes {self.takes:,} delays)"

    def text_of(self, value: float) -> str:
        """A value in ns, or a share, likewise."""
        off = abs(value - self.bound)
        if self.limit_ns is None:
            return format_duration(value, 2 * off or math.inf)
        digits = next((n for n in range(2, 6) if f"{value:.{n}%}" != f"{self.bound:.{n}%}"), 2)
        return f"{value:.{digits}%}"


@dataclass(frozen=True)
class Mean:
    """Only a mean, to put questions to."""

    mean_ns: float | None
    min_ns: None = None
    max_ns: None = None
    samples: int = 0

    def quantile_ns(self, q: float) -> None:
        """Unknown."""

    def share_above(self, limit_ns: int) -> None:
        """Unknown."""

    def share_above_ci(self, limit_ns: int) -> None:
        """Unknown."""
