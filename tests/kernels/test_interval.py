"""What the extension finds of two points' sums and few packets, against the plain twin."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import interval as oracle
from tests.support.effort import examples
from wirelag import _kernels

WORD = st.integers(0, 2**64 - 1)
SIGNED = st.integers(-(2**63), 2**63 - 1)
DELAYS = st.lists(st.one_of(st.integers(-(10**6), 10**9), SIGNED), min_size=1, max_size=70)
FATED = st.lists(st.tuples(WORD, SIGNED, st.integers(0, 2)), max_size=20)
SEEDS = st.integers(0, 2**64 - 1)


def words(values: list[int]) -> npt.NDArray[np.uint64]:
    return np.array(values, np.uint64)


def times(values: list[int]) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


@examples(200)
@given(DELAYS)
def test_sums_of_delays(delays_ns: list[int]) -> None:
    assert _kernels.delay_sums(times(delays_ns)) == oracle.delay_sums(delays_ns)
    with pytest.raises(ValueError, match="must be a delay"):
        _kernels.delay_sums(times([]))


@examples(200)
@given(st.lists(SIGNED, max_size=9))
def test_the_median(delays_ns: list[int]) -> None:
    assert _kernels.median(times(delays_ns)) == oracle.median(delays_ns)


ROW = st.tuples(
    st.one_of(st.integers(1, 50), st.integers(1, 2**40)), st.one_of(st.integers(0, 10**9), SIGNED), st.booleans()
)


@examples(200)
@given(st.lists(ROW, max_size=40))
def test_totals_of_rows(rows: list[tuple[int, int, bool]]) -> None:
    counts, sums_ns, usable = ([row[i] for row in rows] for i in range(3))
    found = _kernels.row_totals(times(counts), times(sums_ns), np.array(usable, bool))
    assert found == oracle.row_totals(rows)


@examples(200)
@given(st.lists(ROW, max_size=40), st.integers(0, 9), st.floats(0, 1e9), st.floats(0, 9), st.floats(0, 1e9))
def test_rows_of_other_packets(
    rows: list[tuple[int, int, bool]], fewest: int, far_ns: float, spreads: float, least_ns: float
) -> None:
    counts, sums_ns, usable = ([row[i] for row in rows] for i in range(3))
    limits = fewest, far_ns, spreads, 1.4826, least_ns
    found = _kernels.unlike_rows(times(counts), times(sums_ns), np.array(usable, bool), *limits)
    assert found.tolist() == oracle.unlike_rows(rows, *limits)


def test_usable_rows_have_packets() -> None:
    for count in (0, -1):
        with pytest.raises(ValueError, match="has packets"):
            _kernels.row_totals(times([count]), times([5]), np.array([True]))
        with pytest.raises(ValueError, match="has packets"):
            _kernels.unlike_rows(times([count]), times([5]), np.array([True]), 0, 0.0, 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="each row"):
        _kernels.row_totals(times([1]), times([5, 6]), np.array([True]))
    with pytest.raises(ValueError, match="each row"):
        _kernels.unlike_rows(times([1]), times([5, 6]), np.array([True]), 0, 0.0, 0.0, 0.0, 0.0)


@examples(200)
@given(st.lists(st.tuples(WORD, WORD, WORD), min_size=1, max_size=9), FATED, FATED, SIGNED, SEEDS, st.randoms())
def test_rows_of_two_points(
    rows: list[tuple[int, int, int]],
    mine: list[tuple[int, int, int]],
    theirs: list[tuple[int, int, int]],
    base_ns: int,
    seed: int,
    chance: np.random.Generator,
) -> None:
    """The points count alike in most rows, once the packets that are not paired are gone."""
    up = [(count, sum_ns) for count, sum_ns, _ in rows]
    rest = oracle.without(up, mine, seed)
    back = oracle.without([(0, 0)] * len(rows), theirs, seed)
    down = [
        ((count - gone) % 2**64, other) for (count, _), (gone, _), (_, _, other) in zip(rest, back, rows, strict=True)
    ]
    down[0] = (chance.choice([down[0][0], 7]), down[0][1])
    fated = [
        (words([one[0] for one in side]), times([one[1] for one in side]), np.array([one[2] for one in side], np.uint8))
        for side in (mine, theirs)
    ]
    flat = [words([word for row in side for word in row]) for side in (up, down)]
    counts, sums_ns, usable = _kernels.rows_apart(*flat, fated[0], fated[1], base_ns % 2**64, seed)
    found = list(zip(counts.tolist(), sums_ns.tolist(), usable.tolist(), strict=True))
    assert found == oracle.rows_apart(up, down, mine, theirs, base_ns, seed)


def test_rows_of_other_shapes_are_refused() -> None:
    none = words([]), times([]), np.empty(0, np.uint8)
    for up, down in (([], []), ([1], [1]), ([1, 2], [1, 2, 3, 4])):
        with pytest.raises(ValueError, match="rows"):
            _kernels.rows_apart(words(up), words(down), none, none, 0, 0)
    for wrong in ((words([1]), times([]), none[2]), (words([1]), times([1]), none[2])):
        with pytest.raises(ValueError, match="a time and a fate"):
            _kernels.rows_apart(words([1, 2]), words([1, 2]), none, wrong, 0, 0)


FEW = st.integers(0, 30)
PACKETS = st.lists(st.tuples(st.one_of(FEW, st.integers(0, 2**40)), st.integers(-100, 100)), max_size=50)


@examples(300)
@given(PACKETS, PACKETS, st.integers(0, 60))
def test_packets_that_were_carried_over_an_edge(
    up: list[tuple[int, int]], down: list[tuple[int, int]], ahead_ns: int
) -> None:
    columns = [column for side in (up, down) for column in (words([x for x, _ in side]), times([t for _, t in side]))]
    found, expected = _kernels.carried(*columns, ahead_ns), oracle.carried(up, down, ahead_ns)
    if expected is None or found is None:
        assert found is expected
        return
    assert list(zip(*(one.tolist() for one in found[:4]), strict=True)) == expected.pairs
    assert [one.tolist() for one in found[4:6]] == [expected.up_left, expected.down_left]
    joined = expected.joined
    counts = joined.only_upstream, joined.only_downstream, joined.duplicated, joined.ambiguous, joined.reordered
    assert found[6:] == (expected.unreal, *counts)


def test_many_packets_have_none_in_common_or_one() -> None:
    """So many that they are not compared one by one."""
    up, down = np.arange(5000, dtype=np.uint64), np.arange(5000, 9000, dtype=np.uint64)
    assert _kernels.carried(up, np.zeros(5000, np.int64), down, np.ones(4000, np.int64), 0) is None
    down[1234] = 77
    found = _kernels.carried(up, np.zeros(5000, np.int64), down, np.ones(4000, np.int64), 0)
    assert found is not None
    assert [one.tolist() for one in found[:4]] == [[0], [1], [77], [1234]]


@examples(200)
@given(st.lists(st.tuples(FEW, SIGNED), max_size=20), st.lists(FEW, max_size=5))
def test_values_are_looked_up(pairs: list[tuple[int, int]], wanted: list[int]) -> None:
    found = _kernels.looked_up(words([key for key, _ in pairs]), times([value for _, value in pairs]), words(wanted))
    known = dict(pairs)
    if found is None:
        assert not known.keys() >= {*wanted}
    else:
        assert found.tolist() == [known[key] for key in wanted]


@examples(200)
@given(st.lists(WORD, max_size=60), SEEDS, st.integers(0, 64), st.integers(0, 20))
def test_as_many_as_a_cache_holds(ids: list[int], seed: int, level: int, capacity: int) -> None:
    found = _kernels.at_most(words(ids), seed, level, capacity)
    assert (found[0], found[1].tolist()) == oracle.at_most(ids, seed, level, capacity)


LOW = st.one_of(FEW, st.integers(2**32, 2**32 + 30), st.integers(2**33, 2**33 + 30))


@examples(300)
@given(
    st.lists(st.tuples(LOW, LOW), max_size=16),
    st.lists(LOW, max_size=9),
    st.lists(st.tuples(LOW, st.integers(0, 3)), max_size=40),
)
def test_packets_whose_order_is_checked(
    checked: list[tuple[int, int]], early: list[int], packets: list[tuple[int, int]]
) -> None:
    columns = [words([one[i] for one in checked]) for i in range(2)]
    numbers, times_ns = words([one for one, _ in packets]), times([time_ns for _, time_ns in packets])
    found = _kernels.looking(*columns, words(early), numbers, times_ns, 0)
    assert list(zip(*(one.tolist() for one in found), strict=True)) == oracle.looking(checked, early, packets, 0)
    if checked:
        with pytest.raises(ValueError, match="before each"):
            _kernels.looking(columns[0][1:], columns[1], words(early), numbers, times_ns, 0)
