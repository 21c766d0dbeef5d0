"""The measurement plan: checked by Algorithm 1 and brute force, all topologies, and the paper's figures."""

import math
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import plan as naive
from tests.support.effort import FULL, examples
from tests.support.topologies import SIX, grid, networks
from wirelag import _kernels
from wirelag.errors import WirelagError
from wirelag.network.classes import Size, framed, router_cost
from wirelag.network.plan import Plan, turnover
from wirelag.network.routes import Routes
from wirelag.network.segments import segments_of
from wirelag.network.topology import Link, Topology, read_topology

RULES: tuple[naive.Rule, ...] = ("count", "reduction")
MOST_LISTED = 40  # largest number of routers for which all paths are listed


def listed(topology: Topology) -> set[naive.Path]:
    links = [(link.source, link.target, link.weight) for link in topology.links]
    return naive.shortest_paths(topology.routers, links)


def agree(plan: Plan, split: set[naive.Path]) -> None:
    """The numbers of a plan equal those of the split set, router by router."""
    lengths = [len(path) - 1 for path in split] or [0]
    extent = plan.extent
    assert (extent.paths, extent.probe_hops) == (len(split), naive.probe_hops(split))
    assert (extent.shortest, extent.longest) == (min(lengths), max(lengths))
    assert extent.granularity == pytest.approx(float(np.mean(lengths)))
    by_ends: dict[tuple[str, str], list[int]] = defaultdict(list)
    for path in split:
        by_ends[path[0], path[-1]].append(len(path) - 1)
    members = {(router, one.target): one for router in plan.topology.routers for one in plan.m_set(router)}
    assert {ends: (one.paths, one.hops, one.shortest, one.longest) for ends, one in members.items()} == {
        ends: (len(hops), sum(hops), min(hops), max(hops)) for ends, hops in by_ends.items()
    }


def by_rule(split: set[naive.Path], routers: tuple[str, ...], rule: naive.Rule) -> dict[str, int]:
    """The reduction by each router."""
    if rule == "reduction":
        return {router: naive.probe_hops(split) - naive.probe_hops(naive.cut(split, router)) for router in routers}
    return {router: sum(router in path[1:-1] for path in split) for router in routers}


# ---- brute force ----


@examples(80)
@given(networks(), st.sampled_from(RULES), st.integers(0, 7))
def test_upgrades_follow_algorithm_1(topology: Topology, rule: naive.Rule, wanted: int) -> None:
    every = listed(topology)
    chosen, split = naive.upgrades(topology.routers, every, wanted, rule)
    plan = Plan(topology)
    agree(plan, every)
    plan.choose(wanted, rule)
    assert plan.upgraded == chosen
    agree(plan, split)
    for other in RULES:
        assert plan.gains(other) == by_rule(split, topology.routers, other)


@examples(80)
@given(networks(), st.randoms(use_true_random=False))
def test_the_union_of_m_sets_is_the_split_set(topology: Topology, rng: Random) -> None:
    """In any order, for any set of upgraded routers."""
    upgraded = rng.sample(topology.routers, rng.randint(0, len(topology.routers)))
    every = listed(topology)
    split = every
    for router in upgraded:
        split = naive.cut(split, router)
    m_sets = [naive.m_set(router, every, upgraded) for router in topology.routers]
    assert set().union(*m_sets) == split
    assert split == {path for path in every if not set(path[1:-1]) & set(upgraded)}
    plan = Plan(topology, upgraded)
    agree(plan, split)
    assert plan.extent == Plan(topology, sorted(upgraded)).extent


@examples(60)
@given(networks(6), st.randoms(use_true_random=False))
def test_watched_segments_are_those_of_all_paths(topology: Topology, rng: Random) -> None:
    upgraded = rng.sample(topology.routers, rng.randint(0, len(topology.routers)))
    plan = Plan(topology, upgraded)
    wanted = {segment for path in listed(topology) for segment in segments_of(path, upgraded)}
    watched = [segment for router in topology.routers for segment in plan.watched(router)]
    assert len(watched) == len(set(watched))
    assert set(watched) == wanted
    for router in topology.routers:
        kinds = [segment.kind for segment in plan.watched(router)]
        assert plan.ways_inside(router) == len(list(plan.inside(router)))
        assert plan.watches(router) == tuple(kinds.count(kind) for kind in ("link", "virtual", "inside"))


@examples(80)
@given(networks(6), st.randoms(use_true_random=False))
def test_the_changes_of_a_failure(topology: Topology, rng: Random) -> None:
    """New, gone and changed segments follow from the lists of paths."""
    upgraded = rng.sample(topology.routers, rng.randint(0, len(topology.routers)))
    failed = [(link.source, link.target) for link in rng.sample(topology.links, min(1, len(topology.links)))]
    old, new = Plan(topology, upgraded), Plan(topology.without(*failed), upgraded)
    routed = [_ways(plan.topology, upgraded) for plan in (old, new)]
    names: tuple[set[str], ...] = set(), set(), set()
    for one in turnover(old, new):
        for place, segments in zip(names, (one.new, one.gone, one.changed), strict=True):
            place |= {str(segment) for segment in segments}
            assert all(segment.at == one.router for segment in segments)
    before, after = routed
    assert names[0] == after.keys() - before.keys()
    assert names[1] == before.keys() - after.keys()
    assert names[2] == {name for name in before.keys() & after.keys() if before[name] != after[name]}


def _ways(topology: Topology, upgraded: list[str]) -> dict[str, set[naive.Path]]:
    """The paths of each segment; the inside of a router and a link have one."""
    found: dict[str, set[naive.Path]] = defaultdict(set)
    for path in listed(topology):
        for segment in segments_of(path, upgraded):
            found[str(segment)] |= set()
        if len(path) > 2 and not set(path[1:-1]) & set(upgraded):
            found[f"{path[0]}>>{path[-1]}"].add(path)
    return found


# ---- the six routers ----


def test_m_sets_of_figure_8() -> None:
    plan = Plan(SIX, ["C", "F"])
    m_sets = {router: {member.target for member in plan.m_set(router)} for router in SIX.routers}
    assert m_sets["A"] == {"B", "F"}
    assert m_sets["C"] == {"F", "D", "E"}
    assert m_sets["F"] == {"A", "B", "C", "E", "D"}  # the text omits C: the first path to D goes through it
    (to_d,) = [member for member in plan.m_set("F") if member.target == "D"]
    assert (to_d.paths, to_d.longest) == (1, 2)  # D2: through E, not through C
    assert [str(segment) for segment in plan.watched("F") if segment.kind == "virtual"] == ["F>>D"]
    every = listed(SIX)
    assert naive.m_set("F", every, ["C", "F"]) == {tuple("FA"), tuple("FB"), tuple("FC"), tuple("FE"), tuple("FED")}
    _, split = naive.upgrades(SIX.routers, every, 0)
    for router in ("C", "F"):
        split = naive.cut(split, router)
    agree(plan, split)


def test_savings_of_the_first_upgrades() -> None:
    plan = Plan(SIX)
    plan.choose(2)
    chosen, split = naive.upgrades(SIX.routers, listed(SIX), 2)
    assert plan.upgraded == chosen == ["F", "C"]
    assert [step.extent.probe_hops for step in plan.steps][-1] == naive.probe_hops(split)
    plan.choose(6)
    assert plan.extent.longest == 1  # every path is one link, and no further upgrade helps
    assert len(plan.upgraded) < 6
    assert plan.extent.probe_hops == plan.extent.paths == len(SIX.links)


def test_a_link_fails() -> None:
    before = Plan(SIX, ["C", "F"])
    after = Plan(SIX.without(("C", "F")), ["C", "F"])
    changes = {
        one.router: ({str(new) for new in one.new}, {str(gone) for gone in one.gone}) for one in turnover(before, after)
    }
    assert "F>C" in changes["F"][1]
    assert "F>>C" in changes["F"][0]  # now over E, which cannot measure
    assert "C[F>D]" in changes["C"][1]
    assert set(changes) <= set(SIX.routers)
    for router, (new, gone) in changes.items():
        assert {str(one) for one in before.watched(router)} - gone == {str(one) for one in after.watched(router)} - new
    assert list(turnover(before, before)) == []


def test_random_routers_follow_from_the_seed() -> None:
    plans = [Plan(SIX) for _ in range(3)]
    for plan, seed in zip(plans, (1, 1, 2), strict=True):
        plan.choose(4, "random", seed)
    assert plans[0].upgraded == plans[1].upgraded != plans[2].upgraded
    plans[0].choose(9, "random", 3)
    assert sorted(plans[0].upgraded) == list(SIX.routers)


def test_required_memory_is_reported_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirelag.network.plan._memory", lambda: 100)
    with pytest.raises(WirelagError, match=r"6 routers need .* of memory, but only 100 B are available; plan a part"):
        Plan(SIX)


def test_invalid_upgrades() -> None:
    with pytest.raises(WirelagError, match="there is no router G"):
        Plan(SIX, ["G"])
    with pytest.raises(WirelagError, match="C is upgraded twice"):
        Plan(SIX, ["C", "C"])


# ---- numbers ----


def test_many_equal_paths_are_counted_exactly() -> None:
    side = 26
    plan = Plan(grid(side))
    corner = next(member for member in plan.m_set("0.0") if member.target == f"{side - 1}.{side - 1}")
    assert corner.paths == math.comb(2 * side - 2, side - 1)
    assert not plan.is_capped
    apart = [(abs(a), abs(b)) for a in range(1 - side, side) for b in range(1 - side, side) if (a, b) != (0, 0)]
    ways = [(math.comb(a + b, a) * (side - a) * (side - b), a + b) for a, b in apart]
    assert plan.extent.paths == sum(count for count, _ in ways)
    assert plan.extent.probe_hops == sum(count * hops for count, hops in ways) > 2**57
    assert plan.extent.longest == 2 * side - 2
    plan = Plan(grid(10))
    for router in plan.topology.routers:  # nothing is left after all upgrades
        plan.upgrade(router)
    assert plan.extent.paths == plan.extent.probe_hops == len(plan.topology.links)


def test_more_paths_than_can_be_counted() -> None:
    """Numbers stop at the limit and are marked; upgrades subtract what was counted, and never too much."""
    rows = 60
    ladder = [Link(f"{i}.{a}", f"{i + 1}.{b}", 1) for i in range(rows) for a in ("l", "r") for b in ("l", "r")]
    routers = tuple(dict.fromkeys(name for link in ladder for name in (link.source, link.target)))
    plan = Plan(Topology(routers, tuple(ladder), name="ladder"))
    assert plan.is_capped
    assert plan.extent.granularity is None  # the ratio of two capped numbers means nothing
    for router in routers:
        plan.upgrade(router)
    assert (plan.extent.paths, plan.extent.probe_hops, plan.extent.longest) == (len(ladder), len(ladder), 1)
    assert set(plan.gains().values()) == set(plan.gains("reduction").values()) == {0}


def test_nothing_to_measure() -> None:
    for topology in (Topology(("A",), ()), Topology(("A", "B"), ())):
        plan = Plan(topology)
        plan.choose(3)
        assert plan.upgraded == []
        assert (plan.extent.paths, plan.extent.granularity, plan.extent.longest) == (0, 0.0, 0)


def test_the_kernel_refuses_invalid_input() -> None:
    ends, weights = np.array([0, 1], np.uint32), np.array([1, 1], np.int64)
    with pytest.raises(ValueError, match="names an unknown router"):
        _kernels.SplitSet(1, ends, ends[::-1].copy(), weights)
    with pytest.raises(ValueError, match="at least 1"):
        _kernels.SplitSet(2, ends, ends[::-1].copy(), weights - 1)
    with pytest.raises(ValueError, match="at least 1, and together less"):
        _kernels.SplitSet(2, ends, ends[::-1].copy(), weights + (2**63 - 2))
    with pytest.raises(ValueError, match="a source, a target and a weight"):
        _kernels.SplitSet(2, ends, ends[:1], weights)
    with pytest.raises(ValueError, match="at most 65,536 routers"):
        _kernels.SplitSet(65_537, ends, ends, weights)
    paths = _kernels.SplitSet(2, ends, ends[::-1].copy(), weights)
    for ask in (paths.upgrade, paths.members, paths.on_route):
        with pytest.raises(ValueError, match="unknown router"):
            ask(2)
    with pytest.raises(WirelagError, match="weights are too large"):
        Plan(Topology(("A", "B"), (Link("A", "B", 2**63),)))


# ---- every topology ----


def topologies(shared_data: Path, room: Path) -> Iterator[Topology]:
    """All topologies; archives are unpacked into a folder."""
    for path in sorted((shared_data / "topologies").rglob("*")):
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later
                archive.extractall(room)
        elif path.is_file():
            yield read_topology(path)
    yield from (read_topology(path) for path in sorted(room.rglob("*")) if path.suffix in (".gml", ".graphml"))


def counted(topology: Topology, source: str, upgraded: set[str]) -> tuple[int, int]:
    """The paths from a router in the split set and their hops, from the routes, with Python's integers."""
    costs = Routes(topology).costs(source)
    before: dict[str, list[str]] = defaultdict(list)
    for link in topology.links:
        if link.source in costs and costs[link.source] + link.weight == costs[link.target]:
            before[link.target].append(link.source)
    ways, hops = {source: 1}, {source: 0}
    for router in sorted(costs, key=costs.__getitem__)[1:]:
        onward = [hop for hop in before[router] if hop == source or hop not in upgraded]
        ways[router] = sum(ways[hop] for hop in onward)
        hops[router] = sum(hops[hop] + ways[hop] for hop in onward)
    return sum(ways.values()) - 1, sum(hops.values())


@pytest.mark.acceptance
def test_the_union_of_m_sets_on_every_topology(shared_data: Path, tmp_path: Path) -> None:
    """Every topology; in `make test` every eighth."""
    seen = 0
    for topology in islice(topologies(shared_data, tmp_path), 0, None, 1 if FULL else 8):
        plan = Plan(topology)
        plan.choose(math.ceil(len(topology.routers) / 7))
        m_sets = [plan.m_set(router) for router in topology.routers]
        assert plan.extent.paths == sum(member.paths for m_set in m_sets for member in m_set), topology.name
        assert plan.extent.probe_hops == sum(member.hops for m_set in m_sets for member in m_set), topology.name
        seen += 1
        some = topology.routers[:: max(1, len(topology.routers) // 3)]
        for router in some if not plan.is_capped else ():  # by another count of paths
            m_set = plan.m_set(router)
            found = sum(member.paths for member in m_set), sum(member.hops for member in m_set)
            assert found == counted(topology, router, set(plan.upgraded)), (topology.name, router)
        if len(topology.routers) <= MOST_LISTED and plan.before.paths < 20_000:
            chosen, split = naive.upgrades(topology.routers, listed(topology), len(plan.upgraded))
            assert plan.upgraded == chosen, topology.name
            agree(plan, split)
    assert seen > (500 if FULL else 60)


# ---- the paper's figures ----


@pytest.fixture(scope="module")
def sprint(shared_data: Path) -> Topology:
    return read_topology(shared_data / "topologies" / "ns-3-dev-git" / "RocketFuel_toposample_1239_weights.txt")


def test_sprint(sprint: Topology) -> None:
    assert (len(sprint.routers), len(sprint.links)) == (315, 1944)
    for strategy in RULES:
        plan = Plan(sprint)
        plan.choose(50, strategy)
        before, after = plan.before, [step.extent for step in plan.steps]
        assert before.probe_hops >= 100 * after[44].probe_hops
        assert 4 < (before.granularity or 0.0) < 5
        assert (after[49].granularity or 9.0) <= 1.7
        assert all(one.probe_hops > other.probe_hops for one, other in pairwise(after))
        for seed in range(3):
            drawn = Plan(sprint)
            drawn.choose(50, "random", seed)
            assert (drawn.extent.granularity or 0.0) > 3
            assert drawn.steps[44].extent.probe_hops > 10 * after[44].probe_hops


# ---- measurement equivalence classes ----


def test_the_cost_of_measuring_inside_routers() -> None:
    plan = Plan(SIX, ["F"])
    size = Size(1000, 1000)
    cost = router_cost(plan, "F", size, 3, 500_000_000)
    assert (cost.ports, cost.ways, cost.used) == (5, 25, len(list(plan.inside("F"))))
    assert cost.synopses == 2 * 25 * 3
    assert cost.memory_bytes == 2 * 2 * 25 * 3 * 1000
    assert cost.control_bps == 2 * 8 * 25 * 3 * (1000 + 66)
    assert cost.answer_bps == 2 * 8 * framed(25 * 3 * 48)
    assert 0 < cost.used <= cost.ways


def test_frames() -> None:
    assert framed(1472) == 1472 + 66
    assert framed(1473) == 1473 + 2 * 66
    assert (framed(1024 * 72 // 8) - 1024 * 72 // 8) // 66 == 7  # the paper's seven packets
