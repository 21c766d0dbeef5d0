"""Intervals of two points: packets across their edges, delimiters, and agreement of RDA with join."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import delimiters as naive
from tests.oracles import join
from tests.oracles.join import Packet
from tests.support.effort import examples
from tests.support.two_points import EPOCH_NS, SCENARIOS, SECOND_NS, batch_of, captured, packets_of, points
from wirelag.estimators.join import Join
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.packets.batch import Kind, PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import CONTROL_PORT, Delimiters
from wirelag.synopses.cache import Cached
from wirelag.synopses.crossing import Crossing
from wirelag.twopoint.spans import ALL, PATIENCE_NS, Cut, Pair, Span, cuts, paired_by_delimiters, spans_between, total

Points = tuple[list[Packet], list[Packet]]
COUNTS = ("only_upstream", "only_downstream", "lost", "late", "early", "duplicated", "ambiguous")
MANY = 10**6

RDAS = {
    "default": Rda(),
    "alone": Rda(cache_assisted=False),
    "fixed": Rda(buckets=1200),
    "two banks": Rda(banks=2, buckets=1200),
    "two banks without check": Rda(banks=2, buckets=1200, check=False),
    "four banks": Rda(banks=4, buckets=1200, seed=9),
    "rateless": Rda(rateless=True),
}


@pytest.fixture(scope="module", params=SCENARIOS)
def capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Points:
    up, down = captured(SCENARIOS[request.param], tmp_path_factory.mktemp("crossings"))
    return packets_of(up), packets_of(down)


def spans(
    estimator: Join | Rda | Lda, seen: Points, interval_ns: int | None = None, delimiters: Delimiters | None = None
) -> list[Span]:
    sources = {point: [batch_of(packets)] for point, packets in zip(estimator.points, seen, strict=True)}
    return list(spans_between(estimator, sources, interval_ns, delimiters))


# ---- straddling ----


def by_clock(seen: Points, interval_ns: int) -> dict[int, tuple[list[Packet], list[Packet]]]:
    """The packets of each interval, also of empty ones."""
    starts = [time_ns // interval_ns for packets in seen for _, time_ns in packets]
    intervals: dict[int, Points] = {i: ([], []) for i in range(min(starts, default=0), max(starts, default=-1) + 1)}
    for point, packets in enumerate(seen):
        for packet in packets:
            intervals[packet[1] // interval_ns][point].append(packet)
    return intervals


def check_straddling(seen: Points, interval_ns: int) -> None:
    intervals = by_clock(seen, interval_ns)
    caches = [(join.Cache(MANY).observe(up), join.Cache(MANY).observe(down)) for up, down in intervals.values()]
    reach = -(-PATIENCE_NS // interval_ns)
    twins = dict(zip(intervals, join.crossings(caches, max(1, reach)), strict=True))
    measured = {span.interval.start_ns // interval_ns: span.whole for span in spans(Join(), seen, interval_ns)}
    assert list(measured) == [i for i, both in intervals.items() if any(both)]
    for i, crossing in measured.items():
        twin = twins[i]
        assert crossing.tail.delays_ns.tolist() == twin.delays_ns
        assert (crossing.used, crossing.sum_ns) == (len(twin.delays_ns), sum(twin.delays_ns))
        assert crossing.only_downstream is not None
        assert (crossing.lost, crossing.only_downstream - crossing.early) == (twin.lost, twin.only_downstream)
        for name in ("duplicated", "ambiguous", "reordered"):
            assert getattr(crossing, name) == getattr(twin, name), name


@examples(80)
@given(points(), st.sampled_from([SECOND_NS // 4, SECOND_NS, 2 * SECOND_NS]))
def test_packets_across_edges_are_settled_as_by_the_twin(seen: Points, interval_ns: int) -> None:
    check_straddling(seen, interval_ns)


@pytest.mark.parametrize("interval_ns", [SECOND_NS // 10, SECOND_NS])
def test_packets_across_edges_in_captures(capture: Points, interval_ns: int) -> None:
    check_straddling(capture, interval_ns)


def crossed_once(seen: Points) -> Points:
    """Without copies, and without packets in flight for longer than the waiting time."""
    up, down = (Counter(packet_id for packet_id, _ in packets) for packets in seen)
    late = {x for x, time_ns in seen[1] if abs(time_ns - dict(seen[0]).get(x, time_ns)) >= PATIENCE_NS}
    kept = [[packet for packet in packets if up[packet[0]] < 2 > down[packet[0]] and packet[0] not in late]
            for packets in seen]  # fmt: skip
    return kept[0], kept[1]


@pytest.mark.parametrize("estimator", [Join(), Rda(), Rda(rateless=True)], ids=["join", "rda", "rateless"])
@pytest.mark.parametrize("interval_ns", [SECOND_NS // 2, SECOND_NS, 3 * SECOND_NS])
@pytest.mark.every(8)
def test_intervals_add_up_to_the_whole(capture: Points, estimator: Join | Rda, interval_ns: int) -> None:
    seen = crossed_once(capture)
    (whole,) = spans(estimator, seen)
    parts = total(spans(estimator, seen, interval_ns))[ALL]
    for name in ("sent", "received", "used", "sum_ns", "only_upstream", "only_downstream", "lost", "duplicated"):
        assert getattr(parts, name) == getattr(whole.whole, name), name
    assert parts.used > 0.9 * parts.sent
    if isinstance(estimator, Join):  # every delay is known, so minimum, maximum and deviation are, too
        assert (parts.min_ns, parts.max_ns) == (whole.whole.min_ns, whole.whole.max_ns)
        assert parts.std_ns == pytest.approx(whole.whole.std_ns, rel=1e-12)


@examples(60)
@given(points(), st.integers(2, 30), st.sampled_from([SECOND_NS // 4, SECOND_NS]))
def test_with_little_memory_no_count_is_negative(seen: Points, entries: int, interval_ns: int) -> None:
    """Caches of neighbouring intervals have different levels: a late packet may stand for more than was missed."""
    for estimator in (Join(memory=32 * entries), Rda(memory=32 * entries)):
        for span in spans(estimator, seen, interval_ns):
            assert all(getattr(span.whole, name) >= 0 for name in COUNTS)


# ---- rda equals join ----


def parts_of(seen: Points, interval_ns: int | None) -> list[tuple[Cached, Cached]]:
    both = [seen] if interval_ns is None else list(by_clock(seen, interval_ns).values())
    return [(cached(up), cached(down)) for up, down in both]


def cached(packets: Sequence[Packet], capacity: int = MANY, seed: int = 0) -> Cached:
    ids = np.array([packet_id for packet_id, _ in packets], np.uint64)
    times_ns = np.array([time_ns for _, time_ns in packets], np.int64)
    return Cached(ids, times_ns, 0, len(ids), seed).at_most(capacity)


def same(exact: Crossing, decoded: Crossing) -> bool:
    names = ("sent", "received", "used", "sum_ns", *COUNTS)
    assert {name: getattr(decoded, name) for name in names} == {name: getattr(exact, name) for name in names}
    if decoded.std_ns is not None and exact.min_ns is not None and decoded.min_ns is not None:
        assert (decoded.min_ns, decoded.max_ns) == (exact.min_ns, exact.max_ns)
    return True


@pytest.mark.parametrize("estimator", RDAS.values(), ids=RDAS)
@pytest.mark.parametrize("interval_ns", [None, SECOND_NS])
@pytest.mark.every(2)
def test_rda_equals_join_where_it_is_decoded(capture: Points, estimator: Rda, interval_ns: int | None) -> None:
    decoded = 0
    parts = parts_of(capture, interval_ns)
    for up, down in parts:
        crossing = estimator.cross(up, down)
        assert crossing.wire_bytes > 0
        if crossing.details["decoded"]:
            decoded += 1
            assert same(Join().cross(up, down), crossing)
    assert decoded == len(parts) or estimator.banks == 2
    assert decoded > 0.8 * len(parts)


@pytest.mark.parametrize(
    "estimator", [Rda(), Rda(buckets=1500), Rda(rateless=True)], ids=["default", "fixed", "rateless"]
)
@pytest.mark.parametrize("interval_ns", [SECOND_NS // 4, SECOND_NS])
def test_rda_equals_join_once_everything_is_settled(capture: Points, estimator: Rda, interval_ns: int) -> None:
    exact, decoded = spans(Join(), capture, interval_ns), spans(estimator, capture, interval_ns)
    assert [span.interval for span in exact] == [span.interval for span in decoded]
    for one, other in zip(exact, decoded, strict=True):
        assert other.whole.details["decoded"]
        assert same(one.whole, other.whole)


@examples(60)
@given(points(), st.sampled_from(list(RDAS)), st.sampled_from([None, SECOND_NS]))
def test_rda_equals_join_for_copies_of_all_kinds(seen: Points, name: str, interval_ns: int | None) -> None:
    for up, down in parts_of(seen, interval_ns):
        crossing = RDAS[name].cross(up, down)
        if crossing.details["decoded"]:
            assert same(Join().cross(up, down), crossing)


@pytest.mark.parametrize("capacity", [150, 600])
@pytest.mark.parametrize(
    "estimator", [Rda(), Rda(rateless=True), Rda(buckets=900)], ids=["buckets", "rateless", "fixed"]
)
def test_rda_equals_join_on_a_share(capture: Points, estimator: Rda, capacity: int) -> None:
    """Caches that are too small, by different amounts: both points use the same share."""
    up, down = (cached(packets, size) for packets, size in zip(capture, (capacity, 4 * capacity), strict=True))
    assert up.level > down.level
    for first, second in ((up, down), (cached(capture[0], 4 * capacity), cached(capture[1], capacity))):
        crossing = estimator.cross(first, second)
        assert crossing.details["decoded"]
        assert same(Join().cross(first, second), crossing)


# ---- delimiters ----


def entries(synopses: dict[int, Cached]) -> list[Packet]:
    if ALL not in synopses:
        return []
    return list(zip(synopses[ALL].ids.tolist(), synopses[ALL].times_ns.tolist(), strict=True))


def one_behind_the_other(first: Cached, second: Cached) -> Cached:
    return first.followed_by(second, MANY)


class Whole(Join):
    """Keeps all packets, to show which interval each is in."""

    def added(self, first: Cached, second: Cached) -> Cached:
        return one_behind_the_other(first, second)


Told = list[tuple[int | None, list[Packet], list[Packet]]]


def told(pairs: Sequence[Pair]) -> Told:
    """By the names at which both points cut; the first interval has none."""
    names = [None, *(pair.interval.name for pair in pairs[1:])]
    return [(name, entries(pair.up), entries(pair.down)) for name, pair in zip(names, pairs, strict=False)]


def twin_told(paired: Sequence[naive.Paired]) -> Told:
    """The same from the twin, without empty intervals."""
    parts = [part for part in paired if part.upstream or part.downstream]
    names = [None, *(part.opened for part in parts[1:])]
    return [(name, part.upstream, part.downstream) for name, part in zip(names, parts, strict=False)]


def cut_at(batches: list[PacketBatch], delimiters: Delimiters) -> list[Cut]:
    return list(cuts(Whole(), "upstream", batches, delimiters=delimiters))


def check_delimiters(seen: Points, delimiters: Delimiters, at: Sequence[int] = ()) -> None:
    of_points = []
    pieces = []
    for packets in seen:
        parts = [batch_of(packets[a:b]) for a, b in pairwise([0, *sorted(at), max([len(packets), *at])])]
        made = cut_at(parts, delimiters)
        pieces.append(naive.by_markers(packets, delimiters.length_ns, delimiters.bits, delimiters.seed))
        named = [(piece.name, piece.packets) for piece in pieces[-1] if piece.packets]
        assert [(cut.interval.name, entries(cut.synopses)) for cut in made] == named
        of_points.append(made)
    pairs = paired_by_delimiters(of_points[0], of_points[1], one_behind_the_other)
    paired = naive.pair(*pieces)
    assert told(pairs) == twin_told(paired)
    if pairs:
        assert all(not pair.open_ended for pair in pairs[1:-1])
        assert pairs[-1].open_ended
        assert pairs[0].open_ended == (len(pairs) == 1 or bool(paired[0].upstream or paired[0].downstream))
        assert all(pair.lost_delimiters >= 0 for pair in pairs)


@examples(150)
@given(points(), st.integers(1, 3), st.sampled_from([1, SECOND_NS // 3]), st.lists(st.integers(0, 60), max_size=3))
def test_markers_cut_and_pair_as_by_the_twin(seen: Points, bits: int, length_ns: int, at: list[int]) -> None:
    """With so few ids some cut twice, and some in another order."""
    check_delimiters(seen, Delimiters(length_ns, bits, 7), at)


@pytest.mark.parametrize("bits", [3, 6])
def test_markers_of_captures(capture: Points, bits: int) -> None:
    check_delimiters(capture, Delimiters(SECOND_NS, bits), [100, 101, 900])


def named(*names: int | None) -> list[Cut]:
    """A cut for each name, with one packet."""
    return [
        Cut(Interval(i, i + 1, name), {ALL: cached([(i, i)])})
        for i, name in enumerate(names)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("up", "down", "cut_at"),
    [
        ((None, 1, 2), (None, 1, 2), (None, 1, 2)),
        ((1, 2), (1, 2), (1, 2)),
        ((1, 2), (None, 1, 2), (None, 1, 2)),
        ((None, 1, 2), (1, 2), (None, 1, 2)),
        ((None, 1, 2, 3), (None, 1, 3), (None, 1, 3)),
        ((None, 1, 2, 1, 3), (None, 1, 2, 3), (None, 2, 3)),
        ((None, 1, 2, 3), (None, 1, 2, 1, 3), (None, 2, 3)),
        ((None, 1), (None, 2), (None,)),
        ((None, 1), (), (None,)),
        ((), (None, 1), (None,)),
        ((), (), ()),
    ],
)
def test_common_cuts_of_two_points(
    up: tuple[int | None, ...], down: tuple[int | None, ...], cut_at: tuple[int, ...]
) -> None:
    """No packet of either point is left out."""
    pairs = paired_by_delimiters(named(*up), named(*down), one_behind_the_other)
    assert len(pairs) == len(cut_at)
    assert [pair.interval.name for pair in pairs if pair.up and pair.down and pair is not pairs[0]] == list(cut_at[1:])
    assert sum(len(entries(pair.up)) for pair in pairs) == len(up)
    assert sum(len(entries(pair.down)) for pair in pairs) == len(down)
    assert all(pair.lost_delimiters >= 0 for pair in pairs)


def test_control_packets_cut_and_are_not_measured() -> None:
    arrivals: list[Packet | naive.Control] = []
    for number in range(5):
        arrivals += [(10 * number + i, EPOCH_NS + 10 * number + i) for i in range(3)]
        arrivals.append(naive.Control(number))
    arrivals += [(99, EPOCH_NS + 99), naive.Control(4), naive.Control(3), (100, EPOCH_NS + 100)]  # and copies
    without_two = [arrival for arrival in arrivals if arrival != naive.Control(2)]
    made = []
    for seen in (arrivals, without_two):
        batch = batch_of([(7, EPOCH_NS) if isinstance(arrival, naive.Control) else arrival for arrival in seen])
        for row, arrival in enumerate(seen):
            if isinstance(arrival, naive.Control):
                batch.kind[row], batch.dst_port[row], batch.message[row] = Kind.UDP, CONTROL_PORT, ord("W")
                batch.transaction[row] = int.from_bytes(b"LAG\x01", "big") << 32 | arrival.number
        made.append(cut_at([batch], Delimiters(1, control_port=CONTROL_PORT)))
    pieces = [naive.by_control(arrivals), naive.by_control(without_two)]
    assert [(cut.interval.name, entries(cut.synopses)) for cut in made[0]] == [(p.name, p.packets) for p in pieces[0]]
    pairs = paired_by_delimiters(made[0], made[1], one_behind_the_other)
    assert told(pairs) == twin_told(naive.pair(pieces[0], pieces[1]))
    assert sum(pair.lost_delimiters for pair in pairs) == 1


def test_lda_over_markers_adds_up_the_packets_of_both_points(capture: Points) -> None:
    """For any cuts: every packet of both points is in one interval."""
    estimator = Lda(256, (0,))
    for bits in (2, 5):
        found = spans(estimator, capture, None, Delimiters(SECOND_NS, bits))
        assert sum(span.whole.sent for span in found) == len(capture[0])
        assert sum(span.whole.received for span in found) == len(capture[1])
        assert len(found) > 1


# ---- classes ----


def test_classes_are_measured_as_if_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    up, down = captured(SCENARIOS["everything"], tmp_path_factory.mktemp("classes"))
    sources = {"upstream": [up[:700], up[700:]], "downstream": [down]}
    grouping = Grouping("client")
    sums = total(spans_between(Join(), sources, SECOND_NS, None, grouping))
    assert len(sums) > 2
    for name in ("sent", "received", "used", "sum_ns", "only_upstream", "only_downstream", "lost", "ambiguous"):
        assert getattr(sums[ALL], name) == sum(getattr(sums[tag], name) for tag in sums if tag != ALL), name
