"""Simulated frames, records of captures and the order of packets: kernels against plain twins."""

import random
from pathlib import Path

import numpy as np
import pytest

from tests.oracles import sim_frame
from wirelag import _kernels
from wirelag.capture.writer import CaptureWriter
from wirelag.sim import Scenario, simulate
from wirelag.sim.simulation import Simulation

ROUGH = {"loss": 0.05, "reorder": 0.05, "duplicate": 0.05, "ipv6": 0.4, "dns": 0.4, "servers": 1000, "unanswered": 0.1}
SCENARIOS = [
    Scenario(packets=3000, seed=5, **ROUGH),  # type: ignore[arg-type]
    Scenario(packets=2000, seed=2**63 - 1, points=2, **ROUGH),  # type: ignore[arg-type]
    Scenario(packets=2000, direction="client", dns=0.0),
]


def twins(simulation: Simulation, point: int) -> list[bytes]:
    """The frames of a capture by the plain twin."""
    capture, packets, connections = simulation.captures[point], simulation.packets, simulation.connections
    frames = []
    names = [
        "connection",
        "sender",
        "kind",
        "flags",
        "seq",
        "ack",
        "sack_start",
        "sack_end",
        "ticks",
        "echo",
        "length",
        "ip_id",
    ]
    for row, crossed in zip(capture.row.tolist(), capture.crossed.tolist(), strict=True):
        of = int(packets.connection[row])
        packet = sim_frame.Packet(
            *(int(getattr(packets, name)[row]) for name in names),
            crossed,
            (int(connections.client[of]), int(connections.server[of])),
            (int(connections.client_port[of]), int(connections.server_port[of])),
            bool(connections.ipv6[of]),
            bool(connections.timestamps[of]),
        )
        frames.append(sim_frame.frame(packet, simulation.scenario.seed))
    return frames


@pytest.mark.every(2)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_frames_are_those_of_the_twin(scenario: Scenario) -> None:
    simulation = simulate(scenario)
    for point in range(scenario.points):
        expected = twins(simulation, point)
        assert len({len(frame) for frame in expected}) > 20  # many layouts and lengths
        for snaplen in (1, 30, 100, 150, 65_535):
            got = [
                (frames.buffer[at : at + captured].tobytes(), wire)
                for frames in simulation.frames(point, snaplen)
                for at, captured, wire in zip(
                    frames.offset.tolist(), frames.captured.tolist(), frames.wire.tolist(), strict=True
                )
            ]
            assert got == [(frame[:snaplen], len(frame)) for frame in expected]


@pytest.mark.parametrize("ending", ["pcap", "pcapng"])
def test_records_are_those_of_the_twin(ending: str, tmp_path: Path) -> None:
    rng = random.Random(4)
    data = rng.randbytes(2000)
    rows = [(rng.randrange(2**32 * 10**9), rng.randrange(900), size, rng.randrange(2**20)) for size in range(300)]
    path = tmp_path / f"x.{ending}"
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    with CaptureWriter(str(path)) as writer:
        head = 24 if ending == "pcap" else 60
        writer.write(columns[0], np.frombuffer(data, np.uint8), *columns[1:])
    expected = [
        sim_frame.record(time_ns, data[at : at + size], wire, ending == "pcapng") for time_ns, at, size, wire in rows
    ]
    assert path.read_bytes()[head:] == b"".join(expected)


def test_frames_outside_what_is_there_are_refused() -> None:
    one, two = np.ones(1, np.int64), np.full(1, 2)
    for offset, captured in ((one, two), (-one, one), (one, -one), (two + 1, one)):
        with pytest.raises(ValueError, match="outside the buffer"):
            _kernels.capture_records(one, np.zeros(2, np.uint8), offset, captured, one, False)
    simulation = simulate(Scenario(packets=10))
    with pytest.raises(ValueError, match="not there"):
        _kernels.sim_frames(simulation.packets, simulation.connections, np.full(1, 10), np.zeros(1, np.bool_), 128, 1)


@pytest.mark.parametrize("most", [1, 2, 1000, 2**11, 2**40, 2**63])
@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_the_order_is_that_of_a_stable_sort(most: int, count: int) -> None:
    rng = random.Random(most + count)
    keys = [rng.randrange(-most, most) for _ in range(count)]
    assert _kernels.stable_order(np.array(keys, np.int64)).tolist() == sorted(range(count), key=keys.__getitem__)


def test_hosts_count_their_packets_in_order() -> None:
    rng = random.Random(8)
    order = rng.sample(range(3000), 3000)
    group = [rng.randrange(7) for _ in range(3000)]
    first = [rng.randrange(2**16) for _ in range(6)] + [2**16 - 5]
    expected, following = [0] * 3000, list(first)
    for row in order:
        expected[row] = following[group[row]] % 2**16
        following[group[row]] += 1
    columns = np.array(order), np.array(group, np.int32), np.array(first, np.uint16)
    assert _kernels.numbers_in_order(*columns).tolist() == expected
