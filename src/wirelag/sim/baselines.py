"""Baselines for per-flow delay: trajectory sampling and the multiflow estimator, over simulated packets.

Guarantee: a delay is the difference of one packet's two times, found by its id; a lost packet is not replaced by
another. Flows without a sample have no estimate (nan): the RLI paper compares only sampled flows. Its budget, for both
methods, is one packet in 1,000 (`SHARE`). Memory: a sampled packet takes 16 bytes, id and time, at each end
(trajectory); a flow with a sampled packet takes 40, its key and twice that (multiflow).

N. Duffield and M. Grossglauser, *Trajectory Sampling for Direct Traffic Observation*, 2001, with times added.
M. Lee, N. Duffield and R. Kompella, *Two Samples are Enough: Opportunistic Flow-level Latency Estimation using
NetFlow*, 2010. Both as M. Lee, N. Duffield and R. Kompella, *Not All Microseconds are Equal*, 2010, compare with them.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.estimators.rli import CERTAIN
from wirelag.packets.stamp import NONE

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

SHARE: Final = 0.001  # share of packets sampled
HOLD: Final = 9  # purpose of the coin: that of sample and hold (docs/reference/rli.md), so all sample the same flows
LOST: Final = NONE  # as a time


class Packets(NamedTuple):
    """The packets of a link, in sending order."""

    flow: npt.NDArray[np.uint32]  # index of the flow
    id: Words
    sent_ns: Ints
    left_ns: Ints  # when they reached the far end; LOST: never


class Estimates(NamedTuple):
    """By flow index: number of delays used, their mean and deviation (nan without any)."""

    samples: Ints
    mean_ns: Floats
    std_ns: Floats


def sampled(ids: Words, share: float = SHARE, seed: int = 0) -> Bools:
    """Mask of the sampled packets, the same at both ends."""
    return np.asarray(_kernels.coins(ids, seed, HOLD) >> np.uint64(32) < np.uint64(round(share * CERTAIN)))


def trajectory(packets: Packets, flows: int, share: float = SHARE, seed: int = 0) -> Estimates:
    """Trajectory sampling: a flow's delays are those of its sampled packets that arrived.

    >>> sent_ns = np.array([0, 10, 20])
    >>> packets = Packets(np.array([0, 0, 1], np.uint32), np.arange(3).astype(np.uint64), sent_ns, sent_ns + 5)
    >>> trajectory(packets, flows=3, share=1).mean_ns.tolist()
    [5.0, 5.0, nan]
    """
    rows = np.flatnonzero(sampled(packets.id, share, seed) & (packets.left_ns != LOST))
    delay_ns = packets.left_ns[rows] - packets.sent_ns[rows]
    # Each flow's delays are a run of the delays ordered by flow.
    order = np.argsort(packets.flow[rows], kind="stable")
    begin, end = (np.searchsorted(packets.flow[rows][order], np.arange(flows), side) for side in ("left", "right"))
    return _of_runs(delay_ns[order], begin, end)


def multiflow(packets: Packets, flows: int, share: float = SHARE, seed: int = 0) -> Estimates:
    """The multiflow estimator (MFE): NetFlow's first and last sampled packet of every flow, timed at both ends.

    A flow's delays are all of these, of any flow, that were sent between its own first and last sampled packet. A
    record identifies its timed packets: one that differs between the ends gives no delay.
    """
    rows = np.flatnonzero(sampled(packets.id, share, seed))
    arrived = rows[packets.left_ns[rows] != LOST]
    arrived = arrived[np.argsort(packets.left_ns[arrived], kind="stable")]
    near, far = _ends(packets.flow, rows, flows), _ends(packets.flow, arrived, flows)
    same = (near == far) & (near >= 0)
    used = np.unique(near[same])  # a flow's only packet is one sample; rows are in sending order
    sent_ns, delay_ns = packets.sent_ns[used], packets.left_ns[used] - packets.sent_ns[used]
    known = near[0] >= 0
    begin, end = np.zeros(flows, np.int64), np.zeros(flows, np.int64)
    begin[known] = np.searchsorted(sent_ns, packets.sent_ns[near[0][known]], "left")
    end[known] = np.searchsorted(sent_ns, packets.sent_ns[near[1][known]], "right")
    return _of_runs(delay_ns, begin, end)


def _ends(flow: npt.NDArray[np.uint32], rows: Ints, flows: int) -> Ints:
    """First and last row of each flow, in order; -1: none."""
    found = np.full((2, flows), -1, np.int64)
    found[0, flow[rows[::-1]]] = rows[::-1]
    found[1, flow[rows]] = rows
    return found


def _of_runs(delay_ns: Ints, begin: Ints, end: Ints) -> Estimates:
    """Mean and deviation of runs of delays, each from `begin` to `end`."""
    samples = end - begin
    # Squares around the common mean keep the digits that a difference of large squares would lose.
    centre = round(float(delay_ns.mean())) if len(delay_ns) else 0
    away = delay_ns - centre
    sums, squares = np.append(0, np.cumsum(away)), np.append(0.0, np.cumsum(away.astype(np.float64) ** 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean, square = ((of[end] - of[begin]) / samples for of in (sums, squares))
    return Estimates(samples, centre + mean, np.sqrt(np.maximum(square - mean**2, 0)))
