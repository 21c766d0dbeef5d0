"""RDA, strata and rateless symbols in C: what decodes, how often, and resistance against hostile input.

Tolerances come from theory: shares of runs, and counts of numbers in symbols and strata, are binomial.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from wirelag import _kernels
from wirelag.synopses import symbols

Words = npt.NDArray[np.uint64]
Finds = dict[int, int]
NONE = np.zeros(0, np.uint64)
STRATA = 24 * 81 * 3
FILLS = {False: _kernels.rda_fill, True: _kernels.srda_fill}


def numbers(rng: np.random.Generator, count: int) -> Words:
    return rng.integers(0, 2**64, count, dtype=np.uint64)


def less(up: Words, down: Words, fields: int) -> Words:
    """Downstream minus upstream: ids and checks XOR, counts subtracted; without sums."""
    a, b = up.reshape(-1, fields), down.reshape(-1, fields)
    return np.column_stack([a[:, :2] ^ b[:, :2], b[:, 2] - a[:, 2]]).ravel()


def difference(up: Words, down: Words, banks: int, rows: int, seed: int, one_array: bool = False) -> Words:
    buckets = np.zeros((2, banks * rows * 4), np.uint64)
    for seen, into in zip((up, down), buckets, strict=True):
        FILLS[one_array](seen, np.zeros(len(seen), np.int64), into, banks, seed)
    return less(buckets[0], buckets[1], 4)


def truth(up: Words, down: Words) -> Finds:
    return dict.fromkeys(up.tolist(), -1) | dict.fromkeys(down.tolist(), 1)


def finds(ids: Words, counts: npt.NDArray[np.int64]) -> Finds:
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def share(decodes: Callable[[np.random.Generator, int], bool], runs: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    return sum(decodes(rng, run) for run in range(runs)) / runs


def within(measured: float, expected: float, runs: int) -> bool:
    return abs(measured - expected) < 4 * math.sqrt(expected * (1 - expected) / runs)


# ---- filling ----


def test_a_bucket_is_a_sum_over_its_numbers() -> None:
    rng = np.random.default_rng(1)
    seen, times_ns = numbers(rng, 1000), rng.integers(-(2**62), 2**62, 1000)
    buckets = np.zeros((3, 7, 4), np.uint64)
    _kernels.rda_fill(seen, times_ns, buckets.reshape(-1), 3, 5)
    for bank in buckets:
        assert np.bitwise_xor.reduce(bank[:, 0]) == np.bitwise_xor.reduce(seen)
        assert bank[:, 1].max() < 2**32
        assert bank[:, 2].sum() == 1000
        assert bank[:, 3].sum() == times_ns.astype(np.uint64).sum()
    parts = np.zeros(84, np.uint64)
    for part in (slice(0, 300), slice(300, 1000)):
        _kernels.rda_fill(seen[part], times_ns[part], parts, 3, 5)
    assert (parts == buckets.reshape(-1)).all()


def test_one_array_takes_repeated_places_once() -> None:
    buckets = np.zeros(8, np.uint64)
    for number in range(100):
        _kernels.srda_fill(np.array([number], np.uint64), np.array([1]), buckets, 3, 0)
    assert buckets[2::4].max() <= 100
    assert buckets[2::4].sum() < 200


# ---- decoding ----


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(("banks", "cells_each"), [(2, 40), (3, 4), (4, 3)])
def test_differences_decode(banks: int, cells_each: int, checked: bool) -> None:
    rng, complete = np.random.default_rng(banks), 0
    for run in range(200):
        lost, new, common = numbers(rng, run), numbers(rng, run // 3), numbers(rng, 500)
        rows = 30 + (run + run // 3) * cells_each // banks
        up, down = np.concatenate([lost, common]), np.concatenate([common, new])
        left = difference(up, down, banks, rows, run)
        ids, counts, done = _kernels.rda_decode(left, banks, run, checked, NONE)
        if done:
            complete += 1
            assert finds(ids, counts) == truth(lost, new)
            assert not left.any()
    assert complete > 190


@pytest.mark.parametrize("one_array", [False, True])
@pytest.mark.parametrize("banks", [2, 3, 4])
def test_undecoded_numbers_stay_in_the_difference(banks: int, one_array: bool) -> None:
    rng, partial = np.random.default_rng(7), 0
    for run in range(50):
        lost, new = numbers(rng, 150), numbers(rng, 100)
        left = difference(lost, new, banks, 240 // banks, run, one_array)
        if one_array:
            ids, counts, done = _kernels.srda_decode(left, banks, run)
        else:
            ids, counts, done = _kernels.rda_decode(left, banks, run, True, NONE)
        found, all_of_it = finds(ids, counts), truth(lost, new)
        assert found.items() <= all_of_it.items()
        assert done == (len(found) == 250)
        partial += 0 < len(found) < 250
        rest = [np.array([x for x in side.tolist() if x not in found], np.uint64) for side in (lost, new)]
        assert (left == difference(rest[0], rest[1], banks, 240 // banks, run, one_array)).all()
    assert partial > 40


def test_no_fake_passes_the_check() -> None:
    rng, fakes_without = np.random.default_rng(8), 0
    for run in range(10_000):
        up, down = numbers(rng, 40), numbers(rng, 40)
        made = difference(up, down, 2, 30, run)
        for checked in (True, False):
            ids, counts, _ = _kernels.rda_decode(made.copy(), 2, run, checked, NONE)
            fake = not finds(ids, counts).items() <= truth(up, down).items()
            assert not (fake and checked)
            fakes_without += fake
    assert fakes_without > 100  # the check prevents these


@pytest.mark.parametrize("size", [100, 1000])
def test_two_banks_fail_as_in_theory(size: int) -> None:
    """Peeling fails where a cycle is left; m = 2 d: 1 - sqrt(1 - (d/m)^2), for every d."""

    def decodes(rng: np.random.Generator, run: int) -> bool:
        made = difference(numbers(rng, size // 2), numbers(rng, size // 2), 2, 2 * size, run)
        return _kernels.rda_decode(made, 2, run, True, NONE)[2]

    runs = 2000
    failed = 1 - share(decodes, runs, size)
    assert within(failed, 1 - math.sqrt(0.75), runs)
    assert 0.10 < failed < 0.17


def decodes_of_5000(banks: int, lost: int, new: int, caches: int) -> Callable[[np.random.Generator, int], bool]:
    """Decode 5,000 cells without a cache, with upstream's, or also with downstream's for the rest."""

    def decodes(rng: np.random.Generator, run: int) -> bool:
        up, down, common = numbers(rng, lost), numbers(rng, new), numbers(rng, 5000)
        left = difference(up, down, banks, 5000 // banks, run)
        own = rng.permutation(np.concatenate([up, common])) if caches else NONE
        ids, counts, done = _kernels.rda_decode(left, banks, run, True, own)
        found = finds(ids, counts)
        if caches == 2 and not done:
            left[2::3] = -left[2::3]
            own = np.concatenate([down, common])
            ids, counts, done = _kernels.rda_decode(left, banks, run, True, own)
            found |= finds(ids, -counts)
        assert found.items() <= truth(up, down).items()
        assert done == (len(found) == lost + new)
        return done

    return decodes


def test_three_banks_decode_4000_of_5000() -> None:
    assert share(decodes_of_5000(3, 2000, 2000, 0), 200, 1) >= 0.95


def test_a_cache_decodes_4000_of_5000_in_two_banks() -> None:
    assert share(decodes_of_5000(2, 4000, 0, 0), 20, 2) == 0
    assert share(decodes_of_5000(2, 4000, 0, 1), 200, 2) >= 0.99


@pytest.mark.acceptance
def test_a_cache_cannot_split_what_only_the_other_point_has() -> None:
    """A cycle of numbers that are only downstream stays, whatever upstream knows; downstream can decode the rest."""
    runs = 300
    assert within(share(decodes_of_5000(2, 2000, 2000, 1), runs, 3), math.sqrt(1 - (2000 / 2500) ** 2), runs)
    assert share(decodes_of_5000(2, 2000, 2000, 2), runs, 3) >= 0.99


# ---- hostile input ----


def garbage(rng: np.random.Generator, cells: int, own: Words) -> Words:
    """Random words, small counts, pairs of own numbers: they pass checks more often than by chance."""
    kind = rng.integers(0, 4)
    made = numbers(rng, cells * 3).reshape(-1, 3)
    made[:, 1] &= np.uint64(2**32 - 1 if kind else 0)
    if kind:
        made[:, 2] = rng.integers(-2, 3, cells).astype(np.uint64)
    if kind > 1 and len(own):
        made[:, 0] = rng.choice(own, cells) ^ (rng.choice(own, cells) if kind > 2 else np.uint64(0))
    return made.ravel()


def test_garbage_ends() -> None:
    rng = np.random.default_rng(9)
    for run in range(5000):
        banks, rows = int(rng.integers(2, 5)), int(rng.integers(1, 60))
        own = numbers(rng, int(rng.integers(0, 200)))
        made = garbage(rng, banks * rows, own)
        for checked in (True, False):
            left = made.copy()
            ids, counts, done = _kernels.rda_decode(left, banks, run, checked, own)
            assert len(finds(ids, counts)) <= banks * rows
            assert not (done and left.any())
        ids, counts, _ = _kernels.srda_decode(made.copy(), banks, run)
        assert len(finds(ids, counts)) <= banks * rows
        decoder = _kernels.RatelessDecoder(run)
        decoder.add(made)
        assert len(finds(*decoder.found())) <= decoder.symbols == banks * rows
        assert _kernels.strata_estimate(garbage(rng, 24 * 81, own), run) <= 81 * 24 << 24


def test_symbols_in_words_decode_as_their_difference() -> None:
    """As far as both points have them, each word cut into its parts (symbols.py)."""
    rng = np.random.default_rng(11)
    for run in range(200):
        own = numbers(rng, 60)
        up, down = (
            symbols.symbols_of(own[int(rng.integers(0, 8)) :], 0, int(rng.integers(0, 40)), run) for _ in range(2)
        )
        both = min(len(up), len(down))
        one, other = (_kernels.RatelessDecoder(run, 16, 4) for _ in range(2))
        assert one.add_words(up, down, 44, 16) == other.add(symbols.less(down[:both], up[:both]))
        assert finds(*one.found()) == finds(*other.found())
        assert one.symbols == other.symbols == both
    with pytest.raises(ValueError, match="bits of a count"):
        _kernels.RatelessDecoder(0).add_words(up, down, 44, 20)


def test_much_garbage_ends_soon() -> None:
    """A cell is visited again only if it changed: 100,000 cells with a cache of 200,000 take no quadratic time."""
    rng = np.random.default_rng(10)
    own = numbers(rng, 200_000)
    for checked in (True, False):
        made = garbage(rng, 99_999, own)
        made[0::3] = rng.choice(own, 99_999) ^ rng.choice(own, 99_999)
        made[2::3] = np.uint64(0)
        ids, _, done = _kernels.rda_decode(made, 3, 1, checked, own)
        assert not done
        assert len(ids) <= 99_999


def test_a_number_found_twice_is_a_fake() -> None:
    made = difference(NONE, np.array([77], np.uint64), 2, 50, 3)
    cells = made.reshape(-1, 3)
    second = 50 + int(np.flatnonzero(cells[50:, 2])[0])
    cells[second] = (0, 0, 2)  # without 77 it seems to contain 77
    ids, counts, done = _kernels.rda_decode(made, 2, 3, True, NONE)
    assert (ids.tolist(), counts.tolist(), done) == ([77], [1], False)

    symbol = _kernels.RatelessEncoder(np.array([77], np.uint64), 3).symbols(1)
    decoder = _kernels.RatelessDecoder(3)
    assert decoder.add(symbol)
    assert not decoder.add(np.zeros(300, np.uint64))  # without 77 some of these seem to contain it
    assert finds(*decoder.found()) == {77: 1}


def test_arrays_of_wrong_shapes_are_refused() -> None:
    empty, times = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    wrong: list[Callable[[], object]] = [
        lambda: _kernels.rda_fill(empty, times, np.zeros(8, np.uint64), 1, 0),
        lambda: _kernels.rda_fill(empty, times, np.zeros(40, np.uint64), 5, 0),
        lambda: _kernels.rda_fill(empty, times, np.zeros(0, np.uint64), 2, 0),
        lambda: _kernels.rda_fill(empty, times, np.zeros(12, np.uint64), 2, 0),
        lambda: _kernels.rda_fill(empty, np.zeros(1, np.int64), np.zeros(8, np.uint64), 2, 0),
        lambda: _kernels.srda_fill(empty, times, np.zeros(9, np.uint64), 2, 0),
        lambda: _kernels.rda_decode(np.zeros(7, np.uint64), 2, 0, True, empty),
        lambda: _kernels.rda_decode(np.zeros(9, np.uint64), 2, 0, True, empty),
        lambda: _kernels.srda_decode(np.zeros(8, np.uint64), 2, 0),
        lambda: _kernels.strata_fill(empty, np.zeros(STRATA - 1, np.uint64), 0),
        lambda: _kernels.strata_estimate(np.zeros(STRATA + 3, np.uint64), 0),
        lambda: _kernels.RatelessDecoder(0).add(np.zeros(4, np.uint64)),
        lambda: _kernels.RatelessEncoder(empty, 0).symbols(2**32 - 1),
        lambda: _kernels.rateless_first(empty, _kernels.FIRST_SYMBOLS + 1, 0),
    ]
    for call in wrong:
        with pytest.raises(ValueError, match=r"\w"):
            call()
    with pytest.raises(TypeError):  # a converted copy would be filled instead
        _kernels.strata_fill(empty, np.zeros(STRATA, np.int64), 0)


# ---- the size of a difference ----


def estimated(rng: np.random.Generator, size: int, seed: int) -> int:
    strata = np.zeros((2, STRATA), np.uint64)
    common = numbers(rng, 1000)
    for into, count in zip(strata, (size // 2, size - size // 2), strict=True):
        _kernels.strata_fill(np.concatenate([common, numbers(rng, count)]), into, seed)
    made = less(strata[0], strata[1], 3)
    before = made.copy()
    answer = _kernels.strata_estimate(made, seed)
    assert (made == before).all()
    return answer


@pytest.mark.parametrize("size", [0, 1, 5, 20])
def test_strata_count_small_differences(size: int) -> None:
    rng = np.random.default_rng(size)
    answers = [estimated(rng, size, run) for run in range(200)]
    assert sum(answer == size for answer in answers) >= 198  # two numbers with three places in common: 1 of 27^3


@pytest.mark.parametrize("size", [300, 1000, 10_000])
def test_strata_estimate_large_differences(size: int) -> None:
    """A stratum of 81 cells decodes up to about 60 numbers, so 40 to 120 numbers are counted above it.

    The standard deviation, 1/sqrt(n), is 9 to 16%, and the median error two thirds of it.
    """
    rng, runs = np.random.default_rng(size), 300
    errors = np.array([estimated(rng, size, run) / size - 1 for run in range(runs)])
    assert 0.05 < np.median(np.abs(errors)) < 0.67 * 0.16
    assert abs(errors.mean()) < 0.05  # a stratum that fails has more numbers than expected: a downward bias
    assert np.abs(errors).max() < 4 * 0.16


def test_minima_agree_in_proportion_to_similarity() -> None:
    rng = np.random.default_rng(11)
    common, a, b = (numbers(rng, count) for count in (3000, 500, 500))
    first, second = (_kernels.minhash(np.concatenate([common, side]), 2000, 4) for side in (a, b))
    assert within(float((first == second).mean()), 3000 / 4000, 2000)
    assert (_kernels.minhash(NONE, 3, 0) == 2**64 - 1).all()


# ---- rateless ----


def rateless(rng: np.random.Generator, size: int, seed: int, step: int) -> float:
    """Symbols per number of a difference, which must decode correctly."""
    lost, new, common = numbers(rng, size - size // 3), numbers(rng, size // 3), numbers(rng, 300)
    upstream = _kernels.RatelessEncoder(np.concatenate([lost, common]), seed)
    downstream = _kernels.RatelessEncoder(np.concatenate([common, new]), seed)
    decoder = _kernels.RatelessDecoder(seed)
    while not decoder.add(less(upstream.symbols(step), downstream.symbols(step), 3)):
        assert decoder.symbols < 8 * size + 100
    assert finds(*decoder.found()) == truth(lost, new)
    return decoder.symbols / size


@pytest.mark.every(4)
@pytest.mark.parametrize(("size", "runs"), [(1, 50), (10, 50), (100, 200), (1000, 50), (10_000, 10)])
def test_a_difference_needs_few_symbols(size: int, runs: int) -> None:
    rng = np.random.default_rng(size)
    mean = np.mean([rateless(rng, size, run, max(1, size // 100)) for run in range(runs)])
    assert mean <= (1.5 if size >= 100 else 2.5)


def test_equal_points_need_one_symbol() -> None:
    seen = numbers(np.random.default_rng(12), 1000)
    decoder = _kernels.RatelessDecoder(1)
    assert not decoder.add(NONE)
    symbols = [_kernels.RatelessEncoder(seen, 1).symbols(1) for _ in range(2)]
    assert decoder.add(less(symbols[0], symbols[1], 3))
    assert (decoder.symbols, finds(*decoder.found())) == (1, {})


def test_symbols_contain_the_expected_share_of_numbers() -> None:
    count, most = 100_000, 2000
    encoder = _kernels.RatelessEncoder(np.arange(count, dtype=np.uint64), 5)
    symbols = np.concatenate([encoder.symbols(step) for step in (1, 0, 9, 990, 1000)]).reshape(-1, 3)
    shares = 2 / (np.arange(most) + 2)
    errors = (symbols[:, 2].astype(float) - count * shares)[1:] / np.sqrt(count * shares * (1 - shares))[1:]
    assert symbols[0, 2] == count
    assert np.abs(errors[:60]).max() < 4
    assert np.abs(errors).max() < 5  # 2,000 symbols
    assert abs((errors**2).mean() - 1) < 4 * math.sqrt(2 / most)


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64])
def test_the_first_symbols_are_those_of_the_encoder(count: int) -> None:
    seen = numbers(np.random.default_rng(14), 100_000)  # draws of all sizes: some need a division
    assert (_kernels.rateless_first(seen, count, 6) == _kernels.RatelessEncoder(seen, 6).symbols(count)).all()


def test_symbols_do_not_depend_on_how_they_are_requested() -> None:
    seen = numbers(np.random.default_rng(13), 400)
    at_once, one_by_one = (_kernels.RatelessEncoder(seen, 6) for _ in range(2))
    whole = at_once.symbols(700)
    assert (np.concatenate([one_by_one.symbols(1) for _ in range(700)]) == whole).all()
    decoders = [_kernels.RatelessDecoder(6) for _ in range(2)]
    assert decoders[0].add(whole)
    for i in range(700):
        decoders[1].add(whole[3 * i : 3 * i + 3])
    assert decoders[0].found()[0].tolist() == decoders[1].found()[0].tolist()
    assert finds(*decoders[0].found()) == truth(NONE, seen)
