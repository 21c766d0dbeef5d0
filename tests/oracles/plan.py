"""Which routers to upgrade and what each router then watches, by listing every shortest path.

The independent twin of `kernels/routes.h`, and the tests' oracle for it, written from section VI of the paper:
Algorithm 1 to the letter, with S a set (as a multiset nothing would ever improve), and m-sets by cutting each router's
shortest-path graph. Only for small networks: all paths are in memory at once.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

Path = tuple[str, ...]
Links = Iterable[tuple[str, str, int]]  # from, to, weight
Rule = Literal["count", "reduction"]


def shortest_paths(routers: Sequence[str], links: Links) -> set[Path]:
    """All shortest paths between all ordered pairs, including equal costs."""
    links = list(links)
    found: set[Path] = set()
    for source in routers:
        cost = {source: 0}
        changed = True
        while changed:  # Bellman and Ford
            changed = False
            for one, other, weight in links:
                if one in cost and cost[one] + weight < cost.get(other, cost[one] + weight + 1):
                    cost[other] = cost[one] + weight
                    changed = True
        ends: list[Path] = [(source,)]
        while ends:
            ends = [
                (*path, other)
                for path in ends
                for one, other, weight in links
                if one == path[-1] and cost[one] + weight == cost[other]
            ]
            found.update(ends)
    return found


def upgrades(
    routers: Sequence[str], paths: set[Path], wanted: int, rule: Rule = "count"
) -> tuple[list[str], set[Path]]:
    """Algorithm 1: the routers to upgrade in order, and the split set. Of equals the first is taken."""
    split, chosen = set(paths), []  # S, U
    for _ in range(wanted):
        gain = dict.fromkeys(routers, 0)  # count[r], reset in each iteration
        if rule == "count":
            for path in split:
                for router in path[1:-1]:
                    gain[router] += 1
        else:
            before = probe_hops(split)
            gain = {router: before - probe_hops(cut(split, router)) for router in routers}
        best = max(routers, key=gain.__getitem__)
        if not gain[best]:
            break
        chosen.append(best)
        split = cut(split, best)
    return chosen, split


def cut(paths: set[Path], router: str) -> set[Path]:
    """Split every path that has the router in between into the two parts before and after it."""
    parts: set[Path] = set()
    for path in paths:
        if router in path[1:-1]:
            at = path.index(router)
            parts |= {path[: at + 1], path[at:]}
        else:
            parts.add(path)
    return parts


def probe_hops(paths: set[Path]) -> int:
    """The sum of the hops of all paths."""
    return sum(len(path) - 1 for path in paths)


def m_set(source: str, paths: set[Path], upgraded: Sequence[str]) -> set[Path]:
    """The paths that a router watches: its shortest-path graph, cut at routers that can measure."""
    watched: set[Path] = set()
    reached: set[Path] = {(source,)}
    while reached:
        steps = {(*path, other[len(path)]) for path in reached for other in paths if other[:-1] == path}
        watched |= steps
        reached = {path for path in steps if path[-1] not in upgraded}
    return watched
