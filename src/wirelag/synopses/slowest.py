"""The slowest samples, and where their packets are.

Law: of equal delays the first stays, so the result does not depend on how the input was split. Memory: `most` rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wirelag.packets.frames import Frames, endpoints
from wirelag.synopses.samples import LEGS

if TYPE_CHECKING:
    import numpy.typing as npt

    from wirelag.packets.batch import PacketBatch
    from wirelag.synopses.cache import Crossed
    from wirelag.synopses.request_response import Exchanges
    from wirelag.synopses.samples import SampleBatch

    Array = npt.NDArray[Any]

NO_LEG: Final = len(LEGS)
AT_ONCE: Final = 1 << 15


class SlowSample(NamedTuple):
    """A delay, when it began, the places of its first and last packet (frames.py), its endpoints, and its leg."""

    delay_ns: int
    time_ns: int
    first: int
    last: int
    ends: tuple[int, ...] = ()
    leg: int = NO_LEG  # an index of LEGS


class Slowest:
    """The slowest samples so far, the slowest first."""

    def __init__(self, most: int, up: Frames | None = None, down: Frames | None = None) -> None:
        self.most = most
        self.first_frames = up or Frames()
        self.last_frames = down or self.first_frames
        self.samples: list[SlowSample] = []
        self.least_ns = -(1 << 63)  # the least delay that is kept, once there are as many as may be

    def candidates(self, delays_ns: Array) -> Array:
        """Rows of delays that may be among the slowest, in order."""
        import numpy as np

        if not self.most or not len(delays_ns) or int(delays_ns.max()) <= self.least_ns:
            return np.empty(0, np.intp)
        rows = np.flatnonzero(delays_ns > self.least_ns)
        if len(rows) > 2 * self.most:  # sort few
            rows = rows[delays_ns[rows] >= np.partition(delays_ns[rows], -self.most)[-self.most]]
        if len(rows) > self.most:
            rows = np.sort(rows[np.argsort(-delays_ns[rows], kind="stable")[: self.most]])
        return rows

    def add(self, found: Iterable[SlowSample]) -> None:
        """Add samples that came after all others."""
        self._keep(sorted([*self.samples, *found], key=lambda one: -one.delay_ns))

    def _keep(self, samples: list[SlowSample]) -> None:
        self.samples = samples[: self.most]
        if self.samples and len(self.samples) == self.most:
            self.least_ns = self.samples[-1].delay_ns

    def merge(self, other: Slowest) -> None:
        """Add the samples of another: of equal delays those that ended first stay, whichever machine found them."""
        first, last = self.first_frames.adopt(other.first_frames), self.last_frames.adopt(other.last_frames)
        theirs = [one._replace(first=first(one.first), last=last(one.last)) for one in other.samples]
        self._keep(sorted([*self.samples, *theirs], key=lambda one: (-one.delay_ns, one.time_ns, one.last)))

    def renumber(self, more: Mapping[str, int]) -> None:
        """Count packets of parts from the beginning of their captures (`Frames.renumbered`)."""
        import numpy as np

        whole, samples = Frames(), self.samples
        first = whole.renumbered(np.array([one.first for one in samples], np.uint64), self.first_frames, more)
        last = whole.renumbered(np.array([one.last for one in samples], np.uint64), self.last_frames, more)
        places = zip(samples, first.tolist(), last.tolist(), strict=True)
        self.samples = [one._replace(first=of_first, last=of_last) for one, of_first, of_last in places]
        self.first_frames = self.last_frames = whole

    def of_leg(self, leg: str, packets: PacketBatch, samples: SampleBatch) -> None:
        """Add round trips of a leg; where that is neither, of both, each with its own leg."""
        import numpy as np

        delays_ns = samples.delays_ns
        mine = np.flatnonzero(delays_ns > self.least_ns)  # few, once there are as many as may be
        if leg in LEGS:
            mine = mine[samples.legs[mine] == LEGS.index(leg)]
        chosen = mine[self.candidates(delays_ns[mine])]
        if not len(chosen):
            return
        responses, delays_ns = packets[samples.rows[chosen]], delays_ns[chosen]
        places, nowhere = self.last_frames.of(responses), np.zeros(len(chosen), np.int64)
        began_ns, ends = responses.time_ns - delays_ns, endpoints(responses)
        self.add(_samples(delays_ns, began_ns, nowhere, places, ends, samples.legs[chosen]))

    def of_packets(self, crossed: Crossed) -> None:
        """Add packets that were seen at both points; after the first thousands few are slow enough to be looked at."""
        for some in crossed.parts(AT_ONCE):
            self._of_some(some)

    def _of_some(self, crossed: Crossed) -> None:
        chosen = self.candidates(crossed.delays_ns)
        if len(chosen):
            slow = crossed.of(chosen)
            self.add(_samples(slow.delays_ns, slow.sent_ns, slow.up_about[:, 0], slow.down_about[:, 0]))

    def of_exchanges(self, exchanges: Exchanges) -> None:
        """Add exchanges with a single response time, in the order of their response."""
        import numpy as np

        rows = exchanges.single.rows
        order = np.argsort(rows["last_ns"], kind="stable")
        delays_ns = (rows["last_ns"] - rows["request_ns"])[order]
        chosen = self.candidates(delays_ns)
        rows = rows[order[chosen]]
        self.add(_samples(delays_ns[chosen], rows["request_ns"], rows["begin_frame"], rows["last_frame"], rows["ends"]))


def _samples(
    delays_ns: Array, times_ns: Array, first: Array, last: Array, ends: Array | None = None, legs: Array | None = None
) -> list[SlowSample]:
    count = len(delays_ns)
    columns = delays_ns.tolist(), times_ns.tolist(), first.tolist(), last.tolist()
    of_ends = [()] * count if ends is None else map(tuple, ends.tolist())
    of_legs = [NO_LEG] * count if legs is None else legs.tolist()
    return [SlowSample(*row) for row in zip(*columns, of_ends, of_legs, strict=True)]
