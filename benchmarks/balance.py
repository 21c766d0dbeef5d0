"""The cost of a packet in the balancer's program, relative to one that only passes it (BPF_PROG_TEST_RUN; needs root).

    python benchmarks/balance.py

A frame runs a million times through each, in turn; the smallest mean of several counts. Each datagram is a request: the
whole path of `modes`, and once more with all its modes in use and a gap that none of them takes (50,000 times: no epoch
ends then). A repeated TCP segment is a retransmission: the longer path through headers, the shorter one through `modes`
and `auto` (experiments/pirate_cost.py has the longer one of `auto`). Reading the clock is included.
"""

from __future__ import annotations

import socket
import struct

import numpy as np

from wirelag.ebpf import bpf
from wirelag.ebpf.balance_maps import (
    CONNECTION,
    GROUP,
    MEASURES,
    TABLES,
    UNCONFIRMED,
    Balancer,
    prepare,
    wanted_settings,
)
from wirelag.ebpf.bpf import Program
from wirelag.ebpf.dataplane import Dataplane
from wirelag.ebpf.service import Backend, Service, Way

LIMIT = 6.5
REPEAT, ROUNDS = 1_000_000, 7
WITHIN = 50_000  # packets of a connection per epoch: it counts them in 16 bits
LONG_NS = 10**12
TABLE, GROUPS = 65_537, 1 << 13
VIP, CLIENT, PORT = "10.0.0.100", "10.0.0.1", 80
MAC = bytes.fromhex("020000000002")  # MAC address of the interface and of the backend: a frame is unchanged by a run
PASSES = bytes.fromhex("b700000002000000 9500000000000000")  # return XDP_PASS
FRONT_BYTES, MODES_BYTES, MODE_WORDS, COUNTS = 32, 144, 4, slice(24, 30)
ONLY, AUTO, ONE_MODE, ALL_MODES, AGAIN = (
    "balance",
    "balance + auto, TCP again",
    "balance + modes",
    "balance + modes, all in use",
    "balance + modes, TCP again",
)


def frame(protocol: int) -> bytes:
    """A frame to the service, with 60 bytes of payload."""
    if protocol == socket.IPPROTO_TCP:
        head = struct.pack(">HHIIBBHHH", 40_000, PORT, 1, 1, 0x50, 0x18, 500, 0, 0)
    else:
        head = struct.pack(">HHHH", 40_000, PORT, 68, 0)
    body = head + bytes(60)
    ends = socket.inet_aton(CLIENT) + socket.inet_aton(VIP)
    return (
        MAC + MAC + struct.pack(">HBBHHHBBH", 0x800, 0x45, 0, 20 + len(body), 1, 0x4000, 64, protocol, 0) + ends + body
    )


class Case:
    """The program with one connection in its table."""

    def __init__(self, measures: str, protocol: int, full: bool = False) -> None:
        sizes = {"maglev": TABLES * TABLE, "backends": 16, "tallies": 16, "groups": GROUPS}
        sizes |= {"connections": GROUP * GROUPS, "openings": UNCONFIRMED * GROUPS}
        self.plane = Dataplane("balance", sizes=sizes, constants={"measures": MEASURES[measures]})
        service = Service(VIP, (PORT,), "tcp" if protocol == socket.IPPROTO_TCP else "udp")
        prepare(self.plane.maps, wanted_settings(service, TABLE, GROUPS, 10**11, 10**9, LONG_NS, 4), MAC, new=True)
        balancer = Balancer(self.plane.maps, MAC, "")
        balancer.set_table(
            np.full(TABLE, balancer.set_backends([Backend("one", "10.0.0.2", Way(MAC))])["one"], np.int32)
        )
        self.program, self.frame = self.plane.programs["wl_balance"], frame(protocol)
        self.program.run(self.frame, 2)  # the second confirms the connection
        self.full = full

    def _fill(self) -> None:
        """Set up a new epoch; modes at gaps of 1 s, 2 s, 4 s, ...: far from each other, and from a run's."""
        connections = self.plane.maps["connections"].memory().view(CONNECTION)
        flow = connections["flow"][np.flatnonzero(connections["seen"])[0]]
        flow[COUNTS] = 0
        modes = flow[FRONT_BYTES:MODES_BYTES].view("<u4").reshape(-1, MODE_WORDS)
        gaps = (1 << 20) << np.arange(len(modes))
        modes[:] = np.stack([gaps, gaps, gaps, np.ones_like(gaps)], 1)

    def run_ns(self) -> int:
        """The mean cost of a packet."""
        if self.full:
            self._fill()
        return self.program.run(self.frame, WITHIN if self.full else REPEAT).duration_ns


def costs() -> dict[str, float]:
    """The cost of each case as a multiple of `pass`, which is in ns."""
    passing = Program.load("passes", bpf.XDP, PASSES, b"GPL\0", 0, b"", 37)
    tcp, udp = socket.IPPROTO_TCP, socket.IPPROTO_UDP
    cases = {ONLY: Case("nothing", udp), AUTO: Case("auto", tcp), ONE_MODE: Case("modes", udp)}
    cases |= {ALL_MODES: Case("modes", udp, full=True), AGAIN: Case("modes", tcp)}
    least = dict.fromkeys(("pass", *cases), 10**9)
    for _ in range(ROUNDS):
        least["pass"] = min(least["pass"], passing.run(frame(tcp), REPEAT).duration_ns)
        for name, case in cases.items():
            least[name] = min(least[name], case.run_ns())
    for case in cases.values():
        case.plane.close()
    passing.close()
    return {"pass": float(least["pass"])} | {name: least[name] / least["pass"] for name in cases}


if __name__ == "__main__":
    for found, value in costs().items():
        print(f"{found:28} {value:5.1f} ns" if found == "pass" else f"{found:28} {value:5.2f} times that")
