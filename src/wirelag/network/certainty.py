"""The uncertainty of a mean delay that is compared with a limit, if successive packets wait in the same queue.

Law of errors: delays of neighbouring packets are correlated, so n of them count for fewer than n. Time is cut into
equal batches. The variance of the mean follows from how the sums of batches deviate from their counts times the mean:
from the five slowest cosines of that (stats/over_time.py), however long the time, and it is at least that of
independent batches. It has five degrees of freedom.

Law of ratios: a queue that is longer on average varies more, so ratios show better than differences what exceeds a
limit: if errors were learned from batches, the part above the floor is compared as a logarithm, and its interval is
built the same way, 1.5 times as long upwards. An interval for a reader (stats/over_time.py) may be left out where a
recording is too short; a verdict cannot.

Simulated guarantee, for a queue of 500 packets/s in bursts of four at 70% utilisation
(tests/network/test_certainty.py): the interval contains the true mean in 90% of recordings of 1.5 s, and in 93% or more
from 3 s on; a limit equal to the true mean is called exceeded in at most 5%. Busier queues need longer recordings: at
85%, from 10 s on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.stats.over_time import Bounds, Error, half95

LEVEL: Final = 0.05
FEWEST: Final = 4  # batches
BATCHES: Final = 32  # of a sample
COSINES: Final = 5
UPWARDS: Final = 1.5  # factor by which intervals are longer upwards

Numbers = Sequence[float] | npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


def batch_error(sums: Numbers, counts: Numbers) -> Error | None:
    """The error of sum(sums) / sum(counts), for batches in order of time; None if there are too few."""
    totals, weights = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    whole = float(weights.sum())
    if len(totals) < FEWEST or whole <= 0:
        return None
    apart = totals - weights * (totals.sum() / whole)
    powers = _kernels.cosines(apart, COSINES)
    error = math.sqrt(sum(powers) / len(powers))
    return max(error, math.sqrt(float(apart @ apart))) / whole, float(len(powers))


def sample_error(sent_ns: Ints, delays_ns: Ints, weights: Ints) -> Error | None:
    """The error of the mean of a sample of delays, in seconds; None for fewer than two."""
    if len(delays_ns) < 2:
        return None
    since = (sent_ns - sent_ns.min()).astype(np.float64)
    batch = np.minimum((since * (BATCHES / (since.max() + 1))).astype(np.int64), BATCHES - 1)
    above = (delays_ns - delays_ns.min()).astype(np.float64) / 1e9  # a clock offset would use up the digits of a float
    found = batch_error(
        np.bincount(batch, above * weights, BATCHES), np.bincount(batch, weights.astype(np.float64), BATCHES)
    )
    return None if found is None else (found[0], min(found[1], len(delays_ns) - 1.0))


def bounds(value: float, error: Error, above: float | None = None) -> Bounds:
    """The 95% interval of a value, of which `above` lies above a floor (None: unknown)."""
    half = half95(error[1]) * error[0]
    if above is None or above <= 0:
        return value - half, value + half
    ratio = half / above
    up = UPWARDS * ratio
    up = math.expm1(up) if up <= 1 else up * math.expm1(1)  # beyond that the error exceeds the value
    return value + above * math.expm1(-ratio), value + above * up


def p_beyond(excess: float, error: float, freedom: float = math.inf) -> float:
    """The probability that chance alone exceeds 0 by this much."""
    if error == 0:
        return 0.0 if excess > 0 else 1.0
    t = excess / error
    if math.isfinite(freedom):  # Wallace 1959: a normal deviate of about the same probability, conservative
        t = math.copysign((8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom)), t)
    return math.erfc(t / math.sqrt(2)) / 2
