"""Delays as queues make them, to test intervals with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def waits(rng: np.random.Generator, count: int, load: float) -> Floats:
    """Times in a queue with random arrivals and services (M/M/1), in steady state; the service rate is 1."""
    first = rng.exponential(load / (1 - load)) * (rng.random() < load)  # the wait of the first packet
    served, gaps = rng.exponential(1.0, count), rng.exponential(1 / load, count)
    steps = np.concatenate(([first], served[:-1] - gaps[1:])).cumsum()
    return steps - np.minimum(np.minimum.accumulate(steps), 0.0) + served
