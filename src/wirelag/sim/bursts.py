"""Bursty traffic into a queue: many flows of bursts over one line.

Flows start uniformly over the time; their packet counts are Pareto. A flow sends bursts of 2, 4, ... 64 packets, one
per round trip, at the rate of its own access line; all flows share one line, after which packets are timed.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LEAST_PACKETS, MOST_PACKETS, SHAPE = 3, 20_000, 1.2  # packets of a flow: bounded Pareto
LEAST_TRIP_S, MOST_TRIP_S = 0.001, 0.060  # log-uniform
LEAST_ACCESS, MOST_ACCESS = 0.1e9, 10e9  # bits/s, log-uniform
LINE: Final = 10  # Gb/s
LARGEST_BURST: Final = 64
RAMP: Final = 62  # packets in the bursts of 2, 4, ... 32
TINY, SMALL, LARGE = 40, 740, 1500  # bytes of an IP packet
# Shares of flows: all packets of 40 bytes; 40 to 740; the others 1500 and a short last one.
SHARE_TINY, SHARE_SMALL = 0.40, 0.15
MEAN_FLOW_BYTES: Final = 8_000  # rough value: a first guess of the number of flows
MOST_FLOWS: Final = 1 << 22


class TooManyFlowsError(ValueError):
    """The request takes more than MOST_FLOWS flows."""


@dataclass(frozen=True)
class Bursts:
    """Packets in the order in which they leave the line."""

    time_ns: Ints  # last byte off the line
    flow: npt.NDArray[np.uint32]
    size: npt.NDArray[np.uint32]
    flows: int

    def __len__(self) -> int:
        return len(self.time_ns)


def draw_bursts(bytes_per_s: float, seconds: float, seed: int) -> Bursts:
    """Draw flows until their packets within `seconds` have this mean rate.

    >>> bursts = draw_bursts(125e6, 0.5, seed=1)
    >>> bool(0.9 < bursts.size.sum() / 62.5e6 < 1.1)
    True
    """
    wanted = bytes_per_s * seconds
    flows = int(wanted / MEAN_FLOW_BYTES * 1.5) + 100
    while flows <= MOST_FLOWS:
        bursts = _draw(flows, seconds, np.random.default_rng(seed))
        carried = np.cumsum(np.bincount(bursts.flow, bursts.size, flows))
        if carried[-1] >= wanted:
            return _first_flows(bursts, int(np.abs(carried - wanted).argmin()) + 1, seconds)
        flows *= 2
    raise TooManyFlowsError(f"{bytes_per_s:,.0f} bytes/s for {seconds} s take more than {MOST_FLOWS:,} flows")


def peak_to_mean(time_ns: Ints, size: npt.NDArray[np.uint32], width_ns: int) -> float:
    """Bytes in the busiest time bin over the mean of all bins.

    >>> peak_to_mean(np.array([0, 1, 2, 10, 20, 30]), np.ones(6, np.uint32), 10)
    2.0
    """
    carried = np.bincount((time_ns - time_ns[0]) // width_ns, size)
    return float(carried.max() / carried.mean())


def dispersion(time_ns: Ints, width_ns: int) -> float:
    """Variance over mean of the number of packets per time bin: 1 for a Poisson process.

    >>> dispersion(np.arange(0, 1000, 5), 10)
    0.0
    """
    count = np.bincount((time_ns - time_ns[0]) // width_ns)
    return float(count.var() / count.mean())


def _draw(flows: int, seconds: float, rng: np.random.Generator) -> Bursts:
    """All packets of these flows that their access lines carry within the time, by flow."""
    begin_ns = rng.uniform(0, seconds * 1e9, flows)
    packets = _pareto(rng.random(flows))
    trip_ns = 1e9 * _log_uniform(rng.random(flows), LEAST_TRIP_S, MOST_TRIP_S)
    ns_per_byte = 8e9 / _log_uniform(rng.random(flows), LEAST_ACCESS, MOST_ACCESS)
    sort = rng.random(flows)

    # The round trips before each burst: none before the first one.
    bursts = _burst_of(packets - 1) + 1
    owner = np.repeat(np.arange(flows), bursts)
    first_burst = np.cumsum(bursts) - bursts
    trips = trip_ns[owner] * rng.uniform(0.8, 1.2, len(owner))
    trips[first_burst] = 0
    waited = np.cumsum(trips)
    burst_ns = begin_ns[owner] + waited - waited[first_burst][owner]

    # Bursts that would start after the end need no packets.
    rank = np.arange(len(owner)) - first_burst[owner]
    of_burst = np.minimum(packets[owner] - _first_of(rank), 2 << np.minimum(rank, 5))
    kept = burst_ns < seconds * 1e9
    owner, burst_ns, of_burst, rank = owner[kept], burst_ns[kept], of_burst[kept], rank[kept]
    burst = np.repeat(np.arange(len(owner)), of_burst)
    flow = owner[burst]
    begin = np.cumsum(of_burst) - of_burst
    number = _first_of(rank[burst]) + np.arange(len(burst)) - begin[burst]
    size = _sizes(sort[flow], number == packets[flow] - 1, rng)

    # An access line sends a burst after the previous one: a cumulative maximum, each flow above all of the previous
    # one. In integer ns: floats as large as the last of many flows would not resolve microseconds.
    work_ns = size * ns_per_byte[flow]
    spent = np.cumsum(work_ns)
    first = np.searchsorted(flow, np.arange(flows))
    own = spent - np.append(0.0, spent)[first][flow]
    above = flow * (int(seconds * 1e9) + 1)  # at most 2^22 flows of 600 s: below 2^62
    begin_sending = (burst_ns[burst] - (own - work_ns)).astype(np.int64)
    time_ns = np.maximum.accumulate(begin_sending + above) - above + own.astype(np.int64)
    inside = time_ns < seconds * 1e9
    return Bursts(time_ns[inside], flow[inside].astype(np.uint32), size[inside].astype(np.uint32), flows)


def _first_flows(bursts: Bursts, flows: int, seconds: float) -> Bursts:
    """The packets of the first flows, over the shared line."""
    rows = np.flatnonzero(bursts.flow < flows)
    rows = rows[np.argsort(bursts.time_ns[rows], kind="stable")]
    size = bursts.size[rows]
    work = size * np.int64(8)  # in 1/LINE ns
    done = np.cumsum(work)
    time_ns = (np.maximum.accumulate(bursts.time_ns[rows] * LINE - (done - work)) + done) // LINE
    kept = slice(0, int(np.searchsorted(time_ns, int(seconds * 1e9))))
    return Bursts(time_ns[kept], bursts.flow[rows][kept], size[kept], flows)


def _pareto(uniform: Floats) -> Ints:
    """Bounded Pareto, rounded down."""
    tail = (LEAST_PACKETS / MOST_PACKETS) ** SHAPE
    return np.asarray(LEAST_PACKETS * (1 - uniform * (1 - tail)) ** (-1 / SHAPE)).astype(np.int64)


def _log_uniform(uniform: Floats, least: float, most: float) -> Floats:
    return np.asarray(least * (most / least) ** uniform)


def _burst_of(packet: Ints) -> Ints:
    """The burst of a flow's packet, both from 0.

    >>> _burst_of(np.array([0, 1, 2, 5, 6, 61, 62, 125, 126])).tolist()
    [0, 0, 1, 1, 2, 4, 5, 5, 6]
    """
    ramp = np.floor(np.log2(packet + 2)).astype(np.int64) - 1
    return np.where(packet < RAMP, ramp, 5 + (packet - RAMP) // LARGEST_BURST)


def _first_of(burst: Ints) -> Ints:
    """The first packet of a burst.

    >>> _first_of(np.array([0, 1, 2, 4, 5, 6])).tolist()
    [0, 2, 6, 30, 62, 126]
    """
    return np.where(burst < 5, (2 << np.minimum(burst, 5)) - 2, RAMP + (burst - 5) * LARGEST_BURST)


def _sizes(sort: Floats, last: npt.NDArray[np.bool_], rng: np.random.Generator) -> Ints:
    drawn = rng.random(len(sort))
    small = TINY + (drawn * (SMALL - TINY + 1)).astype(np.int64)
    short = TINY + (drawn * (LARGE - TINY + 1)).astype(np.int64)
    large = np.where(last, short, LARGE)
    return np.where(sort < SHARE_TINY, TINY, np.where(sort < SHARE_TINY + SHARE_SMALL, small, large))
