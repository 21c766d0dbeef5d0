"""How sure a share of delays is, and a quantile, if delays that follow each other are alike (over_time.py).

Law of shares: a share of delays beyond a limit varies with what is alike, too. A quantile beyond which delays are rare
(fewer than one in 20) has an interval only if it would have one with as much error as the mean has: they come together,
and a recording may have missed them.
Guarantee: as in over_time.py. Memory: none.
"""

from __future__ import annotations

import math
from typing import Final

from wirelag.stats.distribution import Z95, wilson
from wirelag.stats.over_time import Bounds, Error, half95

FEWEST_BEYOND: Final = 5  # delays beyond the end of a quantile's interval
RARE_ALIKE: Final = 50.0  # the same, if delays are alike,
MORE_THAN_CHANCE: Final = 1.5  # which make the interval of the mean this many times as wide
STRETCHES_BEYOND: Final = 0.5  # independent stretches beyond a quantile
OFTEN: Final = 0.05  # the share of delays that no recording misses altogether
BEYOND: Final = 3.0  # how much further a share may lie beyond a quantile, the rarer delays are there
_WIDEST: Final = 2.3  # exponent: further than ten times a share nothing is said
_FISHER: Final = (Z95**2 - 1) / 6  # errors by which an interval of a count is moved, for each unit of skewness


def share_bounds(share: float, error: Error, samples: float) -> Bounds:
    """The 95% interval of a share: at least that of independent samples."""
    low, high = wilson(share, samples)
    if not 0 < share < 1:
        return low, high
    half, alike = half95(error[1]) * error[0], _alike_part(share, error, samples)
    upwards, downwards = half / share, half / (1 - share)  # far ends are ratios of the smaller part
    if share <= 0.5:
        rarer = BEYOND * (1 - 2 * share)
        wide = share * math.exp(-upwards), share * math.exp(min(upwards * (1 + rarer * upwards), _WIDEST))
    else:
        wide = 1 - (1 - share) * math.exp(min(downwards, _WIDEST)), 1 - (1 - share) * math.exp(-downwards)
    return max(0.0, low + alike * min(0.0, wide[0] - low)), min(1.0, high + alike * max(0.0, wide[1] - high))


def _alike_part(share: float, error: Error, samples: float) -> float:
    """The part of the variance of a share that is not chance of independent samples."""
    by_chance = share * (1 - share) / samples
    return 1 - by_chance / error[0] ** 2 if error[0] ** 2 > by_chance else 0.0


def enough_beyond(q: float, wider: float, samples: float, stretches: float) -> bool:
    """Whether a quantile has an interval, if its error is larger than by chance alone by the same factor as the mean's.

    Rare delays come together, and may be missing altogether: what the recording shows of the mean decides. If that is
    more than chance, 50 of them must be there: with fewer, those recordings have an interval that seem calm. Of a
    quantile beyond which a share of `OFTEN` lies, chance alone decides, and whether stretches enough lie beyond it.
    """
    beyond, often = min(q, 1 - q), min(q, 1 - q) >= OFTEN
    if not often and wider > MORE_THAN_CHANCE and samples * beyond < RARE_ALIKE:
        return False
    if often and stretches * beyond < STRETCHES_BEYOND:
        return False
    return Z95 * (1.0 if often else wider) * math.sqrt(q * (1 - q) / samples) <= beyond


def quantile_shares(q: float, error: Error, samples: float) -> Bounds | None:
    """The shares at which the ends of a quantile's 95% interval lie (Woodruff); None if too few delays are beyond.

    `error` is that of the share of delays below the quantile. What makes delays alike may move an end to the shortest
    or the longest one; only a quantile beyond which delays are rare has no interval then.
    """
    beyond = min(q, 1 - q)
    by_chance = Z95 * math.sqrt(q * (1 - q) / samples)
    half = max(half95(error[1]) * error[0], by_chance)
    ratio = half / beyond
    if (by_chance if beyond >= OFTEN else half) > beyond:
        return None
    alike, rarer = _alike_part(q, error, samples), BEYOND * (1 - 2 * beyond)
    shift = (1 - 2 * beyond) * _FISHER / samples
    near, far = (
        beyond * (alike * end + (1 - alike) * straight) + (1 - alike) * shift
        for end, straight in (
            (math.exp(min(ratio, _WIDEST)), 1 + ratio),
            (math.exp(-ratio * (1 + rarer * ratio)), 1 - ratio),
        )
    )
    if (beyond - by_chance + shift if beyond >= OFTEN else far) * samples < FEWEST_BEYOND:
        return None
    near, far = min(near, 1.0), max(far, 0.0)
    return (far, near) if q < 0.5 else (1 - near, 1 - far)
