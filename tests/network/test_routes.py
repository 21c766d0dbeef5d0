"""Routes and segments, compared with all shortest paths by brute force."""

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.plan import Path, shortest_paths
from tests.support.effort import examples
from tests.support.topologies import SIX, networks
from wirelag.errors import WirelagError
from wirelag.network.routes import Routes
from wirelag.network.segments import ANY, EDGE, Segment, parse_segment, segments_of
from wirelag.network.topology import Link, Topology

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="[]>"), min_size=1, max_size=8)
PORTS = NAMES | st.just(EDGE) | st.just(ANY)
SEGMENTS = (
    st.builds(Segment.link, NAMES, NAMES)
    | st.builds(Segment.virtual, NAMES, NAMES)
    | st.builds(Segment.inside, NAMES, PORTS, PORTS)
)
NO_SEGMENTS = ("", "A", ">", "A>", ">B", "A>>", "A>>>B", "A>B>C", "A[B]", "[A>B]", "A[B>C", "A[B>C]>D")


def listed(topology: Topology) -> set[Path]:
    return shortest_paths(topology.routers, [(link.source, link.target, link.weight) for link in topology.links])


# ---- routes ----


@examples(60)
@given(networks())
def test_paths_equal_brute_force(topology: Topology) -> None:
    routes, every = Routes(topology), listed(topology)
    for source in topology.routers:
        for target in topology.routers:
            wanted = {path for path in every if path[0] == source and path[-1] == target}
            if source == target:
                assert routes.paths(source, target) == [(source,)]
            elif wanted:
                found = routes.paths(source, target)
                assert len(found) == len(wanted)
                assert set(found) == wanted
                assert set(routes.next_hops(source, target)) == {path[1] for path in wanted}
                assert routes.costs(source)[target] == routes.cost(source, target)
            else:
                assert routes.cost(source, target) is None
                assert routes.next_hops(source, target) == ()
                assert target not in routes.costs(source)
                with pytest.raises(WirelagError, match="there is no path from"):
                    routes.paths(source, target)


@examples(60)
@given(networks())
def test_traffic_splits_evenly_at_each_router(topology: Topology) -> None:
    routes, every = Routes(topology), listed(topology)
    for source, target in {(path[0], path[-1]) for path in every}:
        paths = [path for path in every if path[0] == source and path[-1] == target]
        hops = defaultdict(set)
        for path in paths:
            for one, other in pairwise(path):
                hops[one].add(other)
        wanted: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        for path in paths:
            share = Fraction(1)
            for router in path[:-1]:
                share /= len(hops[router])
            for link in pairwise(path):
                wanted[link] += share
        assert routes.shares(source, target) == wanted


def test_equal_paths_of_the_six_routers() -> None:
    routes = Routes(SIX)
    assert routes.paths("A", "D") == [("A", "F", "C", "D"), ("A", "F", "E", "D")]
    assert routes.shares("A", "D") == {
        ("A", "F"): 1,
        ("F", "C"): Fraction(1, 2),
        ("F", "E"): Fraction(1, 2),
        ("C", "D"): Fraction(1, 2),
        ("E", "D"): Fraction(1, 2),
    }
    assert routes.next_hops("F", "D") == ("C", "E")
    assert routes.cost("A", "D") == 5
    assert routes.shares("A", "A") == {}


def test_unknown_routers_and_missing_routes() -> None:
    routes = Routes(SIX)
    for ask in (lambda: routes.paths("G", "A"), lambda: routes.next_hops("A", "G"), lambda: routes.shares("A", "G")):
        with pytest.raises(WirelagError, match="there is no router G"):
            ask()
    with pytest.raises(WirelagError, match="more than 1 equal paths from F to D"):
        routes.paths("F", "D", most=1)
    alone = Topology(("A", "B"), (Link("A", "B", 1),), name="one way")
    with pytest.raises(WirelagError, match="one way: there is no path from B to A"):
        Routes(alone).shares("B", "A")


# ---- segments ----


@given(SEGMENTS)
def test_names_and_segments_are_inverse(segment: Segment) -> None:
    assert parse_segment(str(segment)) == segment


@pytest.mark.parametrize(
    ("text", "segment"),
    [
        ("A>B", Segment("link", "A", "", "B")),
        ("A>>D", Segment("virtual", "A", "", "D")),
        ("B[A>C]", Segment("inside", "B", "A", "C")),
        ("B[>C]", Segment("inside", "B", "", "C")),
        ("B[A>]", Segment("inside", "B", "A", "")),
        ("B[>]", Segment("inside", "B", "", "")),
        ("B[*>C]", Segment("inside", "B", "*", "C")),
        ("Sydney,+Australia1>core-1.lab", Segment("link", "Sydney,+Australia1", "", "core-1.lab")),
    ],
)
def test_names(text: str, segment: Segment) -> None:
    assert parse_segment(text) == segment
    assert str(segment) == text


@pytest.mark.parametrize("text", NO_SEGMENTS)
def test_invalid_segment_names(text: str) -> None:
    with pytest.raises(WirelagError, match="is not a segment: a link is A>B"):
        parse_segment(text)


@pytest.mark.parametrize(
    ("path", "upgraded", "names"),
    [
        ("ABC", "ABC", "A[>B] A>B B[A>C] B>C C[B>]"),
        ("ABC", "", "A>>C"),
        ("AB", "", "A>B"),
        ("ABCD", "B", "A>B B[A>C] B>>D"),
        ("ABCD", "AD", "A[>B] A>>D D[C>]"),
        ("A", "A", "A[>]"),
        ("A", "", ""),
        ("", "A", ""),
    ],
)
def test_a_path_is_cut_where_it_can_be_measured(path: str, upgraded: str, names: str) -> None:
    assert " ".join(map(str, segments_of(path, upgraded))) == names
