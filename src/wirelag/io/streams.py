"""Byte streams of capture files: plain, gzip, zstd or xz by their content, a path or standard input.

What was decompressed before a file breaks off is never lost: the stream gives it, then ends, and says why in `broken`.
"""

import io
import lzma
import os
import stat
import sys
from typing import IO, Any, Final, cast

from wirelag.errors import WirelagError

STANDARD_INPUT: Final = "-"
_READ: Final = 1 << 18  # compressed bytes at a time
_GZIP, _ZSTD, _XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00"
_LONGEST_MAGIC: Final = len(_XZ)


class Stream:
    """Decompressed bytes of one capture, in order."""

    def __init__(self, name: str, raw: io.RawIOBase, head: bytes) -> None:
        self.name = name
        self.raw = raw
        self.head = head
        self.compression = ""
        self.broken = ""

    def readinto(self, buffer: memoryview) -> int:
        """Fill the start of the buffer; 0 at the end (for now: a growing file may go on)."""
        if self.head:
            n = min(len(self.head), len(buffer))
            buffer[:n], self.head = self.head[:n], self.head[n:]
            return n
        return self._read_raw(buffer)

    @property
    def progress(self) -> float | None:
        """How much of the file has been read, from 0 to 1; None for a pipe."""
        if self.raw.closed:
            return 1.0
        size = os.fstat(self.raw.fileno()).st_size
        return self.raw.tell() / size if size and self.raw.seekable() else None

    def close(self) -> None:
        """Close the file, unless it is standard input."""
        if self.name != STANDARD_INPUT:
            self.raw.close()

    def _read_raw(self, buffer: memoryview) -> int:
        try:
            return self.raw.readinto(buffer) or 0
        except OSError as error:
            self.broken = f"reading failed ({error.strerror})"
            return 0


class _Decompressed(Stream):
    """Behind a decompressor with the interface of bz2 and lzma; members that follow each other are one stream."""

    def __init__(self, name: str, raw: io.RawIOBase, head: bytes, compression: str) -> None:
        super().__init__(name, raw, head)
        self.compression = compression
        self._decompressor = self._new()
        self._input = b""
        self._began = False
        self._buffer = memoryview(bytearray(_READ))

    def _new(self) -> Any:
        if self.compression == "xz":
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=128 << 20)
        from isal import igzip_lib

        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)

    def readinto(self, buffer: memoryview) -> int:
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
                if not self._input:
                    self.broken = f"the {self.compression} data breaks off"
                    return 0
            try:
                data = self._decompressor.decompress(self._input, len(buffer))
            except Exception as error:  # each library raises its own
                self.broken = f"the {self.compression} data is damaged ({error})"
                return 0
            self._input, self._began = b"", True
            if data:
                buffer[: len(data)] = data
                return len(data)
        return 0

    def _next_input(self) -> bytes:
        n = super().readinto(self._buffer)
        return bytes(self._buffer[:n])


class _Zstd(Stream):
    """Zstandard frames; a library of its own interface."""

    def __init__(self, name: str, raw: io.RawIOBase, head: bytes) -> None:
        super().__init__(name, raw, head)
        import zstandard

        self.compression = "zstd"
        self._error = zstandard.ZstdError
        decompressor = zstandard.ZstdDecompressor(max_window_size=128 << 20)
        self._reader = decompressor.stream_reader(cast(IO[bytes], _Source(self)), read_across_frames=True)

    def readinto(self, buffer: memoryview) -> int:
        if self.broken:
            return 0
        try:
            return int(self._reader.readinto(buffer))
        except self._error as error:
            self.broken = f"the zstd data is damaged ({error})"
            return 0


class _Source:
    """The compressed bytes under a `_Zstd`, as its library wants to read them."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def read(self, size: int) -> bytes:
        buffer = memoryview(bytearray(size))
        return bytes(buffer[: Stream.readinto(self.stream, buffer)])


def open_stream(path: str) -> Stream:
    """Open a capture by its path, or standard input by `-`."""
    raw = _open(path)
    head = b""
    while len(head) < _LONGEST_MAGIC and (more := raw.read(_LONGEST_MAGIC - len(head))):
        head += more
    if head.startswith(_GZIP):
        return _Decompressed(path, raw, head, "gzip")
    if head.startswith(_XZ):
        return _Decompressed(path, raw, head, "xz")
    if head.startswith(_ZSTD):
        return _Zstd(path, raw, head)
    return Stream(path, raw, head)


def _open(path: str) -> io.RawIOBase:
    if path == STANDARD_INPUT:
        if sys.stdin is None or sys.stdin.isatty():
            raise WirelagError("standard input is a terminal: pipe a capture into it, as in tcpdump -w - | wirelag ...")
        return io.FileIO(sys.stdin.fileno(), closefd=False)
    try:
        raw = io.FileIO(path)
        if stat.S_ISDIR(os.fstat(raw.fileno()).st_mode):
            raise IsADirectoryError
        return raw
    except FileNotFoundError:
        raise WirelagError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise WirelagError(
            f"{path}: this is a directory; name the captures in it, as {path.rstrip('/')}/*.pcap"
        ) from None
    except PermissionError:
        raise WirelagError(f"{path}: you may not read this file; ask its owner, or try sudo") from None
    except OSError as error:
        raise WirelagError(f"{path}: cannot be opened ({error.strerror})") from None
