"""A capture as blocks of records that are not decoded yet, for a meter that decodes them itself, on all cores.

Law: the records are those of the file, in order; statistics and warnings are the same as if batches were read. A block
stays as it is until the one after the next is read. Memory: two blocks, and a few pieces of what is decompressed ahead.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from wirelag import _kernels
from wirelag.capture.ahead import ahead

if TYPE_CHECKING:
    from wirelag.capture.pcap import CaptureFile, CaptureStatistics
    from wirelag.capture.streams import Stream

BYTES_A_THREAD: Final = 1 << 20
_LEAST_ROOM: Final = 1 << 16
_LEFT: Final = 1 << 16  # room before decompressed bytes, for what is left of the piece before

Memory: TypeAlias = "memoryview[int]"
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
    """The records of one file. What is compressed is decompressed ahead, by a thread of its own."""

    def __init__(self, file: CaptureFile, read: Read, threads: int) -> None:
        self._file = file
        self._read = read
        self._threads = threads
        self._block_bytes = threads * BYTES_A_THREAD
        self._offset = 0
        self._spare = _kernels.octets(0)  # the block before

    def __iter__(self) -> Iterator[Records]:
        with self._file.opened() as stream, ExitStack() as stack:
            records = Records(self._file.name, self._file.new_reader(), self._spare, 0, 0, 0)
            if stream.compression:
                free: deque[Memory] = deque()
                more = self._join(records, stack.enter_context(closing(self._pieces(stream, free))), free)
            else:
                more = self._fill(records, stream)
            for got in more:
                self._offset += got
                self._file.bytes_read = self._offset
                yield records
                if records.status == _kernels.BROKEN:
                    break
            rest = records.data[records.start : records.stop]
            self._file.conclude(stream, records.base + records.start, rest)

    def _fill(self, records: Records, stream: Stream) -> Iterator[int]:
        """Read the file behind what is left; yields how many bytes came."""
        descriptor = stream.raw.fileno()
        while True:
            self._make_room(records)
            try:
                got = self._read(descriptor, records.data, records.stop, len(records.data), self._offset)
            except OSError as error:
                stream.broken = f"reading failed ({error.strerror})"
                return
            if not got:
                return
            records.stop += got
            yield got

    def _join(self, records: Records, pieces: Iterable[tuple[Memory, int]], free: deque[Memory]) -> Iterator[int]:
        """Put what is left before the next decompressed bytes, which stay where they are; yields how many came.

        Pieces that are done with are free for those after them.
        """
        used: deque[Memory] = deque()
        for piece, stop in pieces:
            used.append(piece)
            if len(used) > 2:
                free.append(used.popleft())
            left = records.data[records.start : records.stop]
            if len(left) <= _LEFT:
                data = piece[_LEFT - len(left) : stop]
            else:
                data = _kernels.octets(len(left) + stop - _LEFT)
                data[len(left) :] = piece[_LEFT:stop]
            data[: len(left)] = left
            records.data, records.base = data, records.base + records.start
            records.start, records.stop = 0, len(data)
            yield stop - _LEFT

    def _pieces(self, stream: Stream, free: deque[Memory]) -> Generator[tuple[Memory, int]]:
        """The decompressed bytes: pieces, each with `_LEFT` bytes of room before them, and where they end."""

        def pieces() -> Iterator[tuple[Memory, int]]:
            stop = size = _LEFT + self._block_bytes
            while stop == size:
                piece, stop = free.popleft() if free else _kernels.octets(size), _LEFT
                while stop < size and (got := stream.readinto(piece[stop:])):
                    stop += got
                if stop > _LEFT:
                    yield piece, stop

        yield from pieces() if self._threads == 1 else ahead(pieces)

    def _make_room(self, records: Records) -> None:
        """Move what is left to the front of the other block, with room for the next record."""
        left = records.data[records.start : records.stop]
        room = max(self._block_bytes, records.needed + _LEAST_ROOM)
        into = self._spare if room <= len(self._spare) else _kernels.octets(room)
        into[: len(left)] = left
        self._spare = records.data
        records.data, records.base = into, records.base + records.start
        records.start, records.stop = 0, len(left)

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
