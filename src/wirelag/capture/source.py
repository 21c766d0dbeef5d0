"""Any input as one source of packet batches: paths, globs, open files, an interface, batches."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from wirelag.capture.files import Capture
from wirelag.capture.pcap import CaptureStatistics
from wirelag.capture.streams import is_remote
from wirelag.errors import SettingError, WirelagError
from wirelag.packets.filters import Filter

if TYPE_CHECKING:
    from typing import IO, Protocol, TypeGuard

    from wirelag.packets.batch import PacketBatch

    class Statistics(Protocol):
        """How much was read."""

        @property
        def packets(self) -> int:
            """Packets, with or without a row."""

        @property
        def skipped(self) -> dict[str, int]:
            """Packets without a row, by reason."""

    class Packets(Protocol):
        """Packet batches, and their statistics."""

        def __iter__(self) -> Iterator[PacketBatch]:
            """The batches."""

        @property
        def statistics(self) -> Statistics:
            """What was read so far."""

        @property
        def warnings(self) -> list[str]:
            """What could not be read, one line each."""

        @property
        def names(self) -> list[str]:
            """Where the packets are from."""


PathOrFile: TypeAlias = "str | os.PathLike[str] | IO[bytes]"
PacketSource: TypeAlias = "PathOrFile | Sequence[PathOrFile] | Packets | Iterable[PacketBatch]"
"""A path, a glob, an open file, several of these, an interface, or packet batches (such as those of `wirelag.read`)."""

_LONGEST_NAME: Final = 15  # characters of an interface


def open_packets(
    source: PacketSource,
    *,
    filter: Filter | str | None = None,
    tunnels: bool = False,
    duration_ns: int | None = None,
    cores: int = 1,
) -> Packets:
    """The packets of a source. `duration_ns` is how long to listen at an interface."""
    filter = Filter.of(filter)
    if isinstance(source, str) and is_interface(source):
        if duration_ns is None:
            raise SettingError("duration", f"is missing: {source} is an interface; say how long to listen, such as 10s")
        return Listening(source, duration_ns, filter, tunnels)
    if duration_ns is not None:
        raise SettingError("duration", "is for interfaces; choose a part of a capture with a filter")
    if are_packets(source):
        _need_no(filter, tunnels)
        return source
    parts = _several(source)
    if isinstance(parts, _Batches) or (parts and _is_batch(parts[0])):
        _need_no(filter, tunnels)
        return Batches(parts.batches if isinstance(parts, _Batches) else parts)
    files = list_files(cast("Sequence[PathOrFile]", parts))
    return Capture([path for path, _ in files], names=dict(files), filter=filter, tunnels=tunnels, cores=cores)


class _Batches:
    """An iterable of batches that may be long: it is not listed."""

    def __init__(self, batches: Iterable[PacketBatch]) -> None:
        self.batches = batches


def _several(source: Any) -> Sequence[Any] | _Batches:
    """What a source consists of; a SettingError where it can be no source."""
    if _is_file(source) or (not isinstance(source, Sequence) and _is_batch(source)):
        return [source]
    if isinstance(source, bytes | bytearray | Mapping) or not isinstance(source, Iterable):
        raise SettingError(
            "source", f"{_shown(source)} is not a path, an open file, packet batches or several of these"
        )
    if isinstance(source, Sequence):
        return source
    first = next(rest := iter(source), None)
    if _is_batch(first):
        return _Batches(chain([cast("PacketBatch", first)], rest))
    return [] if first is None else [first, *rest]


def each_of(source: PathOrFile | Iterable[PathOrFile]) -> list[PathOrFile]:
    """The captures of a source, one or several."""
    found = _several(source)
    return list(found) if isinstance(found, Sequence) else []


def _is_file(thing: object) -> bool:
    return isinstance(thing, str | os.PathLike) or hasattr(thing, "read")


def are_packets(source: object) -> TypeGuard[Packets]:
    """Whether a source is packet batches with their statistics."""
    return all(hasattr(source, name) for name in ("__iter__", "statistics", "warnings", "names"))


def _is_batch(thing: object) -> bool:
    if _is_file(thing):  # then numpy is not needed
        return False
    from wirelag.packets.batch import PacketBatch

    return isinstance(thing, PacketBatch)


def _shown(thing: object) -> str:
    text = repr(thing)
    return text if len(text) <= 60 else text[:59] + "…"


def is_interface(name: str) -> bool:
    """Whether it is the name of an interface of this network namespace, and not that of a file."""
    if not name or "/" in name or len(name) > _LONGEST_NAME or os.path.exists(name):
        return False
    import socket  # /sys may show another namespace

    try:
        return socket.if_nametoindex(name) > 0
    except OSError:
        return False


def list_files(source: PathOrFile | Iterable[PathOrFile]) -> list[tuple[str, str]]:
    """The paths of captures, each with its name; globs are expanded, open files get a path.

    A file that is named twice is an error: its packets would count twice.
    """
    if are_packets(source):
        raise SettingError("source", "this question reads captures more than once: name their paths")
    several = _several(source)
    files: list[tuple[str, str]] = []
    for one in several if isinstance(several, Sequence) else ():
        if not _is_file(one):
            raise SettingError("source", f"{_shown(one)} is not a path or an open file")
        if not isinstance(one, str | os.PathLike):
            files.append(_path_of(one))
            continue
        text = os.fspath(one)
        if not text or "\0" in text:
            raise WirelagError(f"{text!r} is not the name of a file")
        found = [text] if os.path.exists(text) else _matching(text)  # a file may be called what looks like a pattern
        if not found:
            raise WirelagError(f"{text}: no file has such a name")
        files += [(path, "standard input" if path == "-" else path) for path in found]
    if not files:
        raise WirelagError("no capture given; name at least one file")
    _need_distinct(files)
    return files


def _matching(text: str) -> list[str]:
    """The files whose names match, or the text itself if it is no pattern."""
    if is_remote(text):
        from wirelag.capture.remote import matching

        return matching(text)
    from glob import glob, has_magic

    return sorted(glob(text)) if has_magic(text) else [text]


def _need_distinct(files: Sequence[tuple[str, str]]) -> None:
    seen: dict[tuple[int, int], str] = {}
    urls: set[str] = set()
    for path, name in files:
        if is_remote(path):
            if path in urls:
                raise WirelagError(f"{name} is named twice: its packets would count twice; name it once")
            urls.add(path)
            continue
        try:
            found = os.stat(path)
        except OSError:
            continue  # whoever opens it says why
        place = found.st_dev, found.st_ino
        if stat.S_ISREG(found.st_mode) and place in seen:
            raise WirelagError(f"{name} is the same file as {seen[place]}: its packets would count twice; name it once")
        seen[place] = name


def _path_of(file: IO[bytes]) -> tuple[str, str]:
    """A path to an open file, from its beginning where it has one; what has no descriptor is copied to a file."""
    name = getattr(file, "name", None)
    name = name if isinstance(name, str) else "open file"
    if getattr(file, "closed", False):
        raise SettingError("source", f"{name} is closed")
    try:
        return f"/proc/self/fd/{file.fileno()}", name
    except OSError:
        import shutil
        import tempfile

        spool = tempfile.NamedTemporaryFile(prefix="wirelag-")  # noqa: SIM115
        try:
            shutil.copyfileobj(file, spool)
        except TypeError:
            raise SettingError("source", f"{name} is open as text: open it as bytes") from None
        spool.flush()
        _SPOOLS.append(spool)
        return spool.name, name


_SPOOLS: Final[list[Any]] = []  # kept open, so on disk, until the program ends


def _need_no(filter: Filter, tunnels: bool) -> None:
    if tunnels or filter != Filter():
        raise WirelagError("these packets are already read: pass filter and tunnels to wirelag.read")


class Batches:
    """Packet batches from the caller."""

    names: list[str]
    warnings: list[str]

    def __init__(self, batches: Iterable[PacketBatch]) -> None:
        self._batches = batches
        self.names, self.warnings = ["packet batches"], []
        self.statistics = CaptureStatistics()

    def __iter__(self) -> Iterator[PacketBatch]:
        for batch in self._batches:
            self.statistics.packets += len(batch)
            yield batch


class Listening:
    """An interface, captured for some time."""

    def __init__(self, interface: str, duration_ns: int, filter: Filter, tunnels: bool) -> None:
        from wirelag.capture.live import Live

        self.names = [interface]
        self._duration_ns = duration_ns
        self._live = Live(interface, filter=filter.expression or None, wanted=filter, tunnels=tunnels)

    def __iter__(self) -> Iterator[PacketBatch]:
        with self._live as live:
            for batch in live:
                yield batch
                if live.now_ns() >= (live.began_ns or 0) + self._duration_ns:
                    live.stop()

    @property
    def statistics(self) -> Statistics:
        """What was seen so far."""
        return self._live.statistics

    @property
    def warnings(self) -> list[str]:
        """What was dropped."""
        dropped = self._live.statistics.dropped
        return [f"{self.names[0]}: {dropped:,} packets were dropped before they could be read"] if dropped else []
