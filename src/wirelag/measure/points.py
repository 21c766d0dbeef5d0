"""Captures that are read twice: once to find what they have in common, and once to measure.

They are read once if what is measured fits into memory meanwhile.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from wirelag.capture.streams import STANDARD_INPUT
from wirelag.errors import NoPacketsError, SettingError, WirelagError
from wirelag.measure.hints import because

if TYPE_CHECKING:
    from wirelag.capture.files import Capture
    from wirelag.capture.pcap import Into, Take
    from wirelag.capture.source import Packets, PathOrFile
    from wirelag.packets.addresses import Direction
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.filters import Filter
    from wirelag.packets.packet_id import PacketId
    from wirelag.synopses.group_delays import GroupDelays
    from wirelag.twopoint.alignment import Alignment
    from wirelag.twopoint.sketch import Sighting

T = TypeVar("T")
_AT_ONCE: Final = 1 << 16

Progress: TypeAlias = "Callable[[Packets], Iterable[PacketBatch]]"
Relation: TypeAlias = Literal["auto", "none"] | int
"""How to relate the clocks of two points: a method, or an offset in ns."""


@dataclass(frozen=True)
class ReadOptions:
    """How captures are read."""

    filter: Filter
    tunnels: bool = False
    progress: Progress = iter
    cores: int = 1


def own_file(path: object, read: Iterable[str], setting: str = "samples") -> str:
    """The file for rows; writing them over a capture would destroy it."""
    if not isinstance(path, str | PathLike):
        raise SettingError(setting, f"{path!r} is not True, False or a path")
    from wirelag.capture.sample_file import need_form

    own = fspath(path)
    need_form(own)
    for name in read:
        if os.path.exists(own) and os.path.exists(name) and os.path.samefile(own, name):
            raise SettingError(setting, f"{own} is read: writing to it would destroy it; choose another file")
    return own


class CapturePoint:
    """The captures of one point, which can be read again."""

    def __init__(self, files: Mapping[str, str], reading: ReadOptions) -> None:
        self.name = " and ".join(files.values())
        self.files, self._reading = dict(files), reading  # path and name of each
        self._spool: Any = None
        if STANDARD_INPUT in files:  # readable once, needed twice
            import shutil
            import tempfile

            self._spool = tempfile.NamedTemporaryFile(prefix="wirelag-")  # noqa: SIM115
            shutil.copyfileobj(sys.stdin.buffer, self._spool)
            self._spool.flush()
            self.files = {self._spool.name if path == STANDARD_INPUT else path: name for path, name in files.items()}
        self.read: Capture | None = None
        self.stopped = False  # whether reading was ended before its end

    @property
    def paths(self) -> list[str]:
        """Its files."""
        return list(self.files)

    @property
    def cores(self) -> int:
        """How many threads may read it."""
        return self._reading.cores

    @property
    def place(self) -> str:
        """What its packets are numbered in, if that is a single file."""
        assert self.read is not None
        return self.read.files[0].place

    def batches(self, packet_id: PacketId) -> Iterator[PacketBatch]:
        """Its packets, with these ids."""
        return self.each(packet_id)

    def each(self, packet_id: PacketId, take: Take | None = None, into: Into | None = None) -> Iterator[Any]:
        """What is made of each batch of its packets, where it is read: with several cores, in a thread of its own."""
        from wirelag.capture.files import Capture

        how = self._reading
        self.read = Capture(
            list(self.files),
            names=self.files,
            filter=how.filter,
            packet_id=packet_id,
            tunnels=how.tunnels,
            cores=how.cores,
            take=take,
            into=into,
        )
        return self._shown(self.read)

    def _shown(self, capture: Capture) -> Iterator[Any]:
        yield from self._reading.progress(capture)
        self.stopped |= not capture.ended


def points_of(sources: Iterable[PathOrFile | list[PathOrFile]], reading: ReadOptions) -> list[CapturePoint]:
    """A point for each source."""
    from wirelag.capture.source import list_files

    every = [dict(list_files(source)) for source in sources]
    if sum(STANDARD_INPUT in files for files in every) > 1:
        raise WirelagError("standard input is one capture: name a file for the other")
    return [CapturePoint(files, reading) for files in every]


def by_turns(many: Iterable[Iterator[T]]) -> Iterator[T]:
    """One of each in turn, until none has any left."""
    left = deque(many)
    while left:
        if (found := next(left[0], None)) is None:
            left.popleft()
        else:
            yield found
            left.rotate(-1)


class PointPair:
    """Two points, and what they have in common."""

    def __init__(
        self, up: CapturePoint, down: CapturePoint, packet_id: PacketId, seed: int, over_time: bool = False
    ) -> None:
        self.up, self.down, self.packet_id, self._seed = up, down, packet_id, seed
        self._over_time = over_time  # whether intervals are reported
        self._keep = 0
        self._kept: tuple[Sighting, Sighting] | None = None
        self._taken: dict[str, PacketBatch] = {}
        self._shortest = packet_id.prefix
        self.notes: list[str] = []

    @property
    def name(self) -> str:
        """The name of the pair."""
        return f"{self.up.name} > {self.down.name}"

    @property
    def cores(self) -> int:
        """How many threads may work."""
        return self.up.cores

    def keep(self, packets: int) -> None:
        """Keep the packets of each point that are read from now on, at most this number: they are not read again."""
        self._keep = packets

    def align(
        self, direction: Direction | None, clock: Relation, counted: GroupDelays | None = None
    ) -> tuple[Alignment, Sighting]:
        """Find which packets travel from one point to the other, and how the clocks relate; count those of groups."""
        from wirelag.twopoint.alignment import align

        up, down = self._sight(counted)
        # Both points must hash the same bytes: neither uses more payload than the other has.
        if self._shortest < self.packet_id.prefix:
            self.notes.append(
                f"packet ids use {self._shortest} bytes of payload instead of {self.packet_id.prefix}: "
                f"some packets are captured with no more"
            )
            self.packet_id = replace(self.packet_id, prefix=self._shortest)
            up, down = self._sight()
        for point, sighting in ((self.up, up), (self.down, down)):
            if not sighting.packets:
                raise NoPacketsError(f"{point.name} holds no packets to compare{because(point.read, 'oneway')}")
        names = (self.up.name, self.down.name)
        alignment = align(up, down, names=names, direction=direction, clock=clock, nat=not self.packet_id.flow)
        self._kept = (up, down) if up.whole and down.whole else None
        return alignment, up

    def _sight(self, counted: GroupDelays | None = None) -> tuple[Sighting, Sighting]:
        """What both points saw. Both are read at once, but groups are counted in order."""
        from wirelag.twopoint.sketch import Sighting

        points = self.up, self.down
        seen = [Sighting(seed=self._seed, keep=self._keep * (len(point.files) == 1)) for point in points]

        together = list(zip(points, seen, strict=True))
        if counted is None:
            for _ in by_turns([point.each(self.packet_id, into=sighting) for point, sighting in together]):
                pass
        else:
            for point, sighting in together:
                for batch in point.batches(self.packet_id):
                    sighting.observe(batch)
                    counted.count(batch)
        for point, sighting in together:
            self._shortest = max(0, min(self._shortest, sighting.least_prefix))
            self._note_what_spoils(point, sighting.shortened)
        up, down = seen
        return up, down

    def _note_what_spoils(self, point: CapturePoint, short: int) -> None:
        """Warn of cut headers and times out of order, which no method can repair."""
        notes = []
        if short:
            notes.append(
                f"{short:,} packets of {point.name} are captured without their full headers: they cannot be "
                f"recognised elsewhere, and count as lost; capture at least 128 bytes of each"
            )
        back = point.read.statistics.backwards if point.read else 0
        if self._over_time and point.read and back > point.read.statistics.packets // 100:
            notes.append(
                f"{back:,} times in {point.name} go back: with --interval packets fall into the wrong one; sort it "
                f"first (reordercap)"
            )
        self.notes += [note for note in notes if note not in self.notes]

    def whole(self) -> bool:
        """Whether nothing that was read was ended before its end."""
        return not (self.up.stopped or self.down.stopped)

    @property
    def at_once(self) -> bool:
        """Whether the packets are in memory, and all of them."""
        return self._kept is not None and self.whole()

    def sources(self, alignment: Alignment) -> dict[str, Iterable[PacketBatch]]:
        """The packets that travel from one point to the other, at both."""
        from wirelag.twopoint.alignment import POINTS

        ends = dict(zip(POINTS, (self.up, self.down), strict=True))
        if self._kept is None:
            return {name: point.each(self.packet_id, partial(alignment.select, name)) for name, point in ends.items()}
        if self._taken:
            return {name: _slices(batch) for name, batch in self._taken.items()}
        for (name, point), seen in zip(ends.items(), self._kept, strict=True):
            self._taken[name] = alignment.kept(name, seen, point.place)
        return {name: [batch] for name, batch in self._taken.items()}


def _slices(batch: PacketBatch) -> Iterator[PacketBatch]:
    """A large batch in parts that a cache holds."""
    for start in range(0, len(batch), _AT_ONCE):
        yield batch[start : start + _AT_ONCE]
