"""RDA: exact once decoded, decoded as often as theory predicts, marked where it is not, and always finite.

Tolerances come from theory: shares of decodes are binomial. A deviation between R rows (less one for each bank) has a
relative standard deviation of 1/sqrt(2 R). The mean over usable buckets, a share u of k banks with n packets each, has
a standard error of sigma * sqrt((1 - u)/(k u n)).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.effort import ALONE
from tests.support.two_points import EPOCH_NS
from wirelag import _kernels
from wirelag.estimators.rda import Ask, Rda
from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval
from wirelag.synopses.buckets import less
from wirelag.synopses.cache import Cached
from wirelag.synopses.crossing import Crossing

Words = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]
NONE = np.empty(0, np.uint64)
MEAN_NS = 50_000
PAPER = Rda(banks=2, buckets=5000, check=False, cache_assisted=False)
THREE = Rda(buckets=5000, cache_assisted=False)


def fresh(rng: np.random.Generator, count: int) -> Words:
    return rng.integers(0, 2**64, count, dtype=np.uint64)


def weibull_ns(rng: np.random.Generator, count: int) -> Times:
    return np.rint(rng.weibull(0.6, count) * (MEAN_NS / math.gamma(1 + 1 / 0.6))).astype(np.int64)


def jitter_ns(rng: np.random.Generator, count: int) -> Times:
    return np.rint(rng.normal(100_000, 5_000, count)).astype(np.int64)


@dataclass(frozen=True)
class Points:
    """Packets of two points; the delays are those of packets that both saw."""

    up: Cached
    down: Cached
    delays_ns: Times

    @classmethod
    def apart(
        cls, count: int, difference: int, seed: int, delays: Callable[[np.random.Generator, int], Times] = weibull_ns
    ) -> "Points":
        """Half of the difference is seen upstream only, half downstream only."""
        rng = np.random.default_rng(seed)
        ids, sent_ns, delays_ns = fresh(rng, count), EPOCH_NS + np.arange(count) * 1000, delays(rng, count)
        lost = np.zeros(count, bool)
        lost[rng.choice(count, difference // 2, replace=False)] = True
        more = difference - difference // 2
        down_ids = np.concatenate((fresh(rng, more), ids[~lost]))
        down_ns = np.concatenate((EPOCH_NS + rng.integers(0, count * 1000, more), (sent_ns + delays_ns)[~lost]))
        return cls(
            Cached(ids, sent_ns, packets=count, seed=seed),
            Cached(down_ids, down_ns, packets=len(down_ids), seed=seed),
            delays_ns[~lost],
        )

    def crossed(self, estimator: Rda) -> Crossing:
        return replace(estimator, seed=self.up.seed).cross(self.up, self.down)

    def is_exact(self, crossing: Crossing) -> bool:
        return (crossing.sum_ns, crossing.used) == (int(self.delays_ns.sum()), len(self.delays_ns))


def binomial(share: float, runs: int) -> float:
    """Four standard errors of a share."""
    return 4 * math.sqrt(share * (1 - share) / runs)


# ---- exactness, and its frequency ----


@pytest.mark.parametrize("estimator", [THREE, Rda(), Rda(banks=4), Rda(rateless=True), Rda(banks=2)])
@pytest.mark.parametrize("difference", [0, 1, 37, 1000])
def test_the_mean_is_exact(estimator: Rda, difference: int) -> None:
    points = Points.apart(10_000, difference, difference)
    crossing = points.crossed(estimator)
    assert crossing.details["decoded"]
    assert crossing.details["difference"] == difference  # decoded, not sent packet by packet
    assert points.is_exact(crossing)
    assert crossing.only_upstream == difference // 2
    assert crossing.only_downstream == difference - difference // 2


def test_three_banks_are_exact_at_4000_of_5000_buckets() -> None:
    """A result is exact or marked as not exact. 98.5% decode, measured over 10,000 other runs."""
    runs, decoded = 40, 0
    for seed in range(runs):
        points = Points.apart(8_000, 4000, seed)
        crossing = points.crossed(THREE)
        decoded += crossing.details["decoded"]
        assert points.is_exact(crossing) == crossing.details["decoded"]
    assert decoded / runs > 0.985 - binomial(0.985, runs)


def decoded_share(estimator: Rda, difference: int, runs: int) -> float:
    """Packets at both points cancel out of buckets, and are left out here."""
    complete = 0
    for seed in range(runs):
        rng, seeded = np.random.default_rng(seed), replace(estimator, seed=seed)
        each = -(-5000 // estimator.banks)
        words = [
            seeded.filled(fresh(rng, difference // 2), np.zeros(difference // 2, np.int64), each) for _ in range(2)
        ]
        complete += seeded.decode(*words).complete
    return complete / runs


def test_three_banks_decode_4000_of_5000_buckets() -> None:
    """At least 95%; enough runs that 98.5% are nine standard errors above it."""
    assert decoded_share(THREE, 4000, 1000) >= 0.95


def test_two_banks_have_the_papers_transition() -> None:
    """Two banks of m decode d with sqrt(1 - (d/m)^2), less the 1% stopped by a fake; none beyond m."""
    runs = 400
    shares = {d: decoded_share(PAPER, d, runs) for d in (1000, 2000, 3000)}
    for d in (1000, 2000):
        theory = math.sqrt(1 - (d / 2500) ** 2)
        assert abs(shares[d] - theory) < binomial(theory, runs) + 0.02
    assert shares[1000] > 0.85
    assert shares[3000] < 0.05
    assert decoded_share(THREE, 3000, 100) > 0.95


@pytest.mark.every(2)
@pytest.mark.parametrize("difference", [100, 300, 1000, 3000, 10_000])
def test_rateless_symbols_are_few(difference: int) -> None:
    rng, used, runs = np.random.default_rng(difference), 0, max(3, 20_000 // difference)
    step = max(1, difference // 100)
    for seed in range(runs):
        up, down = (_kernels.RatelessEncoder(fresh(rng, difference // 2), seed) for _ in range(2))
        decoder = _kernels.RatelessDecoder(seed)
        while not decoder.add(less(down.symbols(step), up.symbols(step), 3)):
            assert decoder.symbols < 4 * difference
        used += decoder.symbols
    assert 1 < used / runs / difference < 1.5


def test_decoding_is_fast() -> None:
    """10,000 differences are decoded in less time than one point needs to fill its buckets with 200,000 packets.

    Filling is a single pass; decoding that is not linear would take far longer.
    """
    rng = np.random.default_rng(1)
    packets, each = fresh(rng, 200_000), 6032
    times_ns, rda = np.zeros(len(packets), np.int64), Rda()
    up, down = (rda.filled(fresh(rng, 5000), times_ns[:5000], each) for _ in range(2))
    encoders = [_kernels.RatelessEncoder(fresh(rng, 5000), 0) for _ in range(2)]
    symbols = less(encoders[1].symbols(14_500), encoders[0].symbols(14_500), 3)

    def seconds(work: Callable[[], Any]) -> float:
        begun = time.process_time()
        work()
        return time.process_time() - begun

    filling = min(seconds(lambda: rda.filled(packets, times_ns, each)) for _ in range(5))
    assert rda.decode(up, down).complete
    close = 1 if ALONE else 5  # other processes affect the caches of the two differently
    assert min(seconds(lambda: rda.decode(up, down)) for _ in range(5)) < close * filling
    assert _kernels.RatelessDecoder(0).add(symbols)
    assert min(seconds(lambda: _kernels.RatelessDecoder(0).add(symbols)) for _ in range(3)) < 10 * close * filling


# ---- the deviation ----


def deviations(estimator: Rda, delays: Callable[[np.random.Generator, int], Times]) -> list[float]:
    """Relative errors of ten runs."""
    found = []
    for seed in range(10):
        points = Points.apart(20_000, 500, seed, delays)
        crossing = points.crossed(estimator)
        assert crossing.details["difference"] == 500  # decoded, not sent packet by packet
        assert crossing.std_ns is not None
        found.append(crossing.std_ns / float(points.delays_ns.std()) - 1)
    return found


def passes(errors: list[float], rows: int) -> bool:
    """No error beyond four standard deviations, nor their mean beyond four standard errors."""
    sd = math.sqrt(1 / (2 * rows))
    return max(abs(e) for e in errors) < 4 * sd and abs(sum(errors)) < 4 * sd * math.sqrt(len(errors))


def test_deviation_between_rows() -> None:
    each = -(-5000 // 3)
    assert passes(deviations(THREE, weibull_ns), 3 * (each - 1))
    assert passes(deviations(THREE, jitter_ns), 3 * (each - 1))
    assert passes(deviations(Rda(rateless=True), jitter_ns), 1023)


def test_the_papers_collapse_drowns_in_the_mean() -> None:
    """F - mean^2 has a standard deviation of mean^2 sqrt(2/pairs): here 11 times the variance of delays."""
    errors = deviations(replace(THREE, deviation="collapse"), jitter_ns)
    assert not passes(errors, 3 * (-(-5000 // 3) - 1))
    assert max(abs(e) for e in errors) > 0.5


# ---- undecoded differences ----


@pytest.mark.every(2)
@pytest.mark.parametrize(("estimator", "difference"), [(PAPER, 3000), (PAPER, 6000), (THREE, 6000)])
def test_an_undecoded_difference_is_reported(estimator: Rda, difference: int) -> None:
    scores, details = [], []
    for seed in range(12):
        points = Points.apart(30_000, difference, seed)
        crossing = points.crossed(estimator)
        assert crossing.mean_ns is not None
        share = crossing.used / len(points.delays_ns)
        assert 0 < share < 1
        error = points.delays_ns.std() * math.sqrt((1 - share) / (estimator.banks * crossing.used))
        scores.append((crossing.mean_ns - points.delays_ns.mean()) / error)
        details.append(crossing.details["decoded"])
    assert not any(details)
    assert max(abs(score) for score in scores) < 5
    assert abs(sum(scores)) < 4 * math.sqrt(len(scores))


# ---- a cache smaller than the packets ----


def cached_by_meter(estimator: Rda, cached: Cached) -> Cached:
    meter = estimator.meter("upstream")
    for part in np.array_split(np.arange(len(cached)), 7):
        meter.observe(PacketBatch({"time_ns": cached.times_ns[part], "packet_id": cached.ids[part]}))
    return meter.cut(Interval(0, 0))


@pytest.mark.parametrize("rateless", [False, True])
def test_both_points_keep_the_same_share(rateless: bool) -> None:
    """With a byte limit, levels differ only if a point saw more; counts are scaled, with their binomial error."""
    off = 0
    for seed in range(10):
        points = Points.apart(60_000, 6000, seed)
        estimator = Rda(memory=32 * 10_000, seed=seed, rateless=rateless)
        up, down = (cached_by_meter(estimator, cached) for cached in (points.up, points.down))
        assert max(len(up), len(down)) <= 10_000
        crossing = estimator.cross(up, down)
        level = max(up.level, down.level)
        assert level >= 3
        assert crossing.details["decoded"]
        assert crossing.details["share"] == 2.0**-level
        share = 2.0**-level
        for counted in (crossing.only_upstream, crossing.only_downstream):
            assert counted is not None
            assert abs(counted - 3000) < 4 * math.sqrt(3000 * (1 - share) / share)
        expected = len(points.delays_ns) * share
        assert abs(crossing.used - expected) < 4 * math.sqrt(expected)
        assert crossing.mean_ns is not None
        off += abs(crossing.mean_ns - points.delays_ns.mean()) > 2 * points.delays_ns.std() / math.sqrt(crossing.used)
    assert off <= 3  # ten runs, at two standard errors: more with probability 0.1%


def test_kept_packets_are_exact() -> None:
    points = Points.apart(40_000, 2000, 5)
    estimator = Rda(memory=32 * 10_000, seed=5)
    up, down = (cached_by_meter(estimator, cached) for cached in (points.up, points.down))
    crossing = estimator.cross(up, down)
    up, down = (cached.at_level(max(up.level, down.level)) for cached in (up, down))
    sent_ns = dict(zip(up.ids.tolist(), up.times_ns.tolist(), strict=True))
    delays = [t - sent_ns[i] for i, t in zip(down.ids.tolist(), down.times_ns.tolist(), strict=True) if i in sent_ns]
    assert (crossing.used, crossing.sum_ns) == (len(delays), sum(delays))


# ---- copies and hostile peers ----


MILLION = 10**6


@pytest.mark.parametrize(
    ("rateless", "up_copies", "down_copies", "used"),
    [
        (False, MILLION, MILLION, MILLION),
        (False, MILLION, MILLION - 1, 0),
        (False, MILLION, 1, 0),
        (True, 100_000, 99_999, 0),
        pytest.param(True, MILLION, MILLION - 1, 0, marks=pytest.mark.acceptance),
        pytest.param(True, MILLION, MILLION, MILLION, marks=pytest.mark.acceptance),
        pytest.param(True, MILLION, 1, 0, marks=pytest.mark.acceptance),
    ],
)
def test_one_id_a_million_times(rateless: bool, up_copies: int, down_copies: int, used: int) -> None:
    sides = [
        Cached(np.full(n, 7, np.uint64), EPOCH_NS + np.arange(n) + later, packets=n)
        for n, later in ((up_copies, 0), (down_copies, 5000))
    ]
    crossing = Rda(rateless=rateless).cross(*sides)
    assert crossing.used == used
    assert crossing.sum_ns == 5000 * used
    assert crossing.only_upstream == up_copies - down_copies
    assert crossing.ambiguous == (0 if used else down_copies)


def test_retransmissions_are_removed() -> None:
    """Ids with equally many copies at both points count, copy by copy; the others are ambiguous."""
    rng = np.random.default_rng(3)
    ids = fresh(rng, 20_000)
    again = ids[:600]  # one copy of the first 300 is lost
    sent = np.concatenate((ids, again)), EPOCH_NS + np.arange(20_600) * 1000
    delays_ns = weibull_ns(rng, 20_600)
    arrived = np.arange(20_600) >= 300
    order = np.argsort((sent[1] + delays_ns)[arrived], kind="stable")
    down = sent[0][arrived][order], (sent[1] + delays_ns)[arrived][order]
    crossing = Rda().cross(Cached(*sent, packets=20_600), Cached(*down, packets=20_300))
    sure = arrived & ~np.isin(sent[0], ids[:300])
    assert crossing.details["decoded"]
    assert crossing.used == sure.sum()
    assert crossing.sum_ns == delays_ns[sure].sum()
    assert crossing.ambiguous == 300


def garbage(rng: np.random.Generator, ask: Ask, own: Cached) -> dict[str, Any]:
    """Answers of the right shape with random content."""

    def words(count: int) -> Words:
        return fresh(rng, count)

    def small(count: int) -> Words:
        return rng.integers(-2, 3, count).astype(np.uint64)

    tail = {"tail_ids": words(9), "tail_times_ns": rng.integers(0, 2**60, 9), "tail_level": 0, "tail_packets": 9}

    def cells(count: int) -> dict[str, Words]:
        return {"bucket_ids": words(count), "bucket_checks": words(count), "bucket_counts": small(count)}

    if ask.what == "about":
        return {"level": 0, "packets": 20_000, "entries": int(rng.integers(0, 20_000))}
    if ask.what == "strata":
        return cells(24 * 81)
    if ask.what == "buckets":
        return {**cells(ask.count * 3), "bucket_sums": words(ask.count * 3), **tail}
    if ask.what == "symbols":
        return {**cells(ask.count), "row_counts": small(1024), "row_sums": words(1024), **tail}
    if ask.what == "times":
        ids = np.concatenate((ask.numbers[:50], words(5), own.ids[:5]))
        return {"ids": ids, "times_ns": rng.integers(-(2**62), 2**62, len(ids))}
    return {"ids": words(20), "times_ns": rng.integers(0, 2**60, 20), "level": 0, "packets": 20}


@pytest.mark.parametrize("estimator", [Rda(), Rda(rateless=True), replace(THREE, check=False)])
def test_a_conversation_with_a_hostile_peer_ends(estimator: Rda) -> None:
    rng, own = np.random.default_rng(4), Points.apart(2000, 0, 0).up
    for _ in range(30):
        talk, crossing = estimator.converse(own), None
        ask = next(talk)
        for _ in range(40):
            try:
                ask = talk.send(garbage(rng, ask, own))
            except StopIteration as end:
                crossing = end.value
                break
        assert isinstance(crossing, Crossing)
        assert crossing.report("rda").packets >= 0


@pytest.mark.parametrize("estimator", [Rda(), Rda(rateless=True)])
@pytest.mark.parametrize(
    "lie",
    [{"entries": 2**40, "packets": 2**41}, {"level": 200}, {"entries": -1}, {"entries": 11, "packets": 10}],
    ids=str,
)
def test_a_hostile_peer_s_counts_are_not_trusted(estimator: Rda, lie: dict[str, int]) -> None:
    talk = estimator.converse(Points.apart(20_000, 0, 0).up)
    next(talk)
    with pytest.raises(ValueError, match="cannot have"):
        talk.send({"level": 0, "packets": 10_000, "entries": 10_000} | lie)


@pytest.mark.parametrize("estimator", [Rda(), Rda(rateless=True)])
def test_fewer_values_than_requested_end_a_conversation(estimator: Rda) -> None:
    talk = estimator.converse(Points.apart(20_000, 0, 0).up)
    next(talk)
    talk.send({"level": 0, "packets": 20_000, "entries": 20_000})
    nothing = np.empty(0, np.uint64)
    with pytest.raises(ValueError, match="sent 0 bucket_ids"):
        talk.send(dict.fromkeys(("bucket_ids", "bucket_checks", "bucket_counts", "row_counts", "row_sums"), nothing))


# ---- long runs ----


@pytest.mark.acceptance
@pytest.mark.parametrize("difference", [1000, 4000, 10_000])
def test_a_million_packets(difference: int) -> None:
    for seed in range(3):
        points = Points.apart(1_000_000, difference, seed)
        for estimator in (Rda(), Rda(rateless=True)):
            assert points.is_exact(points.crossed(estimator))
        if difference <= 4000:
            crossing = points.crossed(THREE)
            assert points.is_exact(crossing) == crossing.details["decoded"]


@pytest.mark.acceptance
def test_shares_of_decodes_closely() -> None:
    runs = 4000
    for d in (500, 1000, 1500, 2000):
        theory = math.sqrt(1 - (d / 2500) ** 2)
        share = decoded_share(replace(PAPER, check=True), d, runs)
        assert abs(share - theory) < binomial(theory, runs) + 0.01  # theory assumes very many buckets
    assert decoded_share(THREE, 4000, runs) >= 0.95
