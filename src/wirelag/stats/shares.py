"""How sure a share of delays is, and a quantile, if delays that follow each other are alike (over_time.py).

Law of shares: a share of delays beyond a limit varies with what is alike, too. A quantile beyond which delays are rare
(fewer than one in 20) has an interval only if it would have one with as much error as the mean has: they come together,
and a recording may have missed them.
Guarantee: as in over_time.py. Memory: none. The laws are computed by kernels/certainty.hpp, which has their constants.
"""

from __future__ import annotations

from wirelag import _kernels
from wirelag.stats.over_time import Bounds, Error


def share_bounds(share: float, error: Error, samples: float) -> Bounds:
    """The 95% interval of a share: at least that of independent samples."""
    return _kernels.share_bounds(share, error, samples)


def enough_beyond(q: float, wider: float, samples: float, stretches: float) -> bool:
    """Whether a quantile has an interval, if its error is larger than by chance alone by the same factor as the mean's.

    Rare delays come together, and may be missing altogether: what the recording shows of the mean decides. If that is
    more than chance, 50 of them must be there: with fewer, those recordings have an interval that seem calm. Of a
    quantile beyond which a share of 5% lies, chance alone decides, and whether stretches enough lie beyond it.
    """
    return _kernels.enough_beyond(q, wider, samples, stretches)


def quantile_shares(q: float, error: Error, samples: float) -> Bounds | None:
    """The shares at which the ends of a quantile's 95% interval lie (Woodruff); None if too few delays are beyond.

    `error` is that of the share of delays below the quantile. What makes delays alike may move an end to the shortest
    or the longest one; only a quantile beyond which delays are rare has no interval then.
    """
    return _kernels.quantile_shares(q, error, samples)
