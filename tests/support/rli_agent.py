"""Packets, state and messages of an agent that measures with RLI."""

from functools import cache

import numpy as np

from tests.support.rli_packets import STREAM, seen
from wirelag.agent.composing import encoded
from wirelag.agent.config import Measured
from wirelag.agent.cutting import ByClock, CutPart, Unseen
from wirelag.agent.history import History
from wirelag.estimators.rli import Rli
from wirelag.packets.addresses import Direction
from wirelag.packets.batch import COLUMNS, PacketBatch
from wirelag.packets.stamp import PTP, error_estimate
from wirelag.protocol.messages import ClockReading, Message, decode
from wirelag.protocol.terms import Terms
from wirelag.sim.queue import QueueScenario, QueueSimulation
from wirelag.sim.queue import run as simulate

INTERVAL_NS = 5 * 10**7
NAMES = [name for name, _, _ in COLUMNS]
CLOCK = ClockReading(True, 20_000, "chrony")
LINEAR = Rli("linear", 1 << 20, most_flows=1 << 13)


@cache
def simulation() -> QueueSimulation:
    return simulate(QueueScenario(0.7, seed=3, seconds=0.2))


def arrived(error_ns: int | None = 1000, began_s: int = 1_700_000_000) -> PacketBatch:
    """Packets that arrive; flows have different addresses, in 10.1 and 10.2 in turn; references come from 10.1."""
    packets = seen(simulation())
    columns = {name: getattr(packets, name).copy() for name in NAMES}
    reference = columns["flow_key"] == np.uint64(STREAM)
    first = PTP if error_ns is None else error_estimate(error_ns) >> 8
    columns["message"][reference] = first
    flow = columns["flow_key"] % np.uint64(1 << 12)
    net = np.where(reference, np.uint64(1), np.uint64(1) + flow % np.uint64(2))
    columns["src"][:, 1] = np.uint64(0xFFFF << 32 | 10 << 24) + (net << np.uint64(16)) + flow
    columns["dst"][:, 1] = np.uint64(0xFFFF << 32 | 10 << 24 | 9 << 16 | 1)
    columns["src_port"] = (flow % np.uint64(50000)).astype(np.uint16)
    later_s = began_s - int(columns["time_ns"][0]) // 10**9
    columns["time_ns"] += later_s * 10**9
    columns["transaction"][reference] += np.uint64((later_s << 32) % 2**64)
    return PacketBatch(columns)


def measured(by: str | None = None, way: str | None = None, estimator: Rli = LINEAR) -> Measured:
    direction = None if way is None else Direction.parse(way)
    return Measured("A>B", Terms(estimator, interval_ns=INTERVAL_NS, by=by), direction, False, direction)


def parts_of(packets: PacketBatch, what: Measured, every: int = 700) -> list[CutPart]:
    length_ns = what.terms.interval_ns or 0
    cuts = ByClock((what,), length_ns, 0, Unseen(length_ns))
    pieces = [packets[slice(start, start + every)] for start in range(0, len(packets), every)]
    parts = [part for piece in pieces for part in cuts.take(piece)]
    return [*parts, *cuts.end(int(packets.time_ns[-1]) + 1)]


def message_of(part: CutPart, point: str = "B") -> Message:
    terms = part.measured.terms
    about = Message("synopsis", point, part.measured.segment, part.cut.interval, terms, CLOCK, part.seen)
    data, key = encoded(part, about, History(point, 0, 0))
    message = decode(data)
    assert message.key == key
    return message
