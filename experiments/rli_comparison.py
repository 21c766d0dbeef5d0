"""RLI, figure 10: flows as RLI, trajectory sampling and the multiflow estimator see them.

One packet in 1,000 is sampled, as in the paper; only flows with a sampled packet that arrived are compared. RLI sees
them in two ways: as flows of interest, with all their packets, and by sample and hold, from the sampled packet on. The
paper does not state whether the truth is then that of the whole flow or of the packets held: both are shown.
"""

import numpy as np
from rli_traces import (
    UTILISATIONS,
    Burstiness,
    Floats,
    estimated,
    mean_errors,
    median_of,
    over_seeds,
    packets_of,
    scale,
    show_burstiness,
    simulated,
)
from traces import arguments, show

from wirelag.estimators.rli import METHODS
from wirelag.sim.baselines import LOST, SHARE, Estimates, Packets, multiflow, sampled, trajectory
from wirelag.sim.queue import QueueScenario

QUANTILES = (0.25, 0.50, 0.75, 0.90)
OTHERS = ("trajectory", "MFE")
TITLES = {
    "interest": "whole flows; RLI sees all their packets",
    "held": "the packets held; RLI by sample and hold",
    "mixed": "whole flows; RLI by sample and hold",
}
PAPER = {"trajectory": ".80 at high u", "MFE": "less", "linear": "<.01 at high u", "left": ".03 at high u"}


def held(packets: Packets, flows: int) -> Packets:
    """The packets that arrived, of each flow from the first sampled one on."""
    arrived = np.flatnonzero(packets.left_ns != LOST)
    opening = arrived[sampled(packets.id[arrived])]
    first = np.full(flows, len(packets.id))
    np.minimum.at(first, packets.flow[opening], opening)
    rows = arrived[arrived >= first[packets.flow[arrived]]]
    return Packets(packets.flow[rows], packets.id[rows], packets.sent_ns[rows], packets.left_ns[rows])


Errors = dict[tuple[str, str], Floats]  # errors of the sampled flows, by comparison and method


def compared(utilisation: float, seed: int, seconds: float) -> tuple[Burstiness, float, Errors]:
    """Errors, and the share of these flows with a single sampled packet."""
    simulation = simulated(QueueScenario(utilisation, seed, seconds))
    packets, flows, receiver = packets_of(simulation), simulation.bursts.flows, simulation.receiver()
    whole, later = (trajectory(these, flows, share=1) for these in (packets, held(packets, flows)))
    found: dict[str, Estimates] = {"trajectory": trajectory(packets, flows), "MFE": multiflow(packets, flows)}
    same = found["trajectory"].samples > 0
    errors: Errors = {}
    for method in METHODS:
        all_packets = estimated(simulation, method, receiver=receiver)
        by_hold = estimated(simulation, method, SHARE, receiver)
        errors["interest", method] = mean_errors(all_packets, whole)[same]
        errors["held", method] = mean_errors(by_hold, later)[same]
        errors["mixed", method] = mean_errors(by_hold, whole)[same]
    for name, other in found.items():
        errors["interest", name] = errors["mixed", name] = mean_errors(other, whole)[same]
        errors["held", name] = mean_errors(other, later)[same]
    return Burstiness.of(simulation), float((found["trajectory"].samples[same] == 1).mean()), errors


def main() -> None:
    chosen = arguments(__doc__)
    seeds, seconds = scale(chosen.quick)
    burstiness: dict[float, list[Burstiness]] = {}
    found: dict[float, list[Errors]] = {}
    single: dict[float, list[float]] = {}
    for utilisation in UTILISATIONS:
        for seed in seeds:
            bursty, share, errors = compared(utilisation, seed, seconds)
            single.setdefault(utilisation, []).append(share)
            burstiness.setdefault(utilisation, []).append(bursty)
            found.setdefault(utilisation, []).append(errors)
    show_burstiness(burstiness)
    header = ("median over flows", *(f"u = {u:.2f}" for u in UTILISATIONS), "paper")
    for against, title in TITLES.items():
        middle = {
            name: [over_seeds([one[against, name] for one in found[u]]) for u in UTILISATIONS]
            for name in (*OTHERS, *METHODS)
        }
        rows: list[tuple[object, ...]] = [(name, *cells, PAPER.get(name, "-")) for name, cells in middle.items()]
        best = np.array([middle[name] for name in OTHERS]).min(axis=0)
        rows += [
            (f"better of the two over {name}", *(f"{ratio:.1f}" for ratio in best / middle[name]), "-")
            for name in METHODS
        ]
        show(f"10: error of the mean, truth: {title}", header, rows)
    header = ("quantiles over flows", *(f"{100 * share:g}%" for share in QUANTILES))
    busiest = found[UTILISATIONS[0]]
    rows = [
        (name, *(over_seeds([one["held", name] for one in busiest], share) for share in QUANTILES))
        for name in (*OTHERS, *METHODS)
    ]
    show(f"10a: error of the mean, truth: {TITLES['held']}, u = {UTILISATIONS[0]}", header, rows)
    counts = [int(median_of(len(one["held", "MFE"]) for one in found[u])) for u in UTILISATIONS]
    shares = [f"{100 * median_of(single[u]):.0f}" for u in UTILISATIONS]
    header = (f"median of {len(seeds)} seeds", *(f"u = {u:.2f}" for u in UTILISATIONS))
    show("flows that are compared", header, [("flows", *counts), ("with one sampled packet, %", *shares)])


if __name__ == "__main__":
    main()
