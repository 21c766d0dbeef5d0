"""Live capture under a flood: the highest rate without drops, and what a packet costs; tcpdump beside it.

The source sends from one core, the capture has the other to itself. Both capture and tcpdump get a ring of 64 MiB.
`python benchmarks/live.py` runs it; as root, for the lab.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab import flood
from lab.network import Network
from wirelag.estimators.match import Match
from wirelag.io.live import RING_BYTES, Live

SECONDS = 4
RATE = 500_000  # packets a second that must come without drops


@dataclass(frozen=True)
class Flood:
    """What one flood showed."""

    rate: float  # packets a second that the source sent
    sent: int
    received: int
    dropped: int
    cpu_ns: float  # of the capture, for each packet it received

    @property
    def accounted(self) -> bool:
        """Whether every packet was received or is known to be dropped."""
        return self.received + self.dropped == self.sent


@contextmanager
def cable() -> Iterator[Network]:
    """A source and a sink; this process on the last core, the source on the first."""
    cores = sorted(os.sched_getaffinity(0))
    network = Network("bench")
    flood.build(network)
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
    process = flood.start(network, round(SECONDS * (rate or 1.5e6)), rate, folder / "flood.txt")
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
    """`tcpdump -w`, of as many bytes of each packet."""
    options = f"-i {flood.SOURCE} -n -s 512 -B {RING_BYTES >> 10} -Z root -w /dev/null"
    beside = network.start(flood.SINK, ["tcpdump", *options.split()], folder / "tcpdump.txt")
    beside.wait_for_line("listening on")
    process = flood.start(network, round(SECONDS * (rate or 1.5e6)), rate, folder / "flood.txt")
    sent, seconds = flood.result(process.finish(120))
    flood_used = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = beside.stop(signal.SIGINT)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    network.processes.remove(beside)
    cpu_s = used.ru_utime + used.ru_stime - flood_used.ru_utime - flood_used.ru_stime
    counts = [int(found) for found in re.findall(r"(\d+) packets? (?:received by filter|dropped by kernel)", said)]
    received, dropped = counts[0], counts[1]
    return Flood(sent / seconds, sent, received - dropped, dropped, cpu_s * 1e9 / max(received - dropped, 1))


def _cpu_ns() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e9


def main() -> None:
    """Print all, and exit with 1 if packets were dropped at the rate that must be held, or were not accounted for."""
    with tempfile.TemporaryDirectory() as name, cable() as network:
        folder = Path(name)
        held = captured(network, folder, RATE)
        most = captured(network, folder, None)
        small = captured(network, folder, None, ring_bytes=1 << 18)
        decoded = captured(network, folder, RATE, match=False)
        other = by_tcpdump(network, folder, RATE)
    names = "at the rate", "as fast as it goes", "a ring of 256 KiB", "without matching", "tcpdump -w"
    for what, found in zip(names, (held, most, small, decoded, other), strict=True):
        print(
            f"{what:<20} {found.rate / 1e3:7,.0f} kpps  sent {found.sent:,}  dropped {found.dropped:,}  "
            f"{found.cpu_ns:.0f} ns of CPU a packet{'' if found.accounted else '  NOT ACCOUNTED FOR'}"
        )
    print(f"CPU of tcpdump -w / of capture and decoding: {other.cpu_ns / decoded.cpu_ns:.2f}")
    sys.exit(0 if held.dropped == 0 and held.accounted and most.accounted and small.accounted else 1)


if __name__ == "__main__":
    main()
