"""A network as its routing protocol sees it: routers, directed links, weights.

Weights are integer multiples of one unit, so equal costs are exactly equal and sums are never rounded.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from wirelag.errors import WirelagError

if TYPE_CHECKING:
    import rustworkx as rx

Network: TypeAlias = IPv4Network | IPv6Network
Place: TypeAlias = tuple[float, float]  # x to the right, y up: longitude and latitude, say


@dataclass(frozen=True, slots=True)
class Link:
    """From one router to the next."""

    source: str
    target: str
    weight: int  # in units of the topology


@dataclass(frozen=True)
class Topology:
    """Routers and the links between them; at most one link per ordered pair, none from a router to itself."""

    routers: tuple[str, ...]
    links: tuple[Link, ...]
    prefixes: Mapping[str, tuple[Network, ...]] = field(default_factory=dict)  # networks that a router delivers to
    notes: tuple[str, ...] = ()  # what was repaired or assumed
    name: str = "topology"  # for messages
    unit: Decimal = Decimal(1)  # unit of weights: 1, 0.1, 0.01 ...
    addresses: Mapping[str, str] = field(default_factory=dict)  # a router's own, valid whatever port fails
    link_addresses: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)  # of its two ports
    places: Mapping[str, Place] = field(default_factory=dict)  # where routers are, as far as the file says

    @cached_property
    def graph(self) -> rx.PyDiGraph[str, int]:
        """The graph for rustworkx; indices are those of `routers`."""
        import rustworkx as rx

        graph: rx.PyDiGraph[str, int] = rx.PyDiGraph(multigraph=False)
        index = dict(zip(self.routers, graph.add_nodes_from(self.routers), strict=True))
        graph.add_edges_from([(index[link.source], index[link.target], link.weight) for link in self.links])
        return graph

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.routers)

    @cached_property
    def _pairs(self) -> frozenset[tuple[str, str]]:
        return frozenset((link.source, link.target) for link in self.links)

    def check(self, router: str) -> None:
        """Refuse an unknown router, and suggest similar names."""
        if router in self._known:
            return
        by_fold = {name.casefold(): name for name in self.routers}
        near = [by_fold[one] for one in difflib.get_close_matches(router.casefold(), by_fold, 3, 0.6)]
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {_some(self.routers)}"
        raise WirelagError(f"{self.name}: there is no router {router}; {hint}")

    def without(self, *pairs: tuple[str, str]) -> Topology:
        """The topology after links have failed, each in both directions."""
        for one, other in pairs:
            self.check(one)
            self.check(other)
            if not {(one, other), (other, one)} & self._pairs:
                others = [link.target for link in self.links if link.source == one]
                raise WirelagError(f"{self.name}: no link joins {one} and {other}; {one} has links to {_some(others)}")
        gone = {*pairs, *((other, one) for one, other in pairs)}
        return replace(self, links=tuple(link for link in self.links if (link.source, link.target) not in gone))

    def renamed(self, names: Mapping[str, str]) -> Topology:
        """The topology with other names for some routers; a WirelagError if two would be the same."""
        new = {router: names.get(router, router) for router in self.routers}
        if twice := sorted(name for name, times in Counter(new.values()).items() if times > 1):
            raise WirelagError(f"{self.name}: two routers would both be called {twice[0]}; give them other names")
        return replace(
            self,
            routers=tuple(new.values()),
            links=tuple(Link(new[link.source], new[link.target], link.weight) for link in self.links),
            prefixes={new[router]: networks for router, networks in self.prefixes.items()},
            addresses={new[router]: address for router, address in self.addresses.items()},
            link_addresses={(new[one], new[other]): ports for (one, other), ports in self.link_addresses.items()},
            places={new[router]: place for router, place in self.places.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON that `read_topology` reads back as the same topology, except its name and notes."""
        answer: dict[str, Any] = {
            "directed": True,
            "routers": list(self.routers),
            "links": [
                {"source": link.source, "target": link.target, "weight": _number(link.weight * self.unit)}
                | ({"addresses": list(ports)} if (ports := self.link_addresses.get((link.source, link.target))) else {})
                for link in self.links
            ],
        }
        if self.prefixes:
            answer["prefixes"] = {router: [str(one) for one in nets] for router, nets in self.prefixes.items()}
        if self.addresses:
            answer["addresses"] = dict(self.addresses)
        if self.places:
            answer["places"] = {router: list(place) for router, place in self.places.items()}
        return answer


def read_topology(source: str | Path) -> Topology:
    """Read a file in any format, detected by content; `archive:member`; or `ospf:`, a running FRRouting."""
    from wirelag.network.formats import read_draft

    return read_draft(str(source)).settle()


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more if names else "none"


def _number(value: Decimal) -> int | float:
    """As a JSON number. A weight has at most 15 digits, so its float is written with the same digits."""
    return int(value) if value == int(value) else float(value)
