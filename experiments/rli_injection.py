"""RLI, figures 5, 6 and more: how often, and when, references are sent.

Figure 5: one reference in n packets, without a bound on their bytes. Figure 6: n = 300, and tau such that both give as
many references at u = 0.88 (the paper: 780 us); adaptive from one in 300 to one in 10, without a bound as in the paper,
and with ours of 0.5% of the link's bytes. Last, the purpose of the wait before a reference: directly after the packet
that made it due, it would wait for that packet's own transmission.
"""

from dataclasses import replace

from rli_traces import (
    BYTES_PER_S,
    UTILISATIONS,
    Burstiness,
    Floats,
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

from wirelag.estimators.rli import Method
from wirelag.packets.injection import Injection
from wirelag.sim.queue import QueueScenario

COUNTS = (1000, 300, 100, 30, 10, 3, 1)  # packets per reference
RATES_AT = (0.70, 0.20)
SHOWN: tuple[Method, ...] = ("linear", "busy")
UNBOUNDED = 1.0
BOUNDED = "adaptive, 0.5%"
KINDS = {
    "1-in-300": Injection(BYTES_PER_S, "1-in-n", n=300, most_share=UNBOUNDED),
    "1-in-tau, 1 ms": Injection(BYTES_PER_S, "1-in-tau", tau_ns=1_000_000, most_share=UNBOUNDED),
    "both": Injection(BYTES_PER_S, "both", n=300, tau_ns=1_000_000, most_share=UNBOUNDED),
    "adaptive": Injection(BYTES_PER_S, "adaptive", most_share=UNBOUNDED),
    BOUNDED: Injection(BYTES_PER_S, "adaptive"),
}
PAPER_RATES = {0.70: {1000: ".43", 10: ".05"}, 0.20: {1000: ".28-.36", 10: ".28-.36"}}
PAPER_INJECTED = {"adaptive": {0.88: "0.6", 0.70: "4.8", 0.55: "9", 0.20: "10"}, "1-in-300": {0.88: "0.35"}}


WAITED_AT = 0.20


class Found:
    """The results of one kind of injection, over the seeds."""

    def __init__(self, utilisation: float, injection: Injection, seeds: range, seconds: float) -> None:
        self.errors: dict[str, list[Floats]] = {method: [] for method in SHOWN}
        self.signed: dict[str, list[float]] = {method: [] for method in SHOWN}
        self.injected: list[float] = []
        self.share: list[float] = []
        self.loss: list[float] = []
        for seed in seeds:
            simulation = simulated(QueueScenario(utilisation, seed, seconds, injection=injection))
            truth, receiver = simulation.truth(), simulation.receiver()
            for method in SHOWN:
                one = estimated(simulation, method, receiver=receiver)
                self.errors[method].append(mean_errors(one, truth))
                self.signed[method].append(quantile((one.mean_ns - truth.mean_ns) / truth.mean_ns))
            self.injected.append(len(simulation.reference_sent_ns) / len(simulation.bursts))
            self.share.append(simulation.reference_share)
            self.loss.append(simulation.loss)

    def cells(self) -> list[object]:
        """25%, 50% and 75% of linear; 50% of busy."""
        linear = [over_seeds(self.errors["linear"], share) for share in (0.25, 0.50, 0.75)]
        return [*linear, over_seeds(self.errors["busy"])]


def main() -> None:
    chosen = arguments(__doc__)
    seeds, seconds = scale(chosen.quick)
    burstiness: dict[float, list[Burstiness]] = {
        utilisation: [
            Burstiness.of(simulated(QueueScenario(utilisation, seed, seconds, injection=False))) for seed in seeds
        ]
        for utilisation in UTILISATIONS
    }
    show_burstiness(burstiness)
    header = (
        "",
        "linear 25%",
        "50%",
        "75%",
        "busy 50%",
        "references, % of packets",
        "of link",
        "loss, %",
        "paper (50%)",
    )
    for utilisation in RATES_AT:
        rows = []
        for n in COUNTS:
            found = Found(utilisation, Injection(BYTES_PER_S, "1-in-n", n=n, most_share=UNBOUNDED), seeds, seconds)
            sent, share = f"{100 * median_of(found.injected):.1f}", f"{100 * median_of(found.share):.2f}"
            loss = f"{100 * median_of(found.loss):.3f}"
            rows.append((f"1 in {n}", *found.cells(), sent, share, loss, PAPER_RATES[utilisation].get(n, "-")))
        show(f"5: error of the mean, u = {utilisation:.2f}, against the rate of references", header, rows)
    by_kind = {(name, u): Found(u, kind, seeds, seconds) for u in UTILISATIONS for name, kind in KINDS.items()}
    columns = [f"u = {u:.2f}" for u in UTILISATIONS]
    for method in SHOWN:
        for part in (0.50, 0.75):
            cells = [
                (name, *(over_seeds(by_kind[name, u].errors[method], part) for u in UTILISATIONS)) for name in KINDS
            ]
            show(f"6: error of the mean, {method}, {100 * part:g}% of flows", ("injection", *columns), cells)
    each = [(name, *(f"{100 * median_of(by_kind[name, u].injected):.2f}" for u in UTILISATIONS)) for name in KINDS]
    each += [(f"{name}, paper", *(said.get(u, "-") for u in UTILISATIONS)) for name, said in PAPER_INJECTED.items()]
    show("6: references, % of packets", ("injection", *columns), each)
    each = [(name, *(f"{100 * median_of(by_kind[name, u].share):.3f}" for u in UTILISATIONS)) for name in KINDS]
    show("6: references, % of the link's bytes", ("injection", *columns), each)
    show_wait(by_kind[BOUNDED, WAITED_AT], seeds, seconds)


def show_wait(waited: Found, seeds: range, seconds: float) -> None:
    """References 1 us after the packet that made them due, and directly after it."""
    kind = KINDS[BOUNDED]
    both = {
        f"{kind.wait_ns / 1e3:g} us": waited,
        "none": Found(WAITED_AT, replace(kind, wait_ns=0), seeds, seconds),
    }
    rows = [
        (
            f"{method}, wait {name}",
            *(f"{end(found.signed[method]):+.3f}" for end in (min, median_of, max)),
            over_seeds(found.errors[method]),
        )
        for method in SHOWN
        for name, found in both.items()
    ]
    header = ("median over flows", "signed error, least", "median", "most of the seeds", "error")
    show(f"the instant: {BOUNDED}, u = {WAITED_AT:.2f}, {len(seeds)} seeds", header, rows)


if __name__ == "__main__":
    main()
