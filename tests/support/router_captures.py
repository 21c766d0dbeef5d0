"""A network in a folder: captures at every port of every router, with the truth about each segment.

Packets follow shortest paths hop by hop; a hash of the flow chooses among equal ones. Each segment has a fixed
delay, some jitter, and, if requested, a queue before the egress: first come first served, each packet takes its
service time.
"""

import heapq
import json
import random
import struct
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.captures import ethernet, ipv4, pcap, udp
from tests.support.places import SIX_ROUTERS
from wirelag.network.routes import Routes
from wirelag.network.segments import EDGE, Segment
from wirelag.network.topology import Topology, read_topology

SIX = SIX_ROUTERS
START_NS = 1_700_000_000 * 10**9


@dataclass
class Truth:
    """The truth, in seconds."""

    delays: dict[Segment, list[float]] = field(default_factory=lambda: defaultdict(list))
    lost: dict[Segment, int] = field(default_factory=lambda: defaultdict(int))
    gone: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    routes: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))


def with_prefixes(folder: Path) -> Path:
    """The six-router network, with a network at each router."""
    content = json.loads(SIX.read_text(encoding="utf-8"))
    content["prefixes"] = {router: [f"10.0.{i}.0/24"] for i, router in enumerate(content["routers"], 1)}
    path = folder / "network.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_network(
    folder: Path,
    topology: Topology | Path,
    *,
    seed: int = 1,
    packets: int = 4000,
    service: Mapping[tuple[str, str], float] | None = None,
    loss: Mapping[tuple[str, str], float] | None = None,
    drop: Mapping[tuple[str, str], float] | None = None,
    pairs: list[tuple[str, str]] | None = None,
    begins_ns: int = START_NS,
) -> Truth:
    """Write the captures; `service`: queues by router and next hop, in seconds per packet.

    `loss` is that of links, `drop` that of a router before an egress.
    """
    topology = topology if isinstance(topology, Topology) else read_topology(topology)
    rng, routes, truth = random.Random(seed), Routes(topology), Truth()
    pairs = pairs or [(a, b) for a in topology.routers for b in topology.routers if a != b]
    files: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    free: dict[tuple[str, str], float] = defaultdict(float)  # when a queue is empty again
    waiting: list[tuple[float, int, str, str, tuple[str, str], int, bytes, float]] = []
    time = 0.0
    for number in range(packets):
        if number % 8 == 0:  # bursts of eight fill queues
            time += rng.expovariate(1 / 0.008)
        source, target = rng.choice(pairs)
        flow = rng.randrange(16)
        ends = [int(topology.prefixes[one][0].network_address) + 1 for one in (source, target)]
        payload = struct.pack(">QQ", number, rng.getrandbits(64))
        frame = ethernet(
            ipv4(udp(payload, (40000 + flow, 9)), 17, src=ends[0].to_bytes(4, "big"), dst=ends[1].to_bytes(4, "big"))
        )
        waiting.append((time + number % 8 * 1e-5, number, source, EDGE, (source, target), flow, frame, 0.0))
    heapq.heapify(waiting)  # in order of time: queues serve in order of arrival
    began: dict[int, float] = {}
    while waiting:
        now, number, router, before, pair, flow, frame, _ = heapq.heappop(waiting)
        began.setdefault(number, now)
        files[f"{router}.in{'.' * bool(before)}{before}.pcap"].append((_ns(now, begins_ns), frame))
        hops = routes.next_hops(router, pair[1])
        after = hops[random.Random(f"{pair}{flow}{router}").randrange(len(hops))] if hops else EDGE
        inside = Segment.inside(router, before, after)
        ready = now + 20e-6 + rng.expovariate(1 / 5e-6)
        if service and (router, after) in service:
            ready = max(ready, free[router, after]) + service[router, after]
            free[router, after] = ready
        if rng.random() < (drop or {}).get((router, after), 0.0):
            truth.lost[inside] += 1
            truth.gone[pair] += 1
            continue
        files[f"{router}.out{'.' * bool(after)}{after}.pcap"].append((_ns(ready, begins_ns), frame))
        truth.delays[inside].append(_ns(ready, 0) / 1e9 - _ns(now, 0) / 1e9)
        if not after:
            truth.routes[pair].append(ready - began[number])
            continue
        link = Segment.link(router, after)
        if rng.random() < (loss or {}).get((router, after), 0.0):
            truth.lost[link] += 1
            truth.gone[pair] += 1
            continue
        there = ready + 5e-3 + rng.expovariate(1 / 1e-6)  # a long line: its delay is normal
        truth.delays[link].append(there - ready)
        heapq.heappush(waiting, (there, number, after, router, pair, flow, frame, 0.0))
    folder.mkdir(exist_ok=True)
    for name, records in files.items():
        in_order = sorted(records, key=lambda one: one[0])
        content = pcap([(ns, frame, len(frame)) for ns, frame in in_order], magic=0xA1B23C4D)
        (folder / name).write_bytes(content)
    return truth


def _ns(seconds: float, begins_ns: int) -> int:
    return begins_ns + round(seconds * 1e9)
