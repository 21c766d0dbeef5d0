"""The two-point kernels against their definitions, rewritten in a few lines of Python; hostile input."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.effort import examples
from wirelag import _kernels

Ids = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]
ALL = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST_NS, LAST_NS = -(2**63), 2**63 - 1


def mix(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & ALL
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & ALL
    return x ^ x >> 31


def coin(packet_id: int, seed: int, purpose: int) -> int:
    return mix(packet_id ^ mix((seed * GOLDEN + purpose) & ALL))


def zeros(x: int) -> int:
    return 64 - x.bit_length()


def scaled(x: int, n: int) -> int:
    return (x & (2**32 - 1)) * n >> 32


def ids_of(values: list[int]) -> Ids:
    return np.array(values, np.uint64)


def times_of(values: list[int]) -> Times:
    return np.array(values, np.int64)


NO_IDS, NO_TIMES = ids_of([]), times_of([])

seeds = st.integers(0, ALL)
any_id = st.integers(0, 12) | st.integers(0, ALL) | st.sampled_from([0, ALL, 2**63])
any_time = st.integers(0, 1000) | st.integers(FIRST_NS, LAST_NS) | st.sampled_from([FIRST_NS, LAST_NS])
packets = st.lists(st.tuples(any_id, any_time), max_size=60)


def columns(rows: list[tuple[int, int]]) -> tuple[Ids, Times]:
    return ids_of([row[0] for row in rows]), times_of([row[1] for row in rows])


# ---- coins and caches ----


@given(st.lists(any_id, max_size=20), seeds, st.integers(0, 2000))
def test_coins(values: list[int], seed: int, purpose: int) -> None:
    assert _kernels.coins(ids_of(values), seed, purpose).tolist() == [coin(value, seed, purpose) for value in values]


def kept(rows: list[tuple[int, int]], capacity: int, seed: int) -> tuple[int, list[tuple[int, int]]]:
    level = 0
    entries: list[tuple[int, int]] = []
    for row in rows:
        z = zeros(coin(row[0], seed, 1))
        while len(entries) == capacity and z >= level:
            level += 1
            entries = [entry for entry in entries if zeros(coin(entry[0], seed, 1)) >= level]
        if z >= level:
            entries.append(row)
    return level, entries


@examples(300)
@given(packets, st.integers(1, 20), seeds, st.integers(0, 60))
def test_a_cache_follows_the_law_for_any_split(rows: list[tuple[int, int]], capacity: int, seed: int, cut: int) -> None:
    cache = _kernels.Cache(capacity, seed)
    for _ in range(2):
        cache.observe(*columns(rows[:cut]))
        cache.observe(*columns(rows[cut:]))
        level, entries = kept(rows, capacity, seed)
        assert (cache.level, len(cache)) == (level, len(entries))
        ids, times_ns, about = cache.take()
        assert list(zip(ids.tolist(), times_ns.tolist(), strict=True)) == entries
        assert not len(about)
        assert (cache.level, len(cache)) == (0, 0)
        assert [len(column) for column in cache.take()] == [0, 0, 0]


def unmixed(y: int) -> int:
    """The x with mix(x) = y: whoever knows the seed can choose any coin."""
    y ^= y >> 31 ^ y >> 62
    y = y * pow(0x94D049BB133111EB, -1, 2**64) & ALL
    y ^= y >> 27 ^ y >> 54
    y = y * pow(0xBF58476D1CE4E5B9, -1, 2**64) & ALL
    return y ^ y >> 30 ^ y >> 60


def test_a_cache_of_the_rarest_coin_rises_to_the_last_level() -> None:
    rarest = unmixed(0) ^ mix((5 * GOLDEN + 1) & ALL)
    assert coin(rarest, 5, 1) == 0
    cache = _kernels.Cache(3, 5)
    cache.observe(ids_of([rarest] * 3), times_of([1, 2, 3]))
    assert (cache.level, len(cache)) == (0, 3)
    cache.observe(ids_of([rarest] * 3), times_of([1, 2, 3]))
    assert (cache.level, len(cache)) == (65, 0)


def test_a_large_cache_holds_its_share() -> None:
    ids = np.random.default_rng(3).integers(0, ALL, 100_000, np.uint64, endpoint=True)
    cache = _kernels.Cache(5000, 8)
    cache.observe(ids, np.arange(len(ids)))
    share = (_kernels.coins(ids, 8, 1) >> np.uint64(64 - cache.level)) == 0
    assert cache.level > 0
    assert len(cache) <= 5000
    found, times_ns, _ = cache.take()
    assert (found == ids[share]).all()
    assert (times_ns == np.flatnonzero(share)).all()


def test_what_a_cache_gave_away_stays_as_it_was() -> None:
    ids = np.random.default_rng(4).integers(0, ALL, 70_000, np.uint64, endpoint=True)
    cache = _kernels.Cache(1 << 20, 8, 1)
    for turn in range(2):
        cache.observe(ids + np.uint64(turn), np.arange(len(ids)), ids.reshape(-1, 1))
        taken = cache.take()
        cache.observe(ids[:9], np.arange(9), ids[:9].reshape(-1, 1))
        assert [len(column) for column in cache.take()] == [9, 9, 9]
        assert all(
            (column == expected).all()
            for column, expected in zip(taken, (ids + np.uint64(turn), np.arange(len(ids)), ids), strict=True)
        )


# ---- copies and join ----


def numbered(values: list[int]) -> list[int]:
    seen: Counter[int] = Counter()
    numbers = []
    for value in values:
        numbers.append(mix((value + seen[value] * GOLDEN) & ALL) if seen[value] else value)
        seen[value] += 1
    return numbers


@given(st.lists(any_id, max_size=60))
def test_copies(values: list[int]) -> None:
    assert _kernels.number_copies(ids_of(values)).tolist() == numbered(values)


Joined = tuple[list[int], list[int], list[int], list[int], int, int, int, int, int]


def joined(up: list[int], down: list[int]) -> Joined:
    places: tuple[dict[int, list[int]], ...] = (defaultdict(list), defaultdict(list))
    for point, values in zip(places, (up, down), strict=True):
        for row, value in enumerate(values):
            point[value].append(row)
    fates = ([0] * len(up), [0] * len(down))
    only_up = only_down = duplicated = ambiguous = reordered = 0
    pairs = []
    for value in {*up, *down}:
        of_up, of_down = places[0].get(value, []), places[1].get(value, [])
        a, b = len(of_up), len(of_down)
        if a == b:
            pairs += list(zip(of_down, of_up, strict=True))
            continue
        only_up += max(0, a - b)
        only_down += max(0, b - a)
        duplicated += b - a if 0 < a < b else 0
        ambiguous += min(a, b)
        for fate, rows in zip(fates, (of_up, of_down), strict=True):
            for row in rows:
                fate[row] = 2 if a and b else 1
    pairs.sort()
    for i, (_, row) in enumerate(pairs):
        reordered += any(row < before for _, before in pairs[:i])
    rows_up, rows_down = [row for _, row in pairs], [row for row, _ in pairs]
    return rows_up, rows_down, *fates, only_up, only_down, duplicated, ambiguous, reordered


def pair(up: list[int], down: list[int]) -> Joined:
    rows_up, rows_down, up_fate, down_fate, a, b, c, d, e = _kernels.pair(ids_of(up), ids_of(down))
    assert rows_up.dtype == rows_down.dtype == np.uint32
    assert up_fate.dtype == down_fate.dtype == np.uint8
    return rows_up.tolist(), rows_down.tolist(), up_fate.tolist(), down_fate.tolist(), a, b, c, d, e


@examples(400)
@given(st.lists(any_id, max_size=40), st.lists(any_id, max_size=40))
def test_join_of_random_ids(up: list[int], down: list[int]) -> None:
    assert pair(up, down) == joined(up, down)


@given(st.lists(st.integers(0, ALL), max_size=30, unique=True), st.randoms(use_true_random=False))
def test_join_after_loss_and_reordering(up: list[int], rng: object) -> None:
    down = [value for value in up if rng.random() < 0.9]  # type: ignore[attr-defined]
    rng.shuffle(down)  # type: ignore[attr-defined]
    assert pair(up, down) == joined(up, down)


def test_join_by_hand() -> None:
    """5 crossed twice, 6 was duplicated, 7 was lost, 8 is new, 9 overtook, one of two 3s was lost."""
    up, down = [5, 6, 5, 7, 9, 4, 3, 3], [9, 5, 6, 6, 5, 8, 4, 3]
    fates = [0, 2, 0, 1, 0, 0, 2, 2], [0, 0, 2, 2, 0, 1, 0, 2]
    assert pair(up, down) == ([4, 0, 2, 5], [0, 1, 4, 6], *fates, 2, 2, 1, 2, 2)


# ---- rows ----


@given(
    packets,
    st.integers(1, 9) | st.just(1000),
    st.lists(st.integers(0, 31) | st.integers(0, 4), min_size=1, max_size=8, unique=True),
    seeds,
    st.integers(0, 60),
)
def test_lda(rows: list[tuple[int, int]], m: int, chosen: list[int], seed: int, cut: int) -> None:
    shifts = sorted(chosen)
    buckets = np.zeros(len(shifts) * m * 2, np.uint64)
    _kernels.lda(*columns(rows[:cut]), buckets, m, shifts, seed)
    _kernels.lda(*columns(rows[cut:]), buckets, m, shifts, seed)
    expected = [[0, 0] for _ in range(len(shifts) * m)]
    for packet_id, time_ns in rows:
        h = coin(packet_id, seed, 2)
        banks = [j for j, shift in enumerate(shifts) if zeros(h) >= shift]
        if banks:
            bucket = expected[banks[-1] * m + scaled(h, m)]
            bucket[0] += 1
            bucket[1] = (bucket[1] + time_ns) & ALL
    assert buckets.reshape(-1, 2).tolist() == expected


@pytest.mark.parametrize(("shift", "packet_count"), [(0, 200_000), (31, 1000)])
def test_sums_wrap_many_times_and_their_differences_are_exact(shift: int, packet_count: int) -> None:
    rng = np.random.default_rng(4)
    ids = rng.integers(0, ALL, packet_count, np.uint64, endpoint=True)
    if shift:  # ids whose coins have the most zeros that a shift requires
        ids = ids_of([unmixed(i * GOLDEN & (2**33 - 1)) ^ mix((9 * GOLDEN + 2) & ALL) for i in range(packet_count)])
    up_ns = LAST_NS - 10_000_000 - rng.integers(0, 10**9, packet_count)
    delays_ns = rng.integers(-5_000_000, 10_000_000, packet_count, endpoint=True)
    up, down = np.zeros(2 * 4, np.uint64), np.zeros(2 * 4, np.uint64)
    _kernels.lda(ids, up_ns, up, 4, [shift], 9)
    _kernels.lda(ids, up_ns + delays_ns, down, 4, [shift], 9)
    place = ((_kernels.coins(ids, 9, 2) & np.uint64(2**32 - 1)) * np.uint64(4)) >> np.uint64(32)
    truth = [int(delays_ns[place == row].sum()) for row in range(4)]
    assert (down[::2] == up[::2]).all()
    assert int(up[::2].sum()) == packet_count
    assert up[::2].all()
    assert (down[1::2] - up[1::2]).view(np.int64).tolist() == truth


def rows_of_finecomb(rows: list[tuple[int, int]], m: int, shift: int, seed: int) -> list[list[int]]:
    buckets = [[0, 0, 0] for _ in range(m)]
    for packet_id, time_ns in rows:
        h = coin(packet_id, seed, 3)
        if zeros(h) >= shift:
            count, total, parity = buckets[scaled(h, m)]
            buckets[scaled(h, m)] = [count + 1, (total + time_ns) & ALL, parity ^ packet_id]
    return buckets


@given(packets, st.integers(1, 9) | st.just(1000), st.integers(0, 31) | st.integers(0, 3), seeds, st.integers(0, 60))
def test_finecomb(rows: list[tuple[int, int]], m: int, shift: int, seed: int, cut: int) -> None:
    buckets = np.zeros(m * 3, np.uint64)
    _kernels.finecomb(*columns(rows[:cut]), buckets, m, shift, seed)
    _kernels.finecomb(*columns(rows[cut:]), buckets, m, shift, seed)
    assert buckets.reshape(-1, 3).tolist() == rows_of_finecomb(rows, m, shift, seed)


def repaired(
    buckets: list[list[list[int]]], stashes: list[list[tuple[int, int]]], m: int, seed: int
) -> tuple[list[int], int]:
    """Repair in place; `buckets` and `stashes` are (upstream, downstream)."""
    in_both = {packet_id for packet_id, _ in stashes[0]} & {packet_id for packet_id, _ in stashes[1]}
    usable, tries = [], 0
    for row in range(m):
        both = [buckets[0][row], buckets[1][row]]
        if both[0][::2] == both[1][::2]:
            usable.append(1)
            continue
        usable.append(0)
        candidates = [
            (point, packet_id, time_ns)
            for point in (0, 1)
            for packet_id, time_ns in stashes[point]
            if packet_id not in in_both and scaled(coin(packet_id, seed, 3), m) == row
        ]
        if not 1 <= len(candidates) <= 12:
            continue
        for mask in range(1, 2 ** len(candidates)):
            if tries == 2**22:
                break
            tries += 1
            left = [list(bucket) for bucket in both]
            for i, (point, packet_id, time_ns) in enumerate(candidates):
                if mask >> i & 1:
                    count, total, parity = left[point]
                    left[point] = [(count - 1) & ALL, (total - time_ns) & ALL, parity ^ packet_id]
            if left[0][::2] == left[1][::2]:
                buckets[0][row], buckets[1][row] = left
                usable[-1] = 2
                break
    return usable, tries


@examples(300)
@given(
    packets,
    st.lists(st.tuples(any_id, any_time), max_size=8),
    st.lists(st.tuples(any_id, any_time), max_size=8),
    st.lists(st.tuples(any_id, any_time), max_size=3),
    st.integers(1, 6) | st.just(100),
    seeds,
)
def test_finecomb_repair(
    crossed: list[tuple[int, int]],
    early: list[tuple[int, int]],
    late: list[tuple[int, int]],
    stray: list[tuple[int, int]],
    m: int,
    seed: int,
) -> None:
    """Packets of edges are at one point only; stashes hold them, some that crossed, and some that never existed."""
    sides = [crossed + early, crossed + late]
    stashes = [crossed[:2] + early, late + crossed[1:3] + stray]
    arrays = [np.zeros(m * 3, np.uint64) for _ in sides]
    for side, array in zip(sides, arrays, strict=True):
        _kernels.finecomb(*columns(side), array, m, 0, seed)
    buckets = [rows_of_finecomb(side, m, 0, seed) for side in sides]
    up, down = arrays
    usable, tries = _kernels.finecomb_repair(up, down, *columns(stashes[0]), *columns(stashes[1]), m, seed)
    assert (usable.tolist(), tries) == repaired(buckets, stashes, m, seed)
    assert [array.reshape(-1, 3).tolist() for array in arrays] == buckets


def test_packets_cut_off_by_the_edge_are_removed() -> None:
    rng = np.random.default_rng(5)
    ids = rng.integers(0, ALL, 400, np.uint64, endpoint=True)
    times_ns = np.arange(400) * 1000
    up, down, expected = (np.zeros(64 * 3, np.uint64) for _ in range(3))
    _kernels.finecomb(ids[:390], times_ns[:390], up, 64, 0, 1)
    _kernels.finecomb(ids[10:], times_ns[10:] + 7, down, 64, 0, 1)
    _kernels.finecomb(ids[10:390], times_ns[10:390], expected, 64, 0, 1)
    usable, _ = _kernels.finecomb_repair(up, down, ids[:10], times_ns[:10], ids[390:], times_ns[390:] + 7, 64, 1)
    assert set(usable.tolist()) == {1, 2}
    assert (up == expected).all()
    assert (down[1::3] - up[1::3] == 7 * up[::3]).all()


def test_repair_ends_after_its_limit_of_masks() -> None:
    """Rows that cannot be repaired, with 12 candidates each: 4,095 masks per row, until 2^22 were tried."""
    m, seed = 1100, 6
    ids: list[int] = []
    full: Counter[int] = Counter()
    for packet_id in range(50_000):
        row = scaled(coin(packet_id, seed, 3), m)
        full[row] += 1
        if full[row] <= 12:
            ids.append(packet_id)
    assert len(ids) == 12 * m
    up, down = np.zeros(3 * m, np.uint64), np.zeros(3 * m, np.uint64)
    down[2::3] = 1 << 40  # no XOR of these ids has this bit
    down[2] = up[2]
    up[::3], up[1::3], down[1::3] = 12, 5, 5
    down[::3] = 12
    down[3 * (m - 1) + 2] = 0  # whole, and reported as whole after trying has ended
    before = up.copy(), down.copy()
    usable, tries = _kernels.finecomb_repair(up, down, ids_of(ids), times_of([1] * len(ids)), NO_IDS, NO_TIMES, m, seed)
    assert tries == 2**22
    assert usable.tolist() == [1, *[0] * (m - 2), 1]
    assert (up == before[0]).all()
    assert (down == before[1]).all()


def test_repair_skips_more_than_12_candidates() -> None:
    for count, usable in ((12, 2), (13, 0)):
        up, down = np.zeros(3, np.uint64), np.zeros(3, np.uint64)
        ids, times_ns = np.arange(count, dtype=np.uint64), np.arange(count)
        _kernels.finecomb(ids, times_ns, up, 1, 0, 0)
        said, _ = _kernels.finecomb_repair(up, down, ids, times_ns, NO_IDS, NO_TIMES, 1, 0)
        assert said.tolist() == [usable]
        assert (up == 0).all() == (usable == 2)


# ---- hostile input ----

MANY = 300_000
HOSTILE = {
    "all equal": np.full(MANY, 7, np.uint64),
    "in a row": np.arange(MANY, dtype=np.uint64),
    "one digit": np.arange(MANY, dtype=np.uint64) << np.uint64(45),
    "two of each": np.repeat(np.arange(MANY // 2, dtype=np.uint64), 2),
    "one hash bucket": ids_of([unmixed(i << 20) for i in range(20_000)] * 15),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_ids_take_quadratic_time(name: str) -> None:
    """0.3 million squared would take minutes, thousands of times as long as random ids."""
    ids, times_ns = HOSTILE[name], np.full(MANY, LAST_NS)
    took_s = []
    for these in (np.random.default_rng(1).integers(0, 2**64, MANY, np.uint64), ids):
        began = time.process_time()
        numbers = _kernels.number_copies(these)
        rows_up, rows_down, up_fate, down_fate, *counts = _kernels.pair(these, these)
        cache = _kernels.Cache(1000, 1)
        cache.observe(these, times_ns)
        buckets = np.zeros(64, np.uint64)
        _kernels.lda(these, times_ns, buckets, 32, [0], 1)
        took_s.append(time.process_time() - began)
    assert took_s[1] < 30 * took_s[0]
    assert len(np.unique(numbers)) == MANY
    assert (rows_up == np.arange(MANY)).all()
    assert (rows_down == np.arange(MANY)).all()
    assert not up_fate.any()
    assert not down_fate.any()
    assert counts == [0] * 5
    assert len(cache) <= 1000
    assert int(buckets[::2].sum()) == MANY
    assert int(buckets[1::2].sum()) == LAST_NS * MANY % 2**64


def test_empty_input() -> None:
    cache = _kernels.Cache(1, 0)
    cache.observe(NO_IDS, NO_TIMES)
    assert len(cache) == 0
    assert _kernels.coins(NO_IDS, 0, 0).tolist() == _kernels.number_copies(NO_IDS).tolist() == []
    assert pair([], []) == ([], [], [], [], 0, 0, 0, 0, 0)
    assert pair([1, 1], []) == ([], [], [1, 1], [], 2, 0, 0, 0, 0)
    assert pair([], [1, 1]) == ([], [], [], [1, 1], 0, 2, 0, 0, 0)
    buckets = np.zeros(6, np.uint64)
    _kernels.lda(NO_IDS, NO_TIMES, buckets, 3, [0], 0)
    _kernels.finecomb(NO_IDS, NO_TIMES, buckets, 2, 0, 0)
    assert not buckets.any()
    usable, tries = _kernels.finecomb_repair(buckets, buckets, NO_IDS, NO_TIMES, NO_IDS, NO_TIMES, 2, 0)
    assert (usable.tolist(), tries) == ([1, 1], 0)


IDS, TIMES = ids_of([1, 2]), times_of([1, 2])
SIX = np.zeros(6, np.uint64)
FROZEN = np.zeros(6, np.uint64)
FROZEN.flags.writeable = False
WRONG: dict[str, Callable[[], object]] = {
    "capacity 0": lambda: _kernels.Cache(0, 0),
    "capacity too large": lambda: _kernels.Cache(2**32 + 1, 0),
    "cache: lengths": lambda: _kernels.Cache(1, 0).observe(IDS, TIMES[:1]),
    "cache: times": lambda: _kernels.Cache(1, 0).observe(IDS, IDS),  # type: ignore[arg-type]
    "coins: type": lambda: _kernels.coins(TIMES, 0, 0),  # type: ignore[arg-type]
    "coins: list": lambda: _kernels.coins([1], 0, 0),  # type: ignore[arg-type]
    "coins: dimensions": lambda: _kernels.coins(IDS.reshape(2, 1), 0, 0),
    "coins: strides": lambda: _kernels.coins(SIX[::2], 0, 0),
    "copies: type": lambda: _kernels.number_copies(TIMES),  # type: ignore[arg-type]
    "pair: type": lambda: _kernels.pair(IDS, IDS.astype(np.uint32)),
    "lda: lengths": lambda: _kernels.lda(IDS, TIMES[:1], SIX, 3, [0], 0),
    "lda: buckets": lambda: _kernels.lda(IDS, TIMES, SIX, 2, [0], 0),
    "lda: bucket type": lambda: _kernels.lda(IDS, TIMES, SIX.astype(np.int64), 3, [0], 0),
    "lda: frozen buckets": lambda: _kernels.lda(IDS, TIMES, FROZEN, 3, [0], 0),
    "lda: no rows": lambda: _kernels.lda(IDS, TIMES, SIX[:0], 0, [0], 0),
    "lda: too many rows": lambda: _kernels.lda(IDS, TIMES, SIX[:0], 2**63, [0, 1], 0),
    "lda: no banks": lambda: _kernels.lda(IDS, TIMES, SIX[:0], 3, [], 0),
    "lda: too many banks": lambda: _kernels.lda(IDS, TIMES, np.zeros(18, np.uint64), 1, list(range(9)), 0),
    "lda: shift": lambda: _kernels.lda(IDS, TIMES, SIX, 3, [32], 0),
    "lda: shifts descend": lambda: _kernels.lda(IDS, TIMES, SIX[:4], 1, [2, 1], 0),
    "lda: shifts are equal": lambda: _kernels.lda(IDS, TIMES, SIX[:4], 1, [1, 1], 0),
    "finecomb: lengths": lambda: _kernels.finecomb(IDS[:1], TIMES, SIX, 2, 0, 0),
    "finecomb: buckets": lambda: _kernels.finecomb(IDS, TIMES, SIX, 3, 0, 0),
    "finecomb: frozen buckets": lambda: _kernels.finecomb(IDS, TIMES, FROZEN, 2, 0, 0),
    "finecomb: no rows": lambda: _kernels.finecomb(IDS, TIMES, SIX[:0], 0, 0, 0),
    "finecomb: shift": lambda: _kernels.finecomb(IDS, TIMES, SIX, 2, 32, 0),
    "repair: buckets": lambda: _kernels.finecomb_repair(SIX, SIX[:3], IDS, TIMES, IDS, TIMES, 2, 0),
    "repair: frozen buckets": lambda: _kernels.finecomb_repair(SIX, FROZEN, IDS, TIMES, IDS, TIMES, 2, 0),
    "repair: lengths": lambda: _kernels.finecomb_repair(SIX, SIX, IDS, TIMES, IDS, TIMES[:1], 2, 0),
    "repair: no rows": lambda: _kernels.finecomb_repair(SIX[:0], SIX[:0], IDS, TIMES, IDS, TIMES, 0, 0),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arrays_and_numbers_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        WRONG[name]()


def test_the_input_is_not_changed() -> None:
    ids, times_ns = ids_of([3, 1, 3, 2]), times_of([1, 2, 3, 4])
    for array in (ids, times_ns):
        array.flags.writeable = False
    _kernels.Cache(2, 0).observe(ids, times_ns)
    _kernels.lda(ids, times_ns, np.zeros(2, np.uint64), 1, [0], 0)
    _kernels.pair(ids, _kernels.number_copies(ids))
    assert ids.tolist() == [3, 1, 3, 2]
    assert all(later - earlier == 1 for earlier, later in pairwise(times_ns.tolist()))


# ---- rows and times of a difference ----


@examples(100)
@given(st.lists(any_time, max_size=60))
def test_a_sum_is_exact(values: list[int]) -> None:
    low, high = _kernels.exact_sum(times_of(values))
    assert (high << 64) + low == sum(values)


@examples(100)
@given(packets, st.lists(st.integers(0, 12) | st.integers(0, ALL), max_size=16))
def test_times_are_found_by_the_low_bits_of_numbers(rows: list[tuple[int, int]], wanted: list[int]) -> None:
    seen = defaultdict(list)
    for number, time_ns in rows:
        seen[number % 2**32].append(time_ns)
    expected = [seen[one][0] if one in seen and len(seen[one]) == 1 else -1 for one in wanted]
    assert _kernels.times_of(*columns(rows), ids_of(wanted), -1).tolist() == expected


@pytest.mark.parametrize("copies", [1.0, 1.3, 50.0])
def test_threads_join_as_one_does(copies: float) -> None:
    """Enough ids that several threads begin, with few copies and with many; each id is joined as if it were alone."""
    count, rng = 40_000, np.random.default_rng(int(copies * 10))
    up, down = (rng.integers(0, int(count / copies), count).astype(np.uint64) for _ in range(2))
    alone = _kernels.pair(up, down)
    for threads in (2, 3, 8):
        for one, other in zip(alone, _kernels.pair(up, down, threads), strict=True):
            assert np.array_equal(one, other)
    some = np.arange(0, int(count / copies), 100, np.uint64)
    up, down = up[np.isin(up, some)], down[np.isin(down, some)]
    few = [_kernels.pair(up[up == one], down[down == one])[4:8] for one in some]
    assert _kernels.pair(up, down, 2)[4:8] == tuple(map(sum, zip(*few, strict=True)))


def test_a_sample_is_thinned_by_coins() -> None:
    ids = np.random.default_rng(1).integers(0, 2**64, 1_000, np.uint64)
    for most in (1_000, 400, 30, 1):
        rows, rounds = np.arange(len(ids)), 0
        while len(rows) > most:
            rows, rounds = rows[_kernels.coins(ids[rows], rounds, 10) >> np.uint64(63) == 0], rounds + 1
        found, times = _kernels.thinned(ids, most, 10)
        assert (found.tolist(), times) == (rows.tolist(), rounds)
