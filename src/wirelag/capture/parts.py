"""A part of a capture file, from one record to another, read by itself.

Law: parts begin and end at records, so that together they hold each packet once. Where a part ends is checked when it
is read: a part that does not end with a record says so (`SplitError`), and the file must be read in one piece. Packets
are numbered from the first that the part reads; `packets_before` says how many of these are not its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.capture.pcap import CaptureFile, CaptureStatistics
from wirelag.capture.streams import Stream, open_raw, open_stream
from wirelag.errors import WirelagError

_KEPT: Final = ("format", "first_ns", "last_ns", "snaplen", "resolution_ns")  # of what was read, not a sum


class SplitError(WirelagError):
    """A file was not split where a record begins."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record begins: decompressed bytes after a byte of the file at which decompression can begin."""

    byte: int
    skip: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Records from a place up to another; from `warm` on, an earlier place, packets are read but do not count."""

    begin: Place = Place(0)
    end: Place | None = None  # None: the end of the file
    warm: Place | None = None
    head: bytes = b""  # the header of the file, unless the part begins with it

    def bytes_of(self, size: int) -> int:
        """How many bytes of the file are its own."""
        return (size if self.end is None else self.end.byte) - self.begin.byte


class _Bytes(Stream):
    """The header of the file, what warms up, and the part itself; no read has bytes of two of them."""

    def __init__(self, path: str, part: Part) -> None:
        super().__init__(path, open_raw(path), part.head)
        self.own = part.warm is None and not part.head  # whether the last read was of the part itself
        spans = [(part.begin, part.end)] if part.warm is None else [(part.warm, part.begin), (part.begin, part.end)]
        self._spans = [_Stretch(path, begin, end) for begin, end in spans]
        self.compression = self._spans[-1].compression

    def readinto(self, buffer: memoryview) -> int:
        if self.head:
            return super().readinto(buffer)
        while self._spans:
            self.own = len(self._spans) == 1
            if got := self._spans[0].readinto(buffer):
                return got
            self.broken = self.broken or self._spans[0].broken
            if self.own:
                return 0
            self._spans.pop(0).close()
        return 0

    def close(self) -> None:
        for one in self._spans:
            one.close()
        super().close()


class _Stretch:
    """Decompressed bytes from a place up to another."""

    def __init__(self, path: str, begin: Place, end: Place | None) -> None:
        self._path, self._end = path, end
        stop = None if end is None else end.byte
        # Between two places in the same member, all is read by the one that follows.
        self._left = None if end is None or end.byte != begin.byte else end.skip - begin.skip
        self._stream = open_stream(path, begin.byte, None if self._left is not None else stop)
        self.compression = self._stream.compression
        self._skip = begin.skip

    @property
    def broken(self) -> str:
        return self._stream.broken

    def readinto(self, buffer: memoryview) -> int:
        while self._skip:
            got = self._stream.readinto(buffer[: min(len(buffer), self._skip)])
            self._skip -= got
            if not got:
                return 0
        room = buffer if self._left is None else buffer[: self._left]
        got = self._stream.readinto(room) if len(room) else 0
        if self._left is not None:
            self._left -= got
        elif not got and self._end is not None and not self.broken:  # the rest of a record, from the next member
            self._left = self._end.skip
            self._stream.close()
            self._stream = open_stream(self._path, self._end.byte)
            return self.readinto(buffer)
        return got

    def close(self) -> None:
        self._stream.close()


class PartFile(CaptureFile):
    """A part of a capture file as packet batches; `own` says whether the last batch counts, or only warms up."""

    def __init__(self, path: str, part: Part, **how: Any) -> None:
        super().__init__(path, **how)
        self.part = part
        self.own = False
        self._before: dict[str, Any] = {}

    def _open(self) -> Stream:
        self.own, self._before = False, {}
        return _Bytes(self.path, self.part)

    def _read(self, stream: Stream, room: memoryview) -> int:
        got = stream.readinto(room)
        assert isinstance(stream, _Bytes)
        if stream.own and not self.own:
            assert self._reader is not None
            self.own, self._before = True, self._reader.statistics()
        return got

    @property
    def packets_before(self) -> int:
        """How many packets were read to warm up."""
        return int(self._before.get("packets", 0))

    @property
    def statistics(self) -> CaptureStatistics:
        """Counts of the part itself."""
        found = super().statistics
        if not self.own:
            return replace(found, **{item.name: _nothing(getattr(found, item.name)) for item in fields(found)})
        for item in fields(found):
            if item.name not in _KEPT:
                setattr(found, item.name, _less(getattr(found, item.name), self._before[item.name]))
        return found

    def conclude(self, stream: Stream, offset: int, rest: npt.NDArray[np.uint8] | memoryview[int]) -> None:
        """Prove that the part ends where the next one begins, and note how the file ends."""
        assert self._reader is not None
        broken = self._reader.statistics()["broken"] or (self.part.head and not self.own)
        if self.part.end is not None and (len(rest) or broken or stream.broken):
            raise SplitError(f"{self.name}: no record ends at byte {self.part.end.byte:,}")
        if self.part.head and not self.part.begin.byte:
            offset -= len(self.part.head)
        super().conclude(stream, offset + self._shift(), rest)

    def _shift(self) -> int:
        """What to add to a byte of what was read to have the byte of a file that is not compressed."""
        begin = self.part.begin if self.part.warm is None else self.part.warm
        return begin.byte - len(self.part.head)


def _nothing(value: Any) -> Any:
    return type(value)() if value is not None else None


def _less(now: Any, before: Any) -> Any:
    if isinstance(now, dict):
        return {key: n - before.get(key, 0) for key, n in now.items() if n - before.get(key, 0)}
    return now - before
