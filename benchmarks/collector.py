"""What a collector costs: processor time per segment and interval, with real messages of agents over HTTP.

    python benchmarks/collector.py                          rda of 500 packets/s, lda, rda of 15,000 packets/s
    python benchmarks/collector.py --segments 100 --seconds 20
    python benchmarks/collector.py --store postgresql://...     another store than a file
    python benchmarks/collector.py --beside "OTHER/.venv/bin/python -m wirelag.cli"     another version, by turns

Meters cut packets with known delays, 1% of them lost; agents send what they cut at the end of each second and answer
what they are asked, each over two connections, as `wirelag agent` does. The collector is a process of its own, with a
token. Its processor time is the kernel's count, from the first message until everything is settled.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.agent_messages import Agent, pair, usual
from tests.support.agent_messages import Path as Travelled
from tests.support.ports import free_port
from wirelag.protocol.messages import decode, encode
from wirelag.transport.http import FRAME, MEDIA_TYPE

SECOND_NS = 10**9
TICKS = os.sysconf("SC_CLK_TCK")
TOKEN = "a-token-for-this-benchmark-only"
KINDS = 8  # different paths; segments beyond have packets like these
CASES = (("rda", 500), ("lda", 500), ("rda", 15_000))
LOSS = 0.01
PATIENCE_S = 120.0
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

    agent: Agent
    name: str
    segment: str
    door: asyncio.Semaphore  # connections without a token are few
    last: str = ""  # ask that was answered

    async def run(self, port: int, count: int, counted: Counter[str]) -> None:
        """Send each interval when it ends."""
        line = None
        for message in self.agent.messages(0, count):
            data = encode(replace(message, point=self.name, segment=self.segment, sent_ns=message.interval.end_ns))
            await asyncio.sleep((message.interval.end_ns - time.time_ns()) / 1e9)
            counted["messages"] += 1
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
                reply = self.agent.answer(decode(data))
                self.last = f"{life}-{number}"
                counted["messages"] += 1
                out = out or await Line.to(port, self.name)
                await out.post(encode(replace(reply, point=self.name, segment=self.segment)), self.last)


async def load(port: int, name: str, rate: int, segments: int, seconds: int) -> Counter[str]:
    """All agents, until everything is sent, and answered for a while."""
    start_ns = (time.time_ns() // SECOND_NS + 2 + segments // 50) * SECOND_NS
    made = [Travelled.made(seconds + 1, rate, seed, LOSS, start_ns=start_ns) for seed in range(KINDS)]
    pairs = [pair(path, usual(name)) for path in made]
    kinds = [[Again(one, seconds + 1) for one in both] for both in pairs]
    points, door = list[Point](), asyncio.Semaphore(16)
    for i in range(segments):
        names = f"U{i}", f"D{i}"
        points += [Point(kinds[i % KINDS][side], names[side], ">".join(names), door) for side in (0, 1)]
    counted: Counter[str] = Counter()
    answering = [asyncio.create_task(one.answer(port, counted)) for one in points]
    async with asyncio.timeout(seconds + PATIENCE_S):
        await asyncio.gather(*(one.run(port, seconds + 1, counted) for one in points))
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


class Again(Agent):
    """An agent whose intervals are cut once, for all segments that are like it."""

    def __init__(self, agent: Agent, count: int) -> None:
        super().__init__(agent.point, agent.terms, agent.packets, agent.start_ns)
        self._made = super().messages(0, count)

    def messages(self, first: int, count: int) -> list[object]:  # type: ignore[override]
        """Those of the start."""
        return self._made[first : first + count]  # type: ignore[return-value]


@dataclass(frozen=True)
class Cost:
    """Messages and processor ms per segment and interval."""

    messages: float
    server: float
    others: float

    @property
    def whole(self) -> float:
        return self.server + self.others

    def line(self, name: str, rate: int, segments: int) -> str:
        """One line of the table."""
        return (
            f"{name:4} {rate:7,} {segments:9} {self.messages:9.1f} {self.server:8.2f} {self.others:8.2f}"
            f" {self.whole:8.2f} {1e3 / self.whole:9.0f} {AGENTS / 2 * self.whole / 1e3:9.1f}"
        )


def measure(name: str, rate: int, segments: int, seconds: int, store: str | None, wrapper: list[str]) -> Cost:
    """What one case costs."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        tokens = Path(folder, "tokens")
        tokens.write_text(TOKEN + "\n")
        tokens.chmod(0o600)
        words = ["collect", "--listen", f"127.0.0.1:{port}", "--store", store or f"{folder}/store.db"]
        command = [*(wrapper or [sys.executable, "-m", "wirelag.cli"]), *words, "--token-file", str(tokens)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                while "collecting at" not in (line := process.stderr.readline()):
                    assert line, "the collector did not start"
                before = threads_s(process.pid)
                counted = asyncio.run(load(port, name, rate, segments, seconds))
                used = threads_s(process.pid)
                used.subtract(before)
            finally:
                process.terminate()
            for line in process.stderr:
                if "beside" not in line:
                    print(line, end="", file=sys.stderr)
    each = {what: 1e3 * s / segments / seconds for what, s in used.items()}
    return Cost(counted["messages"] / segments / seconds, each["server"], each["others"])


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=12)
    parser.add_argument("--store", help="a database; a file, if not given")
    parser.add_argument("--only", metavar="METHOD:RATE", help="one line, such as rda:500")
    parser.add_argument("--with", dest="wrapper", default="", help="a command that runs the collector's arguments")
    parser.add_argument("--beside", default="", help="the same of another version: measured by turns")
    parser.add_argument("--rounds", type=int, default=1, help="how often; the best counts")
    options = parser.parse_args()
    cases = [(one.split(":")[0], int(one.split(":")[1])) for one in [options.only]] if options.only else CASES
    print(f"CPU ms per segment and interval of 1 s, segments at 1 s per core, and cores for {AGENTS:,} agents")
    print("method pkt/s  segments  messages   server   others      all    a core     cores")
    for name, rate in cases:
        best: dict[str, Cost] = {}
        for version in [options.wrapper, *filter(None, [options.beside])] * options.rounds:
            found = measure(name, rate, options.segments, options.seconds, options.store, version.split())
            print(found.line(name, rate, options.segments), version and f" by {version}", flush=True)
            best[version] = min(found, best.get(version, found), key=lambda one: one.whole)
        if options.beside:
            ratio = best[options.beside].whole / best[options.wrapper].whole
            print(f"{name:4} {rate:7,} best of {options.rounds}: the other one takes {ratio:.2f} times as much")


if __name__ == "__main__":
    main()
