"""LDA, figures 4a, 4b, 4c: errors of mean and deviation, and the 98% bounds, against loss.

One bank of 1,024 rows, tuned to the loss; 5M packets, mean delay 0.2 us. Probabilities are powers of two, so alpha is
the nearest possible value to 1, or to the paper's 0.5: off by a factor of up to 1.41.
"""

import math

from crossing_traces import (
    NORMAL_MEAN,
    PARETO,
    Packets,
    Run,
    arriving,
    delays_of,
    expected_used,
    mean_of,
    percent,
    runs,
)
from traces import arguments, show

from wirelag.estimators.lda import tuned

ROWS = 1024
LOSSES = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.2)
ALPHAS = (1.0, 0.5)
NAMES = ("Weibull 0.6", *(f"Pareto {shape:g}" for shape in PARETO))
PAPER_MEAN = {0.0001: "<0.3", 0.001: "<0.3", 0.2: "<4"}
EXPECTED_MEAN = {0.001: "0.24-0.30", 0.2: "4.1-5.0"}
PAPER_DEVIATION = {"Weibull 0.6": "<10"} | dict.fromkeys(NAMES[1:], "20-50")
EXPECTED_COLLAPSE = {"Weibull 0.6": "7-11", "Pareto 3": "18-36", "Pareto 4": "32-57", "Pareto 5": "46-83"}
EXPECTED_ROWS = {"Weibull 0.6": "1.9-2.8"} | dict.fromkeys(NAMES[1:], "2.1-8.5")

Found = dict[tuple[str, float, float], list[Run]]  # by distribution, loss, alpha


def theory(one: Run) -> float:
    """The mean error of a mean of this many delays, drawn without replacement from those that arrived."""
    left_out = 1 - one.used / one.rows.received
    return NORMAL_MEAN * one.true_std_ns / one.true_ns * math.sqrt(left_out / one.used)


def main() -> None:
    chosen = arguments(__doc__)
    # Quick: fewer packets. With more than 1,024 lost packets, as many are used: the buckets are what counts.
    count, seeds = (500_000, range(5)) if chosen.quick else (5_000_000, range(10))
    found: Found = {}
    for number, name in enumerate(NAMES):
        packets = Packets.one_by_one(delays_of(name, count, number), number)
        for loss in LOSSES:
            arrived = arriving(count, loss, number)
            for alpha in ALPHAS:
                found[name, loss, alpha] = runs(packets, arrived, ROWS, tuned(count, (loss,), ROWS, alpha), seeds)
    show_mean(found)
    show_used(found, count)
    show_bounds(found)
    show_deviation(found)


def show_mean(found: Found) -> None:
    """Figure 4a."""
    rows = []
    for name in NAMES:
        for alpha in ALPHAS:
            mine = [found[name, loss, alpha] for loss in LOSSES]
            errors = [percent(mean_of([r.mean_error for r in one])) for one in mine]
            rows.append((f"{name}, alpha {alpha:g}", *errors))
            rows.append(
                (f"{name}, alpha {alpha:g}, theory", *(percent(mean_of([theory(r) for r in one])) for one in mine))
            )
    for said, of in (("Weibull 0.6, expected", EXPECTED_MEAN), ("paper, all", PAPER_MEAN)):
        rows.append((said, *(of.get(loss, "-") for loss in LOSSES)))
    header = ("delays", *(f"{100 * loss:g}%" for loss in LOSSES))
    show(f"4a: error of the mean, %, against loss, mean of {len(found[NAMES[0], LOSSES[0], 1.0])} seeds", header, rows)


def show_used(found: Found, count: int) -> None:
    """The effective sample size: alpha = 1 beats 0.5."""
    rows = []
    for loss in LOSSES:
        used = [mean_of([r.used for r in found[NAMES[0], loss, alpha]]) for alpha in ALPHAS]
        lost = count - found[NAMES[0], loss, 1.0][0].rows.received
        shifts = [tuned(count, (loss,), ROWS, alpha)[0] for alpha in ALPHAS]
        ratios = [mine / expected_used(count, lost, ROWS, shift) for mine, shift in zip(used, shifts, strict=True)]
        alphas = [f"{2.0**-shift * (lost + 1) / ROWS:.2f}" for shift in shifts]
        gain = f"{used[0] / used[1]:.3f}"
        rows.append(
            (f"{100 * loss:g}%", alphas[0], round(used[0]), ratios[0], alphas[1], round(used[1]), ratios[1], gain)
        )
    columns = [f"{what}, alpha {alpha:g}" for alpha in ALPHAS for what in ("real alpha", "packets", "of E[S]")]
    show("packets in usable buckets", ("loss", *columns, "alpha 1 over 0.5"), rows)


def show_bounds(found: Found) -> None:
    """Figure 4b."""
    rows = []
    for name in NAMES:
        for loss in LOSSES:
            mine = found[name, loss, 1.0]
            broken = [sum(r.mean_error > r.bound(collapse) for r in mine) for collapse in (False, True)]
            errors = [r.mean_error for r in mine]
            narrow = percent(max(r.bound() for r in mine))
            row = (f"{name}, {100 * loss:g}%", narrow, percent(max(errors)), *broken, len(mine))
            rows.append(row)
    header = ("delays, loss", "widest bound, %", "largest error, %", "broken, rows", "broken, collapse", "of")
    show("4b: 98% bounds, alpha 1", header, rows)


def show_deviation(found: Found) -> None:
    """Figure 4c."""
    rows = []
    for name in NAMES:
        for alpha in ALPHAS:
            for way in ("rows", "collapse"):
                error = "deviation_error" if way == "rows" else "collapse_error"
                cells = [percent(mean_of([getattr(r, error) for r in found[name, loss, alpha]])) for loss in LOSSES]
                expected = (EXPECTED_ROWS if way == "rows" else EXPECTED_COLLAPSE)[name]
                said = expected, "-" if way == "rows" else PAPER_DEVIATION[name]
                rows.append((f"{name}, {way}, alpha {alpha:g}", *cells, *said))
    header = ("delays, deviation", *(f"{100 * loss:g}%" for loss in LOSSES), "expected (to 1%)", "paper")
    show("4c: error of the deviation, %, against loss", header, rows)


if __name__ == "__main__":
    main()
