"""Parts of packet batches: the same rows, however they were selected."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.simulated_captures import write_simulation
from wirelag.capture.pcap import CaptureFile
from wirelag.packets.batch import COLUMNS, PacketBatch
from wirelag.sim import Scenario, simulate

ROWS = 2_000


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> PacketBatch:
    path = tmp_path_factory.mktemp("batch") / "some.pcap"
    write_simulation(simulate(Scenario(packets=ROWS, seed=2)), path)
    return PacketBatch.concatenate(list(CaptureFile(str(path))))


def same(part: PacketBatch, batch: PacketBatch, rows: object) -> bool:
    return all(np.array_equal(getattr(part, name), getattr(batch, name)[rows]) for name, _, _ in COLUMNS)


def test_parts_of_parts_are_those_of_their_rows(batch: PacketBatch) -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        part, rows = batch, np.arange(ROWS)
        for _ in range(6):
            a, b = sorted(int(x) for x in rng.integers(-len(rows) - 2, len(rows) + 3, 2))
            match rng.integers(4):
                case 0:
                    part, rows = part[a:b], rows[a:b]
                case 1:
                    part, rows = part[a:], rows[a:]
                case 2:
                    chosen = np.flatnonzero(rng.random(len(rows)) < 0.8)
                    part, rows = part.choose(chosen), rows[chosen]
                case _:
                    mask = rng.random(len(rows)) < 0.9
                    part, rows = part[mask], rows[mask]
            assert len(part) == len(rows)
        assert same(part, batch, rows)


def test_a_batch_can_be_cut_into_as_many_parts_as_it_has_rows(batch: PacketBatch) -> None:
    rest, seen = batch[:], []
    while len(rest) > 1:
        seen.append(rest[:1])
        rest = rest[1:]
    assert same(rest, batch, slice(ROWS - 1, ROWS))
    together = PacketBatch.concatenate([*seen, rest])
    assert together.packet_id.tolist() == batch.packet_id.tolist()
    assert together.number.tolist() == batch.number.tolist()


def test_other_times_stay_with_all_parts(batch: PacketBatch) -> None:
    later = batch[10:].at_times(batch.time_ns[10:] + 5)
    part = later[5:][2:9].choose(np.array([1, 3]))
    assert part.time_ns.tolist() == (batch.time_ns[[18, 20]] + 5).tolist()
    assert part.flow_key.tolist() == batch.flow_key[[18, 20]].tolist()
