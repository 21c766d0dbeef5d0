"""How fridges share their memory, and when that is worth changing.

Law: fridges are chosen for the smallest standard error; docs/reference/fridge.md ("Plans") and kernels/fridge_plan.hpp
say how. Rate and delays are those of a stretch of packet time, at whose end there may be another plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wirelag import _kernels
from wirelag.packets.filters import EARLIEST_NS

if TYPE_CHECKING:
    from wirelag.stats.distribution import Distribution, Words

CERTAIN: Final = 1 << 32  # probability 1 in the kernel
STRETCH_NS: Final = 10**9  # of packet time: fridges are planned again at its end, whatever intervals are asked for
FEWEST_TO_ADAPT: Final = 100  # samples: with fewer, the delays are unknown
WORTH_IT: Final = 1.2  # replan if the standard error shrinks by this factor


@dataclass(frozen=True, slots=True)
class Fridges:
    """The slots of each fridge (M, a power of two) and the probability to enter it (p, in 2^-32)."""

    slots: tuple[int, ...]
    probabilities: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The memory of all slots in bytes."""
        return _kernels.SLOT_BYTES * sum(self.slots)


def plan(
    memory: int, rate_per_s: float | None = None, delays: Distribution | None = None, fridges: int | None = None
) -> Fridges:
    """The fridges with the smallest standard error in this memory; without a number, as many as is best."""
    known = delays is not None and delays.samples > 0 and rate_per_s is not None
    return _plan(memory, fridges, rate_per_s, delays.by_bin if delays is not None and known else None)


def _plan(memory: int, fridges: int | None, rate_per_s: float | None, weights: Words | None) -> Fridges:
    room = memory // _kernels.SLOT_BYTES
    if room < 1:
        raise ValueError(f"{memory} bytes are too few for a slot of {_kernels.SLOT_BYTES} bytes")
    slots, probabilities = _kernels.plan_fridges(room, fridges or 0, rate_per_s, weights)
    return Fridges(tuple(slots), tuple(probabilities))


class Plans:
    """When to plan again: at the end of a stretch, once there were enough delays, and if nothing is discarded by it.

    Nothing that still waits in drained fridges: these are given up when the ones in use are drained.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._start_ns = self._ended_ns = 0
        self._before = 0  # requests before the stretch
        self.since_ns = 0  # of the fridges in use
        self.end_ns = EARLIEST_NS  # of the stretch: the first one begins with the first packet

    @property
    def begun(self) -> bool:
        """Whether there was a packet."""
        return self.end_ns != EARLIEST_NS

    def begin(self, first_ns: int) -> None:
        """The first stretch, at the time of the first packet."""
        self._start_ns = self.since_ns = first_ns
        self.end_ns = _edge_after(first_ns)

    def due(self, next_ns: int, requests: int, samples: int, longest_ns: int) -> bool:
        """A stretch has ended, and the next packet is at this time: whether to plan, or to go on with it.

        `requests` are those of the fridges in use, samples and the longest delay those of the stretch.
        """
        self._ended_ns, self.end_ns = self.end_ns, _edge_after(next_ns)
        long_enough = self._ended_ns - self.since_ns >= 2 * longest_ns
        return requests > self._before and samples >= FEWEST_TO_ADAPT and long_enough

    def next(self, requests: int, weights: Words, now: Fridges) -> Fridges:
        """The fridges for the next stretch, by the weights of delays in bins: other ones, if they are worth it."""
        rate_per_s = (requests - self._before) / (self._ended_ns - self._start_ns) * 1e9
        better = _plan(self._memory, None, rate_per_s, weights)
        then, here = (
            _kernels.fridge_inflation(one.slots, one.probabilities, rate_per_s, weights) for one in (better, now)
        )
        worth_it = then * WORTH_IT < here
        self._start_ns, self._before = max(self._ended_ns, self.end_ns - STRETCH_NS), 0 if worth_it else requests
        if worth_it:
            self.since_ns = self._ended_ns
        return better if worth_it else now


def _edge_after(time_ns: int) -> int:
    return (time_ns // STRETCH_NS + 1) * STRETCH_NS
