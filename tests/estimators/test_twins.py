"""Kernels and estimators of two points equal their twins, bit for bit; floats agree within rounding.

Simulated captures resemble a real path; Hypothesis uses few ids, so copies and collisions are frequent.
"""

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import finecomb, join, lda, rateless, rda
from tests.oracles.join import Packet
from tests.support.effort import examples
from tests.support.two_points import SCENARIOS, batch_of, captured, packets_of, points
from wirelag import _kernels
from wirelag.estimators.finecomb import Finecomb, FinecombSynopsis
from wirelag.estimators.lda import Lda, LdaSynopsis, tuned
from wirelag.estimators.protocol import Meter
from wirelag.estimators.rda import Rda, cells, copies_of
from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval
from wirelag.stats.moments import bound_ns
from wirelag.stats.row_sums import Rows
from wirelag.synopses.buckets import less
from wirelag.synopses.cache import SINGLE, Cached, CacheMeter, level
from wirelag.synopses.cache import join as join_caches
from wirelag.synopses.crossing import Crossing, joined
from wirelag.synopses.delay_sample import DelaySample
from wirelag.synopses.symbols import decoder as symbol_decoder
from wirelag.synopses.symbols import less as less_words
from wirelag.synopses.symbols import symbols_of

S = TypeVar("S")
Points = tuple[list[Packet], list[Packet]]
Words = npt.NDArray[np.uint64]
WHOLE = Interval(0, 1)
NONE = np.empty(0, np.uint64)

seeds = st.sampled_from([0, 5, 2**64 - 1])
cuts = st.lists(st.integers(0, 60), max_size=3)


@pytest.fixture(scope="module", params=SCENARIOS)
def capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Points:
    up, down = captured(SCENARIOS[request.param], tmp_path_factory.mktemp("twins"))
    return packets_of(up), packets_of(down)


def cut(meter: Meter[S], packets: Sequence[Packet], at: Sequence[int] = ()) -> S:
    """The meter's synopsis of packets that arrive in parts."""
    for start, end in pairwise([0, *sorted(at), max([len(packets), *at])]):
        meter.observe(batch_of(packets[start:end]))
    return meter.cut(WHOLE)


def lasting(packets: Sequence[Packet]) -> PacketBatch:
    """A batch that a meter may keep."""
    batch = batch_of(packets)
    batch.lasts = True
    return batch


def cached(packets: Sequence[Packet], capacity: int = 10**6, seed: int = 0, at: Sequence[int] = ()) -> Cached:
    return cut(CacheMeter(capacity, seed), packets, at)


def entries(cache: Cached) -> list[Packet]:
    return list(zip(cache.ids.tolist(), cache.times_ns.tolist(), strict=True))


def flat(buckets: Sequence[tuple[int, ...]]) -> list[int]:
    """As the kernels store them: all numbers of a bucket, unsigned, bucket after bucket."""
    return [value & 2**64 - 1 for bucket in buckets for value in bucket]


def near(measured: float | None, exact: Fraction | None, scale: Fraction | int = 0) -> bool:
    """Equal within the rounding of floats; a difference is rounded like its larger operand."""
    if measured is None or exact is None:
        return measured is exact
    return abs(Fraction(measured) - exact) <= max(abs(exact), abs(scale)) / 10**12


def says_what_rows_say(crossing: Crossing, banks: lda.Banks, mu: Fraction | None, deviation: str) -> bool:
    """The deviation of a crossing equals that of the twin's rows."""
    std = crossing.std_ns
    variance = None if std is None else std * std
    if deviation == "rows":
        return near(variance, lda.variance(banks, mu))
    pairs = lda.collapsed(banks)
    return near(variance, lda.collapsed_variance(pairs, mu), lda.second_moment(pairs) or 0)


# ---- caches and join ----


@examples(60)
@given(points(), st.integers(1, 20), seeds, cuts)
def test_caches(seen: Points, capacity: int, seed: int, at: list[int]) -> None:
    twins = [join.Cache(capacity, seed).observe(packets) for packets in seen]
    caches = [cached(packets, capacity, seed, at) for packets in seen]
    for cache, twin, packets in zip(caches, twins, seen, strict=True):
        assert (cache.level, entries(cache), cache.packets) == (twin.level, twin.entries, len(packets))
        assert entries(cached(packets, 10**6, seed).at_most(capacity)) == twin.entries
        meter, rest = CacheMeter(capacity, seed), packets[min(at, default=len(packets)) :]
        meter.observe(lasting(packets[: len(packets) - len(rest)]))
        if rest:
            meter.observe(batch_of(rest))
        kept = meter.cut(WHOLE)
        assert (kept.level, entries(kept), kept.packets) == (twin.level, twin.entries, len(packets))
    assert [entries(cache) for cache in level(*caches)] == list(join.levelled(*twins))
    both, added = caches[0].followed_by(caches[1], capacity), join.added(*twins)
    assert (both.level, entries(both)) == (added.level, added.entries)


def check_join(seen: Points, capacity: int, seed: int) -> None:
    twins = [join.Cache(capacity, seed).observe(packets) for packets in seen]
    up, down = (cached(packets, capacity, seed) for packets in seen)
    twin = join.join(*join.levelled(*twins))
    crossing = joined(up, down)
    up, down = level(up, down)
    found, each = join_caches(up.ids, down.ids), 1 << up.level
    assert list(zip(found.up_rows.tolist(), found.down_rows.tolist(), strict=True)) == [pair[:2] for pair in twin.pairs]
    delays_ns = [pair.delay_ns for pair in twin.pairs]
    assert crossing.tail.delays_ns.tolist() == delays_ns
    assert (crossing.sent, crossing.received) == (len(seen[0]), len(seen[1]))
    assert (crossing.used, crossing.sum_ns) == (len(delays_ns), sum(delays_ns))
    for name in ("only_upstream", "only_downstream", "duplicated", "ambiguous", "reordered"):
        assert getattr(crossing, name) == getattr(twin, name) * each, name
    assert entries(up.only(found.up_fate == SINGLE)) == twin.single_upstream
    assert entries(down.only(found.down_fate == SINGLE)) == twin.single_downstream
    if delays_ns:
        mean = Fraction(sum(delays_ns), len(delays_ns))
        variance = sum((delay_ns - mean) ** 2 for delay_ns in delays_ns) / len(delays_ns)
        assert near(crossing.mean_ns, mean)
        assert crossing.std_ns is not None
        assert near(crossing.std_ns**2, variance)
        assert (crossing.min_ns, crossing.max_ns) == (min(delays_ns), max(delays_ns))


@examples(60)
@given(points(), st.sampled_from([5, 20, 1000]), seeds)
def test_join(seen: Points, capacity: int, seed: int) -> None:
    check_join(seen, capacity, seed)


@pytest.mark.parametrize("capacity", [300, 10**6])
def test_join_of_captures(capture: Points, capacity: int) -> None:
    check_join(capture, capacity, 0)


def test_delays_of_any_size_are_summed_exactly() -> None:
    """Delays are signed 64-bit numbers for any times; their sum is an unbounded integer."""
    first, last = -(2**63), 2**63 - 1
    up = [(1, 0), (2, 0), (3, 0), (4, last), (5, first)]
    down = [(1, last), (2, last), (3, first), (4, first), (5, last)]
    crossing = joined(cached(up), cached(down))
    assert crossing.sum_ns == 2 * last + first + 1 - 1
    assert crossing.std_ns is not None


def test_a_cache_full_of_the_rarest_coin_can_still_shrink() -> None:
    """Whoever knows the seed can send many copies of an id that only the last level removes."""

    def unmixed(y: int) -> int:
        y ^= y >> 31 ^ y >> 62
        y = y * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
        y ^= y >> 27 ^ y >> 54
        y = y * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
        return y ^ y >> 30 ^ y >> 60

    rarest = unmixed(0) ^ unmixed(join.coin(0, 5, join.CACHE))
    assert join.coin(rarest, 5, join.CACHE) == 0
    cache = cached([(rarest, time_ns) for time_ns in range(5)], 100, 5)
    for capacity, kept in ((5, 5), (4, 0), (1, 0)):
        smaller = cache.at_most(capacity)
        twin = join.Cache(capacity, 5).observe(entries(cache))
        assert (smaller.level, len(smaller)) == (twin.level, kept)
        assert joined(smaller, smaller).used == kept


# ---- lda ----

SHIFTS = [(0,), (0, 1), (1, 3), (0, 1, 2, 5), (31,)]


def check_lda(seen: Points, of: Lda, at: Sequence[int] = ()) -> None:
    up, down = (cut(of.meter("any"), packets, at) for packets in seen)
    twins = [lda.fill(packets, of.rows, of.shifts, of.seed) for packets in seen]
    assert [up.buckets.tolist(), down.buckets.tolist()] == [flat(buckets) for buckets in twins]
    for synopsis, packets in zip((up, down), seen, strict=True):
        assert entries(synopsis.tail) == join.Cache(of.tail, of.seed).observe(packets).entries
    crossing, banks = of.cross(up, down), lda.usable(*twins, of.rows)
    sampled = list(zip(crossing.tail.sent_ns.tolist(), crossing.tail.delays_ns.tolist(), strict=True))
    same = all(one.packets == other.packets for one, other in zip(*twins, strict=True))
    gone = [[] for _ in banks] if same else lda.unlike(banks, sampled)
    assert crossing.details["unlike_rows"] == sum(map(len, gone))
    banks = [[row for row in bank if row not in out] for bank, out in zip(banks, gone, strict=True)]
    mu = lda.mean(banks)
    assert (crossing.used, crossing.sum_ns) == (lda.used(banks), sum(row.delay_ns for bank in banks for row in bank))
    assert near(crossing.mean_ns, mu)
    assert says_what_rows_say(crossing, banks, mu, of.deviation)
    assert crossing.details["usable_rows"] == sum(map(len, banks))


@examples(80)
@given(points(), st.integers(1, 9), st.sampled_from(SHIFTS), seeds, cuts, st.sampled_from(["rows", "collapse"]))
def test_lda(seen: Points, rows: int, shifts: tuple[int, ...], seed: int, at: list[int], deviation: str) -> None:
    check_lda(seen, Lda(rows, shifts, deviation, 10, seed), at)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(8))
def test_lda_with_packets_of_another_interval(seed: int) -> None:
    """Some rows lost one packet and gained another: both leave out the same rows."""
    draw = random.Random(seed)
    up = [(draw.getrandbits(64), i * 250_000) for i in range(4000)]
    down = [(number, time_ns + 2_000_000 + draw.randrange(500_000)) for number, time_ns in up if draw.random() > 0.02]
    others = [(draw.getrandbits(64), draw.choice((2_000_000, 1_002_000_000))) for _ in range(60)]
    seen = (up, sorted(down + others, key=lambda one: one[1]))
    check_lda(seen, Lda(256, (0,), tail=64, seed=seed))
    of = Lda(256, (0,), tail=64, seed=seed)
    assert of.cross(*(cut(of.meter("any"), packets, ()) for packets in seen)).details["unlike_rows"] > 3


@pytest.mark.every(2)
@pytest.mark.parametrize("deviation", ["rows", "collapse"])
@pytest.mark.parametrize(("rows", "shifts"), [(256, (0, 4, 8, 12)), (1024, (0,)), (64, (2, 4))])
def test_lda_of_captures(capture: Points, rows: int, shifts: tuple[int, ...], deviation: str) -> None:
    check_lda(capture, Lda(rows, shifts, deviation, seed=3))  # type: ignore[arg-type]


@pytest.mark.parametrize("offset_ns", [0, 10**17 + 7, 2**63 - 10**7, -(2**63)])
def test_a_deviation_is_exact_for_any_clock_offset(offset_ns: int) -> None:
    """Rows with one packet each: the mean is up to 2^63 ns, where floats are 2,048 apart."""
    delays_ns = offset_ns + np.random.default_rng(1).integers(0, 10**6, 400)
    rows = Rows(np.ones((1, 400), np.int64), delays_ns.reshape(1, -1), np.ones((1, 400), bool))
    exact = lda.variance([[lda.Row(delay_ns, 1) for delay_ns in delays_ns.tolist()]])
    assert near(rows.variance_ns2(), exact)
    assert rows.sum_ns == sum(delays_ns.tolist())
    largest = Rows(np.ones((1, 2), np.int64), np.full((1, 2), 2**63 - 1), np.ones((1, 2), bool))
    assert largest.variance_ns2() == 0


@examples(40)
@given(points(), st.integers(0, 60))
def test_intervals_of_lda_add_up(seen: Points, at: int) -> None:
    of, packets = Lda(4, (0, 2), tail=6), seen[0]
    parts: list[LdaSynopsis] = [cut(of.meter("any"), part) for part in (packets[:at], packets[at:])]
    added, whole = of.added(*parts), cut(of.meter("any"), packets)
    twins = [lda.fill(part, 4, (0, 2), 0) for part in (packets[:at], packets[at:])]
    assert added.buckets.tolist() == whole.buckets.tolist() == flat(lda.added(*twins))
    assert (entries(added.tail), added.packets) == (entries(whole.tail), len(packets))


@given(st.integers(0, 10**9), st.floats(0, 0.5), st.integers(1, 4096), st.sampled_from([0.5, 1.0]))
def test_tuning_and_bound(packets: int, loss: float, rows: int, alpha: float) -> None:
    assert tuned(packets, (loss,), rows, alpha) == (lda.best_shift(packets, loss, rows, alpha),)
    assert bound_ns(3.0, packets + 1, 0.02) == pytest.approx(lda.bound(3.0, packets + 1, 0.02), rel=1e-12)


# ---- finecomb ----


def check_finecomb(seen: Points, of: Finecomb, at: Sequence[int] = ()) -> None:
    up, down = (cut(of.meter("any"), packets, at) for packets in seen)
    twins = [finecomb.fill(packets, of.rows, of.shift, of.stash, of.seed) for packets in seen]
    for synopsis, twin in zip((up, down), twins, strict=True):
        assert synopsis.buckets.tolist() == flat(twin.buckets)
        stash = list(zip(synopsis.stash_ids.tolist(), synopsis.stash_times_ns.tolist(), strict=True))
        assert stash == twin.stash
    repaired = finecomb.repair(*twins)
    ups, downs = up.buckets.copy(), down.buckets.copy()
    usable, tries = repair(ups, downs, up, down, of)
    assert tries == repaired.masks
    assert np.flatnonzero(usable == 2).tolist() == repaired.repaired
    assert [bool(u) for u in usable] == [pair is not None for pair in repaired.buckets]
    for row, pair in enumerate(repaired.buckets):
        if pair is not None:
            assert (*ups[3 * row :][:3].tolist(), *downs[3 * row :][:3].tolist()) == (*pair[0], *pair[1])
    crossing, banks = of.cross(up, down), finecomb.usable(repaired)
    mu = lda.mean(banks)
    assert (crossing.used, crossing.sum_ns) == (lda.used(banks), sum(row.delay_ns for row in banks[0]))
    assert near(crossing.mean_ns, mu)
    assert says_what_rows_say(crossing, banks, mu, of.deviation)
    assert crossing.details["repaired_rows"] == len(repaired.repaired)


def repair(
    ups: Words, downs: Words, up: FinecombSynopsis, down: FinecombSynopsis, of: Finecomb
) -> tuple[npt.NDArray[np.uint8], int]:
    stashes = up.stash_ids, up.stash_times_ns, down.stash_ids, down.stash_times_ns
    return _kernels.finecomb_repair(ups, downs, *stashes, of.rows, of.seed)


@examples(60)
@given(points(40), st.integers(2, 9), st.integers(0, 2), st.sampled_from([0, 2, 16, 40]), seeds, cuts, st.booleans())
def test_finecomb(seen: Points, rows: int, shift: int, stash: int, seed: int, at: list[int], collapse: bool) -> None:
    check_finecomb(seen, Finecomb(rows, shift, stash, "collapse" if collapse else "rows", 10, seed), at)


@pytest.mark.parametrize(("rows", "shift", "stash"), [(1024, 0, 256), (256, 2, 1024), (512, 0, 0)])
def test_finecomb_of_captures(capture: Points, rows: int, shift: int, stash: int) -> None:
    """The downstream interval ends a little early, so that packets cross its edge."""
    up, down = capture
    check_finecomb((up, down[:-20]), Finecomb(rows, shift, stash, seed=3))


# ---- rda ----


def difference(up: Sequence[rda.Bucket], down: Sequence[rda.Bucket]) -> Words:
    return np.array(flat(rda.difference(up, down)), np.uint64)


def check_rda(seen: Points, banks: int, each: int, seed: int, checked: bool, assisted: bool) -> bool:
    """Filling, decoding and repair; returns whether it is complete."""
    of = Rda(banks, check=checked, seed=seed)
    caches = [cached(packets, seed=seed) for packets in seen]
    numbers = [_kernels.number_copies(cache.ids) for cache in caches]
    assert [own.tolist() for own in numbers] == [join.numbers(packets) for packets in seen]
    filled = [of.filled(own, cache.times_ns, each) for own, cache in zip(numbers, caches, strict=True)]
    twins = [rda.fill(packets, banks, each, seed) for packets in seen]
    assert [words.tolist() for words in filled] == [flat(buckets) for buckets in twins]
    assert less(filled[1], filled[0], 4).tolist() == difference(*twins).tolist()
    decoded = of.decode(*filled, numbers[0] if assisted else NONE)
    own = numbers[0].tolist() if assisted else ()
    twin = rda.decode(rda.difference(*twins), banks, seed, checked, own)
    found = list(zip(decoded.numbers.tolist(), decoded.sides.tolist(), strict=True))
    assert (found, decoded.complete, decoded.left.tolist()) == (twin.found, twin.complete, flat(twin.residual))
    only_up, only_down = (set(a.tolist()) - set(b.tolist()) for a, b in (numbers, numbers[::-1]))
    if not all(x in (only_up if side < 0 else only_down) for x, side in found):
        assert not checked  # a fake
        return False
    ids = np.array(sorted(rda.differing(twin.found, *seen)), np.uint64)
    mine, theirs = (copies_of(cache, own, NONE, ids) for cache, own in zip(caches, numbers, strict=True))
    crossing = of.repaired(*filled, decoded, mine, theirs, (DelaySample.empty(), 0))
    rows = rda.repair(*seen, twin, rda.Layout(banks, banks * each, seed))
    used, sum_ns = lda.used(rows), sum(row.delay_ns for bank in rows for row in bank)
    if twin.complete:
        assert (crossing.used, crossing.sum_ns) == (lda.used(rows[:1]), sum(row.delay_ns for row in rows[0]))
        truth = [pair.delay_ns for pair in join.join(*seen).pairs]
        assert (crossing.used, crossing.sum_ns) == (len(truth), sum(truth))
        assert says_what_rows_say(crossing, rows, rda.mean(rows, complete=True), "rows")
    elif used:
        assert crossing.used == math.ceil(used / banks)
        assert crossing.sum_ns == round(sum_ns * crossing.used / used)
        assert says_what_rows_say(crossing, rows, rda.mean(rows, complete=False), "rows")
    else:
        assert crossing.used == 0
    return twin.complete


@examples(150)
@given(points(), st.integers(2, 4), st.sampled_from([1, 2, 5, 12, 40]), seeds, st.booleans(), st.booleans())
def test_rda(seen: Points, banks: int, each: int, seed: int, checked: bool, assisted: bool) -> None:
    check_rda(seen, banks, each, seed, checked, assisted)


@pytest.mark.parametrize("assisted", [True, False], ids=["with cache", "alone"])
@pytest.mark.parametrize("checked", [True, False], ids=["check", "no check"])
@pytest.mark.parametrize(("banks", "each"), [(3, 150), (3, 12), (2, 300), (2, 60), (4, 100)])
@pytest.mark.every(8)
def test_rda_of_captures(capture: Points, banks: int, each: int, checked: bool, assisted: bool) -> None:
    complete = check_rda(capture, banks, each, 3, checked, assisted)
    assert complete or not checked or banks == 2 or banks * each < 400


@examples(60)
@given(points(), st.integers(2, 4), st.sampled_from([1, 5, 30, 90]), seeds)
def test_srda(seen: Points, places: int, size: int, seed: int) -> None:
    buckets = []
    for packets in seen:
        words = np.zeros(4 * size, np.uint64)
        times_ns = np.array([time_ns for _, time_ns in packets], np.int64)
        _kernels.srda_fill(np.array(join.numbers(packets), np.uint64), times_ns, words, places, seed)
        buckets.append(words)
    twins = [rda.fill_simple(packets, places, size, seed) for packets in seen]
    assert [words.tolist() for words in buckets] == [flat(twin) for twin in twins]
    left = less(buckets[1], buckets[0], 4)
    numbers, sides, complete = _kernels.srda_decode(left, places, seed)
    twin = rda.decode(rda.difference(*twins), places, seed, simple=True)
    assert list(zip(numbers.tolist(), sides.tolist(), strict=True)) == twin.found
    assert (complete, left.tolist()) == (twin.complete, flat(twin.residual))


def check_sizes(seen: Points, seed: int) -> None:
    numbers = [np.array(join.numbers(packets), np.uint64) for packets in seen]
    twins = [rda.strata(packets, seed) for packets in seen]
    strata = []
    for own, twin in zip(numbers, twins, strict=True):
        words = np.zeros(24 * 81 * 3, np.uint64)
        _kernels.strata_fill(own, words, seed)
        assert words.tolist() == [value for buckets in twin for value in flat([bucket[:3] for bucket in buckets])]
        strata.append(words)
    size = rda.strata_estimate(*twins, seed)
    assert _kernels.strata_estimate(less(strata[1], strata[0], 3), seed) == size
    for banks in (2, 3, 4):
        assert math.ceil(cells(size) / banks) == rda.buckets_for(size, banks)
    minima = [_kernels.minhash(own, 6, seed).tolist() for own in numbers]
    assert minima == [rda.minima(packets, 6, seed) for packets in seen]


@examples(20)
@given(points(), seeds)
def test_strata_and_minhash(seen: Points, seed: int) -> None:
    check_sizes(seen, seed)


def test_strata_and_minhash_of_captures(capture: Points) -> None:
    up, down = capture
    check_sizes((up, down), 3)
    check_sizes((up, down[:400]), 3)  # more than the lower strata decode


# ---- rateless ----


def check_rateless(seen: Points, seed: int, size: int, at: Sequence[int]) -> None:
    numbers = [np.array(join.numbers(packets), np.uint64) for packets in seen]
    twins = [rateless.symbols(packets, size, seed) for packets in seen]
    counts = [end - start for start, end in pairwise([0, *sorted(place for place in at if place < size), size])]
    for own, twin in zip(numbers, twins, strict=True):
        few = min(size, _kernels.FIRST_SYMBOLS)
        assert _kernels.rateless_first(own, few, seed).tolist() == flat(twin[:few])
    encoders = [_kernels.RatelessEncoder(own, seed) for own in numbers]
    decoder, complete, taken = _kernels.RatelessDecoder(seed), False, 0
    twin, needed = rateless.decode(*twins, seed)
    for count in counts:
        up, down = (encoder.symbols(count) for encoder in encoders)
        assert [up.tolist(), down.tolist()] == [flat(symbols[taken : taken + count]) for symbols in twins]
        taken += count
        complete = decoder.add(less(down, up, 3))
        assert complete == (twin.is_complete() and taken >= needed)
        assert decoder.symbols == taken
    found = [values.tolist() for values in decoder.found()]
    assert sorted(zip(*found, strict=True)) == sorted(twin.found)
    if complete:
        rows = Rda(rows=16, seed=seed).row_sums(numbers[0], np.array([time_ns for _, time_ns in seen[0]], np.int64))
        assert rows.tolist() == flat(rateless.fill_rows(seen[0], 16, seed))
        crossing = Rda(rateless=True, rows=16, seed=seed).cross(*(cached(packets, seed=seed) for packets in seen))
        banks = rateless.repair_rows(*seen, twin.found, 16, seed)
        assert (crossing.used, crossing.sum_ns) == (lda.used(banks), sum(row.delay_ns for row in banks[0]))
        if crossing.details["difference"] is not None:
            assert says_what_rows_say(crossing, banks, lda.mean(banks), "rows")


@examples(50)
@given(points(), seeds, st.sampled_from([1, 8, 60]), cuts)
def test_rateless(seen: Points, seed: int, size: int, at: list[int]) -> None:
    check_rateless(seen, seed, size, at)


def test_rateless_of_captures(capture: Points) -> None:
    check_rateless(capture, 3, 600, [0, 128, 128, 300])


@examples(30)
@given(points(), seeds)
def test_rateless_with_truncated_symbols(seen: Points, seed: int) -> None:
    """16 bits of checks, 4 of counts, 44 of ids: as agents send them."""
    short = [list({number & (2**44 - 1): time_ns for number, time_ns in packets}.items()) for packets in seen]
    twin = rateless.Decoder(seed, 16, 4)
    for a, b in zip(*(rateless.symbols(packets, 60, seed) for packets in short), strict=True):
        known = rateless.difference(a, b)
        twin.add(known._replace(check=known.check % 2**16, surplus=known.surplus % 16))
    ups, downs = (symbols_of(np.array([number for number, _ in packets], np.uint64), 0, 60, seed) for packets in short)
    decoder = symbol_decoder(seed)
    assert decoder.add(less_words(downs, ups)) == twin.is_complete()
    found = [values.tolist() for values in decoder.found()]
    assert sorted(zip(*found, strict=True)) == sorted(twin.found)
