"""What became of packets between two points: the one answer of all two-point methods, ready to be added up.

Sums are integers, so that a mean is exact where the method is. Deviations are kept as summed squares around the mean
(Chan's rule adds them), since squares of raw differences would drown in a clock's offset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.caches import SINGLE, Cached, join, survives
from wirelag.report import Report
from wirelag.tails import Tail

QUANTILES: Final = ("0.5", "0.9", "0.95", "0.99", "0.999")

Times = npt.NDArray[np.int64]


def bound_ns(std_ns: float, used: int, doubt: float) -> float:
    """How far the mean of `used` delays is from the truth, with probability 1 - doubt at least.

    Bound (1) of the LDA paper: a Gaussian tail, with a deviation that is itself estimated between rows.
    """
    return std_ns * math.sqrt(2 * math.log(2 / doubt) / used)


@dataclass(slots=True)
class Crossing:
    """Packets between an upstream and a downstream point; None where a method cannot say."""

    sent: int = 0
    received: int = 0
    used: int = 0  # packets whose delays are in the sum
    sum_ns: int = 0
    squares_ns2: float | None = 0.0  # of the deviations of all used delays from their mean
    only_upstream: int | None = None
    only_downstream: int | None = None
    late: int = 0  # of only_upstream: seen downstream in a later interval (or an earlier one, by a clock that is ahead)
    early: int = 0  # of only_downstream: sent in another interval
    duplicated: int | None = None
    ambiguous: int | None = None
    reordered: int | None = None
    single_up: Cached | None = None  # seen at this point alone, not yet called lost
    single_down: Cached | None = None
    tail: Tail = field(default_factory=Tail.empty)
    tail_level: int = 0
    min_ns: int | None = None  # of all used delays, where each is known
    max_ns: int | None = None
    net_loss: bool = False  # the method counts packets at both points and can tell no more of loss than the difference
    parts: int = 0  # intervals that were added up
    wire_bytes: int = 0
    reason: str | None = None
    details: dict[str, Any] = field(default_factory=dict)  # what this method has beside

    @property
    def lost(self) -> int | None:
        """What was sent and never arrived."""
        if self.net_loss:
            return max(0, self.sent - self.received)
        if self.only_upstream is None:
            return None
        return max(0, self.only_upstream - self.late)  # the late may stand for more, in an interval of another level

    @property
    def mean_ns(self) -> float | None:
        """The mean delay of the used packets."""
        return self.sum_ns / self.used if self.used else None

    @property
    def std_ns(self) -> float | None:
        """The standard deviation of their delays."""
        if not self.used or self.squares_ns2 is None:
            return None
        return math.sqrt(max(0.0, self.squares_ns2) / self.used)

    def quantile_ns(self, q: float) -> float | None:
        """A quantile of the delays, from the sample."""
        found = self.tail.quantiles_ns([q])
        return found[0][0] if found else None

    def share_above(self, limit_ns: int) -> float | None:
        """The share of delays above a limit, from the sample."""
        found = self.tail.share_above(limit_ns)
        return found[0] if found else None

    def add_delays(self, sent_ns: Times, delays_ns: Times, stands_for: int = 1) -> None:
        """Take in delays that are known one by one."""
        if not len(delays_ns):
            return
        origin_ns = delays_ns[0]  # a clock's offset would leave floats no digits for the rest
        above = (delays_ns - origin_ns).astype(np.float64)
        part = Crossing(
            used=len(delays_ns),
            sum_ns=sum(_safe_sums(delays_ns)),
            squares_ns2=float(((above - above.mean()) ** 2).sum()),
            tail=Tail.of(sent_ns, delays_ns, stands_for),
            min_ns=int(delays_ns.min()),
            max_ns=int(delays_ns.max()),
        )
        self._add_sums(part)

    def add(self, other: Crossing) -> None:
        """Take in another interval: what crossed the edge between them is neither lost nor new."""
        moved = {"only_upstream": other.late, "only_downstream": other.early}
        for name in ("only_upstream", "only_downstream", "duplicated", "ambiguous", "reordered"):
            mine, others = getattr(self, name) if self.parts else 0, getattr(other, name)
            known = mine is not None and others is not None
            setattr(self, name, mine + others - moved.get(name, 0) if known else None)
        self.net_loss |= other.net_loss
        self.parts += 1
        if "share" in other.details:
            self.details["share"] = min(self.details.get("share", 1.0), other.details["share"])
        self.sent += other.sent
        self.received += other.received
        self.wire_bytes += other.wire_bytes
        self._add_sums(other)

    def _add_sums(self, other: Crossing) -> None:
        if other.used and self.used and None not in (self.squares_ns2, other.squares_ns2):
            assert self.squares_ns2 is not None
            assert other.squares_ns2 is not None
            apart = (self.sum_ns * other.used - other.sum_ns * self.used) / (self.used * other.used)
            between = apart * apart * self.used * other.used / (self.used + other.used)
            self.squares_ns2 += other.squares_ns2 + between
        elif other.used:
            self.squares_ns2 = other.squares_ns2 if not self.used else None
        if other.used:
            every = self.min_ns is not None or not self.used
            known = every and other.min_ns is not None
            self.min_ns = _least(self.min_ns, other.min_ns) if known else None
            self.max_ns = _most(self.max_ns, other.max_ns) if known else None
        self.used += other.used
        self.sum_ns += other.sum_ns
        self.tail = self.tail.followed_by(other.tail)

    def settle(self, later: Crossing) -> None:
        """Pair what only one point saw in this interval with what only the other saw in a later one.

        A packet counts where it was sent, also where a downstream clock that is ahead saw it an interval earlier.
        """
        _carry(self, later)
        _carry(later, self)

    def shifted(self, by_ns: float) -> None:
        """Make all delays longer by so much: a clock's correction, found out afterwards."""
        self.sum_ns += round(by_ns * self.used)
        self.tail = self.tail.shifted(by_ns)
        if self.min_ns is not None and self.max_ns is not None:
            self.min_ns += round(by_ns)
            self.max_ns += round(by_ns)

    def report(self, estimator: str) -> Report:
        """What is said of it."""
        mean, std = self.mean_ns, self.std_ns
        quantiles = dict(zip(QUANTILES, self.tail.quantiles_ns([float(q) for q in QUANTILES]), strict=False))
        ci95 = {}
        if mean is not None and std is not None and self.used > 1:
            bound = bound_ns(std, self.used, 0.05)
            ci95["mean"] = ((mean - bound) / 1e9, (mean + bound) / 1e9)
            bound98 = bound_ns(std, self.used, 0.02) / 1e9
        else:
            bound98 = None
        ci95 |= {q: (low_high[0] / 1e9, low_high[1] / 1e9) for q, (_, low_high) in quantiles.items() if low_high}
        details = {
            "sent": self.sent,
            "received": self.received,
            "only_upstream": self.only_upstream,
            "only_downstream": self.only_downstream,
            "lost": self.lost,
            "reordered": self.reordered,
            "duplicated": self.duplicated,
            "ambiguous": self.ambiguous,
            "negative": self.tail.negative if len(self.tail) else None,
            "used": self.used,
            "tail_samples": len(self.tail),
            "bound98": bound98,
            "wire_bytes": self.wire_bytes,
            **self.details,
        }
        reason = self.reason
        if reason is None and not self.used:
            reason = "no packet was seen at both points" if self.sent and self.received else "one point saw no packet"
            if self.details.get("decoded") is False:
                reason = "too many packets differ: nothing decoded, and no bucket is untouched"
        return Report(
            estimator,
            "one_way",
            packets=self.sent + self.received,
            samples=self.used,
            mean=_seconds(mean),
            std=_seconds(std),
            min=_seconds(self.min_ns),
            max=_seconds(self.max_ns),
            quantiles={q: _seconds(quantiles[q][0]) if q in quantiles else None for q in QUANTILES},
            ci95=ci95,
            reason=reason,
            details=details,
        )


def _carry(sent_here: Crossing, seen_there: Crossing) -> None:
    up, down = sent_here.single_up, seen_there.single_down
    if up is None or down is None or not len(up) or not len(down):
        return
    stands_for = max(up.stands_for, down.stands_for)
    highest = max(up.level, down.level)
    up, down = up.at_level(highest), down.at_level(highest)
    found = join(up.ids, down.ids)
    sent_ns = up.times_ns[found.up_rows]
    delays_ns = down.times_ns[found.down_rows] - sent_ns
    in_tail = survives(up.ids[found.up_rows], up.seed, sent_here.tail_level)
    whole = Crossing()
    whole.add_delays(sent_ns, delays_ns, stands_for)
    if sent_here.tail_level > highest:
        whole.tail = Tail.of(sent_ns[in_tail], delays_ns[in_tail], 1 << sent_here.tail_level)
    sent_here._add_sums(whole)
    sent_here.late += (len(up) - found.only_upstream) * stands_for
    seen_there.early += (len(down) - found.only_downstream) * stands_for
    for crossing, name in ((sent_here, "ambiguous"), (sent_here, "reordered"), (seen_there, "duplicated")):
        if getattr(crossing, name) is not None:
            setattr(crossing, name, getattr(crossing, name) + getattr(found, name) * stands_for)
    sent_here.single_up = up.only(found.up_fate == SINGLE)
    seen_there.single_down = down.only(found.down_fate == SINGLE)


def _safe_sums(values: Times) -> list[int]:
    """Sums of halves, which cannot overflow for less than 2^32 values."""
    return [int((values >> np.int64(32)).sum()) << 32, int((values & np.int64(0xFFFFFFFF)).sum())]


def _least(a: int | None, b: int | None) -> int | None:
    return min((x for x in (a, b) if x is not None), default=None)


def _most(a: int | None, b: int | None) -> int | None:
    return max((x for x in (a, b) if x is not None), default=None)


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9
