"""Drill: agents under load and a collector to which everything happens at random; nothing may be lost or doubled.

    python experiments/drill.py --minutes 60

Agents send an interval each second, through real spools and connections. Meanwhile, at random: the collector is killed
(SIGKILL), its flushes and writes fail (EIO, ENOSPC), its clock is set, its file descriptors run out, it is stopped for
a while; agents are killed and start again with their spools. Then all faults end, agents deliver what waits, and every
interval must be in the store once, with the figures that a collector without faults finds.
"""

import argparse
import asyncio
import errno
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from mmap import mmap
from pathlib import Path as File
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(File(__file__).parent.parent))
from tests.support.agent_messages import SECOND_NS, Agent, Path, pair
from tests.support.collector_process import Running
from tests.support.faulty_collector import agree, compared, compiled
from tests.support.transport_peers import free_port
from wirelag.collector.loop import Collector
from wirelag.collector.sqlite import SqliteStore
from wirelag.estimators.lda import Lda
from wirelag.protocol.messages import Message, encode
from wirelag.protocol.session import Rounds
from wirelag.transport import Address, sender
from wirelag.transport.outbox import Outbox
from wirelag.transport.spool import Spool

MOST_MEMORY = 600 << 20  # limits.memory, 128 MiB of messages that are not stored yet, and the program
YEAR_NS = 365 * 86400 * SECOND_NS
FAULT_S = (0.5, 6.0)  # how long a fault lasts
PAUSE_S = (0.5, 4.0)
JUDGING_S = 150.0  # without progress: more than twice what an interval waits for its neighbours


def traffic(number: int, seconds: int, start_ns: int) -> tuple[Agent, Agent]:
    """The two ends of a segment; no packet is under way at the end of an interval, so no result needs another's."""
    path = Path.made(seconds, 50, number, loss=0.02, delay_ns=1e5, start_ns=start_ns)
    inside = (path.sent_ns - start_ns) % SECOND_NS
    sent_ns = np.sort(path.sent_ns - inside + inside * 9 // 10)
    names = f"A{number}", f"B{number}"
    ends = pair(Path(path.ids, sent_ns, path.delays_ns, path.lost, start_ns), Lda(64, (0,), tail=64))
    first, second = (replace(a, point=name, segment=">".join(names)) for a, name in zip(ends, names, strict=True))
    return first, second


class Faults:
    """The collector, and what is wrong with it now."""

    def __init__(self, folder: File, library: File) -> None:
        self._folder, self._port = folder, free_port()
        (folder / "faults").write_bytes(bytes(24))
        with open(folder / "faults", "r+b") as file:
            self._numbers = mmap(file.fileno(), 24)
        self._environment = {"LD_PRELOAD": str(library), "WIRELAG_FAULTS": str(folder / "faults")}
        self.counted: Counter[str] = Counter()
        self.most_bytes = 0
        self._start()

    def _start(self) -> None:
        self.running = Running(self._folder, port=self._port, environment=self._environment).__enter__()

    def set(self, *numbers: int | None) -> None:
        for at, number in enumerate(numbers):
            if number is not None:
                self._numbers[8 * at : 8 * at + 8] = struct.pack("q", number)

    def look(self) -> None:
        """Remember how much memory it took."""
        with suppress(OSError, StopIteration):
            lines = File(f"/proc/{self.running.process.pid}/status").read_text().splitlines()
            used = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
            self.most_bytes = max(self.most_bytes, used)

    async def happen(self, rng: random.Random) -> None:
        """One fault, for a while."""
        what = rng.choice(("kill", "flush", "write", "clock", "files", "stop"))
        self.counted[what] += 1
        process, for_s = self.running.process.pid, rng.uniform(*FAULT_S)
        match what:
            case "kill":
                self.look()
                await asyncio.to_thread(self.running.end, signal.SIGKILL)
                self.set(0, 0)
                await asyncio.to_thread(self._start)
            case "flush" | "write":
                error = rng.choice((errno.EIO, errno.ENOSPC))
                self.set(*((error, None) if what == "flush" else (None, error)))
                await asyncio.sleep(for_s)
                self.set(0, 0)
            case "clock":
                step_ns = rng.choice((30, -30, 3600, -3600)) * SECOND_NS if rng.random() < 0.8 else 3 * YEAR_NS
                self.set(None, None, step_ns)
                await asyncio.sleep(for_s)
                self.set(None, None, 0)
            case "files":
                used = len(os.listdir(f"/proc/{process}/fd"))
                before = resource.prlimit(process, resource.RLIMIT_NOFILE)
                resource.prlimit(process, resource.RLIMIT_NOFILE, (used, before[1]))
                await asyncio.sleep(for_s)
                resource.prlimit(process, resource.RLIMIT_NOFILE, before)
            case "stop":
                os.kill(process, signal.SIGSTOP)
                await asyncio.sleep(for_s)
                os.kill(process, signal.SIGCONT)


@dataclass
class Sending:
    """An agent: real spool, outbox and connections."""

    messages: list[Message]
    folder: File
    address: Address
    killed: int = 0

    def start(self) -> None:
        self._spool = Spool(self.folder)
        self._way = sender(self.address, self.messages[0].point)
        self.outbox = Outbox(self._way, self._spool)
        self._task = asyncio.create_task(self.outbox.run())

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._way.close()
        self._spool.close()

    async def again(self) -> None:
        """Kill it, with what is under way, and start it with its spool."""
        self.killed += 1
        await self.end()
        self.start()

    async def produce(self, kill: random.Random) -> None:
        """A message a second, when its interval has ended."""
        for message in self.messages:
            await asyncio.sleep(max(0.0, message.interval.end_ns / 1e9 - time.time()))
            await self.outbox.put(encode(message), message.key)
            if kill.random() < 0.01:
                await self.again()


def expected(agents: list[tuple[Agent, Agent]], seconds: int, folder: File) -> dict[tuple[str, int], Any]:
    """What a collector without faults finds, by segment and interval."""
    store = SqliteStore(str(folder / "expected.db"))
    collector = Collector(Rounds([], named_by_agents=True), store)
    for ends in agents:
        for messages in zip(*(agent.messages(0, seconds) for agent in ends), strict=True):
            assert collector._take([encode(message) for message in messages]) is not None
    found = {
        (str(ends[0].segment), row.start_ns): compared(row.to_json())
        for ends in agents
        for row in store.rows(str(ends[0].segment), None, SECOND_NS, (0, 2**62), 10**6)
    }
    store.close()
    return found


async def drill(arguments: argparse.Namespace, folder: File, library: File) -> bool:
    seconds, rng = round(60 * arguments.minutes), random.Random(arguments.seed)
    start_ns = (time.time_ns() // SECOND_NS + 2) * SECOND_NS
    agents = [traffic(number, seconds, start_ns) for number in range(arguments.segments)]
    faults = Faults(folder, library)
    address = Address(faults.running.url)
    senders = [
        Sending(agent.messages(0, seconds), folder / f"spool-{agent.point}", address)
        for ends in agents
        for agent in ends
    ]
    for one in senders:
        one.start()
    producing = asyncio.gather(*(one.produce(random.Random(rng.random())) for one in senders))
    while not producing.done():
        await asyncio.sleep(rng.uniform(*PAUSE_S))
        faults.look()
        await faults.happen(rng)
    await producing
    print(f"faults: {dict(faults.counted)}, agents killed: {sum(one.killed for one in senders)}", flush=True)
    faults.set(0, 0, 0)
    try:
        async with asyncio.timeout(arguments.patience):
            await asyncio.gather(*(one.outbox.drained() for one in senders))
    except TimeoutError:
        print(f"agents could not deliver everything in {arguments.patience:g} s: what is missing counts as lost")
    wanted = await asyncio.to_thread(expected, agents, seconds, folder)
    dropped = sum(one.outbox.dropped + one.outbox.refused for one in senders)
    found = await asyncio.to_thread(judged, faults.running, agents, wanted)
    faults.look()
    for one in senders:
        await one.end()
    faults.running.end(signal.SIGTERM)
    print(
        f"{len(wanted):,} intervals of {len(agents)} segments: lost {found.lost}, doubled {found.doubled}, "
        f"wrong {found.wrong}, unsettled {found.unsettled}, dropped by agents {dropped}; "
        f"{faults.counted.total()} faults; collector's memory at most {faults.most_bytes >> 20} MiB "
        f"(bound {MOST_MEMORY >> 20})"
    )
    return not any((*found, dropped)) and faults.most_bytes < MOST_MEMORY


class Verdict(NamedTuple):
    """How many intervals are missing, there twice, have other figures, or never got their loss."""

    lost: int
    doubled: int
    wrong: int
    unsettled: int


def judged(running: Running, agents: list[tuple[Agent, Agent]], wanted: dict[tuple[str, int], Any]) -> Verdict:
    """What the store has, after the last intervals were processed."""
    end_s, fewest = 0.0, 1 << 62
    while True:
        found: list[tuple[tuple[str, int], Any]] = []
        for ends in agents:
            segment, last = str(ends[0].segment), 0.0
            while rows := running.reports(segment, limit=5000, **({"to": last} if last else {})):
                found += [((segment, round(one["start"] * 1e9)), compared(one)) for one in rows]
                last = rows[0]["start"]
        by_place = dict(found)
        off = {place: figures for place, figures in by_place.items() if not agree(figures, wanted.get(place))}
        unsettled = sum(agree(figures, wanted.get(place), lasted=True) for place, figures in off.items())
        lost = sum(place not in by_place for place in wanted)
        if lost + len(off) < fewest:
            end_s, fewest = time.monotonic() + JUDGING_S, lost + len(off)
        if not fewest or time.monotonic() > end_s:
            break
        time.sleep(1)
    return Verdict(lost, len(found) - len(by_place), len(off) - unsettled, unsettled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--segments", type=int, default=4)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to deliver what waits at the end")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wirelag-drill-") as folder:
        library = compiled(File(folder))
        if library is None:
            sys.exit("drill: needs a C compiler (cc)")
        sys.exit(0 if asyncio.run(drill(arguments, File(folder), library)) else 1)


if __name__ == "__main__":
    main()
