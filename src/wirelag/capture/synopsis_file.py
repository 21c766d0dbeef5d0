"""Files of synopses: what a point kept, for use elsewhere.

One line that names the format, then packed records (codec.py), each preceded by its length: the opening, one record per
interval and class, and the end with the counters. A truncated file yields its complete records, and a warning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from wirelag.capture.whole_file import whole_file
from wirelag.codec import pack, unpack
from wirelag.errors import WirelagError
from wirelag.protocol.terms import About

MAGIC: Final = b"wirelag synopsis\n"
_LENGTH: Final = struct.Struct("<I")
_MOST_BYTES: Final = 1 << 30


def is_synopsis_file(path: str) -> bool:
    """Whether a file starts like a file of synopses."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class SynopsisWriter:
    """Writes records as they come; the end of `with` writes the counters. What is not whole is removed."""

    def __init__(self, path: str, about: About) -> None:
        self.path = path
        self.bytes = 0
        self.records = 0
        self.counted: dict[str, Any] = {}
        with ExitStack() as files:
            self._file = files.enter_context(whole_file(path, "wb", "-o"))
            self._put(MAGIC)
            self._record(about.to_fields())
            self._open_files = files.pop_all()

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one interval of one class."""
        self._record(record)
        self.records += 1

    def _record(self, record: Mapping[str, Any]) -> None:
        body = pack(record)
        self._put(_LENGTH.pack(len(body)) + body)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self.bytes += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._open_files.callback(self._record, {"end": self.records, **self.counted})
        self._open_files.__exit__(kind, error, trace)


class SynopsisFile:
    """Reads a file of synopses: `about` first, then iterate over the records; then read `counted` and `warnings`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.counted: dict[str, Any] = {}
        self.warnings: list[str] = []
        self.whole = False  # True once its end was read
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise WirelagError(f"{path}: cannot read ({error.strerror})") from None
        self.bytes = len(data)
        if not data.startswith(MAGIC):
            raise WirelagError(f"{path}: not a file of synopses; make one with `wirelag cut`")
        self._parts = self._split(data)
        first = next(self._parts, None)
        if first is None:
            raise WirelagError(f"{path}: ends before its header is complete; cut it again")
        try:
            self.about = About.from_fields(first)
        except (ValueError, KeyError, TypeError) as error:
            raise WirelagError(f"{path}: {error}") from None

    def _split(self, data: bytes) -> Iterator[dict[str, Any]]:
        place = len(MAGIC)
        while place < len(data):
            start = place + _LENGTH.size
            length = _LENGTH.unpack_from(data, place)[0] if start <= len(data) else _MOST_BYTES
            if start + length > len(data):
                return
            try:
                yield unpack(data[start : start + length])
            except ValueError as error:
                raise WirelagError(f"{self.path}: the record at byte {place} {error}") from None
            place = start + length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for record in self._parts:
            if "end" in record:
                self.counted, self.whole = record, True
                return
            yield record
        self.warnings.append(f"{self.path}: the file is truncated; its complete records were read")
