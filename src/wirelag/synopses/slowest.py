"""The slowest samples, and where their packets are.

Law: of equal delays the first stays, so the result does not depend on how the input was split. Memory: `most` rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.packets.frames import Frames, endpoints
from wirelag.synopses.samples import LEGS

if TYPE_CHECKING:
    from wirelag.packets.batch import PacketBatch
    from wirelag.synopses.cache import Crossed
    from wirelag.synopses.request_response import Exchanges
    from wirelag.synopses.samples import SampleBatch

Array = npt.NDArray[Any]

SLOW: Final = np.dtype(
    [("delay_ns", "<i8"), ("time_ns", "<i8"), ("first", "<u8"), ("last", "<u8"), ("ends", "<u8", (5,)), ("leg", "u1")]
)
"""A delay, when it began, the places of its first and last packet (frames.py), its endpoints, and its leg.

A leg is an index of LEGS, or `NO_LEG`.
"""

NO_LEG: Final = len(LEGS)
AT_ONCE: Final = 1 << 15


class Slowest:
    """The slowest samples so far, the slowest first."""

    def __init__(self, most: int, up: Frames | None = None, down: Frames | None = None) -> None:
        self.most = most
        self.first_frames = up or Frames()
        self.last_frames = down or self.first_frames
        self.rows: Array = np.empty(0, SLOW)
        self.least_ns = -(1 << 63)  # the least delay that is kept, once there are as many as may be

    def candidates(self, delays_ns: Array) -> Array:
        """Rows of delays that may be among the slowest, in order."""
        if not self.most or not len(delays_ns) or int(delays_ns.max()) <= self.least_ns:
            return np.empty(0, np.intp)
        rows = np.flatnonzero(delays_ns > self.least_ns)
        if len(rows) > 2 * self.most:  # sort few
            rows = rows[delays_ns[rows] >= np.partition(delays_ns[rows], -self.most)[-self.most]]
        if len(rows) > self.most:
            rows = np.sort(rows[np.argsort(-delays_ns[rows], kind="stable")[: self.most]])
        return rows

    def add(self, found: Array) -> None:
        """Add samples that came after all others."""
        together = np.concatenate([self.rows, found])
        self.rows = together[np.argsort(-together["delay_ns"], kind="stable")[: self.most]]
        if len(self.rows) == self.most:
            self.least_ns = int(self.rows["delay_ns"][-1])

    def merge(self, other: Slowest) -> None:
        """Add the samples of another: of equal delays those that ended first stay, whichever machine found them."""
        rows = other.rows.copy()
        for name, mine, theirs in (
            ("first", self.first_frames, other.first_frames),
            ("last", self.last_frames, other.last_frames),
        ):
            rows[name] = mine.adopted(rows[name], theirs)
        together = np.concatenate([self.rows, rows])
        order = np.lexsort((together["last"], together["time_ns"], -together["delay_ns"]))
        self.rows = together[order[: self.most]]
        if len(self.rows) == self.most and self.most:
            self.least_ns = int(self.rows["delay_ns"][-1])

    def renumber(self, more: Mapping[str, int]) -> None:
        """Count packets of parts from the beginning of their captures (`Frames.renumbered`)."""
        whole = Frames()
        self.rows["first"] = whole.renumbered(self.rows["first"], self.first_frames, more)
        self.rows["last"] = whole.renumbered(self.rows["last"], self.last_frames, more)
        self.first_frames = self.last_frames = whole

    def of_leg(self, leg: str, packets: PacketBatch, samples: SampleBatch) -> None:
        """Add round trips of a leg; where that is neither, of both, each with its own leg."""
        delays_ns = samples.delays_ns
        mine = np.flatnonzero(delays_ns > self.least_ns)  # few, once there are as many as may be
        if leg in LEGS:
            mine = mine[samples.legs[mine] == LEGS.index(leg)]
        chosen = mine[self.candidates(delays_ns[mine])]
        if not len(chosen):
            return
        responses = packets[samples.rows[chosen]]
        found = np.zeros(len(chosen), SLOW)
        found["delay_ns"] = delays_ns[chosen]
        found["time_ns"] = responses.time_ns - delays_ns[chosen]
        found["last"] = self.last_frames.of(responses)
        found["ends"], found["leg"] = endpoints(responses), samples.legs[chosen]
        self.add(found)

    def of_packets(self, crossed: Crossed) -> None:
        """Add packets that were seen at both points; after the first thousands few are slow enough to be looked at."""
        for some in crossed.parts(AT_ONCE):
            self._of_some(some)

    def _of_some(self, crossed: Crossed) -> None:
        chosen = self.candidates(crossed.delays_ns)
        if not len(chosen):
            return
        found, slow = np.zeros(len(chosen), SLOW), crossed.of(chosen)
        found["delay_ns"], found["time_ns"] = slow.delays_ns, slow.sent_ns
        found["first"], found["last"] = slow.up_about[:, 0], slow.down_about[:, 0]
        found["leg"] = NO_LEG
        self.add(found)

    def of_exchanges(self, exchanges: Exchanges) -> None:
        """Add exchanges with a single response time, in the order of their response."""
        rows = exchanges.single.rows
        order = np.argsort(rows["last_ns"], kind="stable")
        delays_ns = (rows["last_ns"] - rows["request_ns"])[order]
        chosen = self.candidates(delays_ns)
        rows, delays_ns = rows[order[chosen]], delays_ns[chosen]
        found = np.zeros(len(chosen), SLOW)
        found["delay_ns"], found["time_ns"] = delays_ns, rows["request_ns"]
        found["first"], found["last"] = rows["begin_frame"], rows["last_frame"]
        found["ends"], found["leg"] = rows["ends"], NO_LEG
        self.add(found)
