"""The stored figures of an interval, which can be added up, so that a minute is the sum of its seconds.

Guarantee: counts, means and deviations of a sum are those of all packets in it; a quantile is that of the sampled
delays of all parts, to the precision of a bin (distribution.py). Loss is over the parts with known loss. The clock's
bound is the worst of the parts, and widens every interval of a delay.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.estimators.catalogue import capabilities_of
from wirelag.protocol.pairing import Key
from wirelag.protocol.results import Result
from wirelag.report import QUANTILES
from wirelag.stats.distribution import Z95
from wirelag.stats.moments import Moments
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.reordering import Order

Ints = npt.NDArray[np.int64]
_NO_BINS: Final = np.empty(0, np.int64)
_SHORT: Final = 4096  # bytes: no more than the smaller window


@dataclass(slots=True)
class Tally:
    """One interval of one class of one segment, or several added up."""

    estimator: str = ""
    intervals: int = 0  # seen by both points
    missed: int = 0  # seen by one point only
    covered_ns: int = 0  # time that both points covered
    moments: Moments = field(default_factory=Moments)
    sent: int = 0
    received: int = 0
    loss_sent: int = 0  # packets sent in intervals with known loss
    lost: float = 0.0  # lost packets of these; may be negative in single intervals (loss.py)
    lost_low: float = 0.0  # in a sum, the sum of bounds: too wide, because errors of single intervals cancel out
    lost_high: float = 0.0
    reordered: int | None = None
    duplicated: int | None = None
    references_received: int = 0  # references of rli
    references_lost: int = 0
    checked: int = 0  # packets whose order was checked
    overtaken: int = 0
    unseen_up: int = 0  # dropped by captures
    unseen_down: int = 0
    clock_error_ns: int = 0
    unsynchronised: int = 0  # intervals with an unsynchronised clock
    min_ns: int | None = None
    max_ns: int | None = None
    samples: int = 0  # single delays
    squares: int = 0  # squares of their weights
    negative: int = 0  # weight of negative delays
    bins: Ints = field(default_factory=lambda: _NO_BINS)  # weights of the others
    weights: Ints = field(default_factory=lambda: _NO_BINS)
    reason: str | None = None  # why figures are missing

    @classmethod
    def of(cls, result: Result, key: Key) -> Tally:
        """The tally of a result's class."""
        up, down = result.seen
        unseen = [0 if seen is None else seen.unseen for seen in (up, down)] if key is None else [0, 0]
        clock = result.clock
        tally = cls(result.estimator, unseen_up=unseen[0], unseen_down=unseen[1], reason=result.reason)
        if result.references is not None and key is None:
            tally.references_received, tally.references_lost = result.references
        if up is None or down is None or clock is None:
            tally.missed = 1
            return tally
        tally.intervals, tally.covered_ns = 1, min(up.covered_ns, down.covered_ns, result.interval.length_ns)
        tally.clock_error_ns, tally.unsynchronised = clock.error_ns, int(not clock.synchronised)
        crossing = result.crossings.get(key)
        if crossing is None:
            if result.reason is not None:  # both sent, but cannot be compared
                tally.covered_ns = 0
                tally.sent, tally.received = (up.packets, down.packets) if key is None else (0, 0)
            return tally
        loss = result.losses[key]
        tally.sent, tally.received, tally.moments = crossing.sent, crossing.received, crossing.moments.copied()
        tally.reordered, tally.duplicated = crossing.reordered, crossing.duplicated
        tally.checked, tally.overtaken = crossing.order.checked, crossing.order.overtaken
        if loss.lost is not None:
            tally.loss_sent, tally.lost = crossing.sent, loss.lost
            tally.lost_low, tally.lost_high = loss.low, loss.high
        tally.reason = result.reason or crossing.reason or loss.reason
        tally._take_delays(crossing)
        return tally

    def _take_delays(self, crossing: Crossing) -> None:
        tail = crossing.tail
        self.min_ns, self.max_ns = crossing.min_ns, crossing.max_ns
        if not len(tail):
            return
        self.bins, self.weights, self.negative, low, high = _kernels.sample_bins(tail.delays_ns, tail.weights)
        self.samples, self.squares = len(tail), high << 64 | low
        if self.min_ns is None:  # from the sample, as nothing better is known
            self.min_ns, self.max_ns = int(tail.delays_ns.min()), int(tail.delays_ns.max())

    def copied(self) -> Tally:
        """A copy, to which more can be added; arrays are shared, since they are never changed."""
        copy = Tally(*_FIELDS(self))
        copy.moments = self.moments.copied()
        return copy

    def add(self, other: Tally) -> None:
        """Add another interval."""
        self._add_numbers(other)
        if len(other.bins):
            self.bins, self.weights = _kernels.merge_bins(self.bins, self.weights, other.bins, other.weights)

    def _add_numbers(self, other: Tally) -> None:
        if other.intervals:
            for name in ("reordered", "duplicated"):
                mine, theirs = getattr(self, name) if self.intervals else 0, getattr(other, name)
                setattr(self, name, None if mine is None or theirs is None else mine + theirs)
        for name in SUMS:
            if theirs := getattr(other, name):
                setattr(self, name, getattr(self, name) + theirs)
        self.estimator = other.estimator or self.estimator
        self.moments.add(other.moments)
        self.clock_error_ns = max(self.clock_error_ns, other.clock_error_ns)
        if other.min_ns is not None:
            self.min_ns = other.min_ns if self.min_ns is None else min(self.min_ns, other.min_ns)
        if other.max_ns is not None:
            self.max_ns = other.max_ns if self.max_ns is None else max(self.max_ns, other.max_ns)

    # ---- figures ----

    def quantile_ns(self, q: float, ranked: _kernels.RankedBins | None = None) -> float | None:
        """The delay below which a share of q lies; None if it is negative."""
        found = (ranked or _kernels.RankedBins(self.bins, self.weights, self.negative)).quantile(q)
        if found is None:
            return None
        return min(max(found, self.min_ns or 0.0), found if self.max_ns is None else float(self.max_ns))

    def with_interval_ns(self, q: float) -> tuple[float, tuple[float, float] | None] | None:
        """A quantile and its 95% interval with the clocks' error, if they are in sync; None if too few are known."""
        ranked = _kernels.RankedBins(self.bins, self.weights, self.negative)
        found, bounds = self.quantile_ns(q, ranked), self._bounds_ns(q, ranked)
        if found is None or bounds is None:
            return None
        clock = self.clock_error_ns
        return found, None if self.unsynchronised else (bounds[0] - clock, bounds[1] + clock)

    def to_json(self, start_ns: int, length_ns: int, settled: bool) -> dict[str, Any]:
        """The JSON of the API; times in seconds."""
        clock = self.clock_error_ns
        mean, bound = self.moments.mean_ns, self.moments.bound_ns(0.05)
        ranked = _kernels.RankedBins(self.bins, self.weights, self.negative)
        bounds = {q: self._bounds_ns(float(q), ranked) for q in QUANTILES}
        whole = self.samples >= self.moments.used or not self.counts_sent  # else only a sample's
        quantiles = {q: self.quantile_ns(float(q), ranked) if whole or bounds[q] else None for q in QUANTILES}
        ci95: dict[str, tuple[float | None, ...]] = {}
        if not self.unsynchronised:
            if mean is not None and bound is not None:
                ci95["mean"] = _seconds(mean - bound - clock), _seconds(mean + bound + clock)
            for q in QUANTILES:
                if (ends := bounds[q]) is not None:
                    ci95[q] = _seconds(ends[0] - clock), _seconds(ends[1] + clock)
        known = self.loss_sent > 0 or (self.counts_sent and not self.sent and self.intervals > 0 and not self.reason)
        if self.loss_sent:
            ci95["loss"] = self._share(self.lost_low), self._share(self.lost_high)
        return {
            "start": start_ns / 1e9,
            "end": (start_ns + length_ns) / 1e9,
            "settled": settled,
            "estimator": self.estimator,
            "mean": _seconds(mean),
            "std": _seconds(self.moments.std_ns),
            "min": _seconds(self.min_ns) if whole else None,
            "max": _seconds(self.max_ns) if whole else None,
            "quantiles": {q: _seconds(value) for q, value in quantiles.items()},
            "ci95": {name: list(ends) for name, ends in ci95.items()},
            "used": self.moments.used,
            "samples": self.samples,
            "sent": self.sent if self.counts_sent else None,
            "received": self.received,
            "lost": max(0.0, self.lost) if known else None,
            "loss": self._share(self.lost) if self.loss_sent else None,
            "reordered": self.reordered,
            "duplicated": self.duplicated,
            "order": Order(self.checked, self.overtaken).to_json(),
            "references": self._references(),
            "unseen": {"upstream": self.unseen_up, "downstream": self.unseen_down},
            "intervals": self.intervals,
            "missed": self.missed,
            "covered": min(1.0, self.covered_ns / length_ns),
            "clock": {"error": _seconds(clock), "synchronised": not self.unsynchronised} if self.intervals else None,
            "reason": self.reason,
        }

    def check(self) -> None:
        """Raise an ArithmeticError or a ValueError if a figure cannot be computed."""
        figures = self.moments.mean_ns, self.moments.std_ns, self.moments.bound_ns(0.05), self.lost
        if not all(figure is None or math.isfinite(figure) for figure in figures):
            raise ArithmeticError("it has figures that are no numbers")

    @property
    def comparable(self) -> bool:
        """Whether both points' synopses can be compared: False if they are set up differently."""
        return not self.intervals or self.covered_ns > 0 or self.reason is None

    @property
    def counts_sent(self) -> bool:
        """Whether the method sees what is sent; a one-sided one sees only what arrives."""
        can = capabilities_of(self.estimator)
        return can is None or not can.one_sided

    def _references(self) -> dict[str, int] | None:
        """References of the whole segment; classes have none of their own."""
        counts = {"received": self.references_received, "lost": self.references_lost}
        return counts if any(counts.values()) else None

    def _share(self, lost: float) -> float:
        return min(max(0.0, lost / self.loss_sent), 1.0)

    def _bounds_ns(self, q: float, ranked: _kernels.RankedBins) -> tuple[float, float] | None:
        weight = ranked.weight
        if not weight:
            return None
        error = Z95 * math.sqrt(q * (1 - q) * self.squares) / weight
        if q - error <= 0 or q + error >= 1:
            return None
        low, high = self.quantile_ns(q - error, ranked), self.quantile_ns(q + error, ranked)
        return None if low is None or high is None else (low, high)

    # ---- as bytes ----

    def packed_bins(self) -> bytes:
        """The bins and their weights."""
        plain = _kernels.pack_bins(self.bins, self.weights)
        # For a short text zlib's usual memory takes longer to clear than the text to compress.
        press = zlib.compressobj(6, zlib.DEFLATED, *((12, 5) if len(plain) < _SHORT else (15, 8)))
        return press.compress(plain) + press.flush()

    def unpack_bins(self, data: bytes) -> None:
        """The inverse of `packed_bins`."""
        self.bins, self.weights = _kernels.unpack_bins(zlib.decompress(data))


_FIELDS: Final = attrgetter(*(one.name for one in fields(Tally)))
SUMS: Final = (
    "intervals", "missed", "covered_ns", "sent", "received", "loss_sent", "lost", "lost_low", "lost_high",
    "references_received", "references_lost", "checked", "overtaken", "unseen_up", "unseen_down", "unsynchronised",
    "samples", "squares", "negative",
)  # fmt: skip


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9
