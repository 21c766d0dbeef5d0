"""A flood of small datagrams from one host to another, at a given rate or as fast as one core sends.

`build` creates both hosts; `start` runs this file at the source, which prints the number of packets that its interface
sent. One system call sends many datagrams (UDP_SEGMENT), which the kernel splits before they reach the interface.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from pathlib import Path

from lab.network import Network
from lab.processes import ROOT, Process

SOURCE, SINK = "source", "sink"  # hosts, and the interfaces that lead there
SOURCE_ADDRESS, SINK_ADDRESS = "10.77.0.1", "10.77.0.2"
PORT = 9
PAYLOAD_BYTES = 22  # 64 bytes with all headers
TOGETHER = 120  # datagrams per call
FLOWS = 64
UDP_SEGMENT = 103


def build(network: Network) -> None:
    """Create the two hosts and a cable. The sink accepts no datagrams: they end at its interface."""
    network.clear()
    network.add(SOURCE)
    network.add(SINK)
    network.link(SOURCE, SINK, SINK, SOURCE)
    network.ip(SOURCE, f"addr add {SOURCE_ADDRESS}/24 dev {SINK}")
    network.ip(SOURCE, f"neigh replace {SINK_ADDRESS} lladdr 02:77:00:00:00:02 dev {SINK} nud permanent")


def start(network: Network, packets: int, rate: float | None, output: Path, core: int = 0) -> Process:
    """Start sending from this core; without a rate, as fast as possible."""
    arguments = [sys.executable, str(ROOT / "flood.py"), str(packets), str(rate or 0)]
    return network.start(SOURCE, ["taskset", "-c", str(core), "env", f"PYTHONPATH={ROOT.parent}", *arguments], output)


def result(said: str) -> tuple[int, float]:
    """Packets sent, and the seconds that took, from its output."""
    found = re.search(r"sent=(\d+) seconds=([0-9.]+)", said)
    if found is None:
        raise OSError(f"the flood failed: {said.strip()}")
    return int(found[1]), float(found[2])


def flood(packets: int, rate: float) -> None:
    """Send at least this many packets; `rate` 0: as fast as possible."""
    flows = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(FLOWS)]
    for one in flows:
        one.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, PAYLOAD_BYTES)
        one.connect((SINK_ADDRESS, PORT))
    data = bytes(PAYLOAD_BYTES * TOGETHER)
    before, began, sent = carried(SINK), time.monotonic(), 0
    while sent < packets:
        flows[sent // TOGETHER % FLOWS].send(data)
        sent += TOGETHER
        ahead_s = sent / rate - (time.monotonic() - began) if rate else 0.0
        if ahead_s > 0.0005:
            time.sleep(ahead_s)
    seconds = time.monotonic() - began
    print(f"sent={carried(SINK) - before} seconds={seconds:.3f}", flush=True)


def carried(interface: str) -> int:
    """Packets sent by an interface of this namespace, by its own counter."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counts = line.strip().partition(":")
        if name == interface:
            return int(counts.split()[9])
    raise OSError(f"no interface {interface}")


if __name__ == "__main__":
    flood(int(sys.argv[1]), float(sys.argv[2]))
