"""Shared by the experiments of RDA and FineComb: packets at two points that differ in some, and decoding.

Half of the packets that differ are lost anywhere; half crossed an edge of the interval: half of these were sent before
it and are seen only downstream, at the start; the others were sent last and arrive after it. An error is
|estimated - true|/true, and the truth is that of the packets seen at both points.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from crossing_traces import batch, weibull_ns

from wirelag import _kernels
from wirelag.estimators.finecomb import Finecomb
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.packets.interval import Interval
from wirelag.stats.row_sums import Rows
from wirelag.synopses.cache import Cached
from wirelag.synopses.crossing import Crossing

Words = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Delays = Callable[[np.random.Generator, int], Times]

SECOND_NS = 10**9
BUCKETS = 5000  # in total, as in the paper
NONE = np.empty(0, np.uint64)
PAPER = Rda(buckets=BUCKETS, banks=2, check=False, cache_assisted=False, tail=0)

# ---- packets at two points ----


def fresh(rng: np.random.Generator, count: int) -> Words:
    """New ids."""
    return rng.integers(0, 2**64, count, dtype=np.uint64)


def weibull_50us(rng: np.random.Generator, count: int) -> Times:
    """The paper's delays: Weibull with shape 0.6, mean 50 us."""
    return weibull_ns(rng, count, 50_000.0)


def jitter_5us(rng: np.random.Generator, count: int) -> Times:
    """A long path with little jitter: 100 us and a deviation of 5 us."""
    return np.rint(rng.normal(100_000, 5_000, count)).astype(np.int64)


@dataclass(frozen=True)
class Points:
    """The packets of two points in one interval."""

    up: Cached
    down: Cached
    delays_ns: Times  # delays of the packets seen at both
    lost: Words  # seen only upstream, anywhere
    moved: Words  # over an edge
    common: Words

    @classmethod
    def apart(cls, count: int, difference: int, seed: int, delays: Delays, at_edges: bool = True) -> Points:
        """Packets in a second, some of which differ; without edges the moved ones come at any time."""
        rng = np.random.default_rng(seed)
        sent_ns, delays_ns = np.sort(rng.integers(0, SECOND_NS, count)), delays(rng, count)
        ids, half = fresh(rng, count), difference // 2
        late = half // 2 if at_edges else 0
        lost, behind = np.zeros(count, bool), np.arange(count) >= count - late
        lost[rng.choice(count - late, difference - half, replace=False)] = True
        both = ~(lost | behind)
        early, window_ns = fresh(rng, half - late), SECOND_NS if not at_edges else (half - late) * SECOND_NS // count
        down_ids = np.concatenate((early, ids[both]))
        down_ns = np.concatenate((rng.integers(0, max(1, window_ns), half - late), (sent_ns + delays_ns)[both]))
        order = np.argsort(down_ns, kind="stable")
        down = Cached(down_ids[order], down_ns[order], packets=len(order))
        moved = np.concatenate((early, ids[behind]))
        return cls(Cached(ids, sent_ns, packets=count), down, delays_ns[both], ids[lost], moved, ids[both])

    @property
    def true_ns(self) -> float:
        """The mean delay."""
        return int(self.delays_ns.sum()) / len(self.delays_ns)

    @property
    def true_std_ns(self) -> float:
        """The deviation."""
        return float(self.delays_ns.std())

    def mean_error(self, crossing: Crossing) -> float:
        """Relative error of the mean; exactly 0 if the integers are equal; 1 if there is none."""
        if crossing.mean_ns is None:
            return 1.0
        exact = crossing.sum_ns == int(self.delays_ns.sum()) and crossing.used == len(self.delays_ns)
        return 0.0 if exact else abs(crossing.mean_ns - self.true_ns) / self.true_ns

    def deviation_error(self, crossing: Crossing) -> float:
        """Relative error of the deviation."""
        return abs((crossing.std_ns or 0.0) - self.true_std_ns) / self.true_std_ns


def seen(estimator: Lda | Finecomb, cached: Cached) -> Any:
    """One point's synopsis."""
    meter = estimator.meter("upstream")
    meter.observe(batch(cached.ids, cached.times_ns))
    return meter.cut(Interval(0, 0))


def crossed(estimator: Lda | Finecomb, points: Points) -> Crossing:
    """The crossing of both points, from buckets filled as packets come."""
    return estimator.cross(seen(estimator, points.up), seen(estimator, points.down))


def ideal_finecomb(points: Points, rows: int, seed: int) -> Rows:
    """FineComb given the packets that moved over an edge, as in the paper: rows without loss are usable."""

    def row_of(ids: Words) -> npt.NDArray[np.int64]:
        low = _kernels.coins(ids, seed, 3) & np.uint64(2**32 - 1)
        return ((low * np.uint64(rows)) >> np.uint64(32)).astype(np.int64)

    mine = row_of(points.common)
    counts = np.bincount(mine, minlength=rows)
    sums_ns = np.rint(np.bincount(mine, points.delays_ns, rows)).astype(np.int64)
    broken = np.bincount(row_of(points.lost), minlength=rows) > 0
    return Rows(counts[None], sums_ns[None], (~broken & (counts > 0))[None])


# ---- the difference alone ----


def difference_of(up: Words, down: Words, banks: int, each: int, seed: int) -> Words:
    """The difference of two synopses. Common packets cancel out: they need not be added."""
    rda = Rda(banks=banks, seed=seed)
    ups, downs = (rda.filled(ids, np.zeros(len(ids), np.int64), each).reshape(-1, 4) for ids in (up, down))
    return np.column_stack((ups[:, :2] ^ downs[:, :2], downs[:, 2] - ups[:, 2])).reshape(-1)


def decoded_share(
    banks: int, each: int, size: int, runs: int, seed: int = 0, check: bool = True
) -> tuple[float, float]:
    """How often all of a difference is decoded, and how much of it on average (the paper's success probability)."""
    rng, complete, found = np.random.default_rng(seed), 0, 0
    for run in range(runs):
        apart = difference_of(fresh(rng, size // 2), fresh(rng, size - size // 2), banks, each, run)
        numbers, _, done = _kernels.rda_decode(apart, banks, run, check, NONE)
        complete += done
        found += len(numbers)
    return complete / runs, found / max(1, runs * size)


def apart_of(up: Words, down: Words) -> Words:
    """The difference of symbols or strata."""
    ups, downs = up.reshape(-1, 3), down.reshape(-1, 3)
    return np.column_stack((ups[:, :2] ^ downs[:, :2], downs[:, 2] - ups[:, 2])).reshape(-1)


def two_banks_decode(size: int, each: int) -> float:
    """Theory: a random bipartite graph has no cycles, sqrt(1 - (d/m)^2)."""
    return math.sqrt(1 - (size / each) ** 2) if size < each else 0.0


def fastest(work: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest run."""
    best = math.inf
    for _ in range(times):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return best


def median(values: list[float]) -> float:
    """Their median."""
    return float(np.median(values))


def short(value: float) -> str:
    """Two digits; exact zero is 0."""
    return "0" if value == 0 else f"{value:.1e}"
