"""Samples of delay by connection and by time: how much they vary.

Memory: 434 KB (random_groups.py, time_slots.py), of which a page is used when a delay falls into it. Merging is
addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wirelag.stats.certainty import Certainty, Effect, Sources
from wirelag.stats.over_time import FEWEST_DELAYS, Alike, OverTime
from wirelag.stats.random_groups import RandomGroups
from wirelag.stats.time_slots import TimeSlots

if TYPE_CHECKING:
    import numpy.typing as npt

    from wirelag.stats.distribution import Distribution

    Ints = npt.NDArray[Any]


class Spread:
    """Weights of delays by leg, in groups of connections, and their sums by time, each leg in slots of its own."""

    __slots__ = ("connections", "times")

    def __init__(self, connections: RandomGroups | None = None, times: Sequence[TimeSlots] = ()) -> None:
        self.connections = connections or RandomGroups()
        self.times = times or (TimeSlots(), TimeSlots())

    def add(
        self, flow_key: Ints, times_ns: Ints, rows: Ints, legs: Ints, delays_ns: Ints, weights: Ints | None = None
    ) -> None:
        """Add samples: the row of each in the columns of flow keys and times, its leg and its delay."""
        self.connections.add(flow_key, rows, legs, delays_ns, weights)
        seen_ns = times_ns[rows]
        for leg, slots in enumerate(self.times):
            slots.add(seen_ns, legs == leg, delays_ns, weights)

    def add_counted(self, time_ns: int, connections: RandomGroups) -> None:
        """Add delays that were counted by connection within a short time."""
        self.connections.merge(connections)
        for leg, slots in enumerate(self.times):
            slots.add_summed(time_ns, *connections.sum_ns(leg))

    def merge(self, other: Spread) -> None:
        """Add the samples of another, which may be of the first leg alone."""
        self.connections.merge(other.connections)
        for slots, others in zip(self.times[: len(other.times)], other.times, strict=True):
            slots.merge(others)

    def of_leg(self, leg: int) -> Spread:
        """The samples of one leg alone."""
        return Spread(self.connections.of_leg(leg), (self.times[leg],))

    def over_time(self, samples: int) -> OverTime | None:
        """How the mean of this number of delays, of all legs as one, varies."""
        if len(self.times) == 1:
            return self.times[0].over_time(samples)
        whole = TimeSlots()
        for slots in self.times:
            whole.merge(slots)
        return whole.over_time(samples)

    def alike(self) -> Alike:
        """How delays of one leg are alike."""
        (slots,) = self.times
        return slots.alike()

    def sure(self, delays: Distribution) -> Distribution:
        """These delays, with intervals from this spread."""
        delays.certainty = Certainty(delays, lambda: self._sources(delays))
        return delays

    def _sources(self, delays: Distribution) -> Sources:
        levels = self.connections.mean_error_ns(delays.mean_error_ns() or 0.0)
        return Sources(Effect(levels), Effect.of_time(self.over_time(delays.samples)))


def spread_of(flow_key: Ints, times_ns: Ints, delays_ns: Ints) -> Spread:
    """The spread of delays of one leg, each with a connection and a time."""
    import numpy as np

    spread = Spread()
    rows, legs = np.arange(len(flow_key), dtype=np.uint32), np.zeros(len(flow_key), np.uint8)
    spread.add(np.ascontiguousarray(flow_key), times_ns, rows, legs, np.ascontiguousarray(delays_ns))
    return spread


def made_sure(delays: Distribution, flow_key: Ints, times_ns: Ints, delays_ns: Ints) -> Distribution:
    """These delays of one leg, with intervals from how they vary; few delays have no interval."""
    if delays.samples < FEWEST_DELAYS:
        delays.certainty = Certainty(delays, lambda: Sources(None, Effect(None)))
        return delays
    return spread_of(flow_key, times_ns, delays_ns).sure(delays)
