"""A folder of captures at router ports: which file belongs to which port.

`<router>.in.<neighbour>.pcap` holds packets that arrived from a neighbour, `<router>.out.<neighbour>.pcap` packets that
left towards one; `<router>.in.pcap` and `<router>.out.pcap` hold packets that entered and left the network there. All
captures use one clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

from wirelag.errors import WirelagError
from wirelag.network.routes import Routes
from wirelag.network.segments import EDGE, Segment, segments_of
from wirelag.network.topology import Topology

Way = Literal["in", "out"]
NAMES: Final = "ROUTER.in.NEIGHBOUR.pcap, ROUTER.out.NEIGHBOUR.pcap, ROUTER.in.pcap and ROUTER.out.pcap"
_ENDING: Final = re.compile(r"\.(pcap|pcapng|cap)(\.(gz|zst|xz))?$")
_WAY: Final = re.compile(r"\.(in|out)(?=\.|$)")


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """One direction of a router's port; EDGE is the port to the outside."""

    router: str
    way: Way
    neighbour: str


class Folder:
    """The captures of a folder, by port."""

    def __init__(self, path: str, topology: Topology) -> None:
        self.name, self.topology, self.routes = path, topology, Routes(topology)
        self.files: dict[Port, str] = {}
        for file in sorted(Path(path).iterdir()):
            if file.is_file() and _ENDING.search(file.name):
                port = self._port(file)
                if port in self.files:
                    raise WirelagError(f"{file}: is a second capture of the port of {self.files[port]}; leave one out")
                self.files[port] = str(file)
        if not self.files:
            raise WirelagError(f"{path}: holds no captures of ports; name them {NAMES}")

    def _port(self, file: Path) -> Port:
        stem, routers = _ENDING.sub("", file.name), set(self.topology.routers)
        ways = list(_WAY.finditer(stem))
        for found in ways:  # a router's name may contain .in or .out
            router, neighbour = stem[: found.start()], stem[found.end() + 1 :]
            if router in routers and (not neighbour or neighbour in routers):
                port = Port(router, "in" if found[1] == "in" else "out", neighbour or EDGE)
                self._need_link(port, file)
                return port
        if not ways:
            raise WirelagError(f"{file}: the name does not tell the port; name captures {NAMES}")
        router, neighbour = stem[: ways[0].start()], stem[ways[0].end() + 1 :]
        try:
            self.topology.check(router)
            self.topology.check(neighbour)
        except WirelagError as error:
            raise WirelagError(f"{file}: {error}") from None
        raise AssertionError("one of the two is unknown")

    def _need_link(self, port: Port, file: Path) -> None:
        ends = (port.neighbour, port.router) if port.way == "in" else (port.router, port.neighbour)
        if port.neighbour != EDGE and not any((link.source, link.target) == ends for link in self.topology.links):
            raise WirelagError(
                f"{file}: {self.topology.name} has no link from {ends[0]} to {ends[1]}; if it failed meanwhile, "
                "cut all captures at that time, and give each part the topology of its time"
            )

    @cached_property
    def routers(self) -> frozenset[str]:
        """The routers with any captured port."""
        return frozenset(port.router for port in self.files)

    def ports(self, router: str, way: Way) -> list[Port]:
        """The captured ports of a router."""
        return [port for port in self.files if port.router == router and port.way == way]

    def ends(self, segment: Segment) -> tuple[list[Port], list[Port]] | None:
        """The ports at which a segment begins and ends, if all of them were captured."""
        if segment.kind == "inside":
            up, down = {Port(segment.at, "in", segment.before)}, {Port(segment.at, "out", segment.after)}
        elif segment.kind == "link":
            up, down = {Port(segment.at, "out", segment.after)}, {Port(segment.after, "in", segment.at)}
        else:
            paths = [path for path in self._between(segment) if not self.routers & set(path[1:-1])]
            up = {Port(path[0], "out", path[1]) for path in paths}
            down = {Port(path[-1], "in", path[-2]) for path in paths}
        return (sorted(up), sorted(down)) if up and (up | down) <= self.files.keys() else None

    def _between(self, segment: Segment) -> list[tuple[str, ...]]:
        return self.routes.paths(segment.at, segment.after)

    def passed(self, segment: Segment) -> frozenset[str]:
        """Captured routers on other equal paths between the ends of a virtual link: their packets are not on it."""
        return self.routers & {router for path in self._between(segment) for router in path[1:-1]}

    def segments(self, paths: Iterable[Sequence[str]]) -> set[Segment]:
        """All segments on these paths that can be measured."""
        found: set[Segment] = set()
        for path in paths:
            found |= {one for one in segments_of(path, path) if self.ends(one)}
            here = [i for i, router in enumerate(path) if router in self.routers]
            virtual = [Segment.virtual(path[i], path[j]) for i, j in pairwise(here) if j > i + 1]
            found |= {one for one in virtual if one not in found and self.ends(one)}
        return found
