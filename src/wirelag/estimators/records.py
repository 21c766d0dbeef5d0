"""A meter for records that are not decoded yet: threads decode them into rows, which a method takes without batches.

Law: what the method finds is what it finds in packet batches. Rows of the slowest samples, or of all if somebody
asks, are decoded once more, and handed on in the order of the file. A method that works apart takes the rows of one
block while the next one is decoded. Memory: rows and samples of two blocks of records (`capture.undecoded`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.estimators.later import Later
from wirelag.estimators.matchers import MATCHERS
from wirelag.packets.batch import Block, PacketBatch
from wirelag.packets.filters import EARLIEST_NS, LATEST_NS
from wirelag.packets.intervals import Interval
from wirelag.synopses.samples import LEGS, MIXED, SampleBatch, Sink

if TYPE_CHECKING:
    from wirelag.capture.undecoded import Records
    from wirelag.synopses.slowest import Slowest

MOST_THREADS: Final = 16  # each keeps samples and rows of its own
_NO_BYTES: Final = np.empty(0, np.uint8)

Memory = npt.NDArray[np.uint8]
Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.uint8]]
"""Delays in ns, legs and kinds of samples."""


class RowsMeter(Protocol):
    """A method's meter that takes rows of a decoder."""

    all_rows: bool  # or only those that matter to matching
    apart: bool  # whether one thread takes rows, in order, for as long as others decode the next ones
    sharded: bool  # by flow key

    def observe_rows(self, decoder: _kernels.Decoder, packets: int) -> None:
        """Take what was decoded last, of this number of packets."""


class RecordsMeter:
    """Decodes records, and hands them to a method's meter. A `sink` gets all samples, in memory of `take`."""

    def __init__(
        self,
        meter: RowsMeter,
        threads: int,
        slowest: Slowest,
        leg: str = MIXED,
        sink: Sink | None = None,
        take: Callable[[], Memory] | None = None,
    ) -> None:
        apart = threads > 1 and meter.apart
        self._meter, self._sink, self._take = meter, sink, take
        self._decoders = [_kernels.Decoder(threads - 1) for _ in range(2)] if apart else [_kernels.Decoder(threads)]
        self._next = cycle(self._decoders)
        self._measuring = Later() if apart else None
        self._telling = Later() if sink is not None and threads > 1 else None
        self._slowest, self._legs = slowest, 1 << LEGS.index(leg) if leg in LEGS else 3
        rows = _kernels.BATCH_ROWS
        self._memory = np.empty(_kernels.BATCH_BYTES, np.uint8)
        self._found = np.empty(rows, np.int64), np.empty(rows, np.uint8), np.empty(rows, np.uint8)
        self.read = self._decoders[0].read  # a file, on all cores

    def intervals(self, blocks: Iterable[Records], interval_ns: int | None = None) -> Iterator[Interval]:
        """Measure all records; yields each interval that has ended, before anything after it is measured.

        Intervals are those of `packets.intervals`; without a length, there is one.
        """
        now, until_ns = None, LATEST_NS if interval_ns is None else EARLIEST_NS
        for records in blocks:
            records.status = _kernels.FULL
            while records.status == _kernels.FULL:
                edge_ns = self._measure(records, until_ns)
                if interval_ns is None or edge_ns is None:
                    continue
                if now is not None:
                    self._finish()
                    yield now
                now = Interval(edge_ns // interval_ns * interval_ns, (edge_ns // interval_ns + 1) * interval_ns)
                until_ns = min(now.end_ns, LATEST_NS)
        self._end()
        if now is not None or interval_ns is None:
            yield now or Interval(0, 0)

    def _finish(self) -> None:
        for later in (self._measuring, self._telling):
            if later is not None:
                later.finish()

    def _end(self) -> None:
        for later in (self._measuring, self._telling):
            if later is not None:
                later.end()

    def _measure(self, records: Records, until_ns: int) -> int | None:
        """Decode and measure records; what does not end in them stays. Returns the time of a packet that ended it."""
        meter, decoder, slowest = self._meter, next(self._next), self._slowest
        packets = decoder.decode(
            records.reader, records.data, records.start, records.stop, meter.all_rows, meter.sharded,
            self._sink is not None, until_ns, slowest.most, self._legs, slowest.least_ns,
        )  # fmt: skip
        if self._measuring is None:
            self._take_rows(decoder, packets, records.name, records.reader, records.base)
        else:
            self._measuring.leave(self._take_rows, decoder, packets, records.name, records.reader, records.base)
            # What this decoder and its block of bytes were used for before last is done with.
            self._measuring.finish(0 if decoder.changes else 1)
        records.start, records.status, records.needed, edge = decoder.proceed(records.reader)
        return decoder.edge_ns if edge else None

    def _take_rows(
        self, decoder: _kernels.Decoder, packets: int, name: str, reader: _kernels.Reader, base: int
    ) -> None:
        self._meter.observe_rows(decoder, packets)
        if slow := decoder.write_slowest(reader, base, self._memory, *self._found):
            batch = PacketBatch.in_memory(self._memory, slow, (Block(name, base, _NO_BYTES),))
            self._slowest.of_leg(MIXED, batch, _samples(self._found, slice(0, slow)))
        if count := decoder.samples:
            self._tell(decoder, count, name, reader, base)

    def _tell(self, decoder: _kernels.Decoder, count: int, name: str, reader: _kernels.Reader, base: int) -> None:
        """Hand all samples to the sink."""
        assert self._sink is not None
        assert self._take is not None
        memory = [self._take() for _ in range(0, count, _kernels.BATCH_ROWS)]
        found = np.empty(count, np.int64), np.empty(count, np.uint8), np.empty(count, np.uint8)
        decoder.write_samples(reader, base, memory, *found)
        for place, piece in enumerate(memory):
            some = slice(place * _kernels.BATCH_ROWS, min((place + 1) * _kernels.BATCH_ROWS, count))
            batch = PacketBatch.in_memory(piece, some.stop - some.start, (Block(name, base, _NO_BYTES),))
            samples = _samples(found, some)
            if self._telling is None:
                self._sink(batch, samples)
            else:
                self._telling.leave(self._sink, batch, samples)


def _samples(found: Found, some: slice) -> SampleBatch:
    """Some of these samples, of the first rows of a batch, one each."""
    delays_ns, legs, kinds = found
    rows = np.arange(some.stop - some.start, dtype=np.uint32)
    return SampleBatch(rows, delays_ns[some], legs[some], MATCHERS, kinds[some])
