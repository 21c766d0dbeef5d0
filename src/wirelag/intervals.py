"""Intervals of time: the one place that decides to which interval a packet belongs.

Law: intervals are aligned to the epoch, so that all vantage points cut at the same instants. A packet belongs to the
interval of its capture time, but never to one that was left already: a timestamp that goes back stays in the interval
that is open. So the answer does not depend on how the input is split into batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from wirelag.filters import EARLIEST_NS
from wirelag.packets import PacketBatch


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """The time `[start_ns, end_ns)`."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns


def split(batches: Iterable[PacketBatch], interval_ns: int | None) -> Iterator[tuple[Interval, PacketBatch]]:
    """Cut batches at the edges of intervals; intervals without packets are left out.

    Without a length each batch comes with the time it spans.
    """
    latest_ns = EARLIEST_NS
    for batch in batches:
        if not len(batch):
            continue
        if interval_ns is None:
            yield Interval(int(batch.time_ns.min()), int(batch.time_ns.max()) + 1), batch
            continue
        times_ns = np.maximum(np.maximum.accumulate(batch.time_ns), latest_ns)
        latest_ns = int(times_ns[-1])
        indexes = times_ns // interval_ns
        edges = [0, *(np.flatnonzero(np.diff(indexes)) + 1).tolist(), len(batch)]
        for start, end in pairwise(edges):
            index = int(indexes[start])
            yield Interval(index * interval_ns, (index + 1) * interval_ns), batch[start:end]
