"""Packets of an interface over several cores: one ring and one thread per core, which decode in parallel.

Laws. The packets are those that one ring would deliver, each once; both directions of a flow come from the same ring,
in order (later fragments, which have no ports, may come from another). All packets of earlier intervals come before
the first packet of an interval, so every cut is the same for all rings. A ring that is ahead of others waits in bounded
memory: beyond it the ring itself fills, and drops are counted as always. A meter sees all rings, one after another:
its results do not depend on their number.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np

from wirelag.capture.live import Live, LiveStatistics
from wirelag.capture.ring import NEW_GROUP
from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval

MOST_WAITING: Final = 64  # batches per ring
FOREVER_NS: Final = 2**62
BACK_NS: Final = 10**9  # a time that goes back by more than this means that the clock was set

_Came = queue.SimpleQueue[tuple["_Shard", PacketBatch | None, int]]


@dataclass(slots=True, eq=False)
class _Shard:
    """A ring, and its batches that have not been taken yet."""

    live: Live
    room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(MOST_WAITING))
    waiting: deque[PacketBatch] = field(default_factory=deque)
    seen_ns: int = 0  # everything before this time has arrived
    quiet: bool = False
    ended: bool = False
    problem: Exception | None = None

    def take(self, batch: PacketBatch | None, seen_ns: int) -> None:
        """Take a batch from its thread; None: the ring has ended."""
        self.seen_ns, self.quiet = seen_ns, batch is None or not len(batch)
        if batch is None:
            self.ended = True
        elif len(batch):
            self.waiting.append(batch)
        else:
            self.room.release()

    def before(self, edge_ns: int) -> Iterator[PacketBatch]:
        """Packets up to an edge; packets stamped before the clock was set back are not awaited."""
        while self.waiting:
            batch = self.waiting[0]
            latest_ns = np.maximum.accumulate(batch.time_ns)
            rows = len(batch)
            if edge_ns <= latest_ns[-1] <= self.seen_ns + BACK_NS:
                rows = int(np.searchsorted(latest_ns, edge_ns))
            if rows == len(batch):
                self.waiting.popleft()
                self.room.release()
                yield batch
                continue
            if rows:
                self.waiting[0] = batch[rows:]
                yield batch[:rows]
            return


class Fanout:
    """The rings of one group as one source; see `Source`. `interval_ns`: distance between cuts."""

    def __init__(self, lives: Sequence[Live], interval_ns: int) -> None:
        self._lives, self._interval_ns = lives, interval_ns
        self.name, self.poll_ms = lives[0].name, lives[0].poll_ms
        self.began_ns: int | None = max(live.began_ns or 0 for live in lives)
        self.quiet_ns = self.began_ns
        self._late_ns = 2 * self.poll_ms * 10**6  # the kernel hands over a block that is not full

    def __enter__(self) -> Fanout:
        """Return itself; leaving the context closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __iter__(self) -> Iterator[PacketBatch]:
        """Batches until `stop` or `close`; a WirelagError if the interface goes down, after all packets received."""
        shards = [_Shard(live) for live in self._lives]
        came: _Came = queue.SimpleQueue()
        over = threading.Event()
        threads = [
            threading.Thread(target=self._read, args=(shard, came, over), name=f"ring {i}", daemon=True)
            for i, shard in enumerate(shards)
        ]
        for thread in threads:
            thread.start()
        try:
            while not all(shard.ended for shard in shards):
                shard, batch, seen_ns = came.get()
                shard.take(batch, seen_ns)
                yield from self._ready(shards)
                if all(each.quiet and not each.waiting for each in shards):
                    for each in shards:
                        each.quiet = each.ended
                    seen = [each.seen_ns for each in shards if not each.ended]
                    if seen:
                        self.quiet_ns = min(seen) + self._late_ns
                        yield PacketBatch.empty()
        finally:
            over.set()
            for shard in shards:
                shard.room.release()
            for thread in threads:
                thread.join()
        for shard in shards:
            if shard.problem is not None:
                raise shard.problem

    def _ready(self, shards: Sequence[_Shard]) -> Iterator[PacketBatch]:
        """Packets of intervals that no ring can add earlier packets to, interval by interval."""
        last_ns = self._edge_after(min(shard.seen_ns for shard in shards))
        edge_ns = 0
        while edge_ns < last_ns:
            first = (self._edge_after(int(shard.waiting[0].time_ns[0])) for shard in shards if shard.waiting)
            edge_ns = min((last_ns, *first))
            for shard in shards:
                yield from shard.before(edge_ns)

    def _edge_after(self, time_ns: int) -> int:
        return (time_ns // self._interval_ns + 1) * self._interval_ns

    def _read(self, shard: _Shard, came: _Came, over: threading.Event) -> None:
        """Read a ring to its end, in a thread."""
        try:
            for batch in shard.live:
                seen_ns = int(batch.time_ns.max()) if len(batch) else shard.live.quiet_ns - self._late_ns
                shard.room.acquire()
                if over.is_set():
                    return
                came.put((shard, batch, seen_ns))
        except Exception as error:  # re-raised by the consumer
            shard.problem = error
        finally:
            came.put((shard, None, FOREVER_NS))

    @staticmethod
    def now_ns() -> int:
        """The time on the packets' clock."""
        return time.time_ns()

    @property
    def warnings(self) -> list[str]:
        """Warnings about what could not be read, one line each."""
        return [line for live in self._lives for line in live.warnings]

    @property
    def statistics(self) -> LiveStatistics:
        """Counts over all rings so far."""
        parts = [live.statistics for live in self._lives]
        sums = {
            one.name: sum(getattr(part, one.name) for part in parts)
            for one in fields(LiveStatistics)
            if one.name != "skipped"
        }
        reasons = {reason for part in parts for reason in part.skipped}
        skipped = {reason: sum(part.skipped.get(reason, 0) for part in parts) for reason in sorted(reasons)}
        return LiveStatistics(**sums, skipped=skipped)

    @property
    def dropped(self) -> int:
        """Packets dropped so far."""
        return sum(live.dropped for live in self._lives)

    def dropped_during(self, interval: Interval) -> int:
        """Packets that the kernel may have dropped in this interval, which must have ended."""
        return sum(live.dropped_during(interval) for live in self._lives)

    def stop(self) -> None:
        """End the iteration after the packets received so far. May be called in a signal handler."""
        now_ns = time.time_ns()
        for live in self._lives:
            live.stop(now_ns)

    def close(self) -> None:
        """Stop listening."""
        for live in self._lives:
            live.close()


def over_cores(cores: int, interval_ns: int, listen: Callable[[int | None], Live]) -> Live | Fanout:
    """An interface over this many cores; `listen` opens a ring, in the given group if there is one."""
    if cores == 1:
        return listen(None)
    lives = [listen(NEW_GROUP)]
    try:
        while len(lives) < cores:
            lives.append(listen(lives[0].group))
    except BaseException:
        for live in lives:
            live.close()
        raise
    return Fanout(lives, interval_ns)
