"""Address pairs: the kernel against plain Python, and their bound."""

import numpy as np
import pytest

from wirelag import _kernels
from wirelag.packets.addresses import address_keys, pair_keys
from wirelag.packets.batch import COLUMNS, PacketBatch

ROWS = 5_000


def addresses(seed: int, different: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**64, (different, 2), np.uint64)[rng.integers(0, different, ROWS)]


def between(source: np.ndarray, destination: np.ndarray) -> PacketBatch:
    """Packets between addresses, of which nothing else is known."""
    columns = {name: np.zeros(len(source), dtype) for name, dtype, width in COLUMNS if width == 1}
    return PacketBatch(columns | {"src": source, "dst": destination})


def plain_keys(source: np.ndarray, destination: np.ndarray) -> list[int]:
    return pair_keys(address_keys(source), address_keys(destination)).tolist()


@pytest.mark.parametrize("most", [1 << 18, 500, 1])
@pytest.mark.parametrize("size", [1, 77, ROWS])
def test_pairs_are_those_of_a_dictionary(most: int, size: int) -> None:
    """The law of thinning, on all pairs at once: the fewest leading zero bits that leave no more than may be."""
    source, destination = addresses(1, 60), addresses(2, 50)
    keys = plain_keys(source, destination)
    held = dict(zip(keys, np.concatenate((source, destination), axis=1).tolist(), strict=True))
    level = 0
    while sum(key < 2 ** (64 - level) for key in held) > most:
        level += 1
    held = {key: pair for key, pair in held.items() if key < 2 ** (64 - level)}

    seen = _kernels.Sighting(ROWS, 0, most, 0)
    for at in range(0, ROWS, size):
        seen.observe(between(source[at : at + size], destination[at : at + size]))
    assert seen.sampled()[2].tolist() == keys
    kept, words = np.empty(seen.pair_count, np.uint64), np.empty(4 * seen.pair_count, np.uint64)
    seen.pairs(kept, words)
    assert list(zip(kept.tolist(), words.reshape(-1, 4).tolist(), strict=True)) == list(held.items())  # as they came
    assert seen.pair_level == level


def test_courses_are_those_of_a_dictionary() -> None:
    source, destination = addresses(3, 40), addresses(4, 40)
    keys = plain_keys(source, destination)
    known = {key: 1 + key % 3 for key in sorted(set(keys))[::2]}
    courses = _kernels.PairCourses(np.array(list(known), np.uint64), np.array(list(known.values()), np.uint8))
    found = np.empty(ROWS, np.uint8)
    courses.of(source.reshape(-1), destination.reshape(-1), found)
    assert found.tolist() == [known.get(key, 0) for key in keys]
    none = np.empty(1, np.uint8)
    _kernels.PairCourses(np.empty(0, np.uint64), np.empty(0, np.uint8)).of(source[0], destination[0], none)
    assert none.tolist() == [0]


def test_wrong_shapes_are_refused() -> None:
    narrow = np.zeros((2, 3), np.uint64)
    with pytest.raises(ValueError, match="two words"):
        _kernels.Sighting(1, 0, 1, 0).observe(between(narrow, narrow))
    courses = _kernels.PairCourses(np.zeros(1, np.uint64), np.ones(1, np.uint8))
    with pytest.raises(ValueError, match="two words"):
        courses.of(np.zeros(2, np.uint64), np.zeros(3, np.uint64), np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="room for a pair"):
        _kernels.Sighting(1, 0, 0, 0)
    with pytest.raises(ValueError, match="a sample has"):
        _kernels.Sighting(0, 0, 1, 0)
    with pytest.raises(ValueError, match="a course of each"):
        _kernels.PairCourses(np.zeros(2, np.uint64), np.zeros(1, np.uint8))
