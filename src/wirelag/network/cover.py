"""Routes cut into the measured segments, and whether segments fit a topology.

Law: of all ways to cover a path with segments that have a report, take the one with the fewest pieces without a report,
and of these the finest. The inside of a router at the end of a path is a piece only if that router reports on its
inside at all: at others a server beside it sends and receives. A virtual link covers the paths without a measuring
router; so it stands in for one with such a router only if no other path of equal cost joins its ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from wirelag.errors import WirelagError
from wirelag.network.localise import Path
from wirelag.network.routes import Routes
from wirelag.network.segments import ANY, EDGE, Segment
from wirelag.network.topology import Topology

Shares = Mapping[tuple[str, str], float]  # share of a router's traffic to a target that goes to each next hop
_Found = tuple[int, int, tuple[Segment, ...], tuple[Segment, ...]]  # unreported pieces, -pieces, reported, not


class Cover:
    """Paths of a topology in terms of segments that have a report."""

    def __init__(
        self, topology: Topology, measured: Collection[Segment], upgraded: Collection[str] = (), whole: bool = False
    ) -> None:
        """`upgraded`: measuring routers, besides those whose insides are among the segments.

        `whole`: the insides of the first and last router are part of every path, whether they report or not.
        """
        self.topology, self.routes, self.measured = topology, Routes(topology), frozenset(measured)
        self._whole = whole
        inside = {segment.at for segment in self.measured if segment.kind == "inside"}
        self._reporting, self._upgraded = frozenset(inside), frozenset(inside) | frozenset(upgraded)

    def paths(self, source: str, target: str, shares: Shares | None = None) -> list[Path]:
        """The equal paths of a route; `shares` are the observed ones, if any."""
        found = []
        for routers in self.routes.paths(source, target):
            share = self._share(routers, shares or {})
            if share:
                covered, missing = self.cut(routers)
                found.append(Path(routers, share, covered, _runs(missing)))
        return found

    def _share(self, routers: tuple[str, ...], seen: Shares) -> float:
        share = 1.0
        for router, hop in pairwise(routers):
            hops = self.routes.next_hops(router, routers[-1])
            total = sum(seen.get((router, one), 0.0) for one in hops) if seen else 0.0
            share *= seen.get((router, hop), 0.0) / total if total else 1 / len(hops)
        return share

    def cut(self, path: tuple[str, ...]) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
        """The segments of a path with a report, and those without."""
        last = len(path) - 1  # backwards: the best cover from each ingress and egress on
        leaving: dict[int, _Found] = {}
        entering: dict[int, _Found] = {}
        for i in range(last, -1, -1):
            if i == last:
                leaving[i] = (0, 0, (), ())
            else:
                ways = [(Segment.link(path[i], path[i + 1]), i + 1)]
                ways += [
                    (virtual, j)
                    for j in range(i + 2, last + 1)
                    if (virtual := Segment.virtual(path[i], path[j])) in self.measured
                    and self._contains(path[i : j + 1])
                ]
                leaving[i] = min(self._with(segment, entering[j]) for segment, j in ways)
            before, after = path[i - 1] if i else EDGE, path[i + 1] if i < last else EDGE
            exact = Segment.inside(path[i], before, after)
            wider = [Segment.inside(path[i], *ports) for ports in ((ANY, after), (before, ANY), (ANY, ANY))]
            inside = next((segment for segment in (exact, *wider) if segment in self.measured), exact)
            needed = inside in self.measured or path[i] in self._reporting or self._whole or 0 < i < last
            entering[i] = self._with(inside, leaving[i]) if needed else leaving[i]
        return entering[0][2], entering[0][3]

    def _contains(self, piece: tuple[str, ...]) -> bool:
        """Whether the virtual link between the ends of a piece of a path includes that piece."""
        if not self._upgraded & set(piece[1:-1]):
            return True
        return all(len(self.routes.next_hops(router, piece[-1])) == 1 for router in piece[:-1])

    def _with(self, segment: Segment, rest: _Found) -> _Found:
        missing, pieces, covered, without = rest
        if segment in self.measured:
            return missing, pieces - 1, (segment, *covered), without
        return missing + 1, pieces, covered, (segment, *without)

    def pairs(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[str, str]]:
        """The pairs with a path that may include a segment with a report."""
        behind: dict[str, dict[str, int]] = {}
        pieces: dict[tuple[str, str], int] = {}
        weights = {(link.source, link.target): link.weight for link in self.topology.links}
        for segment in self.measured:
            end = segment.at if segment.kind == "inside" else segment.after
            behind.setdefault(end, self.routes.costs(end))
            cost = 0 if segment.kind == "inside" else weights.get((segment.at, end))
            pieces[segment.at, end] = self.routes.cost(segment.at, end) or 0 if cost is None else cost
        found = []
        for source in sources:
            costs = self.routes.costs(source)
            before = [(costs[at] + cost, behind[end]) for (at, end), cost in pieces.items() if at in costs]
            for target in targets:
                cost = costs.get(target)
                if target != source and cost is not None and any(a + b.get(target, cost) == cost for a, b in before):
                    found.append((source, target))
        return found

    def check(self, segment: Segment, name: str) -> None:
        """Refuse a segment that the topology does not have; `name` is its source."""
        routers = [one for one in (segment.at, segment.before, segment.after) if one not in (EDGE, ANY)]
        try:
            for router in routers:
                self.topology.check(router)
        except WirelagError as error:
            raise WirelagError(f"{name}: is of segment {segment}, but {error}") from None
        if segment.kind == "virtual":
            if self.routes.cost(segment.at, segment.after) is None:
                raise WirelagError(
                    f"{name}: is of segment {segment}, but {self.topology.name} has no such path; {_STALE}"
                )
            return
        pairs = [(segment.at, segment.after)]
        if segment.kind == "inside":
            pairs = [(segment.before, segment.at), (segment.at, segment.after)]
        for one, other in pairs:
            if EDGE not in (one, other) and ANY not in (one, other) and (one, other) not in self._links:
                raise WirelagError(
                    f"{name}: is of segment {segment}, but {self.topology.name} has no link from {one} to {other}; "
                    f"{_STALE}"
                )

    @cached_property
    def _links(self) -> frozenset[tuple[str, str]]:
        return frozenset((link.source, link.target) for link in self.topology.links)


_STALE = "if links changed meanwhile, reread the topology and leave out older measurements"


def _runs(missing: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Successive links without a report, with the routers between them, merged."""
    found: list[Segment] = []
    for segment in missing:
        # A run is a link, the inside of the router it leads to, and the link from there.
        if len(found) > 1 and segment.kind == "link" and found[-1].kind == "inside" and found[-2].kind != "inside":
            between, before = found[-1], found[-2]
            if before.after == between.at == segment.at:
                found[-2:] = [Segment.virtual(before.at, segment.after)]
                continue
        found.append(segment)
    return tuple(found)
