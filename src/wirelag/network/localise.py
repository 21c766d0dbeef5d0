"""Which segment of a route adds the delay: sums along paths, mixtures over equal costs, and blame.

Sums. Along a path means add up; standard errors add in squares; variances add if segments are independent; of losses l,
the product of (1 - l) arrives. Equal-cost paths mix by their shares of what arrives: the mean of the mixture is the
mean of the means, its variance the mean variance within paths plus the variance between them. A segment common to
several paths has the same error on all of them, and counts once. If a segment has no report, sums of delays are lower
bounds, the loss is unknown, and `missing` names it.

Blame. A segment *adds* its mean minus its floor, the shortest delay seen there; with a baseline, its mean minus its
mean then. Long is not slow: propagation is in the floor. A segment is blamed if it adds more than `slow`,
significantly: a one-sided test with Holm's rule, once over all segments of all requested routes. Most segments add far
less than `slow`, and would only weaken the test: so only those with a p-value of at most a half count, and p-values are
doubled for it (Zhao, Small and Su 2019). So if none adds more than `slow`, any is blamed in at most 5% of cases,
however many there are, provided that the errors are right (certainty.py) and segments independent. Blamed segments are
ranked by what they add to the route's mean; two are alike if 95% intervals cannot tell which adds more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from wirelag.network.certainty import LEVEL, bounds, p_beyond
from wirelag.network.segments import Segment
from wirelag.stats.over_time import Bounds, Error, half95, welch

Since = Literal["baseline", "floor", "deviation"]
Basis = Literal["batches", "intervals", "packets"]

HALF: Final = 0.5  # segments with a larger p-value are no candidates
SURE: Final = 200  # a deviation is as uncertain as from this many delays: methods estimate it from rows


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a segment's report, in seconds; None if not given."""

    mean: float | None = None
    error: float | None = None  # standard error of the mean
    std: float | None = None
    floor: float | None = None  # the shortest delay
    samples: int = 0
    sent: int | None = None
    lost: int | None = None
    start: float | None = None  # start of an interval
    end: float | None = None
    freedom: float | None = None  # degrees of freedom of the error; None: as if packets were independent
    basis: Basis = "packets"  # what the error was learned from

    @property
    def loss(self) -> float | None:
        """The share of packets lost."""
        return min(self.lost / self.sent, 1.0) if self.sent and self.lost is not None else None

    @property
    def sure(self) -> Error | None:
        """The error of the mean, and its degrees of freedom."""
        if self.error is None:
            return None
        return self.error, max(self.samples - 1.0, 1.0) if self.freedom is None else self.freedom

    @property
    def above(self) -> float | None:
        """The part above the floor."""
        return None if self.mean is None or self.floor is None else max(0.0, self.mean - self.floor)

    @property
    def queued(self) -> float | None:
        """The same if its error was learned from a queue, so that ratios apply."""
        return None if self.basis == "packets" else self.above

    @property
    def ci95(self) -> Bounds | None:
        """The 95% interval of the mean."""
        return bounds(self.mean, self.sure, self.queued) if self.mean is not None and self.sure else None


@dataclass(frozen=True, slots=True)
class Added:
    """The delay that a segment adds, and above what."""

    value: float
    error: Error | None
    since: Since
    queued: float | None = None  # the part above the floor; with a baseline it is more than what is added
    error_then: Error = (0.0, math.inf)  # error of the baseline, which is part of the error

    @property
    def ci95(self) -> Bounds | None:
        """The 95% interval of what is added."""
        return bounds(self.value, self.error, self.queued) if self.error else None

    def p_value(self, slow: float) -> float | None:
        """The probability that chance alone shows this much more than `slow`."""
        if self.error is None:
            return None
        error, freedom = self.error
        allowed = slow if self.queued is None else self.queued - self.value + slow  # limit above the floor
        if self.queued is None or self.queued <= allowed or allowed <= 0:
            return p_beyond(self.value - slow, error, freedom)
        then = self.error_then[0]
        now = math.sqrt(max(0.0, error**2 - then**2))
        return p_beyond(math.log(self.queued / allowed), math.hypot(now / self.queued, then / allowed), freedom)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a segment adds, and whether that is too much."""

    added: Added | None
    p_value: float | None = None  # p-value of adding no more than `slow`; None: unknown
    blamed: bool = False


@dataclass(frozen=True, slots=True)
class RoutePart:
    """A segment of a route."""

    segment: Segment
    share: float  # share of the route's packets that pass it
    figures: Figures
    trial: Trial
    alike: tuple[Segment, ...] = ()  # other blamed segments that may add as much to the route's mean

    @property
    def added(self) -> Added | None:
        """What it adds."""
        return self.trial.added

    @property
    def blamed(self) -> bool:
        """Whether that is too much."""
        return self.trial.blamed

    @property
    def puts(self) -> float:
        """What it adds to the route's mean."""
        return self.share * self.added.value if self.added else 0.0

    @property
    def puts_error(self) -> Error:
        """The error of that."""
        error, freedom = (self.added.error if self.added else None) or (0.0, math.inf)
        return self.share * error, freedom


@dataclass(frozen=True, slots=True)
class Total:
    """Several segments together, in seconds; lower bounds if some are missing."""

    mean: float | None
    error: Error | None
    std: float | None
    loss: float | None
    queued: float | None = None  # the part above the floors

    @property
    def ci95(self) -> Bounds | None:
        """The 95% interval of the mean, if errors are independent."""
        return bounds(self.mean, self.error, self.queued) if self.mean is not None and self.error else None


@dataclass(frozen=True, slots=True)
class Path:
    """One of the equal paths of a route, cut into segments."""

    routers: tuple[str, ...]
    share: float
    segments: tuple[Segment, ...]  # those with a report, in order
    missing: tuple[Segment, ...]  # those without a report


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a route."""

    total: Total
    by_path: tuple[Total, ...]
    parts: tuple[RoutePart, ...]  # in the order of the paths
    missing: tuple[Segment, ...]

    @property
    def culprits(self) -> list[RoutePart]:
        """The blamed parts, largest contribution to the mean first."""
        return sorted((part for part in self.parts if part.blamed), key=lambda part: -part.puts)


def trials(
    figures: Mapping[Segment, Figures], slow: float, before: Mapping[Segment, Figures] | None = None
) -> dict[Segment, Trial]:
    """Test which segments add significantly more than `slow` (Holm's rule); `before` is the baseline."""
    added = {segment: adds(now, (before or {}).get(segment)) for segment, now in figures.items()}
    p_values = {segment: one.p_value(slow) if one else None for segment, one in added.items()}
    order = sorted((p / HALF, segment) for segment, p in p_values.items() if p is not None and p <= HALF)
    called: set[Segment] = set()
    for rank, (p, segment) in enumerate(order):
        if p > LEVEL / (len(order) - rank):
            break
        called.add(segment)
    return {segment: Trial(added[segment], p_values[segment], segment in called) for segment in figures}


def judge(paths: Sequence[Path], figures: Mapping[Segment, Figures], tried: Mapping[Segment, Trial]) -> Verdict:
    """Add up a route and judge which of its segments are slow."""
    by_path = tuple(_along(path, figures) for path in paths)
    shares = _arriving(paths, by_path)
    weights = _weights(paths, shares)
    parts = [RoutePart(segment, weight, figures[segment], tried[segment]) for segment, weight in weights.items()]
    missing = tuple(dict.fromkeys(segment for path in paths for segment in path.missing))
    return Verdict(_mixed(paths, by_path, shares, figures), by_path, tuple(_with_alike(parts)), missing)


def add_up(paths: Sequence[Path], figures: Mapping[Segment, Figures]) -> Total:
    """The sums of a route."""
    by_path = [_along(path, figures) for path in paths]
    return _mixed(paths, by_path, _arriving(paths, by_path), figures)


def _arriving(paths: Sequence[Path], by_path: Sequence[Total]) -> list[float]:
    """The shares of paths in what arrives."""
    arriving = [path.share * (1 - (total.loss or 0.0)) for path, total in zip(paths, by_path, strict=True)]
    whole = sum(arriving)
    return [one / whole for one in arriving] if whole else [path.share for path in paths]


def _weights(paths: Sequence[Path], shares: Sequence[float]) -> dict[Segment, float]:
    """The share of what arrives that passes each segment."""
    weights: dict[Segment, float] = {}
    for path, share in zip(paths, shares, strict=True):
        for segment in path.segments:
            weights[segment] = weights.get(segment, 0.0) + share
    return weights


def _along(path: Path, figures: Mapping[Segment, Figures]) -> Total:
    known = [figures[segment] for segment in path.segments]
    stays = _product([None if one.loss is None or path.missing else 1 - one.loss for one in known])
    if any(one.loss == 1 for one in known):
        stays = 0.0  # whatever the others do
    return Total(
        _sum([one.mean for one in known]),
        _errors([one.sure for one in known]),
        _root([one.std for one in known]),
        None if stays is None else 1 - stays,
        _sum([one.queued for one in known]),
    )


def _mixed(
    paths: Sequence[Path], by_path: Sequence[Total], shares: Sequence[float], figures: Mapping[Segment, Figures]
) -> Total:
    def mean_of(values: Iterable[float | None]) -> float | None:
        return _sum([None if one is None else share * one for one, share in zip(values, shares, strict=True)])

    mean = mean_of(one.mean for one in by_path)
    std = None
    if mean is not None and all(one.std is not None for one in by_path):
        variance = sum(
            share * ((one.std or 0.0) ** 2 + ((one.mean or 0.0) - mean) ** 2)
            for one, share in zip(by_path, shares, strict=True)
        )
        std = math.sqrt(variance)
    weights = _weights(paths, shares)
    sure = {segment: figures[segment].sure for segment in weights}
    errors = [None if one is None else (weights[segment] * one[0], one[1]) for segment, one in sure.items()]
    sent = [None if one.loss is None else path.share * one.loss for path, one in zip(paths, by_path, strict=True)]
    return Total(mean, _errors(errors), std, _sum(sent), mean_of(one.queued for one in by_path))


def _sum(values: Sequence[float | None]) -> float | None:
    return None if not values or None in values else math.fsum(x or 0.0 for x in values)


def _product(values: Sequence[float | None]) -> float | None:
    return None if not values or None in values else math.prod(x or 0.0 for x in values)


def _root(values: Sequence[float | None]) -> float | None:
    """Square root of the sum of squares."""
    return None if not values or None in values else math.hypot(*(x or 0.0 for x in values))


def _errors(errors: Sequence[Error | None]) -> Error | None:
    known = [one for one in errors if one is not None]
    return welch(known) if known and len(known) == len(errors) else None


# ---- what a segment adds ----


def adds(now: Figures, before: Figures | None = None) -> Added | None:
    """What a segment adds to its baseline, or to its floor; if neither is known, its deviation stands in.

    The deviation shows how much delays differ, and no segment adds more than its mean: the smaller of the two.
    """
    if now.mean is None:
        return None
    if before is not None and before.mean is not None:
        error = welch([now.sure, before.sure]) if now.sure and before.sure else None
        floors = [one.floor for one in (now, before) if one.queued is not None and one.floor is not None]
        queued = now.mean - min(floors) if len(floors) == 2 else None
        return Added(now.mean - before.mean, error, "baseline", queued, before.sure or (0.0, math.inf))
    if now.above is not None:
        return Added(now.above, now.sure, "floor", now.queued)
    if now.std is None:
        return None
    worth = min(now.samples, SURE)
    if now.error and now.std:  # this many independent delays would give the same error
        worth = min(worth, round((now.std / now.error) ** 2))
    value, freedom = min(now.std, max(now.mean, 0.0)), now.sure[1] if now.sure else max(now.samples - 1.0, 1.0)
    return Added(value, (now.std * math.sqrt(2 / max(1, worth)), freedom), "deviation")


def _with_alike(parts: Sequence[RoutePart]) -> list[RoutePart]:
    """Each part with the other blamed ones that may add as much to the mean."""
    called = [part for part in parts if part.blamed]
    return [
        replace(part, alike=tuple(one.segment for one in called if one is not part and _alike(part, one)))
        if part.blamed
        else part
        for part in parts
    ]


def _alike(one: RoutePart, other: RoutePart) -> bool:
    error, freedom = welch([one.puts_error, other.puts_error])
    return abs(one.puts - other.puts) <= half95(freedom) * error
