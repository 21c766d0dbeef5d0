"""A capture as blocks of records that are not decoded yet, for a meter that decodes them itself, on all cores.

Law: the records are those of the file, in order; statistics and warnings are the same as if batches were read. Memory:
one block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.capture.files import Capture
from wirelag.capture.streams import STANDARD_INPUT, open_stream

if TYPE_CHECKING:
    from wirelag.capture.pcap import CaptureFile, CaptureStatistics

BYTES_A_THREAD: Final = 1 << 20
_LEAST_ROOM: Final = 1 << 16

Memory = npt.NDArray[np.uint8]
Read: TypeAlias = Callable[[int, Memory, int, int, int], int]
"""Fills data[start:stop] with a file's bytes from an offset on; returns how many came."""


@dataclass(slots=True)
class Records:
    """A part of a file in memory, from byte `base + start` on. Whoever decodes it says where and why it stopped."""

    name: str
    reader: _kernels.Reader
    data: Memory
    start: int
    stop: int
    base: int
    status: int = _kernels.MORE
    needed: int = 0  # size of the next record


class Undecoded:
    """The records of one plain file."""

    def __init__(self, file: CaptureFile, read: Read, threads: int) -> None:
        self._file = file
        self._read = read
        self._block_bytes = threads * BYTES_A_THREAD
        self._offset = self._size = 0

    def __iter__(self) -> Iterator[Records]:
        with self._file.opened() as stream:
            descriptor = stream.raw.fileno()
            self._size = os.fstat(descriptor).st_size
            records = Records(self._file.name, self._file.new_reader(), np.empty(self._block_bytes, np.uint8), 0, 0, 0)
            while records.status != _kernels.BROKEN:
                self._make_room(records)
                try:
                    got = self._read(descriptor, records.data, records.stop, len(records.data), self._offset)
                except OSError as error:
                    stream.broken = f"reading failed ({error.strerror})"
                    break
                if not got:
                    break
                self._offset += got
                records.stop += got
                self._file.bytes_read = self._offset
                yield records
            rest = records.data[records.start : records.stop]
            self._file.conclude(stream, records.base + records.start, rest)

    def _make_room(self, records: Records) -> None:
        """Move what is left to the front, in a block that has room for the next record."""
        left = records.data[records.start : records.stop]
        room = max(self._block_bytes, records.needed + _LEAST_ROOM)
        into = records.data if room <= len(records.data) else np.empty(room, np.uint8)
        into[: len(left)] = left.copy() if into is records.data else left
        records.data, records.base = into, records.base + records.start
        records.start, records.stop = 0, len(left)

    @property
    def statistics(self) -> CaptureStatistics:
        """Counts so far."""
        return self._file.statistics

    @property
    def progress(self) -> float | None:
        """The share of the file that has been read, from 0 to 1."""
        return self._offset / self._size if self._size else None


def plain_file(packets: object) -> CaptureFile | None:
    """The file that packets are from, if there is one, and neither compressed nor a pipe."""
    if not isinstance(packets, Capture) or len(packets.files) > 1:
        return None
    file = packets.files[0]
    if file.follow or file.path == STANDARD_INPUT or not os.path.isfile(file.path):
        return None
    stream = open_stream(file.path)
    stream.close()
    return None if stream.compression else file
