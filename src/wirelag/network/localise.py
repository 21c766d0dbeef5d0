"""Which segment of a route adds the delay: sums along paths, mixtures over equal costs, and whom to blame.

Sums. Along a path means add up; standard errors add in squares; variances add as far as segments are independent of
each other; of losses l what is left is the product of (1 - l). Equal-cost paths mix by their shares of what arrives:
the mean of the mixture is the mean of the means, its variance the mean variance within paths plus the variance between
them. A segment that several paths have in common errs on all of them alike, and counts once. Where a segment has no
report, sums are lower bounds, and `missing` names it.

Blame. A segment *adds* its mean less its floor, the shortest delay that was seen there; with a baseline, its mean less
its mean then. What is long is not slow: propagation is in the floor. A segment is blamed if it adds more than `slow` by
more than chance: a one-sided test, by Holm's rule over all segments of the route. So where none adds more than `slow`,
in at most 5% of cases any is blamed, however many there are, as far as the errors are right. A floor is never
below the true one, so that what a segment adds is never overstated by it. Those that are blamed are ranked by what they
put on the route's mean; two are alike where 95% intervals of that cannot tell which puts more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from wirelag.network.segments import Segment

Since = Literal["baseline", "floor", "deviation"]
Bounds = tuple[float, float]

LEVEL: Final = 0.05
Z95: Final = 1.959963984540054
SURE: Final = 200  # a deviation is known no better than from so many delays: methods estimate it from rows


@dataclass(frozen=True, slots=True)
class Figures:
    """What a report says of a segment, in seconds; None where it does not say."""

    mean: float | None = None
    error: float | None = None  # standard error of the mean
    std: float | None = None
    floor: float | None = None  # the shortest delay
    samples: int = 0
    sent: int | None = None
    lost: int | None = None
    start: float | None = None  # of an interval
    end: float | None = None

    @property
    def loss(self) -> float | None:
        """The share of packets that were lost."""
        return min(self.lost / self.sent, 1.0) if self.sent and self.lost is not None else None


@dataclass(frozen=True, slots=True)
class Added:
    """What a segment adds to a delay, and above what."""

    value: float
    error: float | None
    freedom: float  # degrees of freedom of the error
    since: Since


@dataclass(frozen=True, slots=True)
class Part:
    """A segment of a route."""

    segment: Segment
    share: float  # of the route's packets that pass it
    figures: Figures
    added: Added | None
    p_value: float | None = None  # that it adds no more than `slow`
    blamed: bool = False
    alike: tuple[Segment, ...] = ()  # others that are blamed, and may put as much on the route's mean

    @property
    def puts(self) -> float:
        """What it adds to the route's mean."""
        return self.share * self.added.value if self.added else 0.0

    @property
    def puts_error(self) -> float:
        """The standard error of that."""
        return self.share * (self.added.error or 0.0) if self.added else 0.0


@dataclass(frozen=True, slots=True)
class Total:
    """Several segments together, in seconds; where some are missing, lower bounds."""

    mean: float | None
    error: float | None
    std: float | None
    loss: float | None

    @property
    def ci95(self) -> Bounds | None:
        """Where the mean is, as far as errors are independent of each other."""
        if self.mean is None or self.error is None:
            return None
        return self.mean - Z95 * self.error, self.mean + Z95 * self.error


@dataclass(frozen=True, slots=True)
class Path:
    """One of the equal paths of a route, cut into segments."""

    routers: tuple[str, ...]
    share: float
    segments: tuple[Segment, ...]  # in order; those that have a report
    missing: tuple[Segment, ...]  # what no report covers


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that is said of a route."""

    total: Total
    by_path: tuple[Total, ...]
    parts: tuple[Part, ...]  # in the order of the paths
    missing: tuple[Segment, ...]

    @property
    def culprits(self) -> list[Part]:
        """Those that are blamed, what puts most on the mean first."""
        return sorted((part for part in self.parts if part.blamed), key=lambda part: -part.puts)


def judge(
    paths: Sequence[Path],
    figures: Mapping[Segment, Figures],
    slow: float,
    before: Mapping[Segment, Figures] | None = None,
    among: int = 0,
) -> Verdict:
    """Add a route up and say which of its segments are slow.

    `before` is the baseline. Where several routes are judged, `among` is how many segments they have together: the 5%
    are of all of them.
    """
    arriving = [path.share * (1 - (_along(path.segments, figures).loss or 0.0)) for path in paths]
    whole = sum(arriving)
    shares = [one / whole for one in arriving] if whole else [path.share for path in paths]
    by_path = tuple(_along(path.segments, figures) for path in paths)
    weights: dict[Segment, float] = {}
    for path, share in zip(paths, shares, strict=True):
        for segment in path.segments:
            weights[segment] = weights.get(segment, 0.0) + share
    parts = [
        Part(segment, weight, figures[segment], adds(figures[segment], (before or {}).get(segment)))
        for segment, weight in weights.items()
    ]
    missing = tuple(dict.fromkeys(segment for path in paths for segment in path.missing))
    return Verdict(_mixed(paths, by_path, shares, parts), by_path, tuple(blame(parts, slow, among)), missing)


def _along(segments: Iterable[Segment], figures: Mapping[Segment, Figures]) -> Total:
    known = [figures[segment] for segment in segments]
    losses = [one.loss for one in known if one.loss is not None]
    return Total(
        _sum([one.mean for one in known]),
        _root([one.error for one in known]),
        _root([one.std for one in known]),
        1 - math.prod(1 - loss for loss in losses) if losses else None,
    )


def _mixed(paths: Sequence[Path], by_path: Sequence[Total], shares: Sequence[float], parts: Sequence[Part]) -> Total:
    mean = _sum([None if one.mean is None else share * one.mean for one, share in zip(by_path, shares, strict=True)])
    std = None
    if mean is not None and all(one.std is not None for one in by_path):
        variance = sum(
            share * ((one.std or 0.0) ** 2 + ((one.mean or 0.0) - mean) ** 2)
            for one, share in zip(by_path, shares, strict=True)
        )
        std = math.sqrt(variance)
    errors = [None if part.figures.error is None else part.share * part.figures.error for part in parts]
    losses = [path.share * one.loss for path, one in zip(paths, by_path, strict=True) if one.loss is not None]
    return Total(mean, _root(errors), std, sum(losses) if losses else None)


def _sum(values: Sequence[float | None]) -> float | None:
    return None if not values or None in values else math.fsum(x or 0.0 for x in values)


def _root(values: Sequence[float | None]) -> float | None:
    """Of the sum of squares."""
    return None if not values or None in values else math.hypot(*(x or 0.0 for x in values))


# ---- what a segment adds, and blame ----


def adds(now: Figures, before: Figures | None = None) -> Added | None:
    """What a segment adds: to its baseline, or to its floor; where neither is known, its deviation stands in for that.

    The deviation says how much delays differ, and no segment adds more than its mean: the smaller of both.
    """
    if now.mean is None:
        return None
    freedom = max(now.samples - 1.0, 1.0)
    if before is not None and before.mean is not None:
        errors = [now.error, before.error]
        return Added(now.mean - before.mean, _root(errors), min(freedom, max(before.samples - 1.0, 1.0)), "baseline")
    if now.floor is not None:
        return Added(max(0.0, now.mean - now.floor), now.error, freedom, "floor")
    if now.std is None:
        return None
    return Added(
        min(now.std, max(now.mean, 0.0)), now.std * math.sqrt(2 / max(1, min(now.samples, SURE))), freedom, "deviation"
    )


def blame(parts: Sequence[Part], slow: float, among: int = 0) -> list[Part]:
    """Say which of them add more than `slow` by more than chance (Holm 1979), and which are alike.

    With a larger family the same steps find no more than Holm's rule over all of it would.
    """
    tested = [replace(part, p_value=_beyond(part.added, slow)) for part in parts]
    order = sorted(
        (i for i, part in enumerate(tested) if part.p_value is not None), key=lambda i: tested[i].p_value or 0.0
    )
    called: list[int] = []
    for rank, i in enumerate(order):
        if (tested[i].p_value or 0.0) > LEVEL / (max(len(order), among) - rank):
            break
        called.append(i)
    for i in called:
        alike = tuple(tested[j].segment for j in called if j != i and _alike(tested[i], tested[j]))
        tested[i] = replace(tested[i], blamed=True, alike=alike)
    return tested


def _alike(one: Part, other: Part) -> bool:
    return abs(one.puts - other.puts) <= Z95 * math.hypot(one.puts_error, other.puts_error)


def _beyond(added: Added | None, slow: float) -> float | None:
    if added is None or added.error is None:
        return None
    return p_beyond(added.value - slow, added.error, added.freedom)


def p_beyond(excess: float, error: float, freedom: float = math.inf) -> float:
    """How often chance alone would go so far above nothing."""
    if error == 0:
        return 0.0 if excess > 0 else 1.0
    t = excess / error
    if math.isfinite(freedom):  # Wallace 1959: the normal deviate of about the same probability, never too far out
        t = math.copysign((8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom)), t)
    return math.erfc(t / math.sqrt(2)) / 2
