"""RDA and FineComb, figures 7a, 7b, 8a, 8b: errors of mean and deviation against how many packets differ.

1M packets in a second, 5,000 buckets for every method (rateless: 1,024 rows, and as many symbols as needed). FineComb
is repaired as far as possible, and ideally as in the paper: given the packets that moved over an edge. 0 is exact: the
summed ns are equal. The accuracy of a deviation depends on the rows, not the packets: 100,000 packets are enough.
"""

from collections.abc import Callable
from dataclasses import replace

from rda_traces import (
    BUCKETS,
    PAPER,
    Delays,
    Points,
    crossed,
    ideal_finecomb,
    jitter_5us,
    median,
    short,
    weibull_50us,
)
from traces import arguments, show

from wirelag.estimators.finecomb import Finecomb
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.stats.moments import Moments
from wirelag.stats.row_sums import Deviation
from wirelag.synopses.crossing import Crossing

DIFFERENCES = (0, 1000, 2000, 3000, 4000, 6000, 10_000)
FEW = (1000, 4000)
EXPECTED = {
    "LDA, moved at any time": ("2.2e-2", "7e-2", "1.1e-1", "2.8e-1"),
    "FineComb, ideal": ("2.7e-4", "9e-4", "5e-4", "5e-4"),
    "RDA k=2 (paper)": ("0", "0", "3e-4", "7e-4"),
    "RDA k=3, check": ("0", "0", "0", "0"),
}
PAPER_SAYS = {"LDA, moved at edges": "worst", "RDA k=2 (paper)": "1e-14 to 2000, then about 1e-4"}

Method = Callable[[Points, Points, int, Deviation], Crossing]  # packets moved at edges, at any time; seed


def rda(estimator: Rda) -> Method:
    """Both points converse, with another seed in each run."""

    def run(points: Points, _: Points, seed: int, deviation: Deviation) -> Crossing:
        seeded = replace(estimator, seed=seed, deviation=deviation)
        return seeded.cross(replace(points.up, seed=seed), replace(points.down, seed=seed))

    return run


def lda(points: Points, seed: int, deviation: Deviation) -> Crossing:
    return crossed(Lda(BUCKETS, (0,), deviation, 1, seed), points)


def finecomb(points: Points, _: Points, seed: int, deviation: Deviation) -> Crossing:
    return crossed(Finecomb(BUCKETS, 0, BUCKETS, deviation, 1, seed), points)


def finecomb_ideal(points: Points, _: Points, seed: int, deviation: Deviation) -> Crossing:
    rows = ideal_finecomb(points, BUCKETS, seed)
    return Crossing(moments=Moments.of(rows.used, rows.sum_ns, rows.variance_ns2(deviation), rows.used))


METHODS: dict[str, Method] = {
    "LDA, moved at edges": lambda edges, _, seed, deviation: lda(edges, seed, deviation),
    "LDA, moved at any time": lambda _, anytime, seed, deviation: lda(anytime, seed, deviation),
    "FineComb, ideal": finecomb_ideal,
    "FineComb, 12 a bucket": finecomb,
    "RDA k=2 (paper)": rda(PAPER),
    "RDA k=3, check": rda(Rda(buckets=BUCKETS, cache_assisted=False, tail=0)),
    "rateless": rda(Rda(rateless=True, tail=0)),
}

Errors = dict[tuple[str, int, Deviation], tuple[list[float], list[float]]]  # errors of mean and deviation


def measured(count: int, differences: tuple[int, ...], runs: int, delays: Delays, both_ways: bool) -> Errors:
    """The errors of all methods, with deviations between rows or both ways."""
    found: Errors = {}
    for d in differences:
        for run in range(runs):
            edges = Points.apart(count, d, run, delays)
            anytime = Points.apart(count, d, run, delays, at_edges=False)
            for name, method in METHODS.items():
                truth = anytime if "any time" in name else edges
                ways: tuple[Deviation, ...] = ("rows", "collapse") if both_ways else ("rows",)
                for way in ways:
                    crossing = method(edges, anytime, run, way)
                    means, deviations = found.setdefault((name, d, way), ([], []))
                    means.append(truth.mean_error(crossing))
                    deviations.append(truth.deviation_error(crossing))
    return found


def show_means(found: Errors, differences: tuple[int, ...], runs: int) -> None:
    rows: list[tuple[str, ...]] = []
    for name in METHODS:
        cells = []
        for d in differences:
            errors = found[name, d, "rows"][0]
            cells.append(f"{short(median(errors))} ({short(max(errors))})")
        expected = " ".join(EXPECTED[name]) if name in EXPECTED else "-"
        rows.append((name, *cells, expected, PAPER_SAYS.get(name, "-")))
    header = ("method", *map(str, differences), "expected, 1000 to 4000", "paper")
    show(f"7, 8: error of the mean, median (largest) of {runs} runs, against the difference", header, rows)


def show_deviations(title: str, found: Errors, differences: tuple[int, ...], expected: dict[str, str]) -> None:
    rows = []
    for name in METHODS:
        for way in ("rows", "collapse"):
            cells = [f"{100 * median(found[name, d, way][1]):.2f}" for d in differences]
            rows.append((f"{name}, {way}", *cells, expected.get(name, "-")))
    header = ("method, deviation", *map(str, differences), "expected, rows / collapse")
    show(title, header, rows)


def main() -> None:
    quick = arguments(__doc__).quick
    # Quick: fewer packets. Decoding depends on what differs, not on what does not.
    count, runs, few = (20_000, 3, 2) if quick else (1_000_000, 5, 15)
    found = measured(count, DIFFERENCES, runs, weibull_50us, both_ways=False)
    show_means(found, DIFFERENCES, runs)
    plain = measured(min(count, 100_000), FEW, few, weibull_50us, both_ways=True)
    title = f"7, 8: error of the deviation, %, median of {few} runs"
    expected = dict.fromkeys(("RDA k=2 (paper)", "RDA k=3, check"), "0.4-0.7 / 1.1-1.8")
    show_deviations(f"{title}, Weibull, mean 50 us", plain, FEW, expected)
    jitter = measured(min(count, 100_000), FEW, few, jitter_5us, both_ways=True)
    show_deviations(f"{title}, 100 us and a jitter of 5 us", jitter, FEW, {"RDA k=3, check": "0.9 / 89"})


if __name__ == "__main__":
    main()
