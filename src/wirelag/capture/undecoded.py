"""A capture as blocks of records that are not decoded yet, for a meter that decodes them itself, on all cores.

Law: the records are those of the file, in order; statistics and warnings are the same as if batches were read. A block
stays as it is until the one after the next is decoded. Memory: three blocks: one is decoded, the rows of the one before
are measured, and the next one is read; or a few more, if a thread decompresses ahead.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Final, TypeAlias

from wirelag import _kernels
from wirelag.capture.ahead import ahead
from wirelag.capture.streams import is_compressed
from wirelag.capture.unzstd import LEFT, Unzstd, opened

if TYPE_CHECKING:
    from wirelag.capture.pcap import CaptureFile, CaptureStatistics
    from wirelag.capture.streams import Stream

BYTES_A_THREAD: Final = 1 << 20
MOST_THREADS: Final = 16  # each keeps samples and rows of its own

Memory: TypeAlias = "memoryview[int]"
Finish: TypeAlias = Callable[[_kernels.Work], None]
"""Does what is left of a work."""


@dataclass(slots=True, eq=False, repr=False)
class Records:
    """A part of a file in memory, from byte `base + start` on. Whoever decodes it says where and why it stopped."""

    name: str
    reader: _kernels.Reader
    data: Memory
    start: int
    stop: int
    base: int
    status: int = _kernels.MORE
    next: _kernels.FileRead | None = None  # the piece behind it, to be read meanwhile


def decoding(file: CaptureFile, cores: int) -> int:
    """How many threads decode a file: one a core, but where it is compressed one core decompresses."""
    return max(1, min(cores - is_compressed(file.path), MOST_THREADS))


class Undecoded:
    """The records of one file. With several cores, what is compressed is decompressed ahead, by a thread of its own."""

    def __init__(self, file: CaptureFile, finish: Finish, cores: int) -> None:
        self._file = file
        self._finish = finish
        self._cores = cores
        self._piece_bytes = LEFT + min(cores, MOST_THREADS) * BYTES_A_THREAD
        self._offset = 0

    def __iter__(self) -> Iterator[Records]:
        unzstd = opened(self._file.path, ahead=self._cores > 1)
        with self._file.opened(unzstd) as stream, ExitStack() as stack:
            records = Records(self._file.name, self._file.new_reader(), _kernels.octets(0), 0, 0, 0)
            pieces = self._decompressed(stream) if stream.compression else self._read(records, stream)
            for got in self._join(records, stack.enter_context(closing(pieces))):
                self._offset += got
                self._file.bytes_read = self._offset
                yield records
                if records.status == _kernels.BROKEN:
                    break
            rest = records.data[records.start : records.stop]
            self._file.conclude(stream, records.base + records.start, rest)

    def _join(self, records: Records, pieces: Iterable[tuple[Memory, int]]) -> Iterator[int]:
        """Put what is left before the next piece, which stays where it is; yields how many bytes came."""
        for piece, stop in pieces:
            left = records.data[records.start : records.stop]
            if len(left) <= LEFT:
                data = piece[LEFT - len(left) : stop]
            else:
                data = _kernels.octets(len(left) + stop - LEFT)
                data[len(left) :] = piece[LEFT:stop]
            data[: len(left)] = left
            records.data, records.base = data, records.base + records.start
            records.start, records.stop = 0, len(data)
            yield stop - LEFT

    def _read(self, records: Records, stream: Stream) -> Generator[tuple[Memory, int]]:
        """The bytes of the file: pieces, each with `LEFT` bytes of room before them, and where they end."""
        file, offset, size = stream.raw.fileno(), 0, self._piece_bytes
        free = cycle([_kernels.octets(size) for _ in range(3)])
        piece = next(free)
        read = _kernels.FileRead(file, piece, LEFT, size, 0)
        while True:
            self._finish(read)
            try:
                got = read.bytes()
            except OSError as error:
                stream.broken = f"reading failed ({error.strerror})"
                return
            if not got:
                return
            before, piece, offset = piece, next(free), offset + got
            read = records.next = _kernels.FileRead(file, piece, LEFT, size, offset)
            yield before, LEFT + got

    def _decompressed(self, stream: Stream) -> Generator[tuple[Memory, int]]:
        """The decompressed bytes in the same form. Pieces that are done with are used again."""
        if isinstance(stream, Unzstd):
            yield from stream.pieces()
            return
        used: deque[Memory] = deque()
        free: deque[Memory] = deque()

        def pieces() -> Iterator[tuple[Memory, int]]:
            stop = size = self._piece_bytes
            while stop == size:
                piece, stop = free.popleft() if free else _kernels.octets(size), LEFT
                while stop < size and (got := stream.readinto(piece[stop:])):
                    stop += got
                if stop > LEFT:
                    yield piece, stop

        for piece, stop in pieces() if self._cores == 1 else ahead(pieces):
            used.append(piece)
            if len(used) > 2:
                free.append(used.popleft())
            yield piece, stop

    @property
    def statistics(self) -> CaptureStatistics:
        """Counts so far."""
        return self._file.statistics

    @property
    def progress(self) -> float | None:
        """The share of the file that has been read, from 0 to 1."""
        if self._file.compression:
            return self._file.progress
        size = os.path.getsize(self._file.path)
        return self._offset / size if size else None
