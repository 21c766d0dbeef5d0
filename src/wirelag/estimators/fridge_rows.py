"""Fridges for decoded rows: threads fill a share of the slots each (kernels/fridge_rows.hpp states the law).

Memory: that of the fridges, 2 bytes for each drained slot, three bits for each of 2^14 requests or of twice as many as
there are slots, and for each thread what it adds up: samples, and the weights of a stretch's delays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirelag import _kernels
from wirelag.estimators.fridge import Fridge, Generations
from wirelag.packets.filters import LATEST_NS
from wirelag.synopses.samples import Samples

if TYPE_CHECKING:
    from wirelag.packets.interval import Interval


class FridgeRows:
    """The fridges of one file, and samples since the last cut."""

    all_rows, sharded = False, False

    def __init__(self, estimator: Fridge, threads: int) -> None:
        self._held = Generations(estimator)
        self.visits = _kernels.FridgeRows(self._held.open.kernel, threads)
        self._decoder: _kernels.Decoder | None = None  # the last one, whose threads work here, too
        self._begin(threads)

    def _begin(self, threads: int) -> None:
        self._samples = [Samples() for _ in range(threads)]
        self._tallies = [samples.tally() for samples in self._samples]

    @property
    def until_ns(self) -> int:
        """The time from which on nothing may be decoded before `turn`."""
        plans = self._held.plans
        return LATEST_NS if plans is None else min(plans.end_ns, LATEST_NS)

    def work(self, decoder: _kernels.Decoder, packets: int) -> _kernels.Work:
        """Filling in what was decoded, and adding up the delays found before."""
        self._samples[0].packets += packets
        self._decoder = decoder
        return self.visits.rows(decoder, self._tallies)

    def turn(self, next_ns: int) -> None:
        """A stretch has ended, whose work is done, or the first one begins: the next packet is at this time."""
        plans, now = self._held.plans, self._held.open
        assert plans is not None
        if not plans.begun:
            plans.begin(next_ns)
            return
        self._settle()
        requests = now.kernel.arrivals
        if plans.due(next_ns, requests, *self.visits.stretch):
            weights = _kernels.words(_kernels.BINS)
            self.visits.end_stretch(weights)
            fridges = plans.next(requests, weights, now.fridges)
            if fridges is not now.fridges:
                self._samples[0].count(**self._held.replace(fridges, plans.since_ns))
                self.visits.replace(self._held.open.kernel)

    def _settle(self) -> None:
        if self._decoder is not None:
            self.visits.settle(self._decoder, self._tallies)

    def cut(self, interval: Interval) -> Samples:
        """The samples whose response came in this interval; requests without a response stay."""
        self._settle()
        whole, *others = self._samples
        for samples in others:
            whole.merge(samples)
        self._held.count(whole)
        self._begin(len(self._samples))
        return whole
