"""Datagrams between the hosts of routers: bursts at random times, between all pairs, in many flows."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lab.network import Network
from wirelag.network.routes import Routes
from wirelag.network.topology import Topology

PORT = 9000
HEADER_BYTES = 42  # Ethernet, IPv4, UDP
LEAD_S = 0.05  # between making the sockets and the first packet


@dataclass(frozen=True)
class Traffic:
    """What every host sends to every other. The same seed gives the same packets, at the same times if possible."""

    seconds: float = 3.0
    rate: float = 200.0  # packets per second of a pair
    burst: float = 4.0  # packets, on average; back to back, of one flow
    least: int = 100  # bytes of payload
    most: int = 1400
    flows: int = 64  # flows per pair, to be shared by equal paths

    def loads(self, topology: Topology) -> dict[tuple[str, str], float]:
        """Mbit/s on each link with traffic, if equal paths get equal shares."""
        routes = Routes(topology)
        mbit = self.rate * (HEADER_BYTES + (self.least + self.most) / 2) * 8e-6
        loads: dict[tuple[str, str], float] = {}
        for source in topology.routers:
            for target in topology.routers:
                for link, share in routes.shares(source, target).items() if target != source else ():
                    loads[link] = loads.get(link, 0.0) + float(share) * mbit
        return loads

    def send(self, network: Network, addresses: Mapping[str, str], seed: int) -> int:
        """Send everything, from and to these hosts by name; return the number of packets."""
        hosts = list(addresses)
        plan = self.plan(seed, len(hosts))
        filler = np.random.default_rng(seed).bytes(self.most)
        with contextlib.ExitStack() as open_sockets:
            senders: list[list[socket.socket]] = []
            for host, address in addresses.items():
                with network.inside(host):
                    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(self.flows + 1)]
                for one in sockets:
                    open_sockets.enter_context(one)
                receiver, *flows = sockets
                receiver.bind((address, PORT))  # never read: it keeps the host from rejecting packets
                for number, sender in enumerate(flows, 1):
                    sender.bind((address, PORT + number))
                senders.append(flows)
            goals = [(addresses[host], PORT) for host in hosts]
            start = time.monotonic() + LEAD_S
            for number, (at, source, target, flow, size) in enumerate(plan):
                early = start + at - time.monotonic()
                if early > 0:
                    time.sleep(early)
                senders[source][flow].sendto(number.to_bytes(8, "big") + filler[8:size], goals[target])
        return len(plan)

    def plan(self, seed: int, hosts: int) -> list[tuple[float, int, int, int, int]]:
        """Time, source, destination, flow and bytes of every packet, in order of time."""
        random = np.random.default_rng(seed)
        pairs = hosts * (hosts - 1)
        count = random.poisson(self.seconds * self.rate / self.burst * pairs)
        source = random.integers(hosts, size=count)
        target = (source + random.integers(1, hosts, size=count)) % hosts
        flow = random.integers(self.flows, size=count)
        at = np.sort(random.uniform(0, self.seconds, count))
        length = random.geometric(1 / self.burst, count)
        columns = [np.repeat(column, length).tolist() for column in (at, source, target, flow)]
        sizes = random.integers(self.least, self.most + 1, length.sum()).tolist()
        return list(zip(*columns, sizes, strict=True))


USUAL = Traffic()
