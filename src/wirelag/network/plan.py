"""The measurement plan: which routers to upgrade, which paths then remain to be measured, and who watches them.

Law: with U the measuring routers, the paths to measure (the split set of Algorithm 1, as a set) are all shortest paths,
of all ordered pairs, with no router of U in between. Those that begin at a router are its m-set. If one more router can
measure, the paths that have it in between are removed, and none is added: their two parts were to be measured before.
So Algorithm 1's count of a router is the number of paths it saves, and their hops are the reduction of probe hops.

Nothing is listed: paths are counted (`kernels/routes.h`), and an upgrade recounts only the sources it affects.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from wirelag.errors import WirelagError
from wirelag.network.segments import EDGE, Segment
from wirelag.units import format_size

if TYPE_CHECKING:
    from wirelag.network.topology import Topology

Strategy = Literal["count", "reduction", "random"]
STRATEGIES: Final[tuple[str, ...]] = get_args(Strategy)
MOST_ROUTERS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Extent:
    """What is to be measured: paths, the sum of their hops, and how long they are."""

    paths: int
    probe_hops: int
    shortest: int
    longest: int
    is_exact: bool = True  # else counts of paths and hops were capped, each by itself: their ratio means nothing

    @property
    def granularity(self) -> float | None:
        """Mean hops of a path: the resolution at which a problem can be located."""
        if not self.is_exact:
            return None
        return self.probe_hops / self.paths if self.paths else 0.0

    @property
    def mean_hops(self) -> str:
        """The same as text."""
        return "-" if self.granularity is None else f"{self.granularity:.2f}"


@dataclass(frozen=True, slots=True)
class Step:
    """An upgrade, and what is to be measured after it."""

    router: str
    given: bool  # given by the user, not chosen here
    extent: Extent


@dataclass(frozen=True, slots=True)
class Member:
    """A router of an m-set, where paths end: their number, and their hops: sum, fewest, most."""

    target: str
    paths: int
    hops: int
    shortest: int
    longest: int

    @property
    def is_link(self) -> bool:
        """Whether one of the paths is a link."""
        return self.shortest == 1

    @property
    def longer(self) -> int:
        """Number of paths with two or more hops: at most one is a link."""
        return self.paths - self.is_link


class Plan:
    """A topology, and the routers upgraded so far."""

    def __init__(self, topology: Topology, upgraded: Sequence[str] = ()) -> None:
        import numpy as np

        from wirelag import _kernels

        if len(topology.routers) > MOST_ROUTERS:
            raise WirelagError(
                f"{topology.name}: {len(topology.routers):,} routers are too many: at most {MOST_ROUTERS:,}"
            )
        need, there_is = _bytes_for(len(topology.routers), len(topology.links)), _memory()
        if need > there_is:
            raise WirelagError(
                f"{topology.name}: {len(topology.routers):,} routers need {format_size(need)} of memory, but only "
                f"{format_size(there_is)} are available; plan a part of the network"
            )
        self.topology = topology
        self.steps: list[Step] = []
        self._index = {router: i for i, router in enumerate(topology.routers)}
        ends = [(self._index[link.source], self._index[link.target]) for link in topology.links]
        sources, targets = np.array(ends, np.uint32).reshape(-1, 2).T.copy()
        try:
            weights = np.array([link.weight for link in topology.links], np.int64)
            self._paths = _kernels.SplitSet(len(topology.routers), sources, targets, weights)
        except (OverflowError, ValueError) as error:
            raise WirelagError(
                f"{topology.name}: the sums of weights are too large ({error}); use smaller weights"
            ) from None
        self._after: dict[str, dict[str, int]] = {router: {} for router in topology.routers}  # links, by number
        self._before: dict[str, dict[str, int]] = {router: {} for router in topology.routers}
        for i, link in enumerate(topology.links):
            self._after[link.source][link.target] = i
            self._before[link.target][link.source] = i
        self.before = self.extent
        for router in upgraded:
            self.upgrade(router, given=True)

    @property
    def upgraded(self) -> list[str]:
        """The measuring routers, in the order of their upgrades."""
        return [step.router for step in self.steps]

    @property
    def extent(self) -> Extent:
        """What is to be measured now."""
        return Extent(self._paths.paths, self._paths.probe_hops, *self._paths.extent, not self.is_capped)

    @property
    def is_capped(self) -> bool:
        """Whether there were more equal paths than can be counted; numbers are then lower bounds."""
        return self._paths.capped

    def upgrade(self, router: str, given: bool = False) -> None:
        """Let a router measure."""
        self.topology.check(router)
        if router in self.upgraded:
            raise WirelagError(f"{self.topology.name}: {router} is upgraded twice; name it once")
        self._paths.upgrade(self._index[router])
        self.steps.append(Step(router, given, self.extent))

    def gains(self, strategy: Strategy = "count") -> dict[str, int]:
        """How many paths (count) or hops (reduction) each router would save as the next one."""
        return dict(zip(self.topology.routers, self._paths.gains(strategy == "reduction"), strict=True))

    def choose(self, wanted: int, strategy: Strategy = "count", seed: int = 0) -> None:
        """Upgrade `wanted` more routers; fewer if the others save nothing. Of equals take the first in the topology.

        With `random` all routers are equally likely, even those that save nothing.
        """
        if strategy == "random":
            others = [router for router in self.topology.routers if router not in set(self.upgraded)]
            for router in random.Random(seed).sample(others, min(wanted, len(others))):
                self.upgrade(router)
            return
        for _ in range(wanted):
            gains = self._paths.gains(strategy == "reduction")
            best = max(range(len(gains)), key=gains.__getitem__, default=0)
            if not gains or not gains[best]:
                return
            self.upgrade(self.topology.routers[best])

    def m_set(self, router: str) -> list[Member]:
        """The ends of the paths that begin at a router, nearest first."""
        self.topology.check(router)
        names = self.topology.routers
        columns = (column.tolist() for column in self._paths.members(self._index[router]))
        return [Member(names[target], *numbers) for target, *numbers in zip(*columns, strict=True)]

    def ways(self, router: str) -> dict[str, tuple[int, int]]:
        """The cost of the virtual link to each router of the m-set, and its number of paths."""
        costs = self._paths.costs(self._index[router])
        return {one.target: (int(costs[self._index[one.target]]), one.longer) for one in self.m_set(router)}

    def watched(self, router: str) -> Iterator[Segment]:
        """The segments that a router watches: to its m-set, and inside itself if it can measure."""
        for member in self.m_set(router):
            if member.is_link:
                yield Segment.link(router, member.target)
            if member.longer:
                yield Segment.virtual(router, member.target)
        if router in self.upgraded:
            yield from self.inside(router)

    def watches(self, router: str) -> tuple[int, int, int]:
        """The numbers of links, virtual links and insides that a router watches."""
        self.topology.check(router)
        _, paths, _, shortest, _ = self._paths.members(self._index[router])
        inside = self.ways_inside(router) if router in self.upgraded else 0
        return int((shortest == 1).sum()), int((paths > (shortest == 1)).sum()), inside

    def ways_inside(self, router: str) -> int:
        """The number of ways through a router on shortest paths, as many as `inside` yields."""
        self.topology.check(router)
        after = list(self._after[router].values())
        found = int(self._paths.on_route(self._index[router])[after].sum())
        for before, inward in self._before[router].items():
            onward = self._paths.on_route(self._index[before])
            found += 1 + int(onward[after].sum()) if onward[inward] else 0
        return found

    def degree(self, router: str) -> int:
        """How many neighbours a router has."""
        return len(self.neighbours(router))

    def neighbours(self, router: str) -> list[str]:
        """The neighbours of a router, in the order of the topology's links."""
        self.topology.check(router)
        return list({**self._after[router], **self._before[router]})

    def links_used(self) -> Iterator[tuple[str, str]]:
        """The links on shortest paths, as pairs of routers."""
        for router, links in self._after.items():
            onward = self._paths.on_route(self._index[router])
            yield from ((router, target) for target, link in links.items() if onward[link])

    def inside(self, router: str) -> Iterator[Segment]:
        """The ways through a router on shortest paths; EDGE where they begin or end there."""
        self.topology.check(router)
        onward = self._paths.on_route(self._index[router])
        yield from (Segment.inside(router, EDGE, after) for after, link in self._after[router].items() if onward[link])
        for before, inward in self._before[router].items():
            onward = self._paths.on_route(self._index[before])
            if not onward[inward]:
                continue
            yield Segment.inside(router, before, EDGE)
            for after, link in self._after[router].items():
                if onward[link]:  # never back to where it came from, because weights are at least 1
                    yield Segment.inside(router, before, after)


def _bytes_for(routers: int, links: int) -> int:
    """Memory of `kernels/module_routes.cpp`: an order for each pair of routers, bits for each router and link."""
    return 4 * routers**2 + routers * (links + routers) // 8


def _memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, slots=True)
class Turnover:
    """Segments that a router starts watching, stops watching, and watches over other routers, after links failed."""

    router: str
    new: list[Segment]
    gone: list[Segment]
    changed: list[Segment]


def turnover(before: Plan, after: Plan) -> Iterator[Turnover]:
    """What the failure of links changes for each router.

    Until routes have converged, everyone watches old and new segments. Law: a remaining virtual link has other paths if
    and only if it costs more or has fewer paths: while none of its paths fails, nothing that is left can be cheaper.
    """
    for router in before.topology.routers:
        old, new = list(before.watched(router)), list(after.watched(router))
        known, stays = set(old), set(new)
        of_before, of_after = before.ways(router), after.ways(router)
        common = (one for one in new if one.kind == "virtual" and one in known)
        found = Turnover(
            router,
            [one for one in new if one not in known],
            [one for one in old if one not in stays],
            [one for one in common if of_before[one.after] != of_after[one.after]],
        )
        if found.new or found.gone or found.changed:
            yield found
