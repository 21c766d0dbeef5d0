"""FineComb: it detects errors that LDA does not, repairs the edges of an interval, and limits its effort.

Tolerances come from theory: the mean over usable rows, a share u of n packets, has a standard error of
sigma * sqrt((1 - u)/(u n)), as a mean of packets drawn without replacement.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.two_points import EPOCH_NS, SECOND_NS
from wirelag import _kernels
from wirelag.estimators.finecomb import Finecomb, FinecombSynopsis
from wirelag.estimators.lda import Lda, LdaSynopsis
from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval
from wirelag.synopses.crossing import Crossing

Words = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]
MOST_TRIES = 1 << 22
DELAY_NS = 50_000


def fresh(rng: np.random.Generator, count: int) -> Words:
    return rng.integers(0, 2**64, count, dtype=np.uint64)


def batch(ids: Words, times_ns: Times) -> PacketBatch:
    return PacketBatch({"time_ns": times_ns, "packet_id": ids})


def fine(estimator: Finecomb, packets: PacketBatch) -> FinecombSynopsis:
    meter = estimator.meter("upstream")
    meter.observe(packets)
    return meter.cut(Interval(0, 0))


def rough(estimator: Lda, packets: PacketBatch) -> LdaSynopsis:
    meter = estimator.meter("upstream")
    meter.observe(packets)
    return meter.cut(Interval(0, 0))


@dataclass(frozen=True)
class Points:
    """One interval of a second, by the clock: packets in flight at its edges are seen at one point only."""

    up: PacketBatch
    down: PacketBatch
    delays_ns: Times  # packets that both points saw

    @classmethod
    def by_clock(
        cls, count: int, seed: int, lost: int = 0, jitter_ns: float = 10_000, delay_ns: int = DELAY_NS
    ) -> "Points":
        """Packets sent evenly from before the interval until after it."""
        rng = np.random.default_rng(seed)
        gap_ns = SECOND_NS // count
        more = 20 * delay_ns // gap_ns + 10
        sent_ns = EPOCH_NS + np.arange(-more, count + more) * gap_ns
        ids, delays_ns = (
            fresh(rng, len(sent_ns)),
            delay_ns + np.rint(rng.exponential(jitter_ns, len(sent_ns))).astype(int),
        )
        arrives_ns = sent_ns + delays_ns
        arrived = np.ones(len(ids), bool)
        arrived[rng.choice(np.arange(more, count + more), lost, replace=False)] = False
        up = (sent_ns >= EPOCH_NS) & (sent_ns < EPOCH_NS + SECOND_NS)
        down = arrived & (arrives_ns >= EPOCH_NS) & (arrives_ns < EPOCH_NS + SECOND_NS)
        order = np.argsort(arrives_ns[down], kind="stable")
        return cls(
            batch(ids[up], sent_ns[up]),
            batch(ids[down][order], arrives_ns[down][order]),
            delays_ns[up & down].astype(np.int64),
        )

    def crossed(self, estimator: Finecomb) -> Crossing:
        return estimator.cross(fine(estimator, self.up), fine(estimator, self.down))

    def score(self, crossing: Crossing) -> float:
        """The error of the mean, in standard errors."""
        assert crossing.mean_ns is not None
        share = crossing.used / len(self.delays_ns)
        error_ns = float(self.delays_ns.std()) * math.sqrt((1 - share) / crossing.used)
        return (crossing.mean_ns - float(self.delays_ns.mean())) / error_ns


# ---- parity ----


def exchanged(seed: int) -> tuple[PacketBatch, PacketBatch]:
    """50 packets are lost, and 50 others are seen downstream only: rows with one of each have equal counts."""
    rng = np.random.default_rng(seed)
    ids, sent_ns = fresh(rng, 20_000), EPOCH_NS + np.arange(20_000) * 50_000
    stays = np.ones(len(ids), bool)
    stays[rng.choice(len(ids), 50, replace=False)] = False
    down_ids = np.concatenate((fresh(rng, 50), ids[stays]))
    down_ns = np.concatenate((EPOCH_NS + np.arange(50), sent_ns[stays] + DELAY_NS))
    return batch(ids, sent_ns), batch(down_ids, down_ns)


def right_throughout(crossings: list[Crossing]) -> bool:
    """All delays are equal, so the mean is exact for any set of rows."""
    return all(crossing.sum_ns == DELAY_NS * crossing.used > 0 for crossing in crossings)


def test_parity_detects_what_counts_do_not() -> None:
    """LDA with the same rows uses those of equal counts, is far off, and cannot know without single packets.

    In 200 (e^-1/4 / 4)^2 = 7.6 rows one packet was replaced by another, whose time is half a second too early on
    average: over 12,900 used packets 295 us, with a standard deviation of sqrt(7.6) 0.58 s / 12,900 = 124 us in a run.
    """
    with_parity, with_counts = [], []
    for seed in range(10):
        up, down = exchanged(seed)
        estimator, lda = Finecomb(rows=200, seed=seed), Lda(rows=200, shifts=(0,), tail=8, seed=seed)
        with_parity.append(estimator.cross(fine(estimator, up), fine(estimator, down)))
        with_counts.append(lda.cross(rough(lda, up), rough(lda, down)))
    assert right_throughout(with_parity)
    assert not right_throughout(with_counts)
    early_ns = [DELAY_NS - crossing.mean_ns for crossing in with_counts if crossing.mean_ns is not None]
    assert abs(np.mean(early_ns) - 295_000) < 4 * 124_000 / math.sqrt(len(early_ns))


# ---- the edges ----


def test_both_edges_are_repaired() -> None:
    """Without loss all rows are repaired: all packets that both points saw are used, and the sum is exact."""
    for seed in range(5):
        points = Points.by_clock(100_000, seed)
        estimator = Finecomb(rows=512, stash=256, seed=seed)
        crossing = points.crossed(estimator)
        assert crossing.details["repaired_rows"] > 5  # about five are in flight at each edge
        assert crossing.details["usable_rows"] == 512
        assert (crossing.used, crossing.sum_ns) == (len(points.delays_ns), int(points.delays_ns.sum()))
        broken = points.crossed(replace(estimator, stash=0))
        assert broken.details["repaired_rows"] == 0
        assert broken.used < crossing.used


@pytest.mark.parametrize("edge", ["first", "last"])
def test_each_half_of_the_stash_repairs_its_edge(edge: str) -> None:
    rng = np.random.default_rng(1)
    ids, sent_ns = fresh(rng, 10_000), EPOCH_NS + np.arange(10_000) * 1000
    if edge == "first":  # two packets from before arrive first
        down = np.concatenate((fresh(rng, 2), ids)), np.concatenate((sent_ns[:2], sent_ns + DELAY_NS))
    else:  # two arrive after the end
        down = ids[:-2], sent_ns[:-2] + DELAY_NS
    estimator = Finecomb(rows=64, stash=20)
    crossing = estimator.cross(fine(estimator, batch(ids, sent_ns)), fine(estimator, batch(*down)))
    assert crossing.details["repaired_rows"] in (1, 2)
    assert crossing.details["usable_rows"] == 64
    both = 10_000 if edge == "first" else 9_998
    assert (crossing.used, crossing.sum_ns) == (both, both * DELAY_NS)


def test_losses_in_the_middle_cannot_be_repaired() -> None:
    points = Points.by_clock(50_000, 3, lost=40)
    crossing = points.crossed(Finecomb(rows=512, stash=256))
    assert 512 - 40 <= crossing.details["usable_rows"] < 512 - 20  # 40 in 512 rows: 38.5 rows, and 0 or 1 at an edge
    assert crossing.details["tries"] > 0


# ---- the mean, statistically ----


def passes(scores: list[float]) -> bool:
    """No mean is off by five standard errors, and together they have no bias."""
    return max(map(abs, scores)) < 5 and abs(sum(scores)) < 4 * math.sqrt(len(scores))


def test_the_mean_of_usable_rows_is_unbiased() -> None:
    scores = []
    for seed in range(20):
        points = Points.by_clock(50_000, seed, lost=200, jitter_ns=40_000)
        scores.append(points.score(points.crossed(Finecomb(rows=512, stash=256, seed=seed))))
    assert passes(scores)


def test_rows_by_count_alone_fail_the_same_test() -> None:
    """LDA's buckets cut by the clock: packets of both edges cancel in the count, and the mean is off by a second.

    (With single packets it would leave such rows out: `unlike_rows`.)

    FineComb without a stash is unbiased, too, since parity detects them: the error comes from unrepaired rows.
    """
    by_parity, by_count = [], []
    for seed in range(20):
        points = Points.by_clock(50_000, seed, lost=200, jitter_ns=40_000)
        by_parity.append(points.score(points.crossed(Finecomb(rows=512, stash=0, seed=seed))))
        lda = Lda(rows=512, shifts=(0,), tail=8, seed=seed)
        by_count.append(points.score(lda.cross(rough(lda, points.up), rough(lda, points.down))))
    assert passes(by_parity)
    assert not passes(by_count)


def test_without_a_stash_little_is_left() -> None:
    """With 2 ms of delay and 128 rows 100 packets are in flight at each edge: e^(-200/128) of the rows are intact."""
    repaired, bare = [], []
    for seed in range(5):
        points = Points.by_clock(50_000, seed, delay_ns=2_000_000, jitter_ns=1_000)
        estimator = Finecomb(rows=128, stash=600, seed=seed)
        repaired.append(points.crossed(estimator).details["usable_rows"] / 128)
        bare.append(points.crossed(replace(estimator, stash=0)).details["usable_rows"] / 128)
    theory = math.exp(-200 / 128)
    assert abs(np.mean(bare) - theory) < 4 * math.sqrt(theory * (1 - theory) / (5 * 128))
    assert np.mean(repaired) > 2 * np.mean(bare)


# ---- limits ----


def test_tries_are_bounded() -> None:
    """Rows with 12 candidates and a lost packet each: 4,095 sets per row, and 2^22 in all; then trying ends."""
    rng, rows = np.random.default_rng(5), 2048
    per_row = Finecomb(rows=rows, stash=0)
    pool = fresh(rng, rows * 40)
    places = (_kernels.coins(pool, 0, 3) & np.uint64(2**32 - 1)) * np.uint64(rows) >> np.uint64(32)
    chosen = [pool[places == row][:13] for row in range(rows)]
    assert all(len(ids) == 13 for ids in chosen)
    stash = np.concatenate([ids[:12] for ids in chosen])
    every = np.concatenate(chosen)
    up = replace(
        fine(per_row, batch(every, np.arange(len(every)))), stash_ids=stash, stash_times_ns=np.arange(len(stash))
    )
    down = fine(per_row, batch(stash, np.arange(len(stash))))
    crossing = per_row.cross(up, down)
    assert MOST_TRIES - 4095 <= crossing.details["tries"] <= MOST_TRIES
    assert crossing.details["usable_rows"] == 0


def test_too_many_candidates_are_not_tried() -> None:
    rng = np.random.default_rng(6)
    ids = fresh(rng, 14)
    estimator = Finecomb(rows=1, stash=26)
    times_ns = np.arange(14)
    up, down = fine(estimator, batch(ids, times_ns)), fine(estimator, batch(ids[:1], times_ns[:1]))
    crossing = estimator.cross(up, down)
    assert crossing.details == {"usable_rows": 0, "repaired_rows": 0, "tries": 0}


def test_one_id_a_million_times() -> None:
    ids = np.full(1_000_000, 7, np.uint64)
    up, down = batch(ids, EPOCH_NS + np.arange(len(ids))), batch(ids[:-1], EPOCH_NS + 9 + np.arange(len(ids) - 1))
    estimator = Finecomb()
    crossing = estimator.cross(fine(estimator, up), fine(estimator, down))
    assert crossing.used == 0  # its only row differs, and no candidate is left: the id is in both stashes
