"""Loss of rows over time, by methods that only count packets: packets that overtake each other cross edges, too."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

import wirelag
from tests.support.simulated_captures import write_simulation
from wirelag.capture.writer import CaptureWriter
from wirelag.sim import Scenario, simulate

PACKETS, SECONDS = 20_000, 5.0
FRAME = 46  # Ethernet, IPv4, UDP, 4 bytes of data

Numbers = npt.NDArray[np.int64]


def write(path: Path, seconds: npt.NDArray[np.float64], numbers: Numbers) -> None:
    """Datagrams of one flow with these numbers."""
    frame = np.zeros((len(numbers), FRAME), np.uint8)
    frame[:, 12:18], frame[:, 22:24] = (8, 0, 0x45, 0, 0, 32), (64, 17)
    frame[:, 26:34], frame[:, 34:42] = (10, 0, 0, 1, 192, 0, 2, 1), (0x13, 0x88, 0x13, 0x89, 0, 12, 0, 0)
    for place in range(4):
        frame[:, 42 + place] = numbers >> (8 * place) & 0xFF
    size, times_ns = np.full(len(numbers), FRAME, np.int64), np.round(seconds * 1e9).astype(np.int64)
    with CaptureWriter(str(path), FRAME) as writer:
        writer.write(times_ns, frame.reshape(-1), np.arange(len(numbers)) * FRAME, size, size)


def pair(folder: Path, seed: int, lost: float = 0.005) -> tuple[Path, Path]:
    """Packets whose delays differ by more than the time between them, and of which 1 in 200 is lost."""
    rng = np.random.default_rng(seed)
    sent = np.sort(rng.uniform(0, SECONDS, PACKETS))
    seen, kept = sent + 5e-3 + rng.exponential(30e-3, PACKETS), rng.random(PACKETS) >= lost
    numbers = np.arange(PACKETS) + seed * PACKETS
    order = np.flatnonzero(kept)[np.argsort(seen[kept])]
    up, down = folder / f"up{seed}.pcap", folder / f"down{seed}.pcap"
    write(up, sent, numbers)
    write(down, seen[order], numbers[order])
    return up, down


def test_the_interval_of_what_a_row_lost_holds_what_join_finds(tmp_path: Path) -> None:
    """As if no packet were under way at an edge, the first row is wrong by all of those at its end."""
    right, naive, rows = 0, 0, 0
    for seed in range(4):
        up, down = pair(tmp_path, seed)
        exact = wirelag.oneway(up, down, clock="none", interval="1s")
        said = wirelag.oneway(up, down, clock="none", interval="1s", estimator="finecomb")
        true = {row.key: row.report.details["lost"] for row in exact.intervals}
        for row in said.intervals:
            details = row.report.details
            low, high = details["lost_low"], details["lost_high"]
            assert low <= details["lost"] <= high
            if details["sent"]:
                rows += 1
                right += low <= true[row.key] <= high
                naive += low <= details["sent"] - details["received"] <= high
        assert sum(row.report.details["lost"] for row in said.intervals) == said.report.details["lost"]
        assert said.report.details["lost"] == exact.report.details["lost"]
    assert right >= rows - 4  # 20 rows at 95%: more than 4 misses are likelier in one of 400 cases
    assert naive <= rows - 4


def test_no_row_lost_packets_if_none_was_lost(tmp_path: Path) -> None:
    up, down = pair(tmp_path, 9, lost=0.0)
    said = wirelag.oneway(up, down, clock="none", interval="1s", estimator="finecomb")
    assert {(row.report.details["lost_low"], row.report.details["lost_high"]) for row in said.intervals} == {(0, 0)}


def test_how_many_packets_each_figure_rests_on_is_told(tmp_path: Path) -> None:
    """The total and its rows have sums of their own, and loss spoils different ones of them."""
    up, down = pair(tmp_path, 1)
    for estimator in ("lda", "finecomb"):
        said = wirelag.oneway(up, down, clock="none", interval="1s", estimator=estimator)
        used, rows = said.report.samples, sum(row.report.samples for row in said.intervals)
        assert rows != used < said.report.details["received"]
        (note,) = [note for note in said.to_dict()["notes"] if note.startswith("mean and deviation are of")]
        assert note in said.notes
        assert f"{used:,} of {said.report.details['received']:,} packets received" in note
        assert f"quantiles are of a sample of {said.report.details['tail_samples']:,} packets" in note
        assert f"rows over time have sums of their own, and together use {rows:,} packets" in note
        alone = wirelag.oneway(up, down, clock="none", estimator=estimator)
        assert any(note.startswith(line) and "rows" not in line for line in alone.to_dict()["notes"])
    exact = wirelag.oneway(up, down, clock="none", interval="1s")
    assert exact.report.samples == sum(row.report.samples for row in exact.intervals)
    assert not exact.to_dict()["notes"]


def test_rows_that_time_more_packets_than_the_total_say_so(tmp_path: Path) -> None:
    """An edge puts two copies of a packet into two rows, one in each. In the total they cannot be told apart."""
    up, down = tmp_path / "up.pcap", tmp_path / "down.pcap"
    write_simulation(simulate(Scenario(packets=4_000, seed=1, points=2, direction="client", duplicate=0.05)), up, down)
    for estimator in ("join", "rda"):
        said = wirelag.oneway(up, down, clock="none", interval="100ms", estimator=estimator)
        used, rows = said.report.samples, sum(row.report.samples for row in said.intervals)
        assert rows == used + 1
        note = f"rows over time together time {rows:,} packets, the total {used:,}: an edge parts copies"
        assert any(line.startswith(note) for line in said.notes)
        assert any(line.startswith(note) for line in said.to_dict()["notes"])
