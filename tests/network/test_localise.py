"""Sums, mixtures, blame and changes of segments, compared with enumeration and simulation."""

import math
import random
from itertools import pairwise, product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.effort import examples, scaled
from tests.support.router_captures import SIX
from wirelag.errors import WirelagError
from wirelag.network.certainty import p_beyond
from wirelag.network.changes import DelayChange, changes, scatter
from wirelag.network.cover import Cover
from wirelag.network.localise import Figures, Path, Verdict, add_up, adds, judge, trials
from wirelag.network.segments import ANY, Segment, parse_segment, segments_of
from wirelag.network.topology import Link, Topology, read_topology
from wirelag.stats.over_time import half95

SLOW = 1e-3
Atoms = list[tuple[float, float]]  # delays and their probabilities


def six() -> Topology:
    return read_topology(SIX)


def verdict(
    paths: list[Path], figures: dict[Segment, Figures], before: dict[Segment, Figures] | None = None
) -> Verdict:
    return judge(paths, figures, trials(figures, SLOW, before))


def every_segment(topology: Topology) -> set[Segment]:
    """All segments if every router can measure."""
    cover = Cover(topology, ())
    pairs = [(a, b) for a in topology.routers for b in topology.routers if a != b]
    paths = [routers for pair in pairs for routers in cover.routes.paths(*pair)]
    return {segment for routers in paths for segment in segments_of(routers, topology.routers)}


# ---- sums ----


@examples(60)
@given(seed=st.integers(0, 10**6), pair=st.sampled_from([("A", "D"), ("F", "D"), ("D", "A"), ("A", "E"), ("B", "C")]))
def test_mean_deviation_and_loss_equal_an_enumeration(seed: int, pair: tuple[str, str]) -> None:
    rng, topology = random.Random(seed), six()
    measured = sorted(every_segment(topology))
    drawn: dict[Segment, Atoms] = {}
    figures: dict[Segment, Figures] = {}
    for segment in measured:
        weights = [rng.random() for _ in range(2)]
        drawn[segment] = [(rng.random() / 100, weight / sum(weights)) for weight in weights]
        mean = sum(delay * p for delay, p in drawn[segment])
        std = math.sqrt(sum((delay - mean) ** 2 * p for delay, p in drawn[segment]))
        figures[segment] = Figures(mean, 1e-5, std, 0.0, 100, 1000, rng.randrange(300))
    paths = Cover(topology, measured).paths(*pair)
    total = verdict(paths, figures).total
    assert add_up(paths, figures) == total
    arrived: Atoms = []  # every combination of delays on every path, with the share that arrives
    for path in paths:
        for combination in product(*(drawn[segment] for segment in path.segments)):
            p = path.share * math.prod(weight for _, weight in combination)
            p *= math.prod(1 - (figures[segment].loss or 0.0) for segment in path.segments)
            arrived.append((sum(delay for delay, _ in combination), p))
    whole = sum(p for _, p in arrived)
    mean = sum(delay * p for delay, p in arrived) / whole
    std = math.sqrt(sum((delay - mean) ** 2 * p for delay, p in arrived) / whole)
    assert total.loss == pytest.approx(1 - whole)
    assert total.mean == pytest.approx(mean)
    assert total.std == pytest.approx(std)


def test_the_error_of_a_route_equals_that_of_repeated_measurements() -> None:
    rng, topology = random.Random(3), six()
    measured = sorted(every_segment(topology))
    means = {segment: rng.random() / 100 for segment in measured}
    errors = {segment: rng.random() / 1000 for segment in measured}
    paths = Cover(topology, measured).paths("A", "D")
    assert len(paths) == 2  # with common segments
    exact = add_up(paths, {s: Figures(means[s], errors[s], 0.0) for s in measured})
    found = []
    for _ in range(4000):
        drawn = {s: Figures(rng.gauss(means[s], errors[s]), errors[s], 0.0) for s in measured}
        found.append(add_up(paths, drawn).mean or 0.0)
    middle = fmean(found)
    scattered = math.sqrt(fmean((x - middle) ** 2 for x in found))
    assert exact.error is not None
    assert exact.error[0] == pytest.approx(scattered, rel=4 / math.sqrt(2 * 4000))


def test_observed_shares_replace_even_ones() -> None:
    cover = Cover(six(), every_segment(six()))
    assert [path.share for path in cover.paths("F", "D")] == [0.5, 0.5]
    seen = {("F", "C"): 30.0, ("F", "E"): 10.0, ("C", "D"): 30.0, ("E", "D"): 10.0}
    assert {path.routers: path.share for path in cover.paths("F", "D", seen)} == {
        ("F", "C", "D"): 0.75,
        ("F", "E", "D"): 0.25,
    }
    one_way = cover.paths("F", "D", {("F", "C"): 5.0, ("F", "E"): 0.0})
    assert [path.routers for path in one_way] == [("F", "C", "D")]


# ---- covers ----


@examples(200)
@given(seed=st.integers(0, 10**6), length=st.integers(2, 5))
def test_a_path_is_covered_as_well_and_as_finely_as_possible(seed: int, length: int) -> None:
    rng = random.Random(seed)
    routers = tuple("ABCDE"[:length])
    links = tuple(Link(a, b, 1) for a, b in pairwise(routers))
    topology = Topology(routers, links)
    inside = segments_of(routers, routers)
    virtual = [Segment.virtual(a, b) for i, a in enumerate(routers) for b in routers[i + 2 :]]
    measured = {segment for segment in (*inside, *virtual) if rng.random() < 0.4}
    upgraded = {segment.at for segment in measured if segment.kind == "inside"}
    (path,) = Cover(topology, measured).paths(routers[0], routers[-1])
    best = min(_covers(routers, measured, upgraded))
    assert len(path.segments) == -best[1]
    assert set(path.segments) <= measured
    assert bool(path.missing) == (best[0] > 0)
    ends = [segment for segment in path.segments if segment.kind != "inside"]
    assert [segment.at for segment in ends] == sorted(segment.at for segment in ends)


def _covers(routers: tuple[str, ...], measured: set[Segment], upgraded: set[str]) -> list[tuple[int, int]]:
    """For every way to cut a path: pieces without a report, and minus the pieces with one."""
    last = len(routers) - 1
    found = []
    for choice in product((False, True), repeat=max(0, last - 1)):
        cuts = [0, *(i for i in range(1, last) if choice[i - 1]), last]
        pieces = []
        for i, j in pairwise(cuts):
            if j > i + 1 and Segment.virtual(routers[i], routers[j]) not in measured:
                break  # a virtual link exists only where it was measured
            pieces.append(
                Segment.virtual(routers[i], routers[j]) if j > i + 1 else Segment.link(routers[i], routers[j])
            )
        else:
            whole = segments_of(routers, [routers[i] for i in cuts])
            inside = [s for s in whole if s.kind == "inside"]
            pieces += [s for s in inside if s.at not in (routers[0], routers[-1]) or s.at in upgraded]
            have = sum(piece in measured for piece in pieces)
            found.append((len(pieces) - have, -have))
    return found


def test_a_virtual_link_does_not_replace_a_path_with_a_measuring_router() -> None:
    """From F to D by C or by E: C measures, so F>>D is the path by E."""
    measured = [parse_segment(name) for name in ("F>>D", "C[F>D]", "F>C")]
    by_c, by_e = Cover(six(), measured).paths("F", "D")
    assert by_c.routers == ("F", "C", "D")
    assert [str(segment) for segment in by_c.segments] == ["F>C", "C[F>D]"]
    assert [str(segment) for segment in by_c.missing] == ["C>D"]
    assert [str(segment) for segment in by_e.segments] == ["F>>D"]
    both = Cover(six(), measured[:1]).paths("F", "D")
    assert all([str(segment) for segment in path.segments] == ["F>>D"] for path in both)
    neither = Cover(six(), measured[:1], ["C", "E"]).paths("F", "D")
    assert all(not path.segments for path in neither)
    row = Topology(("A", "B", "C"), (Link("A", "B", 1), Link("B", "C", 1)))
    (only,) = Cover(row, [Segment.virtual("A", "C"), Segment.inside("B", "A", "C")]).paths("A", "C")
    assert [str(segment) for segment in only.segments] == ["A>>C"]  # it can belong to no other path


def test_missing_parts_are_named_as_one() -> None:
    topology = Topology(("A", "B", "C", "D"), tuple(Link(one, other, 1) for one, other in pairwise("ABCD")))
    (path,) = Cover(topology, [Segment.link("C", "D"), Segment.inside("C", "B", "D")]).paths("A", "D")
    assert [str(segment) for segment in path.missing] == ["A>>C"]
    found = verdict([path], {segment: Figures(1e-3, 1e-6, 1e-4, 0.0) for segment in path.segments})
    assert found.total.mean == pytest.approx(2e-3)
    assert [str(segment) for segment in found.missing] == ["A>>C"]


def test_a_report_for_all_ports_covers_a_port() -> None:
    topology = Topology(("A", "B", "C"), (Link("A", "B", 1), Link("B", "C", 1)))
    wide = Segment.inside("B", ANY, "C")
    (path,) = Cover(topology, [Segment.link("A", "B"), wide, Segment.link("B", "C")]).paths("A", "C")
    assert path.segments == (Segment.link("A", "B"), wide, Segment.link("B", "C"))
    assert not path.missing


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("A>Z", "there is no router Z"),
        ("A>D", "has no link from A to D"),
        ("F[A>D]", "has no link from F to D"),
        ("F[D>A]", "has no link from D to F"),
    ],
)
def test_segments_outside_the_topology(name: str, says: str) -> None:
    with pytest.raises(WirelagError, match=r"^x\.json: is of segment") as told:
        Cover(six(), ()).check(parse_segment(name), "x.json")
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_segments_of_the_topology() -> None:
    cover = Cover(six(), ())
    for name in ("A>F", "A>>D", "F[A>C]", "F[>C]", "F[A>]", "F[*>C]", "F[>]"):
        cover.check(parse_segment(name), "x.json")


# ---- blame ----


def _figures(value: float, error: float, samples: int = 10_000, floor: float = 0.02) -> Figures:
    return Figures(floor + value, error, 0.0, floor, samples)


def _named(parts: list[Figures]) -> list[int]:
    """The indices of blamed segments."""
    tried = trials({Segment.link(f"{i:03}", "x"): figures for i, figures in enumerate(parts)}, SLOW)
    return [i for i, one in enumerate(tried.values()) if one.blamed]


@pytest.mark.every(4)
@pytest.mark.parametrize(("count", "samples"), [(1, 10_000), (5, 10_000), (40, 10_000), (40, 12)])
def test_false_blame_is_at_most_5_percent(count: int, samples: int) -> None:
    rng, runs, wrong = random.Random(count), 3000, 0
    for _ in range(runs):
        parts = []
        for _ in range(count):  # the worst case: each adds exactly the allowed delay
            sigma = math.sqrt(rng.gammavariate((samples - 1) / 2, 2 / (samples - 1)))  # an estimated deviation
            parts.append(_figures(rng.gauss(SLOW, 1e-4), 1e-4 * sigma, samples))
        wrong += bool(_named(parts))
    assert wrong / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_two_slow_segments_are_both_named_and_no_other() -> None:
    rng, runs, right = random.Random(1), scaled(1000), 0
    for _ in range(runs):
        parts = [_figures(rng.gauss(2e-5, 1e-6), 1e-6) for _ in range(20)]
        for i, more in ((3, 1.6e-3), (17, 8e-3)):
            parts[i] = _figures(rng.gauss(more, 1e-4), 1e-4)
        right += _named(parts) == [3, 17]
    assert right / runs > 0.99


def test_a_long_line_is_not_a_culprit() -> None:
    assert not _named([_figures(1e-4, 1e-6, floor=0.08)])


def test_two_that_cannot_be_distinguished() -> None:
    values = {Segment.link(at, "x"): _figures(value, 1e-4) for at, value in (("a", 5e-3), ("b", 5.1e-3), ("c", 9e-3))}
    parts = verdict([Path(("a", "x"), 1.0, tuple(values), ())], values).parts
    assert all(part.blamed for part in parts)
    assert parts[0].alike == (parts[1].segment,)
    assert parts[1].alike == (parts[0].segment,)
    assert parts[2].alike == ()


def test_a_larger_family_blames_no_more() -> None:
    one = _figures(SLOW + 2.5e-4, 1e-4)  # 2.5 standard errors
    assert _named([one]) == [0]
    assert _named([one, *[_figures(SLOW, 1e-4)] * 100]) == []
    assert _named([one, *[_figures(1e-5, 1e-6)] * 100]) == [0]  # segments that add far less do not count


def test_without_a_floor_the_deviation_is_used_up_to_the_mean() -> None:
    added = adds(Figures(40e-6, 1e-6, 2e-3, None, 10_000))  # one outlier among many short delays
    assert added is not None
    assert added.since == "deviation"
    assert added.value == 40e-6
    queue = adds(Figures(6e-3, 1e-4, 5e-3, None, 10_000))
    assert queue is not None
    assert queue.value == 5e-3
    assert adds(Figures(6e-3, 1e-4, None, None, 10_000)) is None


def test_a_queue_that_never_empties_shows_only_against_a_baseline() -> None:
    segment = Segment.inside("B", "A", "C")
    path = Path(("A", "B", "C"), 1.0, (segment,), ())
    now, before = Figures(9e-3, 1e-5, 1e-4, 8.9e-3, 1000), Figures(1e-3, 1e-5, 1e-4, 0.9e-3, 1000)
    assert not verdict([path], {segment: now}).culprits
    (culprit,) = verdict([path], {segment: now}, {segment: before}).culprits
    assert culprit.added is not None
    assert culprit.added.value == pytest.approx(8e-3)
    assert culprit.added.since == "baseline"


def test_culprits_are_ranked_by_their_effect_on_the_mean() -> None:
    cover = Cover(six(), every_segment(six()))
    figures = {segment: Figures(1e-4, 1e-6, 1e-6, 1e-4, 1000, 1000, 0) for segment in cover.measured}
    figures[parse_segment("F[A>C]")] = Figures(8e-3, 1e-6, 1e-6, 1e-4, 1000, 1000, 0)  # half of the packets pass it
    figures[parse_segment("A>F")] = Figures(6e-3, 1e-6, 1e-6, 1e-4, 1000, 1000, 0)
    found = verdict(cover.paths("A", "D"), figures)
    assert [str(part.segment) for part in found.culprits] == ["A>F", "F[A>C]"]


def test_a_segment_is_slow_on_all_paths_or_on_none() -> None:
    """Holm's rule once over all: the other segments of a route do not decide whether one is slow."""
    cover = Cover(six(), every_segment(six()))
    figures = {segment: _figures(SLOW, 1e-4) for segment in cover.measured}
    figures[parse_segment("F>C")] = _figures(SLOW + 2.4e-4, 1e-4)  # alone on a path it would be slow
    alone = {segment: figures[segment] for segment in (parse_segment("F>C"),)}
    assert trials(alone, SLOW)[parse_segment("F>C")].blamed
    tried = trials(figures, SLOW)
    for pair in (("F", "C"), ("A", "C"), ("A", "D")):
        parts = {str(part.segment): part for part in judge(cover.paths(*pair), figures, tried).parts}
        assert not parts["F>C"].blamed
        assert parts["F>C"].trial.p_value == pytest.approx(0.008, abs=1e-3)


def test_a_segment_with_unknown_loss_makes_that_of_the_route_unknown() -> None:
    paths = Cover(six(), every_segment(six())).paths("A", "D")
    figures = {segment: Figures(1e-3, 1e-6, 1e-6, 0.0, 100, 100, 10) for path in paths for segment in path.segments}
    assert add_up(paths, figures).loss == pytest.approx(1 - 0.9 ** len(paths[0].segments))
    figures[parse_segment("F[A>C]")] = Figures(1e-3, 1e-6, 1e-6, 0.0, 100)
    found = verdict(paths, figures)
    assert found.total.loss is None
    assert [total.loss is None for total in found.by_path] == ["C" in path.routers for path in paths]


@pytest.mark.parametrize("freedom", [1, 2, 5, 30, math.inf])
def test_the_tail_of_students_distribution(freedom: float) -> None:
    rng, runs = random.Random(5), scaled(20_000)
    beyond = 0
    for _ in range(runs):
        sigma = math.sqrt(rng.gammavariate(freedom / 2, 2 / freedom)) if math.isfinite(freedom) else 1.0
        beyond += p_beyond(rng.gauss(0, 1), sigma, freedom) <= 0.01
    assert beyond / runs <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / runs)
    assert beyond / runs >= 0.004  # nor far too conservative
    assert 2 * p_beyond(half95(freedom), 1.0, freedom) == pytest.approx(0.05)  # intervals and tests agree


# ---- changes ----


def _series(rng: random.Random, count: int, wider: float, moves: dict[int, float]) -> list[Figures]:
    level, found = 5e-3, []
    for i in range(count):
        level += moves.get(i, 0.0)
        mean = rng.gauss(level, wider * 5e-5)
        found.append(Figures(mean, 5e-5, 1e-3, None, 400, start=float(i), end=i + 1.0))
    return found


@pytest.mark.every(2)
@pytest.mark.parametrize("wider", [1.0, 4.0])
def test_false_moves_occur_in_at_most_5_percent_of_networks(wider: float) -> None:
    """Also if means scatter four times as much as their errors, since neighbouring packets are alike."""
    rng, runs, wrong = random.Random(7), scaled(60), 0
    for _ in range(runs):
        # `slow` is tiny, so only the test protects.
        wrong += bool(changes({Segment.link(str(i), "x"): _series(rng, 60, wider, {}) for i in range(5)}, 1e-9))
    assert wrong / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_moves_and_their_sizes() -> None:
    rng = random.Random(8)
    series = {Segment.link(str(i), "x"): _series(rng, 40, 2.0, {}) for i in range(30)}
    moved = Segment.link("moved", "x")
    series[moved] = _series(rng, 40, 2.0, {12: 4e-3, 30: -4e-3})
    found = changes(series, SLOW)
    assert [(change.segment, change.at) for change in found] == [(moved, 12.0), (moved, 30.0)]
    assert found[0].difference == pytest.approx(4e-3, abs=4e-4)
    assert found[0].ci95[0] < 4e-3 < found[0].ci95[1]
    assert found[1].since == 12.0


def test_a_slow_rise_is_found_though_neighbours_differ_little() -> None:
    series = {Segment.link("a", "b"): _series(random.Random(9), 40, 1.0, dict.fromkeys(range(10, 20), 4e-4))}
    assert changes(series, SLOW)
    assert all(change.difference > 0 for change in changes(series, SLOW))


def test_two_intervals_are_enough() -> None:
    segment = Segment.link("a", "b")
    series = _series(random.Random(1), 2, 1.0, {1: 4e-3})
    (change,) = changes({segment: series}, SLOW)
    assert isinstance(change, DelayChange)
    assert scatter(series) == 1.0


def test_intervals_without_packets_are_not_moves() -> None:
    full = _series(random.Random(2), 40, 1.0, {})
    holes = [one if i % 2 else Figures(start=one.start, end=one.end) for i, one in enumerate(full)]
    assert scatter(holes) == scatter(holes[1::2]) < 2
    assert changes({Segment.link("a", "b"): holes}, SLOW) == []


def test_one_interval_is_not_a_move() -> None:
    segment, series = Segment.link("a", "b"), _series(random.Random(1), 2, 1.0, {1: 4e-3})
    assert changes({segment: series[:1]}, SLOW) == []
