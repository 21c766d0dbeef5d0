"""The spool: messages that wait on disk, in order of arrival; those that came together share a file, and one fsync.

Law: once `put` has returned, the message survives a crash of the process or the machine; a file under its final name is
complete. The files never take more than `most_bytes`: the oldest are dropped first, and counted. While the disk fails
(full, read-only, I/O errors), `problem` says so, new messages are kept in memory (HELD_BYTES at most), and what was
delivered is forgotten although its file stays; once it works again, files and memory are brought in line. On a full
disk, too, the newest are kept: if memory is full as well, the oldest files make room, as far as that helps. No message
is forgotten whose file cannot be removed. If others remove the directory, it is made anew, and what was in it is
counted as dropped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from wirelag.errors import WirelagError

HELD_BYTES: Final = 32 << 20  # of messages in memory while the disk fails
MOST_TOGETHER: Final = 8 << 20  # bytes of messages in one file
_NAME: Final = re.compile(r"(\d{20})-([\w-]+)\.message")
_TOGETHER: Final = re.compile(r"(\d{20})-(\d{1,6})\.messages")
_ENTRY: Final = re.compile(r"([\w-]+):(\d{1,10})")
_UNFINISHED: Final = ".unfinished"
_DAMAGED: Final = ".damaged"
_BLOCK: Final = 4096  # file sizes on disk are multiples of this
_MOST_OPENING: Final = 1 << 20  # bytes of the line that lists the messages of a file
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_PASSING: Final = {*_FULL, errno.EROFS, errno.EIO}


@dataclass(slots=True)
class _File:
    """A file: its size on disk, since when it waits, and where its messages are that still wait."""

    size: int
    since_s: float
    places: dict[str, tuple[int, int]] = field(default_factory=dict)  # by name: offset and length


class Spool:
    """A directory that belongs to one process at a time."""

    def __init__(self, directory: str | Path, most_bytes: int = 1 << 30) -> None:
        self.directory = Path(directory)
        self.most_bytes = most_bytes
        self.bytes = 0  # of files
        self.dropped = 0
        self.removed = 0  # of these, those whose files others have removed
        self.damaged: list[str] = []  # files that were damaged when the spool was opened
        self.problem: str | None = None  # of the disk, now
        self._files: dict[str, _File] = {}  # oldest first
        self._in: dict[str, str] = {}  # the file of each message, oldest first
        self._held: dict[str, bytes] = {}  # messages in memory, by name
        self._held_since_s = 0.0
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
                self._find(path)
        except BlockingIOError:
            os.close(folder)
            raise WirelagError(f"{self.directory}: another agent spools here; give each its own directory") from None
        except OSError:
            os.close(folder)
            raise
        self._folder = folder
        self._number = max([self._number, *(int(name[:20]) for name in self._in)])
        try:
            (self.directory / _UNFINISHED).unlink(missing_ok=True)
        except OSError as error:
            self._fails(error)
        self._make_room(0)

    def _find(self, path: Path) -> None:
        """Take a file of an earlier process."""
        if found := _NAME.fullmatch(path.name):
            listed = [(path.name, found[2], path.stat().st_size)]
            self._add(path.name, path.stat().st_size, listed, 0, _since_s(path))
        elif found := _TOGETHER.fullmatch(path.name):
            size = path.stat().st_size
            opening = _opening(path)
            parts = _listed(opening, int(found[1]))
            if len(parts) != int(found[2]) or len(opening) + sum(length for _, _, length in parts) != size:
                self.damaged.append(path.name)
                self.dropped += int(found[2])
                path.rename(path.with_name(path.name + _DAMAGED))
                return
            self._add(path.name, size, parts, len(opening), _since_s(path))

    @property
    def names(self) -> list[str]:
        """The waiting messages, oldest first."""
        return sorted([*self._in, *self._held]) if self._held else list(self._in)

    def __len__(self) -> int:
        return len(self._in) + len(self._held)

    @property
    def waited_s(self) -> float:
        """How long the oldest message has waited; 0 without any."""
        oldest = [file.since_s for file in self._files.values()][:1] + ([self._held_since_s] if self._held else [])
        return max(0.0, time.monotonic() - min(oldest)) if oldest else 0.0

    def fits(self, data: bytes) -> bool:
        """Whether a message is small enough for this spool."""
        return _taken(len(data)) <= self.most_bytes

    def put(self, data: bytes, key: str) -> str | None:
        """Store a message and return its name; None if one with this key waits already."""
        return self.put_all([(data, key)])[0]

    def put_all(self, messages: Sequence[tuple[bytes, str]]) -> list[str | None]:
        """Store messages, as many as possible in one file, and return their names; None for those that wait already."""
        if large := next((data for data, _ in messages if not self.fits(data)), None):
            self.dropped += 1
            raise WirelagError(
                f"{self.directory}: a message of {len(large)} bytes is larger than the spool ({self.most_bytes} bytes)"
            )
        if self._folder is not None and not self._is_there(self._folder):
            self._begin_anew(self._folder)
        names: list[str | None] = []
        new: list[tuple[str, str, bytes]] = []
        for data, key in messages:
            if key in self._keys or any(key == other for _, other, _ in new):
                names.append(None)
                continue
            name = f"{self._number + 1:020}-{key}.message"
            if not _NAME.fullmatch(name):
                raise ValueError(f"{key!r} is not the key of a message")
            self._number += 1
            names.append(name)
            new.append((name, key, data))
        for some in _together(new, min(MOST_TOGETHER, self.most_bytes)):
            self._store(some)
        return names

    def _store(self, some: list[tuple[str, str, bytes]]) -> None:
        try:
            self._write(some)
        except OSError as error:
            self._fails(error)
            for name, key, data in some:
                self._hold(name, key, data, error.errno in _FULL)
            return
        self._recover()

    def read(self, name: str) -> bytes | None:
        """A message, or None if it is gone, or cannot be read: then it stays on disk for the next start."""
        if name in self._held:
            return self._held[name]
        if name not in self._in:
            return None
        where = self._in[name]
        offset, length = self._files[where].places[name]
        try:
            with (self.directory / where).open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except FileNotFoundError:
            self._forget(name)
            self._count_removed(1)
        except OSError as error:
            self._fails(error)
            self._forget(name)
        return None

    def remove(self, name: str) -> None:
        """Remove a delivered message. After a crash it may reappear: it is then delivered twice, and counted once."""
        if self._held.pop(name, None) is not None:
            self._keys.discard(key_of(name))
            return
        where = self._in.get(name)
        if where is None:
            return
        size = self._forget(name)
        if size is None:
            return  # others in the same file still wait
        try:
            (self.directory / where).unlink(missing_ok=True)
        except OSError as error:
            self._fails(error)
            self._left[where] = size
            self.bytes += size

    def close(self) -> None:
        """Release the directory for another process."""
        if self._folder is not None:
            fcntl.flock(self._folder, fcntl.LOCK_UN)  # a program that is being started still has a copy of the file
            os.close(self._folder)

    # ---- files ----

    def _write(self, some: Sequence[tuple[str, str, bytes]]) -> None:
        if self._folder is None:
            self._open()
        assert self._folder is not None
        opening, name = b"", some[0][0]
        if len(some) > 1:
            opening = " ".join(f"{key}:{len(data)}" for _, key, data in some).encode() + b"\n"
            name = f"{some[0][0][:20]}-{len(some)}.messages"
        size = len(opening) + sum(len(data) for _, _, data in some)
        self._make_room(_taken(size))
        unfinished = self.directory / _UNFINISHED
        try:
            with unfinished.open("wb") as file:
                file.write(opening)
                file.writelines(data for _, _, data in some)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self.directory / name)
            os.fsync(self._folder)
        except OSError:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        listed = [(each, key, len(data)) for each, key, data in some]
        self._add(name, size, listed, len(opening), time.monotonic())

    def _is_there(self, folder: int) -> bool:
        """Whether the directory is the one that this process has locked."""
        try:
            return os.stat(self.directory).st_ino == os.fstat(folder).st_ino
        except OSError as error:
            return error.errno != errno.ENOENT  # other errors meet the write, too

    def _begin_anew(self, folder: int) -> None:
        """Forget what was in a directory that others have removed."""
        os.close(folder)
        self._folder = None
        self._count_removed(len(self._in))
        self._keys = {key_of(name) for name in self._held}
        self._files, self._in, self._left, self.bytes = {}, {}, {}, 0

    def _count_removed(self, count: int) -> None:
        self.removed += count
        self.dropped += count

    def _recover(self) -> None:
        """After a successful write: remove what was left, and write what is in memory."""
        try:
            for name in list(self._left):
                (self.directory / name).unlink(missing_ok=True)
                self.bytes -= self._left.pop(name)
            held = [(name, key_of(name), data) for name, data in self._held.items()]
            for some in _consecutive(held, min(MOST_TOGETHER, self.most_bytes)):
                self._write(some)
                for name, _, _ in some:
                    del self._held[name]
        except OSError as error:
            self._fails(error)
            return
        if self.problem is not None:
            self._files = dict(sorted(self._files.items()))
            self._in = dict(sorted(self._in.items()))
        self.problem = None

    def _make_room(self, wanted: int) -> None:
        while self.bytes + wanted > self.most_bytes and self._drop_oldest():
            pass

    def _drop_oldest(self) -> bool:
        """Remove the oldest file; False if there is none. If it cannot be removed, its messages stay."""
        where = next(chain(self._files, self._left), None)
        if where is None:
            return False
        (self.directory / where).unlink(missing_ok=True)
        if where in self._left:
            self.bytes -= self._left.pop(where)
            return True
        for name in list(self._files[where].places):
            self._forget(name)
            self.dropped += 1
        return True

    # ---- memory ----

    def _hold(self, name: str, key: str, data: bytes, disk_full: bool) -> None:
        """Keep a message in memory; if memory and disk are full, the oldest goes, wherever it is."""
        self._held_since_s = time.monotonic() if not self._held else self._held_since_s
        self._held[name] = data
        self._keys.add(key)
        while sum(map(len, self._held.values())) > min(HELD_BYTES, self.most_bytes):
            if disk_full and self._files and self._moved():
                continue
            self.remove(next(iter(self._held)))
            self.dropped += 1

    def _moved(self) -> bool:
        """Move the oldest message in memory to the full disk, where the oldest files make room, if they have enough."""
        name, data = next(iter(self._held.items()))
        wanted, before = _taken(len(data)) + 2 * _BLOCK, self.bytes
        with suppress(OSError):
            while self.bytes >= wanted and before - self.bytes < wanted and self._drop_oldest():
                pass
            if before - self.bytes >= wanted:
                self._write([(name, key_of(name), data)])
                del self._held[name]
                return True
        return False

    def _add(self, name: str, size: int, listed: Iterable[tuple[str, str, int]], offset: int, since_s: float) -> None:
        file = self._files[name] = _File(_taken(size), since_s)
        self.bytes += file.size
        for each, key, length in listed:
            file.places[each] = offset, length
            offset += length
            self._in[each] = name
            self._keys.add(key)

    def _forget(self, name: str) -> int | None:
        """Forget a message; returns the size of its file if no other of it waits."""
        where = self._in.pop(name)
        self._keys.discard(key_of(name))
        del self._files[where].places[name]
        if self._files[where].places:
            return None
        size = self._files.pop(where).size
        self.bytes -= size
        return size

    def _fails(self, error: OSError) -> None:
        self.problem = (
            f"{self.directory}: cannot be used as a spool ({error.strerror}); messages wait in memory, "
            f"{HELD_BYTES >> 20} MiB at most"
        )

    def _cannot(self, error: OSError) -> WirelagError:
        return WirelagError(f"{self.directory}: cannot spool here ({error.strerror}); choose another --spool")


def _together(new: Iterable[tuple[str, str, bytes]], most: int) -> Iterator[list[tuple[str, str, bytes]]]:
    """Messages that fit into one file; a list of them counts as well."""
    some: list[tuple[str, str, bytes]] = []
    size = 0
    for one in new:
        more = len(one[1]) + 12 + len(one[2])
        if some and size + more > most - _BLOCK:
            yield some
            some, size = [], 0
        some.append(one)
        size += more
    if some:
        yield some


def _consecutive(held: list[tuple[str, str, bytes]], most: int) -> Iterator[list[tuple[str, str, bytes]]]:
    """The same for messages of which some may be gone: numbers in a file follow each other."""
    runs: list[list[tuple[str, str, bytes]]] = []
    for one in held:
        if runs and int(one[0][:20]) == int(runs[-1][-1][0][:20]) + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    return chain.from_iterable(_together(each, most) for each in runs)


def _opening(path: Path) -> bytes:
    """The first line of a file of several messages; empty if it is damaged."""
    with path.open("rb") as file:
        line = file.readline(_MOST_OPENING)
    return line if line.endswith(b"\n") else b""


def _listed(opening: bytes, number: int) -> list[tuple[str, str, int]]:
    """Names, keys and lengths of the messages in a file; as far as they can be read."""
    entries = [_ENTRY.fullmatch(word) for word in opening.decode("ascii", "replace").split()]
    return [
        (f"{number + at:020}-{entry[1]}.message", entry[1], int(entry[2]))
        for at, entry in enumerate(entries)
        if entry is not None
    ]


def _since_s(path: Path) -> float:
    """Since when a file of an earlier process waits, by the clock that is never set."""
    return time.monotonic() - max(0.0, time.time() - path.stat().st_mtime)


def _taken(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK or _BLOCK


def key_of(name: str) -> str:
    """The key of the message of this name."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not the name of a message")
    return found[2]
