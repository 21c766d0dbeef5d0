"""What packets carry for `telemetry` and `marking`: traces of IOAM, loss bits of QUIC, colours that alternate.

A colour counts only if it looks like one: it changes within directions of conversations (classes that differ between
them are none), and nearly all of the time lies in runs of about the same length, of which there are several: one long
pause is in one run, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from wirelag.packets.batch import Flag, Kind

if TYPE_CHECKING:
    from wirelag.measure.loss_bits import QuicLoss
    from wirelag.packets.batch import PacketBatch
    from wirelag.twopoint.marking import PeriodFinder

DSCP_BITS: Final = 6
FEWEST_RUNS: Final = 6  # of about the same length, of a colour that alternates
MOST_RUNS: Final = 10_000  # that are looked at: a bit that changes more often is no colour
REGULAR: Final = 0.9  # the share of time in runs of about the same length


@dataclass
class Marks:
    """What was found in the first packets of a capture."""

    traced: int = 0  # packets with a trace of IOAM
    carrying: int = 0  # directions of QUIC with loss bits
    colours: dict[str, int] = field(default_factory=dict)  # the field that holds a colour, and its period in ns

    def add(self, other: Marks) -> None:
        """Add those of another capture."""
        self.traced += other.traced
        self.carrying += other.carrying
        self.colours = other.colours | self.colours


def _varies(batch: PacketBatch) -> int:
    """The bits of the class in which packets differ."""
    import numpy as np

    return int(np.bitwise_or.reduce(batch.dscp ^ batch.dscp[0])) if len(batch) else 0


class MarksSeeker:
    """Looks for marks in batches; what no packet has costs nearly nothing."""

    def __init__(self) -> None:
        self._traced = 0
        self._quic: QuicLoss | None = None
        self._finders: dict[str, PeriodFinder] = {}

    def observe(self, batch: PacketBatch) -> None:
        """Look at the packets of a batch."""
        if batch.of_kind(Kind.QUIC).any() or self._quic:
            if self._quic is None:
                from wirelag.measure.loss_bits import QuicLoss

                self._quic = QuicLoss()
            self._quic.observe(batch)
        if (optional := batch.has(Flag.OPTIONS)).any():
            self._read_options(batch, optional)
        if varies := _varies(batch):
            self._read_classes(batch, varies)

    def _read_options(self, batch: PacketBatch, optional: Any) -> None:
        import numpy as np

        from wirelag.packets.ioam import trace
        from wirelag.packets.options import IOAM, mark, options

        times, colours = [], []
        for row in np.flatnonzero(optional).tolist():
            self._traced += any(kind in IOAM and trace(data) is not None for kind, data in options(batch, row))
            if (found := mark(batch, row)) is not None:
                times.append(int(batch.time_ns[row]))
                colours.append(found.colour)
        if times:
            self._finder("altmark").observe(np.array(times), np.array(colours, np.bool_))

    def _read_classes(self, batch: PacketBatch, varies: int) -> None:
        import numpy as np

        direction = batch.flow_key ^ batch.has(Flag.REVERSE)
        for bit in range(DSCP_BITS):
            name = f"dscp:{bit}"
            if not varies >> bit & 1 or len(self._finder(name).lengths) >= MOST_RUNS:
                continue
            colours = (batch.dscp >> np.uint8(bit) & np.uint8(1)).astype(np.bool_)
            if len(np.intersect1d(direction[colours], direction[~colours])):
                self._finder(name).observe(batch.time_ns, colours)

    def _finder(self, name: str) -> PeriodFinder:
        from wirelag.twopoint.marking import PeriodFinder

        return self._finders.setdefault(name, PeriodFinder())

    def found(self) -> Marks:
        """What the packets carry."""
        carrying = self._quic.to_dict()["carrying"] if self._quic else 0
        periods = {name: _regular(finder) for name, finder in self._finders.items()}
        return Marks(self._traced, carrying, {name: ns for name, ns in periods.items() if ns})


def _regular(finder: PeriodFinder) -> int | None:
    """The period of a colour; None if runs are of all lengths, or few."""
    period, lengths = finder.period_ns, finder.lengths[1:]  # the first run began before the capture
    if period is None or len(lengths) >= MOST_RUNS:
        return None
    near = [length for length in lengths if abs(length - period) <= period / 8]
    return period if len(near) >= FEWEST_RUNS and sum(near) >= REGULAR * sum(lengths) else None
