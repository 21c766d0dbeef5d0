"""RLI, figure 1, table I: how near a flow's mean delay is to that of all packets sent at about the same time.

Delay here is the time in the queue, without the packet's own transmission. Every packet gets the mean delay of all
packets (as in the paper), or of those of other flows, in its time slice. R, of table I, is the 99th over the 1st
percentile of flows' mean delays.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rli_traces import (
    UTILISATIONS,
    Burstiness,
    Floats,
    median_of,
    over_seeds,
    quantile,
    scale,
    show_burstiness,
    simulated,
)
from traces import arguments, show

from wirelag.packets.stamp import NONE
from wirelag.sim.queue import QueueScenario, QueueSimulation

Ints = npt.NDArray[np.int64]

SLICES_MS = (0.1, 1.0, 10.0, 100.0, 1000.0)
SIZES = (1, 11, 101)  # minimum packets of a flow
LEAST_NS = 1.0  # flows that did not wait are left out: a relative error of 0 is meaningless


class Arrived(NamedTuple):
    """The packets that arrived."""

    flow: Ints
    time_ns: Ints
    queued_ns: Floats
    packets: Floats  # packets per flow
    mean_ns: Floats


def arrived(simulation: QueueSimulation) -> Arrived:
    """The packets that arrived, with the truth of each flow."""
    bursts, delay_ns = simulation.bursts, simulation.delay_ns
    rows = np.flatnonzero(delay_ns != NONE)
    flow = bursts.flow[rows].astype(np.int64)
    # Departures are integer ns: a packet that finds the queue empty leaves up to 1 ns before its transmission ends.
    queued_ns = np.maximum(delay_ns[rows] - bursts.size[rows] * 1e9 / simulation.scenario.bytes_per_s, 0)
    packets = np.bincount(flow, minlength=bursts.flows).astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean_ns = np.bincount(flow, queued_ns, bursts.flows) / packets
    return Arrived(flow, bursts.time_ns[rows], queued_ns, packets, np.where(mean_ns >= LEAST_NS, mean_ns, np.nan))


def localised(of: Arrived, width_ns: int, others: bool) -> tuple[Floats, float]:
    """Errors of flows' means from slices of this width; and the median number of packets in a packet's slice."""
    piece = of.time_ns // width_ns
    count, total = np.bincount(piece)[piece], np.bincount(piece, of.queued_ns)[piece]
    size = float(np.median(count))
    if others:
        _, own = np.unique(of.flow * (piece.max() + 1) + piece, return_inverse=True)
        own = own.reshape(-1)
        count, total = count - np.bincount(own)[own], total - np.bincount(own, of.queued_ns)[own]
    used = np.flatnonzero(count > 0)
    flows = len(of.packets)
    with np.errstate(invalid="ignore", divide="ignore"):
        near_ns = np.bincount(of.flow[used], total[used] / count[used], flows) / np.bincount(
            of.flow[used], minlength=flows
        )
    return np.asarray(np.abs(near_ns - of.mean_ns) / of.mean_ns), size


def main() -> None:
    chosen = arguments(__doc__)
    seeds, seconds = scale(chosen.quick)
    burstiness: dict[float, list[Burstiness]] = {}
    spread: dict[float, list[float]] = {}
    errors: dict[tuple[float, bool, float], list[Floats]] = {}  # by utilisation, others alone, slice
    sizes: dict[tuple[float, float], list[float]] = {}
    packets: list[Floats] = []
    for utilisation in UTILISATIONS:
        for seed in seeds:
            simulation = simulated(QueueScenario(utilisation, seed, seconds, injection=False))
            burstiness.setdefault(utilisation, []).append(Burstiness.of(simulation))
            of = arrived(simulation)
            if utilisation == UTILISATIONS[0]:
                packets.append(of.packets)
            spread.setdefault(utilisation, []).append(quantile(of.mean_ns, 0.99) / quantile(of.mean_ns, 0.01))
            for slice_ms in SLICES_MS:
                for others in (False, True):
                    found, size = localised(of, round(slice_ms * 1e6), others)
                    errors.setdefault((utilisation, others, slice_ms), []).append(found)
                sizes.setdefault((utilisation, slice_ms), []).append(size)
            average = float(of.queued_ns.mean())
            errors.setdefault((utilisation, False, np.inf), []).append(np.abs(average - of.mean_ns) / of.mean_ns)
    show_burstiness(burstiness)
    names = [f"{slice_ms:g} ms" for slice_ms in SLICES_MS]
    rows: list[tuple[object, ...]] = []
    for u in UTILISATIONS:
        mine = [over_seeds(errors[u, False, slice_ms]) for slice_ms in (*SLICES_MS, np.inf)]
        other = [over_seeds(errors[u, True, slice_ms]) for slice_ms in SLICES_MS]
        ratio = f"{median_of(spread[u]):,.0f}"
        rows.append((f"u = {u:.2f}", *mine, ratio))
        rows.append((f"u = {u:.2f}, other flows alone", *other, "-", "-"))
        rows.append(
            (f"u = {u:.2f}, packets in a slice", *(f"{median_of(sizes[u, s]):.0f}" for s in SLICES_MS), "-", "-")
        )
    header = ("median over flows", *names, "all time", "R")
    show(f"1: error of the localised mean, against slices; median of {len(seeds)} seeds", header, rows)
    u = UTILISATIONS[0]
    rows = []
    for low, high in zip(SIZES, (*SIZES[1:], np.inf), strict=True):
        chosen_flows = [(count >= low) & (count < high) for count in packets]
        cells = [
            over_seeds([one[flows] for one, flows in zip(errors[u, False, s], chosen_flows, strict=True)])
            for s in (*SLICES_MS, np.inf)
        ]
        rows.append((f"{low} to {high - 1:.0f}" if np.isfinite(high) else f"from {low}", *cells))
    show(f"1: the same by packets of a flow, u = {u}", ("packets", *names, "all time"), rows)


if __name__ == "__main__":
    main()
