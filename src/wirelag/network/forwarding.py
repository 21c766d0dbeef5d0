"""Which way packets take through a router, by its forwarding and by where their flows are seen.

Law: a packet goes from its ingress to its egress by its flow, so that the same decision falls at both ends of a segment
and both count the same packets. The egress is the one port at which the flow is seen to leave, if forwarding allows it
(longest prefix, then every next hop on a shortest path); if it is never seen to leave, the one port that forwarding
allows: all of it was lost. The ingress is the one port at which the flow is seen to enter. Where that is not one port,
nobody can say, and the flow is left out at both ends and counted by reason. What is for the router itself (link-local
multicast) is not counted. Memory: some 300 bytes for each flow of a router.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from ipaddress import ip_network
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag.network.routes import Routes
from wirelag.network.segments import EDGE
from wirelag.network.topology import Topology
from wirelag.packets import Address, Flag, PacketBatch, to_address

OWN: Final = "for the router itself"
NO_PREFIX: Final = "no router announces the destination"
NO_ROUTE: Final = "no path to the destination"
UNSEEN: Final = "several equal next hops, and not seen to leave"
TWO_WAYS: Final = "left by several ports"
ELSEWHERE: Final = "left by a port that the topology does not choose"
TWO_ENTRIES: Final = "entered by several ports"
NOT_ENTERED: Final = "not seen to enter"

_LINK_LOCAL: Final = ip_network("224.0.0.0/24"), ip_network("ff02::/16")
_REVERSE: Final = np.uint64(0x9E3779B97F4A7C15)

Passage = tuple[str, str]  # the routers that the ports of ingress and egress lead to
Words = npt.NDArray[np.uint64]


def flows_of(packets: PacketBatch) -> Words:
    """A number for each packet's flow, not the same in both directions."""
    return packets.flow_key + packets.has(Flag.REVERSE).astype(np.uint64) * _REVERSE


def select(packets: PacketBatch, wanted: Callable[[int], bool]) -> PacketBatch:
    """The packets of some flows."""
    flows, place = np.unique(flows_of(packets), return_inverse=True)
    chosen = np.array([wanted(flow) for flow in flows.tolist()], np.bool_)
    return packets[np.flatnonzero(chosen[place.reshape(-1)])]


class Prefixes:
    """Which routers deliver to an address."""

    def __init__(self, topology: Topology) -> None:
        self._by_length: dict[
            tuple[int, int], dict[int, list[str]]
        ] = {}  # by IP version and length: network to routers
        for router, networks in topology.prefixes.items():
            for network in networks:
                of_length = self._by_length.setdefault((network.version, network.prefixlen), {})
                of_length.setdefault(int(network.network_address), []).append(router)
        self._order = sorted(self._by_length, reverse=True)
        self._known: dict[Address, tuple[str, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_length)

    def owners(self, address: Address) -> tuple[str, ...]:
        """The routers with the longest prefix that holds it."""
        if address not in self._known:
            self._known[address] = tuple(self._find(address))
        return self._known[address]

    def _find(self, address: Address) -> list[str]:
        for version, length in self._order:
            if version == address.version:
                low = address.max_prefixlen - length
                found = self._by_length[version, length].get(int(address) >> low << low)
                if found:
                    return found
        return []


class Forwarding:
    """One router: what its forwarding allows, and where flows are seen."""

    def __init__(self, router: str, topology: Topology, routes: Routes, prefixes: Prefixes) -> None:
        self.router, self._routes, self._prefixes = router, routes, prefixes
        self._neighbours = frozenset(link.target for link in topology.links if link.source == router)
        self._entered: dict[int, set[str]] = {}
        self._left: dict[int, set[str]] = {}
        self._packets: Counter[int] = Counter()  # that entered, by flow
        self._ends: dict[int, tuple[Address, Address]] = {}
        self._between: Counter[tuple[str, str, str]] = (
            Counter()
        )  # port, router of the source, router of the destination
        self._decided: dict[int, Passage | str] = {}
        self._allowed: dict[Address, frozenset[str]] = {}

    def observe(self, way: str, neighbour: str, packets: PacketBatch) -> None:
        """See packets at a port: all ports must be seen before anything is decided."""
        flows, first, counts = np.unique(flows_of(packets), return_index=True, return_counts=True)
        seen = self._entered if way == "in" else self._left
        for flow, row, count in zip(flows.tolist(), first.tolist(), counts.tolist(), strict=True):
            seen.setdefault(flow, set()).add(neighbour)
            if flow not in self._ends:
                ends = [to_address(*column[row].tolist()) for column in (packets.src, packets.dst)]
                self._ends[flow] = ends[0], ends[1]
            if way == "in":
                self._packets[flow] += count
            else:
                for source in self._prefixes.owners(self._ends[flow][0]):
                    for target in self._prefixes.owners(self._ends[flow][1]):
                        self._between[neighbour, source, target] += count

    def shares(self, source: str, target: str) -> dict[tuple[str, str], float]:
        """How many packets from one router to another left by each port."""
        hops = self._routes.next_hops(self.router, target)
        return {(self.router, hop): float(self._between[hop, source, target]) for hop in hops}

    def select(self, packets: PacketBatch, before: str, after: str) -> PacketBatch:
        """Those that go from one port to another."""
        return select(packets, lambda flow: self.passage(flow) == (before, after))

    def entered_by(self, flow: int) -> set[str]:
        """The ports at which a flow was seen to enter."""
        return self._entered.get(flow, set())

    def left_by(self, flow: int) -> set[str]:
        """The ports at which a flow was seen to leave."""
        return self._left.get(flow, set())

    def passage(self, flow: int) -> Passage | str:
        """From where to where a flow goes, or why nobody can say."""
        if flow not in self._decided:
            self._decided[flow] = self._decide(flow)
        return self._decided[flow]

    def _decide(self, flow: int) -> Passage | str:
        target = self._ends[flow][1] if flow in self._ends else None
        if target is None:
            return NOT_ENTERED
        if any(target in network for network in _LINK_LOCAL):
            return OWN
        entered, left, allowed = self._entered.get(flow, set()), self._left.get(flow, set()), self._allows(target)
        if not entered:
            return NOT_ENTERED
        if len(entered) > 1:
            return TWO_ENTRIES
        if len(left) > 1:
            return TWO_WAYS
        if not allowed:
            return NO_ROUTE if self._prefixes.owners(target) else NO_PREFIX
        if left and not left <= allowed:
            return ELSEWHERE
        if not left and len(allowed) > 1:
            return UNSEEN
        return next(iter(entered)), next(iter(left or allowed))

    def _allows(self, target: Address) -> frozenset[str]:
        """The ports that a packet to an address may leave by."""
        if target not in self._allowed:
            owners = self._prefixes.owners(target)
            if self.router in owners:  # a network between two routers belongs to both
                hops = {EDGE, *(owner for owner in owners if owner in self._neighbours)}
            else:
                costs = {owner: self._routes.cost(self.router, owner) for owner in owners}
                known = {owner: cost for owner, cost in costs.items() if cost is not None}
                near = [owner for owner, cost in known.items() if cost == min(known.values())]
                hops = {hop for owner in near for hop in self._routes.next_hops(self.router, owner)}
            self._allowed[target] = frozenset(hops)
        return self._allowed[target]

    def reasons(self) -> Counter[str]:
        """Packets that entered, by why they were given to no egress; "" if they were."""
        found: Counter[str] = Counter()
        for flow, count in self._packets.items():
            decided = self.passage(flow)
            found[decided if isinstance(decided, str) else ""] += count
        return found
