"""LDA in the kernel: the synopses of estimators/lda.py, from cells that bpf/lda.bpf.c fills.

Guarantee: on one CPU, the same packets give the same synopses, bit for bit, cut at the same packets. On several, the
number of the open piece is shared and read for each packet: only packets that arrive at the same moment as the one that
cuts may count on either side of it. Memory per CPU: `bytes_for`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from wirelag import _kernels
from wirelag.capture.live import LiveStatistics
from wirelag.ebpf.bpf import cpus
from wirelag.ebpf.cells import CELL, COUNTERS, EVERYTHING, SAMPLED, Cells
from wirelag.ebpf.classes import Classes, constants_of
from wirelag.ebpf.hooks import Direction, Hooks, decoding
from wirelag.errors import WirelagError
from wirelag.estimators.lda import BUCKET_BYTES, Lda, LdaSynopsis
from wirelag.packets.addresses import Direction as Course
from wirelag.packets.filters import Filter
from wirelag.packets.grouping import Grouping
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import MARKER, Delimiters, Edge
from wirelag.packets.packet_id import PacketId
from wirelag.synopses.cache import CACHE
from wirelag.twopoint.spans import ALL

MOST_SEGMENTS: Final = 64
RECENT, OPENED, COPIES = 64, 64, 8  # as in bpf/pieces.h
PIECES: Final = {False: 4, True: 32}  # of a segment that are not given back yet, cut by the clock or at packets
CLASS_PIECES: Final = 4  # of each class
ROOM: Final = 16  # of the log, times the tail: whenever its level rises, half of it is refilled
LEAST_LOG, MOST_LOG = 1 << 12, 1 << 18
OPENED_AT: Final = np.dtype([*((name, "u8") for name in ("number", "name", "coin")), ("time_ns", "i8"), ("anew", "u8")])
SEGMENT: Final = np.dtype(
    [
        *((name, "u8") for name in ("piece", "active", "references_only")),
        *((name, "u8", 4) for name in ("source_net", "destination_net")),
        ("lists", "u8"),
        ("known", "u8", 2),
        ("overflowed", "u8", 2),
        ("control_ns", "i8"),
        ("numbered", "u8"),
        ("numbers", "u8", COPIES),
        ("opened", OPENED_AT, OPENED),
    ]
)
MINE: Final = np.dtype(
    [
        *((name, "u8") for name in ("piece", "start_ns", "latest_ns")),
        *((name, "u4") for name in ("first", "end")),
        ("cell", "u4", 2),
        *((name, "u8") for name in ("missed", "crowded")),
        ("last_ns", "i8", 2),
        ("recent", "u8", (RECENT, 2)),
    ]
)
BY_CLOCK, AT_MARKERS, AT_CONTROL, AT_COLOURS = range(4)


@dataclass(frozen=True, slots=True)
class Piece:
    """What the kernel counted from one possible cut to the next: of everything, and of each class."""

    number: int
    first_ns: int
    latest_ns: int
    synopses: dict[int, LdaSynopsis]
    known: frozenset[int] | None = None  # classes that were counted by themselves; None: all that came


@dataclass(frozen=True, slots=True)
class Opened:
    """The packet after a piece, at which the kernel cut. Without an edge it does not: a smaller coin is near."""

    edge: Edge | None
    anew: bool = False  # the clock was set back


def stocked(estimator: Lda, segments: int, at_packets: bool, classes: int) -> tuple[int, int]:
    """The cells and the places of the log of one CPU: powers of two."""
    cells = segments * ((PIECES[at_packets] if segments == 1 else 16 if at_packets else 4) + CLASS_PIECES * classes)
    log = max(LEAST_LOG, min(MOST_LOG, ROOM * estimator.tail * segments * (1 + min(classes, 16))))
    return 1 << (cells - 1).bit_length(), 1 << (log - 1).bit_length()


def bytes_for(estimator: Lda, segments: int, at_packets: bool, classes: int) -> int:
    """The memory of one CPU, without what finds classes."""
    cells, log = stocked(estimator, segments, at_packets, classes)
    buckets = BUCKET_BYTES * estimator.rows * len(estimator.shifts)
    return cells * (CELL.itemsize + buckets) + log * SAMPLED.itemsize + segments * MINE.itemsize


class _Hooks(Hooks):
    """The programs, with what they need before the first packet."""

    def prepare(self) -> None:
        """Find the memory of segments, and give each CPU its cells."""
        self.segments = self.memory(".bss.segments", SEGMENT)[: len(self.memory("mines", MINE)) // self.cpus]
        self.mines = self.memory("mines", MINE).reshape(self.cpus, -1)
        each = len(self.memory("stock")) // self.cpus
        # A cell of its own CPU: another one might be taken for the CPU's.
        self.mines["cell"] = (np.arange(self.cpus) * each)[:, np.newaxis, np.newaxis]
        self.clock_went_back: Callable[[int], None] = lambda name: None

    def give_up_after(self, name: int) -> None:
        """Give up intervals of a time that will come again."""
        self.clock_went_back(name)


class KernelLda:
    """The meters of one point, in the kernel. Without an interface, packets are replayed to them through `hooks`."""

    def __init__(
        self,
        estimator: Lda,
        interface: str | None,
        interval_ns: int,
        *,
        packet_id: PacketId,
        tunnels: bool = False,
        course: Course | None = None,
        delimiters: Delimiters | None = None,
        grouping: Grouping | None = None,
        room: int = 0,
        direction: Direction = "both",
        then: str | None = None,
        replayed: bool | None = None,
    ) -> None:
        """`room`: how many segments will be opened; without it, one is, with the packets of `course`."""
        segments = max(1, room)
        if segments > MOST_SEGMENTS:
            raise WirelagError(f"the kernel measures at most {MOST_SEGMENTS} segments: give fewer, or omit --in-kernel")
        self.estimator, self.delimiters, self.grouping = estimator, delimiters, grouping
        buckets = estimator.rows * len(estimator.shifts)
        classes = grouping.most + 1 if grouping is not None else 0
        stock, log = stocked(estimator, segments, delimiters is not None, classes)
        at = _cut_at(delimiters)
        if at == AT_COLOURS and grouping is not None:
            raise WirelagError("by: the kernel tells no classes apart where colours cut; omit --by, or --in-kernel")
        class_sizes, class_constants = constants_of(grouping, segments)
        self.hooks = _Hooks(
            "lda_segments" if segments > 1 else "lda",
            interface,
            counters=COUNTERS,
            sizes={
                "cells": cpus() * stock,
                "buckets": cpus() * stock * buckets,
                "stock": cpus() * stock,
                "sample_log": cpus() * log,
                "mines": cpus() * segments,
                **class_sizes,
            },
            constants={
                "options": decoding(packet_id, tunnels),
                "lda": _kernels.lda_settings(estimator.rows, estimator.shifts, estimator.seed),
                "tail_key": _kernels.coin_key(estimator.seed, CACHE),
                "bucket_count": buckets,
                "tail_most": estimator.tail,
                "stock_mask": stock - 1,
                "log_mask": log - 1,
                "cut_at": at,
                "cpu_count": cpus(),
                "segment_room": segments,
                "half_ns": delimiters.length_ns // 2 if delimiters else 0,
                "marker_key": _kernels.coin_key(delimiters.seed, MARKER) if delimiters else 0,
                "marker_limit": 2 ** (64 - delimiters.bits) - 1 if delimiters else 0,
                "control_port": (delimiters.control_port or 0) if delimiters else 0,
                "colour_bit": 2 + (delimiters.colour or 0) if delimiters else 0,  # behind those of ECN
                **class_constants,
            },
            interval_ns=interval_ns,
            direction=direction,
            then=then,
            replayed=replayed,
        )
        self.cells = Cells(self.hooks, estimator)
        self.hooks.clock_went_back = self._give_up_after
        self._open: dict[int, KernelSegment] = {}
        self._next = 0
        self.packets = self._missed_before = 0
        if not room:
            self.open(course)

    def open(self, course: Course | None = None, references_only: bool = False) -> KernelSegment:
        """Measure a segment from now on."""
        if len(self._open) == len(self.hooks.segments):
            raise WirelagError(f"the kernel measures {len(self._open)} segments already, all that it has room for")
        while self._next % len(self.hooks.segments) in self._open:
            self._next += 1
        at = self._next % len(self.hooks.segments)
        self._next += 1
        self._open[at] = KernelSegment(self, at, course, references_only)
        return self._open[at]

    def close_segment(self, at: int) -> None:
        """Measure it no longer; the place is free for another."""
        segment = self._open.pop(at)
        self._missed_before += segment.missed

    def _give_up_after(self, name: int) -> None:
        for segment in self._open.values() if self.delimiters is None else ():
            segment.give_up(after=name)

    def collect(self) -> None:
        """Read the log: often enough that it does not run over."""
        self.cells.drain()

    def cut(self, interval: Interval) -> LdaSynopsis:
        """The counts of everything in an interval that is over, cut by the clock: of the first segment."""
        return self._open[0].cut(interval).synopses[ALL]

    def statistics(self) -> LiveStatistics:
        """Counts of pieces that are over."""
        missed = self._missed_before + sum(one.missed for one in self._open.values())
        return LiveStatistics(self.packets, missed, packets=self.packets, skipped=self.hooks.skipped())

    def close(self) -> None:
        """Detach."""
        self.hooks.close()


@dataclass
class KernelSegment:
    """One segment in the kernel."""

    of: KernelLda
    at: int
    course: Course | None
    references_only: bool
    classes: Classes | None = field(init=False, default=None)
    _next: int = field(init=False)  # the piece to be read next
    _last: tuple[int, int] | None = field(init=False, default=None)  # time and coin of the last packet that cut
    _given_up: int = field(init=False, default=0)
    _any: bool = field(init=False, default=False)  # a piece with packets was read

    def __post_init__(self) -> None:
        hooks, at = self.of.hooks, self.at
        self._here, self._mine = hooks.segments[at : at + 1], hooks.mines[:, at]
        self._next = int(self._here["piece"][0])
        source, destination = _nets(self.course)
        self._mine["missed"] = 0
        self._mine["last_ns"] = 0
        self._here["source_net"][0], self._here["destination_net"][0] = source, destination
        self._here["references_only"][0] = self.references_only
        if self.of.grouping is not None:
            self.classes = Classes(hooks, self.of.grouping, at, self._here)
        self._here["active"][0] = 1

    @property
    def missed(self) -> int:
        """Packets that were not counted, so far."""
        return int(self._mine["missed"].sum()) + self._given_up

    @property
    def latest_ns(self) -> int:
        """The time of the latest packet that is not read yet; 0: none."""
        numbers, _ = self.of.cells.of_segment(self.at)
        return int(self.of.cells.headers["latest_ns"][numbers].max(initial=0))

    def cut(self, interval: Interval) -> Piece:
        """The counts of an interval that is over, by the clock. Intervals before it can no longer be fetched."""
        name = self.of.hooks.close_until(interval)
        self.of.collect()
        self.give_up(before=name)
        return self._read(name)

    def give_up(self, before: int = 0, after: int = (1 << 56) - 1) -> None:
        """Forget pieces that can no longer be fetched: their packets were missed."""
        numbers, pieces = self.of.cells.of_segment(self.at)
        gone = numbers[(pieces < np.uint64(before)) | (pieces > np.uint64(after))]
        self._given_up += self.of.cells.drop(gone.tolist())

    def pieces(self, until_ns: int | None = None) -> Iterator[tuple[Piece, Opened]]:
        """The pieces that ended before this time, in order, each with the cut after it."""
        self.of.collect()
        delimiters = self.of.delimiters
        late_ns = delimiters.length_ns // 2 + 1 if delimiters is not None and delimiters.colour is not None else 0
        while self._next < int(self._here["piece"][0]):
            opened = self._here["opened"][0][(self._next + 1) % OPENED]
            after = Opened(None)
            if int(opened["number"]) == self._next + 1:
                if until_ns is not None and int(opened["time_ns"]) + late_ns > until_ns:
                    return
                after = self._after(opened)
            elif late_ns and int(opened["number"]) <= self._next:  # another CPU is about to write it
                return
            piece = self._read(self._next)
            self._any = self._any or piece.synopses[ALL].packets > 0
            if late_ns and not self._any:  # the first packet ever has no interval before it
                after = Opened(None)
            self._next += 1
            yield piece, after

    def rest(self) -> Piece:
        """The open piece, as far as it has come."""
        self.of.collect()
        return self._read(self._next)

    def revise(self) -> None:
        """List the classes with the most packets anew, if there are more than fit."""
        if self.classes is not None:
            by_clock = self.of.delimiters is None
            self.classes.revise(int(self._mine["piece"].max() if by_clock else self._here["piece"][0]))

    def close(self) -> None:
        """Measure it no longer."""
        self._here["active"][0] = 0
        self.give_up(after=0)
        self.of.close_segment(self.at)

    def _after(self, opened: Any) -> Opened:
        """What a cut of the kernel is: on several CPUs one may not know of another with a smaller coin."""
        delimiters = self.of.delimiters
        assert delimiters is not None
        name, time_ns, coin = int(opened["name"]), int(opened["time_ns"]), int(opened["coin"])
        if delimiters.colour is not None:
            return Opened(Edge(name, time_ns, False))
        near = self._last is not None and time_ns - self._last[0] <= delimiters.length_ns // 2
        if opened["anew"] or delimiters.control_port is not None:
            near = False
        if near and self._last is not None and coin >= self._last[1]:
            return Opened(None)
        self._last = time_ns, coin
        return Opened(Edge(name, time_ns, near), bool(opened["anew"]))

    def _read(self, number: int) -> Piece:
        cells = self.of.cells
        numbers = cells.of(self.at, number)
        headers = cells.headers[numbers]
        every = headers[headers["hash"] == EVERYTHING]
        first_ns, latest_ns = int(every["first_ns"].min(initial=1 << 63)), int(every["latest_ns"].max(initial=0))
        synopses = {}
        if self.classes is not None:
            for tag, some in self.classes.tagged(numbers, headers).items():
                synopses[tag] = cells.take(some)
        everything = cells.take(numbers[headers["hash"] == EVERYTHING].tolist())
        self.of.packets += everything.packets
        known = self.classes.known(number) if self.classes is not None else None
        return Piece(number, first_ns, latest_ns, {ALL: everything, **synopses}, known)


def _cut_at(delimiters: Delimiters | None) -> int:
    if delimiters is None:
        return BY_CLOCK
    if delimiters.colour is not None:
        return AT_COLOURS
    return AT_MARKERS if delimiters.control_port is None else AT_CONTROL


def _nets(course: Course | None) -> list[tuple[int, ...]]:
    """Address and mask of each end, in the program's format."""
    found = []
    for nets in (course.source, course.destination) if course else ((), ()):
        if len(nets) > 1:
            raise WirelagError("direction: the kernel supports one net on each side; omit --in-kernel")
        words = Filter(nets=nets).kernel_arguments()["nets"]
        found.append(tuple(words[0]) if words else (0, 0, 0, 0))
    return found
