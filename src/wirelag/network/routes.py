"""Routes: all shortest paths between two routers, including equal costs, and how traffic splits over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.network.topology import Topology

_Neighbours = Mapping[str, Mapping[str, int]]  # neighbours of each router, with the weight of the link


class Routes:
    """The shortest paths of a topology, computed on demand.

    Law: a router sends traffic for a target to every neighbour on a shortest path to it, in equal shares, whatever way
    the traffic came. Weights are integers, so costs are exactly equal or not at all.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._after: dict[str, dict[str, int]] = {router: {} for router in topology.routers}
        self._before: dict[str, dict[str, int]] = {router: {} for router in topology.routers}
        for link in topology.links:
            self._after[link.source][link.target] = link.weight
            self._before[link.target][link.source] = link.weight
        self._to: dict[str, dict[str, int]] = {}

    def next_hops(self, router: str, target: str) -> tuple[str, ...]:
        """Where `router` sends traffic for `target`; empty if it is the target, or cannot reach it."""
        costs = self._costs_to(target)
        return _on_shortest(self._after[self._known(router)], costs, costs.get(router))

    def cost(self, source: str, target: str) -> int | None:
        """The cost of a shortest path; None if there is no path."""
        return self._costs_to(target).get(self._known(source))

    def costs(self, source: str) -> dict[str, int]:
        """The cost from a router to each router that it can reach."""
        return _costs(self._known(source), self._after)

    def paths(self, source: str, target: str, most: int = 1000) -> list[tuple[str, ...]]:
        """All shortest paths, in the order of the topology's links; an error if there is none, or more than `most`."""
        self._need_path(source, target)
        found: list[tuple[str, ...]] = []
        for path in self._walk(source, target):
            if len(found) == most:
                raise WirelagError(
                    f"{self._topology.name}: there are more than {most:,} equal paths from {source} to {target}"
                )
            found.append(path)
        return found

    def shares(self, source: str, target: str) -> dict[tuple[str, str], Fraction]:
        """The share of the traffic on each link of the route."""
        self._need_path(source, target)
        costs = self._costs_to(target)
        arriving: dict[str, Fraction] = defaultdict(Fraction, {source: Fraction(1)})
        found: dict[tuple[str, str], Fraction] = {}
        while arriving:
            router = max(arriving, key=costs.__getitem__)  # no more traffic can arrive at the farthest router
            share, hops = arriving.pop(router), self.next_hops(router, target)
            for hop in hops:
                found[router, hop] = share / len(hops)
                arriving[hop] += share / len(hops)
        return found

    def _walk(self, source: str, target: str) -> Iterator[tuple[str, ...]]:
        waiting: list[tuple[str, ...]] = [(source,)]
        while waiting:
            path = waiting.pop()
            if path[-1] == target:
                yield path
            else:
                waiting += [(*path, hop) for hop in reversed(self.next_hops(path[-1], target))]

    def _need_path(self, source: str, target: str) -> None:
        if self.cost(source, target) is None:
            raise WirelagError(
                f"{self._topology.name}: there is no path from {source} to {target}; its parts do not connect"
            )

    def _known(self, router: str) -> str:
        self._topology.check(router)
        return router

    def _costs_to(self, target: str) -> dict[str, int]:
        if target not in self._to:
            self._to[target] = _costs(self._known(target), self._before)
        return self._to[target]


def _costs(start: str, neighbours: _Neighbours) -> dict[str, int]:
    """Dijkstra: the cost from `start` to each reachable router."""
    costs: dict[str, int] = {}
    waiting = [(0, start)]
    while waiting:
        cost, router = heappop(waiting)
        if router in costs:
            continue
        costs[router] = cost
        for neighbour, weight in neighbours[router].items():
            if neighbour not in costs:
                heappush(waiting, (cost + weight, neighbour))
    return costs


def _on_shortest(neighbours: Mapping[str, int], costs: Mapping[str, int], cost: int | None) -> tuple[str, ...]:
    """The neighbours that are nearer by exactly the weight of the link to them."""
    if cost is None:
        return ()
    return tuple(hop for hop, weight in neighbours.items() if costs.get(hop, cost + 1) + weight == cost)
