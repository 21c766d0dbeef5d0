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
    assert _kernels.squeezed_size(array, free) == (base, width, len(squeezed))
    assert _kernels.squeeze(np.repeat(array, 2)[::2], free) == (base, width, squeezed)  # with gaps
    before, after = bytes(place), data.draw(st.binary(max_size=3))
    body, dtype = memoryview(before + squeezed + after), "<i8" if signed else "<u8"
    names = {"class": None, "a": {"array": [dtype, len(values), base, width]}, "b": {"sent": 1}}
    spare, room = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    free = spare + (0 if width else len(values))
    fields, end, *left = _kernels.unsqueeze(names, body, place, free, room + len(values))
    filled = fields["a"]
    assert list(fields) == list(names)
    assert (fields["class"], fields["b"], filled.dtype.str) == (None, {"sent": 1}, dtype)
    assert [end, *left] == [place + len(squeezed), spare, room]
    unsigned = filled.view(np.uint64).tolist()
    assert unsigned == oracle.unsqueeze(bytes(body), place, len(values), width, base)
    assert unsigned == [value % 2**64 for value in values]


def unsqueezed(shape: object, place: int = 0, free: int = 100, left: int = 100) -> object:
    return _kernels.unsqueeze({"ids": {"array": shape}}, bytes(8), place, free, left)


@pytest.mark.parametrize(
    ("place", "width", "count"), [(0, 2, 5), (8, 1, 1), (1, 8, 1), (0, 1, 9), (0, 8, 2**61), (0, 1, 2**80)]
)
def test_no_value_is_read_beyond_its_bytes(place: int, width: int, count: int) -> None:
    with pytest.raises(ValueError, match=r"^is cut short in ids$"):
        unsqueezed(["<u8", count, 0, width], place, 2**62, 2**62)
    for beyond in (9, -1, 2**62):
        with pytest.raises(ValueError, match="fewer bytes than values"):
            unsqueezed(["<u8", 0, 0, 0], beyond)


@pytest.mark.parametrize(("free", "left"), [(3, 9), (9, 3), (0, 0)])
@pytest.mark.parametrize("count", [4, 2**40, 2**80])
def test_no_more_values_are_made_than_allowed(count: int, free: int, left: int) -> None:
    with pytest.raises(ValueError, match=r"^is damaged: ids has more values than allowed$"):
        unsqueezed(["<u8", count, 0, 0], free=free, left=left)


@pytest.mark.parametrize(
    "shape",
    [
        ["<u4", 1, 0, 1],
        [None, 1, 0, 1],
        ["<u8", -1, 0, 1],
        ["<u8", 1.0, 0, 1],
        ["<u8", 1, "0", 1],
        ["<u8", 1, 0, 9],
        ["<u8", 1, 0, -1],
        ["<u8", 1, 0, 2**70],
        ["<u8", 1, 0],
        ["<u8", 1, 0, 1, 1],
        ("<u8", 1, 0, 1),
        {"<u8": 1},
        None,
        "<u8",
    ],
    ids=str,
)
def test_a_shape_of_no_array_is_refused(shape: object) -> None:
    with pytest.raises(ValueError, match=r"^is damaged: ids cannot be an array of ") as refused:
        unsqueezed(shape)
    assert str(refused.value).endswith(f" {shape}")


def test_a_base_counts_modulo_a_word() -> None:
    for base in (2**64, -(2**64), 2**200):
        assert unsqueezed(["<u8", 2, base + 5, 0])[0]["ids"].tolist() == [5, 5]  # type: ignore[index]


def test_other_memory_is_refused() -> None:
    words, halves = np.zeros(4, np.uint64), np.zeros(4, np.uint32)
    with pytest.raises(ValueError, match="be bytes"):
        _kernels.unsqueeze({}, words, 0, 0, 0)
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


@examples(100)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2**40)), max_size=20), st.lists(st.integers(0, 4), min_size=8)
)
def test_bins_are_counted_at_their_places(rows: list[tuple[int, int]], places: list[int]) -> None:
    bins, weights = (np.array([row[i] for row in rows], np.int64) for i in range(2))
    counts = np.arange(5)
    expected = oracle.count_bins(bins.tolist(), weights.tolist(), places, counts.tolist())
    assert _kernels.count_bins(bins, weights, np.array(places), counts) == weights.sum()
    assert counts.tolist() == expected


def test_bins_without_a_place_are_refused() -> None:
    one, counts = np.ones(1, np.int64), np.zeros(2, np.int64)
    for bin_, place in ((1, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(ValueError, match="a place"):
            _kernels.count_bins(one * bin_, one, one * place, counts)
    with pytest.raises(ValueError, match="a weight"):
        _kernels.count_bins(one, counts, one, counts)
    assert not counts.any()


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
