"""Where a large capture file can be split: at records, found from the middle of the file.

A record has no mark. A place is taken for the beginning of one if a chain of plausible records follows. That is a
guess, which the part before it proves: it must end exactly there (parts.py). Compressed files can be split where
compression begins anew: members of gzip (bgzip, concatenated files), frames of zstd (pzstd, the seekable format),
streams of xz. One stream in one piece, as `gzip` and `zstd` write by default, cannot. Memory: 1 MiB of the file at a
time, and 40 MiB for the numbers in it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag.capture.parts import Part, PartFile, Place, SplitError
from wirelag.capture.streams import open_raw, open_stream
from wirelag.errors import WirelagError

LOOKED_AT: Final = 1 << 20  # bytes in which a record, or a member, must begin
NEAR: Final = 1 << 13  # the part of them that is looked at first
_OVERLAP: Final = 32
CHAIN: Final = 16  # records that follow
_HEAD: Final = 1 << 20  # bytes in which the descriptions of interfaces are
_MAGIC: Final = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd", "xz": b"\xfd7zXZ\x00"}
_PCAP: Final = {
    b"\xd4\xc3\xb2\xa1": ("<", 10**6),
    b"\xa1\xb2\xc3\xd4": (">", 10**6),
    b"\x4d\x3c\xb2\xa1": ("<", 10**9),
    b"\xa1\xb2\x3c\x4d": (">", 10**9),
}
_SECTION, _INTERFACE, _SIMPLE, _STATISTICS, _ENHANCED = 0x0A0D0D0A, 1, 3, 5, 6
_MOST_FRAME: Final = 1 << 18
_NEAR_S: Final = 366 * 86400  # records of one file are no further apart

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Records:
    """How the records of a file look."""

    head: bytes
    order: str  # of bytes: < or >
    parts_of_s: int = 0  # of pcap; 0: pcapng
    first_s: int = 0

    @classmethod
    def of(cls, data: bytes) -> Records | None:
        """From the beginning of a file; None if it has another form."""
        if known := _PCAP.get(data[:4]):
            order, unit = known
            return None if len(data) < 40 else cls(data[:24], order, unit, struct.unpack_from(order + "I", data, 24)[0])
        if len(data) < 28 or struct.unpack_from("<I", data)[0] != _SECTION:
            return None
        order = "<" if data[8:12] == b"\x4d\x3c\x2b\x1a" else ">"
        at = 0
        while at + 12 <= len(data):
            kind, length = struct.unpack_from(order + "II", data, at)
            if kind not in (_SECTION, _INTERFACE):
                break
            at += length
        return cls(data[:at], order)

    def first(self, data: bytes) -> int | None:
        """Where the first record in these bytes begins; None if there is none to be sure of."""
        whole, start = np.frombuffer(data, np.uint8), 0
        for length in (NEAR, len(data)):  # most records begin near
            for at in self._plausible(whole[start : length + _OVERLAP]):
                if self._chain(data, start + int(at)):
                    return start + int(at)
            start = min(length, len(data))
        return None

    def _plausible(self, data: Bytes) -> npt.NDArray[np.intp]:
        """Places where the header of a record may be."""
        if len(data) < 64:
            return np.empty(0, np.intp)

        kind, starts = np.dtype(self.order + "u4"), len(data) - 32

        def words(shift: int) -> npt.NDArray[np.int64]:
            """The number at each byte, so much further on."""
            several = [np.frombuffer(data[shift + i : shift + i + (starts + 3 - i) // 4 * 4], kind) for i in range(4)]
            found = np.empty(starts, np.int64)
            for i, one in enumerate(several):
                found[i::4] = one[: len(found[i::4])]
            return found

        if not self.parts_of_s:
            length = words(4)
            fits = (length % 4 == 0) & (length >= 16) & (length <= _MOST_FRAME + 1024)
            return np.flatnonzero(np.isin(words(0), (_ENHANCED, _STATISTICS, _SIMPLE)) & fits)
        held, whole = words(8), words(12)
        near = np.abs(words(0) - self.first_s) < _NEAR_S
        return np.flatnonzero(
            near & (words(4) < self.parts_of_s) & (held > 0) & (held <= whole) & (whole <= _MOST_FRAME)
        )

    def _chain(self, data: bytes, at: int) -> bool:
        """Whether enough records follow one another from here on."""
        for _ in range(CHAIN):
            after = self._after(data, at)
            if after is None:
                return False
            if after > len(data) - 16:
                return True  # as far as can be seen
            at = after
        return True

    def _after(self, data: bytes, at: int) -> int | None:
        if self.parts_of_s:
            second, part, captured, wire = (int(n) for n in struct.unpack_from(self.order + "IIII", data, at))
            known = abs(second - self.first_s) < _NEAR_S and part < self.parts_of_s and captured <= _MOST_FRAME
            return at + 16 + captured if known and captured <= wire else None
        kind, length = (int(n) for n in struct.unpack_from(self.order + "II", data, at))
        if length < 12 or length % 4 or length > 1 << 24 or kind == _SECTION:
            return None
        if at + length <= len(data) and struct.unpack_from(self.order + "I", data, at + length - 4)[0] != length:
            return None
        return at + length


class Splitter:
    """A file that may be split."""

    def __init__(self, path: str, size: int) -> None:
        self.path, self.size = path, size
        stream = open_stream(path)
        try:
            data = _filled(stream, _HEAD)
        finally:
            stream.close()
        self.compression = stream.compression
        self.records = Records.of(data)

    def after(self, byte: int) -> Place | None:
        """The first place, at this byte of the file or shortly after, where it can be split."""
        if self.records is None or not 0 < byte < self.size:
            return None
        raw = open_raw(self.path)
        try:
            raw.seek(byte)
            data = _exactly(raw, LOOKED_AT)
        finally:
            raw.close()
        if not self.compression:
            found = self.records.first(data)
            return None if found is None else Place(byte + found)
        at = data.find(_MAGIC[self.compression])
        while at >= 0:
            if (skip := self._in_member(byte + at)) is not None:
                return Place(byte + at, skip)
            at = data.find(_MAGIC[self.compression], at + 1)
        return None

    def _in_member(self, byte: int) -> int | None:
        """How many bytes after this one, decompressed, a record begins; None: there is no member, or no record."""
        assert self.records is not None
        try:
            stream = open_stream(self.path, byte)
        except WirelagError:
            return None
        try:
            data = _filled(stream, LOOKED_AT)
        finally:
            stream.close()
        return self.records.first(data) if stream.compression and len(data) >= 4096 else None

    def time_ns(self, place: Place) -> int | None:
        """The time of the first packet there; None: none can be read."""
        assert self.records is not None
        try:
            for batch in PartFile(self.path, Part(place, head=self.records.head)):
                return int(batch.time_ns[0])
        except (WirelagError, SplitError):
            pass
        return None

    def parts(self, length: int, warm_ns: int, most_warm: int) -> list[Part]:
        """Parts of about this many bytes each, and what warms up each but the first."""
        many = max(1, round(self.size / length))
        begins = [Place(0)]
        for i in range(1, many):
            place = self.after(i * self.size // many)
            if place is not None and place.byte > begins[-1].byte:
                begins.append(place)
        ends: list[Place | None] = [*begins[1:], None]
        parts = []
        for begin, end in zip(begins, ends, strict=True):
            if not begin.byte:
                parts.append(Part(begin, end))
                continue
            assert self.records is not None
            parts.append(Part(begin, end, self.before(begin, warm_ns, most_warm), self.records.head))
        return parts

    def last(self) -> Place | None:
        """A place near the end of the file; None: it can only be read from its beginning, or is short."""
        return self.after(self.size - LOOKED_AT) if self.size > 2 * LOOKED_AT else None

    def from_place(self, place: Place) -> Part:
        """The rest of the file."""
        assert self.records is not None
        return Part(place, head=b"" if place == Place(0) else self.records.head)

    def before(self, place: Place, warm_ns: int, most_warm: int) -> Place:
        """A place earlier by this time, or by this many bytes if that is later; the beginning, if that is near."""
        until_ns = self.time_ns(place)
        back, found = LOOKED_AT, place
        while until_ns is not None:
            byte = place.byte - min(back, most_warm)
            if byte <= 0:
                return Place(0, len(self.records.head) if self.records else 0)
            earlier = self.after(byte)
            if earlier is not None and earlier.byte < found.byte:
                found = earlier
                since_ns = self.time_ns(found)
                if since_ns is None or until_ns - since_ns >= warm_ns:
                    break
            if back >= most_warm:
                break
            back *= 2
        return found


def _exactly(raw: Any, most: int) -> bytes:
    data = bytearray()
    while len(data) < most and (more := raw.read(min(most - len(data), 1 << 20))):
        data += more
    return bytes(data)


def _filled(stream: Any, most: int) -> bytes:
    """The first bytes of a stream."""
    room, got = memoryview(bytearray(most)), 0
    while got < most and (more := stream.readinto(room[got:])):
        got += more
    return bytes(room[:got])
