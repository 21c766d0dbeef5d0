"""How well the delays of packets predict those of nearby packets, on which interpolation between references relies.

If neighbours predict no better than the overall mean, interpolation gains nothing. And if packets between two addresses
are predicted better by packets of the same pair than by all, they take another path than the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

MOST_WAYS: Final = 16
FEWEST: Final = 40  # packets whose errors are compared
BETTER: Final = 0.8  # share of the error with all packets as references: below it a pair takes another path
SIGMAS: Final = 4  # standard deviations of the gain: there are many pairs, and chance favours one


@dataclass(frozen=True, slots=True)
class Locality:
    """The result for a sample of packets with known delays."""

    ways: Words  # keys of address pairs that take another path, in rising order
    error: float | None  # error of neighbours as a share of the mean's error; None: too few packets


def locality(times_ns: Ints, delays_ns: Ints, keys: Words, apart: int) -> Locality:
    """Predict each packet from those `apart` packets before and after it, of all pairs and of its own."""
    order = np.argsort(times_ns, kind="stable")
    times_ns, delays_ns, keys = times_ns[order], delays_ns[order], keys[order]
    errors = _errors(times_ns, delays_ns, apart)
    spread = np.abs(delays_ns - delays_ns.mean()) if len(delays_ns) else np.empty(0)
    gains = []
    by_key = np.argsort(keys, kind="stable")
    pairs, begins = np.unique(keys[by_key], return_index=True)
    for key, rows in zip(pairs, np.split(by_key, begins)[1:], strict=True):
        if len(rows) < FEWEST + 2 * apart:
            continue
        own = _errors(times_ns[rows], delays_ns[rows], apart)
        known = np.isfinite(own) & np.isfinite(errors[rows])
        count = np.count_nonzero(known)
        if count < FEWEST:
            continue
        less = errors[rows][known] - own[known]
        likely = less.sum() > SIGMAS * count**0.5 * less.std()
        if likely and own[known].sum() < BETTER * errors[rows][known].sum():
            gains.append((less.sum(), key, rows, own))
    gains = sorted(gains, key=lambda one: -one[0])[:MOST_WAYS]
    for _, _, rows, own in gains:
        errors[rows] = own
        spread[rows] = np.abs(delays_ns[rows] - delays_ns[rows].mean())
    known = np.isfinite(errors)
    total = spread[known].sum()
    error = float(errors[known].sum() / total) if np.count_nonzero(known) >= FEWEST and total else None
    return Locality(np.array(sorted(key for _, key, _, _ in gains), np.uint64), error)


def _errors(times_ns: Ints, delays_ns: Ints, apart: int) -> Floats:
    """The error of a straight line between two neighbours for each packet; nan at both ends."""
    errors = np.full(len(times_ns), np.nan)
    if len(times_ns) > 2 * apart:
        (before_ns, after_ns), (before, after) = (
            (column[: -2 * apart], column[2 * apart :]) for column in (times_ns, delays_ns)
        )
        place = (times_ns[apart:-apart] - before_ns) / np.maximum(after_ns - before_ns, 1)
        errors[apart:-apart] = np.abs(before + (after - before) * place - delays_ns[apart:-apart])
    return errors
