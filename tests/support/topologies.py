"""Small networks for tests: the one with six routers, and generated ones."""

from typing import Any

from hypothesis import strategies as st

from tests.support.places import SIX_ROUTERS
from wirelag.network.topology import Link, Topology, read_topology

SIX_FILE = SIX_ROUTERS
SIX = read_topology(SIX_FILE)


@st.composite
def networks(draw: Any, most: int = 7) -> Topology:
    """A few routers and links with small weights, so that many paths have equal costs; not always connected."""
    routers = tuple("ABCDEFG"[: draw(st.integers(1, most))])
    pairs = [(one, other) for one in routers for other in routers if one != other]
    weights = st.integers(1, draw(st.sampled_from((1, 2, 3))))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    if draw(st.booleans()):
        chosen = sorted({*chosen, *((other, one) for one, other in chosen)})
    return Topology(routers, tuple(Link(one, other, draw(weights)) for one, other in chosen), name="drawn")


def grid(side: int) -> Topology:
    """Routers in rows and columns, one step apart: the most equal paths."""
    places = [(x, y) for x in range(side) for y in range(side)]
    links = [
        Link(f"{x}.{y}", f"{x + a}.{y + b}", 1)
        for x, y in places
        for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0))
        if (x + a, y + b) in set(places)
    ]
    return Topology(tuple(f"{x}.{y}" for x, y in places), tuple(links), name="grid")
