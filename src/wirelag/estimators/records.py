"""A meter for records that are not decoded yet: threads decode them into rows, which a method takes without batches.

Law: what the method finds is what it finds in packet batches. If somebody asks, all samples are added up in the order
of the file, by group, time and connection. Rows of the slowest samples are decoded once more, and those of the first
sample of each flow, for its group. Rows of one block are taken while the next one is decoded, by the same threads.
Memory: rows and samples of two blocks of records (`capture.undecoded`), and the groups of some 17,000 flows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

from wirelag import _kernels
from wirelag.packets.filters import EARLIEST_NS, LATEST_NS
from wirelag.packets.interval import Interval
from wirelag.synopses.samples import LEGS, MIXED
from wirelag.synopses.slowest import SlowSample

if TYPE_CHECKING:
    from typing import Protocol

    from wirelag.capture.undecoded import Records
    from wirelag.synopses.connections import Connections
    from wirelag.synopses.group_delays import GroupDelays
    from wirelag.synopses.group_times import GroupTimes
    from wirelag.synopses.slowest import Slowest
    from wirelag.synopses.timeline import Timeline

    class RowsMeter(Protocol):
        """A method's meter that takes rows of a decoder."""

        all_rows: bool  # or only those that matter to matching
        sharded: bool  # by flow key

        @property
        def visits(self) -> _kernels.FridgeRows | None:
            """What takes visits to slots instead of rows."""

        @property
        def until_ns(self) -> int:
            """Nothing from this time on may be decoded before `turn`."""

        def work(self, decoder: _kernels.Decoder, packets: int) -> _kernels.Work:
            """The work of taking what was decoded last, of this number of packets."""

        def turn(self, next_ns: int) -> None:
            """All before that time is taken: the next packet is at this time."""


class _Block(NamedTuple):
    """A block whose rows a method takes, by a work that is left."""

    work: _kernels.Work
    decoder: _kernels.Decoder
    reader: _kernels.Reader
    name: str


@dataclass(slots=True, eq=False, repr=False)
class Into:
    """What all samples are added to, beside the synopsis of the method. Times are those of groups."""

    groups: GroupDelays | None = None
    times: GroupTimes | None = None
    connections: Connections | None = None
    timeline: Timeline | None = None
    each_interval: bool = False  # whether connections are those of an interval

    def __bool__(self) -> bool:
        return any(one is not None for one in (self.groups, self.connections, self.timeline))


class RecordsMeter:
    """Decodes records, and hands them to a method's meter."""

    def __init__(
        self,
        meter: RowsMeter,
        threads: int,
        slowest: Slowest,
        leg: str = MIXED,
        into: Into | None = None,
    ) -> None:
        self._meter, self._into = meter, into or Into()
        decoder = _kernels.Decoder(threads)
        if self._into.groups is not None:
            decoder.group(*self._into.groups.as_numbers)
        self._next = cycle((decoder, decoder.beside()))
        self._open: _Block | None = None  # whose rows are taken while the next ones are decoded
        self._adding: _kernels.Work | None = None  # up samples of the block before that
        self._slowest, self._legs = slowest, 1 << LEGS.index(leg) if leg in LEGS else 3
        self.finish = decoder.finish  # a work, on all cores

    def intervals(self, blocks: Iterable[Records], interval_ns: int | None = None) -> Iterator[Interval]:
        """Measure all records; yields each interval that has ended, before anything after it is measured.

        Intervals are those of `packets.intervals`; without a length, there is one.
        """
        now, ended, until_ns = None, None, LATEST_NS if interval_ns is None else EARLIEST_NS
        for records in blocks:
            records.status = _kernels.FULL
            while records.status == _kernels.FULL:
                decoder, packets = self._decode(records, min(until_ns, self._meter.until_ns))
                if ended is not None:
                    if self._into.each_interval:
                        self._add_up()
                    yield ended
                    ended = None
                edge_ns = self._measure(records, decoder, packets)
                if edge_ns is not None and edge_ns >= self._meter.until_ns:
                    self._finish()
                    self._meter.turn(edge_ns)
                if interval_ns is None or edge_ns is None or edge_ns < until_ns:
                    continue
                ended = now  # once its last rows are taken
                now = Interval(edge_ns // interval_ns * interval_ns, (edge_ns // interval_ns + 1) * interval_ns)
                until_ns = min(now.end_ns, LATEST_NS)
        self._finish()
        if now is not None or interval_ns is None:
            yield now or Interval(0, 0)

    def _decode(self, records: Records, until_ns: int) -> tuple[_kernels.Decoder, int]:
        """Decode records, take the rows of the block before, and add up the samples of the one before that."""
        meter, decoder, slowest, before = self._meter, next(self._next), self._slowest, self._open
        packets = decoder.decode(
            records.reader, records.data, records.start, records.stop, meter.all_rows, meter.sharded,
            bool(self._into), until_ns, slowest.most, self._legs, slowest.least_ns,
            self._adding, before and before.work, records.next, meter.visits,
        )  # fmt: skip
        self._adding = None
        if before is not None:
            self._open = None
            self._taken(before)
        return decoder, packets

    def _measure(self, records: Records, decoder: _kernels.Decoder, packets: int) -> int | None:
        """Have the rows taken; what did not end in the block stays. Returns the time of a packet that ended it."""
        self._open = _Block(self._meter.work(decoder, packets), decoder, records.reader, records.name)
        if decoder.changes:
            self._finish()
        records.start, records.status, edge = decoder.proceed(records.reader)
        return decoder.edge_ns if edge else None

    def _finish(self) -> None:
        """Take all rows that were decoded."""
        self._add_up()
        if self._open is not None:
            self.finish(self._open.work)
            self._taken(self._open)
            self._open = None
        self._add_up()

    def _add_up(self) -> None:
        """Do what is left of adding up."""
        if self._adding is not None:
            self.finish(self._adding)
            self._adding = None

    def _taken(self, block: _Block) -> None:
        """The rows of a block are taken: tell the slowest samples, and add up all."""
        if slow := block.decoder.slowest(block.reader):
            place = self._slowest.last_frames.place
            self._slowest.add(
                SlowSample(delay_ns, time_ns - delay_ns, 0, place(block.name, number), ends, leg)
                for delay_ns, time_ns, number, ends, leg in slow
            )
        if self._into and (span := block.decoder.span()) is not None:
            into = self._into
            timeline = (0, 1, []) if into.timeline is None else into.timeline.memory_of(*span)
            self._adding = block.decoder.adding_up(
                None if into.groups is None else into.groups.kernel,
                None if into.times is None else into.times.kernel,
                0 if into.times is None else into.times.legs,
                None if into.connections is None else into.connections.taking(),
                *timeline,
            )
