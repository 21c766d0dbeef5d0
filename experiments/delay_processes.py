"""Delays over time with a known long-run law, for coverage.py: queues, levels that change fast or slowly, heavy tails.

Law: a process has the delay at any time of a recording, and the law of a delay at a random time of a very long one, as
independent draws. A recording lasts 30 s, however many packets it has; one of a queue by its length lasts as long as
this many packets keep the queue busy, so that few packets are a short recording. All times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from answer_captures import SERVICE, Queue

SECONDS = 30.0
DRAWS = 4_000_000
PIECE = 20.0

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
OverTime = Callable[[np.random.Generator, Floats], Floats]  # times, in order, to delays
Law = Callable[[np.random.Generator, int], Floats]


@dataclass(frozen=True)
class Process:
    """Delays at times, and their long-run law."""

    name: str
    over_time: OverTime
    law: Law
    fifo: bool = False  # whether packets keep their order
    each: float | None = None  # seconds from a packet to the next; None: a recording lasts 30 s

    def seconds(self, packets: int) -> float:
        """How long a recording of this many packets lasts."""
        return SECONDS if self.each is None else self.each * packets

    @cached_property
    def _draws(self) -> Floats:
        return self.law(np.random.default_rng(0), DRAWS)

    @cached_property
    def truth(self) -> dict[str, float]:
        """The long-run value of each figure, as a report names it."""
        shares = {"0.5": 0.5, "0.9": 0.9, "0.99": 0.99}
        return {"mean": float(self._draws.mean())} | {
            name: float(np.quantile(self._draws, share)) for name, share in shares.items()
        }


def independent(name: str, law: Law) -> Process:
    """Delays that know nothing of each other."""
    return Process(name, lambda rng, times: law(rng, len(times)), law)


def _forgotten(rng: np.random.Generator, times: Floats) -> Floats:
    """A normal level that is forgotten within a time of 1, at these times: in pieces whose exponents are small."""
    keeps = np.exp(-np.diff(times, prepend=-np.inf))
    steps, level, found = rng.normal(0, np.sqrt(1 - keeps**2)), 0.0, np.empty(len(times))
    edges = np.flatnonzero(np.diff((times - times[0]) // PIECE)) + 1
    for begin, end in zip([0, *edges], [*edges, len(times)], strict=True):
        since = times[begin:end] - times[begin]
        steps[begin] += keeps[begin] * level
        found[begin:end] = np.exp(-since) * np.cumsum(steps[begin:end] * np.exp(since))
        level = found[end - 1]
    return found


def forgets(tau: float, noise: float = 1e-3) -> Process:
    """A level that is forgotten within tau (Ornstein-Uhlenbeck, at any times an AR(1)), and noise."""

    def over_time(rng: np.random.Generator, times: Floats) -> Floats:
        found = _forgotten(rng, times / tau)
        return np.maximum(20e-3 + 3e-3 * found + noise * rng.normal(size=len(times)), 0.0)

    return Process(
        f"AR(1), tau {tau:g} s" + (f", noise {noise * 1e3:g} ms" if noise > 1e-3 else ""),
        over_time,
        lambda rng, count: np.maximum(20e-3 + rng.normal(0, np.hypot(3e-3, noise), count), 0.0),
    )


def two_states(spell: float) -> Process:
    """A path of 10 or of 30 ms, for a random while each, and a wait."""

    def over_time(rng: np.random.Generator, times: Floats) -> Floats:
        ends = np.cumsum(rng.exponential(spell, int(3 * SECONDS / spell) + 50))
        slow = (np.searchsorted(ends, times) + rng.integers(2)) % 2
        return np.asarray(10e-3 + 20e-3 * slow + rng.exponential(2e-3, len(times)))

    return Process(
        f"two states, {spell:g} s each",
        over_time,
        lambda rng, count: 10e-3 + 20e-3 * rng.integers(0, 2, count) + rng.exponential(2e-3, count),
    )


def drifts(by: float) -> Process:
    """A level that rises or falls by this much over the recording, which begins anywhere."""

    def over_time(rng: np.random.Generator, times: Floats) -> Floats:
        level = by * rng.choice([-1, 1]) * (times / SECONDS - rng.random())
        return np.asarray(30e-3 + level + rng.exponential(2e-3, len(times)))

    def law(rng: np.random.Generator, count: int) -> Floats:
        level = by * rng.choice([-1, 1], count) * (rng.random(count) - rng.random(count))
        return np.asarray(30e-3 + level + rng.exponential(2e-3, count))

    return Process("a level that drifts", over_time, law)


def sine(period: float) -> Process:
    """A level with a daily course, in short."""

    def over_time(rng: np.random.Generator, times: Floats) -> Floats:
        return np.asarray(20e-3 + 5e-3 * np.sin(2 * np.pi * (times / period + rng.random())) + _wait(rng, len(times)))

    def law(rng: np.random.Generator, count: int) -> Floats:
        return np.asarray(20e-3 + 5e-3 * np.sin(2 * np.pi * rng.random(count)) + _wait(rng, count))

    return Process(f"sine, period {period:g} s", over_time, law)


def _wait(rng: np.random.Generator, count: int) -> Floats:
    return rng.exponential(2e-3, count)


def queue(load: float) -> Process:
    """The wait in a queue with random arrivals, and a fixed part."""

    def law(rng: np.random.Generator, count: int) -> Floats:
        waits = rng.exponential(SERVICE / (1 - load), count) * (rng.random(count) < load)
        return np.asarray(5e-3 + waits)

    return Process(
        f"queue, {load:.0%} load",
        lambda rng, times: 5e-3 + Queue(rng, load, SECONDS + 1)(times),
        law,
        fifo=True,
    )


def short_queue(load: float) -> Process:
    """The same, with as many packets as the queue itself has: few are a short recording."""
    return Process(
        f"queue by its length, {load:.0%}",
        lambda rng, times: 5e-3 + Queue(rng, load, float(times[-1]) + 1e-3)(times),
        queue(load).law,
        each=SERVICE / load,
    )


LOADS = (0.55, 0.70, 0.85, 0.95)
SHORT = tuple(map(short_queue, LOADS))
PROCESSES = (
    independent("independent", lambda rng, count: 10e-3 + rng.exponential(2e-3, count)),
    independent("lognormal, sigma 1.2", lambda rng, count: 5e-3 + 1e-3 * rng.lognormal(0, 1.2, count)),
    independent("Pareto, exponent 2.5", lambda rng, count: 5e-3 + 1e-3 * rng.pareto(2.5, count)),
    *map(queue, LOADS),
    forgets(0.1),
    forgets(0.5),
    forgets(3.0),
    forgets(3.0, noise=3e-3),
    two_states(0.5),
    two_states(2.0),
    two_states(5.0),
    drifts(40e-3),
    sine(5.0),
    sine(120.0),
    *SHORT,
)
LEVELS = independent("connections with levels", lambda rng, count: 10e-3 * rng.lognormal(0, 0.5, count))


def sizes_of_connections(rng: np.random.Generator, packets: int) -> Ints:
    """The connection of each packet: some have thousands of packets, most have few."""
    shares = rng.pareto(1.5, max(2, packets // 20)) + 0.05
    return rng.choice(len(shares), packets, p=shares / shares.sum())
