"""RDA and FineComb, section IV: sRDA, the simple form: one array, each packet in two of its buckets.

Its deviation suffers. A packet whose two buckets are collapsed with each other cancels itself out, so with m buckets
the F of F - mean^2 is too small by a share of about 1/m: large with the 5 buckets of the paper's example, invisible
with 5,000.
"""

import numpy as np
from rda_traces import Points, apart_of, median, weibull_50us
from traces import arguments, show

from wirelag import _kernels
from wirelag.estimators.rda import Rda
from wirelag.stats.row_sums import Rows

CELLS = (4, 8, 16, 64, 512, 5000)
PAPER_EXAMPLE = (((110, 70), (560, 400), (390, 250), (650, 400), (710, 480)), (1, 2, 1, 2, 2))  # figure 4


def rows_of(points: Points, cells: int, seed: int, simple: bool) -> Rows:
    """Buckets without a difference: what is left once all differing packets were decoded and removed."""
    words = np.zeros((2, cells * 4), np.uint64)
    fill = _kernels.srda_fill if simple else _kernels.rda_fill
    for into, cached in zip(words, (points.up, points.down), strict=True):
        fill(cached.ids, cached.times_ns, into, 2, seed)
    ups, downs = words.reshape(2, -1, 4)
    return Rows.difference(ups[:, 3], downs[:, 3], ups[:, 2].copy(), np.ones(cells, bool), 1 if simple else 2)


def second_moment_ns2(rows: Rows) -> float:
    """F: neighbours collapsed with opposite signs."""
    apart = rows.sums_ns[:, 1::2].astype(float) - rows.sums_ns[:, 0::2]
    return float((apart * apart).sum() / rows.counts.sum())


def decodes(points: Points, cells: int, seed: int) -> bool:
    words = np.zeros((2, cells * 4), np.uint64)
    for into, cached in zip(words, (points.up, points.down), strict=True):
        _kernels.srda_fill(cached.ids, cached.times_ns, into, 2, seed)
    ups, downs = (side.reshape(-1, 4)[:, :3].reshape(-1) for side in words)
    return _kernels.srda_decode(apart_of(ups, downs), 2, seed)[2]


def main() -> None:
    quick = arguments(__doc__).quick
    sums, counts = PAPER_EXAMPLE
    delays = [down - up for down, up in sums]
    mean = sum(delays) / sum(counts)
    f = ((delays[0] - delays[1]) ** 2 + (delays[2] - delays[3]) ** 2) / (sum(counts[:4]))
    show("figure 4", ("what", "ours", "paper"), [("mean", mean, "102.5"), ("F - mean^2", f - mean**2, "-6089.6")])

    count, runs = (2_000, 300) if quick else (5_000, 2_000)
    rows = []
    for cells in CELLS:
        points = Points.apart(count, 0, cells, weibull_50us)
        truth = points.true_std_ns**2 + points.true_ns**2
        mine = [rows_of(points, cells, seed, True) for seed in range(runs if cells < 5000 else runs // 10)]
        banks = [rows_of(points, cells, seed, False) for seed in range(len(mine))]
        means = [abs(one.sum_ns / one.used - points.true_ns) / points.true_ns for one in mine]
        moments = [[second_moment_ns2(one) / truth for one in kind] for kind in (mine, banks)]
        negative = [np.mean([f * truth < points.true_ns**2 for f in kind]) for kind in moments]
        errors = [f"{np.std(kind) / len(kind) ** 0.5:.3f}" for kind in moments]
        within = [median([abs((one.variance_ns2() or 0) ** 0.5 / points.true_std_ns - 1) for one in banks])]
        rows.append(
            (
                str(cells),
                f"{median(means):.1e}",
                (2 - 3 / cells) / (2 - 1 / cells),
                *(cell for kind, error in zip(moments, errors, strict=True) for cell in (float(np.mean(kind)), error)),
                *(f"{100 * share:.0f}" for share in negative),
                f"{100 * within[0]:.1f}",
            )
        )
    header = (
        "buckets", "mean, sRDA", "theory", "F, sRDA", "its s.e.", "F, RDA", "its s.e.",
        "negative, sRDA, %", "negative, RDA, %", "deviation between rows, RDA, %",
    )  # fmt: skip
    show("error of the mean; F over the truth (1 is right); how often F - mean^2 < 0", header, rows)

    rows = []
    tries = 20 if quick else 200
    for d in (1000, 2000, 2500, 3000):
        done = sum(decodes(Points.apart(20_000, d, seed, weibull_50us), 5000, seed) for seed in range(tries))
        banks_done = 0
        for seed in range(tries):
            points = Points.apart(20_000, d, seed, weibull_50us)
            rda = Rda(banks=2, seed=seed)
            ups, downs = (rda.filled(one.ids, one.times_ns, 2500) for one in (points.up, points.down))
            banks_done += rda.decode(ups, downs).complete
        rows.append((str(d), done / tries, banks_done / tries))
    show("share decoded in full, 5000 buckets, with check", ("difference", "sRDA", "RDA k=2"), rows)


if __name__ == "__main__":
    main()
