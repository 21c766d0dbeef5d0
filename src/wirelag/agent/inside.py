"""The inside of this router: every way from port to port is cut at both of its ends, as a segment `B[A>C]`.

Law: a way is cut from its first packet on, at both ends alike, until it is no longer wanted. What was open when the
clock was set is left out: packets inside the router would seem to take as long as the clock was moved. Ports are
Ethernet devices that lie on no other. Those that lead to no other router lead to the outside.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from wirelag.agent.config import Config, InsideSettings, Measured, PortSetting
from wirelag.agent.cutting import AtPackets, ByClock, CutPart, Unseen, cutter
from wirelag.agent.passages import Passages, Rows, segment_of
from wirelag.agent.settings import MOST_WAYS
from wirelag.capture.netlink import ethernet_ports
from wirelag.capture.routes import ForwardingTable, interface_of, interfaces_by_address
from wirelag.errors import WirelagError
from wirelag.network.forwarding import Passage
from wirelag.network.segments import EDGE
from wirelag.packets.batch import PacketBatch
from wirelag.protocol.places import SIDES

REROUTE_NS: Final = 10**9  # flows are looked up again at most this often, however often routes change
BEYOND: Final = "beyond"  # why a packet is left out: there are more ways than MOST_WAYS
NO_ROWS: Final = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class Ways:
    """The ports of this router, and the ways between them that are wanted until a time; None: all, for ever."""

    ports: tuple[PortSetting, ...]
    until_ns: Mapping[Passage, int] | None = None


@dataclass(slots=True)
class _End:
    """One end of a way."""

    cuts: ByClock | AtPackets
    unseen: Unseen


class Inside:
    """Packets into parts of both ends of every way. All methods but `turn` are called by one thread."""

    def __init__(self, config: Config, inside: InsideSettings, tell: Callable[[str], None]) -> None:
        self._config, self._terms, self._tell = config, inside.terms, tell
        self._table = ForwardingTable()
        self._passages = Passages(self._table.interfaces)
        self.left_out = self._passages.left_out  # packets that are not measured, by reason
        self._told: queue.SimpleQueue[Ways] = queue.SimpleQueue()
        self._ways = Ways(inside.ports or ())
        self._ends: dict[Passage, tuple[_End, _End]] = {}
        self._rerouted_ns = 0
        self._changed = False
        self._connect()

    def turn(self, ways: Ways) -> None:
        """Measure these ways from the next packets on; from any thread."""
        self._told.put(ways)

    def close(self) -> None:
        """Follow routes no more."""
        self._table.close()

    def take(self, packets: PacketBatch, now_ns: int, dropped: int) -> Iterator[CutPart]:
        """Add packets with their ports, or none, at `now_ns`; `dropped`: total so far."""
        while not self._told.empty():
            self._ways = self._told.get()
            self._changed, self._rerouted_ns = True, 0
        self._follow(now_ns)
        found = self._passages.sort(packets) if len(packets) else {}
        for way in found.keys() - self._ends.keys():
            if len(self._ends) < MOST_WAYS:
                first_ns = int(packets.time_ns[0])
                self._ends[way] = self._begin(way, first_ns, dropped), self._begin(way, first_ns, dropped, 1)
            else:
                self.left_out[BEYOND] += len(found[way][0])
        for way, ends in self._ends.items():
            for end, rows in zip(ends, found.get(way, (NO_ROWS, NO_ROWS)), strict=True):
                end.unseen.read(dropped, now_ns)
                yield from end.cuts.begin_anew(now_ns)
                yield from self._cut(end, packets, rows, now_ns)
        wanted = self._ways.until_ns
        for way in [way for way in self._ends if wanted is not None and now_ns >= wanted.get(way, 0)]:
            for end in self._ends.pop(way):
                yield from end.cuts.end(now_ns)

    def stepped(self) -> None:
        """The clock was set: begin anew."""
        self._ends.clear()

    def end(self, now_ns: int) -> Iterator[CutPart]:
        """End of input."""
        for ends in self._ends.values():
            for end in ends:
                yield from end.cuts.end(now_ns)

    def _cut(self, end: _End, packets: PacketBatch, rows: Rows, now_ns: int) -> Iterator[CutPart]:
        if not len(packets):
            yield from end.cuts.passed(now_ns)
            return
        end.cuts.beside(len(packets) - len(rows))
        if not len(rows):
            yield from end.cuts.passed(int(packets.time_ns[-1]))
        elif self._terms.by is None:
            few = {"time_ns": packets.time_ns[rows], "packet_id": packets.packet_id[rows]}
            yield from end.cuts.take(PacketBatch(few))
        else:
            yield from end.cuts.take(packets[rows])

    def _begin(self, way: Passage, first_ns: int, dropped: int, side: int = 0) -> _End:
        config = self._config
        measured = Measured(segment_of(config.point, way), self._terms, None, False, end=SIDES[side])
        unseen = Unseen.since(config.interval_ns, first_ns, dropped)
        end = _End(cutter((measured,), config.interval_ns, config.grace_ns, unseen), unseen)
        end.cuts.begin(first_ns)
        return end

    def _follow(self, now_ns: int) -> None:
        """Look again where ports lead and packets go, if anything has changed."""
        self._changed = self._table.changed() or self._changed
        if self._changed and not 0 <= now_ns - self._rerouted_ns < REROUTE_NS:
            self._changed, self._rerouted_ns = False, now_ns
            self._connect()

    def _connect(self) -> None:
        by_address = interfaces_by_address()
        ports = dict.fromkeys(ethernet_ports(), EDGE)
        for one in self._ways.ports:
            try:
                number = interface_of(one.interface) if one.interface else by_address[one.address or ""]
            except WirelagError as problem:
                self._tell(f"the port to {one.to}: {problem}")
                continue
            except KeyError:
                self._tell(f"the port to {one.to}: this host has no address {one.address}")
                continue
            if number in ports:
                ports[number] = one.to
            else:
                self._tell(f"the port to {one.to} is no Ethernet device by itself: ways by it are not measured")
        wanted = self._ways.until_ns
        self._passages.connect(ports, None if wanted is None else frozenset(wanted))
