"""Capture files as packet batches: pcap and pcapng, read in blocks, in memory that does not grow with the file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from wirelag import _kernels
from wirelag.capture.streams import STANDARD_INPUT, Stream, is_remote, open_stream
from wirelag.capture.unzstd import begun
from wirelag.errors import WirelagError
from wirelag.packets.filters import Filter

if TYPE_CHECKING:
    from typing import Protocol

    import numpy as np
    import numpy.typing as npt

    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.packet_id import PacketId

    class Into(Protocol):
        """What takes packets where they are read; how many comes instead of a batch."""

        def observe(self, packets: PacketBatch) -> int:
            """Add a batch."""
            ...

        def feed(
            self, reader: _kernels.Reader, data: npt.NDArray[np.uint8], start: int, stop: int, base: int
        ) -> tuple[int, int, int, int]:
            """Add packets of a part of a file as they are decoded; returns what `Reader.feed` does."""
            ...


BLOCK_BYTES: Final = 1 << 21
_LEAST_ROOM: Final = 1 << 16  # a block with less space is replaced
_POLL_S: Final = 0.1
_MOST_PIECES: Final = 8  # some are read ahead
_UNUSED: Final = 3  # references: the list's, the loop's and the check's own
UNDECODED: Final = ("link_type", "not_ip", "cut", "malformed", "layers", "no_timestamp")  # as in kernels/frames.hpp

Take: TypeAlias = "Callable[[PacketBatch], Any]"
"""What is made of a batch where it is read, and comes instead of it."""


@dataclass(slots=True)
class CaptureStatistics:
    """Counts so far, with or without rows."""

    format: str = ""
    packets: int = 0
    wire_bytes: int = 0
    captured_bytes: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    backwards: int = 0  # packets with a time before the previous packet's
    jumps: int = 0  # packets with a time more than a day from the previous packet's
    filtered: int = 0
    snapped: int = 0  # packets longer on the wire than in the file
    skipped: dict[str, int] = field(default_factory=dict)
    links: dict[int, int] = field(default_factory=dict)  # packets by link type
    interfaces: int = 0
    sections: int = 0
    snaplen: int = 0
    resolution_ns: float = 0.0

    def __add__(self, other: CaptureStatistics) -> CaptureStatistics:
        """The sum of the two."""
        total = CaptureStatistics()
        for name in (item.name for item in fields(self)):
            setattr(total, name, _together(name, getattr(self, name), getattr(other, name)))
        return total


def _together(name: str, one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        order = UNDECODED.index if name == "skipped" else None  # as one file has them
        return {key: one.get(key, 0) + other.get(key, 0) for key in sorted({*one, *other}, key=order)}
    if name == "format":
        return one if one == other or not other else other if not one else "mixed"
    if name in ("first_ns", "last_ns"):
        known = [value for value in (one, other) if value is not None]
        return (min if name == "first_ns" else max)(known, default=None)
    if name in ("snaplen", "resolution_ns"):
        return max(one, other)
    return one + other


class Pieces:
    """Pieces of memory of one size, reused when unreferenced: fresh pages cost more than decoding."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pieces: list[npt.NDArray[np.uint8]] = []

    def take(self) -> npt.NDArray[np.uint8]:
        """A piece that no batch or column refers to."""
        for piece in self._pieces:
            if sys.getrefcount(piece) == _UNUSED:
                return piece
        import numpy as np

        piece = np.asarray(_kernels.octets(self.size))
        if len(self._pieces) < _MOST_PIECES:
            self._pieces.append(piece)
        return piece


class CaptureFile:
    """One capture, read as packet batches by iterating over it, from the beginning each time.

    `warnings` lists what could not be read; a file that cannot be read at all raises a `WirelagError`.
    """

    def __init__(
        self,
        path: str,
        *,
        filter: Filter | str | None = None,
        packet_id: PacketId | None = None,
        tunnels: bool = False,
        follow: bool = False,
        name: str | None = None,
        cores: int = 1,
        take: Take | None = None,
        into: Into | None = None,
    ) -> None:
        self.path = path
        self.name = name or ("standard input" if path == STANDARD_INPUT else path)
        self.place = self.name  # what numbers of packets count from the beginning of
        self.filter = Filter.of(filter)
        self.packet_id = packet_id
        self.tunnels = tunnels
        self.follow = follow
        self.cores = cores
        self.take, self.into = take, into
        self.compression = ""
        self.warnings: list[str] = []
        self.bytes_read = 0  # bytes of the file, decompressed
        self._reader: _kernels.Reader | None = None
        self._counted: dict[str, Any] | None = None  # up to the batch that was yielded last, if others are read ahead
        self._stream: Stream | None = None

    @property
    def progress(self) -> float | None:
        """The share of the file that has been read, from 0 to 1; None if its size is unknown."""
        return self._stream.progress if self._stream else 0.0

    @property
    def statistics(self) -> CaptureStatistics:
        """Counts so far."""
        if self._reader is None:
            return CaptureStatistics()
        known = self._counted or self._reader.statistics()
        return CaptureStatistics(**{item.name: known[item.name] for item in fields(CaptureStatistics)})

    def __iter__(self) -> Iterator[PacketBatch]:
        if self.cores == 1 or self.follow or not can_be_read_again(self.path):  # a pipe may be silent for ever
            yield from self._read_all()
            return
        from wirelag.capture.ahead import ahead

        for batch, counted in ahead(self._with_counts):
            self._counted = counted
            yield batch
            del batch  # memory is reused once nothing refers to it
        self._counted = None

    def _with_counts(self) -> Iterator[tuple[PacketBatch, dict[str, Any]]]:
        for batch in self._read_all():
            assert self._reader is not None
            yield batch, self._reader.statistics()
            del batch

    def _read_all(self) -> Iterator[PacketBatch]:
        with self.opened() as stream:
            yield from self._batches(stream) if self.take is None else map(self.take, self._batches(stream))

    @contextmanager
    def opened(self, stream: Stream | None = None) -> Iterator[Stream]:
        """Its bytes, from the beginning; `stream` has them, if it is open already."""
        stream = self._stream = stream or self._open()
        try:
            self.compression = stream.compression
            self.warnings = []
            if self.follow and stream.compression:
                raise WirelagError(f"{self.name}: a compressed file cannot be followed while it grows; decompress it")
            yield stream
        finally:
            stream.close()

    def _open(self) -> Stream:
        return (begun(self.path) if self.cores > 1 else None) or open_stream(self.path)

    def new_reader(self) -> _kernels.Reader:
        """What decodes it from the beginning, and counts."""
        self._counted = None
        wanted = self.packet_id
        self._reader = _kernels.Reader(
            tunnels=self.tunnels,
            fields=wanted.fields if wanted else 0,
            prefix=wanted.prefix if wanted else 0,
            seed=wanted.seed if wanted else 0,
            # Not a method: the reader would then refer to its owner, a cycle that is never collected.
            compile=partial(_compiled, self.filter.expression) if self.filter.expression else None,
            **self.filter.kernel_arguments(),
        )
        return self._reader

    def _batches(self, stream: Stream) -> Iterator[Any]:
        import numpy as np

        from wirelag.packets.batch import Block, PacketBatch

        reader = self.new_reader()
        blocks, batches = Pieces(BLOCK_BYTES), Pieces(_kernels.BATCH_BYTES)
        block, base = blocks.take(), 0  # the block starts at byte `base` of the file
        start = stop = 0  # the part of the block not decoded yet
        status, needed = _kernels.MORE, 0
        while status != _kernels.BROKEN:
            if len(block) - stop < _LEAST_ROOM:
                room = needed + _LEAST_ROOM
                fresh = blocks.take() if room <= BLOCK_BYTES else np.empty(room, np.uint8)
                fresh[: stop - start] = block[start:stop]
                block, base, start, stop = fresh, base + start, 0, stop - start
            got = self._read(stream, memoryview(block.data)[stop:])
            if not got:
                break
            stop += got
            self.bytes_read = base + stop
            status = _kernels.FULL
            while status == _kernels.FULL:
                if self.into is not None:
                    start, rows, status, needed = self.into.feed(reader, block, start, stop, base)
                    if rows:
                        yield rows
                    continue
                memory = batches.take()
                start, rows, status, needed = reader.feed(block, start, stop, base, memory)
                if rows:
                    yield PacketBatch.in_memory(memory, rows, (Block(self.place, base, block),))
        self.conclude(stream, base + start, block[start:stop])

    def _read(self, stream: Stream, room: memoryview) -> int:
        got = stream.readinto(room)
        while not got and self.follow and not stream.broken:
            time.sleep(_POLL_S)
            got = stream.readinto(room)
        return got

    def conclude(self, stream: Stream, offset: int, rest: npt.NDArray[np.uint8] | memoryview[int]) -> None:
        """Report what stopped the reading: the end, a truncated file, or something that is not a capture."""
        assert self._reader is not None
        known = self._reader.statistics()
        if stream.broken:
            self.warnings.append(
                f"{self.name}: {stream.broken}, after byte {self.bytes_read:,}; everything before it was read"
            )
        if not known["format"]:
            raise WirelagError(f"{self.name}: {_why_no_capture(known['broken'], rest.tobytes()[:64], stream)}")
        if known["jumps"]:
            self.warnings.append(
                f"{self.name}: the times of neighbouring packets are more than a day apart, {_times(known['jumps'])}; "
                f"delays across such a jump are wrong: choose a part with --from and --to"
            )
        if known["broken"]:
            self.warnings.append(f"{self.name}: {known['broken']}, at byte {offset:,}; reading stopped there")
        elif len(rest) and not stream.broken:
            self.warnings.append(
                f"{self.name}: the file ends in the middle of a record that begins at byte {offset:,}; "
                f"the {known['packets']:,} packets before it were read"
            )


def can_be_read_again(path: str) -> bool:
    """Whether it is a file, here or elsewhere, and no pipe."""
    return os.path.isfile(path) or is_remote(path)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _compiled(expression: str, link_type: int, swapped: bool) -> bytes:
    from wirelag.capture.bpf_filter import compile_for_file  # slow to import, and seldom needed

    return compile_for_file(expression, link_type, swapped)


def _why_no_capture(broken: str, head: bytes, stream: Stream) -> str:
    if not head:
        return f"the {stream.compression} file has no content" if stream.compression else "the file is empty"
    if not broken:
        return f"only {len(head)} bytes, too short for a capture"
    if all(byte >= 32 or byte in b"\t\r\n\f" for byte in head):
        return f"{broken}, it looks like text"
    return f"{broken}; other capture formats can be converted with editcap -F pcap IN OUT"
