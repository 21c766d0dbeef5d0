"""Crossings: packets between two points, the common outcome of all two-point methods.

Crossings of several intervals are added up: counts, moments (moments.py) and samples of delays (delay_sample.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.clocks.fit import Clock
from wirelag.codec import Fields, packed_size
from wirelag.report import QUANTILES, Report
from wirelag.stats.distribution import Z95
from wirelag.stats.moments import Moments
from wirelag.stats.over_time import bounds, too_wide
from wirelag.synopses.cache import SINGLE, Cached, Crossed, CrossedSink, join, level, survives
from wirelag.synopses.delay_sample import DelaySample
from wirelag.synopses.reordering import UNCHECKED, Order

Times = npt.NDArray[np.int64]


CONTRADICTION: Final = 5.0  # standard errors between two estimates of one mean
FEWEST_SINGLE: Final = 30  # single delays that can contradict sums


@dataclass(slots=True)
class Crossing:
    """Packets between an upstream and a downstream point; None where a method cannot say."""

    sent: int = 0
    received: int = 0
    moments: Moments = field(default_factory=Moments)
    only_upstream: int | None = None
    only_downstream: int | None = None
    late: int = 0  # part of only_upstream: seen downstream in another interval (earlier, if its clock is ahead)
    early: int = 0  # part of only_downstream: sent in another interval
    duplicated: int | None = None
    ambiguous: int | None = None
    reordered: int | None = None
    order: Order = UNCHECKED  # order in a sample, where points send one
    single_up: Cached | None = None  # seen at this point only, not yet called lost
    single_down: Cached | None = None
    tail: DelaySample = field(default_factory=DelaySample.empty)
    tail_level: int = 0
    min_ns: int | None = None  # over all used delays, where each is known
    max_ns: int | None = None
    net_loss: bool = False  # loss is only the difference of both points' counts
    came: int = 0  # over an edge, less what went, where only a sample of packets tells it; not in `late` and `early`
    came_variance: float = 0.0
    parts: int = 0  # intervals summed
    wire_bytes: int = 0
    reason: str | None = None
    details: dict[str, Any] = field(default_factory=dict)  # further fields of this method
    sink: CrossedSink | None = None  # takes the packets seen at both points

    @property
    def lost(self) -> int | None:
        """Packets that were sent and never arrived."""
        if self.net_loss:
            return max(0, self.missing)
        if self.only_upstream is None:
            return None
        return max(0, self.only_upstream - self.late)  # the late may represent more, in an interval of another level

    @property
    def missing(self) -> int:
        """Packets sent in this interval less those of them that were received: below 0 with copies, or by chance.

        Chance: where only a sample of packets is known, what is under way at both edges counts as if it were the same.
        """
        return self.sent - self.late - (self.received - self.early)

    @property
    def unsettled(self) -> bool:
        """Whether packets wait for their counterpart."""
        return bool((self.single_up and len(self.single_up)) or (self.single_down and len(self.single_down)))

    @property
    def used(self) -> int:
        """Packets whose delays are in the mean."""
        return self.moments.used

    @property
    def sum_ns(self) -> int:
        """Their summed delay, exact."""
        return self.moments.sum_ns

    @property
    def mean_ns(self) -> float | None:
        """The mean delay."""
        return self.moments.mean_ns

    @property
    def std_ns(self) -> float | None:
        """The standard deviation of delays."""
        return self.moments.std_ns

    @property
    def samples(self) -> int:
        """How many delays are known one by one."""
        return len(self.tail)

    def quantile_ns(self, q: float) -> float | None:
        """A quantile of the delays, from the sample."""
        found = self.tail.quantiles_ns([q])
        return found[0][0] if found else None

    def share_above(self, limit_ns: int) -> float | None:
        """The share of delays above a limit."""
        return self.tail.share_above(limit_ns)

    def share_above_ci(self, limit_ns: int) -> tuple[float, float] | None:
        """The 95% interval of that share."""
        return self.tail.share_above_ci(limit_ns)

    def copied(self) -> Crossing:
        """A copy that can be settled; arrays are shared, since they are never changed."""
        copy = Crossing(*_FIELDS(self))
        copy.moments, copy.details = self.moments.copied(), dict(self.details)
        return copy

    def with_bytes(self, fields: Fields) -> Crossing:
        """Itself, with the bytes that a synopsis of these fields takes on its way."""
        self.wire_bytes = packed_size(fields)
        return self

    def add_delays(self, sent_ns: Times, delays_ns: Times, stands_for: int = 1) -> None:
        """Add single delays."""
        if len(delays_ns):
            self._add_sums(Crossing.of_delays(sent_ns, delays_ns, stands_for))

    @classmethod
    def of_delays(cls, sent_ns: Times, delays_ns: Times, stands_for: int) -> Crossing:
        """Single delays, at least one, and nothing else."""
        count, (sum_ns, variance, least_ns, most_ns) = len(delays_ns), _kernels.delay_sums(delays_ns)
        return cls(
            moments=Moments.of(count, sum_ns, variance, count * stands_for),
            tail=DelaySample.of(sent_ns, delays_ns, stands_for),
            min_ns=least_ns,
            max_ns=most_ns,
        )

    def add(self, other: Crossing, with_tail: bool = True) -> None:
        """Add another interval: packets that crossed the edge between them are neither lost nor new."""
        moved = {"only_upstream": other.late, "only_downstream": other.early}
        for name in ("only_upstream", "only_downstream", "duplicated", "ambiguous", "reordered"):
            mine, others = getattr(self, name) if self.parts else 0, getattr(other, name)
            known = mine is not None and others is not None
            setattr(self, name, mine + others - moved.get(name, 0) if known else None)
        self.net_loss |= other.net_loss
        if other.net_loss:
            self.late, self.early = self.late + other.late, self.early + other.early
        self.parts += 1
        if "share" in other.details:
            self.details["share"] = min(self.details.get("share", 1.0), other.details["share"])
        if "contradicted" in other.details:
            self.details["contradicted"] = self.details.get("contradicted", 0) + other.details["contradicted"]
        self.sent += other.sent
        self.received += other.received
        self.order += other.order
        self.wire_bytes += other.wire_bytes
        self._add_sums(other, with_tail)

    def _add_sums(self, other: Crossing, with_tail: bool = True) -> None:
        if other.used:
            known = (self.min_ns is not None or not self.used) and other.min_ns is not None
            self.min_ns = _least(self.min_ns, other.min_ns) if known else None
            self.max_ns = _most(self.max_ns, other.max_ns) if known else None
        self.moments.add(other.moments)
        if with_tail:
            self.tail = self.tail.followed_by(other.tail)

    def settle(self, later: Crossing, ahead_ns: int, delays_of: Crossing | None = None) -> None:
        """Pair packets that only one point saw in this interval with those only the other saw in a later one.

        A packet counts in the interval it was sent in, even if a downstream clock that is ahead, by at most
        `ahead_ns`, saw it an interval earlier. `delays_of`: the one of both whose delays are wanted, if not both are.
        """
        _carry(self, later, ahead_ns, delays_of is None or delays_of is self)
        _carry(later, self, ahead_ns, delays_of is None or delays_of is later)

    def on_clock(self, clock: Clock, middle_ns: int) -> None:
        """Correct downstream times afterwards: sampled delays one by one, moments by the effect on the sample."""
        before = self.tail
        if len(before):
            received_ns = before.sent_ns + before.delays_ns
            shifts_ns = clock.correct(received_ns) - received_ns
            self.tail = DelaySample(before.sent_ns, before.delays_ns + shifts_ns, before.weights)
            if self.moments.known and before.delays_ns.var() > 0:
                self.moments.squares_ns2 *= float(self.tail.delays_ns.var() / before.delays_ns.var())
            self.moments.shift(float(np.average(shifts_ns, weights=before.weights)))
        else:
            seen_ns = np.array([middle_ns + round(self.mean_ns or 0)])
            self.moments.shift(float((clock.correct(seen_ns) - seen_ns)[0]))
        self.min_ns = self.max_ns = None

    def checked(self) -> Crossing:
        """Itself, with the figures of the sample if the sums contradict it.

        Law: sums that compare different packets (copies, packets that overtake each other at the edges of intervals)
        give any mean, and no sign of it. The sample has the delays of single packets. Both are of packets that a hash
        chose, so their means differ by chance alone, and by more than five standard errors never.
        """
        mean_ns, sample = self.mean_ns, self.tail
        if mean_ns is None or len(sample) < FEWEST_SINGLE or self.used <= len(sample):
            return self
        above = (sample.delays_ns - sample.median_ns).astype(np.float64)
        weights = sample.weights  # as numpy's average and std, but quick
        single_ns = sample.median_ns + float(np.add.reduce(above * weights) / np.add.reduce(weights, dtype=np.float64))
        off = above - np.add.reduce(above) / len(above)
        error_ns = math.sqrt(np.add.reduce(off * off) / len(off)) * math.sqrt(1 / sample.effective + 1 / self.used)
        if abs(mean_ns - single_ns) <= max(CONTRADICTION * error_ns, 1.0):
            return self
        self.moments = Moments.of_sample(sample.delays_ns, sample.weights)
        self.details["contradicted"] = max(1, self.parts)  # intervals
        return self

    def report(self, estimator: str) -> Report:
        """The report."""
        mean, std = self.mean_ns, self.std_ns
        quantiles = dict(zip(QUANTILES, self.tail.quantiles_ns([float(q) for q in QUANTILES]), strict=False))
        ci95, no_interval = {}, self.tail.why_no_interval()
        bound98 = 0.0 if self._exact else self.moments.bound_ns(0.02)
        if mean is not None and no_interval is None:
            low, high = self._mean_ci_ns(mean)
            no_interval = too_wide(abs(mean), high, max(self.max_ns or 0, int(self.tail.delays_ns.max())))
            if no_interval is None:
                ci95["mean"] = (low / 1e9, high / 1e9)
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
            "stands_for": self.moments.weight,
            "tail_samples": len(self.tail),
            "bound98": _seconds(bound98),
            "no_interval": no_interval if self.used else None,
            "wire_bytes": self.wire_bytes,
            **self.details,
        }
        reason = self.reason if self.reason or self.used else self._why_nothing()
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

    @property
    def _exact(self) -> bool:
        """Whether the mean is that of all packets seen at both points: the delay of each is known."""
        return self.used > 0 and self.min_ns is not None and self.moments.weight == self.used and not self.ambiguous

    def _mean_ci_ns(self, mean_ns: float) -> tuple[float, float]:
        """The 95% interval of the mean over a long time.

        Law: the error has two parts, how the path varies over time, which the sample shows, and how well the method
        knows the mean of the packets that crossed. The sample's own chance is not part of a mean of more packets.
        """
        over = self.tail.over_time()
        error_ns, freedom = over.error if over else (0.0, math.inf)
        chance, own = self.tail.chance(over), self.moments.error_ns
        variance = error_ns**2 if own is None else max(error_ns**2 - chance.error**2, 0.0) + own**2
        floor_ns = float(self.tail.delays_ns.min()) if self.min_ns is None else self.min_ns
        return bounds(
            mean_ns,
            (math.sqrt(variance), freedom),
            max(0.0, mean_ns - floor_ns),
            chance if own is None else chance._replace(error=own),
        )

    def _why_nothing(self) -> str:
        if not self.sent or not self.received:
            where = "downstream" if self.sent else "upstream" if self.received else "at either point"
            return f"no packet was seen {where}"
        if self.details.get("decoded") is False:
            return "too many packets differ: they do not decode, and every bucket is affected"
        if len(self.tail):
            return "loss affected every bucket: use more --rows, or tune for this loss (--loss)"
        return "no packet was seen at both points"


_FIELDS: Final = attrgetter(*(one.name for one in fields(Crossing)))


def lost_of(missing: Sequence[int]) -> list[int]:
    """What each interval lost, for intervals in order of time: together they lost what is missing from all of them.

    Law: what is missing so far has been lost or is under way, and what arrives later was under way. So no more was
    lost up to an interval than is missing at the end of any later one.
    """
    so_far = np.minimum.accumulate(np.cumsum(missing, dtype=np.int64)[::-1])[::-1]
    found: list[int] = np.diff(np.maximum(so_far, 0), prepend=0).tolist()
    return found


def lost_between(crossing: Crossing, lost: int, whole: int) -> tuple[int, int]:
    """The 95% interval of what an interval lost, by a method that only counts packets; `lost` is said of it.

    Law: missing are the lost packets, and those that went over its end less those that came over its start. A sample
    of packets, one in s, tells how many did: with a variance of s (s - 1) for each that it has, and one for each edge
    where it has none. A sample of all packets leaves no doubt, and no interval lost more than the `whole`, which is
    exact.
    """
    each = 1 << crossing.tail_level
    half = Z95 * math.sqrt(crossing.came_variance + 2 * each * (each - 1))
    middle = crossing.missing + crossing.came
    low, high = math.floor(middle - half), math.ceil(middle + half)
    return max(0, min(low, lost)), max(lost, min(high, crossing.sent, whole))


def joined(up: Cached, down: Cached, sink: CrossedSink | None = None, cores: int = 1) -> Crossing:
    """Two caches of an interval, entry by entry; the sink also gets packets that cross its edges."""
    sent, received = up.packets, down.packets
    up, down = level(up, down)
    found, each = join(up.ids, down.ids, cores), up.stands_for
    crossing = Crossing(
        sent,
        received,
        only_upstream=found.only_upstream * each,
        only_downstream=found.only_downstream * each,
        duplicated=found.duplicated * each,
        ambiguous=found.ambiguous * each,
        reordered=found.reordered * each,
        single_up=up.only(found.up_fate == SINGLE),
        single_down=down.only(found.down_fate == SINGLE),
        tail_level=up.level,
        details={"share": 1 / each},
        sink=sink,
    )
    sent_ns = up.times_ns[found.up_rows]
    delays_ns = down.times_ns[found.down_rows] - sent_ns
    crossing.add_delays(sent_ns, delays_ns, each)
    _pass_on(crossing, up, down, found.up_rows, found.down_rows, sent_ns, delays_ns)
    return crossing


def _pass_on(
    crossing: Crossing, up: Cached, down: Cached, up_rows: Any, down_rows: Any, sent_ns: Times, delays_ns: Times
) -> None:
    if crossing.sink is not None and up.about is not None and down.about is not None and len(delays_ns):
        crossing.sink(Crossed(sent_ns, delays_ns, up.about, up_rows, down.about, down_rows, up.stands_for))


def _carry(sent_here: Crossing, seen_there: Crossing, ahead_ns: int, with_delays: bool) -> None:
    up, down = sent_here.single_up, seen_there.single_down
    if up is None or down is None or not len(up) or not len(down):
        return
    up, down = level(up, down)
    # A packet seen long before it was sent is a copy of another: both stay single.
    found = _kernels.carried(up.ids, up.times_ns, down.ids, down.times_ns, ahead_ns)
    if found is None:  # as in most cases
        sent_here.single_up, seen_there.single_down = up, down
        return
    sent_ns, delays_ns, up_rows, down_rows, up_single, down_single, unreal, only_up, only_down, *copies = found
    stands_for = up.stands_for
    if with_delays and len(delays_ns):
        whole = Crossing.of_delays(sent_ns, delays_ns, stands_for)
        if sent_here.tail_level > up.level:
            in_tail = survives(up.ids[up_rows], up.seed, sent_here.tail_level)
            whole.tail = DelaySample.of(sent_ns[in_tail], delays_ns[in_tail], 1 << sent_here.tail_level)
        sent_here._add_sums(whole)
    _pass_on(sent_here, up, down, up_rows, down_rows, sent_ns, delays_ns)
    went, came = len(up) - only_up - unreal, len(down) - only_down - unreal
    if stands_for == 1 or not sent_here.net_loss:  # a difference of all packets is surer than two scaled samples
        sent_here.late += went * stands_for
        seen_there.early += came * stands_for
    else:
        sent_here.came, seen_there.came = sent_here.came - went * stands_for, seen_there.came + came * stands_for
        sent_here.came_variance += went * stands_for * (stands_for - 1)
        seen_there.came_variance += came * stands_for * (stands_for - 1)
    duplicated, ambiguous, reordered = (count * stands_for for count in copies)
    if sent_here.ambiguous is not None:
        sent_here.ambiguous += ambiguous
    if sent_here.reordered is not None:
        sent_here.reordered += reordered
    if seen_there.duplicated is not None:
        seen_there.duplicated += duplicated
    sent_here.single_up = up.only(up_single)
    seen_there.single_down = down.only(down_single)


def _least(a: int | None, b: int | None) -> int | None:
    return min((x for x in (a, b) if x is not None), default=None)


def _most(a: int | None, b: int | None) -> int | None:
    return max((x for x in (a, b) if x is not None), default=None)


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9
