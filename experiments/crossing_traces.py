"""Shared by the two-point experiments: packets with known delays, loss, and LDA run over them.

Delays are drawn one by one, as in the LDA paper: a packet is sent when the previous one has arrived, so that none
overtakes another. Loss is drawn for each packet, or comes in episodes. An error is |estimated - true|/true.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wirelag.estimators.lda import Lda, LdaSynopsis
from wirelag.packets.batch import COLUMNS, PacketBatch
from wirelag.packets.interval import Interval
from wirelag.stats.moments import bound_ns
from wirelag.synopses.crossing import Crossing

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MEAN_NS = 200.0  # the paper's 0.2 us
WEIBULL = 0.6  # the paper's shape
PARETO = (3.0, 4.0, 5.0)
EPISODE = 100  # mean number of packets in an episode of loss
NORMAL_MEAN = math.sqrt(2 / math.pi)  # mean of |z|
NORMAL_MEDIAN = 0.6744897501960817

# ---- delays ----


def weibull_ns(rng: np.random.Generator, count: int, mean_ns: float = MEAN_NS, shape: float = WEIBULL) -> Times:
    """Delays with a Weibull distribution of this mean, in integer ns."""
    return np.rint(rng.weibull(shape, count) * (mean_ns / math.gamma(1 + 1 / shape))).astype(np.int64)


def pareto_ns(rng: np.random.Generator, count: int, shape: float, mean_ns: float = MEAN_NS) -> Times:
    """Delays with a Pareto distribution of this mean, in integer ns."""
    return np.rint((rng.pareto(shape, count) + 1) * (mean_ns * (shape - 1) / shape)).astype(np.int64)


def delays_of(name: str, count: int, seed: int = 1) -> Times:
    """The delays of one of the paper's distributions: "Weibull 0.6", "Pareto 3", ..."""
    rng = np.random.default_rng(seed)
    kind, shape = name.split()
    return weibull_ns(rng, count, shape=float(shape)) if kind == "Weibull" else pareto_ns(rng, count, float(shape))


# ---- packets at two points ----


def batch(ids: npt.NDArray[np.uint64], times_ns: Times) -> PacketBatch:
    """Packets with only ids and times."""
    columns: dict[str, npt.NDArray[Any]] = {
        name: np.broadcast_to(np.zeros(1, dtype), (len(ids), width) if width > 1 else len(ids))
        for name, dtype, width in COLUMNS
    }
    return PacketBatch({**columns, "packet_id": ids, "time_ns": times_ns})


@dataclass(frozen=True)
class Packets:
    """Packets that leave an upstream point, and when they would reach the downstream one."""

    ids: npt.NDArray[np.uint64]
    sent_ns: Times
    delays_ns: Times

    @classmethod
    def one_by_one(cls, delays_ns: Times, seed: int = 2) -> Packets:
        """Each is sent when the previous one has arrived."""
        ids = np.random.default_rng(seed).integers(0, 2**64, len(delays_ns), dtype=np.uint64)
        return cls(ids, np.cumsum(delays_ns + 1) - delays_ns, delays_ns)

    @classmethod
    def at_rate(cls, delays_ns: Times, gap_ns: int, seed: int = 2) -> Packets:
        """Sent evenly; one that would overtake another waits for it."""
        ids = np.random.default_rng(seed).integers(0, 2**64, len(delays_ns), dtype=np.uint64)
        sent_ns = np.arange(len(ids), dtype=np.int64) * gap_ns
        return cls(ids, sent_ns, np.maximum.accumulate(sent_ns + delays_ns) - sent_ns)

    def sources(self, arrived: Mask | None = None) -> dict[str, list[PacketBatch]]:
        """What both points see, as input of `measure`."""
        kept = slice(None) if arrived is None else arrived
        down = batch(self.ids[kept], (self.sent_ns + self.delays_ns)[kept])
        return {"upstream": [batch(self.ids, self.sent_ns)], "downstream": [down]}


def arriving(count: int, loss: float, seed: int = 3) -> Mask:
    """All but a share of the packets, drawn independently."""
    return np.random.default_rng(seed).random(count) >= loss


def arriving_but_for_episodes(count: int, loss: float, seed: int = 3, packets: int = EPISODE) -> Mask:
    """All but a share, lost in episodes with exponential lengths and gaps."""
    rng = np.random.default_rng(seed)
    pairs = int(count / (packets / loss) * 2) + 100
    lengths = np.column_stack((rng.exponential(packets / loss - packets, pairs), rng.exponential(packets, pairs)))
    edges = np.cumsum(lengths.ravel())
    return np.asarray(np.searchsorted(edges, np.arange(count), side="right") % 2 == 0)


# ---- LDA over them ----


@dataclass(frozen=True)
class Run:
    """The results of one LDA, with its deviation between rows and with the papers' collapse."""

    rows: Crossing
    collapse: Crossing
    true_ns: float
    true_std_ns: float

    @property
    def used(self) -> int:
        """Packets in the mean."""
        return self.rows.used

    @property
    def mean_error(self) -> float:
        """Relative error of the mean; 1 if there is none."""
        mean_ns = self.rows.mean_ns
        return 1.0 if mean_ns is None else abs(mean_ns - self.true_ns) / self.true_ns

    @property
    def deviation_error(self) -> float:
        """Relative error of the deviation between rows."""
        return abs((self.rows.std_ns or 0.0) - self.true_std_ns) / self.true_std_ns

    @property
    def collapse_error(self) -> float:
        """Relative error of the deviation by the papers' collapse."""
        return abs((self.collapse.std_ns or 0.0) - self.true_std_ns) / self.true_std_ns

    def bound(self, collapse: bool = False, doubt: float = 0.02) -> float:
        """The bound of the mean's error, relative to the truth."""
        std_ns = (self.collapse if collapse else self.rows).std_ns
        return bound_ns(std_ns or 0.0, self.used, doubt) / self.true_ns if self.used else math.inf


def observed(estimator: Lda, packets: PacketBatch) -> LdaSynopsis:
    """One point's buckets."""
    meter = estimator.meter("upstream")
    meter.observe(packets)
    return meter.cut(Interval(0, 0))


def runs(packets: Packets, arrived: Mask, rows: int, shifts: tuple[int, ...], seeds: Sequence[int]) -> list[Run]:
    """Run an LDA with each of these seeds; the truth is that of the packets that arrived."""
    sources = packets.sources(arrived)
    (up,), (down,) = sources["upstream"], sources["downstream"]
    delays_ns = packets.delays_ns[arrived]
    true_ns, true_std_ns = float(delays_ns.mean()), float(delays_ns.std())
    found = []
    for seed in seeds:
        estimator = Lda(rows, shifts, tail=1, seed=seed)
        synopses = observed(estimator, up), observed(estimator, down)
        by_collapse = replace(estimator, deviation="collapse").cross(*synopses)
        found.append(Run(estimator.cross(*synopses), by_collapse, true_ns, true_std_ns))
    return found


def expected_used(sent: int, lost: int, rows: int, shift: int) -> float:
    """Packets in usable buckets of one bank: a bucket is usable if no lost packet is sampled into it.

    With probability alpha m / (L + 1) it is alpha exp(-alpha) m/(L + 1) R.
    """
    p = 2.0**-shift
    return p * (sent - lost) * (1 - p / rows) ** lost


def mean_of(values: Sequence[float]) -> float:
    """Their mean."""
    return float(np.mean(values))


def percent(share: float) -> str:
    """With three digits."""
    return f"{100 * share:#.3g}"
