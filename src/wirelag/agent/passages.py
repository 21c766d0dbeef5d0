"""Which way packets take through this router, as they pass: by the route, and by where their flow is seen. No I/O.

Law: both ends of a way count the same packets, and the flow decides. A packet enters where it is seen to enter. It will
leave by the port at which its flow was last seen to leave, and before that by the one port that the router's forwarding
table allows: so packets of a flow that is lost as a whole are counted, too. If the table allows several (equal costs)
and the flow was not seen to leave yet, the packet is left out at both ends: its id is kept until it leaves. A packet
that leaves entered where its flow was last seen to enter. A change of routes undoes what was seen of flows before it.
What has no way is left out and counted by reason: packets for the router itself, without a route, of flows that keep
changing their port.

A packet enters before it leaves, and the capture has it in this order. Memory: some 400 bytes per flow, for MOST_FLOWS
flows at most, and 100 per packet that is left out, for MOST_HELD at most; the oldest go first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag.network.forwarding import Passage, flows_of
from wirelag.packets.address import Address, to_address
from wirelag.packets.batch import PacketBatch

# Why a packet has no way.
NO_ROUTE: Final = "no_route"  # it is for the router itself, or there is no route
NOT_CAPTURED: Final = "not_captured"  # it leaves by an interface that is not captured
EQUAL_PATHS: Final = "equal_paths"  # several equal next hops, and its flow was not seen to leave yet
UNSTEADY: Final = "unsteady"  # its flow keeps changing its port
NOT_WANTED: Final = "not_wanted"  # nobody wants its way measured
NOT_ENTERED: Final = "not_entered"  # it leaves, and its flow was not seen to enter: the router itself sent it

MOST_FLOWS: Final = 1 << 17
MOST_HELD: Final = 1 << 17
MOST_MOVES: Final = 4  # changes of a flow's port before it is left out
_HELD_NS: Final = 10**9  # how long the id of a packet that is left out is kept, at least
_MIX: Final = np.uint64(0xD6E8FEB86659FD93)  # odd: flow and port into one number

Rows = npt.NDArray[np.intp]
Exits = Callable[[Address], frozenset[int]]  # interfaces by which packets to an address may leave


class _Flow:
    """What is known of a flow."""

    __slots__ = ("allowed", "entered", "left", "moves", "routes")

    def __init__(self) -> None:
        self.routes = -1  # the change of routes after which the rest was found
        self.allowed: frozenset[str] | str = frozenset()  # ports, or why there are none
        self.entered: str | None = None
        self.left: str | None = None
        self.moves = 0


class Passages:
    """The ways of packets through a router. One thread uses it."""

    def __init__(self, exits: Exits, most_flows: int = MOST_FLOWS) -> None:
        self._exits, self._most = exits, most_flows
        self._ports: Mapping[int, str] = {}
        self._wanted: frozenset[Passage] | None = None
        self._routes = 0
        self._flows: dict[int, _Flow] = {}  # seen lately,
        self._older: dict[int, _Flow] = {}  # and before
        self._held: set[int] = set()
        self._held_before: set[int] = set()
        self._turned_ns = 0
        self._to: dict[tuple[int, int], frozenset[str] | str] = {}  # what the table allows, by destination
        self.left_out: Counter[str] = Counter()  # packets without a way, by reason

    def connect(self, ports: Mapping[int, str], wanted: frozenset[Passage] | None) -> None:
        """The captured interfaces and the routers that they lead to, EDGE for none; ways to measure, None for all."""
        self._ports, self._wanted = dict(ports), wanted
        self.reroute()

    def reroute(self) -> None:
        """Routes have changed."""
        self._routes += 1
        self._to = {}

    def sort(self, packets: PacketBatch) -> dict[Passage, tuple[Rows, Rows]]:
        """The packets of each way: rows of those that enter, and of those that leave."""
        now_ns = int(packets.time_ns[-1])
        if not 0 <= now_ns - self._turned_ns < _HELD_NS or len(self._held) > MOST_HELD // 2:
            self._held, self._held_before, self._turned_ns = set(), self._held, now_ns
        flows, leaving = flows_of(packets), (packets.port & np.uint32(1)).astype(np.bool_)
        found: dict[Passage, list[Rows]] = {}
        nothing = np.empty(0, np.intp)
        for end, decide in enumerate((self._enters, self._leaves)):
            rows = np.flatnonzero(leaving == bool(end))
            for way, some in self._decided(packets, flows, rows, decide):
                if way is not None:
                    found.setdefault(way, [nothing, nothing])[end] = some
        return {way: (up, down) for way, (up, down) in found.items()}

    def _decided(
        self,
        packets: PacketBatch,
        flows: npt.NDArray[np.uint64],
        rows: Rows,
        decide: Callable[[PacketBatch, int, Rows, str], tuple[Passage | None, Rows]],
    ) -> list[tuple[Passage | None, Rows]]:
        """Rows by way; one decision for each flow and interface."""
        if not len(rows):
            return []
        mixed = flows[rows] ^ (packets.port[rows].astype(np.uint64) * _MIX)
        order = np.argsort(mixed, kind="stable")
        _, starts = np.unique(mixed[order], return_index=True)
        ways: dict[Passage | None, list[Rows]] = {}
        for some in np.split(rows[order], starts[1:]):
            port = self._ports.get(int(packets.port[some[0]]) >> 1)
            if port is not None:
                way, chosen = decide(packets, int(flows[some[0]]), some, port)
                ways.setdefault(way, []).append(chosen)
        return [(way, np.sort(np.concatenate(several))) for way, several in ways.items()]

    def _enters(self, packets: PacketBatch, number: int, rows: Rows, port: str) -> tuple[Passage | None, Rows]:
        flow = self._known(number) or self._begin(number)
        if flow.routes != self._routes:
            flow.routes, flow.left, flow.moves = self._routes, None, 0
            flow.allowed = self._allows(*packets.dst[rows[0]].tolist())
        if flow.entered != port:
            flow.moves += flow.entered is not None
            flow.entered = port
        way = self._way(flow)
        if isinstance(way, str):
            self.left_out[way] += len(rows)
            if way == EQUAL_PATHS:
                self._held.update(packets.packet_id[rows].tolist())
            return None, rows
        return way, rows

    def _leaves(self, packets: PacketBatch, number: int, rows: Rows, port: str) -> tuple[Passage | None, Rows]:
        flow = self._known(number)
        if flow is None or flow.entered is None:
            self.left_out[NOT_ENTERED] += len(rows)  # from the router itself
            return None, rows
        several = not isinstance(flow.allowed, str) and len(flow.allowed) > 1
        if flow.left != port:
            flow.moves += flow.left is not None
            flow.left = port
        if several and (self._held or self._held_before):
            rows = rows[[not self._was_held(one) for one in packets.packet_id[rows].tolist()]]
        way = self._way(flow)
        return (None if isinstance(way, str) else way), rows

    def _way(self, flow: _Flow) -> Passage | str:
        assert flow.entered is not None
        if flow.moves > MOST_MOVES:
            return UNSTEADY
        if flow.left is not None:
            way = flow.entered, flow.left
        elif isinstance(flow.allowed, str):
            return flow.allowed
        elif len(flow.allowed) > 1:
            return EQUAL_PATHS
        else:
            way = flow.entered, next(iter(flow.allowed))
        return way if self._wanted is None or way in self._wanted else NOT_WANTED

    def _was_held(self, packet_id: int) -> bool:
        for held in (self._held, self._held_before):
            if packet_id in held:
                held.remove(packet_id)
                return True
        return False

    def _known(self, number: int) -> _Flow | None:
        flow = self._flows.get(number)
        if flow is None and (flow := self._older.pop(number, None)) is not None:
            flow.moves = 0
            self._put(number, flow)
        return flow

    def _begin(self, number: int) -> _Flow:
        flow = _Flow()
        self._put(number, flow)
        return flow

    def _put(self, number: int, flow: _Flow) -> None:
        if len(self._flows) >= self._most // 2:
            self._flows, self._older = {}, self._flows
        self._flows[number] = flow

    def _allows(self, high: int, low: int) -> frozenset[str] | str:
        """The ports by which packets to an address may leave, or why there are none."""
        found = self._to.get((high, low))
        if found is None:
            if len(self._to) >= self._most:
                self._to = {}
            found = self._to[high, low] = self._asked(to_address(high, low))
        return found

    def _asked(self, to: Address) -> frozenset[str] | str:
        interfaces = self._exits(to)
        if not interfaces:
            return NO_ROUTE
        if not interfaces <= self._ports.keys():
            return NOT_CAPTURED
        return frozenset(self._ports[one] for one in interfaces)


def segment_of(router: str, way: Passage) -> str:
    """The name of a way through a router.

    >>> segment_of("B", ("A", ""))
    'B[A>]'
    """
    return f"{router}[{way[0]}>{way[1]}]"
