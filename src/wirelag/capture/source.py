"""Any input as one source of packet batches: paths, globs, open files, an interface, batches."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeAlias, runtime_checkable

from wirelag.capture.files import Capture
from wirelag.capture.pcap import CaptureStatistics
from wirelag.errors import WirelagError
from wirelag.packets.batch import PacketBatch
from wirelag.packets.filters import Filter

PathOrFile: TypeAlias = str | os.PathLike[str] | IO[bytes]
PacketSource: TypeAlias = "PathOrFile | Sequence[PathOrFile] | Packets | Iterable[PacketBatch]"
"""A path, a glob, an open file, several of these, an interface, or packet batches (such as those of `wirelag.read`)."""

_INTERFACES: Final = Path("/sys/class/net")
_LIVE_NEEDS: Final = "give a time to capture: duration='10s'"


class Statistics(Protocol):
    """How much was read."""

    @property
    def packets(self) -> int:
        """Packets, with or without a row."""

    @property
    def skipped(self) -> dict[str, int]:
        """Packets without a row, by reason."""


@runtime_checkable
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


def open_packets(
    source: PacketSource, *, filter: Filter | None = None, tunnels: bool = False, duration_ns: int | None = None
) -> Packets:
    """The packets of a source. `duration_ns` is how long to capture at an interface."""
    if isinstance(source, Packets):
        _need_no(filter, tunnels)
        return source
    if isinstance(source, str) and is_interface(source):
        if duration_ns is None:
            raise WirelagError(f"{source}: {_LIVE_NEEDS}")
        return Listening(source, duration_ns, filter, tunnels)
    if not isinstance(source, str | os.PathLike) and not hasattr(source, "read"):
        listed = source if isinstance(source, Sequence) else None
        if listed is None or any(isinstance(part, PacketBatch) for part in listed):
            _need_no(filter, tunnels)
            return Batches(source)  # type: ignore[arg-type]
    files = list_files(source)  # type: ignore[arg-type]
    return Capture(list(files), names=files, filter=filter, tunnels=tunnels)


def is_interface(name: str) -> bool:
    """Whether a name is that of an interface, not of a file."""
    return "/" not in name and (_INTERFACES / name).is_dir() and not os.path.exists(name)


def list_files(source: PathOrFile | Sequence[PathOrFile]) -> Mapping[str, str]:
    """The paths of captures, each with its name; globs are expanded, open files get a path."""
    files: dict[str, str] = {}
    several = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    for one in several:
        if not isinstance(one, str | os.PathLike):
            path, name = _path_of(one)
            files[path] = name
            continue
        text = os.fspath(one)
        found = sorted(glob.glob(text)) if glob.has_magic(text) and not os.path.exists(text) else [text]
        if not found:
            raise WirelagError(f"{text}: no such file")
        files |= {path: "standard input" if path == "-" else path for path in found}
    return files


def _path_of(file: IO[bytes]) -> tuple[str, str]:
    """A path to an open file, rewound if possible; a file without a descriptor is copied."""
    name = str(getattr(file, "name", "open file"))
    try:
        return f"/proc/self/fd/{file.fileno()}", name
    except OSError:
        spool = tempfile.NamedTemporaryFile(prefix="wirelag-")  # noqa: SIM115
        shutil.copyfileobj(file, spool)
        spool.flush()
        _SPOOLS.append(spool)
        return spool.name, name


_SPOOLS: Final[list[Any]] = []  # kept open, so on disk, until the program ends


def _need_no(filter: Filter | None, tunnels: bool) -> None:
    if tunnels or filter not in (None, Filter()):
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

    def __init__(self, interface: str, duration_ns: int, filter: Filter | None, tunnels: bool) -> None:
        from wirelag.capture.live import Live

        self.names = [interface]
        self._duration_ns = duration_ns
        self._live = Live(interface, wanted=filter, tunnels=tunnels)

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
