"""A collector whose disk, clock and files fail as told, agents that send to it, and what it must have stored.

The model: a message that was acknowledged is in the store, or in its result, whatever happens then; a result is the
one that a collector without faults makes of the same messages; none is there twice. Faults that last longer than an
interval waits for its neighbours may cost its figure of loss, which is then not given, and nothing else. A flipped bit
may take the rows of which its page holds a part, and no other, and so the loss of their neighbours; what it took is
missing, or has no figures: no row is ever wrong. No second bit flips before the store was rescued.
"""

import asyncio
import mmap
import os
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path as File
from typing import Any

import numpy as np

from tests.support.agent_messages import SECOND_NS, Agent, Path, pair
from tests.support.collector_process import Running
from tests.support.places import ROOT
from tests.support.waiting import until
from wirelag.collector.loop import Collector
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.sqlite_pages import Pages
from wirelag.estimators.lda import Lda
from wirelag.protocol.messages import Message, encode
from wirelag.protocol.results import Ends
from wirelag.protocol.session import LINGER_NS, Rounds
from wirelag.transport import Address, Refused, Sender, Unreachable, sender

SECONDS = 40
SEND_S = 2.0  # then a message counts as not acknowledged, and is sent again later
COMPARED = ("sent", "received", "used", "mean", "std", "min", "max", "lost")
Report = dict[str, Any]


def compiled(folder: File) -> File | None:
    """The library that makes calls fail; None without a compiler."""
    compiler, made = shutil.which("cc"), folder / "faults.so"
    if compiler is None:
        return None
    source = ROOT / "tests" / "support" / "faults.c"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


def traffic(seed: int) -> tuple[Agent, Agent]:
    """Two points of recent packets, none of them under way at the end of an interval: no result needs another's."""
    start_ns = time.time_ns() // SECOND_NS * SECOND_NS - (SECONDS + 2) * SECOND_NS
    path = Path.made(SECONDS, 30, seed, loss=0.02, delay_ns=1e5, start_ns=start_ns)
    inside = (path.sent_ns - start_ns) % SECOND_NS
    sent_ns = np.sort(path.sent_ns - inside + inside * 9 // 10)
    return pair(Path(path.ids, sent_ns, path.delays_ns, path.lost, start_ns), Lda(64, (0,), tail=64))


def expected(agents: tuple[Agent, Agent], folder: File) -> dict[int, tuple[Any, ...]]:
    """What a collector without faults makes of all messages, by the start of the interval."""
    store = SqliteStore(str(folder / "expected.db"))
    collector = Collector(Rounds([Ends("A>B", "A", "B")]), store)
    for messages in zip(*(agent.messages(0, SECONDS) for agent in agents), strict=True):
        assert collector._take([encode(message) for message in messages]) is not None
    rows = store.rows("A>B", None, SECOND_NS, (0, 2**62), 10_000)
    store.close()
    return {row.start_ns: compared(row.to_json()) for row in rows}


def agree(found: tuple[Any, ...], wanted: tuple[Any, ...] | None, lasted: bool = False) -> bool:
    """Whether figures are the wanted ones. If faults lasted, neighbours may have come too late to know the loss."""
    if wanted is None or found[:-1] != wanted[:-1]:
        return False
    return bool(found[-1] == wanted[-1]) or (lasted and found[-1] is None)


def compared(report: Report) -> tuple[Any, ...]:
    return tuple(report[name] for name in COMPARED)


def held_by(data: bytes, at: int, size: int) -> set[int]:
    """Starts of intervals with a result or a message of which the page there holds a part."""

    def rows(file: bytes) -> set[tuple[Any, ...]]:
        pages = Pages(file)
        return {tuple(row) for number in pages for row in pages.rows(number) if len(row) > 6}

    gone = rows(data) - rows(data[:at] + b"\xff" * size + data[at + size :])
    return {row[2] for row in gone}


def is_sound(folder: File, data: bytes | bytearray) -> bool:
    """Whether SQLite finds no damage in a file."""
    (folder / "whole.db").write_bytes(data)
    with closing(sqlite3.connect(folder / "whole.db")) as base, suppress(sqlite3.Error):
        return bool(base.execute("pragma integrity_check").fetchall() == [("ok",)])
    return False


class FaultyCollector:
    """A collector as a process, with faults that can be turned on and off, and the two agents."""

    def __init__(self, folder: File, library: File, seed: int) -> None:
        self.folder = folder
        (folder / "faults").write_bytes(bytes(24))
        with open(folder / "faults", "r+b") as file:
            self._faults = mmap.mmap(file.fileno(), 24)
        self.agents = traffic(seed)
        self.expected = expected(self.agents, folder)
        self.left = {agent.point: agent.messages(0, SECONDS) for agent in self.agents}
        self.acknowledged: dict[str, Message] = {}
        self._began_s = time.monotonic()
        self.doubtful: set[int] = set()  # starts of intervals that a flipped bit may have taken
        self._environment = {"LD_PRELOAD": str(library), "WIRELAG_FAULTS": str(folder / "faults")}
        self._running: Running | None = None
        self._files: tuple[int, int] | None = None
        self.log = ""
        self.start()

    # ---- faults ----

    def set(self, flush: int | None = None, write: int | None = None, clock_ns: int | None = None) -> None:
        """Change faults: errors of flushes and writes (0: none), and the step of the clock."""
        for at, number in enumerate((flush, write, clock_ns)):
            if number is not None:
                self._faults[8 * at : 8 * at + 8] = struct.pack("q", number)

    def few_files(self) -> None:
        """Leave the collector no file descriptor."""
        process = self.running.process.pid
        used = len(os.listdir(f"/proc/{process}/fd"))
        before = resource.prlimit(
            process, resource.RLIMIT_NOFILE, (used, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
        self._files = self._files or before

    def many_files(self) -> None:
        if self._files is not None:
            resource.prlimit(self.running.process.pid, resource.RLIMIT_NOFILE, self._files)
            self._files = None

    def kill(self) -> None:
        """SIGKILL, and a start without faults."""
        self.running.end(signal.SIGKILL)
        self.log += self.running.log
        self._running = None
        self._files = None
        self.set(0, 0)
        self.start()

    def flip(self, where: float, bit: int, in_header: bool = False) -> None:
        """SIGKILL, and another bit in the store, if it is sound; rows of its page may be lost.

        SQLite sees most bits of a page's header, and so the store is rescued.
        """
        self.running.end(signal.SIGKILL)
        self.log += self.running.log
        self._running, self._files = None, None
        self.set(0, 0)
        store = self.folder / "store.db"
        with closing(sqlite3.connect(store)) as base:
            base.execute("pragma wal_checkpoint(truncate)")
            (size,) = base.execute("pragma page_size").fetchone()
        data = bytearray(store.read_bytes())
        if is_sound(self.folder, data):
            at = size + int(where * (len(data) - size - 1))
            at = at // size * size + at % 8 if in_header else at
            self.doubtful |= held_by(bytes(data), at // size * size, size)
            data[at] ^= 1 << bit
            store.write_bytes(data)
        self.start()

    # ---- the collector ----

    @property
    def running(self) -> Running:
        assert self._running is not None
        return self._running

    def start(self) -> None:
        self._running = Running(self.folder, "--segment", "A>B", environment=self._environment).__enter__()

    def send(self, point: str, count: int, kill_after_s: float | None = None) -> None:
        """Send a point's next messages at once, each once; perhaps the collector is killed meanwhile."""
        some = self.left[point][:count]
        asyncio.run(self._send(some, kill_after_s))
        self.left[point] = [one for one in self.left[point] if one.key not in self.acknowledged]

    def send_again(self, place: int) -> None:
        """Send a message again that was acknowledged."""
        if self.acknowledged:
            asyncio.run(self._send([list(self.acknowledged.values())[place % len(self.acknowledged)]], None))

    async def _send(self, messages: list[Message], kill_after_s: float | None) -> None:
        lines: list[Sender] = [sender(Address(self.running.url), message.point) for message in messages[:1]]
        killing = None if kill_after_s is None else asyncio.create_task(self._kill_after(kill_after_s))
        await asyncio.gather(*(self._send_one(lines[0], message) for message in messages))
        for line in lines:
            await line.close()
        if killing is not None:
            await killing

    async def _kill_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.kill)

    async def _send_one(self, line: Sender, message: Message) -> None:
        try:
            await asyncio.wait_for(line.send(encode(message), message.key), SEND_S)
        except (Unreachable, TimeoutError):
            return
        except Refused as error:
            raise AssertionError(f"a right message was refused: {error}") from None
        self.acknowledged[message.key] = message

    # ---- the model ----

    def heal(self) -> None:
        """All faults end, agents send what is left: then the store must have what the model says."""
        self.set(0, 0, 0)
        self.many_files()
        until(self._all_sent, "that every message is acknowledged")
        until(lambda: not self.wrong(), lambda: f"{self.wrong()} as the model says")
        assert self.running.process.poll() is None
        assert "internal errors" not in self.running.counted()

    def _all_sent(self) -> bool:
        for point in self.left:
            self.send(point, SECONDS)
        return not any(self.left.values())

    def wrong(self) -> dict[int, Any]:
        """Intervals that are missing, twice there, or not as the model says."""
        lasted = time.monotonic() - self._began_s > LINGER_NS / 1e9
        with suppress(OSError, AssertionError):
            found = self.running.reports(limit=10_000)
            starts = [round(one["start"] * 1e9) for one in found]
            by_start = dict(zip(starts, map(compared, found), strict=True))
            return {
                start_ns: by_start.get(start_ns)
                for start_ns in {*self.expected, *by_start}
                if starts.count(start_ns) > 1 or not self._is_right(start_ns, by_start.get(start_ns), lasted)
            }
        return {0: "no reply"}

    def _is_right(self, start_ns: int, found: tuple[Any, ...] | None, lasted: bool) -> bool:
        if start_ns in self.doubtful and (found is None or found[COMPARED.index("mean")] is None):
            return True
        alone = not self.doubtful.isdisjoint((start_ns - SECOND_NS, start_ns, start_ns + SECOND_NS))
        return found is not None and agree(found, self.expected.get(start_ns), lasted or alone)

    def end(self) -> None:
        if self._running is not None:
            self.running.end(signal.SIGKILL)
            self.log += self.running.log
        self._faults.close()
