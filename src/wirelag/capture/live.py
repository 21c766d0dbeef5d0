"""Packets of an interface as packet batches; and captures replayed at their own speed, in the same way.

Law: packets that did not fit into the ring are always counted (`dropped`): received + dropped is all that passed the
filter. Memory: the ring, and a few batches. Packets are decoded where the kernel put them.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Protocol

import numpy as np

from wirelag import _kernels
from wirelag.capture.files import Capture
from wirelag.capture.pcap import Pieces
from wirelag.capture.ring import Clock, Direction, open_ring
from wirelag.errors import WirelagError
from wirelag.packets.batch import Block, PacketBatch
from wirelag.packets.filters import Filter
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import split
from wirelag.packets.packet_id import PacketId

RING_BYTES: Final = 64 << 20
POLL_MS: Final = 20
SNAP_BYTES: Final = 512  # bytes of each packet: its headers, even inside tunnels, and more payload than ids need
NO_ID: Final = PacketId(flow=False, length=False, ip_id=False, transport=False, prefix=0)
FEW: Final = ("time_ns", "packet_id")  # columns that are enough for most meters of two points
_MOST_GAPS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class LiveStatistics:
    """Counts so far. Dropped packets passed the filter but did not fit into the ring."""

    received: int = 0  # packets that the kernel put into the ring
    dropped: int = 0  # packets that did not fit
    freezes: int = 0  # how often the ring was found full
    packets: int = 0  # packets received and decoded, with or without a row
    wire_bytes: int = 0
    filtered: int = 0
    backwards: int = 0
    skipped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gap:
    """Packets dropped between two readings of the kernel's counters."""

    start_ns: int
    end_ns: int
    packets: int


class Source(Protocol):
    """The common interface of `Live` and `Replay`."""

    name: str
    poll_ms: int
    began_ns: int | None  # when it started to listen; None before the first packet of a capture

    @property
    def quiet_ns(self) -> int:
        """Valid with an empty batch: the time at which nothing was waiting."""

    @property
    def warnings(self) -> list[str]:
        """Warnings about what could not be read, one line each."""

    def __iter__(self) -> Iterator[PacketBatch]:
        """Packet batches, including empty ones."""

    def now_ns(self) -> int:
        """The time on the packets' clock."""

    @property
    def statistics(self) -> LiveStatistics:
        """Counts so far."""

    @property
    def dropped(self) -> int:
        """Packets dropped so far."""

    def dropped_during(self, interval: Interval) -> int:
        """Packets that may have been dropped in an interval that has ended."""

    def stop(self) -> None:
        """End the iteration after the packets received so far."""

    def close(self) -> None:
        """Stop listening."""


def by_clock(source: Source, interval_ns: int) -> Iterator[tuple[Interval, PacketBatch | None]]:
    """Packets with their interval; None with an interval that has ended.

    An interval ends at the first packet of a later one, or when the clock has passed its end and the ring is empty:
    packets up to three polls old have been seen by then. Intervals without packets end too, unless the clock jumps.
    """
    grace_ns = 3 * source.poll_ms * 10**6
    current: Interval | None = None
    try:
        for batch in source:
            for found, packets in split([batch], interval_ns):
                if current is not None and found > current:
                    yield current, None
                current = found if current is None else max(current, found)
                yield current, packets
            if len(batch) or not (now_ns := source.quiet_ns):
                continue
            if current is None:
                start_ns = now_ns // interval_ns * interval_ns
            elif now_ns >= current.end_ns + grace_ns:
                yield current, None
                start_ns = max(current.end_ns, (now_ns - grace_ns) // interval_ns * interval_ns)
            else:
                continue
            current = Interval(start_ns, start_ns + interval_ns)
    except WirelagError:  # the interface is gone: packets received before count
        if current is not None:
            yield current, None
        raise
    if current is not None:
        yield current, None


class Live:
    """An interface: iterate over it for packet batches, at least one every `poll_ms`, possibly empty.

    A batch's frames (`PacketBatch.frame`) are available until the next batch. `filter` is a tcpdump expression, applied
    by the kernel; `wanted` is applied while decoding. Instances with the same `fanout` number, in any process, share
    the packets: both directions of a flow go to the same one. One thread iterates; others may query and stop it.

    `clock`: whether the kernel or the card timestamps packets. A card has its own clock, which must be synchronised
    (phc2sys), and timestamps only incoming packets. With `few`, batches have no columns but FEW, and no frames. With
    `ports`, a batch says where each packet was seen (`port`): twice the number of the interface, and one more if the
    packet was leaving.
    """

    def __init__(
        self,
        interface: str,
        *,
        filter: str | None = None,
        wanted: Filter | None = None,
        packet_id: PacketId | None = None,
        tunnels: bool = False,
        promiscuous: bool = False,
        direction: Direction = "both",
        fanout: int | None = None,
        clock: Clock = "kernel",
        ring_bytes: int = RING_BYTES,
        snap_bytes: int = SNAP_BYTES,
        poll_ms: int = POLL_MS,
        few: bool = False,
        ports: bool = False,
    ) -> None:
        """Start listening; arriving packets wait in the ring."""
        self.name = interface
        self.poll_ms = poll_ms
        self.warnings: list[str] = []
        self._ring = open_ring(
            interface,
            expression=filter,
            promiscuous=promiscuous,
            ring_bytes=ring_bytes,
            poll_ms=poll_ms,
            snap_bytes=snap_bytes,
            fanout=fanout,
            direction=direction,
            clock=clock,
        )
        ids = packet_id or NO_ID
        self._reader = _kernels.Ring(
            self._ring.memory,
            self._ring.block_bytes,
            self._ring.link_type,
            incoming=direction != "out" or self._ring.loopback,
            # A loopback shows every packet twice: outgoing and incoming.
            outgoing=direction != "in" and not self._ring.loopback,
            hardware=clock == "hardware",
            tunnels=tunnels,
            fields=ids.fields,
            prefix=ids.prefix,
            seed=ids.seed,
            few=few,
            **(wanted or Filter()).kernel_arguments(),
        )
        self._few, self._ports = few, ports
        self._blocks = (Block(interface, 0, self._ring.memory),)
        self._passed = self._dropped = self._freezes = 0
        self._gaps: deque[Gap] = deque(maxlen=_MOST_GAPS)
        self._counting = threading.Lock()
        self.began_ns: int | None = time.time_ns()
        self._counted_ns = self.began_ns
        self.quiet_ns = self.began_ns
        self._stopped_ns: int | None = None
        self._closed = False

    def __enter__(self) -> Live:
        """Return itself; leaving the context closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    @staticmethod
    def now_ns() -> int:
        """The time on the packets' clock."""
        return time.time_ns()

    @property
    def group(self) -> int:
        """The number of the group that shares packets with this one, for `fanout`."""
        return self._ring.group()

    def __iter__(self) -> Iterator[PacketBatch]:
        """Batches until `stop` or `close`; a WirelagError if the interface goes down, after all packets received.

        After an empty batch, all packets up to two polls before `quiet_ns` have been seen, including unwanted ones.
        """
        pieces = Pieces(_kernels.BATCH_BYTES)
        poll = select.poll()
        poll.register(self._ring.socket, select.POLLIN | select.POLLERR)
        down, told_ns = False, time.monotonic_ns()
        while not self._closed:
            memory, now_ns = pieces.take(), time.time_ns()
            ports = np.empty(_kernels.BATCH_ROWS, np.uint32) if self._ports else None
            rows = self._reader.take(memory, ports)
            if rows > 0:
                batch = PacketBatch.in_memory(memory, rows, self._blocks)
                if self._few:
                    batch = PacketBatch({name: getattr(batch, name) for name in FEW})
                stopped_ns = self._stopped_ns
                last = stopped_ns is not None and int(batch.time_ns[-1]) > stopped_ns
                if stopped_ns is not None and last:
                    before = batch.time_ns <= stopped_ns
                    batch, ports = batch[before], None if ports is None else ports[:rows][before]
                if ports is not None:
                    batch.port = ports[: len(batch)]
                yield batch
                if last:
                    return
                told_ns = time.monotonic_ns()
            if rows >= 0:
                self._count(least_ms=self.poll_ms)
                continue
            if time.monotonic_ns() - told_ns >= self.poll_ms * 10**6:
                self.quiet_ns = now_ns
                yield PacketBatch.in_memory(memory, 0)
                told_ns = time.monotonic_ns()
            if down and not poll.poll(3 * self.poll_ms):
                raise WirelagError(f"{self.name}: the interface went down or has gone; nothing more comes from it")
            # The last packets lie in a block that the kernel hands over when its timeout expires.
            stopping = self._stopped_ns is not None
            ready = poll.poll(self.poll_ms * (3 if stopping else 1))
            self._count()
            down = down or (any(event & select.POLLERR for _, event in ready) and self._is_down())
            if stopping and not ready:
                return

    @property
    def statistics(self) -> LiveStatistics:
        """Counts so far, including the kernel's."""
        if not self._closed:
            self._count()
        known = self._reader.statistics()
        return LiveStatistics(
            received=self._passed - self._dropped,
            dropped=self._dropped,
            freezes=self._freezes,
            **{name: known[name] for name in ("packets", "wire_bytes", "filtered", "backwards", "skipped")},
        )

    @property
    def dropped(self) -> int:
        """`statistics.dropped`, for those who ask with every batch."""
        if not self._closed:
            self._count()
        return self._dropped

    def dropped_during(self, interval: Interval) -> int:
        """Packets that the kernel may have dropped in this interval, which must have ended.

        The kernel counts drops without times: its counters are read with every batch. Drops between two readings on
        different sides of an edge count on both sides, so that no drop is ever taken for loss.
        """
        if not self._closed:
            self._count()
        with self._counting:
            gaps = list(self._gaps)
        return sum(gap.packets for gap in gaps if gap.end_ns >= interval.start_ns and gap.start_ns < interval.end_ns)

    def stop(self, at_ns: int | None = None) -> None:
        """End the iteration after the packets received until now, or until `at_ns`. Signal handlers may call it."""
        self._stopped_ns = time.time_ns() if at_ns is None else at_ns

    def close(self) -> None:
        """Stop listening."""
        if not self._closed:
            self._count()
            self._closed = True
            self._ring.close()

    def _count(self, least_ms: int = 0) -> None:
        """Read the kernel's counters, which resets them."""
        if 0 <= time.time_ns() - self._counted_ns < least_ms * 10**6:
            return
        with self._counting:
            now_ns = time.time_ns()
            passed, dropped, freezes = self._ring.counters()
            self._passed += passed
            self._dropped += dropped
            self._freezes += freezes
            if dropped:
                self._gaps.append(Gap(self._counted_ns, now_ns, dropped))
            self._counted_ns = now_ns

    def _is_down(self) -> bool:
        problem = self._ring.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem not in (0, errno.ENETDOWN):
            raise WirelagError(f"{self.name}: cannot listen any longer ({os.strerror(problem)})")
        return problem == errno.ENETDOWN


class Replay:
    """Captures as if they were live: batches come when their packets did, `speed` times as fast, empty ones between.

    With `speed=None` they come as fast as they can be read; with `length_ns`, only the packets of so long.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        speed: float | None = 1.0,
        wanted: Filter | None = None,
        packet_id: PacketId | None = None,
        tunnels: bool = False,
        poll_ms: int = POLL_MS,
        length_ns: int | None = None,
    ) -> None:
        self.capture = Capture(paths, filter=wanted, packet_id=packet_id, tunnels=tunnels)
        self.name = ", ".join(file.name for file in self.capture.files)
        self.speed = speed
        self.poll_ms = poll_ms
        self._nothing = PacketBatch.empty()
        self._latest_ns = 0
        self.began_ns: int | None = None
        self._began_here_ns = 0  # the same on our clock
        self._length_ns = length_ns
        self._handed_on = self._bytes_on = 0  # packets, and their bytes
        self._stopped = False

    def now_ns(self) -> int:
        """The time on the packets' clock."""
        if self.speed is None or self.began_ns is None:
            return self._latest_ns
        return self.began_ns + int((time.monotonic_ns() - self._began_here_ns) * self.speed)

    @property
    def quiet_ns(self) -> int:
        """No packet that is due is waiting."""
        return self.now_ns()

    def __iter__(self) -> Iterator[PacketBatch]:
        """Batches, each when it is due."""
        for batch in self.capture:
            if self.began_ns is None:
                self.began_ns, self._began_here_ns = int(batch.time_ns[0]), time.monotonic_ns()
            # A time that goes back is due at once.
            due_ns = np.maximum(np.maximum.accumulate(batch.time_ns), self._latest_ns)
            start, most = 0, len(batch)
            if self._length_ns is not None:
                most = int(np.searchsorted(due_ns, self.began_ns + self._length_ns, side="left"))
            while start < most:
                if self._stopped:
                    return
                end = most
                if self.speed is not None:
                    end = min(most, int(np.searchsorted(due_ns, self.now_ns(), side="right")))
                if end > start:
                    self._latest_ns = int(due_ns[end - 1])
                    self._handed_on += end - start
                    self._bytes_on += int(batch.wire_length[start:end].sum())
                    yield batch[start:end]
                    start = end
                else:
                    yield self._nothing
                if start < most and not self._stopped:
                    wait_ns = (int(due_ns[start]) - self.now_ns()) / (self.speed or 1.0)
                    time.sleep(max(0.0, min(wait_ns / 1e9, self.poll_ms / 1e3)))
            if most < len(batch):
                yield from self._until_the_end(self.began_ns + (self._length_ns or 0))
                return

    def _until_the_end(self, end_ns: int) -> Iterator[PacketBatch]:
        """Empty batches until this time has come."""
        while self.speed is not None and not self._stopped and (left_ns := end_ns - self.now_ns()) > 0:
            yield self._nothing
            time.sleep(min(left_ns / self.speed / 1e9, self.poll_ms / 1e3))

    @property
    def statistics(self) -> LiveStatistics:
        """Counts so far, without packets that were read ahead; nothing is dropped."""
        known = self.capture.statistics
        without_row = known.filtered + sum(known.skipped.values())
        packets, wire_bytes = self._handed_on + without_row, known.wire_bytes
        if packets < known.packets:
            wire_bytes = self._bytes_on
        return LiveStatistics(
            packets,
            packets=packets,
            wire_bytes=wire_bytes,
            filtered=known.filtered,
            backwards=known.backwards,
            skipped=known.skipped,
        )

    @property
    def dropped(self) -> int:
        """Always 0."""
        return 0

    @property
    def warnings(self) -> list[str]:
        """Warnings about what could not be read, one line each."""
        return self.capture.warnings

    def dropped_during(self, interval: Interval) -> int:
        """Always 0."""
        return 0

    def stop(self) -> None:
        """End the iteration."""
        self._stopped = True

    def close(self) -> None:
        """End the iteration."""
        self._stopped = True
