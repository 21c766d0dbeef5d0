"""How much a mean varies if delays have a level that changes, and how slowly it changes, from cosines of a recording.

Law: batches of delays, in order of time, are noise and perhaps a level that is forgotten within a time t. The spectrum
of such a level is Lorentz's: an Ornstein-Uhlenbeck level, a path of two states, nearly that of a queue. The powers of
the slowest cosines of n batches are independent, each a chi square around the spectrum at its frequency (P. Whittle
1953). So each t, from half a batch to twice the recording, and each size of the level against the noise, is as
likely as these powers make it, and gives the variance of the mean: the spectrum at frequency 0. Nothing is chosen: the
interval is that of all of them, weighted by how likely they are. Where powers cannot tell a slow level from none, both
count, and the interval is wide. Before anything is seen, the chance of a level is one in five, and its times and sizes
are equally likely, by their logarithms. Memory: 90 KB for each number of batches.

Law of returns: the slowest cosine alone tells a level of a quarter of the recording from one that never comes back, and
it is one number with much chance in it. How fast a level moves is known far better, from all cosines. A queue that
moves by a variance of s^2 in a unit of time, and has a mean of w above its floor, is drawn to it by s^2 / (2 w)
(reflected Brownian motion: J. Harrison 1985). A recording of length T shows this drift to s / sqrt(T), one part in
sqrt(returns): returns = T s^2 / (4 w^2). It is twice the number of independent stretches that such a queue has; of any
level it is the number of its stretches, times the variance of batches, noise included as it is in w, by w^2. With few
returns the drift may be none, and the mean anything.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag import _kernels

SLOWEST: Final = 64  # cosines that count
STEADY: Final = 0.8  # how likely it is before that there is no level
_TIMES: Final = math.sqrt(2.0)  # from a time to the next
_SIZES: Final = 2.0 ** np.arange(-1, 17, 2)  # of the level, by the noise, at frequency 0
_DOUBT: Final = 1 / 3  # how likely it may be that there are fewer independent stretches than is said
_TAIL: Final = 0.05
_NOTHING: Final = 1e-6  # how likely what is left out may be

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


class Slowness(NamedTuple):
    """What cosines tell of the sum of batches."""

    half: float  # the width of its 95% interval
    level: float  # the part of its variance that is a level's
    stretches: float  # independent ones
    returns: float  # to the floor, if the level is that of a queue
    part: float  # of the reach that is the level's, not that of noise


class _Kinds(NamedTuple):
    """Every kind of level that is thought possible: one row, or number, each; the first is none."""

    inverse: Floats  # of the spectrum at each cosine, by that at 0
    likely: Floats  # logarithm, before
    noise: Floats  # its share in the spectrum at 0
    stretches: Floats
    fewest: Ints  # in order of stretches
    part: Floats  # of the variance of a batch that is the level's
    moves: Floats  # returns, by the variance of the sum and the square of a batch's reach


def slowness(powers: Floats, batches: int, reach: float) -> Slowness:
    """What the powers of the slowest cosines of this many batches tell; not all of them are 0.

    `reach`: by how much the mean batch lies above the lowest ones.
    """
    kinds = _kinds(batches, len(powers))
    left = kinds.inverse @ powers
    likely = kinds.likely - 0.5 * len(powers) * np.log(left)
    weights = np.exp(likely - likely.max())
    weights /= weights.sum()
    stretches = float(kinds.stretches[_doubted(kinds.fewest, weights)])
    variances = left / len(powers)
    held = np.flatnonzero(weights > _NOTHING)
    likely, those = weights[held], variances[held]
    half = _kernels.half_width(likely, np.sqrt(those), *_normal(), _TAIL)
    noise = float(weights @ (variances * kinds.noise))
    middle = math.exp(float(likely @ np.log(those)))
    returns = kinds.moves * variances / reach**2 if reach > 0 else kinds.moves
    kind = _doubted(returns.argsort(), weights)
    return Slowness(half, max(0.0, middle - noise), stretches, float(returns[kind]), math.sqrt(kinds.part[kind]))


def _doubted(order: Ints, weights: Floats) -> int:
    """Of kinds in order of a value the one below which the true one lies with as much doubt as is allowed."""
    return int(order[int(weights[order].cumsum().searchsorted(_DOUBT))])


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
    of_level = share * (1 - kept) / (1 + kept)  # the variance of a batch, by the spectrum at 0
    of_batch = of_level + 1 - share
    part = np.concatenate([[0.0], (of_level / of_batch).ravel()])
    moves = np.concatenate([[np.inf], (of_batch * (1 - kept) / 2).ravel()])
    likely = before - 0.5 * np.log(spectra).sum(axis=1)
    return _Kinds(1 / spectra, likely, noise, stretches, np.argsort(stretches), part, moves)


@lru_cache(maxsize=1)
def _normal() -> tuple[Floats, Floats]:
    """How likely a normal value is further from 0 than each of these."""
    at = np.linspace(0.0, 6.0, 601)
    return at, np.array([math.erfc(one / math.sqrt(2)) for one in at])
