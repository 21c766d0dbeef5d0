"""Live capture and agents under a flood: the highest rate without drops, the cost of a packet; tcpdump as baseline.

The source sends from one core (frames, by a program in the kernel), the capture has the other to itself. Capture,
agents and tcpdump get a ring of 64 MiB. `python benchmarks/live.py` runs it; as root, for the lab.
"""

from __future__ import annotations

import math
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab import flood
from lab.network import Network
from lab.processes import Process
from wirelag.capture.live import RING_BYTES, Live
from wirelag.estimators.match import Match

SECONDS = 4
RATE = 500_000  # packets per second that must come without drops
FAST = 1_000_000  # the same, for an agent with rda
LIMITS = {"at the rate": 80, "agent, lda": 110, "agent, rda": 200}  # ns of processor time a packet


@dataclass(frozen=True)
class Flood:
    """The result of one flood."""

    rate: float  # packets per second that the source sent
    sent: int
    received: int
    dropped: int
    cpu_ns: float  # processor time of the capture per received packet

    @property
    def accounted(self) -> bool:
        """Whether every packet was received or counted as dropped."""
        return self.received + self.dropped == self.sent


@contextmanager
def cable() -> Iterator[Network]:
    """A source and a sink; this process on the last core, the source on the first."""
    cores = sorted(os.sched_getaffinity(0))
    network = Network("bench")
    flood.build(network, frames=True)
    try:
        os.sched_setaffinity(0, {cores[-1]})
        yield network
    finally:
        os.sched_setaffinity(0, cores)
        network.down()


def captured(
    network: Network, folder: Path, rate: float | None, ring_bytes: int = RING_BYTES, match: bool = True
) -> Flood:
    """Receive and decode; and match, as `wirelag watch` does."""
    with network.inside(flood.SINK):
        live = Live(flood.SOURCE, ring_bytes=ring_bytes)
    meter, idle = Match().meter("tap"), 0
    process = _flood(network, folder, rate)
    before = _cpu_ns()
    with live:
        for batch in live:
            if len(batch):
                if match:
                    meter.observe(batch)
                idle = 0
            else:
                idle += 1
                if idle > 10 and "seconds=" in process.said():
                    live.stop()
        cpu_ns = _cpu_ns() - before
        known = live.statistics
    sent, seconds = flood.result(process.said())
    return Flood(sent / seconds, sent, known.received, known.dropped, cpu_ns / max(known.received, 1))


def by_tcpdump(network: Network, folder: Path, rate: float | None) -> Flood:
    """Run `tcpdump -w`, with the same snap length."""
    options = f"-i {flood.SOURCE} -n -s 512 -B {RING_BYTES >> 10} -Z root -w /dev/null"
    beside = network.start(flood.SINK, ["tcpdump", *options.split()], folder / "tcpdump.txt")
    beside.wait_for_line("listening on")
    process = _flood(network, folder, rate)
    sent, seconds = flood.result(process.finish(120))
    flood_used = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = beside.stop(signal.SIGINT)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    network.processes.remove(beside)
    cpu_s = used.ru_utime + used.ru_stime - flood_used.ru_utime - flood_used.ru_stime
    counts = [int(found) for found in re.findall(r"(\d+) packets? (?:received by filter|dropped by kernel)", said)]
    received, dropped = counts[0], counts[1]
    return Flood(sent / seconds, sent, received - dropped, dropped, cpu_s * 1e9 / max(received - dropped, 1))


def by_agent(network: Network, folder: Path, estimator: str, rate: float | None) -> Flood:
    """Run `wirelag agent`, a synopsis per second; its messages are not collected, so they wait on disk."""
    command = [sys.executable, "-m", "wirelag.cli", "agent", "--point", "bench", "--interface", flood.SOURCE]
    command += ["--estimator", estimator, "--cut", "clock"] if estimator == "lda" else ["--estimator", estimator]
    command += ["--filter", f"udp port {flood.PORT}", "--spool", str(folder / "spool")]
    agent = network.start(flood.SINK, [*command, "--collector", "http://127.0.0.1:1"], folder / "agent.txt")
    agent.wait_for_line("messages wait on disk")
    before = _cpu_of(agent.pid)
    process = _flood(network, folder, rate)
    sent, seconds = flood.result(process.finish(120))
    time.sleep(0.5)  # until the ring is empty and the last interval is written to disk
    cpu_ns = _cpu_of(agent.pid) - before
    said = agent.stop(signal.SIGTERM)
    network.processes.remove(agent)
    found = re.search(r"([\d,]+) packets(?:, ([\d,]+) unseen)?", said.splitlines()[-1])
    if found is None:
        raise OSError(f"the agent failed: {said}")
    received, dropped = (int((number or "0").replace(",", "")) for number in found.groups())
    return Flood(sent / seconds, sent, received, dropped, cpu_ns / max(received, 1))


def _flood(network: Network, folder: Path, rate: float | None) -> Process:
    return flood.start(network, round(SECONDS * (rate or 1.5e6)), rate, folder / "flood.txt", frames=True)


def _cpu_of(pid: int) -> float:
    """Processor time of a running process."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) * 1e9 / os.sysconf("SC_CLK_TCK")


def _cpu_ns() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e9


def main() -> None:
    """Print all; exit with 1 if packets were dropped or cost too much, or were not accounted for."""
    with tempfile.TemporaryDirectory() as name, cable() as network:
        folder = Path(name)
        floods = {
            "at the rate": captured(network, folder, RATE),
            "as fast as it goes": captured(network, folder, None),
            "a ring of 256 KiB": captured(network, folder, None, ring_bytes=1 << 18),
            "without matching": captured(network, folder, RATE, match=False),
            "tcpdump -w": by_tcpdump(network, folder, RATE),
            "agent, lda": by_agent(network, folder, "lda", RATE),
            "agent, lda, fast": by_agent(network, folder, "lda", FAST),
            "agent, rda": by_agent(network, folder, "rda", RATE),
            "agent, rda, fast": by_agent(network, folder, "rda", FAST),
        }
    held = True
    for what, found in floods.items():
        problems = [] if found.accounted or what == "tcpdump -w" else ["NOT ACCOUNTED FOR"]
        if found.dropped and what in (*LIMITS, "agent, rda, fast"):
            problems.append("DROPPED")
        if found.cpu_ns > LIMITS.get(what, math.inf):
            problems.append("MISSED")
        held = held and not problems
        limit = f" (at most {LIMITS[what]})" if what in LIMITS else ""
        print(
            f"{what:<20} {found.rate / 1e3:7,.0f} kpps  sent {found.sent:,}  dropped {found.dropped:,}  "
            f"{found.cpu_ns:.0f} ns of CPU a packet{limit}  {', '.join(problems)}".rstrip()
        )
    ratio = floods["tcpdump -w"].cpu_ns / floods["without matching"].cpu_ns
    print(f"CPU of tcpdump -w / of capture and decoding: {ratio:.2f}")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
