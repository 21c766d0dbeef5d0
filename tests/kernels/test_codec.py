"""Short arrays as bytes, and bins: the kernel equals its plain twin, and reads nothing beyond its memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import codec as oracle
from tests.support.effort import examples
from wirelag import _kernels
from wirelag.stats.distribution import BINS

EDGES = [0, 1, 255, 256, 2**31, 2**32, 2**62, 2**63 - 1]
UNSIGNED = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 300), st.sampled_from([*EDGES, 2**63, 2**64 - 1]))
SIGNED = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300), st.sampled_from([*EDGES, -1, -(2**63)]))
WEIGHTS = st.one_of(st.integers(1, 300), st.integers(0, 2**40))


@examples(200)
@given(st.one_of(st.tuples(st.just(False), st.lists(UNSIGNED)), st.tuples(st.just(True), st.lists(SIGNED))), st.data())
def test_arrays_are_squeezed_as_the_twin_does(given_values: tuple[bool, list[int]], data: st.DataObject) -> None:
    signed, values = given_values
    free, place = data.draw(st.integers(0, 60)), data.draw(st.integers(0, 9))
    array = np.array(values, np.int64 if signed else np.uint64)
    base, width, squeezed = _kernels.squeeze(array, free)
    assert (base, width, squeezed) == oracle.squeeze(values, signed, free)
    assert _kernels.squeeze(np.repeat(array, 2)[::2], free) == (base, width, squeezed)  # with gaps
    filled, before = np.empty(len(values), np.uint64), bytes(place)
    _kernels.unsqueeze(memoryview(before + squeezed), place, width, base % 2**64, filled)
    assert filled.tolist() == oracle.unsqueeze(before + squeezed, place, len(values), width, base)
    assert filled.tolist() == [value % 2**64 for value in values]


@pytest.mark.parametrize(
    ("place", "width", "count"), [(0, 2, 5), (9, 0, 1), (8, 1, 1), (0, 9, 0), (2**64 - 1, 1, 1), (1, 8, 1)]
)
def test_no_value_is_read_beyond_its_bytes(place: int, width: int, count: int) -> None:
    with pytest.raises(ValueError, match="fewer bytes than values"):
        _kernels.unsqueeze(bytes(8), place, width, 0, np.empty(count, np.uint64))


def test_other_memory_is_refused() -> None:
    words, halves = np.zeros(4, np.uint64), np.zeros(4, np.uint32)
    for data, room in ((bytes(8), halves), (words, words), (bytes(8), words[::2]), (bytes(8), bytes(8))):
        with pytest.raises(ValueError, match=r"64 bits|be bytes|no room"):
            _kernels.unsqueeze(data, 0, 1, 0, room)
    for one in (halves, np.zeros((2, 2), np.uint64), b"12345678"):
        with pytest.raises(ValueError, match=r"64 bits|one dimension"):
            _kernels.squeeze(one, 9)
    few = words[:3]
    with pytest.raises(ValueError, match="for each delay"):
        _kernels.sample_bins(words, few)
    for merge in (lambda: _kernels.merge_bins(words, few, words, words), lambda: _kernels.pack_bins(words, few)):
        with pytest.raises(ValueError, match="for each bin"):
            merge()


@examples(100)
@given(st.lists(st.tuples(st.one_of(SIGNED, st.integers(0, 10**9)), WEIGHTS), max_size=60))
def test_a_sample_has_the_bins_of_the_twin(sample: list[tuple[int, int]]) -> None:
    delays_ns, weights = (np.array(column, np.int64) for column in ([d for d, _ in sample], [w for _, w in sample]))
    bins, sums, negative, low, high = _kernels.sample_bins(delays_ns, weights)
    assert ((bins.tolist(), sums.tolist()), negative, high << 64 | low) == oracle.sample_bins(
        *zip(*sample, strict=True) if sample else ((), ())
    )


BINNED = st.dictionaries(st.integers(0, BINS - 1), WEIGHTS, max_size=40)


@examples(100)
@given(BINNED, BINNED)
def test_bins_are_merged_and_packed_as_the_twin_does(one: dict[int, int], other: dict[int, int]) -> None:
    columns = [(sorted(each), [each[bin_] for bin_ in sorted(each)]) for each in (one, other)]
    arrays = [np.array(column, np.int64) for each in columns for column in each]
    merged = oracle.merge_bins(*columns)
    found = _kernels.merge_bins(*arrays)
    assert tuple(column.tolist() for column in found) == merged
    packed = _kernels.pack_bins(*found)
    assert packed == oracle.pack_bins(*merged)
    assert tuple(column.tolist() for column in _kernels.unpack_bins(packed)) == merged


@pytest.mark.parametrize("data", [b"", b"\x09", b"\x01ab", b"\x00a", b"\xff" + bytes(257)])
def test_bytes_that_are_no_bins_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no bins"):
        _kernels.unpack_bins(data)
