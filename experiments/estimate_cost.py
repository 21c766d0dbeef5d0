"""RDA and FineComb, figure 15: the time that mean and deviation of RDA take, against the number of buckets.

1M packets in a second, of which 200 differ, in three banks. The mean is one pass over the buckets of both points, after
the packets that differ were removed; the deviation, between rows or as in the paper (collapse), needs several. Before
that: decoding the difference. `all` is what follows the last message: removing the packets that differ, then mean,
deviation between rows and loss.
"""

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np
from rda_traces import NONE, Points, median, weibull_50us
from traces import arguments, show

from wirelag.estimators.rda import Rda, copies_of
from wirelag.stats.row_sums import Rows
from wirelag.synopses.delay_sample import DelaySample

BUCKETS = (1_000, 2_000, 5_000, 10_000, 20_000)
DIFFERENCE = 200
PAPER = "3"  # ms for the mean, 20,000 buckets


def main() -> None:
    quick = arguments(__doc__).quick
    count, repeats = (50_000, 20) if quick else (1_000_000, 200)
    points = Points.apart(count, DIFFERENCE, 1, weibull_50us)
    rows = [
        (f"{buckets}", *costs(points, buckets, repeats), PAPER if buckets == BUCKETS[-1] else "-")
        for buckets in BUCKETS
    ]
    header = ("buckets", "mean", "deviation", "collapse", "decode", "all", "paper, mean")
    show(f"15: ms, median of {repeats}", header, rows)


def costs(points: Points, buckets: int, repeats: int) -> list[float]:
    """Ms of each; the mean must be exact."""
    rda = Rda(buckets=buckets, cache_assisted=False, tail=0)
    own, other = (rda.numbers(cached.ids) for cached in (points.up, points.down))
    each = -(-buckets // rda.banks)
    ups, downs = (
        rda.filled(numbers, cached.times_ns, each) for numbers, cached in ((own, points.up), (other, points.down))
    )
    decoded = rda.decode(ups, downs)
    mine = copies_of(points.up, own, decoded.upstream, NONE)
    theirs = copies_of(points.down, other, decoded.downstream, NONE)
    up_common, down_common = (
        rda.filled(numbers[kept], cached.times_ns[kept], each).reshape(-1, 4)
        for numbers, cached in ((own, points.up), (other, points.down))
        for kept in [np.isin(cached.ids, points.common)]
    )

    def difference() -> Rows:
        counts = up_common[:, 2].copy()
        return Rows.difference(up_common[:, 3], down_common[:, 3], counts, counts == down_common[:, 2], rda.banks)

    def mean_ns() -> float:
        rows = difference()
        return rows.sum_ns / rows.used

    none = DelaySample.empty(), 0
    crossing = rda.repaired(ups, downs, decoded, mine, theirs, none)
    assert decoded.complete
    assert points.mean_error(crossing) == 0
    assert abs(mean_ns() / points.true_ns - 1) < 1e-12
    works: list[Callable[[], object]] = [
        mean_ns,
        lambda: difference().variance_ns2(),
        lambda: difference().variance_ns2("collapse"),
        lambda: rda.decode(ups, downs),
        lambda: rda.repaired(ups, downs, decoded, mine, theirs, none),
    ]
    return [ms(work, repeats) for work in works]


def ms(work: Callable[[], object], repeats: int) -> float:
    """The median time."""
    times = []
    for _ in range(repeats):
        begun = perf_counter_ns()
        work()
        times.append((perf_counter_ns() - begun) / 1e6)
    return median(times)


if __name__ == "__main__":
    main()
