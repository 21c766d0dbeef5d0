"""Packets that cross a path, and LDA's result for each second."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wirelag.packets.batch import COLUMNS, PacketBatch
from wirelag.packets.interval import Interval

Ids = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
SECOND_NS = 10**9


def weibull_ns(rng: np.random.Generator, count: int, mean_ns: float = 200.0) -> Times:
    return np.rint(rng.weibull(0.6, count) * (mean_ns / math.gamma(1 + 1 / 0.6))).astype(np.int64)


def batch(**given: npt.NDArray[Any]) -> PacketBatch:
    """A batch of these columns; all others are zero."""
    count = len(given["time_ns"])
    nothing = {
        name: np.broadcast_to(np.zeros(1, dtype), (count, width) if width > 1 else count)
        for name, dtype, width in COLUMNS
    }
    return PacketBatch({**nothing, **given})


@dataclass(frozen=True)
class Trace:
    """Packets, their delays, and which of them arrive. Ids are consecutive: coins mix them."""

    sent_ns: Times
    delays_ns: Times
    arrived: Mask
    first_id: int = 0

    @property
    def ids(self) -> Ids:
        return np.arange(len(self.sent_ns), dtype=np.uint64) + np.uint64(self.first_id)

    def sources(self) -> dict[str, list[PacketBatch]]:
        kept = self.arrived
        down = batch(time_ns=(self.sent_ns + self.delays_ns)[kept], packet_id=self.ids[kept])
        return {"upstream": [batch(time_ns=self.sent_ns, packet_id=self.ids)], "downstream": [down]}

    @property
    def truth_ns(self) -> tuple[float, float]:
        """Mean and deviation of the packets that arrived."""
        delays_ns = self.delays_ns[self.arrived]
        return float(delays_ns.mean()), float(delays_ns.std())

    def within(self, interval: Interval) -> Times:
        """The delays of packets that were sent in an interval and arrived."""
        first, end = np.searchsorted(self.sent_ns, (interval.start_ns, interval.end_ns))
        return self.delays_ns[first:end][self.arrived[first:end]]


def per_second(seconds: float, jitter: bool, seed: int = 9) -> Trace:
    """1M packets/s, delayed by 50 us and up to about 50 us more; none overtakes another."""
    count = round(seconds * 1_000_000)
    sent_ns = np.arange(count, dtype=np.int64) * 1000
    extra_ns = weibull_ns(np.random.default_rng(seed), count, 2000.0) if jitter else np.zeros(count, np.int64)
    delays_ns = np.maximum.accumulate(sent_ns + 50_000 + extra_ns) - sent_ns
    return Trace(sent_ns, delays_ns, np.ones(count, bool), seed << 32)
