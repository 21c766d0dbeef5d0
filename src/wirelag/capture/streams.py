"""Byte streams of capture files: plain, gzip, zstd or xz, detected by content; a path or standard input.

Data decompressed before a file breaks off is never lost: the stream returns it, then ends; `broken` holds the reason.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from wirelag.errors import WirelagError

STANDARD_INPUT: Final = "-"
_READ: Final = 1 << 18  # compressed bytes at a time
_GZIP, _ZSTD, _XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00"
_SKIPPABLE, _SKIPPABLE_KIND = b"\x2a\x4d\x18", 5  # 0x184D2A50 to 0x184D2A5F (RFC 8878)
_LONGEST_MAGIC: Final = len(_XZ)


def is_remote(path: str) -> bool:
    """Whether a name is that of a capture elsewhere: s3://bucket/key."""
    return "://" in path and not os.path.exists(path)


class Stream:
    """Decompressed bytes of one capture, in order."""

    def __init__(self, name: str, raw: io.RawIOBase, head: bytes) -> None:
        self.name = name
        self.raw = raw
        self.head = head
        self.compression = ""
        self.broken = ""

    def readinto(self, buffer: memoryview) -> int:
        """Fill the start of the buffer; 0 at the end (for now: a growing file may continue)."""
        if self.head:
            n = min(len(self.head), len(buffer))
            buffer[:n], self.head = self.head[:n], self.head[n:]
            return n
        return self._read_raw(buffer)

    @property
    def progress(self) -> float | None:
        """The share of the file that has been read, from 0 to 1; None for a pipe."""
        if self.raw.closed:
            return 1.0
        size = getattr(self.raw, "size", None) or os.fstat(self.raw.fileno()).st_size
        return self.raw.tell() / size if size and self.raw.seekable() else None

    def close(self) -> None:
        """Close the file, unless it is standard input."""
        if self.name != STANDARD_INPUT:
            self.raw.close()

    def _read_raw(self, buffer: memoryview) -> int:
        try:
            return self.raw.readinto(buffer) or 0
        except OSError as error:
            self.broken = f"reading failed ({error.strerror or error})"
            return 0


class _Decompressed(Stream):
    """A stream behind a decompressor with the interface of bz2 and lzma; concatenated members are one stream."""

    def __init__(self, name: str, raw: io.RawIOBase, head: bytes, compression: str) -> None:
        super().__init__(name, raw, head)
        self.compression = compression
        self._decompressor = self._new()
        self._input = b""
        self._began = False
        self._buffer = memoryview(bytearray(_READ))

    def _new(self) -> Any:
        if self.compression == "xz":
            import lzma

            return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=128 << 20)
        from isal import igzip_lib

        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)

    def readinto(self, buffer: memoryview) -> int:
        ended = False
        while not self.broken:
            if self._decompressor.eof:
                self._input = (self._decompressor.unused_data or self._next_input()).lstrip(b"\0")
                if not self._input:
                    return 0
                if self._input[:2] not in (_GZIP, _XZ[:2]):
                    self.broken = "something that is not compressed follows the compressed data"
                    return 0
                self._decompressor, self._began = self._new(), False
            elif self._decompressor.needs_input:
                self._input = self._next_input()
                ended = not self._input  # but the decompressor may hold more than the last buffer had room for
            try:
                data = self._decompressor.decompress(self._input, len(buffer))
            except Exception as error:  # each library raises its own
                self.broken = f"the {self.compression} data is damaged ({error})"
                return 0
            self._input, self._began = b"", True
            if data:
                buffer[: len(data)] = data
                return len(data)
            if ended:
                self.broken = f"the {self.compression} data breaks off"
        return 0

    def _next_input(self) -> bytes:
        n = super().readinto(self._buffer)
        return bytes(self._buffer[:n])


class _ZstdParts:
    """The parts of zstd's frames (RFC 8878): a header, a block, a checksum.

    The library gets them one by one, since what a call decompresses before it fails is lost. They also tell whether the
    file ends where a frame does.
    """

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._data, self._at = b"", 0
        self._ended = False
        self.complete = False  # a frame has ended, and no other has begun

    def __iter__(self) -> Iterator[bytes]:
        while magic := self._take(4):
            self.complete = False
            if magic == _ZSTD:
                yield from self._frame(magic)
            else:  # a frame to be skipped, or damage that the library will report
                size = self._take(4)
                yield magic + size
                left = int.from_bytes(size, "little")
                while left and (passed_over := self._take(min(left, _READ))):
                    left -= len(passed_over)
                    yield passed_over
            self.complete = not self._ended

    def _frame(self, magic: bytes) -> Iterator[bytes]:
        descriptor = self._take(1)
        first = int.from_bytes(descriptor, "little")
        single, size_flag, dictionary = first >> 5 & 1, first >> 6, first & 3
        size = (single, 2, 4, 8)[size_flag]
        yield magic + descriptor + self._take((1 - single) + (0, 1, 2, 4)[dictionary] + size)
        last = 0
        while not (last or self._ended):
            header = int.from_bytes(begin := self._take(3), "little")
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            yield begin + self._take(1 if kind == 1 else size)
        if first >> 2 & 1:
            yield self._take(4)

    def _take(self, wanted: int) -> bytes:
        """So many bytes, or what is left of the file."""
        while len(self._data) - self._at < wanted and not self._ended:
            more = self._read()
            self._data, self._at, self._ended = self._data[self._at :] + more, 0, not more
        taken = self._data[self._at : self._at + wanted]
        self._at += len(taken)
        return taken


class _Zstd(Stream):
    """Zstandard frames, by the library's package for Python."""

    def __init__(self, name: str, raw: io.RawIOBase, head: bytes) -> None:
        super().__init__(name, raw, head)
        import zstandard

        self.compression = "zstd"
        self._error = zstandard.ZstdError
        self._frames = _ZstdParts(self._compressed)
        self._parts = iter(self._frames)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=128 << 20).decompressobj(
            read_across_frames=True
        )
        self._rest = memoryview(b"")

    def _compressed(self) -> bytes:
        """The next bytes of the file."""
        if self.head:
            data, self.head = self.head, b""
            return data
        try:
            return self.raw.read(_READ) or b""
        except OSError as error:
            self.broken = f"reading failed ({error.strerror or error})"
            return b""

    def readinto(self, buffer: memoryview) -> int:
        while not self._rest and not self.broken:
            part = next(self._parts, b"")
            if not part:
                if not self._frames.complete:
                    self.broken = "the zstd data breaks off"
                break
            try:
                self._rest = memoryview(self._decompressor.decompress(part))
            except self._error as error:
                self.broken = f"the zstd data is damaged ({str(error).rpartition(': ')[2]})"
        got = min(len(buffer), len(self._rest))
        buffer[:got], self._rest = self._rest[:got], self._rest[got:]
        return got


class Span(io.RawIOBase):
    """Some bytes of a file: those from one place up to another."""

    def __init__(self, raw: io.RawIOBase, start: int, stop: int | None) -> None:
        self._raw, self._left = raw, None if stop is None else max(0, stop - start)
        raw.seek(start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the start of the buffer."""
        room = memoryview(buffer) if self._left is None else memoryview(buffer)[: self._left]
        got = self._raw.readinto(room) or 0
        if self._left is not None:
            self._left -= got
        return got

    def close(self) -> None:
        self._raw.close()
        super().close()


def open_stream(path: str, start: int = 0, stop: int | None = None) -> Stream:
    """Open a capture by its path or URL, or standard input by `-`; or some bytes of it.

    Compressed bytes must begin where something compressed begins: a gzip member, a zstd frame, an xz stream.
    """
    raw = open_raw(path)
    if start or stop is not None:
        raw = Span(raw, start, stop)
    head = b""
    try:
        while len(head) < _LONGEST_MAGIC and (more := raw.read(_LONGEST_MAGIC - len(head))):
            head += more
    except OSError as error:
        raw.close()
        raise WirelagError(f"{path}: cannot be read ({error.strerror or error})") from None
    compression = compression_of(head)
    if compression == "zstd":
        return _Zstd(path, raw, head)
    return _Decompressed(path, raw, head, compression) if compression else Stream(path, raw, head)


def compression_of(head: bytes) -> str:
    """How what begins with these bytes is compressed; empty: not at all."""
    if head.startswith(_GZIP):
        return "gzip"
    if head.startswith(_XZ):
        return "xz"
    is_skippable = head[1:4] == _SKIPPABLE and head[0] >> 4 == _SKIPPABLE_KIND  # pzstd writes one before each frame
    return "zstd" if is_skippable or head.startswith(_ZSTD) else ""


def is_compressed(path: str) -> bool:
    """Whether a file is; False where it cannot be read."""
    try:
        with io.FileIO(path) as raw:
            return bool(compression_of(raw.read(_LONGEST_MAGIC) or b""))
    except OSError:
        return False


def open_raw(path: str) -> io.RawIOBase:
    """The bytes of a file as they are."""
    if is_remote(path):
        from wirelag.capture.remote import open_remote

        return open_remote(path)
    if path == STANDARD_INPUT:
        if sys.stdin is None or sys.stdin.isatty():
            found = "closed" if sys.stdin is None else "a terminal"
            raise WirelagError(f"standard input is {found}: pipe a capture into it, as in tcpdump -w - | wirelag ...")
        return io.FileIO(sys.stdin.fileno(), closefd=False)
    try:
        raw = io.FileIO(path)
        if stat.S_ISDIR(os.fstat(raw.fileno()).st_mode):
            raise IsADirectoryError
        return raw
    except FileNotFoundError:
        from wirelag.capture.source import is_interface

        live = f"; to measure at the interface: wirelag watch {path} rtt" if is_interface(path) else ""
        raise WirelagError(f"{path}: there is no such file{live}") from None
    except IsADirectoryError:
        raise WirelagError(
            f"{path}: this is a directory; name the captures in it, as {path.rstrip('/')}/*.pcap"
        ) from None
    except PermissionError:
        raise WirelagError(f"{path}: permission denied; ask its owner for read access, or use sudo") from None
    except OSError as error:
        raise WirelagError(f"{path}: cannot be opened ({error.strerror})") from None
