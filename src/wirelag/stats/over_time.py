"""How sure a mean and a quantile are if delays that follow each other are alike: in a queue, or on a path that changes.

Guarantee, by simulation of recordings of 10 to 100,000 packets (experiments/coverage.py prints it; figures are in
experiments/README.md): of the intervals that are given, 93% to 97% hold the truth, the value over a very long time, for
queues with 55% to 95% load, and pooled over paths that change, heavy tails and independent delays. Not for every size:
of fewer than 100 delays of a busy queue few have an interval, and of these more miss. Where a recording is too short
there is none: fewer than 64 delays, or a level that is likelier than one in three to change so slowly that there are
fewer than two independent stretches, or to be that of a queue which hardly returned to its floor. What a recording does
not show cannot be told: one that is shorter than its level lasts may look steady. Memory: none. All laws but that
of parts are computed by kernels/over_time.hpp and certainty.hpp, which have their constants.

Law of doubt: rather wide than silent. Whether a recording seems sure is chance, too: a condition that asks for little
error lets those through that missed the rare long waits, and of these few hold. So conditions are few and lax, and
intervals are as wide as they must be: an upper end may lie beyond the longest delay seen.

Law of errors: n delays that are alike count for fewer than n. In order of time they are put into at most 128 batches of
the same size. Their slowest cosines tell how much the mean varies, and how slowly (kernels/slow_levels.hpp has that
law, and the one of returns). Batches of different sizes make a level look like noise, so delays that came together are
taken apart again.

Law of ratios: the mean wait of a queue is inverse to its drift towards the floor, so the part of a mean above the floor
is compared as a ratio. Such a mean varies by sqrt(2 / returns) of itself (reflected Brownian motion), and that error
is the smaller, the shorter the waits were that a recording shows. With e as the half-width, by the part above the
floor, both ends miss equally often if they are 1 / (1 + e / sqrt(1 + 0.9 e)) and 1 / (1 - e) times that part.
A recording that missed long waits shows too small an error as well, so the upper end is exp(e + 2.5 e^2) instead, at
most 3.5. Where returns tell more than cosines it is 1 / (1 - e) with the e that they give; this grows no further below
4 returns, nor beyond 4. All of this holds for the part of the variance that is not chance of single delays, and for
delays as skewed as waits; a level that is above its middle as often as below has an interval of equal halves. Chance of
independent delays moves both ends upwards by their skewness (N. Johnson 1978, P. Hall 1992).

Law of calm: a busy queue is calm for a hundred packets now and then. Of n delays that follow each other, and are as
skewed as waits or stay alike for 32 delays or longer, returns count for 1 / (1 + 150 / n)^2 of what they seem, and
there is at most one for every two delays; the upper end may lie further away by as much.

Law of quantiles: a longer queue has all waits longer, a shorter one shorter, so that quantiles up to p95 follow the
mean, as far as the shares of delays say so, too (shares.py). A median near the floor falls by as much as the mean (0.7
to 0.9 times as much in a queue with random arrivals), and rises by at least 0.3 times as much. No quantile is longer
than the mean allows (A. Markov).

Law of parts: a group lasts as long as the whole, and has the interval that its delays alone would have: the same
whatever it was chosen by, a grouping or a filter. A row over time is shorter, and shows less than the whole of how
slowly delays change. For how long those of the whole stay alike is learned from the cosines and from neighbours of
batches of all sizes (in_order.py); a row that is shorter than that four times has no interval. Its mean varies
at least as much as the level of the whole makes it; its delays are gone when the whole is known, so its interval is
widened (`within_whole`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from wirelag import _kernels
from wirelag.stats.distribution import Z95

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats: TypeAlias = npt.NDArray[np.float64] | memoryview[float]

FEWEST_DELAYS: Final = 64  # that give an interval
STRETCHES: Final = 2.0  # independent stretches that give an interval
OF_A_ROW: Final = 4.0  # the same, for a part of a whole
RETURNS: Final = 1.5  # of a queue to its floor that give an interval
SKEWED: Final = _kernels.SKEWED  # skewness of delays like waits: those of a queue have 2, a short recording shows less
WIDEST_MEAN: Final = 10.0  # times the mean, where an interval that ends beyond all delays may end
SHORTEST: Final = 10  # bits of the length of a slot of time: 1 us

Bounds = tuple[float, float]
Error = tuple[float, float]  # a standard error, and its degrees of freedom


class Chance(NamedTuple):
    """The error that a mean would have if delays were independent, and what gives its interval a shape."""

    error: float
    skewness: float  # of single delays
    samples: float  # how many independent ones
    higher: float = 0.0  # by how much the mean may lie higher at least, if delays are like waits (OverTime)


class Alike(NamedTuple):
    """What the delays of a whole tell of its parts; times are in ns, or in slots."""

    lasts: float = 0.0  # for how long they stay alike
    level: float = 0.0  # the variance of a mean by a level that changes, times the time it is over
    samples: int = -1  # how many delays the whole has

    def with_slots(self, length_ns: int) -> Alike:
        """The same in ns, for slots of this length."""
        return self._replace(lasts=self.lasts * length_ns, level=self.level * length_ns)


NOT_ALIKE: Final = Alike()
A_QUEUE: Final = Chance(0.0, 2.0, 1.0)  # an error that is not chance of waits, which are exponential


class OverTime(NamedTuple):
    """How a mean varies over time: its error, and how many independent stretches of time it rests on."""

    error: Error
    stretches: float
    level: float = 0.0  # the variance of the mean by a level that changes
    returns: float = math.inf  # to the floor, if the level is that of a queue
    higher: float = 0.0  # by how much the mean may lie higher then

    @classmethod
    def told(cls, found: tuple[float, float, float, float, float, float] | None) -> OverTime | None:
        """What a kernel found."""
        if found is None:
            return None
        half, freedom, *others = found
        return cls((half / half95(freedom), freedom), *others)


def over_time(sums: Floats, counts: Floats, samples: int) -> OverTime | None:
    """How sum(sums) / sum(counts) varies, for parts in order of time that hold `samples` delays; None: too few."""
    return OverTime.told(_kernels.over_time(sums, counts, samples))


TOO_FEW: Final = f"fewer than {FEWEST_DELAYS} delays do not show how they vary over time"
TOO_SLOW: Final = "delays change too slowly for so short a time: there may be fewer than two independent stretches"
TOO_WIDE: Final = "delays vary so much, for so long, that their mean may lie beyond the longest one seen"


def tells(over: OverTime | None, samples: int) -> str | None:
    """Why there is no interval; None: there is one."""
    if samples < FEWEST_DELAYS:
        return TOO_FEW
    if over is None or over.stretches < STRETCHES or over.returns < RETURNS:
        return TOO_SLOW
    return None


def too_wide(mean_ns: float, high_ns: float, longest_ns: float) -> str | None:
    """Why an interval of a mean is not worth its name: it ends beyond all delays, and beyond ten times the mean."""
    if high_ns <= max(longest_ns, WIDEST_MEAN * mean_ns):
        return None
    return TOO_WIDE


NOTHING_LEFT: Final = "delays of the whole change so much that a mean over so short a part could be anything"


def too_short(length_ns: float, alike_ns: float) -> str | None:
    """Why a part of a capture of this length has no interval, if delays of the whole stay alike for so long."""
    if length_ns >= OF_A_ROW * alike_ns:
        return None
    return "delays of the whole change too slowly for so short a part: it has fewer than four independent stretches"


def within_whole(
    ci95: Mapping[str, Bounds], figures: Mapping[str, float | None], length_ns: float, alike: Alike
) -> tuple[dict[str, Bounds], str | None]:
    """The intervals of a part of a whole, in seconds, that are known without the whole; or why there are none.

    They are at least as wide as the level of the whole makes that of the mean, each by the same factor. There are none
    if the one of the mean then begins at 0, or ends too far away.
    """
    if why := too_short(length_ns, alike.lasts):
        return {}, why
    if "mean" not in ci95:
        return dict(ci95), None
    half = Z95 * math.sqrt(alike.level / max(length_ns, 1.0)) / 1e9
    wider = max(1.0, 2 * half / max(ci95["mean"][1] - ci95["mean"][0], 1e-12))
    found = {}
    for name, (low, high) in ci95.items():
        if (middle := figures.get(name)) is not None:
            found[name] = max(0.0, middle + wider * (low - middle)), middle + wider * (high - middle)
    low, high = found.get("mean", (1.0, 0.0))
    why = too_wide(figures.get("mean") or 0.0, high, figures.get("max") or high)
    return ({}, why or NOTHING_LEFT) if why or not low else (found, None)


def half95(freedom: float) -> float:
    """Half-width of a 95% interval in standard errors (Student, by the inverse of Wallace's approximation)."""
    return _kernels.half95(freedom)


def welch(errors: Iterable[Error]) -> Error:
    """The error of a sum of values with these errors (B. Welch 1947, F. Satterthwaite 1946)."""
    return _kernels.welch([*errors])


def bounds(value: float, error: Error, above: float | None = None, chance: Chance = A_QUEUE) -> Bounds:
    """The 95% interval of a value, of which `above` lies above a floor (None: unknown); `chance` is in its error."""
    return _kernels.bounds(value, error, above or 0.0, chance)


def with_the_mean(
    q: float, ends: Bounds, middle: float, floor: float, error: Error | None, above: float, chance: Chance
) -> Bounds:
    """The interval of a quantile that follows the mean: a longer queue has all waits longer, a shorter one shorter.

    `ends` are those that shares of delays tell. The median may be at the floor.
    """
    return _kernels.with_the_mean(q, ends, middle, floor, error, above, chance)
