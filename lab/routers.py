"""Routers that run OSPF, with a host at each and a tap at every port; needs root and FRRouting.

    host of A -- [A] == links of the topology == [B] -- host of B

Router A is a namespace, its host another. A's interface to-B leads to router B, its interface host to its host.
A queue of a given rate can be placed at any port; it lies between the taps of its router.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from lab.frr import DAEMONS, Frr
from lab.network import NAMESPACES, Network
from lab.processes import PATIENCE_S, Process, program
from lab.traffic import USUAL, Traffic
from wirelag.network.routes import Routes
from wirelag.network.topology import Topology

FORWARDING = ("net.ipv4.ip_forward=1", "net.ipv4.fib_multipath_hash_policy=1")  # a flow stays on one of equal paths
BURST_BYTES = 2000  # size of the queue's bucket: little more than one packet leaves at once
LONGEST_MS = 500  # longest wait of a packet: hardly any is dropped
LOOK_S = 0.02
BUSY = 0.7
MOST_COST = 65_535
LONGEST_NAME = 12  # longest name of an interface, minus the three of `to-`


class Routers:
    """`with Routers("name", topology) as routers:` builds them and waits until they converge; leaves nothing behind."""

    def __init__(self, name: str, topology: Topology) -> None:
        """`name`: unique among the networks of this process. The topology's weights are OSPF's costs."""
        if too_long := [router for router in topology.routers if len(router) > LONGEST_NAME]:
            raise OSError(f"no interface can be named after {too_long[0]}: more than {LONGEST_NAME} letters")
        pairs = {(link.source, link.target) for link in topology.links}
        if one_way := [pair for pair in pairs if pair[::-1] not in pairs]:
            raise OSError(f"OSPF uses no link in one direction only, such as that from {' to '.join(one_way[0])}")
        if dear := [link for link in topology.links if link.weight > MOST_COST]:
            raise OSError(
                f"OSPF's costs are {MOST_COST:,} at most; a link from {dear[0].source} has {dear[0].weight:,}"
            )
        self.network = Network(name)
        self.topology = topology
        self.numbers = {router: i + 1 for i, router in enumerate(topology.routers)}

    def __enter__(self) -> Routers:
        """Build them."""
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove them."""
        self.down()

    def up(self) -> None:
        """Build them anew and wait until every router forwards according to the topology."""
        if not (DAEMONS / "ospfd").exists():
            raise OSError("there is no FRRouting here; on Debian: apt-get install frr")
        self.network.clear()
        try:
            self._build()
            self.converge()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Stop everything on them and remove them, as far as they exist."""
        self.network.down()

    def converge(self) -> None:
        """Wait until the kernels' forwarding tables match the topology's shortest paths."""
        routes = Routes(self.topology)
        deadline = time.monotonic() + PATIENCE_S
        for router in self.topology.routers:
            frr = Frr(self.network, router)
            wanted = {
                self._prefix(target): frozenset(f"to-{hop}" for hop in routes.next_hops(router, target))
                for target in self.topology.routers
                if target != router
            }
            while (have := {prefix: frr.next_hops().get(prefix, frozenset()) for prefix in wanted}) != wanted:
                if time.monotonic() > deadline:
                    raise OSError(f"{router} does not forward as it should: {have} instead of {wanted}")
                time.sleep(LOOK_S)

    def fail(self, one: str, other: str) -> None:
        """Fail a link at both ends; the routers find other paths."""
        self.topology = self.topology.without((one, other))
        self.network.ip(one, f"link set to-{other} down")
        self.converge()

    def database(self, path: Path) -> None:
        """Save the first router's database of all, and the routers' names, which OSPF does not have."""
        names = {self._router_id(router): router for router in self.topology.routers}
        said = Frr(self.network, self.topology.routers[0]).database()
        path.write_text(f"{said}{json.dumps({'hostnames': names})}\n")

    @contextlib.contextmanager
    def slow(self, router: str, neighbour: str, mbit: float, longest_ms: int = LONGEST_MS) -> Iterator[None]:
        """Limit the rate of the router's port to this neighbour: packets that come faster wait, or are dropped."""
        queue = f"tbf rate {round(mbit * 1e6)}bit burst {BURST_BYTES} latency {longest_ms}ms"
        self.network.run(router, *f"tc qdisc replace dev to-{neighbour} root {queue}".split())
        try:
            yield
            self._drained(router, f"to-{neighbour}")
        finally:
            self.network.run(router, *f"tc qdisc del dev to-{neighbour} root".split())

    @contextlib.contextmanager
    def taps(self, folder: Path) -> Iterator[None]:
        """Record the packets of every port of every router in this folder, and remove older records."""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.pcap"):
            old.unlink()  # a port may have failed meanwhile
        where = [f"folder={folder}", f"namespaces={NAMESPACES / self.network.prefix}"]
        command = [program("taps"), *where, f"routers={','.join(self.topology.routers)}"]
        process = Process(command, folder / "taps.txt")
        self.network.processes.append(process)
        process.wait_for_line("recording")
        yield
        process.stop()
        process.finish(0)  # it fails if it missed packets
        self.network.processes.remove(process)
        (folder / "taps.txt").unlink()

    def record(
        self,
        folder: Path,
        seed: int,
        slow: Sequence[tuple[str, str]] = (),
        traffic: Traffic = USUAL,
        busy: float = BUSY,
        longest_ms: int = LONGEST_MS,
    ) -> None:
        """Send traffic and record it with the database: `ospf.json` and `captures`.

        `slow`: at these ports, from a router to a neighbour, packets wait. They send for the share `busy` of the time;
        packets that would wait longer than `longest_ms` are dropped.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.database(folder / "ospf.json")
        loads = traffic.loads(self.topology)
        if idle := [pair for pair in slow if pair not in loads]:
            raise OSError(f"nothing is sent from {idle[0][0]} straight to {idle[0][1]}: nothing would wait there")
        with self.taps(folder / "captures"), contextlib.ExitStack() as queues:
            for router, neighbour in slow:
                queues.enter_context(self.slow(router, neighbour, loads[router, neighbour] / busy, longest_ms))
            hosts = {f"{router}-host": self.address(router) for router in self.topology.routers}
            traffic.send(self.network, hosts, seed)

    def _build(self) -> None:
        for router, number in self.numbers.items():
            self.network.add(router, *FORWARDING)
            self.network.add(f"{router}-host")
            self.network.link(router, "host", f"{router}-host", "eth0")
            self.network.ip(router, f"addr add 10.7.{number}.1/24 dev host")
            self.network.ip(f"{router}-host", f"addr add {self.address(router)}/24 dev eth0")
            self.network.ip(f"{router}-host", f"route add default via 10.7.{number}.1")
        costs: dict[str, dict[str, int]] = {router: {} for router in self.numbers}
        for link in self.topology.links:
            costs[link.source][f"to-{link.target}"] = link.weight
        pairs = sorted({tuple(sorted((link.source, link.target))) for link in self.topology.links})
        for i, (one, other) in enumerate(pairs):
            self.network.link(one, f"to-{other}", other, f"to-{one}")
            self.network.ip(one, f"addr add 10.6.1.{2 * i}/31 dev to-{other}")
            self.network.ip(other, f"addr add 10.6.1.{2 * i + 1}/31 dev to-{one}")
        for router in self.numbers:
            Frr(self.network, router).start(self._router_id(router), costs[router], "host")

    def _drained(self, router: str, interface: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while json.loads(self.network.run(router, "tc", "-s", "-j", "qdisc", "show", "dev", interface))[0]["backlog"]:
            if time.monotonic() > deadline:
                raise OSError(f"the queue of {router} at {interface} does not drain")
            time.sleep(LOOK_S)

    def address(self, router: str) -> str:
        """The address of the router's host."""
        return f"10.7.{self.numbers[router]}.2"

    def _prefix(self, router: str) -> str:
        return f"10.7.{self.numbers[router]}.0/24"

    def _router_id(self, router: str) -> str:
        return f"10.6.0.{self.numbers[router]}"
