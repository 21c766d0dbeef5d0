"""RLI, figure 2: how long delays stay high: the share of time in bursts of at least a duration, above a delay.

A burst above d: successive packets that all waited longer than d, from the first one's arrival to that of the packet
behind the last one. Q(x, d) is the share of all time in bursts that last x or longer. The paper asks at which duration
Q is one half for the mean delay; that exists only if delays exceed their mean for half of the time. So `half` is the
duration at which one half of the time above the mean is in bursts as long or longer.
"""

import numpy as np
import numpy.typing as npt
from rli_locality import Arrived, arrived
from rli_traces import UTILISATIONS, Burstiness, Floats, median_of, scale, show_burstiness, simulated
from traces import arguments, show

from wirelag.sim.queue import QueueScenario

DELAYS_MS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
LASTING_MS = (0.0, 0.1, 1.0, 10.0, 100.0)


def burst_ns(of: Arrived, least_ns: float) -> Floats:
    """The durations of bursts of delay above this."""
    above = of.queued_ns > least_ns
    edges = np.flatnonzero(np.diff(above, prepend=False, append=False))
    first, behind = edges[0::2], np.minimum(edges[1::2], len(above) - 1)
    return (of.time_ns[behind] - of.time_ns[first]).astype(np.float64)


def lasting(durations_ns: Floats, least_ns: float, all_ns: float) -> float:
    """Q: the share of time in bursts at least this long."""
    return float(durations_ns[durations_ns >= least_ns].sum()) / all_ns


def half_ns(durations_ns: Floats) -> float:
    """The duration that divides the time in bursts into halves: longer and shorter ones."""
    ordered: npt.NDArray[np.float64] = np.sort(durations_ns)
    return float(ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)]) if len(ordered) else float("nan")


def main() -> None:
    seeds, seconds = scale(arguments(__doc__).quick)
    burstiness: dict[float, list[Burstiness]] = {}
    shares: dict[tuple[float, float, float], list[float]] = {}  # by utilisation, delay, duration
    means: dict[float, list[tuple[float, float, float]]] = {}  # mean delay in ms, share of time above it, half in ms
    for utilisation in UTILISATIONS:
        for seed in seeds:
            simulation = simulated(QueueScenario(utilisation, seed, seconds, injection=False))
            burstiness.setdefault(utilisation, []).append(Burstiness.of(simulation))
            of = arrived(simulation)
            all_ns = float(of.time_ns[-1] - of.time_ns[0])
            for delay_ms in DELAYS_MS:
                durations = burst_ns(of, delay_ms * 1e6)
                for least_ms in LASTING_MS:
                    found = lasting(durations, least_ms * 1e6, all_ns)
                    shares.setdefault((utilisation, delay_ms, least_ms), []).append(found)
            mean_ns = float(of.queued_ns.mean())
            durations = burst_ns(of, mean_ns)
            about = mean_ns / 1e6, lasting(durations, 0, all_ns), half_ns(durations) / 1e6
            means.setdefault(utilisation, []).append(about)
    show_burstiness(burstiness)
    for u in UTILISATIONS:
        rows = [(f"{d:g}", *(median_of(shares[u, d, least]) for least in LASTING_MS)) for d in DELAYS_MS]
        header = ("delay above, ms", "all bursts", *(f"from {least:g} ms" for least in LASTING_MS[1:]))
        show(f"2: share of time in bursts, u = {u:.2f}; median of {len(seeds)} seeds", header, rows)
    halves: list[tuple[object, ...]] = [
        (f"{u:.2f}", *(median_of(column) for column in zip(*means[u], strict=True))) for u in UTILISATIONS
    ]
    paper: list[tuple[object, ...]] = [("SANJ (paper)", "0.390", "-", "10"), ("CHIC (paper)", "0.290", "-", "0.1")]
    header = ("utilisation", "mean delay, ms", "time above it", "half, ms")
    show("2: bursts above the mean delay", header, [*halves, *paper])


if __name__ == "__main__":
    main()
