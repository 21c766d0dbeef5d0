"""m-sets in operation: segments measured by reference packets, their addresses, and the change from one set to another.

Law: the segments are the plan's links and virtual links between two routers with an agent. References of a link go from
port to port; those of a virtual link to the far router's own address, so that they take its route. While routes
converge, old and new segments are measured, each once: a removed one ends after the overlap, unless it comes back.
Inside a router the segments are its ways on shortest paths, between ports that are named by the router's address there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from wirelag.network.plan import Member, Plan
from wirelag.network.segments import EDGE, Segment
from wirelag.network.topology import Topology

OUTSIDE: Final = "::"  # instead of the address of a port that leads to no router


@dataclass(frozen=True, slots=True)
class Referenced:
    """A segment, and the addresses of its references or, inside, of its ports; None if the topology lacks them."""

    segment: Segment
    source: str | None
    target: str | None

    @property
    def is_addressed(self) -> bool:
        """Whether it can be measured."""
        return self.source is not None and self.target is not None


def referenced(plan: Plan, ends: Collection[str]) -> Iterator[Referenced]:
    """The segments between two of these routers, in the order of the topology."""
    wanted = frozenset(ends)
    own = plan.topology.addresses
    for router in plan.topology.routers:
        for member in plan.m_set(router) if router in wanted else ():
            if member.target not in wanted:
                continue
            if member.is_link:
                yield Referenced(Segment.link(router, member.target), *_ports(plan.topology, router, member))
            if member.longer:
                yield Referenced(Segment.virtual(router, member.target), own.get(router), own.get(member.target))


def insides(plan: Plan, routers: Collection[str]) -> Iterator[Referenced]:
    """The ways through these routers on shortest paths, in the order of the topology."""
    wanted = frozenset(routers)
    for router in plan.topology.routers:
        for segment in plan.inside(router) if router in wanted else ():
            source, target = (port_of(plan.topology, router, port) for port in (segment.before, segment.after))
            yield Referenced(segment, source, target)


def port_of(topology: Topology, router: str, neighbour: str) -> str | None:
    """A router's address at a port."""
    if neighbour == EDGE:
        return OUTSIDE
    if (ends := topology.link_addresses.get((router, neighbour))) is not None:
        return ends[0]
    ends = topology.link_addresses.get((neighbour, router))
    return None if ends is None else ends[1]


def _ports(topology: Topology, router: str, member: Member) -> tuple[str | None, str | None]:
    """The addresses of a link; the routers' own addresses also lead over it if no other path costs the same."""
    ports = topology.link_addresses.get((router, member.target))
    if ports is not None:
        return ports
    if member.longer:
        return None, None
    return topology.addresses.get(router), topology.addresses.get(member.target)


class Turning:
    """The measured segments, and those that end soon. It has no clock of its own.

    Both dictionaries are replaced, never changed: another thread may read them.
    """

    def __init__(self, overlap_ns: int) -> None:
        self.overlap_ns = overlap_ns
        self.current: dict[Segment, Referenced] = {}
        self.ending: dict[Segment, tuple[Referenced, int]] = {}  # with the time of their end

    def turn(self, wanted: Iterable[Referenced], now_ns: int) -> tuple[list[Segment], list[Segment]]:
        """Measure these from now on; return the new segments and the removed ones."""
        self.pass_time(now_ns)
        after = {one.segment: one for one in wanted}
        gone = [segment for segment in self.current if segment not in after]
        new = [segment for segment in after if segment not in self.current]
        ending = self.ending | {segment: (self.current[segment], now_ns + self.overlap_ns) for segment in gone}
        self.ending = {segment: one for segment, one in ending.items() if segment not in after}
        self.current = after
        return new, gone

    def pass_time(self, now_ns: int) -> None:
        """Drop segments that have ended."""
        self.ending = {segment: one for segment, one in self.ending.items() if one[1] > now_ns}

    def held(self) -> Iterator[tuple[Referenced, int | None]]:
        """All segments that can be measured, and until when."""
        yield from ((one, None) for one in self.current.values() if one.is_addressed)
        yield from (one for one in self.ending.values() if one[0].is_addressed)
