"""One or several capture files as one source of packet batches, in order of time or one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Literal

from wirelag.capture.pcap import CaptureFile, CaptureStatistics
from wirelag.capture.streams import STANDARD_INPUT
from wirelag.errors import WirelagError
from wirelag.packets.filters import EARLIEST_NS, LATEST_NS, Filter

if TYPE_CHECKING:
    from wirelag.capture.pcap import Into, Take
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.packet_id import PacketId

Order = Literal["time", "given"]


class Capture:
    """Capture files read as one: iterate over it for packet batches; then read `statistics` and `warnings`.

    With `order="time"`, files are merged by capture time, whatever their names (rotated sets, several interfaces);
    packets of one file keep their order. With `order="given"`, files follow one another. With two `cores` or more, a
    thread reads ahead. What `take` makes of each batch, or how many packets went `into` something, comes instead of
    the batch; it is that thread that does it, if there is one file.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        filter: Filter | str | None = None,
        packet_id: PacketId | None = None,
        tunnels: bool = False,
        follow: bool = False,
        order: Order = "time",
        names: Mapping[str, str] | None = None,
        cores: int = 1,
        take: Take | None = None,
        into: Into | None = None,
    ) -> None:
        if not paths:
            raise WirelagError("no capture given; name at least one file")
        if len(paths) > 1 and follow:
            raise WirelagError("only one growing capture can be followed at a time")
        if paths.count(STANDARD_INPUT) > 1 or (len(paths) > 1 and STANDARD_INPUT in paths and order == "time"):
            raise WirelagError("standard input cannot be merged by time with other captures: use it alone")
        filter = Filter.of(filter)
        self.order, self._take = order, take if into is None else into.observe
        self.ended = False  # whether all of it was read
        self.first_ns: list[int | None] = [_first_ns(path) for path in paths] if len(paths) > 1 else [None]
        if len(paths) > 1 and filter.relative:
            filter = absolute(filter, self.first_ns)
        self.files = [
            CaptureFile(
                path,
                filter=filter,
                packet_id=packet_id,
                tunnels=tunnels,
                follow=follow,
                name=names.get(path) if names else None,
                cores=cores,
                take=take if len(paths) == 1 else None,
                into=into if len(paths) == 1 else None,
            )
            for path in paths
        ]

    def __iter__(self) -> Iterator[PacketBatch]:
        self.ended = False
        if len(self.files) == 1:
            yield from self.files[0]
        else:
            batches = self._one_after_the_other()
            yield from batches if self._take is None else map(self._take, batches)
        self.ended = True

    def _one_after_the_other(self) -> Iterator[PacketBatch]:
        if self.order == "time":
            from wirelag.capture.merging import in_order_of_time

            return in_order_of_time(self.files, [ns or 0 for ns in self.first_ns])
        return chain.from_iterable(self.files)

    @property
    def statistics(self) -> CaptureStatistics:
        """Counts over all files so far."""
        return reduce(CaptureStatistics.__add__, (file.statistics for file in self.files))

    @property
    def names(self) -> list[str]:
        """What the files are called."""
        return [file.name for file in self.files]

    @property
    def warnings(self) -> list[str]:
        """Warnings about what could not be read, one line each."""
        return [line for file in self.files for line in file.warnings]

    @property
    def progress(self) -> float | None:
        """The share of all files that has been read, from 0 to 1, if known."""
        parts = [file.progress for file in self.files]
        known = [part for part in parts if part is not None]
        return sum(known) / len(parts) if len(known) == len(parts) else None


def one_file(packets: object) -> CaptureFile | None:
    """The file that packets are from, if there is one, and it is no pipe."""
    if not isinstance(packets, Capture) or len(packets.files) > 1:
        return None
    file = packets.files[0]
    return None if file.follow or file.path == STANDARD_INPUT or not os.path.isfile(file.path) else file


def _first_ns(path: str) -> int | None:
    file = CaptureFile(path)
    for _ in file:
        break
    return file.statistics.first_ns


def absolute(filter: Filter, first_ns: list[int | None]) -> Filter:
    """A filter with times relative to the first packet of all files, made absolute."""
    start = min((ns for ns in first_ns if ns is not None), default=0)
    return replace(
        filter,
        from_ns=filter.from_ns if filter.from_ns == EARLIEST_NS else filter.from_ns + start,
        to_ns=filter.to_ns if filter.to_ns == LATEST_NS else filter.to_ns + start,
        relative=False,
    )
