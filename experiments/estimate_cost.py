"""RDA and FineComb, figure 15: the time that mean and deviation take, against the number of buckets.

Buckets of a second of 1M packets at both points, 1% of them lost. The mean alone needs one pass; `cross` is the whole
cost of an interval: mean, deviation, loss, and a tail of one packet.
"""

from time import perf_counter_ns

import numpy as np
from crossing_traces import Packets, arriving, observed, weibull_ns
from traces import arguments, show

from wirelag.estimators.lda import Lda, LdaSynopsis
from wirelag.stats.row_sums import Rows

BUCKETS = (1_000, 2_000, 5_000, 10_000, 20_000)


def mean_ns(up: LdaSynopsis, down: LdaSynopsis) -> float:
    """The mean alone."""
    counts = up.buckets[0::2].copy()
    rows = Rows.difference(up.buckets[1::2], down.buckets[1::2], counts, counts == down.buckets[0::2], 1)
    return rows.sum_ns / rows.used


def main() -> None:
    chosen = arguments(__doc__)
    repeats = 20 if chosen.quick else 200
    packets = Packets.one_by_one(weibull_ns(np.random.default_rng(1), 1_000_000))
    sources = packets.sources(arriving(1_000_000, 0.01))
    rows = []
    for buckets in BUCKETS:
        between, collapse = (Lda(buckets, (4,), deviation, tail=1) for deviation in ("rows", "collapse"))
        up, down = (observed(between, sources[point][0]) for point in between.points)
        cells = []
        for answer in (mean_ns, between.cross, collapse.cross):
            times = []
            for _ in range(repeats):
                start = perf_counter_ns()
                answer(up, down)
                times.append(perf_counter_ns() - start)
            cells.append(float(np.median(times)) / 1e6)
        rows.append((str(buckets), *cells, "3" if buckets == 20_000 else "-"))
    header = ("buckets", "mean alone", "cross, between rows", "cross, collapse", "paper, mean")
    show(f"15: ms, median of {repeats}", header, rows)


if __name__ == "__main__":
    main()
