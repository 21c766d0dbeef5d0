"""Bursty traffic and reference packets through one queue: the packets at the far end, and the truth.

Sizes are those of IP packets. Times at the sender are arrivals at the queue, times at the receiver departures of the
last byte; a delay is their difference, so it includes the packet's own transmission.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.injection import ONE, Injection
from wirelag.packets.stamp import NONE
from wirelag.sim.bursts import Bursts, draw_bursts
from wirelag.sim.scramble import scramble
from wirelag.sim.truth import START_NS

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Red:
    """Random early detection (Floyd and Jacobson 1993); `from_packets` and `to_packets` bound the mean length."""

    from_packets: int = 4_000  # min_th
    to_packets: int = 9_000  # max_th
    weight: float = 0.002  # w_q
    steep: float = 0.02  # max_p
    slot_bytes: int = 500  # an idle queue's mean length shrinks by packets of this size

    @property
    def rule(self) -> tuple[int, int, int, int, int]:
        """The rule for the kernel."""
        return (
            self.from_packets,
            self.to_packets,
            int(self.weight * ONE),
            int(self.steep * ONE),
            self.slot_bytes,
        )


DROP_TAIL: Final = (0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class QueueScenario:
    """All parameters of a run. `injection` True: the adaptive one; False: no references.

    `utilisation` is that of the regular packets; flows are added until they reach it (to within one flow).
    """

    utilisation: float = 0.7
    seed: int = 1
    seconds: float = 8.0
    bytes_per_s: int = 250_000_000
    limit: int = 10_000  # packets
    red: Red | None = field(default_factory=Red)  # None: DropTail
    injection: Injection | bool = True

    def __post_init__(self) -> None:
        if not 0 < self.utilisation <= 2 or not 0 < self.seconds <= 600 or not 0 < self.limit < 1 << 24:
            raise ValueError("utilisation must be in (0, 2], seconds in (0, 600], limit in 1 to 2^24")

    @property
    def references(self) -> Injection | None:
        """How references are injected."""
        if isinstance(self.injection, Injection):
            return self.injection
        return Injection(self.bytes_per_s) if self.injection else None


@dataclass(frozen=True)
class Receiver:
    """Packets that arrive at the far end, in order: regular packets and references."""

    time_ns: Ints
    flow: npt.NDArray[np.uint32]  # 0 for references
    key: npt.NDArray[np.uint64]  # key of the flow
    size: npt.NDArray[np.uint32]
    is_reference: npt.NDArray[np.uint8]
    number: Ints  # regular: row at the sender; reference: its sequence number, from 0
    sent_ns: Ints  # at the sender: visible for references, truth for the others
    previous_sent_ns: Ints  # references: send time of the regular packet before it; else NONE
    previous_matches: npt.NDArray[np.uint8]  # references: whether that packet was the last to arrive before it

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True)
class FlowTruth:
    """By flow index: packets that arrived, mean and deviation of their delays (nan without any)."""

    packets: Ints
    mean_ns: npt.NDArray[np.float64]
    std_ns: npt.NDArray[np.float64]


@dataclass(frozen=True)
class QueueSimulation:
    """Regular packets as sent, when they left (`left_ns`, NONE: dropped), and the references."""

    scenario: QueueScenario
    bursts: Bursts
    left_ns: Ints
    reference_sent_ns: Ints
    reference_left_ns: Ints  # NONE: dropped
    reference_behind: Ints  # row of the regular packet before it; -1: none

    @property
    def delay_ns(self) -> Ints:
        """True delay of each regular packet; NONE if it was dropped."""
        return np.where(self.left_ns == NONE, NONE, self.left_ns - self.bursts.time_ns)

    @property
    def utilisation(self) -> float:
        """Utilisation by regular packets as sent."""
        return float(self.bursts.size.sum()) / (self.scenario.seconds * self.scenario.bytes_per_s)

    @property
    def loss(self) -> float:
        """Share of regular packets dropped."""
        return float((self.left_ns == NONE).mean())

    @property
    def reference_share(self) -> float:
        """Bytes of references over the link's capacity in that time."""
        injection = self.scenario.references
        size = injection.size if injection else 0
        return len(self.reference_sent_ns) * size / (self.scenario.seconds * self.scenario.bytes_per_s)

    def keys(self) -> npt.NDArray[np.uint64]:
        """A key for every flow index."""
        return scramble(np.arange(self.bursts.flows), self.scenario.seed)

    def receiver(self) -> Receiver:
        """The packets as the far end sees them."""
        injection = self.scenario.references
        rows = np.flatnonzero(self.left_ns != NONE)
        references = np.flatnonzero(self.reference_left_ns != NONE)
        left_ns = np.append(self.left_ns[rows], self.reference_left_ns[references])
        behind = self.reference_behind[references]
        order = np.argsort(left_ns, kind="stable")
        is_reference = (order >= len(rows)).astype(np.uint8)
        number = np.append(rows, references)[order]
        flow = np.append(self.bursts.flow[rows], np.zeros(len(references), np.uint32))[order]
        reference_size = np.full(len(references), injection.size if injection else 0, np.uint32)
        size = np.append(self.bursts.size[rows], reference_size)[order]
        previous = np.full(len(order), NONE, np.int64)
        previous[is_reference == 1] = np.where(behind >= 0, self.bursts.time_ns[behind], NONE)
        last = np.maximum.accumulate(np.where(is_reference == 0, np.arange(len(order)), -1))
        matches = np.zeros(len(order), np.uint8)
        at = np.flatnonzero(is_reference)
        matches[at] = (last[at] >= 0) & (number[last[at]] == behind)
        return Receiver(
            time_ns=START_NS + left_ns[order],
            flow=flow,
            key=np.where(is_reference == 1, np.uint64(0), self.keys()[flow]),
            size=size,
            is_reference=is_reference,
            number=number,
            sent_ns=START_NS + np.append(self.bursts.time_ns[rows], self.reference_sent_ns[references])[order],
            previous_sent_ns=np.where(previous == NONE, NONE, START_NS + previous),
            previous_matches=matches,
        )

    def truth(self) -> FlowTruth:
        """The truth of each flow."""
        flows, arrived = self.bursts.flows, self.left_ns != NONE
        flow, delay = self.bursts.flow[arrived], self.delay_ns[arrived].astype(np.float64)
        packets = np.bincount(flow, minlength=flows)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.bincount(flow, delay, flows) / packets
            squares = np.bincount(flow, (delay - mean[flow]) ** 2, flows) / packets
        return FlowTruth(packets, mean, np.sqrt(squares))


def run(scenario: QueueScenario, *, bursts: Bursts | None = None, coins: int | None = None) -> QueueSimulation:
    """Simulate a scenario; the same scenario gives the same packets.

    `bursts` is its traffic if already drawn; `coins` is the seed of RED's coins if not the scenario's.

    >>> run(QueueScenario(utilisation=0.5, seconds=0.1)).loss
    0.0
    """
    if bursts is None:
        bursts = draw_bursts(scenario.utilisation * scenario.bytes_per_s, scenario.seconds, scenario.seed)
    injection = scenario.references
    left, sent, arrived, behind, _ = _kernels.queue_pass(
        bursts.time_ns,
        bursts.size,
        scenario.bytes_per_s,
        scenario.limit,
        scenario.red.rule if scenario.red else DROP_TAIL,
        injection.rule if injection else None,
        scenario.seed if coins is None else coins,
    )
    return QueueSimulation(scenario, bursts, left, sent, arrived, behind)
