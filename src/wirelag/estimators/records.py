"""A meter for records that are not decoded yet: threads decode them into rows, which a method takes without batches.

Law: what the method finds is what it finds in packet batches. Of the slowest samples, rows are decoded once more and
handed to `slowest`. Memory: the rows of one block of records (`capture.undecoded`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from wirelag import _kernels
from wirelag.estimators.matchers import MATCHERS
from wirelag.packets.batch import Block, PacketBatch
from wirelag.synopses.samples import LEGS, MIXED, SampleBatch

if TYPE_CHECKING:
    from wirelag.capture.undecoded import Records
    from wirelag.synopses.slowest import Slowest

MOST_THREADS: Final = 16  # each keeps samples and rows of its own


class RowsMeter(Protocol):
    """A method's meter that takes rows of a decoder."""

    all_rows: bool  # or only those that matter to matching
    sharded: bool  # by flow key

    def observe_rows(self, decoder: _kernels.Decoder, packets: int) -> None:
        """Take what was decoded last, of this number of packets."""


class RecordsMeter:
    """Decodes records, and hands them to a method's meter."""

    def __init__(self, meter: RowsMeter, threads: int, slowest: Slowest, leg: str = MIXED) -> None:
        self._meter, self._decoder = meter, _kernels.Decoder(threads)
        self._slowest, self._legs = slowest, 1 << LEGS.index(leg) if leg in LEGS else 3
        rows = _kernels.BATCH_ROWS
        self._memory = np.empty(_kernels.BATCH_BYTES, np.uint8)
        self._found = np.empty(rows, np.int64), np.empty(rows, np.uint8), np.empty(rows, np.uint8)
        self.read = self._decoder.read  # a file, on all cores

    def observe(self, records: Records) -> None:
        """Decode and measure records; what does not end in them stays."""
        meter, decoder, slowest = self._meter, self._decoder, self._slowest
        records.status = _kernels.FULL
        while records.status == _kernels.FULL:
            packets = decoder.decode(
                records.reader, records.data, records.start, records.stop, meter.all_rows, meter.sharded,
                slowest.most, self._legs, slowest.least_ns,
            )  # fmt: skip
            meter.observe_rows(decoder, packets)
            slow, records.start, records.status, records.needed = decoder.finish(
                records.reader, records.base, self._memory, *self._found
            )
            if slow:
                delays_ns, legs, kinds = (column[:slow] for column in self._found)
                batch = PacketBatch.in_memory(self._memory, slow, (Block(records.name, records.base, records.data),))
                rows = np.arange(slow, dtype=np.uint32)
                slowest.of_leg(MIXED, batch, SampleBatch(rows, delays_ns, legs, MATCHERS, kinds))
