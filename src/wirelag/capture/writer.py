"""Writes captures: pcap with ns timestamps or pcapng, plain, gzip or zstd, according to the file name."""

import struct
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.errors import WirelagError

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

ETHERNET: Final = 1
PCAP_NS_MAGIC: Final = 0xA1B23C4D
PCAP_RECORD: Final = np.dtype([("seconds", "<u4"), ("ns", "<u4"), ("captured", "<u4"), ("wire", "<u4")])
PCAPNG_RECORD: Final = np.dtype(
    [
        ("type", "<u4"),
        ("block", "<u4"),
        ("interface", "<u4"),
        ("high", "<u4"),
        ("low", "<u4"),
        ("captured", "<u4"),
        ("wire", "<u4"),
    ]
)
ENHANCED_PACKET: Final = 6


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
        self._open_files = ExitStack()
        header = _pcapng_header(snaplen, link_type) if self._pcapng else _pcap_header(snaplen, link_type)
        try:
            self._file = _open(path, suffixes[-1] if suffixes else "", self._open_files)
            self._file.write(header)
        except OSError as error:
            raise self._failure(error) from error

    def write(self, time_ns: Ints, buffer: Bytes, offset: Ints, captured: Ints, wire: Ints) -> None:
        """Append frames."""
        if not self._pcapng and len(time_ns) and not (time_ns.min() >= 0 and time_ns.max() < 2**32 * 10**9):
            raise WirelagError(f"{self.path}: pcap holds times from 1970 to 2106 only; choose a smaller clock offset")
        if self._pcapng and len(time_ns) and time_ns.min() < 0:
            raise WirelagError(f"{self.path}: pcapng holds no times before 1970; choose a smaller clock offset")
        records = (_pcapng_records if self._pcapng else _pcap_records)(time_ns, buffer, offset, captured, wire)
        try:
            self._file.write(records.data)
        except OSError as error:
            raise self._failure(error) from error

    def __enter__(self) -> "CaptureWriter":
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what is buffered and close the file."""
        try:
            self._file.flush()
            self._open_files.close()
        except OSError as failure:
            if error is None:
                raise self._failure(failure) from failure

    def _failure(self, error: OSError) -> WirelagError:
        return WirelagError(f"{self.path}: cannot write: {error.strerror or error}; choose another file with -o")


def _open(path: str, suffix: str, open_files: ExitStack) -> IO[bytes]:
    """Open a file for writing; `open_files` closes it, innermost first."""
    if path == "-":
        return sys.stdout.buffer
    file: IO[bytes] = open_files.enter_context(Path(path).open("wb"))  # noqa: SIM115
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


def _pcap_records(time_ns: Ints, buffer: Bytes, offset: Ints, captured: Ints, wire: Ints) -> Bytes:
    head = np.empty(len(time_ns), PCAP_RECORD)
    head["seconds"], head["ns"] = np.divmod(time_ns, 10**9)
    head["captured"] = captured
    head["wire"] = wire
    size = captured + PCAP_RECORD.itemsize
    start = np.cumsum(size) - size
    out = np.empty(int(size.sum()), np.uint8)
    _scatter(out, start, head)
    _copy(out, start + PCAP_RECORD.itemsize, buffer, offset, captured)
    return out


def _pcapng_records(time_ns: Ints, buffer: Bytes, offset: Ints, captured: Ints, wire: Ints) -> Bytes:
    size = PCAPNG_RECORD.itemsize + (captured + 3) // 4 * 4 + 4
    head = np.zeros(len(time_ns), PCAPNG_RECORD)
    head["type"] = ENHANCED_PACKET
    head["block"] = size
    head["high"] = time_ns >> 32
    head["low"] = time_ns & 0xFFFFFFFF
    head["captured"] = captured
    head["wire"] = wire
    start = np.cumsum(size) - size
    out = np.zeros(int(size.sum()), np.uint8)
    _scatter(out, start, head)
    _copy(out, start + PCAPNG_RECORD.itemsize, buffer, offset, captured)
    _scatter(out, start + size - 4, size.astype("<u4"))
    return out


def _scatter(out: Bytes, place: Ints, items: npt.NDArray[Any]) -> None:
    """Store every item, of any type, at its place in the bytes."""
    kind = f"V{items.dtype.itemsize}"
    if len(items):
        _places(out, kind)[place] = items.view(kind)


def _copy(out: Bytes, place: Ints, source: Bytes, offset: Ints, size: Ints) -> None:
    """Copy pieces of different sizes: all pieces of one size in one assignment."""
    order = np.argsort(size, kind="stable")
    sizes, first = np.unique(size[order], return_index=True)
    for bytes_each, rows in zip(sizes.tolist(), np.split(order, first[1:]), strict=True):
        if bytes_each:
            kind = f"V{bytes_each}"
            _places(out, kind)[place[rows]] = _places(source, kind)[offset[rows]]


def _places(data: Bytes, kind: str) -> npt.NDArray[Any]:
    """The bytes as overlapping items, one at each place where one fits."""
    return np.ndarray(len(data) - np.dtype(kind).itemsize + 1, kind, data.data, strides=(1,))
