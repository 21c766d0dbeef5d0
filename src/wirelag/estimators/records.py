"""A meter for records that are not decoded yet: threads decode them into rows, which a method takes without batches.

Law: what the method finds is what it finds in packet batches. If somebody asks, all samples are added up in the order
of the file, by group, time and connection. Rows of the slowest samples are decoded once more, and those of the first
sample of each flow, for its group. Rows of one block are taken while the next one is decoded, by the same threads.
Memory: rows and samples of two blocks of records (`capture.undecoded`), and the groups of some 33,000 flows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Final, NamedTuple

from wirelag import _kernels
from wirelag.packets.filters import EARLIEST_NS, LATEST_NS
from wirelag.packets.interval import Interval
from wirelag.synopses.samples import LEGS, MIXED
from wirelag.synopses.slowest import SlowSample

if TYPE_CHECKING:
    from typing import Protocol

    import numpy as np
    import numpy.typing as npt

    from wirelag.capture.undecoded import Records
    from wirelag.synopses.connections import Connections
    from wirelag.synopses.group_delays import GroupDelays
    from wirelag.synopses.group_times import GroupTimes
    from wirelag.synopses.slowest import Slowest
    from wirelag.synopses.timeline import Timeline

    Words = npt.NDArray[np.uint64]

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


MOST_THREADS: Final = 16  # each keeps samples and rows of its own


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
        groups = self._into.groups
        self._words, self._by_source = (0, False) if groups is None else (groups.name_words, groups.by_source)
        decoder = _kernels.Decoder(threads)
        self._next = cycle((decoder, decoder.beside()))
        self._open: _Block | None = None  # whose rows are taken while the next ones are decoded
        self._slowest, self._legs = slowest, 1 << LEGS.index(leg) if leg in LEGS else 3
        self.finish = decoder.finish  # a work, on all cores

    def intervals(self, blocks: Iterable[Records], interval_ns: int | None = None) -> Iterator[Interval]:
        """Measure all records; yields each interval that has ended, before anything after it is measured.

        Intervals are those of `packets.intervals`; without a length, there is one.
        """
        now, until_ns = None, LATEST_NS if interval_ns is None else EARLIEST_NS
        for records in blocks:
            records.status = _kernels.FULL
            while records.status == _kernels.FULL:
                edge_ns = self._measure(records, min(until_ns, self._meter.until_ns))
                if edge_ns is not None and edge_ns >= self._meter.until_ns:
                    self._finish()
                    self._meter.turn(edge_ns)
                if interval_ns is None or edge_ns is None or edge_ns < until_ns:
                    continue
                if now is not None:
                    self._finish()
                    yield now
                now = Interval(edge_ns // interval_ns * interval_ns, (edge_ns // interval_ns + 1) * interval_ns)
                until_ns = min(now.end_ns, LATEST_NS)
        self._finish()
        if now is not None or interval_ns is None:
            yield now or Interval(0, 0)

    def _measure(self, records: Records, until_ns: int) -> int | None:
        """Decode and measure records; what does not end in them stays. Returns the time of a packet that ended it."""
        meter, decoder, slowest, before = self._meter, next(self._next), self._slowest, self._open
        packets = decoder.decode(
            records.reader, records.data, records.start, records.stop, meter.all_rows, meter.sharded,
            bool(self._into), self._words, self._by_source,
            until_ns, slowest.most, self._legs, slowest.least_ns,
            before and before.work, records.next, meter.visits,
        )  # fmt: skip
        if before is not None:
            self._open = None
            self._taken(before)
        self._open = _Block(meter.work(decoder, packets), decoder, records.reader, records.name)
        if decoder.changes:
            self._finish()
        records.start, records.status, edge = decoder.proceed(records.reader)
        return decoder.edge_ns if edge else None

    def _finish(self) -> None:
        """Take all rows that were decoded."""
        if self._open is not None:
            self._open.decoder.finish(self._open.work)
            self._taken(self._open)
            self._open = None

    def _taken(self, block: _Block) -> None:
        """The rows of a block are taken: tell the slowest samples, and add up all."""
        if slow := block.decoder.slowest(block.reader):
            place = self._slowest.last_frames.place
            self._slowest.add(
                SlowSample(delay_ns, time_ns - delay_ns, 0, place(block.name, number), ends, leg)
                for delay_ns, time_ns, number, ends, leg in slow
            )
        if self._into:
            self._add_up(block.decoder, block.reader)

    def _add_up(self, decoder: _kernels.Decoder, reader: _kernels.Reader) -> None:
        """Add all samples to what they are asked for."""
        count, fresh = decoder.put_in_order()
        if not count:
            return
        groups, times, timeline, slot = self._into.groups, self._into.times, self._into.timeline, None
        words = self._words_of(groups, decoder, fresh, reader) if fresh and groups is not None else None
        first_ns, last_ns = decoder.gather(words, 0 if groups is None else groups.key_words)
        if timeline is not None:
            memory = timeline.memory_of(first_ns, last_ns)
            if memory is not None:
                slot = memory
            else:
                import numpy as np

                times_ns, delays_ns = np.empty(count, np.int64), np.empty(count, np.int64)
                legs = np.empty(count, np.uint8)
                decoder.write_samples(times_ns, delays_ns, legs)
                timeline.add_times(times_ns, legs, delays_ns)
        decoder.add_up(
            None if groups is None else groups.kernel,
            None if times is None else times.kernel,
            0 if times is None else times.legs,
            None if self._into.connections is None else self._into.connections.taking(),
            slot,
        )

    def _words_of(self, groups: GroupDelays, decoder: _kernels.Decoder, count: int, reader: _kernels.Reader) -> Words:
        """The words of groups that are not known, from the rows of samples in them."""
        import numpy as np

        from wirelag.packets.batch import PacketBatch

        size, found, legs = _kernels.BATCH_ROWS, np.empty((count, self._words), np.uint64), np.empty(count, np.uint8)
        memory = [np.empty(_kernels.BATCH_BYTES, np.uint8) for _ in range(0, count, size)]
        decoder.write_fresh(reader, memory, legs)
        for place, piece in enumerate(memory):
            some = slice(place * size, min((place + 1) * size, count))
            batch = PacketBatch.in_memory(piece, some.stop - some.start)
            found[some] = groups.words(batch, np.arange(len(batch)), legs[some])
        return found.reshape(-1)
