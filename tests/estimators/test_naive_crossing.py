"""The twins of the two-point estimators, compared with results by hand: the papers' examples and small cases.

Where a figure shows the bucket of a packet, ids are searched whose coins give the same bucket.
"""

import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import count

import pytest

from tests.oracles import finecomb, lda, rateless, rda
from tests.oracles.join import Cache, Crossing, Packet, added, coin, crossings, join, levelled, lz, number, numbers

SEED = 5
EPOCH_NS = 1_700_000_000 * 10**9

# The packets of figures 2 to 4 of the RDA paper: times at the sender and at the receiver.
SENT = {"P1": 70, "P2": 150, "P3": 200, "P4": 250, "P5": 310, "P6": 330}
CAME = {"P1": 110, "P2": 260, "P3": 310, "P4": 390, "P6": 450, "P9": 760}


def search(fits: Callable[[int], bool], taken: set[int]) -> int:
    """The first unused id that fits."""
    return next(x for x in count(1) if x not in taken and fits(x))


def ids_at(wanted: Mapping[str, object], place: Callable[[int], object]) -> dict[str, int]:
    """For each name an id with the wanted place."""
    ids: dict[str, int] = {}
    for name, at in wanted.items():
        ids[name] = search(lambda x, at=at: place(x) == at, set(ids.values()))  # type: ignore[misc]
    return ids


def packets(ids: dict[str, int], times: dict[str, int]) -> list[Packet]:
    return [(ids[name], time_ns) for name, time_ns in times.items() if name in ids]


def traffic(size: int, lost: int, extra: int, seed: int) -> tuple[list[Packet], list[Packet], int]:
    """Packets at two points, some at one only; and the summed delay of those at both."""
    rng = random.Random(seed)
    ids = [rng.getrandbits(64) for _ in range(size + extra)]
    sent = [(x, EPOCH_NS + 1_000 * i) for i, x in enumerate(ids[:size])]
    came = [(x, time_ns + rng.randrange(50_000)) for x, time_ns in sent[lost:]]
    delays_ns = sum(b - a for (_, a), (_, b) in zip(sent[lost:], came, strict=True))
    came += [(x, EPOCH_NS + rng.randrange(10**6)) for x in ids[size:]]
    rng.shuffle(came)
    return sent, came, delays_ns


# Coins and caches


def test_coins_follow_the_law() -> None:
    """With the formula written anew; the inner `mix` of seed 0 and purpose 0 would be 0."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    assert coin(77, 0, 0) == mix(77)
    assert coin(77, 3, 2) == mix(77 ^ mix((3 * 0x9E3779B97F4A7C15 + 2) % 2**64))
    assert (lz(0), lz(1), lz(2**63)) == (64, 63, 0)


@pytest.mark.parametrize("capacity", [1, 2, 7, 64, 1000])
def test_a_cache_has_the_lowest_level_at_which_its_packets_fit(capacity: int) -> None:
    """So neither the order of packets nor merging of caches matters."""
    rng = random.Random(capacity)
    stream = [(rng.randrange(400), time_ns) for time_ns in range(900)]
    z = {x: lz(coin(x, SEED, 1)) for x, _ in stream}
    level = next(level for level in count() if sum(z[x] >= level for x, _ in stream) <= capacity)
    kept = [packet for packet in stream if z[packet[0]] >= level]
    assert Cache(capacity, SEED).observe(stream) == Cache(capacity, SEED, level, kept)
    for cut in (0, 1, 450, 900):
        parts = Cache(capacity, SEED).observe(stream[:cut]), Cache(capacity, SEED).observe(stream[cut:])
        assert added(*parts) == Cache(capacity, SEED, level, kept)


def test_a_cache_step_by_step() -> None:
    zeros = {name: n for n, name in enumerate(("none", "one", "two"))}
    ids = ids_at({**zeros, "none again": 0, "two again": 2}, lambda x: lz(coin(x, SEED, 1)))
    cache = Cache(2, SEED)
    cache.observe([(ids["none"], 0), (ids["one"], 1)])
    assert cache.level == 0
    cache.observe([(ids["none again"], 2)])  # raises the level, and is not kept itself
    assert (cache.level, cache.entries) == (1, [(ids["one"], 1)])
    cache.observe([(ids["none again"], 3), (ids["two"], 4)])
    assert (cache.level, cache.entries) == (1, [(ids["one"], 1), (ids["two"], 4)])
    cache.observe([(ids["two again"], 5)])
    assert (cache.level, cache.entries) == (2, [(ids["two"], 4), (ids["two again"], 5)])
    cache.observe([(ids["two again"], 6)])  # more copies than fit, so none is kept
    assert (cache.level, cache.entries) == (3, [])


def test_levelled_caches_keep_the_same_packets() -> None:
    stream = [(x, x) for x in range(500)]
    small, large = levelled(Cache(20, SEED).observe(stream), Cache(200, SEED).observe(stream))
    assert small == large
    assert 0 < len(small) <= 20


# Join


def test_copies_are_numbered() -> None:
    assert numbers([(9, 0), (8, 1), (9, 2), (9, 3)]) == [9, 8, number(9, 1), number(9, 2)]
    assert len(set(numbers([(9, 0)] * 50))) == 50


def test_join_finds_pairs_losses_duplicates_and_ambiguous_packets() -> None:
    up = [("pair", 10), ("twice", 20), ("lost", 30), ("twice", 40), ("copied", 50), ("half", 60), ("half", 70)]
    down = [("new", 11), ("twice", 22), ("pair", 25), ("copied", 51), ("copied", 52), ("twice", 60), ("half", 90)]
    ids = {name: i for i, name in enumerate(("pair", "twice", "lost", "copied", "half", "new"))}
    joined = join([(ids[name], t) for name, t in up], [(ids[name], t) for name, t in down])
    assert [tuple(pair) for pair in joined.pairs] == [(1, 1, 2), (0, 2, 15), (3, 5, 20)]
    assert joined.only_upstream == 2  # `lost`, and one of `half`
    assert joined.only_downstream == 2  # `new`, and one of `copied`
    assert joined.duplicated == 1
    assert joined.ambiguous == 2
    assert joined.reordered == 1  # `pair` arrived after the first `twice`
    assert joined.single_upstream == [(ids["lost"], 30)]
    assert joined.single_downstream == [(ids["new"], 11)]


def test_delays_are_signed_for_any_epoch() -> None:
    assert [pair.delay_ns for pair in join([(1, 2**63 - 5)], [(1, -(2**63) + 5)]).pairs] == [10]
    assert [pair.delay_ns for pair in join([(1, 100)], [(1, 40)]).pairs] == [-60]


def test_reordering_counts_late_packets() -> None:
    up = [(i, i) for i in range(6)]
    order = [0, 3, 1, 2, 5, 4]
    assert join(up, [(i, 100 + t) for t, i in enumerate(order)]).reordered == 3


def test_packets_across_intervals_count_where_they_were_sent() -> None:
    first = Cache(99, SEED).observe([(1, 0), (2, 10), (3, 20)]), Cache(99, SEED).observe([(1, 5)])
    second = Cache(99, SEED).observe([(4, 100), (6, 110)]), Cache(99, SEED).observe([(3, 101), (4, 103), (7, 104)])
    third = Cache(99, SEED).observe([]), Cache(99, SEED).observe([(2, 200), (6, 201)])
    got = crossings([first, second, third])
    assert got[0] == Crossing(
        0, [5, 81], lost=1, only_downstream=0, duplicated=0, ambiguous=0, reordered=0, undecided=0
    )
    # 2 skipped an interval: lost in the one that sent it, and not counted in the one in which it arrived.
    assert got[1] == Crossing(
        0, [3, 91], lost=0, only_downstream=1, duplicated=0, ambiguous=0, reordered=0, undecided=0
    )
    assert got[2] == Crossing(0, [], lost=0, only_downstream=1, duplicated=0, ambiguous=0, reordered=0, undecided=0)


def test_packets_across_intervals_can_be_ambiguous() -> None:
    first = Cache(99, SEED).observe([(1, 0), (2, 1), (2, 2)]), Cache(99, SEED)
    second = Cache(99, SEED), Cache(99, SEED).observe([(1, 8), (1, 9), (2, 10)])
    got = crossings([first, second])
    assert (got[0].delays_ns, got[0].lost, got[0].ambiguous) == ([], 1, 2)
    assert (got[1].only_downstream, got[1].duplicated) == (1, 1)


def test_packets_dropped_by_the_next_level_are_not_lost() -> None:
    ids = ids_at({"low": 0, "high": 3}, lambda x: lz(coin(x, SEED, 1)))
    first = Cache(99, SEED).observe([(ids["low"], 0), (ids["high"], 1)]), Cache(99, SEED)
    second = Cache(1, SEED, level=1), Cache(1, SEED, level=1).observe([(ids["high"], 9)])
    got = crossings([first, second])[0]
    assert (got.delays_ns, got.lost, got.undecided) == ([8], 0, 1)


# LDA


def test_figure_2_of_lda() -> None:
    """Rows of 5, 10, 2 and 1 packets, of which the second lost one: (60 + 22 + 8) / 8."""
    sums = [(5, 120, 5, 180), (10, 234, 9, 348), (2, 15, 2, 37), (1, 6, 1, 14)]
    sent: list[Packet] = []
    came: list[Packet] = []
    taken: set[int] = set()
    for row, (packets_sent, sum_sent, packets_came, sum_came) in enumerate(sums):
        for n in range(packets_sent):
            x = search(lambda x, row=row: lda.place(x, 4, (0,), SEED) == row, taken)  # type: ignore[misc]
            taken.add(x)
            sent.append((x, sum_sent - 2 * (packets_sent - 1) if n == 0 else 2))
            if n < packets_came:
                came.append((x, sum_came - 3 * (packets_came - 1) if n == 0 else 3))
    upstream, downstream = lda.fill(sent, 4, (0,), SEED), lda.fill(came, 4, (0,), SEED)
    assert upstream == [(5, 120), (10, 234), (2, 15), (1, 6)]
    assert downstream == [(5, 180), (9, 348), (2, 37), (1, 14)]
    banks = lda.usable(upstream, downstream, 4)
    assert banks == [[(60, 5), (22, 2), (8, 1)]]
    assert lda.used(banks) == 8
    assert lda.mean(banks) == Fraction(45, 4)
    # (60 - 56.25)^2 / 5 + (22 - 22.5)^2 / 2 + (8 - 11.25)^2 / 1, over 3 - 1 rows.
    assert lda.variance(banks) == (Fraction("14.0625") / 5 + Fraction("0.25") / 2 + Fraction("10.5625")) / 2
    # In pairs, the first and the third: d = 60 - 22. The last has no partner.
    assert lda.collapsed(banks) == [(38, 7)]
    assert lda.second_moment(lda.collapsed(banks)) == Fraction(38**2, 7)


def test_figure_2_of_rda_shows_what_lda_cannot_see() -> None:
    """161 instead of 104: P5 was lost and P9 is new, so the fourth counts agree."""
    rows = {"P1": 0, "P3": 0, "P2": 1, "P4": 2, "P5": 3, "P9": 3, "P6": 4}
    ids = ids_at(rows, lambda x: lda.place(x, 5, (0,), SEED))
    upstream = lda.fill(packets(ids, SENT), 5, (0,), SEED)
    downstream = lda.fill(packets(ids, CAME), 5, (0,), SEED)
    assert upstream == [(2, 270), (1, 150), (1, 250), (1, 310), (1, 330)]
    assert downstream == [(2, 420), (1, 260), (1, 390), (1, 760), (1, 450)]
    mean = lda.mean(lda.usable(upstream, downstream, 5))
    assert mean is not None
    assert int(mean) == 161
    truth = join(packets(ids, SENT), packets(ids, CAME))
    assert sum(pair.delay_ns for pair in truth.pairs) == 104 * 5


def test_finecomb_leaves_out_the_bucket_that_lda_believes() -> None:
    """The same figure: without a stash 4 rows are whole and give 104; with one, the fourth is repaired, and empty."""
    rows = {"P1": 0, "P3": 0, "P2": 1, "P4": 2, "P5": 3, "P9": 3, "P6": 4}
    ids = ids_at(rows, lambda x: finecomb.Synopsis(5, 0, SEED, 0).row((x, 0)))
    for stash, whole in ((0, 4), (12, 5)):
        upstream = finecomb.fill(packets(ids, SENT), 5, 0, stash, SEED)
        downstream = finecomb.fill(packets(ids, CAME), 5, 0, stash, SEED)
        repaired = finecomb.repair(upstream, downstream)
        assert sum(pair is not None for pair in repaired.buckets) == whole
        assert lda.mean(finecomb.usable(repaired)) == 104


def test_banks_divide_the_packets_by_leading_zeros() -> None:
    shifts = (1, 3, 7)
    for x in range(3000):
        z = lz(coin(x, SEED, 2))
        at = lda.place(x, 16, shifts, SEED)
        assert (None if at is None else at // 16) == (None if z < 1 else 0 if z < 3 else 1 if z < 7 else 2)


def test_intervals_of_lda_can_be_added() -> None:
    stream = [(x % 300, EPOCH_NS + x) for x in range(800)]
    parts = lda.fill(stream[:350], 8, (0, 2), SEED), lda.fill(stream[350:], 8, (0, 2), SEED)
    assert lda.added(*parts) == lda.fill(stream, 8, (0, 2), SEED)


def test_one_row_gives_no_deviation() -> None:
    assert lda.variance([[lda.Row(10, 1)]]) is None
    assert lda.mean([[]]) is None
    two = [lda.Row(10, 1), lda.Row(30, 1)]
    assert lda.variance([two, [lda.Row(20, 1)]]) == 100
    assert lda.variance([two, two]) == Fraction(400, 3)


def test_rows_are_collapsed_within_their_bank() -> None:
    """A row left over in one bank is not paired with the next bank's first."""
    bank = [lda.Row(10, 1), lda.Row(7, 2), lda.Row(100, 3)]
    assert lda.collapsed([bank, bank[:1], [], bank[1:]]) == [(3, 3), (-93, 5)]
    assert lda.collapsed_variance([lda.Row(9, 3)], Fraction(5)) == 27 - 25
    assert lda.collapsed_variance([lda.Row(9, 3)], Fraction(6)) == 0


def test_bound_and_tuning() -> None:
    assert lda.bound(3.0, 18, 2 * 2.718281828459045**-9) == pytest.approx(3.0)
    assert lda.best_probability(10**6, 0.001, 1023) == 1
    assert lda.best_shift(10**6, 0.1, 1000) == 7  # 1/100: nearer to 2^-7 than to 2^-6
    assert lda.best_shift(100, 0.0, 16) == 0


# FineComb


def test_the_stash_has_the_first_and_the_last() -> None:
    stream = [(x, x) for x in range(100)]
    assert finecomb.fill(stream, 4, 0, 6, SEED).stash == [(x, x) for x in (0, 1, 2, 97, 98, 99)]
    for size in range(8):
        assert finecomb.fill(stream[:size], 4, 0, 6, SEED).stash == (
            stream[:size] if size < 7 else stream[:3] + stream[4:7]
        )


def test_repair_removes_packets_across_the_edges() -> None:
    """One row. Two packets came from the interval before and two were still in flight when it ended."""
    sent = [(coin(i, 0, 0), 10 * i) for i in range(2, 22)]
    came = [(coin(i, 0, 0), 10 * i + 4) for i in range(20)]
    repaired = finecomb.repair(finecomb.fill(sent, 1, 0, 8, SEED), finecomb.fill(came, 1, 0, 8, SEED))
    assert repaired.repaired == [0]
    assert finecomb.usable(repaired) == [[(4 * 18, 18)]]
    # A packet lost in the middle is in no stash and cannot be repaired.
    broken = finecomb.repair(finecomb.fill(sent, 1, 0, 8, SEED), finecomb.fill(came[:9] + came[10:], 1, 0, 8, SEED))
    assert broken.buckets == [None]
    assert broken.masks == 2**8 - 1


# RDA


def test_figures_3_and_4_of_rda() -> None:
    """Five buckets, two for each packet, all damaged; after repair 820 / 8 = 102.5. P3, P5 are lost, P9 is new.

    The places of P1, P2, P4 and P6 follow from the sums of figure 4; for the others the text says only that they
    damage all buckets.
    """
    cells = {
        "P1": {0, 1},
        "P6": {1, 4},
        "P4": {2, 3},
        "P2": {3, 4},
        "P3": {0, 2},
        "P5": {1, 3},
        "P9": {3, 4},
    }
    layout = rda.Layout(2, 5, SEED, simple=True)
    ids = ids_at(cells, lambda x: set(layout.places(x)))
    sent = packets(ids, SENT)
    came = packets(ids, {name: time_ns for name, time_ns in CAME.items() if name != "P3"})
    upstream, downstream = rda.fill_simple(sent, 2, 5, SEED), rda.fill_simple(came, 2, 5, SEED)
    difference = rda.difference(upstream, downstream)
    assert all(cell != rda.EMPTY for cell in difference)
    decoded = rda.decode(difference, 2, SEED, simple=True)
    assert decoded.complete
    assert sorted(decoded.found) == sorted([(ids["P3"], -1), (ids["P5"], -1), (ids["P9"], 1)])
    banks = rda.repair(sent, came, decoded, layout)
    assert banks == [[(110 - 70, 1), (560 - 400, 2), (390 - 250, 1), (650 - 400, 2), (710 - 480, 2)]]
    assert rda.mean(banks, decoded.complete) == Fraction("102.5")
    # "However, the ground-truth standard deviation is 43.49": the collapse subtracts P1 and P4 from themselves.
    assert lda.second_moment(lda.collapsed(banks)) == Fraction((450 - 330) ** 2 + (260 - 150) ** 2, 6)
    assert lda.collapsed_variance(lda.collapsed(banks), Fraction("102.5")) == 0


@pytest.mark.parametrize("banks", [2, 3, 4])
def test_a_decoded_result_is_exact(banks: int) -> None:
    sent, came, delays_ns = traffic(2000, lost=30, extra=20, seed=banks)
    upstream, downstream = (rda.fill(entries, banks, 400, SEED) for entries in (sent, came))
    decoded = rda.decode(rda.difference(upstream, downstream), banks, SEED)
    assert decoded.complete
    joined = join(sent, came)
    lost = [(x, -1) for x, _ in joined.single_upstream]
    assert sorted(decoded.found) == sorted(lost + [(x, 1) for x, _ in joined.single_downstream])
    rows = rda.repair(sent, came, decoded, rda.Layout(banks, banks * 400, SEED))
    assert rda.mean(rows, complete=True) == Fraction(delays_ns, 1970)
    assert all(sum(row.packets for row in bank) == 1970 for bank in rows)


def test_two_packets_in_the_same_two_buckets_need_the_cache() -> None:
    """Peeling cannot separate them; the cache upstream resolves them by a look-up."""
    layout = rda.Layout(2, 16, SEED)
    ids = ids_at({"a": [3, 9], "b": [3, 9], "c": [3, 9], "d": [5, 12]}, layout.places)
    sent = [(ids["d"], 1), (ids["a"], 2), (ids["b"], 3)]
    for came, other in (
        ([(ids["d"], 9)], (ids["b"], -1)),
        ([(ids["d"], 9), (ids["b"], 5), (ids["c"], 7)], (ids["c"], 1)),
    ):
        difference = rda.difference(rda.fill(sent, 2, 8, SEED), rda.fill(came, 2, 8, SEED))
        alone = rda.decode(difference, 2, SEED)
        assert (alone.found, alone.complete, alone.residual) == ([], False, difference)
        with_cache = rda.decode(difference, 2, SEED, own=numbers(sent))
        assert with_cache.complete
        assert with_cache.found == [(ids["a"], -1), other]
        assert rda.mean(rda.repair(sent, came, with_cache, layout), complete=True) is not None


def test_without_check_a_fake_repeats() -> None:
    """Two were lost and one is new, all in the same two buckets, and their XOR passes for a packet.

    Removed from one bucket it appears in another. When it is found there again, it is known to be a fake.
    """
    layout = rda.Layout(2, 16, SEED, checked=False)
    ids = ids_at({"a": [3, 9], "b": [3, 9]}, layout.places)
    both = ids["a"] ^ ids["b"]
    for fake_at in ([3, 12], [3, 9]):

        def fits(x: int, fake_at: list[int] = fake_at) -> bool:
            return layout.places(x) == [3, 9] and layout.places(both ^ x) == fake_at

        c = search(fits, set(ids.values()))
        sent, came = [(ids["a"], 1), (ids["b"], 2)], [(c, 5)]
        difference = rda.difference(rda.fill(sent, 2, 8, SEED), rda.fill(came, 2, 8, SEED))
        decoded = rda.decode(difference, 2, SEED, checked=False)
        assert decoded.found == [(both ^ c, -1)]
        # The worst case: no packet is left, and all is wrong; only the checks, which are not used, remain. No point has
        # such a packet, so nothing is repaired or used.
        assert all((cell.ids, cell.surplus) == (0, 0) for cell in decoded.residual) == (fake_at == [3, 9])
        assert not decoded.complete
        assert rda.repair(sent, came, decoded, layout) == [[], []]
        assert rda.decode(difference, 2, SEED).found == []


def test_with_a_cache_a_repeated_fake_ends_decoding() -> None:
    """Small buckets, no check, many packets at both points: wrong guesses must not loop."""
    ended = 0
    for seed in range(60):
        sent, came, _ = traffic(40, lost=6, extra=6, seed=seed)
        upstream, downstream = rda.fill(sent, 2, 8, SEED), rda.fill(came, 2, 8, SEED)
        difference = rda.difference(upstream, downstream)
        decoder = rda.Decoder(difference, rda.Layout(2, 16, SEED, checked=False))
        decoder.peel()
        decoder.peel_with(numbers(sent))
        found = [x for x, _ in decoder.found]
        assert len(found) <= 16
        assert len(set(found)) == len(found)
        decoded = rda.decode(difference, 2, SEED, checked=False, own=numbers(sent))
        assert decoded.found == decoder.found
        ended += decoder.fake
        assert not (decoder.fake and decoded.complete)
    assert ended > 0


def test_copies_are_removed_where_the_points_disagree() -> None:
    """2 was sent twice and lost once, so the pair is ambiguous. 1 was sent twice and arrived twice."""
    sent = [(1, 0), (2, 10), (1, 20), (2, 30), (3, 40)]
    came = [(1, 5), (1, 27), (2, 38), (3, 49)]
    upstream, downstream = rda.fill(sent, 3, 30, SEED), rda.fill(came, 3, 30, SEED)
    decoded = rda.decode(rda.difference(upstream, downstream), 3, SEED)
    assert decoded.found == [(number(2, 1), -1)]
    assert rda.mean(rda.repair(sent, came, decoded, rda.Layout(3, 90, SEED)), complete=True) == Fraction(5 + 7 + 9, 3)


def test_strata_count_a_small_difference_exactly_and_a_large_one_roughly() -> None:
    """The stratum that fails has about 50 packets or more, the others about as many: one over its root is 14%."""
    for lost, extra in ((0, 0), (3, 4), (900, 700)):
        sent, came, _ = traffic(3000, lost, extra, seed=lost)
        estimate = rda.strata_estimate(rda.strata(sent, SEED), rda.strata(came, SEED), SEED)
        assert estimate == pytest.approx(lost + extra, rel=0 if lost < 10 else 3 * 0.18)


def test_minhash() -> None:
    sent, came, _ = traffic(400, lost=100, extra=100, seed=3)
    one, other = rda.minima(sent, 256, SEED), rda.minima(came, 256, SEED)
    assert rda.minhash_estimate(one, one, 800) == 0
    # J = 300/500, with a deviation of sqrt(.6 * .4 / 256) = 0.031; d changes by -2 / (1 + J)^2 * 800 = -625 per J.
    assert float(rda.minhash_estimate(one, other, 800)) == pytest.approx(200, abs=4 * 625 * 0.031)


def test_sizes() -> None:
    assert rda.buckets_for(0, 3) == 341
    assert rda.buckets_for(10_000, 4) == (18_000 + 96) // 4


# Rateless


@pytest.mark.parametrize(
    ("i", "r", "j"), [(0, 2**32, 1), (0, 1, 92681), (4, 2**31, 7), (0, 2**32 // 3, 2), (7, 2**32 - 1, 8)]
)
def test_the_next_symbol(i: int, r: int, j: int) -> None:
    assert rateless.following(i, r) == j
    assert (j + 1) * (j + 2) * r > (i + 1) * (i + 2) * 2**32
    assert j == i + 1 or j * (j + 1) * r <= (i + 1) * (i + 2) * 2**32


def test_a_number_is_in_symbol_i_with_probability_2_over_i_plus_2() -> None:
    size = 4000
    symbols = rateless.symbols([(x, 0) for x in range(size)], 60, SEED)
    for i, symbol in enumerate(symbols):
        share = 2 / (i + 2)
        assert symbol.packets == pytest.approx(size * share, abs=4.5 * (size * share * (1 - share)) ** 0.5)


def test_rateless_symbols_decode_without_knowing_the_size() -> None:
    sent, came, delays_ns = traffic(1000, lost=60, extra=40, seed=8)
    decoder, used = rateless.decode(rateless.symbols(sent, 400, SEED), rateless.symbols(came, 400, SEED), SEED)
    assert decoder.is_complete()
    assert used < 200  # 1.45 for each on average
    joined = join(sent, came)
    lost = [(x, -1) for x, _ in joined.single_upstream]
    assert sorted(decoder.found) == sorted(lost + [(x, 1) for x, _ in joined.single_downstream])
    rows = rateless.repair_rows(sent, came, decoder.found, 50, SEED)
    assert lda.mean(rows) == Fraction(delays_ns, 940)
    nothing, used = rateless.decode(rateless.symbols(sent, 4, SEED), rateless.symbols(sent, 4, SEED), SEED)
    assert (nothing.is_complete(), nothing.found, used) == (True, [], 1)
