"""The synopsis of every method that yields samples of delay: distributions by group and leg.

Memory: one distribution for each group and leg that has samples (distribution.py); `Grouping` bounds the groups.
Merging adds distributions: it is associative and lossless.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from wirelag.packets.batch import PacketBatch
from wirelag.report import QUANTILES, Quantity, Report
from wirelag.stats.distribution import WORDS, Distribution, add_by_leg
from wirelag.stats.random_groups import RandomGroups

if TYPE_CHECKING:
    from wirelag.synopses.connections import Connections

LEGS: Final = ("server", "client")
MIXED: Final = "mixed"  # delays of both legs as one
ALL: Final = 0  # tag of samples without a group

Ints = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """The samples of one packet batch, one row each."""

    rows: Ints  # rows of the responses in the packet batch
    delays_ns: Ints
    legs: Ints  # indexes of LEGS
    kinds: tuple[str, ...]  # names of the matchers
    kind: Ints  # indexes of `kinds`
    weights: Ints | None = None  # None: 1 each
    tags: Ints | None = None  # of their groups; None: no groups


Sink: TypeAlias = Callable[[PacketBatch, SampleBatch], None]
"""A consumer of samples as a meter finds them, in order; it keeps neither batch."""


class Samples:
    """Delays by (tag of the group, leg), the number of packets, and counters."""

    def __init__(self) -> None:
        self.distributions: dict[tuple[int, int], Distribution] = {}
        self.random_groups = RandomGroups()
        self._ungrouped: npt.NDArray[np.uint64] | None = None
        self.packets = 0
        self.counts: dict[str, int] = {}
        self.connections: Connections | None = None  # for the uncertainty of groups

    def add(self, tags: Ints | None, legs: Ints, delays_ns: Ints, weights: Ints | None = None) -> None:
        """Add samples; without tags they belong to no group."""
        if tags is None:
            add_by_leg(self._both_legs(), delays_ns, weights, legs)
            return
        keys = tags.astype(np.int64) * 2 + legs
        order = np.argsort(keys, kind="stable")
        ends = np.cumsum(np.bincount(keys)).tolist()  # tags are small numbers
        start = 0
        for key, end in enumerate(ends):
            if end > start:
                mine = order[start:end]
                distribution = self.distributions.setdefault((key >> 1, key & 1), Distribution())
                distribution.add(delays_ns[mine], None if weights is None else weights[mine])
                start = end

    def _both_legs(self) -> npt.NDArray[np.uint64]:
        """The memory of the ungrouped samples, both legs in one piece."""
        if self._ungrouped is None:
            self._ungrouped = np.zeros(len(LEGS) * WORDS, np.uint64)
            for leg in range(len(LEGS)):
                mine = Distribution(self._ungrouped[leg * WORDS : (leg + 1) * WORDS])
                if (ALL, leg) in self.distributions:
                    mine.merge(self.distributions[ALL, leg])
                self.distributions[ALL, leg] = mine
        return self._ungrouped

    def count(self, **counts: int) -> None:
        """Add to the counters."""
        for name, n in counts.items():
            self.counts[name] = self.counts.get(name, 0) + n

    def merge(self, other: Samples) -> None:
        """Add another synopsis."""
        for key, distribution in other.distributions.items():
            self.distributions.setdefault(key, Distribution()).merge(distribution)
        self.random_groups.merge(other.random_groups)
        self.packets += other.packets
        self.count(**other.counts)

    def distribution(self, tag: int | None = None, leg: int | None = None) -> Distribution:
        """All delays, or those of a group, or of a leg."""
        total = Distribution()
        tags = self.tags if tag is None else [tag]
        for key in itertools.product(tags, range(len(LEGS)) if leg is None else [leg]):
            if key in self.distributions:
                total.merge(self.distributions[key])
        return total

    @property
    def tags(self) -> list[int]:
        """The groups that have samples."""
        return sorted({tag for tag, _ in self.distributions})

    def report(self, estimator: str, quantity: Quantity, tag: int | None = None, leg: str = MIXED) -> Report:
        """The report over all samples, or one group's: of a leg, or of both as one."""
        place = LEGS.index(leg) if leg in LEGS else None
        return self.report_of(self.distribution(tag, place), estimator, quantity, tag, leg)

    def report_of(self, whole: Distribution, estimator: str, quantity: Quantity, tag: int | None, leg: str) -> Report:
        """The report of these delays; the figures of each leg are beside them."""
        details: dict[str, Any] = {"leg": leg, "legs": self.legs(tag)}
        means = [details["legs"].get(name, {}).get("mean") for name in LEGS]
        # Both legs together: the delay of a connection's packets from end to end and back.
        details["both_legs"] = None if None in means else sum(means)
        if tag is None:
            details["counts"] = dict(sorted(self.counts.items()))
        # If a method sees only some delays, each sample stands for several.
        details |= {"stands_for": whole.weight, "effective_samples": whole.effective_samples}
        return Report(
            estimator,
            quantity,
            packets=self.packets,
            reason=None if whole.samples else self._why_nothing(tag, leg),
            details=details,
            **facts(whole, self._certainty(tag, leg)),
        )

    def legs(self, tag: int | None = None) -> dict[str, Any]:
        """The figures of each leg that has samples, as JSON holds them."""
        found = {name: self.distribution(tag, place) for place, name in enumerate(LEGS)}
        return {name: _plain(facts(one, self._certainty(tag, name))) for name, one in found.items() if one.samples}

    def _certainty(self, tag: int | None, leg: str) -> Certainty | None:
        if tag is not None and self.connections is not None and leg in LEGS:
            place = LEGS.index(leg)
            return self.connections.certainty(tag, place, self.distribution(tag, place))
        if tag is not None or leg not in (*LEGS, MIXED):
            return None
        return self.random_groups if leg == MIXED else self.random_groups.of_leg(LEGS.index(leg))

    def _why_nothing(self, tag: int | None, leg: str) -> str:
        if not self.distribution(tag).samples:
            return "no request was seen together with its response"
        if leg in LEGS:
            other = LEGS[1 - LEGS.index(leg)]
            return f"there are no delays to the {leg}, only to the {other} (--leg {other})"
        return "no connection has delays to its server and to its client"


class Certainty(Protocol):
    """How sure figures are; a bound of 0 means that independent samples are assumed."""

    def mean_bound_ns(self) -> float:
        """Half of the 95% interval of the mean."""

    def share_bound(self, below: int) -> float:
        """Half of the 95% interval of the share of delays in bins below this one."""


def facts(distribution: Distribution, random_groups: Certainty | None = None) -> dict[str, Any]:
    """The figures of a distribution in seconds, as in a report; groups account for samples of one connection."""

    def seconds(ns: float | None) -> float | None:
        return None if ns is None else ns / 1e9

    share_bound = random_groups.share_bound if random_groups else None
    bounds = {"mean": distribution.mean_ci_ns(random_groups.mean_bound_ns() if random_groups else 0.0)}
    bounds |= {q: distribution.quantile_ci_ns(float(q), share_bound) for q in QUANTILES}
    return {
        "samples": distribution.samples,
        "mean": seconds(distribution.mean_ns),
        "std": seconds(distribution.std_ns),
        "min": seconds(distribution.min_ns),
        "max": seconds(distribution.max_ns),
        "quantiles": {q: seconds(distribution.quantile_ns(float(q))) for q in QUANTILES},
        "ci95": {name: (low_high[0] / 1e9, low_high[1] / 1e9) for name, low_high in bounds.items() if low_high},
    }


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures as JSON has them: intervals are lists."""
    return figures | {"ci95": {name: [*bounds] for name, bounds in figures["ci95"].items()}}
