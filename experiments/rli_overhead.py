"""RLI, figures 12a, 12b, 12c: what references cost: bytes, delay and loss of regular packets.

Every run is made with and without references, with the same packets and, for RED, the same coin for each packet. Even
so references move some of RED's drops to other packets, and one pair of runs shows little: added loss is the mean over
traffic and coins, and its standard error is that between seeds of traffic. The effect of other coins alone is shown
too.
"""

import math
from dataclasses import replace

import numpy as np
from rli_traces import Burstiness, Floats, median_of, quantile, show_burstiness, simulated
from traces import arguments, show

from wirelag.sim.queue import QueueScenario, QueueSimulation

UTILISATIONS = (0.95, 0.92, 0.88, 0.80, 0.70, 0.55, 0.40, 0.20, 0.10)
LOSSY = (0.95, 0.92, 0.88, 0.80, 0.70)
BUSIEST = 0.88
SHARES = (0.01, 0.10, 0.25, 0.50, 0.75, 0.90, 0.99)
PAPER_BYTES = {0.92: "0.007 (at 0.90)", 0.20: "0.1"}
PAPER_LOSS = {0.80: "0.001"}


def added_delay(one: QueueSimulation, other: QueueSimulation) -> Floats:
    """Added mean delay of each flow in us, for flows with one in both."""
    added = (other.truth().mean_ns - one.truth().mean_ns) / 1e3
    return np.asarray(added[np.isfinite(added)])


def rounded_up(share: float) -> float:
    """Round up to three digits, so that a value above a bound is shown above it."""
    return math.ceil(1000 * share) / 1000


class Losses:
    """Losses of one queue, per seed: without references; added by them; added by other coins."""

    def __init__(self) -> None:
        self.bare: list[float] = []
        self.added: list[float] = []
        self.moved: list[float] = []

    def measure(self, scenario: QueueScenario, coins: range) -> None:
        """Run one seed, with each of these coins."""
        without = [simulated(replace(scenario, injection=False), coin).loss for coin in coins]
        self.bare.append(float(np.mean(without)))
        self.added.append(float(np.mean([simulated(scenario, coin).loss for coin in coins])) - self.bare[-1])
        self.moved.append(without[-1] - without[0])

    @property
    def error(self) -> float:
        """The standard error of the mean added loss."""
        return float(np.std(self.added, ddof=1) / np.sqrt(len(self.added)))


def main() -> None:
    chosen = arguments(__doc__)
    seeds, few, coins, seconds = (
        (range(1, 4), range(1, 3), range(2), 1.0) if chosen.quick else (range(1, 33), range(1, 6), range(8), 8.0)
    )
    show_bytes(few, seconds)
    show_delay(few, seconds)
    show_loss(seeds, coins, seconds)


def show_bytes(seeds: range, seconds: float) -> None:
    """Figure 12a."""
    burstiness: dict[float, list[Burstiness]] = {}
    rows = []
    for utilisation in UTILISATIONS:
        runs = [simulated(QueueScenario(utilisation, seed, seconds)) for seed in seeds]
        burstiness[utilisation] = [Burstiness.of(run) for run in runs]
        shares = [100 * run.reference_share for run in runs]
        rates = [100 * len(run.reference_sent_ns) / len(run.bursts) for run in runs]
        cells = [f"{median_of(shares):.3f}", f"{rounded_up(max(shares)):.3f}", f"{median_of(rates):.2f}"]
        rows.append((f"{utilisation:.2f}", *cells, PAPER_BYTES.get(utilisation, "-")))
    show_burstiness(burstiness)
    header = (
        "utilisation",
        "% of the link, median",
        "largest, rounded up",
        "% of packets, median",
        "paper, % of the link",
    )
    show(f"12a: bytes of references, {len(seeds)} seeds", header, rows)


def show_delay(seeds: range, seconds: float) -> None:
    """Figure 12b."""
    found: dict[str, list[Floats]] = {}
    for seed in seeds:
        for name, scenario in (
            ("RED", QueueScenario(BUSIEST, seed, seconds)),
            ("DropTail", QueueScenario(BUSIEST, seed, seconds, red=None)),
        ):
            bare = replace(scenario, injection=False)
            without = simulated(bare)
            found.setdefault(f"{name}, references", []).append(added_delay(without, simulated(scenario)))
            if scenario.red:
                moved = added_delay(without, simulated(bare, coins=1000 + seed))
                found.setdefault(f"{name}, other coins alone", []).append(moved)
    rows = []
    for name, each in found.items():
        cells = [f"{median_of(quantile(one, share) for one in each):.1f}" for share in SHARES]
        faster = median_of(float((one < 0).mean()) for one in each)
        rows.append((name, *cells, f"{100 * faster:.1f}"))
    header = ("quantiles over flows, us", *(f"{100 * share:g}%" for share in SHARES), "flows faster, % (paper: 10)")
    show(f"12b: added mean delay of a flow, u = {BUSIEST}, median of {len(seeds)} seeds", header, rows)


def show_loss(seeds: range, coins: range, seconds: float) -> None:
    """Figure 12c."""
    rows = []
    for utilisation in LOSSY:
        red, tail = Losses(), Losses()
        for seed in seeds:
            scenario = QueueScenario(utilisation, seed, seconds)
            red.measure(scenario, coins)
            tail.measure(replace(scenario, red=None), range(1))  # uses no coins
        for name, of in (("RED", red), ("DropTail", tail)):
            values = float(np.mean(of.bare)), float(np.mean(of.added)), of.error, median_of(of.added)
            alone = f"{100 * float(np.std(of.moved)):.4f}" if of is red else "-"
            cells = [f"{100 * value:.4f}" for value in values]
            rows.append((f"{name}, u = {utilisation:.2f}", *cells, alone, PAPER_LOSS.get(utilisation, "-")))
    header = ("% of packets", "loss", "added", "standard error", "added, median", "coins alone, one run", "paper")
    show(f"12c: added loss, {len(seeds)} seeds of traffic, {len(coins)} of coins", header, rows)


if __name__ == "__main__":
    main()
