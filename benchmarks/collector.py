"""What a collector costs: processor time per segment and interval, with real messages of agents over HTTP.

    python benchmarks/collector.py                          rda of 500 packets/s, lda, rda of 15,000 packets/s
    python benchmarks/collector.py --segments 100 --seconds 20
    python benchmarks/collector.py --calm                   no packet is lost or overtaken
    python benchmarks/collector.py --store postgresql://...     another store than a file
    python benchmarks/collector.py --collectors 2           several, with a database and a broker of their own
    python benchmarks/collector.py --beside "OTHER/.venv/bin/python -m wirelag.cli"     another version, by turns

Packets have known delays, which differ so much that many are overtaken, and 1% of them are lost; agents cut them, send
what they cut at the end of each second and answer what they are asked, each over two connections, with the code of
`wirelag agent`. The collector is a process of its own, with a token. Its processor time is the kernel's count, from the
first message until everything is settled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.agent_messages import CLOCK, usual
from tests.support.agent_messages import Path as Travelled
from tests.support.fleet import broker
from tests.support.ports import free_port
from tests.support.postgres import Server as Database
from tests.support.waiting import until
from wirelag.agent.composing import encoded
from wirelag.agent.config import Measured
from wirelag.agent.cutting import ByClock, CutPart, Unseen
from wirelag.agent.history import History
from wirelag.packets.batch import PacketBatch
from wirelag.protocol.messages import Message, decode
from wirelag.protocol.terms import Terms
from wirelag.transport.http import FRAME, MEDIA_TYPE

SECOND_NS = 10**9
TICKS = os.sysconf("SC_CLK_TCK")
TOKEN = "a-token-for-this-benchmark-only"
KINDS = 8  # different paths; segments beyond have packets like these
CASES = (("rda", 500), ("lda", 500), ("rda", 15_000))
LOSS = 0.01
CALM_NS = 5_000_000
PATIENCE_S = 120.0
PAST_BYTES = 16 << 20  # of packets that an agent keeps to answer
AGENTS = 1000  # for which the measured cost is extrapolated: two are at the ends of a segment


def threads_s(pid: int) -> Counter[str]:
    """Processor time of each kind of thread so far."""
    found: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        _, _, rest = task.joinpath("stat").read_text().partition("(")[2].rpartition(")")
        fields = rest.split()
        found["server" if task.name == str(pid) else "others"] += (int(fields[11]) + int(fields[12])) / TICKS
    return found


@dataclass
class Line:
    """A connection of an agent: requests as `wirelag agent` sends them."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    run: str
    port: int

    @classmethod
    async def to(cls, port: int, run: str) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", port), run, port)

    async def post(self, data: bytes, last: str) -> None:
        """Send a message, again and again until it is stored."""
        told = f"Wirelag-Ask: {last}\r\n" if last else ""
        head = (
            f"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Type: {MEDIA_TYPE}\r\nContent-Length: {len(data)}\r\nWirelag-Run: {self.run}\r\n{told}\r\n"
        )
        while True:
            try:
                self.writer.write(head.encode() + data)
                said = await self.reader.readuntil(b"\r\n\r\n")
            except (OSError, asyncio.IncompleteReadError):  # it was idle for too long
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
                continue
            if said.startswith(b"HTTP/1.1 204"):
                return
            length = next(line for line in said.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            why = await self.reader.readexactly(int(length.partition(b":")[2]))
            print(said.split(b"\r\n")[0].decode(), why.decode(), file=sys.stderr)
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)


@dataclass
class Point:
    """An agent with one segment."""

    parts: list[CutPart]
    name: str
    segment: str
    door: asyncio.Semaphore  # connections without a token are few
    past: History
    last: str = ""  # ask that was answered

    def message(self, part: CutPart) -> bytes:
        """A part as it is sent."""
        part = replace(part, measured=replace(part.measured, segment=self.segment))
        interval, terms = part.cut.interval, part.measured.terms
        if terms.estimator.can.second_round:
            self.past.keep(part)
        about = Message("synopsis", self.name, self.segment, interval, terms, CLOCK, part.seen, sent_ns=interval.end_ns)
        return encoded(part, about, self.past)[0]

    async def run(self, port: int, counted: Counter[str]) -> None:
        """Send each interval when it ends."""
        line = None
        for part in self.parts:
            await asyncio.sleep((part.cut.interval.end_ns - time.time_ns()) / 1e9)
            data = self.message(part)
            counted["messages"] += 1
            counted["bytes"] += len(data)
            if line is None:
                async with self.door:
                    line = await Line.to(port, self.name)
                    await line.post(data, self.last)
            else:
                await line.post(data, self.last)
        counted["sent"] += 1

    async def answer(self, port: int, counted: Counter[str]) -> None:
        """Answer what it is asked, until it is cancelled."""
        head = f"GET /v1/asks/{self.name}?after= HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        async with self.door:
            asks = await Line.to(port, self.name)
            asks.writer.write(head.encode())
            said = await asks.reader.readuntil(b"\r\n\r\n")
        life = next(x for x in said.decode().split("\r\n") if x.lower().startswith("wirelag-ask:")).partition(": ")[2]
        body, out = b"", None
        while True:
            while len(body) < FRAME.size or len(body) < FRAME.size + FRAME.unpack_from(body)[0]:
                size = int(await asks.reader.readuntil(b"\r\n"), 16)
                body += (await asks.reader.readexactly(size + 2))[:-2]
            length, number = FRAME.unpack_from(body)
            data, body = body[FRAME.size : FRAME.size + length], body[FRAME.size + length :]
            if length:
                reply, _ = self.past.answer(decode(data))
                self.last = f"{life}-{number}"
                counted["messages"] += 1
                counted["bytes"] += len(reply)
                out = out or await Line.to(port, self.name)
                await out.post(reply, self.last)


def travelled(rate: int, seed: int, seconds: int, start_ns: int, calm: bool) -> Travelled:
    """The packets of a path."""
    made = Travelled.made(seconds, rate, seed, 0.0 if calm else LOSS, start_ns=start_ns)
    return replace(made, delays_ns=np.full(len(made.ids), CALM_NS)) if calm else made


async def load(ports: list[int], name: str, rate: int, segments: int, seconds: int, calm: bool) -> Counter[str]:
    """All agents, each at one of the ports, until everything is sent, and answered for a while."""
    start_ns = (time.time_ns() // SECOND_NS + 2 + segments // 50) * SECOND_NS
    terms = Terms(usual(name), interval_ns=SECOND_NS)
    paths = [travelled(rate, seed, seconds + 1, start_ns, calm) for seed in range(min(KINDS, segments))]
    kinds = [[cut(batch, terms, path.start_ns, seconds + 1) for batch in path.points] for path in paths]
    points, door = list[Point](), asyncio.Semaphore(16)
    for i in range(segments):
        ends = f"U{i}", f"D{i}"
        for end, parts in zip(ends, kinds[i % KINDS], strict=True):
            points.append(Point(parts, end, ">".join(ends), door, History(end, PAST_BYTES, start_ns)))
    counted: Counter[str] = Counter()
    placed = [
        (one, ports[i % len(ports)]) for i, one in enumerate(points)
    ]  # the ends of a segment at two, if there are
    answering = [asyncio.create_task(one.answer(port, counted)) for one, port in placed]
    async with asyncio.timeout(seconds + PATIENCE_S):
        await asyncio.gather(*(one.run(port, counted) for one, port in placed))
        before = -1
        while before != counted["messages"]:  # replies
            before = counted["messages"]
            await asyncio.sleep(1.0)
    for task in answering:
        task.cancel()
    found = await asyncio.gather(*answering, return_exceptions=True)
    wrong = [one for one in found if not isinstance(one, asyncio.CancelledError)]
    assert not wrong, wrong
    return counted


def cut(packets: PacketBatch, terms: Terms, start_ns: int, count: int) -> list[CutPart]:
    """The first parts of a point's packets, which all segments that are alike have."""
    cutting = ByClock((Measured(None, terms, None, False),), SECOND_NS, 0, Unseen(SECOND_NS, start_ns))
    cutting.begin(start_ns)
    return [*cutting.take(packets), *cutting.end(start_ns + count * SECOND_NS)][:count]


@dataclass(frozen=True)
class Cost:
    """Messages, bytes and processor ms per segment and interval."""

    messages: float
    bytes: float
    server: float
    others: float

    @property
    def whole(self) -> float:
        return self.server + self.others

    def line(self, name: str, rate: int, segments: int) -> str:
        """One line of the table."""
        return (
            f"{name:4} {rate:7,} {segments:9} {self.messages:9.1f} {self.bytes / 1e3:6.1f} {self.server:8.2f}"
            f" {self.others:8.2f} {self.whole:8.2f} {1e3 / self.whole:9.0f} {AGENTS / 2 * self.whole / 1e3:9.1f}"
        )


@contextmanager
def collecting(words: list[str], port: int, wrapper: list[str]) -> Iterator[int]:
    """A collector; the number of its process."""
    command = [*(wrapper or [sys.executable, "-m", "wirelag.cli"]), "collect", "--listen", f"127.0.0.1:{port}", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            while "collecting at" not in (line := process.stderr.readline()):
                assert line, "the collector did not start"
            yield process.pid
        finally:
            process.terminate()
        for line in process.stderr:
            if "beside" not in line:
                print(line, end="", file=sys.stderr)


def measure(
    case: tuple[str, int, bool], segments: int, seconds: int, store: str | None, wrapper: list[str], collectors: int
) -> Cost:
    """What one case costs; with `collectors`, that many together."""
    name, rate, calm = case
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokens = folder / "tokens"
        tokens.write_text(TOKEN + "\n")
        tokens.chmod(0o600)
        words = ["--token-file", str(tokens), "--store", store or f"{folder}/store.db"]
        if collectors:
            database = Database(folder / "database")
            database.make()
            database.start()
            stack.callback(database.stop)
            words = [
                *words[:2],
                "--store",
                database.database(),
                "--nats",
                stack.enter_context(broker(folder / "broker")),
            ]
        ports = [free_port() for _ in range(collectors or 1)]
        running = [stack.enter_context(collecting(words, port, wrapper)) for port in ports]
        if collectors:
            until(lambda: all(map(shares, ports)), "collectors that share the work")
        before = sum(map(threads_s, running), Counter[str]())
        counted = asyncio.run(load(ports, name, rate, segments, seconds, calm))
        used = sum(map(threads_s, running), Counter[str]())
        used.subtract(before)
    each = {what: 1e3 * s / segments / seconds for what, s in used.items()}
    sent = [counted[what] / segments / seconds for what in ("messages", "bytes")]
    return Cost(*sent, each["server"], each["others"])


def shares(port: int) -> bool:
    """Whether a collector has taken over its part of the work."""
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/api/v1/status")
    asked.add_header("Authorization", f"Bearer {TOKEN}")
    with urllib.request.urlopen(asked) as said:
        return "partitions taken over" in json.load(said)["counted"]


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=12)
    parser.add_argument("--calm", action="store_true", help="no packet is lost or overtaken")
    parser.add_argument("--store", help="a database; a file, if not given")
    parser.add_argument("--collectors", type=int, default=0, help="several that share a database and a broker")
    parser.add_argument("--only", metavar="METHOD:RATE", help="one line, such as rda:500")
    parser.add_argument("--with", dest="wrapper", default="", help="a command that runs the collector's arguments")
    parser.add_argument("--beside", default="", help="the same of another version: measured by turns")
    parser.add_argument("--rounds", type=int, default=1, help="how often; the best counts")
    options = parser.parse_args()
    cases = [(one.split(":")[0], int(one.split(":")[1])) for one in [options.only]] if options.only else CASES
    print(f"CPU ms per segment and interval of 1 s, segments at 1 s per core, and cores for {AGENTS:,} agents")
    print("method pkt/s  segments  messages     kB   server   others      all    a core     cores")
    for name, rate in cases:
        best: dict[str, Cost] = {}
        for version in [options.wrapper, *filter(None, [options.beside])] * options.rounds:
            case = name, rate, options.calm
            found = measure(case, options.segments, options.seconds, options.store, version.split(), options.collectors)
            print(found.line(name, rate, options.segments), version and f" by {version}", flush=True)
            best[version] = min(found, best.get(version, found), key=lambda one: one.whole)
        if options.beside:
            ratio = best[options.beside].whole / best[options.wrapper].whole
            print(f"{name:4} {rate:7,} best of {options.rounds}: the other one takes {ratio:.2f} times as much")


if __name__ == "__main__":
    main()
