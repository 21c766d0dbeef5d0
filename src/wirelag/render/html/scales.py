"""Scales of axes that columns are drawn on, and points of columns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.render.html.charts import Figure, all_rounded, clock, delay_axis, reach, rounded
from wirelag.report import Report
from wirelag.synopses.delay_sample import DelaySample

SHORTEST: Final = 1e-9  # a logarithmic axis shows 0 here
DATED_S: Final = 30.0  # a longer axis shows the time of day

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of a delay axis: linear up to `linear_s`, logarithmic if None."""

    linear_s: float | None

    @classmethod
    def of(cls, tail: DelaySample, reports: Iterable[Report]) -> Scale:
        """The scale that shows all these delays."""
        said = [x for r in reports for x in (r.mean, r.min, *r.quantiles.values()) if x is not None]
        if min([*said, float(tail.delays_ns.min(initial=0)) / 1e9], default=0.0) >= 0:
            return cls(None)
        sizes = np.abs(tail.delays_ns / 1e9) if len(tail) else np.abs(np.array(said))
        return cls(max(float(np.median(sizes)), SHORTEST))

    def shown(self, seconds: Any) -> Floats:
        """These delays as they are drawn: a logarithmic axis has no 0."""
        values = np.asarray(seconds, np.float64)
        return np.maximum(values, SHORTEST) if self.linear_s is None else values

    def reach(self, seconds: Any) -> tuple[float, float]:
        """Ends of an axis that shows all of these."""
        values = self.shown(seconds)
        if self.linear_s is None:
            return reach(values.tolist())
        low, high = np.arcsinh(np.array([values.min(), values.max()]) / self.linear_s) if len(values) else (-1.0, 1.0)
        room = max(0.04 * (high - low), 1e-9 * max(abs(low), abs(high)), 1e-9)
        return math.sinh(low - room) * self.linear_s, math.sinh(high + room) * self.linear_s

    def edges(self, low: float, high: float, count: int) -> Floats:
        """About this many bins of equal width on the axis, with an edge at 0."""
        if self.linear_s is None:
            return np.geomspace(max(low, SHORTEST), max(high, SHORTEST), count + 1)
        first, last = math.asinh(low / self.linear_s), math.asinh(high / self.linear_s)
        step = (last - first) / (count - 1)
        places = step * np.arange(math.floor(first / step), math.ceil(last / step) + 1, dtype=np.float64)
        return np.asarray(np.sinh(places) * self.linear_s, np.float64)

    def axis(self, low: float, high: float, title: str = "delay") -> Figure:
        """The axis between two delays."""
        if self.linear_s is None:
            return delay_axis(low, high, title)
        return {"kind": "delay", "scale": "signed", "linear": self.linear_s, "range": [low, high], "title": title}

    @property
    def zero(self) -> list[Figure]:
        """A line across the chart at 0, if the axis has a 0."""
        return [] if self.linear_s is None else [{"y": 0, "colour": "bad"}]


@dataclass(frozen=True, slots=True)
class Times:
    """The scale of a time axis: the time of day in ms, or seconds since the start if short."""

    start_s: float
    end_s: float

    @property
    def dated(self) -> bool:
        """Whether the axis shows the time of day."""
        return self.end_s - self.start_s >= DATED_S and abs(self.start_s) < 2.0**37

    def places(self, seconds: Any) -> list[float]:
        """These times in axis coordinates."""
        values = np.asarray(seconds, np.float64)
        if self.dated:
            return [*map(int, np.round(values * 1e3).tolist())]
        return [*map(rounded, np.round(values - self.start_s, 7).tolist())]

    def axis(self) -> Figure:
        """The axis."""
        ends = self.places([self.start_s, self.end_s])
        if self.dated:
            return {"kind": "time", "range": ends, "title": "time (UTC)"}
        start_ns = round(self.start_s * 1e9)
        title = f"seconds since {clock(start_ns, 10**6)} UTC"
        return {"kind": "seconds", "range": ends, "title": title, "since_ns": str(start_ns)}


def cloud(x: list[float], y: Floats, name: str, colour: str) -> Figure:
    """Points."""
    named = {"name": name} if name else {}
    return {
        "draw": "points",
        **named,
        "x": x,
        "y": all_rounded(y.tolist()),
        "colour": colour,
        "size": 2,
        "opacity": 0.55,
    }
