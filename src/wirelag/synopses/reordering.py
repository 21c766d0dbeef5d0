"""Whether packets overtake each other: a sample of packets, and for each the packet that arrived just before it.

Guarantee: counts the sampled packets that arrived directly behind one sent later (n-reordered with n = 1, RFC 4737,
section 5). Coins of the ids choose the sample, so the share is unbiased where it is known: not where both were sent
before the interval (a share of delay / interval of all packets). Later packets that follow such a one in order do not
count: the ratio of RFC 4737, section 4, is at least as large. Memory: 4 bytes per packet, at most LOOKED_AT packets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.stats.distribution import wilson
from wirelag.synopses.cache import Cached, survives
from wirelag.synopses.symbols import LOW, MOST_CHECKED, SymbolSynopsis, Words

LOOKED_AT: Final = MOST_CHECKED  # sampled packets per interval
FEWEST: Final = 64  # packets per interval; with fewer, sampling is not worth the bytes
UNTOLD_NS: Final = 0  # time of a packet that cannot be told from another

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Order:
    """Number of sampled packets, and how many arrived directly behind one sent later."""

    checked: int = 0
    overtaken: int = 0

    def __add__(self, other: Order) -> Order:
        return Order(self.checked + other.checked, self.overtaken + other.overtaken)

    def to_json(self) -> dict[str, Any] | None:
        """The JSON form; None if no packet was sampled."""
        if not self.checked:
            return None
        share = self.overtaken / self.checked
        counts = {"checked": self.checked, "overtaken": self.overtaken}
        return counts | {"share": share, "ci95": list(wilson(share, self.checked))}


UNCHECKED: Final = Order()


def looked_at(tail: Cached) -> Cached:
    """The packets of a point's sample whose order is checked."""
    return tail.at_most(LOOKED_AT)


def before(cached: Cached, tail: Cached, numbers: Words) -> Words:
    """The packet before each checked packet; the packet itself if none came before it in this interval."""
    if cached.level or len(cached) < FEWEST:  # the packet before may not have been kept
        return np.empty(0, np.uint64)
    rows = np.flatnonzero(survives(cached.ids, cached.seed, looked_at(tail).level))
    return numbers[np.maximum(rows - 1, 0)] & LOW


def with_order(synopsis: SymbolSynopsis, cached: Cached, numbers: Words) -> SymbolSynopsis:
    """The synopsis of an interval, with the packets that came before the checked ones; `numbers` are the cache's."""
    return replace(synopsis, before=before(cached, synopsis.tail, numbers))


def times_of(numbers: Words, times_ns: Times, wanted: Words) -> Times:
    """Times of packets by the low bits of their numbers; UNTOLD_NS if there is none, or more than one."""
    return _kernels.times_of(numbers, times_ns, wanted, UNTOLD_NS)


@dataclass(frozen=True, slots=True)
class Looking:
    """Checked packets and their predecessors; packets sent before the interval are early."""

    sent_ns: Times  # UNTOLD_NS for early packets
    behind: Words  # low bits of the predecessors, of which at most one is early
    behind_early: npt.NDArray[np.bool_]

    @classmethod
    def nothing(cls) -> Looking:
        """No packet."""
        return cls(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, bool))

    @classmethod
    def at(cls, up: Cached, down: Cached, behind: Words, only_downstream: Words) -> Looking:
        """Combine the samples of both points, downstream's predecessors, and the packets that only it saw: the early
        ones.

        (Copies made by the network, and packets that upstream's capture dropped, also count as early.)
        """
        chosen = looked_at(down)
        if len(behind) != len(chosen):
            return cls.nothing()
        numbers, early = _kernels.number_copies(up.ids), only_downstream
        own = _kernels.number_copies(chosen.ids)
        return cls(*_kernels.looking(own, behind, early, numbers, up.times_ns, UNTOLD_NS))

    @property
    def wanted(self) -> Words:
        """Packets whose times upstream must report."""
        return self.behind[~self.behind_early]

    def order(self, times_ns: Times) -> Order:
        """Judge the order with the times of the wanted packets. An early packet was overtaken by any that was not."""
        told, early = times_ns != UNTOLD_NS, int(np.count_nonzero(self.behind_early))
        overtaken = told & (times_ns > self.sent_ns[~self.behind_early])
        return Order(early + int(np.count_nonzero(told)), int(np.count_nonzero(overtaken)))
