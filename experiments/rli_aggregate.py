"""RLI, figure 11: the mean and deviation of all packets of a second, by RLI and by LDA, against loss.

LDA has two banks of 512 rows, tuned to 0.5% and 10% of loss, and sees traffic without references, with intervals cut at
the same packets at both ends. RLI has 288 and 1,440 references per second, as in the paper, or adaptive ones; it has
only what the receiver saw. The truth is that of packets that arrived. Loss is RED's, from the utilisation.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from crossing_traces import Packets, mean_of, percent, runs
from rli_traces import (
    BYTES_PER_S,
    Burstiness,
    ids_of,
    kernel_for,
    parts,
    scale,
    show_burstiness,
    simulated,
    taken,
)
from traces import arguments, show

from wirelag.estimators.lda import tuned
from wirelag.estimators.rli import Method
from wirelag.packets.injection import Injection
from wirelag.packets.stamp import NONE
from wirelag.sim.queue import QueueScenario, QueueSimulation
from wirelag.sim.truth import START_NS

Ints = npt.NDArray[np.int64]
Answer = tuple[float, float]  # signed error of the mean, error of the deviation

SECOND_NS = 10**9
UTILISATIONS = (0.55, 0.70, 0.80, 0.88, 0.95, 1.05)
ROWS, TUNED, LDA_BYTES = 512, (0.005, 0.1), 16 * 2 * 512
INJECTIONS = {
    "288 Hz": Injection(BYTES_PER_S, "1-in-tau", tau_ns=SECOND_NS // 288),
    "1440 Hz": Injection(BYTES_PER_S, "1-in-tau", tau_ns=SECOND_NS // 1440),
    "adaptive": Injection(BYTES_PER_S, "adaptive"),
}
SHOWN: tuple[Method, ...] = ("linear", "busy")
PAPER = {"LDA": "0.1-1.3", "linear, 288 Hz": "<2.5", "linear, 1440 Hz": "<0.3 (loss >0.4%)"}
PAPER_STD = {"LDA": "1-27 (variance)", "linear, 1440 Hz": "0.005 (variance)"}


def seconds_of(simulation: QueueSimulation, time_ns: Ints) -> Ints:
    """The rows at which each whole second ends."""
    whole = range(1, int(simulation.scenario.seconds) + 1)
    return np.searchsorted(time_ns, [START_NS + second * SECOND_NS for second in whole])


def by_rli(simulation: QueueSimulation, method: Method) -> list[Answer]:
    """Each second of the receiver's packets."""
    seen, kernel = simulation.receiver(), kernel_for(simulation, method)
    ends = seconds_of(simulation, seen.time_ns).tolist()
    answers = []
    for part, start, end in zip(parts(simulation, seen, ends), [0, *ends], ends, strict=False):
        kernel.observe(*part)
        said = taken(kernel, method, together=True).table()
        regular = start + np.flatnonzero(seen.is_reference[start:end] == 0)
        true_ns = seen.time_ns[regular] - seen.sent_ns[regular]
        mean_ns, std_ns = 1e9 * float(said["mean"][0]), 1e9 * float(said["std"][0])
        answers.append((float(mean_ns / true_ns.mean() - 1), abs(float(std_ns / true_ns.std() - 1))))
    return answers


def by_lda(simulation: QueueSimulation, seed: int) -> list[Answer]:
    """The same seconds: packets from the first that arrives in one to the last before that of the next."""
    left_ns, sent_ns = simulation.left_ns, simulation.bursts.time_ns
    rows = np.flatnonzero(left_ns != NONE)
    ends = rows[seconds_of(simulation, START_NS + left_ns[rows]) - 1] + 1
    answers = []
    for start, end in zip((0, *ends), ends, strict=False):
        one = slice(int(start), int(end))
        arrived = left_ns[one] != NONE
        packets = Packets(ids_of(np.arange(start, end)), sent_ns[one], simulation.delay_ns[one])
        shifts = tuned(int(end - start), TUNED, ROWS)
        (run,) = runs(packets, arrived, ROWS, shifts, [seed])
        answers.append(((run.rows.mean_ns or 0.0) / run.true_ns - 1, run.deviation_error))
    return answers


def main() -> None:
    chosen = arguments(__doc__)
    seeds, seconds = scale(chosen.quick)
    burstiness: dict[float, list[Burstiness]] = {}
    found: dict[tuple[str, float], list[Answer]] = {}
    sizes: dict[str, list[float]] = {"LDA": [LDA_BYTES]}
    for utilisation in UTILISATIONS:
        for seed in seeds:
            without = simulated(QueueScenario(utilisation, seed, seconds, injection=False))
            burstiness.setdefault(utilisation, []).append(Burstiness.of(without))
            found.setdefault(("LDA", utilisation), []).extend(by_lda(without, seed))
            for name, injection in INJECTIONS.items():
                simulation = simulated(QueueScenario(utilisation, seed, seconds, injection=injection))
                for method in SHOWN:
                    key = f"{method}, {name}"
                    found.setdefault((key, utilisation), []).extend(by_rli(simulation, method))
                    sent = len(simulation.reference_sent_ns) * injection.size
                    sizes.setdefault(key, []).append(sent / seconds)
    show_burstiness(burstiness)
    losses = [mean_of([one.loss for one in burstiness[u]]) for u in UTILISATIONS]
    columns = [f"u = {u:.2f} ({100 * loss:.2f}%)" for u, loss in zip(UTILISATIONS, losses, strict=True)]
    header = ("against utilisation (loss)", *columns, "bytes/s", "paper")
    count = len(found["LDA", UTILISATIONS[0]])
    said: Callable[[Answer], float]
    for title, said, paper in (
        ("error of the mean", lambda one: abs(one[0]), PAPER),
        ("signed error of the mean", lambda one: one[0], {}),
        ("error of the deviation", lambda one: one[1], PAPER_STD),
    ):
        rows = [
            (
                name,
                *(percent(mean_of([said(one) for one in found[name, u]])) for u in UTILISATIONS),
                f"{min(sent):,.0f} to {max(sent):,.0f}" if max(sent) > min(sent) else f"{sent[0]:,.0f}",
                paper.get(name, "-"),
            )
            for name, sent in sizes.items()
        ]
        show(f"11: {title} of a second, %, mean of {count} seconds", header, rows)


if __name__ == "__main__":
    main()
