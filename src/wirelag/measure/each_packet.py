"""The delay of each packet between two points: the slowest for whoever reads, and all of them on request.

Only a method that sees each packet can tell (`can.each_packet`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from wirelag.errors import SettingError
from wirelag.measure.points import own_file
from wirelag.measure.slowest import Slow, listed

if TYPE_CHECKING:
    from wirelag.capture.packet_rows import PacketDelays
    from wirelag.measure.methods import Method
    from wirelag.synopses.cache import Crossed, CrossedSink


class EachPacket:
    """What is kept of single packets: the `slowest`, and with `samples` all."""

    def __init__(self, slowest: int, samples: bool | str | PathLike[str]) -> None:
        from wirelag.packets.frames import Frames
        from wirelag.synopses.slowest import Slowest

        self.samples = samples
        self.kept: PacketDelays | None = None
        self._up, self._down = Frames(), Frames()
        self._slowest = Slowest(slowest, self._up, self._down)
        self._sinks: list[CrossedSink] = [self._slowest.of_packets]

    @classmethod
    def of(cls, method: Method, slowest: int, samples: bool | str | PathLike[str]) -> EachPacket:
        """The same, if the method can tell."""
        if samples is not False and not method.make().can.each_packet:
            raise SettingError("samples", f"{method.estimator} sees no single packets; use --estimator join")
        return cls(slowest, samples)

    @contextmanager
    def writing(self, read: Iterable[str]) -> Iterator[None]:
        """The context in which packets come; `read` are files that must not be overwritten."""
        from wirelag.capture.packet_rows import PacketDelays
        from wirelag.capture.sample_file import PART_ROWS, RowFile

        if self.samples is False:
            yield
            return
        rows = PacketDelays(self._up, self._down)
        if self.samples is True:
            self.kept = rows
            self._sinks.append(rows.add)
            yield
            return
        with RowFile(own_file(self.samples, read), rows) as file:

            def write(crossed: Crossed) -> None:  # an interval may hold millions
                for part in crossed.parts(PART_ROWS):
                    file.add(part)

            self._sinks.append(write)
            yield

    def told_by(self, estimator: Any) -> Any:
        """The estimator, which then tells what it sees."""
        from wirelag.synopses.cache import About

        if not estimator.can.each_packet:
            return estimator
        about = About(self._up, ends=self.samples is not False), About(self._down)
        return replace(estimator, about=about, sinks=tuple(self._sinks))

    def listed(self) -> list[Slow]:
        """The slowest packets."""
        return listed(self._slowest)
