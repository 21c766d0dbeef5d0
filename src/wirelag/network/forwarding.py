"""The path of packets through a router, from its forwarding and from where their flows are seen.

Law: the flow decides ingress and egress, so both ends of a segment decide alike and count the same packets. The egress
is the one port at which the flow is seen to leave, if forwarding allows it (longest prefix, then every next hop on a
shortest path); if it is never seen to leave, the one port that forwarding allows: all of it was lost. The ingress is
the one port at which the flow is seen to enter. If there is not exactly one port, the path is unknown, and the flow is
left out at both ends and counted by reason. Packets for the router itself (link-local multicast) do not count.

Memory: some 300 bytes per flow of a router, for at most MOST_FLOWS flows. If there are more, a coin of the flow decides
which are kept, the same at every port; the others are left out and counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from ipaddress import ip_network
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.network.routes import Routes
from wirelag.network.segments import EDGE
from wirelag.network.topology import Topology
from wirelag.packets.address import Address, to_address
from wirelag.packets.batch import Flag, PacketBatch

OWN: Final = "for the router itself"
NO_PREFIX: Final = "no router announces the destination"
NO_ROUTE: Final = "no path to the destination"
UNSEEN: Final = "several equal next hops, and not seen to leave"
TWO_WAYS: Final = "left by several ports"
ELSEWHERE: Final = "left by a port that the topology does not choose"
TWO_ENTRIES: Final = "entered by several ports"
NOT_ENTERED: Final = "not seen to enter"
NOT_KEPT: Final = "of flows that were left out, since there are too many"

MOST_FLOWS: Final = 1 << 17
_MOST_ADDRESSES: Final = 1 << 16
_FLOW_COIN: Final = 14  # purpose of a coin
_LINK_LOCAL: Final = ip_network("224.0.0.0/24"), ip_network("ff02::/16")
_REVERSE: Final = np.uint64(0x9E3779B97F4A7C15)
_SEVERAL: Final = "\0"  # instead of a port: no router has this name

Passage = tuple[str, str]  # the routers that the ingress and egress ports lead to
Owners = tuple[str, ...]
Words = npt.NDArray[np.uint64]


def flows_of(packets: PacketBatch) -> Words:
    """A number for each packet's flow; the two directions differ."""
    return packets.flow_key + packets.has(Flag.REVERSE).astype(np.uint64) * _REVERSE


def select(packets: PacketBatch, wanted: Callable[[int], bool]) -> PacketBatch:
    """The packets of some flows."""
    flows, place = np.unique(flows_of(packets), return_inverse=True)
    chosen = np.array([wanted(flow) for flow in flows.tolist()], np.bool_)
    return packets[np.flatnonzero(chosen[place.reshape(-1)])]


class Prefixes:
    """The routers that deliver to an address."""

    def __init__(self, topology: Topology) -> None:
        self._by_length: dict[tuple[int, int], dict[int, Owners]] = {}  # by IP version and length: network to routers
        for router, networks in topology.prefixes.items():
            for network in networks:
                of_length = self._by_length.setdefault((network.version, network.prefixlen), {})
                address = int(network.network_address)
                of_length[address] = (*of_length.get(address, ()), router)
        self._order = sorted(self._by_length, reverse=True)
        self._known: dict[Address, Owners] = {}

    def __bool__(self) -> bool:
        return bool(self._by_length)

    def owners(self, address: Address) -> Owners:
        """The routers with the longest prefix that contains it."""
        found = self._known.get(address)
        if found is None:
            if len(self._known) == _MOST_ADDRESSES:
                self._known.clear()
            found = self._known[address] = self._find(address)
        return found

    def _find(self, address: Address) -> Owners:
        for version, length in self._order:
            if version == address.version:
                low = address.max_prefixlen - length
                found = self._by_length[version, length].get(int(address) >> low << low)
                if found:
                    return found
        return ()


class _Flow:
    """Where a flow was seen at a router: at one port, at several, or (None) nowhere."""

    __slots__ = ("entered", "left", "own", "packets", "source", "target")

    def __init__(self, source: Owners, target: Owners, own: bool) -> None:
        self.entered: str | None = None
        self.left: str | None = None
        self.packets = 0  # packets that entered; if none was seen to enter: that left
        self.source, self.target, self.own = source, target, own


class Forwarding:
    """One router: what its forwarding allows, and where flows are seen."""

    def __init__(
        self, router: str, topology: Topology, routes: Routes, prefixes: Prefixes, most_flows: int = MOST_FLOWS
    ) -> None:
        self.router, self._routes, self._prefixes, self._most = router, routes, prefixes, most_flows
        self._neighbours = frozenset(link.target for link in topology.links if link.source == router)
        self._flows: dict[int, _Flow] = {}
        self._level = 0  # a share of 2^-level of all flows is kept
        self._left_out = 0  # packets of the other flows that entered
        self._allowed: dict[Owners, frozenset[str]] = {}
        self._between: dict[tuple[str, str, str], float] | None = None  # by port, and routers of source and destination

    def observe(self, way: str, neighbour: str, packets: PacketBatch) -> None:
        """Record packets at a port: observe all ports before any decision, ingress ports first."""
        flows, first, counts = np.unique(flows_of(packets), return_index=True, return_counts=True)
        kept = self._kept(flows)
        if way == "in":
            self._left_out += int(counts[~kept].sum())
        for flow, row, count in zip(flows[kept].tolist(), first[kept].tolist(), counts[kept].tolist(), strict=True):
            seen = self._flows.get(flow)
            if seen is None:
                source, target = (to_address(*column[row].tolist()) for column in (packets.src, packets.dst))
                own = any(target in network for network in _LINK_LOCAL)
                seen = _Flow(self._prefixes.owners(source), self._prefixes.owners(target), own)
                self._flows[flow] = seen
            if way == "in":
                seen.entered = neighbour if seen.entered in (None, neighbour) else _SEVERAL
                seen.packets += count
            else:
                seen.left = neighbour if seen.left in (None, neighbour) else _SEVERAL
                seen.packets += count if seen.entered is None else 0
        self._between = None
        while len(self._flows) > self._most:
            self._thin()

    def _kept(self, flows: Words) -> npt.NDArray[np.bool_]:
        if not self._level:
            return np.ones(len(flows), np.bool_)
        return np.asarray(_kernels.coins(flows, 0, _FLOW_COIN) >> np.uint64(64 - self._level) == 0)

    def _thin(self) -> None:
        """Keep every second flow, by a coin."""
        self._level += 1
        known = list(self._flows)
        for flow, stays in zip(known, self._kept(np.array(known, np.uint64)).tolist(), strict=True):
            if not stays:
                gone = self._flows.pop(flow)
                self._left_out += gone.packets if gone.entered is not None else 0

    def shares(self, source: str, target: str) -> dict[tuple[str, str], float]:
        """How many packets from one router to another went to each port, including those lost on the way there.

        If a flow was lost completely, every port that forwarding allows gets the same share.
        """
        if self._between is None:
            self._between = defaultdict(float)
            for flow in self._flows.values():
                ports = self._egress(flow)
                for port in ports:
                    for one in flow.source:
                        for other in flow.target:
                            self._between[port, one, other] += flow.packets / len(ports)
        hops = self._routes.next_hops(self.router, target)
        return {(self.router, hop): self._between.get((hop, source, target), 0.0) for hop in hops}

    def _egress(self, flow: _Flow) -> Collection[str]:
        """Where a flow may go, even if it was not seen to enter."""
        if flow.left is None:
            return self._allows(flow.target)
        return () if flow.left == _SEVERAL else (flow.left,)

    def select(self, packets: PacketBatch, before: str, after: str) -> PacketBatch:
        """The packets that go from one port to another."""
        return select(packets, lambda flow: self.passage(flow) == (before, after))

    def entered_by(self, flow: int) -> str | None:
        """The one port at which a flow was seen to enter."""
        seen = self._flows.get(flow)
        return None if seen is None or seen.entered == _SEVERAL else seen.entered

    def left_by(self, flow: int) -> str | None:
        """The one port at which a flow was seen to leave."""
        seen = self._flows.get(flow)
        return None if seen is None or seen.left == _SEVERAL else seen.left

    def saw(self, flow: int) -> bool:
        """Whether a flow was seen to enter at any port; True if it is not kept, because it may have been."""
        seen = self._flows.get(flow)
        return not self._kept(np.array([flow], np.uint64))[0] if seen is None else seen.entered is not None

    def passage(self, flow: int) -> Passage | str:
        """The passage of a flow, or why it is unknown."""
        seen = self._flows.get(flow)
        if seen is None:
            return NOT_KEPT if self._level else NOT_ENTERED
        return self._decide(seen)

    def _decide(self, flow: _Flow) -> Passage | str:
        if flow.own:
            return OWN
        allowed = self._allows(flow.target)
        if flow.entered is None:
            return NOT_ENTERED
        if flow.entered == _SEVERAL:
            return TWO_ENTRIES
        if flow.left == _SEVERAL:
            return TWO_WAYS
        if not allowed:
            return NO_ROUTE if flow.target else NO_PREFIX
        if flow.left is not None and flow.left not in allowed:
            return ELSEWHERE
        if flow.left is None and len(allowed) > 1:
            return UNSEEN
        return flow.entered, next(iter(allowed)) if flow.left is None else flow.left

    def _allows(self, owners: Owners) -> frozenset[str]:
        """The ports by which a packet may leave if these routers deliver to its destination."""
        if owners not in self._allowed:
            if self.router in owners:  # a network between two routers belongs to both
                hops = {EDGE, *(owner for owner in owners if owner in self._neighbours)}
            else:
                costs = {owner: self._routes.cost(self.router, owner) for owner in owners}
                known = {owner: cost for owner, cost in costs.items() if cost is not None}
                near = [owner for owner, cost in known.items() if cost == min(known.values())]
                hops = {hop for owner in near for hop in self._routes.next_hops(self.router, owner)}
            self._allowed[owners] = frozenset(hops)
        return self._allowed[owners]

    def reasons(self) -> Counter[str]:
        """Packets that entered, by why they have no egress; "" if they have one."""
        found: Counter[str] = Counter()
        for flow in self._flows.values():
            if flow.entered is not None:
                decided = self._decide(flow)
                found[decided if isinstance(decided, str) else ""] += flow.packets
        if self._left_out:
            found[NOT_KEPT] = self._left_out
        return found
