"""Shared by the RLI experiments: traffic through a queue, the receiver's estimates of flows, errors.

The traffic is that of sim/bursts.py: heavy-tailed flows that send in bursts. A delay includes the packet's own
transmission. The receiver's clock is exact. It knows the drain rate only for `busy`, like `wirelag flows` without
--drain: so `linear` and `left` treat serialisation as a part of the delay common to all packets. An error is
|estimated - true|/true of a flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from traces import show

from wirelag import _kernels
from wirelag.estimators.rli import Method, Rli
from wirelag.packets.stamp import NONE
from wirelag.sim.baselines import Estimates, Packets
from wirelag.sim.bursts import dispersion, draw_bursts, peak_to_mean
from wirelag.sim.queue import FlowTruth, QueueScenario, QueueSimulation, Receiver, run
from wirelag.sim.scramble import scramble
from wirelag.stats.queue_drain import Drain
from wirelag.synopses.flows import COLUMN, RECORD, Flows

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

UTILISATIONS = (0.88, 0.70, 0.55, 0.20)
BYTES_PER_S = QueueScenario().bytes_per_s
SEEDS, SECONDS = range(1, 6), 8.0
QUICK_SEEDS, QUICK_SECONDS = range(1, 3), 1.0
SLOT_BYTES = 128  # per flow in the table
PARTS = 1 << 16  # rows per call of the kernel
WIDTHS_NS = (10**6, 10**7, 10**8)  # time scales of burstiness


def scale(quick: bool) -> tuple[range, float]:
    """Seeds, and seconds of traffic."""
    return (QUICK_SEEDS, QUICK_SECONDS) if quick else (SEEDS, SECONDS)


drawn = lru_cache(maxsize=1)(draw_bursts)  # the same traffic is often sent through several queues in turn


def simulated(scenario: QueueScenario, coins: int | None = None) -> QueueSimulation:
    """A run of the scenario; RED may use the coins of another seed."""
    bursts = drawn(scenario.utilisation * scenario.bytes_per_s, scenario.seconds, scenario.seed)
    return run(scenario, bursts=bursts, coins=coins)


def ids_of(rows: npt.NDArray[np.int64]) -> Words:
    """The ids of packets, by their row at the sender."""
    return scramble(rows)


def packets_of(simulation: QueueSimulation) -> Packets:
    """The regular packets, for the methods that time some of them at both ends."""
    bursts = simulation.bursts
    return Packets(bursts.flow, ids_of(np.arange(len(bursts))), bursts.time_ns, simulation.left_ns)


# ---- RLI over them ----


def kernel_for(simulation: QueueSimulation, method: Method, hold: float = 1.0) -> _kernels.Rli:
    """RLI with room for four times the flows: almost none is evicted."""
    memory = 1024 + 4 * SLOT_BYTES * simulation.bursts.flows
    rate = simulation.scenario.bytes_per_s if method == "busy" else 0
    return Rli(method=method, memory=memory, hold=hold).kernel(Drain(rate, 0.0))


def estimated(
    simulation: QueueSimulation, method: Method, hold: float = 1.0, receiver: Receiver | None = None
) -> Estimates:
    """RLI's estimates of every flow; with `hold` below 1, of those opened by a sampled packet, from it on."""
    kernel = kernel_for(simulation, method, hold)
    seen = receiver or simulation.receiver()
    for part in parts(simulation, seen, range(PARTS, len(seen) + PARTS, PARTS)):
        kernel.observe(*part)
    table = taken(kernel, method).table()
    samples = np.zeros(simulation.bursts.flows, np.int64)
    mean_ns, std_ns = (np.full(len(samples), np.nan) for _ in range(2))
    flow = table["key"].astype(np.int64) - 1
    samples[flow], mean_ns[flow], std_ns[flow] = table["timed"], 1e9 * table["mean"], 1e9 * table["std"]
    return Estimates(samples, mean_ns, std_ns)


def taken(kernel: _kernels.Rli, method: Method, together: bool = False) -> Flows:
    """The flows since the last call, or all of them as one; the rest of the synopsis is empty."""
    kernel.cut()
    records = np.empty((kernel.records, len(RECORD)), np.uint64)
    kernel.take(records)
    if together:
        records[:, COLUMN["key"]] = 1
    return Flows(method, Drain(0, 0.0), kernel.trusted, kernel.base_ns, records, 0, 0, 0, 0, 0, ()).merged()


Part = tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.uint8],
    npt.NDArray[np.uint32],
    Words,
    Words,
    npt.NDArray[np.uint32],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    Words,
]


def parts(simulation: QueueSimulation, seen: Receiver, ends: Iterable[int]) -> Iterator[Part]:
    """The receiver's packets, up to each of these rows, as input of the kernel."""
    key = seen.flow.astype(np.uint64) + np.uint64(1)
    ids = ids_of(seen.number)
    start = 0
    for end in ends:
        kind = seen.is_reference[start:end]
        at = start + np.flatnonzero(kind)
        number = seen.number[at]
        previous_id = ids_of(simulation.reference_behind[number])
        yield (
            seen.time_ns[start:end], kind, seen.size[start:end], key[start:end], ids[start:end],
            number.astype(np.uint32), seen.sent_ns[at], seen.previous_sent_ns[at], previous_id,
        )  # fmt: skip
        start = end


# ---- errors ----


def mean_errors(found: Estimates, truth: FlowTruth | Estimates) -> Floats:
    """Errors of each flow's mean; nan if one of them has none."""
    return np.asarray(np.abs(found.mean_ns - truth.mean_ns) / truth.mean_ns)


def deviation_errors(found: Estimates, truth: FlowTruth | Estimates) -> Floats:
    """Errors of each flow's deviation; nan without a truth or a deviation."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(truth.std_ns > 0, np.abs(found.std_ns - truth.std_ns) / truth.std_ns, np.nan))


def median_of(values: Iterable[float]) -> float:
    """Median over seeds."""
    return float(np.median(list(values)))


def quantile(errors: Floats, share: float = 0.5) -> float:
    """Quantile over the flows that have an error."""
    return float(np.nanquantile(errors, share)) if np.isfinite(errors).any() else float("nan")


def over_seeds(errors: Sequence[Floats], share: float = 0.5) -> float:
    """A quantile over flows; the median of it over seeds."""
    return median_of(quantile(one, share) for one in errors)


# ---- how bursty the traffic is ----


@dataclass(frozen=True)
class Burstiness:
    """Burstiness of one run; shown beside every accuracy, because easier traffic gives better numbers."""

    peaks: list[float]
    dispersions: list[float]
    delay_us: float
    loss: float

    @classmethod
    def of(cls, simulation: QueueSimulation) -> Burstiness:
        """Regular packets as sent, and their fate."""
        time_ns, size, delay_ns = simulation.bursts.time_ns, simulation.bursts.size, simulation.delay_ns
        return cls(
            [peak_to_mean(time_ns, size, width_ns) for width_ns in WIDTHS_NS],
            [dispersion(time_ns, width_ns) for width_ns in WIDTHS_NS],
            float(delay_ns[delay_ns != NONE].mean()) / 1e3,
            simulation.loss,
        )


def show_burstiness(found: dict[float, list[Burstiness]]) -> None:
    """By utilisation, the median over seeds."""
    names = [f"{width_ns // 10**6} ms" for width_ns in WIDTHS_NS]
    header = ("utilisation", *(f"peak/mean {n}" for n in names), *(f"dispersion {n}" for n in names))
    rows = [
        (
            f"{utilisation:.2f}",
            *(f"{value:.2f}" for value in np.median([one.peaks for one in runs], axis=0)),
            *(f"{value:.1f}" for value in np.median([one.dispersions for one in runs], axis=0)),
            f"{median_of(one.delay_us for one in runs):.1f}",
            f"{100 * median_of(one.loss for one in runs):.3f}",
        )
        for utilisation, runs in found.items()
    ]
    count = len(next(iter(found.values())))
    show(f"burstiness: bytes, packets as sent; median of {count} seeds", (*header, "mean delay us", "loss %"), rows)
