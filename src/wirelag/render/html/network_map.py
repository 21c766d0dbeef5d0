"""A network as a chart: routers where the topology says they are, or where a layout puts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from wirelag.render.html.charts import Figure, all_rounded, plain

if TYPE_CHECKING:
    from wirelag.network.topology import Place, Topology

MOST_DRAWN: Final = 1_500  # routers in a map
MOST_NAMED: Final = 60  # routers; with more, only those that matter are named
STEPS: Final = 100  # steps of the layout

Places = Mapping[str, Sequence[float]]


def layout(topology: Topology) -> tuple[Places, bool]:
    """Where each router is drawn, and whether that is where it is.

    Routers without coordinates are drawn between their neighbours. If fewer than half have them, or all are at one
    place, a layout decides.
    """
    known = {router: topology.places[router] for router in topology.routers if router in topology.places}
    if 2 * len(known) >= len(topology.routers) and len(set(known.values())) > 1:
        return _filled(topology, known), True
    import rustworkx as rx

    places = rx.spring_layout(topology.graph.to_undirected(multigraph=False), num_iter=STEPS, seed=1)
    return {router: places[i] for i, router in enumerate(topology.routers)}, False


def _filled(topology: Topology, known: Mapping[str, Place]) -> Places:
    beside: dict[str, list[str]] = {router: [] for router in topology.routers}
    for link in topology.links:
        beside[link.source].append(link.target)
    middle = tuple(sum(place[axis] for place in known.values()) / len(known) for axis in (0, 1))
    at: dict[str, Sequence[float]] = dict(known)
    missing = [router for router in topology.routers if router not in known]
    while found := [router for router in missing if any(one in at for one in beside[router])]:
        for router in found:
            near = [at[one] for one in beside[router] if one in at]
            at[router] = [sum(place[axis] for place in near) / len(near) for axis in (0, 1)]
        missing = [router for router in missing if router not in at]
    return at | dict.fromkeys(missing, middle)


def lines(pairs: Iterable[Sequence[str]], at: Places, **style: object) -> Figure:
    """Straight lines between pairs of routers."""
    ends: tuple[list[float | None], list[float | None]] = [], []
    for one, other in pairs:
        for axis in (0, 1):
            ends[axis].extend([*all_rounded([at[one][axis], at[other][axis]]), None])
    return {"draw": "line", "x": ends[0], "y": ends[1], "quiet": True, **style}


def dots(routers: Sequence[str], labels: Sequence[str] | None, at: Places, name: str) -> Figure:
    """A dot for each router."""
    return {
        "draw": "points",
        "name": name,
        "x": all_rounded(at[router][0] for router in routers),
        "y": all_rounded(at[router][1] for router in routers),
        **({"labels": list(labels)} if labels is not None else {}),
        "tips": [plain(router) for router in routers],
    }


def drawn(at: Places, series: Sequence[Figure]) -> Figure:
    """The chart: axes without marks, around all routers."""
    return {"x": _around(at, 0), "panels": [{"y": _around(at, 1), "series": list(series)}]}


def _around(at: Places, axis: int) -> Figure:
    places = [place[axis] for place in at.values()]
    room = 0.08 * (max(places) - min(places)) or 1.0
    return {"kind": "hidden", "range": all_rounded([min(places) - room, max(places) + room])}
