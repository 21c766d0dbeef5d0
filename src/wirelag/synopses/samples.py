"""The synopsis of every method that yields samples of delay: a distribution for each leg.

Memory: one distribution for each leg that has samples (distribution.py). Merging adds distributions: it is associative
and lossless. Delays by group are in group_delays.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from wirelag import _kernels
from wirelag.report import QUANTILES, Quantity, Report
from wirelag.stats.certainty import WHY, Certainty, Sources
from wirelag.stats.distribution import WORDS, Distribution, add_by_leg
from wirelag.stats.over_time import Alike
from wirelag.stats.spread import Spread

if TYPE_CHECKING:
    import numpy.typing as npt

    from wirelag.packets.batch import PacketBatch
    from wirelag.stats.distribution import Words
    from wirelag.synopses.connections import Connections

    Ints = npt.NDArray[Any]

LEGS: Final = ("server", "client")
MIXED: Final = "mixed"  # delays of both legs as one
ALL: Final = 0  # tag of samples without a group
NOT_KEPT: Final = "how the delays of a group vary is not kept here"
SHARES: Final = [float(q) for q in QUANTILES]
_MOMENTS: Final = ("mean", "std", "min", "max")
_BOUNDED: Final = ("mean", *QUANTILES)  # figures with an interval
_NO_SPREAD: Final = Spread()  # of a group, which has connections


class SampleBatch(NamedTuple):
    """The samples of one packet batch, one row each."""

    rows: Ints  # rows of the responses in the packet batch
    delays_ns: Ints
    legs: Ints  # indexes of LEGS
    kinds: tuple[str, ...]  # names of the matchers
    kind: Ints  # indexes of `kinds`
    weights: Ints | None = None  # None: 1 each
    tags: Ints | None = None  # of their groups; None: no groups


Sink: TypeAlias = "Callable[[PacketBatch, SampleBatch], None]"
"""A consumer of samples as a meter finds them, in order; it keeps neither batch."""


class Samples:
    """Delays by leg, of everything or of one group; the number of packets, and counters."""

    def __init__(self, tag: int | None = None) -> None:
        self.distributions: dict[int, Distribution] = {}
        self.spread = Spread() if tag is None else _NO_SPREAD
        self._memory: Words | None = None
        self.packets = 0
        self.counts: dict[str, int] = {}
        self.tag = tag  # of the group; None: of all
        self.connections: Connections | None = None  # for the uncertainty of groups
        self.whole: Samples | None = None  # of which a group is a part

    def __getstate__(self) -> dict[str, Any]:
        """What is merged; a synopsis that travelled is not added to."""
        return vars(self) | {"_memory": None, "connections": None, "whole": None}

    def add(self, legs: Ints, delays_ns: Ints, weights: Ints | None = None) -> None:
        """Add samples."""
        add_by_leg(self._both_legs(), delays_ns, weights, legs)

    def tally(self) -> _kernels.Tally:
        """Where a kernel adds samples, each of weight 1."""
        crowds, (server, client) = self.spread.connections.weights, self.spread.times
        slots = server.place, server.counts, server.sums, client.place, client.counts, client.sums
        return _kernels.Tally(self._both_legs(), crowds, *slots)

    def _both_legs(self) -> Words:
        """The memory of both legs, in one piece."""
        if self._memory is None:
            self._memory = _kernels.words(len(LEGS) * WORDS)
            for leg in range(len(LEGS)):
                mine = Distribution(self._memory[leg * WORDS : (leg + 1) * WORDS])
                if leg in self.distributions:
                    mine.merge(self.distributions[leg])
                self.distributions[leg] = mine
        return self._memory

    def count(self, **counts: int) -> None:
        """Add to the counters."""
        for name, n in counts.items():
            self.counts[name] = self.counts.get(name, 0) + n

    def merge(self, other: Samples) -> None:
        """Add another synopsis."""
        for leg, distribution in other.distributions.items():
            if leg not in self.distributions:
                self.distributions[leg] = Distribution()
            self.distributions[leg].merge(distribution)
        if self.tag is None:
            self.spread.merge(other.spread)
        self.packets += other.packets
        self.count(**other.counts)

    def distribution(self, leg: int | None = None) -> Distribution:
        """All delays, or those of a leg."""
        if self.whole is not None and self.whole.count_of(leg) == self.count_of(leg):  # all delays are in one group
            return self.whole.distribution(leg)
        if self.tag is not None and leg in self.distributions:
            return self._sure(self.distributions[leg], leg)  # a group's are not added to any more
        total = Distribution()
        for one in range(len(LEGS)) if leg is None else [leg]:
            if one in self.distributions:
                total.merge(self.distributions[one])
        return self._sure(total, leg)

    def _sure(self, delays: Distribution, leg: int | None) -> Distribution:
        """These delays, with intervals from how they vary."""
        if self.tag is None:
            return (self.spread if leg is None else self.spread.of_leg(leg)).sure(delays)
        connections, tag = self.connections, self.tag
        if connections is None:
            delays.certainty = Certainty(delays, Sources, NOT_KEPT)
        else:
            delays.certainty = Certainty(delays, lambda: connections.sources(tag, leg, delays))
        return delays

    def alike(self, leg: int) -> Alike:
        """How delays of a leg are alike."""
        return self.spread.of_leg(leg).alike()._replace(samples=self.count_of(leg))

    def count_of(self, leg: int | None) -> int:
        """How many samples there are, in all or of a leg."""
        return sum(one.samples for place, one in self.distributions.items() if leg in (None, place))

    def report(self, estimator: str, quantity: Quantity, leg: str = MIXED) -> Report:
        """The report over all samples: of a leg, or of both as one."""
        by_leg = self.by_leg()
        whole = by_leg[leg] if leg in by_leg else self.distribution(LEGS.index(leg) if leg in LEGS else None)
        return self.report_of(whole, by_leg, estimator, quantity, leg)

    def figures(self) -> dict[str, Figures]:
        """Those of each leg that has delays, of samples without a group."""
        found = self.tally().figures(SHARES)
        return {name: Figures.told(one) for name, one in zip(LEGS, found, strict=True) if one is not None}

    def report_of(
        self, whole: Distribution, by_leg: dict[str, Distribution], estimator: str, quantity: Quantity, leg: str
    ) -> Report:
        """The report of these delays; the figures of each leg are beside them."""
        of_legs = self.figures() if self.tag is None else {name: Figures.of(one) for name, one in by_leg.items()}
        # The packets of a group are not counted.
        packets, counts = (self.packets, dict(sorted(self.counts.items()))) if self.tag is None else (None, None)
        return report_of_legs(of_legs, of_legs.get(leg) or Figures.of(whole), leg, estimator, quantity, packets, counts)

    def by_leg(self) -> dict[str, Distribution]:
        """The delays of each leg that has any."""
        found = {name: self.distribution(place) for place, name in enumerate(LEGS)}
        return {name: one for name, one in found.items() if one.samples}


def report_of_legs(
    of_legs: dict[str, Figures],
    shown: Figures,
    leg: str,
    estimator: str,
    quantity: Quantity,
    packets: int | None,
    counts: dict[str, int] | None = None,
) -> Report:
    """The report of a leg, or of both, from the figures of each leg that has delays."""
    details: dict[str, Any] = {
        "leg": leg,
        "legs": {name: _plain(one.facts, one.why_none) for name, one in of_legs.items()},
        "no_interval": shown.why_none if shown.facts["samples"] else None,
    }
    if counts is not None:
        details["counts"] = counts
    # If a method sees only some delays, each sample stands for several.
    details |= {"stands_for": shown.weight, "effective_samples": shown.effective}
    reason = None if shown.facts["samples"] else _why_nothing(leg, bool(of_legs))
    return Report(estimator, quantity, packets=packets, reason=reason, details=details, **shown.facts)


def _why_nothing(leg: str, any_leg: bool) -> str:
    if not any_leg:
        return "no request was seen together with its response"
    if leg in LEGS:
        other = LEGS[1 - LEGS.index(leg)]
        return f"there are no delays to the {leg}, only to the {other} (--leg {other})"
    return "no connection has delays to its server and to its client"


class Figures:
    """The figures of a distribution, as a report has them."""

    __slots__ = ("effective", "facts", "shape", "weight", "why_none")

    def __init__(
        self, facts: dict[str, Any], why_none: str | None, weight: int, effective: float, shape: Sequence[float]
    ) -> None:
        self.facts, self.weight, self.effective = facts, weight, effective
        self.shape = shape  # how many delays lie in each octave
        self.why_none = why_none  # why they have no interval

    @classmethod
    def of(cls, delays: Distribution) -> Figures:
        """Those of a distribution."""
        why = delays.sure.why_none if delays.samples else None
        return cls(facts(delays), why, delays.weight, delays.effective_samples, delays.by_octave())

    @classmethod
    def told(cls, found: _kernels.Figures) -> Figures:
        """What a kernel found."""
        samples, weight, effective, moments, quantiles, ends, why, shape = found
        said: dict[str, Any] = {"samples": samples, **dict(zip(_MOMENTS, moments, strict=True))}
        said["quantiles"] = dict(zip(QUANTILES, quantiles, strict=True))
        said["ci95"] = {name: both for name, both in zip(_BOUNDED, ends, strict=True) if both is not None}
        return cls(said, WHY[why], weight, effective, array("d", shape))


def facts(delays: Distribution) -> dict[str, Any]:
    """The figures of a distribution in seconds, as in a report."""

    def seconds(ns: float | None) -> float | None:
        return None if ns is None else ns / 1e9

    bounds = {"mean": delays.sure.mean_ci_ns()} | {q: delays.sure.quantile_ci_ns(float(q)) for q in QUANTILES}
    return {
        "samples": delays.samples,
        "mean": seconds(delays.mean_ns),
        "std": seconds(delays.std_ns),
        "min": seconds(delays.min_ns),
        "max": seconds(delays.max_ns),
        "quantiles": {q: seconds(delays.quantile_ns(float(q))) for q in QUANTILES},
        "ci95": {name: (low_high[0] / 1e9, low_high[1] / 1e9) for name, low_high in bounds.items() if low_high},
    }


def _plain(figures: dict[str, Any], why_none: str | None) -> dict[str, Any]:
    """Figures as JSON has them: intervals are lists."""
    ci95 = {name: [*bounds] for name, bounds in figures["ci95"].items()}
    return figures | {"ci95": ci95, "no_interval": why_none}
