"""LDA, figure 6: two banks of LDA against Poisson probes, with loss in episodes of about 100 packets.

5M packets in a second, Weibull 0.6, mean 0.2 us. A probe has a delay from the same distribution and is lost where
packets are. 7 Hz is the same number of packets as an LDA of 1,024 rows takes, 144 Hz the same number of bytes.
"""

import numpy as np
from crossing_traces import (
    EPISODE,
    NORMAL_MEAN,
    Mask,
    Packets,
    arriving_but_for_episodes,
    delays_of,
    mean_of,
    percent,
    runs,
    weibull_ns,
)
from traces import arguments, show

from wirelag.estimators.lda import tuned

LOSSES = (0.0016, 0.01, 0.05, 0.1)
HZ = (1, 7, 144, 10_000)
ROWS, TUNED = 512, (0.005, 0.1)
PAPER = {"LDA": "<1 (loss <1%)", "1 Hz": "~100", "7 Hz": "<=87", "144 Hz": "11", "10000 Hz": "as LDA"}
EXPECTED = {"LDA": "0.92", "144 Hz": "12.1", "10000 Hz": "1.6"}

Answer = tuple[int, float, float]  # probes that arrived, error of the mean, error of the deviation


def probed(rng: np.random.Generator, hz: int, arrived: Mask, true_ns: float, std_ns: float) -> Answer | None:
    """One second of probes; None if none arrives."""
    sent = rng.random(rng.poisson(hz))
    found_ns = weibull_ns(rng, int(arrived[(sent * len(arrived)).astype(np.int64)].sum()))
    if not len(found_ns):
        return None
    errors = float(found_ns.mean()) / true_ns - 1, float(found_ns.std()) / std_ns - 1
    return len(found_ns), abs(errors[0]), abs(errors[1])


def main() -> None:
    chosen = arguments(__doc__)
    count, seeds, times = (500_000, range(5), 100) if chosen.quick else (5_000_000, range(40), 400)
    packets = Packets.one_by_one(delays_of("Weibull 0.6", count))
    shifts = tuned(count, TUNED, ROWS)
    cells: dict[str, list[list[Answer]]] = {}
    losses, nothing = [], {f"{hz} Hz": 0 for hz in HZ}
    for number, loss in enumerate(LOSSES):
        arrived = arriving_but_for_episodes(count, loss)
        losses.append(f"{100 * (1 - arrived.mean()):.2f}%")
        found = runs(packets, arrived, ROWS, shifts, seeds)
        cells.setdefault("LDA", []).append([(r.used, r.mean_error, r.deviation_error) for r in found])
        cells.setdefault("LDA, collapse", []).append([(r.used, r.mean_error, r.collapse_error) for r in found])
        for hz in HZ:
            rng = np.random.default_rng([hz, number])
            answers = [probed(rng, hz, arrived, found[0].true_ns, found[0].true_std_ns) for _ in range(times)]
            nothing[f"{hz} Hz"] += sum(answer is None for answer in answers)
            cells.setdefault(f"{hz} Hz", []).append([answer for answer in answers if answer is not None])
    relative = packets.delays_ns.std() / packets.delays_ns.mean()
    header = ("against loss", *losses)
    methods = {name: each for name, each in cells.items() if name != "LDA, collapse"}
    show(
        f"6a: samples in a second; mean of {len(seeds)} seeds (LDA), {times} seconds (probes); episodes of {EPISODE}",
        (*header, "seconds without any"),
        [
            (name, *(f"{mean_of([a[0] for a in one]):.4g}" for one in each), nothing.get(name, "-"))
            for name, each in methods.items()
        ],
    )
    rows: list[tuple[str, ...]] = []
    for name, each in methods.items():
        theory = [NORMAL_MEAN * relative * mean_of([a[0] for a in one]) ** -0.5 for one in each]
        said = EXPECTED.get(name, "-"), PAPER.get(name, "-")
        rows.append((name, *(percent(mean_of([a[1] for a in one])) for one in each), *said))
        rows.append((f"{name}, theory", *(percent(error) for error in theory), "-", "-"))
    show("6b: error of the mean, %", (*header, "expected (second)", "paper"), rows)
    show(
        "6b: largest error of the mean, %; the paper, at 0.16%: LDA 0.17, 7 Hz 87, 144 Hz 13, 10 kHz 0.15",
        header,
        [(name, *(percent(max(a[1] for a in one)) for one in each)) for name, each in methods.items()],
    )
    show(
        "6c: error of the deviation, %; the paper: LDA 3 to 9, probes of 144 Hz about 15",
        header,
        [(name, *(percent(mean_of([a[2] for a in one])) for one in each)) for name, each in cells.items()],
    )


if __name__ == "__main__":
    main()
