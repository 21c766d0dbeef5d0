"""RLI, figures 7, 8a, 8b, 9 and more: how wrong the mean and the deviation of a flow are.

References are injected adaptively, at most 0.5% of the link's bytes. `linear` is RLI, `left` RLI-L, `busy` ours.
"""

from collections.abc import Callable, Sequence

import numpy as np
from rli_traces import (
    UTILISATIONS,
    Burstiness,
    Floats,
    deviation_errors,
    estimated,
    mean_errors,
    median_of,
    over_seeds,
    quantile,
    scale,
    show_burstiness,
    simulated,
)
from traces import arguments, show

from wirelag.estimators.rli import METHODS
from wirelag.sim.baselines import Estimates
from wirelag.sim.queue import FlowTruth, QueueScenario

SHARES = (0.10, 0.25, 0.50, 0.75, 0.90)
BUSIEST = UTILISATIONS[0]
DELAYS_US = (0, 10, 100, 1_000, 10_000)
SIZES = (1, 4, 11, 101, 1_001)
PAPER = {0.88: ".10-.12", 0.55: ".10-.12", 0.20: "about .30"}
PAPER_DELAYS = {100: ".12"}
PAPER_SIZES = {11: "<.11", 101: ".03", 1_001: ".03"}
PAPER_STD = {100: "<.20", 1_000: "<.20", 10_000: "<.20"}

Found = dict[tuple[str, float], list[tuple[Estimates, FlowTruth]]]  # by method and utilisation, one per seed
Errors = Callable[[Estimates, FlowTruth], Floats]


def main() -> None:
    chosen = arguments(__doc__)
    seeds, seconds = scale(chosen.quick)
    found: Found = {}
    burstiness: dict[float, list[Burstiness]] = {}
    for utilisation in UTILISATIONS:
        for seed in seeds:
            simulation = simulated(QueueScenario(utilisation, seed, seconds))
            burstiness.setdefault(utilisation, []).append(Burstiness.of(simulation))
            truth, receiver = simulation.truth(), simulation.receiver()
            for method in METHODS:
                one = estimated(simulation, method, receiver=receiver)
                found.setdefault((method, utilisation), []).append((one, truth))
    show_burstiness(burstiness)
    show_distribution("7: error of the mean of a flow", found, mean_errors, PAPER)
    show_bias(found)
    show_by("8a: average error of the mean", "true mean, us", DELAYS_US, found, mean_errors, means_us, PAPER_DELAYS)
    show_by("8b: average error of the mean", "packets", SIZES, found, mean_errors, packets, PAPER_SIZES)
    show_distribution("9a: error of the deviation of a flow", found, deviation_errors, {0.88: "<.12"})
    name = "9b: average error of the deviation"
    show_by(name, "true deviation, us", DELAYS_US, found, deviation_errors, deviations_us, PAPER_STD)


def means_us(truth: FlowTruth) -> Floats:
    """Mean delays, to group flows by."""
    return np.asarray(truth.mean_ns / 1e3)


def deviations_us(truth: FlowTruth) -> Floats:
    """Deviations, to group flows by."""
    return np.asarray(truth.std_ns / 1e3)


def packets(truth: FlowTruth) -> Floats:
    """Packet counts, to group flows by."""
    return truth.packets.astype(np.float64)


def show_distribution(title: str, found: Found, errors: Errors, paper: dict[float, str]) -> None:
    """Quantiles over flows; the median over seeds."""
    rows = []
    for (method, utilisation), runs in found.items():
        each = [errors(*one) for one in runs]
        cells = [over_seeds(each, share) for share in SHARES]
        said = paper.get(utilisation, "-") if method == "linear" else "-"
        rows.append((f"{method}, u = {utilisation:.2f}", *cells, said))
    header = ("quantiles over flows", *(f"{100 * share:g}%" for share in SHARES), "paper (50%)")
    show(f"{title}; median of {len(next(iter(found.values())))} seeds", header, rows)


def show_bias(found: Found) -> None:
    """Signed errors, and the share of packets with a delay."""
    rows = []
    for (method, utilisation), runs in found.items():
        signed = median_of(quantile((one.mean_ns - truth.mean_ns) / truth.mean_ns) for one, truth in runs)
        total = median_of(weighted(one) / weighted(truth) - 1 for one, truth in runs)
        covered = median_of(one.samples.sum() / truth.packets.sum() for one, truth in runs)
        rows.append((f"{method}, u = {utilisation:.2f}", signed, total, f"{100 * covered:.2f}"))
    show("bias: signed error", ("", "median flow", "all packets", "packets with a delay, %"), rows)


def weighted(of: Estimates | FlowTruth) -> float:
    """The mean over packets."""
    count = of.samples if isinstance(of, Estimates) else of.packets
    known = np.isfinite(of.mean_ns)
    return float(np.average(of.mean_ns[known], weights=count[known]))


def show_by(
    title: str,
    what: str,
    edges: Sequence[int],
    found: Found,
    errors: Errors,
    of: Callable[[FlowTruth], Floats],
    paper: dict[int, str],
) -> None:
    """The average, as in the paper, in groups of flows at the highest utilisation."""
    rows = []
    for low, high in zip(edges, (*edges[1:], np.inf), strict=True):
        cells: list[object] = []
        for method in METHODS:
            each = []
            for one, truth in found[method, BUSIEST]:
                mine = errors(one, truth)[(of(truth) >= low) & (of(truth) < high)]
                each.append(mine[np.isfinite(mine)])
            flows = int(median_of(len(mine) for mine in each))
            cells.append(median_of(float(mine.mean()) for mine in each if len(mine)) if flows else "-")
        last = high - 1 if of is packets else high
        name = f"{low:,} to {last:,.0f}" if np.isfinite(high) else f"from {low:,}"
        rows.append((name, *cells, flows, paper.get(low, "-")))
    show(f"{title}, u = {BUSIEST}", (what, *METHODS, "flows", "paper"), rows)


if __name__ == "__main__":
    main()
