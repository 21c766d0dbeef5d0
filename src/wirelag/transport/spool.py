"""The spool: messages that wait on disk, one file each, in order of arrival.

Law: once `put` has returned, the message survives a crash of the process or the machine; a file under its final name is
complete. The files never take more than `most_bytes`: the oldest are dropped first, and counted. While the disk fails
(full, read-only, I/O errors), `problem` says so, new messages are kept in memory (HELD_BYTES at most), and what was
delivered is forgotten although its file stays; once it works again, files and memory are brought in line.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from wirelag.errors import WirelagError

HELD_BYTES: Final = 32 << 20  # of messages in memory while the disk fails
_NAME: Final = re.compile(r"(\d{20})-([\w-]+)\.message")
_UNFINISHED: Final = ".unfinished"
_BLOCK: Final = 4096  # file sizes on disk are multiples of this
_PASSING: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


class Spool:
    """A directory that belongs to one process at a time."""

    def __init__(self, directory: str | Path, most_bytes: int = 1 << 30) -> None:
        self.directory = Path(directory)
        self.most_bytes = most_bytes
        self.bytes = 0  # of files
        self.dropped = 0
        self.problem: str | None = None  # of the disk, now
        self._sizes: dict[str, int] = {}  # by name, oldest first
        self._held: dict[str, bytes] = {}  # messages in memory, by name
        self._left: dict[str, int] = {}  # files of delivered messages that could not be removed
        self._keys: set[str] = set()
        self._number = 0
        self._folder: int | None = None
        try:
            self._open()
        except OSError as error:
            if error.errno not in _PASSING:
                raise self._cannot(error) from None
            self._fails(error)

    def _open(self) -> None:
        """Take the directory and what is in it."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in sorted(self.directory.iterdir()):
                if found := _NAME.fullmatch(path.name):
                    self._add(path.name, found[2], path.stat().st_size)
        except BlockingIOError:
            os.close(folder)
            raise WirelagError(f"{self.directory}: another agent spools here; give each its own directory") from None
        except OSError:
            os.close(folder)
            raise
        self._folder = folder
        self._number = max([self._number, *(int(name[:20]) for name in self._sizes)])
        try:
            (self.directory / _UNFINISHED).unlink(missing_ok=True)
        except OSError as error:
            self._fails(error)
        self._make_room(0)

    @property
    def names(self) -> list[str]:
        """The waiting messages, oldest first."""
        return sorted([*self._sizes, *self._held]) if self._held else list(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes) + len(self._held)

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
        self._number += 1
        try:
            self._write(name, data)
        except OSError as error:
            self._fails(error)
            self._hold(name, key, data)
            return name
        self._recover()
        return name

    def read(self, name: str) -> bytes | None:
        """A message, or None if it is gone, or cannot be read: then it stays on disk for the next start."""
        if name in self._held:
            return self._held[name]
        if name not in self._sizes:
            return None
        try:
            return (self.directory / name).read_bytes()
        except FileNotFoundError:
            self._forget(name)
        except OSError as error:
            self._fails(error)
            self._forget(name)
        return None

    def remove(self, name: str) -> None:
        """Remove a delivered message. After a crash it may reappear: it is then delivered twice, and counted once."""
        if self._held.pop(name, None) is not None:
            self._keys.discard(key_of(name))
            return
        size = self._sizes.get(name)
        if size is None:
            return
        self._forget(name)
        try:
            (self.directory / name).unlink(missing_ok=True)
        except OSError as error:
            self._fails(error)
            self._left[name] = size
            self.bytes += size

    def close(self) -> None:
        """Release the directory for another process."""
        if self._folder is not None:
            os.close(self._folder)

    # ---- files ----

    def _write(self, name: str, data: bytes) -> None:
        if self._folder is None:
            self._open()
        assert self._folder is not None
        self._make_room(_taken(len(data)))
        unfinished = self.directory / _UNFINISHED
        try:
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self.directory / name)
            os.fsync(self._folder)
        except OSError:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        self._add(name, key_of(name), len(data))

    def _recover(self) -> None:
        """After a successful write: remove what was left, and write what is in memory."""
        try:
            for name in list(self._left):
                (self.directory / name).unlink(missing_ok=True)
                self.bytes -= self._left.pop(name)
            for name in list(self._held):
                self._write(name, self._held[name])
                del self._held[name]
        except OSError as error:
            self._fails(error)
            return
        self._sizes = dict(sorted(self._sizes.items())) if self.problem is not None else self._sizes
        self.problem = None

    def _make_room(self, wanted: int) -> None:
        while self.bytes + wanted > self.most_bytes:
            if self._sizes:
                self.remove(next(iter(self._sizes)))
                self.dropped += 1
            elif self._left:
                name = next(iter(self._left))
                (self.directory / name).unlink(missing_ok=True)
                self.bytes -= self._left.pop(name)
            else:
                return

    # ---- memory ----

    def _hold(self, name: str, key: str, data: bytes) -> None:
        self._held[name] = data
        self._keys.add(key)
        while sum(map(len, self._held.values())) > min(HELD_BYTES, self.most_bytes):
            self.remove(next(iter(self._held)))
            self.dropped += 1

    def _add(self, name: str, key: str, size: int) -> None:
        self._sizes[name] = _taken(size)
        self._keys.add(key)
        self.bytes += _taken(size)

    def _forget(self, name: str) -> None:
        self.bytes -= self._sizes.pop(name)
        self._keys.discard(key_of(name))

    def _fails(self, error: OSError) -> None:
        self.problem = (
            f"{self.directory}: cannot be used as a spool ({error.strerror}); messages wait in memory, "
            f"{HELD_BYTES >> 20} MiB at most"
        )

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
