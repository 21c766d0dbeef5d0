"""Byte streams of capture files: plain, gzip, zstd or xz, detected by content; a path or standard input.

Data decompressed before a file breaks off is never lost: the stream returns it, then ends; `broken` holds the reason.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable
from typing import IO, Any, Final, cast

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


class _ZstdFrames:
    """Follows zstd's frames block by block: the library does not distinguish a truncated frame from a complete one.

    The format is RFC 8878: a header whose first byte gives its length, blocks of 3 bytes plus content, a checksum.
    """

    def __init__(self) -> None:
        self._next: Callable[[bytes], None] = self._magic
        self._wanted = 4  # bytes of the next part
        self._part = b""
        self._passed_over = 0
        self._checksum = 0

    @property
    def complete(self) -> bool:
        """Whether a frame has ended and no other has begun."""
        return self._next == self._magic and not self._part and not self._passed_over

    def feed(self, data: bytes) -> None:
        """Follow these bytes."""
        at = 0
        while at < len(data):
            if self._next == self._block and not self._passed_over and not self._part:
                at = self._whole_blocks(data, at)
                if at >= len(data):
                    self._passed_over = at - len(data)
                    break
            if self._passed_over:
                step = min(self._passed_over, len(data) - at)
                self._passed_over -= step
            else:
                step = min(self._wanted - len(self._part), len(data) - at)
                self._part += data[at : at + step]
                if len(self._part) == self._wanted:
                    part, self._part = self._part, b""
                    self._next(part)
            at += step

    def _whole_blocks(self, data: bytes, at: int) -> int:
        """Pass over the blocks from here on whose headers are in the data, but the last one: where that leads.

        It does what the other methods do, for nearly all blocks.
        """
        while at + 3 <= len(data) and not data[at] & 1:
            header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            at += 4 if header >> 1 & 3 == 1 else 3 + (header >> 3)
        return at

    def _expect(self, what: Callable[[bytes], None], wanted: int) -> None:
        self._next, self._wanted = what, wanted

    def _magic(self, part: bytes) -> None:
        if part == _ZSTD:
            self._expect(self._descriptor, 1)
        else:  # a frame to be skipped, or damage that the library will report
            self._expect(self._skippable, 4)

    def _skippable(self, part: bytes) -> None:
        self._passed_over = int.from_bytes(part, "little")
        self._expect(self._magic, 4)

    def _descriptor(self, part: bytes) -> None:
        single, size_flag, dictionary = part[0] >> 5 & 1, part[0] >> 6, part[0] & 3
        self._checksum = 4 * (part[0] >> 2 & 1)
        size = (single, 2, 4, 8)[size_flag]
        self._passed_over = (1 - single) + (0, 1, 2, 4)[dictionary] + size
        self._expect(self._block, 3)

    def _block(self, part: bytes) -> None:
        header = int.from_bytes(part, "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        self._passed_over = (1 if kind == 1 else size) + (self._checksum if last else 0)
        self._expect(self._magic, 4) if last else self._expect(self._block, 3)


class _Zstd(Stream):
    """Zstandard frames; the library has its own interface."""

    def __init__(self, name: str, raw: io.RawIOBase, head: bytes) -> None:
        super().__init__(name, raw, head)
        import zstandard

        self.compression = "zstd"
        self.frames = _ZstdFrames()
        self._error = zstandard.ZstdError
        decompressor = zstandard.ZstdDecompressor(max_window_size=128 << 20)
        source = cast(IO[bytes], _Source(self))
        self._reader = decompressor.stream_reader(source, read_size=_READ, read_across_frames=True)

    def compressed(self, size: int) -> bytes:
        """The next bytes of the file."""
        if self.head:
            data, self.head = self.head[:size], self.head[size:]
            return data
        try:
            return self.raw.read(size) or b""
        except OSError as error:
            self.broken = f"reading failed ({error.strerror or error})"
            return b""

    def readinto(self, buffer: memoryview) -> int:
        if self.broken:
            return 0
        try:
            got = int(self._reader.readinto(buffer))
            if not got and not self.frames.complete:
                self.broken = "the zstd data breaks off"
            return got
        except self._error as error:
            self.broken = f"the zstd data is damaged ({error})"
            return 0


class _Source:
    """The compressed bytes under a `_Zstd`, in the form that its library reads."""

    def __init__(self, stream: _Zstd) -> None:
        self.stream = stream

    def read(self, size: int) -> bytes:
        data = self.stream.compressed(size)
        self.stream.frames.feed(data)
        return data


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
    while len(head) < _LONGEST_MAGIC and (more := raw.read(_LONGEST_MAGIC - len(head))):
        head += more
    if head.startswith(_GZIP):
        return _Decompressed(path, raw, head, "gzip")
    if head.startswith(_XZ):
        return _Decompressed(path, raw, head, "xz")
    if head.startswith(_ZSTD) or _is_skippable(head):
        return _Zstd(path, raw, head)
    return Stream(path, raw, head)


def _is_skippable(head: bytes) -> bool:
    """Whether a frame of zstd that holds no data begins here: pzstd writes one before each other."""
    return head[1:4] == _SKIPPABLE and head[0] >> 4 == _SKIPPABLE_KIND


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
