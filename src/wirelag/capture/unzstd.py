"""A zstd file that a thread of the extension decompresses ahead: it never waits for Python's lock.

Law: the same bytes, warnings and errors as those of `streams`, which reads what is no file, and all where there is no
libzstd. A command may begin before it has imported what measures: whoever opens the file takes over. Memory: 48 MiB,
or 8 without a thread, beside what libzstd needs for a window.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from wirelag import _kernels
from wirelag.capture.streams import Stream, compression_of

if TYPE_CHECKING:
    from wirelag.capture.undecoded import Memory

LEFT: Final = 5 << 16  # room before the bytes of a piece, for what is left of the one before: any usual record
PIECE_BYTES: Final = 2 << 20  # with that room: a large page
_AHEAD: Final = 24  # pieces: what is decompressed while a command is imported
_ALONE: Final = 4
_HEAD: Final = 4


class Unzstd(Stream):
    """The decompressed bytes of a file, as a stream or in pieces."""

    def __init__(self, path: str, raw: io.FileIO, ahead: bool) -> None:
        super().__init__(path, raw, b"")
        self.compression = "zstd"
        self._thread = _kernels.Unzstd(raw.fileno(), LEFT, PIECE_BYTES, _AHEAD if ahead else _ALONE, ahead)
        self._rest: Memory = memoryview(b"")

    def pieces(self) -> Generator[tuple[Memory, int]]:
        """Pieces, each with `LEFT` bytes of room before its bytes, and where these end. Three are valid at a time."""
        while (found := self._thread.next()) is not None:
            yield found
        self.broken = self._thread.problem

    def readinto(self, buffer: memoryview) -> int:
        if not self._rest and (found := next(self.pieces(), None)) is not None:
            self._rest = found[0][LEFT : found[1]]
        got = min(len(buffer), len(self._rest))
        buffer[:got], self._rest = self._rest[:got], self._rest[got:]
        return got

    def close(self) -> None:
        self._thread.stop()
        super().close()


_BEGUN: Final[dict[str, Unzstd]] = {}  # by path


def begin(path: str) -> bool:
    """Begin to decompress ahead, for whoever opens the file; returns whether it is a zstd file of this machine."""
    if (stream := opened(path, ahead=True)) is not None:
        _BEGUN[path] = stream
    return stream is not None


def begun(path: str) -> Unzstd | None:
    """What has begun, for who reads it."""
    return _BEGUN.pop(path, None)


def opened(path: str, ahead: bool) -> Unzstd | None:
    """A file, if it is a zstd file of this machine; if no thread has begun, one works ahead only if asked to."""
    if (stream := begun(path)) is not None:
        return stream
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        raw = io.FileIO(path)
    except (OSError, ValueError):  # whoever opens it by itself says why
        return None
    with suppress(OSError):  # the same
        if compression_of(os.pread(raw.fileno(), _HEAD, 0)) == "zstd" and _kernels.has_libzstd():
            return Unzstd(path, raw, ahead)
    raw.close()
    return None


@contextmanager
def beginning(words: Sequence[str]) -> Iterator[None]:
    """Begin to decompress the first such file that a command names; at its end, stop what was not used.

    With one core, or where words say how many or whose work, nothing begins.
    """
    if len(os.sched_getaffinity(0)) > 1 and not any(word.startswith(("--cores", "--on")) for word in words):
        any(begin(word) for word in words)
    try:
        yield
    finally:
        while _BEGUN:
            _BEGUN.popitem()[1].close()
