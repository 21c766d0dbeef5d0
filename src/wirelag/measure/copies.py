"""Captures that hold the same packets: a capture and its compressed copy, or two points of the same traffic.

Read as one, each packet would count twice: as a retransmission, or as a response that came at once.

Law: nearly all packets of one are in the other at the same time; or some are, and these are packets to one host whose
id each capture has once. Broadcasts pass all interfaces of a bridge, and packets without a number of their own
(heartbeats) are alike in all files of a rotated set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from wirelag.errors import WirelagError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.capture.pcap import CaptureFile
    from wirelag.capture.source import Packets
    from wirelag.packets.packet_id import PacketId

NEAR_NS: Final = 10**9  # two sightings of one packet, on clocks that agree
SAME_NS: Final = 1000  # times that are nearer are the same: files have us or ns
WITHIN_SHARE: Final = 0.9  # of all packets of one capture, broadcasts too, that are in another at the same time
NEAR_SHARE: Final = 0.02  # of packets in common at the same time, that different captures do not have
FAR_SHARE: Final = 0.2  # the same for packets at any time: the clocks may differ
FEWEST_WITHIN: Final = 2
FEWEST_NEAR: Final = 5  # packets in common that tell
FEWEST_FAR: Final = 20
BATCHES: Final = 4  # of each capture that are compared
MOST_BATCHES: Final = 512  # that are read to reach the time at which the other capture begins
MOST_PAIRS: Final = 16  # captures of which every two are compared; of more, neighbours in time

T = TypeVar("T")


@dataclass(frozen=True)
class Copies:
    """Two captures that hold the same packets."""

    one: str
    other: str
    share: float  # of the packets that were compared
    translated: bool  # addresses or ports differ
    same_times: bool  # of one capture: two points never have the same times

    @property
    def way_out(self) -> str:
        """What to do, in words: files that overlap are put together, two points are compared."""
        if self.same_times:
            return (
                "name one of them if it holds all of the other; if each has packets of its own, drop the copies first "
                f"(mergecap -w all.pcap {self.one} {self.other}; editcap -d all.pcap once.pcap)"
            )
        return f"name one of them, measure between two points with `wirelag oneway{' --nat' * self.translated}`"

    def __str__(self) -> str:
        how = " with other addresses" if self.translated else ""
        return f"{self.one} and {self.other} hold the same packets{how} ({self.share:.0%} of those compared)"


def refuse_copies(packets: Packets, force: bool = False) -> list[str]:
    """A WirelagError if two of several captures hold the same packets; with `force`, a line that says so."""
    from wirelag.capture.files import Capture

    if not isinstance(packets, Capture) or len(packets.files) < 2:
        return []
    return refused(find_copies(by_time(packets.files, packets.first_ns)), force)


def refused(found: Copies | None, force: bool) -> list[str]:
    """The same for what was found."""
    if found is None:
        return []
    if not force:
        raise WirelagError(f"{found}, which would count twice: {found.way_out}, or use --force")
    return [f"{found}, which may count twice (--force)"]


def by_time(captures: Sequence[T], first_ns: Sequence[int | None]) -> list[T]:
    """Captures in order of the times of their first packets."""
    return [captures[place] for place in sorted(range(len(captures)), key=lambda place: first_ns[place] or 0)]


def find_copies(files: Sequence[CaptureFile], only_neighbours: bool | None = None) -> Copies | None:
    """The first two captures that hold the same packets, if there are any; `files` are in order of time.

    Every two are compared, or `only_neighbours` (None: if there are more than `MOST_PAIRS`), and these by their
    beginnings alone: to read on until the next one begins would be to read most of a rotated set.
    """
    from wirelag.capture.pcap import can_be_read_again

    files = [file for file in files if can_be_read_again(file.path)]  # what can be read again
    if only_neighbours is None:
        only_neighbours = len(files) > MOST_PAIRS
    parts: dict[int, _Parts] = {}  # of captures that are compared again
    for later in range(1, len(files)):
        for early in range(later - 1, -1, -1):
            one, other = (parts.setdefault(place, _Parts(files[place])) for place in (early, later))
            if found := _compared(one, other, reads_on=early == later - 1 and not only_neighbours):
                return found
            if only_neighbours:
                del parts[early]
                break
    return None


def _compared(early: _Parts, late: _Parts, reads_on: bool) -> Copies | None:
    """Whether two captures hold the same packets; `reads_on`: up to where the later one begins."""
    from wirelag.packets.packet_id import PacketId

    # As they are; where one holds less of each packet; with other addresses.
    for packet_id in (PacketId(), PacketId(prefix=0), PacketId(flow=False)):
        one, other = early.of(packet_id), late.of(packet_id)
        if one.span_ns > other.span_ns:
            one, other = other, one
        part, begin = one, other.span_ns[0] - NEAR_NS
        if one.span_ns[1] < begin and reads_on:
            part = _Part.of(one.file, packet_id, begin)
        share = part.near(other)
        if share or (packet_id.flow and (share := one.far(other))):
            return Copies(early.file.name, late.file.name, share, not packet_id.flow, part.same_times(other))
    return None


class _Parts:
    """The beginning of a capture, with each kind of packet id that was asked for."""

    def __init__(self, file: CaptureFile) -> None:
        self.file = file
        self._found: dict[PacketId, _Part] = {}

    def of(self, packet_id: PacketId) -> _Part:
        """The beginning with this packet id."""
        if packet_id not in self._found:
            self._found[packet_id] = _Part.of(self.file, packet_id)
        return self._found[packet_id]


@dataclass(frozen=True, eq=False)
class _Part:
    """Packets of a part of a capture; the first of equal ones has its id as its number."""

    file: CaptureFile
    numbers: npt.NDArray[np.uint64]
    times_ns: npt.NDArray[np.int64]
    tell: npt.NDArray[np.bool_]  # packets to one host, with an id that the part has once

    @classmethod
    def of(cls, file: CaptureFile, packet_id: PacketId, from_ns: int | None = None) -> _Part:
        """The beginning of a capture, or what it holds from this time on."""
        import numpy as np

        from wirelag import _kernels
        from wirelag.capture.files import Capture
        from wirelag.packets.addresses import to_one_host

        names = {file.path: file.name}
        found, taken = [(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.bool_))], 0
        capture = Capture([file.path], names=names, filter=file.filter, packet_id=packet_id, tunnels=file.tunnels)
        for n, batch in enumerate(capture):
            rows = np.full(len(batch), True) if from_ns is None else batch.time_ns >= from_ns
            found.append((batch.packet_id[rows], batch.time_ns[rows], to_one_host(batch)[rows]))
            taken += bool(rows.any())
            if taken == BATCHES or n + 1 == MOST_BATCHES:
                break
        ids, times_ns, to_one = (np.concatenate([part[i] for part in found]) for i in range(3))
        _, place, counts = np.unique(ids, return_inverse=True, return_counts=True)
        once = counts[place.reshape(-1)] == 1 if len(ids) else to_one
        return cls(file, _kernels.number_copies(ids), times_ns, to_one & once)

    @property
    def span_ns(self) -> tuple[int, int]:
        """The smallest and the largest time."""
        return (int(self.times_ns.min()), int(self.times_ns.max())) if len(self.times_ns) else (0, 0)

    def near(self, other: _Part) -> float:
        """The share of packets in common at the same time, if it tells; else 0."""
        import numpy as np

        (first, last), (other_first, other_last) = self.span_ns, other.span_ns
        begin, end = max(first, other_first) - NEAR_NS, min(last, other_last) + NEAR_NS
        _, here, there = np.intersect1d(self.numbers, other.numbers, return_indices=True)
        close = np.abs(self.times_ns[here] - other.times_ns[there]) <= NEAR_NS
        held = [(one.times_ns >= begin) & (one.times_ns <= end) for one in (self, other)]
        fewer = min(int(np.count_nonzero(rows)) for rows in held)
        if (common := int(np.count_nonzero(close))) >= FEWEST_WITHIN and common >= WITHIN_SHARE * fewer:
            return common / fewer
        fewer = min(int(np.count_nonzero(rows & one.tell)) for rows, one in zip(held, (self, other), strict=True))
        common = int(np.count_nonzero(close & self.tell[here] & other.tell[there]))
        return common / fewer if common >= FEWEST_NEAR and common > NEAR_SHARE * fewer else 0.0

    def same_times(self, other: _Part) -> bool:
        """Whether packets in common have the same times, to the resolution of either."""
        import numpy as np

        _, here, there = np.intersect1d(self.numbers, other.numbers, return_indices=True)
        apart_ns = np.abs(self.times_ns[here] - other.times_ns[there])
        return bool(len(apart_ns)) and float(np.median(apart_ns)) < SAME_NS

    def far(self, other: _Part) -> float:
        """The share of packets in common at any time, if it tells; else 0."""
        import numpy as np

        mine, others = self.numbers[self.tell], other.numbers[other.tell]
        common, fewer = len(np.intersect1d(mine, others)), min(len(mine), len(others))
        return common / fewer if common >= FEWEST_FAR and common > FAR_SHARE * fewer else 0.0
