"""A flood of small datagrams from one host to another, at a given rate or as fast as one core sends.

`build` creates both hosts; `start` runs this file at the source, which prints the number of packets that its interface
sent. One system call sends many datagrams (UDP_SEGMENT), which the kernel splits before they reach the interface; with
`frames`, a program in the kernel sends frames (bpf/flooding.bpf.c), which takes a fraction of the time.
"""

from __future__ import annotations

import re
import socket
import struct
import sys
import time
from pathlib import Path

from lab.network import Network
from lab.processes import ROOT, Process

SOURCE, SINK = "source", "sink"  # hosts, and the interfaces that lead there
SOURCE_ADDRESS, SINK_ADDRESS = "10.77.0.1", "10.77.0.2"
SINK_MAC = "02:77:00:00:00:02"  # not that of its interface
PORT = 9
PAYLOAD_BYTES = 22  # 64 bytes with all headers
TOGETHER = 120  # datagrams per call
RUNS_TOGETHER = 1 << 20  # of the program that sends frames: a call costs 30 ms
FLOWS = 64
UDP_SEGMENT = 103


def build(network: Network, frames: bool = False) -> None:
    """Create the two hosts and a cable. The sink accepts no datagrams: they end at its interface."""
    network.clear()
    network.add(SOURCE)
    network.add(SINK)
    network.link(SOURCE, SINK, SINK, SOURCE)
    network.ip(SOURCE, f"addr add {SOURCE_ADDRESS}/24 dev {SINK}")
    network.ip(SOURCE, f"neigh replace {SINK_ADDRESS} lladdr {SINK_MAC} dev {SINK} nud permanent")
    if frames:  # a virtual cable carries frames to an end that polls for packets
        network.run(SINK, "ethtool", "-K", SOURCE, "gro", "on")


def start(
    network: Network, packets: int, rate: float | None, output: Path, core: int = 0, frames: bool = False
) -> Process:
    """Start sending from this core; without a rate, as fast as possible. `frames`: as for `build`."""
    arguments = [sys.executable, str(ROOT / "flood.py"), str(packets), str(rate or 0), *(["frames"] if frames else [])]
    return network.start(SOURCE, ["taskset", "-c", str(core), "env", f"PYTHONPATH={ROOT.parent}", *arguments], output)


def result(said: str) -> tuple[int, float]:
    """Packets sent, and the seconds that took, from its output."""
    found = re.search(r"sent=(\d+) seconds=([0-9.]+)", said)
    if found is None:
        raise OSError(f"the flood failed: {said.strip()}")
    return int(found[1]), float(found[2])


def flood(packets: int, rate: float, frames: bool = False) -> None:
    """Send at least this many packets; `rate` 0: as fast as possible."""
    before, began = carried(SINK), time.monotonic()
    (send_frames if frames else send_datagrams)(packets, rate)
    seconds = time.monotonic() - began
    print(f"sent={carried(SINK) - before} seconds={seconds:.3f}", flush=True)


def send_datagrams(packets: int, rate: float) -> None:
    """Send them from sockets."""
    flows = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(FLOWS)]
    for one in flows:
        one.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, PAYLOAD_BYTES)
        one.connect((SINK_ADDRESS, PORT))
    data = bytes(PAYLOAD_BYTES * TOGETHER)
    began, sent = time.monotonic(), 0
    while sent < packets:
        flows[sent // TOGETHER % FLOWS].send(data)
        sent += TOGETHER
        ahead_s = sent / rate - (time.monotonic() - began) if rate else 0.0
        if ahead_s > 0.0005:
            time.sleep(ahead_s)


def send_frames(packets: int, rate: float) -> None:
    """Send them by a program in the kernel, which also waits until it is time for the next."""
    from wirelag.ebpf.dataplane import Dataplane

    udp = struct.pack(">HHHH", 0, PORT, 8 + PAYLOAD_BYTES, 0) + bytes(PAYLOAD_BYTES)
    addresses = socket.inet_aton(SOURCE_ADDRESS) + socket.inet_aton(SINK_ADDRESS)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0) + addresses
    frame = bytes.fromhex(SINK_MAC.replace(":", "")) + bytes(6) + b"\x08\x00" + ip + udp
    constants = {"interface": socket.if_nametoindex(SINK), "flows": FLOWS}
    constants |= {"packets": packets, "each_ns": round(1e9 / rate) if rate else 0}
    with Dataplane("flooding", constants=constants) as plane:
        while int.from_bytes(plane.variable("number").tobytes(), "little") < packets:
            plane.programs["wl_flooding"].send(frame, RUNS_TOGETHER)


def carried(interface: str) -> int:
    """Packets sent by an interface of this namespace, by its own counter."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counts = line.strip().partition(":")
        if name == interface:
            return int(counts.split()[9])
    raise OSError(f"no interface {interface}")


if __name__ == "__main__":
    flood(int(sys.argv[1]), float(sys.argv[2]), "frames" in sys.argv[3:])
