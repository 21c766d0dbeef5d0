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


def test_usable_rows_have_packets() -> None:
    for count in (0, -1):
        with pytest.raises(ValueError, match="has packets"):
            _kernels.row_totals(times([count]), times([5]), np.array([True]))
    with pytest.raises(ValueError, match="each row"):
        _kernels.row_totals(times([1]), times([5, 6]), np.array([True]))


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


IDS = st.lists(st.integers(0, 400), max_size=60)


@examples(200)
@given(IDS, IDS)
def test_ids_in_common(ids: list[int], others: list[int]) -> None:
    assert _kernels.in_common(words(ids), words(others)) == bool({*ids} & {*others})
