"""Fridges in the kernel: the synopsis of estimators/fridge.py, from samples that bpf/fridge.bpf.c sums.

Guarantee: on one CPU, the same packets give the same synopsis, bit for bit, as a meter with fixed fridges. If several
CPUs want a slot at once, one gets it, and the others are counted as `busy`. Memory: the slots, and 909 KB per CPU.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wirelag import _kernels
from wirelag.capture.live import LiveStatistics
from wirelag.ebpf.hooks import Direction, decoding
from wirelag.ebpf.turns import Turns, counters_of
from wirelag.estimators.fridge import Fridge
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.intervals import Interval
from wirelag.stats.distribution import BINS, WORDS, Distribution
from wirelag.stats.random_groups import CROWDS, RandomGroups
from wirelag.synopses.samples import LEGS, Samples

COARSE_BINS: Final = BINS >> _kernels.COARSE_BITS
SUMS: Final = WORDS - 2 * BINS
COUNTERS: Final = counters_of(
    [("packets", "u8"), ("requests", "u8"), ("backwards", "u8"), ("too_long", "u8"), ("sums", "u8", (len(LEGS), SUMS))]
)


class KernelFridge:
    """The meter of one point, in the kernel. Without an interface, packets are replayed to it through `hooks`."""

    def __init__(
        self,
        estimator: Fridge,
        interface: str | None,
        interval_ns: int,
        *,
        tunnels: bool = False,
        direction: Direction = "both",
        then: str | None = None,
        replayed: bool | None = None,
    ) -> None:
        self.fridges = estimator.first()
        kernel = estimator.kernel(self.fridges, estimator.seed)
        self.hooks = Turns(
            "fridge",
            interface,
            counters=COUNTERS,
            slots=sum(self.fridges.slots),
            sizes={
                "bins": 2 * len(LEGS) * BINS,
                "crowds": 2 * len(LEGS) * CROWDS * COARSE_BINS,
            },
            constants={"options": decoding(None, tunnels), "fridges": kernel.settings()},
            interval_ns=interval_ns,
            direction=direction,
            then=then,
            replayed=replayed,
        )
        self._packets = 0

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Do nothing: packets are observed in the kernel."""

    def cut(self, interval: Interval) -> Samples:
        """The samples whose response came in an interval that is over."""
        samples = Samples()
        requests = backwards = too_long = 0
        for counted, side in self.hooks.ended(interval):
            bins = self.hooks.sides["bins"][side].reshape(len(LEGS), BINS, 2)
            for leg in range(len(LEGS)):
                one = np.concatenate((bins[leg, :, 0], bins[leg, :, 1], counted["sums"][leg]))
                samples.distributions.setdefault(leg, Distribution()).merge(Distribution(one))
            crowds = self.hooks.sides["crowds"][side].reshape(len(LEGS), CROWDS, COARSE_BINS)
            samples.spread.add_counted(interval.start_ns, RandomGroups(crowds))
            samples.packets += int(counted["packets"])
            requests += int(counted["requests"])
            backwards += int(counted["backwards"])
            too_long += int(counted["too_long"])
        samples.count(requests=requests, backwards=backwards, too_long=too_long)
        self._packets += samples.packets
        return samples

    @property
    def busy(self) -> int:
        """How often a slot was in use by another CPU."""
        return int(self.hooks.plane.variable("busy").view(np.uint64)[0])

    def statistics(self) -> LiveStatistics:
        """Counts of intervals that are over."""
        known = self.hooks.seen()
        return LiveStatistics(self._packets, known.dropped, packets=self._packets, skipped=known.skipped)

    def close(self) -> None:
        """Detach."""
        self.hooks.close()
