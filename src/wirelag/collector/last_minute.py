"""Quantiles of a segment's last minute, for gauges: a rate over buckets knows no interval.

Memory: the bins of at most MOST intervals of each segment.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval

MINUTE_NS: Final = 60 * 10**9
MOST: Final = 600


class LastMinute:
    """The intervals of a segment that ended less than a minute before the last one."""

    __slots__ = ("_parts", "_until_ns")

    def __init__(self) -> None:
        self._parts: deque[tuple[int, Tally]] = deque(maxlen=MOST)
        self._until_ns = 0

    def add(self, interval: Interval, tally: Tally) -> None:
        """Add an interval that is settled."""
        self._until_ns = max(self._until_ns, interval.end_ns)
        if interval.end_ns > self._until_ns - MINUTE_NS:
            self._parts.append((interval.end_ns, tally))
        while self._parts and self._parts[0][0] <= self._until_ns - MINUTE_NS:
            self._parts.popleft()

    def figures_ns(self, q: float) -> tuple[float, tuple[float, float] | None] | None:
        """A quantile and its 95% interval, with the clocks' error; None without delays, or without enough of them."""
        parts = [tally for end_ns, tally in self._parts if end_ns > self._until_ns - MINUTE_NS]
        if not any(len(one.bins) for one in parts):
            return None
        bins, places = np.unique(np.concatenate([one.bins for one in parts]), return_inverse=True)
        weights = np.zeros(len(bins), np.int64)
        np.add.at(weights, places, np.concatenate([one.weights for one in parts]))
        whole = Tally(
            clock_error_ns=max(one.clock_error_ns for one in parts),
            unsynchronised=sum(one.unsynchronised for one in parts),
            squares=sum(one.squares for one in parts),
            negative=sum(one.negative for one in parts),
            bins=bins,
            weights=weights,
        )
        return whole.with_interval_ns(q)
