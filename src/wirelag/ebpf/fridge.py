"""Fridges in the kernel: the synopsis of estimators/fridge.py, from samples that bpf/fridge.bpf.c sums.

Guarantee: on one CPU, the same packets give the same synopsis, bit for bit, as a meter with fixed fridges. If several
CPUs want a slot at once, one gets it, and the others are counted as `busy`. Memory: the slots, and 909 KB per CPU; with
groups 1.3 MB per CPU more, and what the groups may take.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wirelag import _kernels
from wirelag.capture.live import LiveStatistics
from wirelag.ebpf.bpf import cpus
from wirelag.ebpf.hooks import Direction, decoding
from wirelag.ebpf.told import LOG, Told
from wirelag.ebpf.turns import Turns, counters_of
from wirelag.estimators.fridge import Fridge
from wirelag.packets.batch import PacketBatch
from wirelag.packets.filters import MOST_NETS, Filter
from wirelag.packets.grouping import Grouping
from wirelag.packets.interval import Interval
from wirelag.stats.distribution import BINS, WORDS, Distribution
from wirelag.stats.random_groups import CROWDS, RandomGroups
from wirelag.synopses.samples import LEGS, Samples

COARSE_BINS: Final = BINS >> _kernels.COARSE_BITS
SUMS: Final = WORDS - 2 * BINS
COUNTERS: Final = counters_of(
    [("packets", "u8"), ("requests", "u8"), ("backwards", "u8"), ("too_long", "u8"), ("sums", "u8", (len(LEGS), SUMS))],
    ("written", "read", "overflowed"),
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
        wanted: Filter | None = None,
        grouped: bool = False,
        direction: Direction = "both",
        then: str | None = None,
        replayed: bool | None = None,
    ) -> None:
        """`wanted`: which packets; `grouped`: samples are also added to the grouping that `observe` gets."""
        self.fridges = estimator.first()
        kernel = estimator.kernel(self.fridges, estimator.seed)
        self.hooks = Turns(
            "fridge_groups" if grouped else "fridge",
            interface,
            counters=COUNTERS,
            shared={"slots": sum(self.fridges.slots)} | ({"sample_log": cpus() * LOG} if grouped else {}),
            sizes={
                "bins": 2 * len(LEGS) * BINS,
                "crowds": 2 * len(LEGS) * CROWDS * COARSE_BINS,
            },
            constants={
                "options": decoding(None, tunnels),
                "fridges": kernel.settings(),
                "wanted": _filter(wanted or Filter()),
                "filtered": int(wanted is not None and wanted != Filter()),
                **({"log_mask": LOG - 1} if grouped else {}),
            },
            interval_ns=interval_ns,
            direction=direction,
            then=then,
            replayed=replayed,
        )
        self._packets = 0
        self._told = Told(self.hooks) if grouped else None

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Packets are observed in the kernel; samples of the open interval go to this grouping."""
        if self._told is not None:
            self._told.grouping = grouping

    def collect(self) -> None:
        """Add samples to their groups: often enough that the log does not run over."""
        if self._told is not None:
            self._told.collect()

    @property
    def in_no_group(self) -> int:
        """Samples that came faster than they could be added to their groups."""
        return 0 if self._told is None else self._told.overflowed

    def cut(self, interval: Interval) -> Samples:
        """The samples whose response came in an interval that is over."""
        samples = Samples()
        if self._told is not None:
            self._told.end(self.hooks.close_until(interval))
        requests = backwards = too_long = 0
        for counted, side in self.hooks.ended(interval):
            bins = self.hooks.sides["bins"][side].reshape(len(LEGS), BINS, 2)
            for leg in range(len(LEGS)):
                one = np.concatenate((bins[leg, :, 0], bins[leg, :, 1], counted["sums"][leg]))
                samples.distributions.setdefault(leg, Distribution()).merge(Distribution(one))
            crowds = RandomGroups(self.hooks.sides["crowds"][side])
            samples.spread.add_counted(interval.start_ns, crowds)
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


def _filter(wanted: Filter) -> bytes:
    """`struct wl_filter`; live, times are not filtered."""
    ports, protocols, nets = np.zeros(1024, np.uint64), np.zeros(4, np.uint64), np.zeros((MOST_NETS, 4), np.uint64)
    for bits, numbers in ((ports, wanted.ports), (protocols, wanted.protocols)):
        for number in numbers:
            bits[number >> 6] |= np.uint64(1 << (number & 63))
    words = wanted.kernel_arguments()["nets"]
    nets[: len(words)] = np.array(words, np.uint64).reshape(-1, 4)
    counts = np.array([len(words), len(wanted.ports), len(wanted.protocols), 0], np.uint32)
    times = np.array([wanted.from_ns, wanted.to_ns], np.int64)
    return b"".join(one.tobytes() for one in (times, counts, nets, ports, protocols))
