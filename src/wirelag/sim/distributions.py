"""Distributions of durations in text form: `lognormal:20ms,0.5` is a median of 20 ms with sigma 0.5."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag.units import parse_duration_ns

Floats = npt.NDArray[np.float64]

FORMS: Final = {
    "constant": "constant:10ms",
    "uniform": "uniform:1ms,5ms (lowest, highest)",
    "exponential": "exponential:5ms (mean)",
    "lognormal": "lognormal:20ms,0.5 (median, sigma)",
    "weibull": "weibull:50us,0.6 (mean, shape)",
    "pareto": "pareto:1ms,3 (smallest, shape)",
}
DURATIONS: Final = {"constant": 1, "uniform": 2, "exponential": 1, "lognormal": 1, "weibull": 1, "pareto": 1}
NUMBERS: Final = {"constant": 0, "uniform": 0, "exponential": 0, "lognormal": 1, "weibull": 1, "pareto": 1}


@dataclass(frozen=True)
class Distribution:
    """A distribution of durations in ns; `draw(rng, size)` samples it."""

    text: str
    draw: Callable[[np.random.Generator, int], Floats]


def parse_distribution(text: str) -> Distribution:
    """Read a distribution; a bare duration is a constant.

    >>> parse_distribution("uniform:1ms,5ms").text
    'uniform:1ms,5ms'
    """
    name, colon, rest = text.strip().partition(":")
    if not colon:
        name, rest = "constant", name
    if name not in FORMS or (not colon and "," in text):
        raise ValueError(f"{text!r} is not a distribution: write one of {'; '.join(FORMS.values())}")
    parts = rest.split(",")
    durations = DURATIONS[name]
    wanted = durations + NUMBERS[name]
    if len(parts) != wanted:
        raise ValueError(f"{text!r} has {len(parts)} parameters instead of {wanted}: write {FORMS[name]}")
    scale = [float(parse_duration_ns(part)) for part in parts[:durations]]
    if min(scale) < 0:
        raise ValueError(f"{text!r} has a negative duration: write {FORMS[name]}")
    return Distribution(text, _sampler(name, scale, [_number(part, text, name) for part in parts[durations:]]))


def _number(part: str, text: str, name: str) -> float:
    try:
        value = float(part)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{part!r} in {text!r} is not a positive number: write {FORMS[name]}")
    return value


def _sampler(name: str, scale: list[float], numbers: list[float]) -> Callable[[np.random.Generator, int], Floats]:
    first, last = scale[0], scale[-1]
    if name == "constant":
        return lambda rng, size: np.full(size, first)
    if name == "uniform":
        if last < first:
            raise ValueError(f"uniform needs the lowest duration first: write {FORMS[name]}")
        return lambda rng, size: rng.uniform(first, last, size)
    if name == "exponential":
        return lambda rng, size: rng.exponential(first, size)
    shape = numbers[0]
    if name == "lognormal":
        return lambda rng, size: first * np.exp(rng.normal(0.0, shape, size))
    if name == "weibull":
        return lambda rng, size: first / math.gamma(1 + 1 / shape) * rng.weibull(shape, size)
    return lambda rng, size: first * (1 + rng.pareto(shape, size))
