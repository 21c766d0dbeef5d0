"""LDA, figure 5: several banks, each tuned to another loss, where the loss is not known.

1,024 rows in total, 5M packets, Weibull 0.6, mean 0.2 us; for comparison one bank tuned to the actual loss, and the
default of `Lda` (four banks without knowledge of rate or loss). Alpha is 1, and the paper's 0.5.
"""

from crossing_traces import Packets, Run, arriving, delays_of, mean_of, percent, runs
from traces import arguments, show

from wirelag.estimators.lda import Lda, tuned

LOSSES = (0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2)
BANKS = {  # as in the paper: rows of each, and the losses that they are tuned to
    "2 banks": (512, (0.005, 0.1)),
    "3 banks": (341, (0.001, 0.01, 0.1)),
    "4 banks": (256, (0.001, 0.01, 0.05, 0.1)),
}
ALPHAS = (1.0, 0.5)


def main() -> None:
    chosen = arguments(__doc__)
    count, seeds = (500_000, range(5)) if chosen.quick else (5_000_000, range(10))
    packets = Packets.one_by_one(delays_of("Weibull 0.6", count))
    found: dict[str, list[list[Run]]] = {}
    for loss in LOSSES:
        arrived = arriving(count, loss)
        lines = {f"1 bank, best, alpha {a:g}": (1024, tuned(count, (loss,), 1024, a)) for a in ALPHAS}
        for name, (rows, losses) in BANKS.items():
            lines |= {f"{name}, alpha {a:g}": (rows, tuned(count, losses, rows, a)) for a in ALPHAS}
        lines["default"] = Lda().rows, Lda().shifts
        for line, (rows, shifts) in lines.items():
            found.setdefault(line, []).append(runs(packets, arrived, rows, shifts, seeds))
    shifts_of = [
        (
            name,
            rows,
            ", ".join(f"{100 * loss:g}%" for loss in losses),
            *(str(tuned(count, losses, rows, a)) for a in ALPHAS),
        )
        for name, (rows, losses) in BANKS.items()
    ]
    show("banks", ("name", "rows", "tuned to", *(f"shifts, alpha {a:g}" for a in ALPHAS)), shifts_of)
    header = ("against loss", *(f"{100 * loss:g}%" for loss in LOSSES))
    show(
        f"5a: packets in usable buckets, mean of {len(seeds)} seeds",
        header,
        [(line, *(round(mean_of([r.used for r in one])) for one in each)) for line, each in found.items()],
    )
    for title, error in (
        ("5b: error of the mean, %; the paper: all alike, 0.2 to 4", "mean_error"),
        ("5c: error of the deviation between rows, %", "deviation_error"),
        ("5c: error of the deviation by collapse, %; the paper: 3 to 9 below 5% of loss", "collapse_error"),
    ):
        table = [
            (line, *(percent(mean_of([getattr(r, error) for r in one])) for one in each))
            for line, each in found.items()
        ]
        show(title, header, table)


if __name__ == "__main__":
    main()
