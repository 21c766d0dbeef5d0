"""Equal rows of words, compared with np.unique and with a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from wirelag import _kernels
from wirelag.packets.distinct import distinct, numbered, places_among
from wirelag.synopses.key_counts import KeyCounts


def rows(count: int, width: int, of: int, seed: int = 1) -> npt.NDArray[Any]:
    """Rows with many alike, and words that differ in their highest bits only."""
    rng = np.random.default_rng(seed)
    words: npt.NDArray[Any] = rng.integers(0, 2**64, (of, width), np.uint64)
    words[: of // 2] = words[0]
    words[: of // 2, width - 1] = np.arange(of // 2, dtype=np.uint64) << np.uint64(50)
    return words[rng.integers(0, of, count)]


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize(("count", "of"), [(0, 2), (1, 2), (500, 400), (5000, 40), (5000, 9000)])
def test_distinct_is_np_unique(width: int, count: int, of: int) -> None:
    given = rows(count, width, of)
    want, first, place = np.unique(given, axis=0, return_index=True, return_inverse=True)
    found = distinct(given)
    np.testing.assert_array_equal(found.rows, want)
    np.testing.assert_array_equal(found.first, first)
    np.testing.assert_array_equal(found.place, place.reshape(-1))


def test_distinct_of_one_column_and_of_a_part_of_rows() -> None:
    given = rows(1000, 5, 100)
    np.testing.assert_array_equal(distinct(given[:, 3]).rows, np.unique(given[:, 3]))
    np.testing.assert_array_equal(distinct(given[::2, 1:4]).rows, np.unique(given[::2, 1:4], axis=0))


def test_numbers_are_in_order_of_appearance() -> None:
    given = rows(3000, 3, 700)
    known: dict[tuple[int, ...], int] = {}
    want = [known.setdefault(tuple(words), len(known)) for words in given.tolist()]
    numbers, firsts = numbered(given)
    assert numbers.tolist() == want
    assert [tuple(words) for words in given[firsts].tolist()] == list(known)
    assert (np.diff(firsts.astype(np.int64)) > 0).all()


def test_places_among_known_rows() -> None:
    known, wanted = distinct(rows(100, 2, 300)).rows, rows(200, 2, 300)
    where = {tuple(words): place for place, words in enumerate(known.tolist())}
    assert places_among(known, wanted).tolist() == [where.get(tuple(words), -1) for words in wanted.tolist()]


def test_rows_must_fit_their_words() -> None:
    room = np.empty(3, np.uint32)
    for width, words in ((0, 0), (2, 5), (1, 2)):
        with pytest.raises(ValueError, match="for each row"):
            _kernels.number_rows(np.zeros(words, np.uint64), width, room, room.copy())


def test_counts_by_key_are_those_of_a_dict_in_the_order_heard() -> None:
    counts, twin = KeyCounts(words=2, columns=3), dict[tuple[int, ...], list[int]]()
    for seed in range(20):
        keys = distinct(rows(40, 2, 60, seed=7)[seed : seed + 12]).rows
        new = np.random.default_rng(seed).integers(0, 1000, (len(keys), 3))
        found = counts.add(keys, new)
        for key, more in zip(map(tuple, keys.tolist()), new.tolist(), strict=True):
            before = twin.pop(key, [0, 0, 0])
            twin[key] = [one + other for one, other in zip(before, more, strict=True)]  # now the one heard last
        assert found.tolist() == [twin[key] for key in map(tuple, keys.tolist())]
        counts.forget(15)
        for key in list(twin)[:-15]:
            del twin[key]
        assert [tuple(key) for key in counts.keys.tolist()] == list(twin)
        assert counts.counts.tolist() == list(twin.values())
