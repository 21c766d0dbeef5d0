"""Whether packets overtake each other: a sample of them, and for each the packet that arrived just before it.

Guarantee: of the packets that were looked at, how many came directly behind one that was sent after them (n-reordered
with n = 1, RFC 4737, section 5). Packets are chosen by coins of their ids, so the share is unbiased as far as it is
known: not where both were sent before the interval (of all packets the share of delay / interval). All that come late
behind such a one, in their order, are not counted: the ratio of RFC 4737, section 4, is no less. Memory: 4 bytes a
packet, at most LOOKED_AT of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.stats.distribution import wilson
from wirelag.synopses.cache import Cached, survives
from wirelag.synopses.symbols import LOW, SymbolSynopsis, Words, numbers_of, places_of

LOOKED_AT: Final = 16  # packets of an interval
FEWEST: Final = 64  # packets of an interval that can overtake each other: fewer are not worth a question
UNTOLD_NS: Final = 0  # the time of a packet that cannot be told from another

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Order:
    """How many packets were looked at, and how many of them came directly behind one that was sent later."""

    checked: int = 0
    overtaken: int = 0

    def __add__(self, other: Order) -> Order:
        return Order(self.checked + other.checked, self.overtaken + other.overtaken)

    def to_json(self) -> dict[str, Any] | None:
        """As the API has it; None where nothing was looked at."""
        if not self.checked:
            return None
        share = self.overtaken / self.checked
        counts = {"checked": self.checked, "overtaken": self.overtaken}
        return counts | {"share": share, "ci95": list(wilson(share, self.checked))}


def looked_at(tail: Cached) -> Cached:
    """The packets of a point's sample that are looked at."""
    return tail.at_most(LOOKED_AT)


def before(cached: Cached, tail: Cached) -> Words:
    """What arrived just before each packet that is looked at; itself where nothing did in this interval."""
    if cached.level or len(cached) < FEWEST:  # what came before may not have been kept
        return np.empty(0, np.uint64)
    rows = np.flatnonzero(survives(cached.ids, cached.seed, looked_at(tail).level))
    return numbers_of(cached.ids)[np.maximum(rows - 1, 0)] & LOW


def with_order(synopsis: SymbolSynopsis, cached: Cached) -> SymbolSynopsis:
    """What a point says of an interval, and what came before the packets that are looked at."""
    return replace(synopsis, before=before(cached, synopsis.tail))


def times_of(numbers: Words, times_ns: Times, wanted: Words) -> Times:
    """When packets were seen, by the low bits of their numbers; UNTOLD_NS where there is none, or more than one."""
    rows, begin, end = places_of(numbers, wanted)
    found_ns = np.full(len(wanted), UNTOLD_NS, np.int64)
    one = end - begin == 1
    found_ns[one] = times_ns[rows[begin[one]]]
    return found_ns


@dataclass(frozen=True, slots=True)
class Looking:
    """Packets that are looked at, and what arrived just before each; who was sent before the interval is early."""

    sent_ns: Times  # UNTOLD_NS of those that are early
    behind: Words  # low bits of what arrived before, of which one at most is early
    behind_early: npt.NDArray[np.bool_]

    @classmethod
    def nothing(cls) -> Looking:
        """No packet."""
        return cls(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, bool))

    @classmethod
    def at(cls, up: Cached, down: Cached, behind: Words, only_downstream: Words) -> Looking:
        """Samples of both points, what downstream says came before its own, and what it alone saw: the early ones.

        (A copy that the network made, and what upstream's capture dropped, count as early, too.)
        """
        chosen = looked_at(down)
        if len(behind) != len(chosen):
            return cls.nothing()
        numbers, early = numbers_of(chosen.ids) & LOW, only_downstream & LOW
        sent_ns = times_of(numbers_of(up.ids), up.times_ns, numbers)
        behind_early, is_early = np.isin(behind, early), np.isin(numbers, early)
        known = (behind != numbers) & np.where(is_early, ~behind_early, sent_ns != UNTOLD_NS)
        return cls(np.where(is_early, UNTOLD_NS, sent_ns)[known], behind[known], behind_early[known])

    @property
    def wanted(self) -> Words:
        """Packets of which upstream must say when it saw them."""
        return self.behind[~self.behind_early]

    def order(self, times_ns: Times) -> Order:
        """With the times of what was wanted. An early one was overtaken by any that was not."""
        told = times_ns != UNTOLD_NS
        overtaken = told & (times_ns > self.sent_ns[~self.behind_early])
        return Order(int(self.behind_early.sum() + told.sum()), int(overtaken.sum()))
