"""How well packets predict their neighbours, and which packets of two captures become references."""

import itertools
import time

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.effort import examples
from wirelag.packets.batch import PacketBatch
from wirelag.twopoint.locality import FEWEST, MOST_WAYS, locality
from wirelag.twopoint.references import STRIDE, References

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

ROWS = 4_000
APART = 10
STEP_NS = 10_000  # between packets
DELAY_NS = 10**6
ONE = np.zeros(ROWS, np.uint64)  # all between the same addresses
TIMES_NS = np.arange(ROWS, dtype=np.int64) * STEP_NS


def normal(rng: np.random.Generator, rows: int = ROWS) -> Ints:
    return np.asarray(np.rint(rng.normal(DELAY_NS, DELAY_NS / 10, rows)).astype(np.int64))


def wave(step: float, rows: int = ROWS) -> Ints:
    """Delays on a sine with this step of its angle per packet."""
    return np.asarray(np.rint(DELAY_NS + DELAY_NS / 2 * np.sin(step * np.arange(rows))).astype(np.int64))


# ---- locality ----


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_independent_neighbours_predict_worse_than_the_mean(seed: int) -> None:
    """The mean of two independent neighbours has half a variance: with the packet's own, sqrt(1.5) of the spread.

    4,000 overlapping errors: their mean is known to 2%. It is always above 0.9, where a note is given.
    """
    found = locality(TIMES_NS, normal(np.random.default_rng(seed)), ONE, APART)
    assert found.error == pytest.approx(1.5**0.5, rel=0.06)
    assert not len(found.ways)


@pytest.mark.parametrize("angle", [0.1, 0.5, 1.0])
def test_neighbours_on_a_smooth_curve_predict_well(angle: float) -> None:
    """The mean of sin(x - a) and sin(x + a) is sin(x) cos(a): the error is 1 - cos(a) of it."""
    found = locality(TIMES_NS, wave(angle / APART), ONE, APART)
    assert found.error == pytest.approx(1 - np.cos(angle), rel=0.02)


def test_ways_with_different_delays_are_separated() -> None:
    """One address pair in four takes 40 ms more, and each way changes slowly."""
    keys = np.where(np.arange(ROWS) % 4 == 3, 9, 5).astype(np.uint64)
    delays_ns = wave(0.01) + np.where(keys == 9, 40_000_000, 0)
    found = locality(TIMES_NS, delays_ns, keys, APART)
    assert 9 in found.ways
    assert found.error is not None
    assert found.error < 0.1  # 1 - cos(0.4): its own neighbours are four times as far away
    mixed = locality(TIMES_NS, delays_ns, ONE, APART)
    assert mixed.error is not None
    assert mixed.error > 0.5


@pytest.mark.parametrize("pairs", [2, 5, 50])
def test_many_pairs_through_one_queue_are_one_way(pairs: int) -> None:
    """Their own neighbours are farther away than the nearest of all."""
    rng = np.random.default_rng(4)
    keys = rng.integers(0, pairs, ROWS, np.uint64)
    for delays_ns in (wave(0.03), np.abs(np.cumsum(rng.normal(0, 1000, ROWS))).astype(np.int64)):
        assert not len(locality(TIMES_NS, delays_ns, keys, APART).ways)


def test_pairs_with_independent_delays_are_one_way() -> None:
    """Both kinds of neighbours predict equally badly; 800 packets of a pair show it to 4%, a way needs a fifth."""
    rng = np.random.default_rng(4)
    assert not len(locality(TIMES_NS, normal(rng), rng.integers(0, 5, ROWS, np.uint64), APART).ways)


@pytest.mark.parametrize("seed", range(5))
def test_chance_makes_no_way(seed: int) -> None:
    """Fifty pairs of 80 packets with independent delays: the luckiest gain a fifth, less than the bound for chance."""
    rng = np.random.default_rng(seed)
    keys, delays_ns = rng.integers(0, 50, ROWS, np.uint64), rng.exponential(DELAY_NS, ROWS).astype(np.int64)
    assert not len(locality(TIMES_NS, delays_ns, keys, APART).ways)


def test_many_pairs_take_no_longer_than_few() -> None:
    """A pair is evaluated on its own packets: 50,000 pairs times 100,000 packets would take minutes."""
    rng = np.random.default_rng(4)
    rows = 100_000
    took_s = {}
    for pairs in (50, 50_000):
        keys = np.where(rng.random(rows) < 0.5, 7, rng.integers(10, pairs, rows)).astype(np.uint64)
        delays_ns = normal(rng, rows) + np.where(keys == 7, 10 * DELAY_NS, 0)
        start = time.process_time()
        found = locality(np.arange(rows, dtype=np.int64), delays_ns, keys, APART).ways.tolist()
        took_s[pairs] = time.process_time() - start
    assert found == [7]
    assert took_s[50_000] < 50 * took_s[50]  # three times as long, on an idle machine


def test_the_number_of_ways_is_limited_and_they_are_in_rising_order() -> None:
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 30, 30 * 400, np.uint64)
    delays_ns = (keys * np.uint64(10**7)).astype(np.int64) + rng.integers(0, 1000, len(keys))
    found = locality(np.arange(len(keys), dtype=np.int64), delays_ns, keys, APART)
    assert len(found.ways) == MOST_WAYS
    assert (np.diff(found.ways.astype(np.int64)) > 0).all()


def test_the_order_of_packets_does_not_matter() -> None:
    rng = np.random.default_rng(6)
    keys, delays_ns, order = rng.integers(0, 3, ROWS, np.uint64), wave(0.05), rng.permutation(ROWS)
    one = locality(TIMES_NS, delays_ns, keys, APART)
    other = locality(TIMES_NS[order], delays_ns[order], keys[order], APART)
    assert one.error == pytest.approx(other.error, rel=1e-12)
    assert (one.ways == other.ways).all()


@pytest.mark.parametrize("rows", [0, 1, 2 * APART, 2 * APART + FEWEST - 1])
def test_few_packets_give_no_result(rows: int) -> None:
    found = locality(TIMES_NS[:rows], wave(0.01)[:rows], ONE[:rows], APART)
    assert found.error is None
    assert not len(found.ways)


def test_constant_delays_need_no_prediction() -> None:
    assert locality(TIMES_NS, np.full(ROWS, DELAY_NS), ONE, APART).error is None


@pytest.mark.parametrize("apart", [1, 7])
def test_random_numbers_are_accepted(apart: int) -> None:
    rng = np.random.default_rng(7)
    for most in (2, 2**62):
        times_ns, delays_ns = rng.integers(-most, most, (2, 500))
        found = locality(times_ns, delays_ns, rng.integers(0, 4, 500, np.uint64), apart)
        assert found.error is None or found.error >= 0
        assert len(found.ways) <= 4


# ---- references ----


def packets(ids: Words, times_ns: Ints) -> PacketBatch:
    return PacketBatch({"packet_id": ids, "time_ns": times_ns})


def both(rows: int, seed: int = 1) -> tuple[PacketBatch, PacketBatch]:
    """The same packets at both points, a millisecond apart."""
    ids = np.random.default_rng(seed).integers(0, 2**64, rows, np.uint64)
    times_ns = np.arange(rows, dtype=np.int64) * STEP_NS
    return packets(ids, times_ns), packets(ids.copy(), times_ns + DELAY_NS)


def found(references: References, down: PacketBatch, cuts: list[int] | None = None) -> tuple[list[int], list[int]]:
    """Rows of the whole, and their sending times, from batches that end at these rows."""
    rows, sent_ns = [], []
    for start, end in itertools.pairwise([0, *sorted(cuts or []), len(down)]):
        here, times_ns = references.find(down[start:end])
        assert (np.diff(here) > 0).all()
        rows += (start + here).tolist()
        sent_ns += times_ns.tolist()
    return rows, sent_ns


@pytest.mark.parametrize("every", [1, 2, 3, 7, 8, 9, 20, 300])
def test_at_most_one_reference_per_interval_and_hardly_fewer(every: int) -> None:
    """After any number of packets. STRIDE coins make a reference, so the number of n is known to sqrt(n / STRIDE)."""
    up, down = both(40_000)
    rows, sent_ns = found(References([up], every, 0), down)
    assert (np.array(rows) >= every * np.arange(len(rows))).all()
    wanted = len(down) / every
    assert wanted - 5 * (wanted / STRIDE) ** 0.5 - 1 <= len(rows) <= wanted + 1
    assert sent_ns == up.time_ns[rows].tolist()


def test_one_in_one_is_every_packet() -> None:
    up, down = both(1_000)
    assert found(References([up], 1, 0), down)[0] == list(range(1_000))


@examples(30)
@given(
    cuts=st.lists(st.integers(0, 3_000), max_size=20),
    sent=st.lists(st.integers(0, 3_000), max_size=5),
    every=st.sampled_from([1, 3, 10, 50]),
)
def test_any_split_gives_the_same_references(cuts: list[int], sent: list[int], every: int) -> None:
    """Also with copies, in the same batch or in another one, and packets that upstream did not see."""
    up, down = both(3_000)
    down.packet_id[1::50], down.packet_id[7::11] = down.packet_id[:-1:50], 5
    whole = found(References([up], every, 0), down)
    parts = [up[start:end] for start, end in itertools.pairwise([0, *sorted(sent), len(up)])]
    assert found(References(parts, every, 0), down, cuts) == whole
    assert whole[0]


def test_packets_with_copies_upstream_are_not_references() -> None:
    """Which of them arrived cannot be known."""
    up, down = both(2_000)
    up.packet_id[1_000:1_500] = up.packet_id[:500]  # so packets that arrive as 1,000 to 1,500 were never seen
    rows, _ = found(References([up], 1, -(10**12)), down)
    assert rows == list(range(500, 1_000)) + list(range(1_500, 2_000))


def test_only_the_first_copy_downstream_is_a_reference() -> None:
    up, down = both(2_000)
    down.packet_id[1_000:] = down.packet_id[:1_000]
    for cuts in ([], [500], [1_000, 1_200]):
        assert found(References([up], 1, 0), down, cuts)[0] == list(range(1_000))


def test_a_packet_that_arrives_too_early_is_another_one() -> None:
    up, down = both(2_000)
    down.time_ns[::3] = up.time_ns[::3] - 1
    for least_ns, expected in ((0, [row for row in range(2_000) if row % 3]), (-1, list(range(2_000)))):
        assert found(References([up], 1, least_ns), down)[0] == expected


def test_references_are_more_evenly_spaced_than_by_a_single_coin() -> None:
    """Gaps by a coin with probability p have the variance (1 - p) / p^2, which adds up over STRIDE gaps.

    10,000 gaps show a variance to 3%; the minimum distance stretches one gap in 300 to twice its length.
    """
    every, p = 20, STRIDE / 20
    up, down = both(200_000)
    gaps = np.diff(found(References([up], every, 0), down)[0])
    assert gaps.mean() == pytest.approx(every, rel=0.01)
    assert gaps.var() == pytest.approx(STRIDE * (1 - p) / p**2, rel=0.25)
    assert gaps.var() < (1 - 1 / every) * every**2 / 4


def test_each_way_has_its_share() -> None:
    """One packet in ten takes another way: its references are equally far apart, counted in its own packets."""
    every = 20
    up, down = both(100_000)
    references, ways = References([up], every, 0), np.arange(len(down)) % 10 == 0
    counts = {False: 0, True: 0}
    for start in range(0, len(down), 8_200):
        for way in (False, True):
            rows = start + np.flatnonzero(ways[start : start + 8_200] == way)
            counts[way] += len(references.find(down[rows], int(way))[0])
    assert counts[True] == pytest.approx(len(down) / 10 / every, rel=0.1)
    for way, count in counts.items():
        assert (count - 1) * every < np.count_nonzero(ways == way)


@examples(20)
@given(cuts=st.lists(st.integers(0, 3_000), max_size=9), every=st.sampled_from([1, 3, 10]))
def test_any_split_gives_each_way_the_same_references(cuts: list[int], every: int) -> None:
    """References of one way do not depend on the packets of another one in the same batch."""
    up, down = both(3_000)
    ways = np.arange(len(down)) % 7 // 5

    def drawn(edges: list[int]) -> list[set[int]]:
        references = References([up], every, 0)
        rows: list[set[int]] = [set(), set()]
        for start, end in itertools.pairwise(edges):
            for way in (0, 1):
                here = start + np.flatnonzero(ways[start:end] == way)
                rows[way] |= set(here[references.find(down[here], way)[0]].tolist())
        return rows

    assert drawn([0, *sorted(cuts), len(down)]) == drawn([0, len(down)])


@pytest.mark.parametrize(("every", "most"), [(20, 3_000), (20, 1_000), (1, 5_000), (3, 4_000)])
def test_the_number_of_candidates_is_limited(every: int, most: int) -> None:
    """A smaller coin draws them: references have the requested rate while there are enough, for any split."""
    up, down = both(40_000)
    answers = []
    for parts in ([up], [up[start : start + 1_000] for start in range(0, len(up), 1_000)]):
        references = References(parts, every, 0, most)
        assert most / 3 < references.candidates <= most
        answers.append(found(references, down))
    assert answers[0] == answers[1]
    rows, sent_ns = answers[0]
    assert sent_ns == up.time_ns[rows].tolist()
    assert (np.array(rows) >= every * np.arange(len(rows))).all()
    assert len(rows) > 0.8 * min(len(down) / every, most / 2)


def test_empty_and_random_input() -> None:
    rng = np.random.default_rng(8)
    nothing = packets(np.empty(0, np.uint64), np.empty(0, np.int64))
    up, down = both(100)
    for sent, arrived in (([], down), ([nothing], down), ([up], nothing), ([nothing, up], nothing)):
        rows, sent_ns = References(sent, 1, 0).find(arrived)
        assert len(rows) == len(sent_ns) == 0
    for ids in (1, 20, 2**64 - 1):
        wild = [
            packets(rng.integers(0, ids, 500, np.uint64, endpoint=True), rng.integers(-(2**63), 2**63 - 1, 500))
            for _ in range(6)
        ]
        references = References(wild[:3], 2, -(10**7))
        for batch in wild[3:]:
            rows, sent_ns = references.find(batch)
            assert len(rows) == len(sent_ns) <= 251
            assert len(set(batch.packet_id[rows].tolist())) == len(rows)
