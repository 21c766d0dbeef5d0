"""Packets at two points for tests of crossings: lists of (id, time) for twins, batches for estimators."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

import wirelag
from tests.oracles.join import Packet
from tests.support.simulated_captures import write_simulation
from wirelag.packets.batch import COLUMNS, PacketBatch
from wirelag.sim import Scenario, simulate

EPOCH_NS = 1_700_000_000 * 10**9
SECOND_NS = 10**9

SCENARIOS = {
    "loss": Scenario(packets=1_500, points=2, seed=11, loss=0.03, duration_ns=8 * SECOND_NS),
    "everything": Scenario(
        packets=2_500, points=2, seed=12, loss=0.02, reorder=0.03, duplicate=0.03, ipv6=0.5, duration_ns=8 * SECOND_NS
    ),
    "a slow path, a clock ahead": Scenario(
        packets=1_500,
        points=2,
        seed=13,
        delay="lognormal:300ms,0.5",
        loss=0.02,
        reorder=0.05,
        clock_offset_ns=-350 * 10**6,
        duration_ns=8 * SECOND_NS,
    ),
}


def captured(scenario: Scenario, folder: Path) -> tuple[PacketBatch, PacketBatch]:
    """The packets of both points of a simulation, read from files."""
    paths = folder / "upstream.pcap", folder / "downstream.pcap"
    write_simulation(simulate(scenario), *paths)
    up, down = (PacketBatch.concatenate(list(wirelag.read(str(path)))) for path in paths)
    return up, down


def packets_of(batch: PacketBatch) -> list[Packet]:
    return list(zip(batch.packet_id.tolist(), batch.time_ns.tolist(), strict=True))


def batch_of(packets: Sequence[Packet]) -> PacketBatch:
    """A batch with these ids and times, and zeros."""
    columns = {name: np.zeros((len(packets), width) if width > 1 else len(packets), dt) for name, dt, width in COLUMNS}
    columns["packet_id"] = np.array([packet_id for packet_id, _ in packets], np.uint64)
    columns["time_ns"] = np.array([time_ns for _, time_ns in packets], np.int64)
    return PacketBatch(columns)


# Few ids, so that there are copies, and some random ones; times of an ordinary capture, in order.
some_ids = st.integers(0, 12) | st.integers(0, 2**64 - 1) | st.sampled_from([2**64 - 1, 2**63])
some_times = st.integers(EPOCH_NS, EPOCH_NS + 4 * SECOND_NS)


@st.composite
def points(draw: st.DrawFn, most: int = 60) -> tuple[list[Packet], list[Packet]]:
    """Both points: most packets of one are also at the other, up to a second later; and each has its own."""
    up = [(draw(some_ids), draw(some_times)) for _ in range(draw(st.integers(0, most)))]
    crossed = [(x, t + draw(st.integers(-1000, SECOND_NS))) for x, t in up if draw(st.integers(0, 7))]
    down = crossed + [(draw(some_ids), draw(some_times)) for _ in range(draw(st.integers(0, 8)))]
    return sorted(up, key=lambda packet: packet[1]), sorted(down, key=lambda packet: packet[1])
