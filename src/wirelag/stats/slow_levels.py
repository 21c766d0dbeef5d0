"""How much a mean varies if delays have a level that changes, and how slowly it changes, from cosines of a recording.

Law: batches of delays, in order of time, are noise and perhaps a level that is forgotten within a time t. The spectrum
of such a level is Lorentz's: an Ornstein-Uhlenbeck level, a path of two states, nearly that of a queue. The powers of
the slowest cosines of n batches are independent, each a chi square around the spectrum at its frequency (P. Whittle
1953). So each t, from half a batch to twice the recording, and each size of the level against the noise, is as
likely as these powers make it, and gives the variance of the mean: the spectrum at frequency 0. Nothing is chosen: the
interval is that of all of them, weighted by how likely they are. Where powers cannot tell a slow level from none, both
count, and the interval is wide. Before anything is seen, the chance of a level is one in five, and its times and sizes
are equally likely, by their logarithms. Memory: 90 KB for each number of batches.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

SLOWEST: Final = 64  # cosines that count
STEADY: Final = 0.8  # how likely it is before that there is no level
_TIMES: Final = math.sqrt(2.0)  # from a time to the next
_SIZES: Final = 2.0 ** np.arange(-1, 17, 2)  # of the level, by the noise, at frequency 0
_DOUBT: Final = 1 / 3  # how likely it may be that there are fewer independent stretches than is said
_TAIL: Final = 0.05
_NOTHING: Final = 1e-6  # how likely what is left out may be
_HALVINGS: Final = 15

Floats = npt.NDArray[np.float64]


class Slowness(NamedTuple):
    """What cosines tell of the sum of batches."""

    half: float  # the width of its 95% interval
    level: float  # the part of its variance that is a level's
    stretches: float  # independent ones


class _Kinds(NamedTuple):
    """Every kind of level that is thought possible: one row, or number, each; the first is none."""

    inverse: Floats  # of the spectrum at each cosine, by that at 0
    likely: Floats  # logarithm, before
    noise: Floats  # its share in the spectrum at 0
    stretches: Floats


def slowness(powers: Floats, batches: int) -> Slowness:
    """What the powers of the slowest cosines of this many batches tell; not all of them are 0."""
    kinds = _kinds(batches, len(powers))
    left = kinds.inverse @ powers
    likely = kinds.likely - 0.5 * len(powers) * np.log(left)
    weights = np.exp(likely - likely.max())
    weights /= weights.sum()
    slow_first = np.cumsum(weights[::-1])  # the slowest kinds are last
    stretches = float(kinds.stretches[::-1][int(np.searchsorted(slow_first, _DOUBT))])
    variances = left / len(powers)
    held = weights > _NOTHING
    half = _half_width(weights[held], np.sqrt(variances[held]))
    noise = float(weights @ (variances * kinds.noise))
    middle = math.exp(float(weights[held] @ np.log(variances[held])))
    return Slowness(half, max(0.0, middle - noise), stretches)


@lru_cache(maxsize=32)
def _kinds(batches: int, cosines: int) -> _Kinds:
    angles = np.arange(1, cosines + 1) * (math.pi / batches)
    times = 0.5 * _TIMES ** np.arange(math.ceil(2 * math.log2(4 * batches)))  # in batches
    kept = np.exp(-1 / times)[:, None]
    level = (1 - kept) ** 2 / (1 - 2 * kept * np.cos(angles) + kept**2)
    share = _SIZES / (1 + _SIZES)
    with_level = 1 - share[:, None] + share[:, None] * level[:, None, :]
    spectra = np.concatenate([np.ones((1, cosines)), with_level.reshape(-1, cosines)])
    each = (1 - STEADY) / (len(spectra) - 1)
    before = np.log(np.concatenate([[STEADY], np.full(len(spectra) - 1, each)]))
    stretches = np.concatenate([[batches], np.repeat(batches / (2 * times), len(_SIZES))])
    noise = np.concatenate([[1.0], np.tile(1 - share, len(times))])
    return _Kinds(1 / spectra, before - 0.5 * np.log(spectra).sum(axis=1), noise, stretches)


def _half_width(weights: Floats, errors: Floats) -> float:
    """Half the width of the 95% interval around 0 of a normal value whose error is one of these, so likely each."""
    at, beyond = _normal()
    low, high = float(errors.min()), float(at[-1] * errors.max())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(weights @ np.interp(middle / errors, at, beyond)) > _TAIL:
            low = middle
        else:
            high = middle
    return high


@lru_cache(maxsize=1)
def _normal() -> tuple[Floats, Floats]:
    """How likely a normal value is further from 0 than each of these."""
    at = np.linspace(0.0, 6.0, 601)
    return at, np.array([math.erfc(one / math.sqrt(2)) for one in at])
