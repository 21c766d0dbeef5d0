"""What tasks have returned, in a file: a run that was broken off goes on where it was.

Law: a record is the name of a task (a hash of all that its result depends on), the length of its result, its SHA-256
and the result; records are appended. A file that breaks off within a record is read up to there. Results are read with
an unpickler that makes nothing but numbers, arrays and values of wirelag.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
from typing import Any, Final

import zstandard

from wirelag.errors import WirelagError

_MAGIC: Final = b"wirelag finished 1\n"
_RECORD: Final = struct.Struct("<32sQ32s")  # task, length, hash of the result
_OTHERS: Final = {
    ("builtins", "set"), ("builtins", "frozenset"), ("collections", "Counter"), ("collections", "OrderedDict"),
    ("numpy", "ndarray"), ("numpy", "dtype"), ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"), ("numpy._core.numeric", "_frombuffer"),
    ("wirelag.stats.distribution", "_travelled"), ("wirelag.stats.random_groups", "_of_held"),
    ("wirelag.synopses.group_delays", "_saved"),
}  # fmt: skip


def packed(value: Any) -> bytes:
    """A value as bytes."""
    return zstandard.compress(pickle.dumps(value, protocol=5), 1)


def unpacked(data: bytes) -> Any:
    """The value again."""
    return _Values(io.BytesIO(zstandard.ZstdDecompressor().decompress(data))).load()


class _Values(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """What may be made: nothing that runs something else."""
        if (module, name) in _OTHERS:
            return super().find_class(module, name)
        if "." not in name and module.startswith("wirelag."):
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:  # not what that module imports
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no value of wirelag")


def name_of(*what: Any) -> bytes:
    """The name of a task: a hash of all that its result depends on; another version may have another result."""
    from wirelag import __version__

    return hashlib.sha256(pickle.dumps((__version__, what), protocol=5)).digest()


class Finished:
    """Results of tasks, in a file that only grows."""

    def __init__(self, path: str | None = None) -> None:
        self.path, self.named = path, path is not None
        if path is None:
            import tempfile

            number, self.path = tempfile.mkstemp(prefix="wirelag-", suffix=".resume")
            self._file = open(number, "r+b", buffering=0)  # noqa: SIM115
        else:
            try:
                self._file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)  # noqa: SIM115
            except OSError as error:
                raise WirelagError(f"{path}: cannot be opened ({error.strerror}); choose another --resume") from None
        self._places: dict[bytes, tuple[int, int]] = {}
        self._end = len(_MAGIC)
        try:
            self._read()
        except WirelagError:
            self.close(keep=False)
            raise

    def _read(self) -> None:
        head = self._file.read(len(_MAGIC))
        if not head:
            self._write(_MAGIC)
            return
        if head != _MAGIC:
            raise WirelagError(f"{self.path}: this is no file of finished tasks; choose another --resume")
        size = os.fstat(self._file.fileno()).st_size
        while len(record := self._file.read(_RECORD.size)) == _RECORD.size:
            name, length, digest = _RECORD.unpack(record)
            start = self._file.tell()
            if start + length > size or hashlib.sha256(self._file.read(length)).digest() != digest:
                break
            self._places[name] = start, length
            self._end = start + length
        self._file.truncate(self._end)

    def __contains__(self, name: bytes) -> bool:
        return name in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, name: bytes, result: bytes) -> None:
        """Keep a result."""
        self._file.seek(self._end)
        self._write(_RECORD.pack(name, len(result), hashlib.sha256(result).digest()) + result)
        self._places[name] = self._end + _RECORD.size, len(result)
        self._end = self._file.tell()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            way_out = (
                "free some space, and run the same command again"
                if self.named
                else "name one elsewhere with --resume FILE"
            )
            raise WirelagError(f"{self.path}: cannot keep what is finished ({error.strerror}); {way_out}") from None

    def result(self, name: bytes) -> Any:
        """The value of a task."""
        start, length = self._places[name]
        self._file.seek(start)
        return unpacked(self._file.read(length))

    def close(self, keep: bool) -> None:
        """Close the file; one that nobody named stays only if it is needed again."""
        self._file.close()
        if not keep and not self.named:
            os.unlink(str(self.path))
