"""The spool: messages that wait on disk, one file each, in order of arrival.

Law: once `put` has returned, the message survives a crash of the process or the machine; a file under its final name is
complete. The files never take more than `most_bytes`: the oldest are dropped first, and counted.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import Final

from wirelag.errors import WirelagError

_NAME: Final = re.compile(r"(\d{20})-([\w-]+)\.message")
_UNFINISHED: Final = ".unfinished"
_BLOCK: Final = 4096  # file sizes on disk are multiples of this


class Spool:
    """A directory that belongs to one process at a time."""

    def __init__(self, directory: str | Path, most_bytes: int = 1 << 30) -> None:
        self.directory = Path(directory)
        self.most_bytes = most_bytes
        self.bytes = 0
        self.dropped = 0
        self._sizes: dict[str, int] = {}  # by name, oldest first
        self._keys: set[str] = set()
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise self._cannot(error) from None
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self.directory / _UNFINISHED).unlink(missing_ok=True)
            for path in sorted(self.directory.iterdir()):
                if found := _NAME.fullmatch(path.name):
                    self._add(path.name, found[2], path.stat().st_size)
        except BlockingIOError:
            os.close(self._folder)
            raise WirelagError(f"{self.directory}: another agent spools here; give each its own directory") from None
        except OSError as error:
            os.close(self._folder)
            raise self._cannot(error) from None
        self._number = int(next(reversed(self._sizes))[:20]) if self._sizes else 0
        self._make_room(0)

    @property
    def names(self) -> list[str]:
        """The waiting messages, oldest first."""
        return list(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def put(self, data: bytes, key: str) -> str | None:
        """Store a message and return its name; None if one with this key waits already."""
        if key in self._keys:
            return None
        name = f"{self._number + 1:020}-{key}.message"
        if not _NAME.fullmatch(name):
            raise ValueError(f"{key!r} is not the key of a message")
        if _taken(len(data)) > self.most_bytes:
            self.dropped += 1
            raise WirelagError(
                f"{self.directory}: a message of {len(data)} bytes is larger than the spool ({self.most_bytes} bytes)"
            )
        self._make_room(_taken(len(data)))
        unfinished = self.directory / _UNFINISHED
        try:
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self.directory / name)
            os.fsync(self._folder)
        except OSError as error:
            raise self._cannot(error) from None
        self._number += 1
        self._add(name, key, len(data))
        return name

    def read(self, name: str) -> bytes | None:
        """A message, or None if it is gone."""
        if name not in self._sizes:
            return None
        try:
            return (self.directory / name).read_bytes()
        except FileNotFoundError:
            self._forget(name)
            return None
        except OSError as error:
            raise self._cannot(error) from None

    def remove(self, name: str) -> None:
        """Remove a delivered message. After a crash it may reappear: it is then delivered twice, and counted once."""
        if name not in self._sizes:
            return
        try:
            (self.directory / name).unlink(missing_ok=True)
        except OSError as error:
            raise self._cannot(error) from None
        self._forget(name)

    def close(self) -> None:
        """Release the directory for another process."""
        os.close(self._folder)

    def _make_room(self, wanted: int) -> None:
        while self.bytes + wanted > self.most_bytes and self._sizes:
            self.remove(next(iter(self._sizes)))
            self.dropped += 1

    def _add(self, name: str, key: str, size: int) -> None:
        self._sizes[name] = _taken(size)
        self._keys.add(key)
        self.bytes += _taken(size)

    def _forget(self, name: str) -> None:
        self.bytes -= self._sizes.pop(name)
        if found := _NAME.fullmatch(name):
            self._keys.discard(found[2])

    def _cannot(self, error: OSError) -> WirelagError:
        return WirelagError(f"{self.directory}: cannot spool here ({error.strerror}); choose another --spool")


def _taken(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK or _BLOCK


def key_of(name: str) -> str:
    """The key of the message of this name."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not the name of a message")
    return found[2]
