"""Writes captures: pcap with ns timestamps or pcapng, plain, gzip or zstd, according to the file name."""

import struct
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.capture.whole_file import whole_file
from wirelag.errors import WirelagError

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

ETHERNET: Final = 1
PCAP_NS_MAGIC: Final = 0xA1B23C4D


class CaptureWriter:
    """Appends batches of frames to a capture; a context manager.

    The format follows from the name: `.pcapng`, else pcap; a further `.gz` or `.zst` compresses; `-` is standard
    output. Frame i is `buffer[offset[i] : offset[i] + captured[i]]`.
    """

    def __init__(self, path: str, snaplen: int = 262_144, link_type: int = ETHERNET) -> None:
        """Create the file and write its header."""
        self.path = path
        suffixes = Path(path).suffixes
        self._pcapng = ".pcapng" in suffixes[-2:]
        header = _pcapng_header(snaplen, link_type) if self._pcapng else _pcap_header(snaplen, link_type)
        with ExitStack() as open_files:
            self._file = _open(path, suffixes[-1] if suffixes else "", open_files)
            self._file.write(header)
            self._open_files = open_files.pop_all()

    def write(self, time_ns: Ints, buffer: Bytes, offset: Ints, captured: Ints, wire: Ints) -> None:
        """Append frames."""
        if not self._pcapng and len(time_ns) and not (time_ns.min() >= 0 and time_ns.max() < 2**32 * 10**9):
            raise WirelagError(f"{self.path}: pcap holds times from 1970 to 2106 only; choose a smaller clock offset")
        if self._pcapng and len(time_ns) and time_ns.min() < 0:
            raise WirelagError(f"{self.path}: pcapng holds no times before 1970; choose a smaller clock offset")
        records = _kernels.capture_records(time_ns, buffer, offset, captured, wire, self._pcapng)
        self._file.write(records.data)

    def __enter__(self) -> "CaptureWriter":
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what is buffered and close the file; it is removed if not all of it could be written."""
        if kind is None:
            self._open_files.callback(self._file.flush)  # the first to be called
        self._open_files.__exit__(kind, error, trace)


def _open(path: str, suffix: str, open_files: ExitStack) -> IO[bytes]:
    """Open a file for writing; `open_files` closes it, innermost first."""
    if path == "-":
        return sys.stdout.buffer
    file: IO[bytes] = open_files.enter_context(whole_file(path, "wb", "-o"))
    if suffix == ".gz":
        from isal import igzip

        # No name and no time in its header: the same packets give the same bytes.
        compress: Any = igzip.IGzipFile
        file = open_files.enter_context(compress("", "wb", 2, file, mtime=0))
    elif suffix == ".zst":
        import zstandard

        file = open_files.enter_context(zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False))
    return file


def _pcap_header(snaplen: int, link_type: int) -> bytes:
    return struct.pack("<IHHiIII", PCAP_NS_MAGIC, 2, 4, 0, 0, snaplen, link_type)


def _pcapng_header(snaplen: int, link_type: int) -> bytes:
    section = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    nanoseconds = struct.pack("<HHBxxx", 9, 1, 9) + struct.pack("<HH", 0, 0)  # if_tsresol, end of options
    size = 20 + len(nanoseconds)
    interface = struct.pack("<IIHHI", 1, size, link_type, 0, snaplen) + nanoseconds + struct.pack("<I", size)
    return section + interface
