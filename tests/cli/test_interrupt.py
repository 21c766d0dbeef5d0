"""^C on a long run: what was read so far is reported, marked partial, with exit code 130."""

import fcntl
import itertools
import json
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from tests.support.captures import plain_bytes
from tests.support.command import WIRELAG, wirelag
from tests.support.frame_captures import write
from tests.support.places import ROOT
from tests.support.simulated_captures import write_simulation
from tests.support.waiting import PATIENCE_S, until
from wirelag.capture.ahead import MOST as MOST_AHEAD
from wirelag.capture.files import Capture
from wirelag.packets.batch import PacketBatch
from wirelag.sim import Scenario, simulate
from wirelag.sim.queue import QueueScenario, run
from wirelag.sim.queue_frames import downstream_frames, upstream_frames

if TYPE_CHECKING:
    from wirelag.capture.source import Packets

SSH = "rtt/zeek/ssh.pcap.gz"


def interrupted(given: bytes, fifo: Path, *words: object) -> tuple[int, str, str]:
    """Run a command on a pipe that stays open; ^C when it has taken all bytes and waits for more."""
    os.mkfifo(fifo)
    command = [*WIRELAG, words[0], str(fifo), *map(str, words[1:])]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        fifo.open("wb", buffering=0) as pipe,
    ):
        pipe.write(given)
        until(lambda: _waits_for_more(pipe.fileno(), process.pid), "the reader has taken all bytes")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def _waits_for_more(pipe: int, pid: int) -> bool:
    """Whether the reader has taken everything, and sleeps in its next read."""
    (left,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return not left and "pipe" in Path(f"/proc/{pid}/wchan").read_text()


@pytest.mark.every(2)
@pytest.mark.parametrize("command", ["rtt", "response", "info"])
def test_an_interrupted_command_reports_what_it_has(shared_data: Path, tmp_path: Path, command: str) -> None:
    given = plain_bytes(shared_data / SSH)
    code, out, err = interrupted(given, tmp_path / "pipe", command, "--format", "json")
    assert code == 130
    assert "Traceback" not in err
    assert "warning: partial" in err
    found = json.loads(out)
    assert found["partial"] is True
    assert found["packets"] == 1797
    schema = json.loads((ROOT / f"docs/reference/schema/{command}.json").read_text())
    jsonschema.validate(found, schema)
    (tmp_path / "whole.pcap").write_bytes(given)
    whole = subprocess.run(
        [*WIRELAG, command, tmp_path / "whole.pcap", "--format", "json"], capture_output=True, text=True, check=True
    )
    same = json.loads(whole.stdout)
    for name in ("mean", "samples", "ci95", "kinds", "conversations"):
        assert found.get(name) == same.get(name)


def test_tables_and_pages_say_so_too(shared_data: Path, tmp_path: Path) -> None:
    given, page = plain_bytes(shared_data / SSH), tmp_path / "page.html"
    code, out, _ = interrupted(given, tmp_path / "pipe", "rtt", "--html", page)
    assert code == 130
    assert out.splitlines()[-1] == "partial: stopped before the end of the input"
    assert "partial: stopped before the end of the input" in page.read_text()


def test_without_a_packet_it_only_stops(tmp_path: Path) -> None:
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 1)
    assert interrupted(header, tmp_path / "pipe", "response") == (
        130,
        "",
        "wirelag: stopped before there was a result\n",
    )


# ---- two captures ----


def stopping(monkeypatch: pytest.MonkeyPatch, input: int, batch: int) -> None:
    """^C while the command works on this batch of this input, from 1 on; a capture that is read twice is two.

    The join keeps what it reads, so that it reads captures once, unless it needs more of packets than it keeps.
    """
    inputs = itertools.count(1)

    def shown(capture: "Packets") -> Iterator[PacketBatch]:
        mine = next(inputs)
        for n, one in enumerate(capture, 1):
            if (mine, n) == (input, batch):
                os.kill(os.getpid(), signal.SIGINT)
            yield one

    monkeypatch.setattr("wirelag.cli.progress.progress", lambda quiet: shown)


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two points, 20 ms apart, that lost nothing."""
    folder = tmp_path_factory.mktemp("points")
    scenario = Scenario(packets=60_000, seed=3, points=2, delay="constant:20ms")
    paths = folder / "up.pcap", folder / "down.pcap"
    write_simulation(simulate(scenario), *paths)
    return paths


@pytest.mark.every(12)
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("point", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--by", "source"],
        ["--estimator", "lda", "--interval", "5s"],
        ["--estimator", "rda", "--interval", "5s"],
        ["--estimator", "lda", "--interval", "5s", "--cut", "clock"],
        ["--estimator", "lda"],
    ],
    ids=lambda options: " ".join(options),
)
def test_two_points_end_with_the_same_packet(
    points: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, options: list[str], point: int, cores: int
) -> None:
    """Packets that only one point was read for would count as lost."""
    options = [*options, "--cores", str(cores)]
    whole = json.loads(wirelag("oneway", *points, *options, "--format", "json").stdout)
    stopping(monkeypatch, point + 2 * (len(options) > 2), 5)
    ran = wirelag("oneway", *points, *options, "--format", "json", code=130)
    assert "warning: partial" in ran.stderr
    found = json.loads(ran.stdout)
    jsonschema.validate(found, json.loads((ROOT / "docs/reference/schema/oneway.json").read_text()))
    assert found["partial"] is True
    share, batches = found["sent"] / whole["sent"], sum(1 for _ in Capture([str(points[0])]))
    most = 5 if cores == 1 else 5 + MOST_AHEAD + 1  # a thread that reads ahead has counted these, too
    assert 5 / batches - 0.15 < share < most / batches + 0.15
    # The clock cuts where packets are under way; rda finds these in the next interval, lda cannot.
    under_way = 0.002 * found["sent"] if "rda" in options or "clock" in options else 0
    assert found["sent"] - under_way <= found["received"] <= found["sent"]
    assert (found["lost"] or 0) <= (under_way if "clock" in options else 0)
    assert not found["only_downstream"]
    assert found["mean"] == pytest.approx(0.02, rel=1e-6)
    for part in [*found["intervals"], *found["groups"]]:
        assert not part["lost"] or "clock" in options


def test_intervals_come_after_the_total(points: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("oneway", *points, "--estimator", "rda", "--interval", "5s", "--format", "json")
    whole = json.loads(wirelag(*words).stdout)
    stopping(monkeypatch, 3, 5)
    early = json.loads(wirelag(*words, code=130).stdout)
    assert early["intervals"] == []
    assert any("before intervals were read" in note for note in early["notes"])
    stopping(monkeypatch, 6, 5)
    late = json.loads(wirelag(*words, code=130).stdout)
    assert late["mean"] == whole["mean"]
    assert 0 < len(late["intervals"]) < len(whole["intervals"])
    assert late["intervals"] == whole["intervals"][: len(late["intervals"])]
    assert any("only the intervals are partial" in note for note in late["notes"])


@pytest.mark.parametrize("input", [1, 2])
def test_nothing_is_known_before_captures_are_compared(
    points: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, input: int
) -> None:
    stopping(monkeypatch, input, 2)
    ran = wirelag("oneway", *points, "--estimator", "lda", code=130)
    assert (ran.stdout, ran.stderr) == ("", "wirelag: stopped before there was a result\n")


def test_a_path_ends_with_what_was_read(points: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    stopping(monkeypatch, 2, 3)
    middle = points[0].with_name("middle.pcap")
    middle.write_bytes(points[1].read_bytes())
    found = json.loads(wirelag("oneway", points[0], middle, points[1], "--format", "json", code=130).stdout)
    assert found["received"] == found["sent"] > 0
    assert any("stopped before 2 segments were read" in note for note in found["notes"])


def test_flows_against_a_second_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = run(QueueScenario(0.7, seed=3, seconds=0.4))
    before = write(tmp_path / "before.pcap", upstream_frames(simulation))
    words = (write(tmp_path / "behind.pcap", downstream_frames(simulation)), "--upstream", before)
    whole = json.loads(wirelag("flows", *words, "--format", "json").stdout)
    stopping(monkeypatch, 4, 2)
    found = json.loads(wirelag("flows", *words, "--format", "json", code=130).stdout)
    assert found["partial"] is True
    assert 0 < found["samples"] < whole["samples"]
    assert 0 < len(found["flows"]) < len(whole["flows"])
    assert {flow["key"] for flow in found["flows"]} <= {flow["key"] for flow in whole["flows"]}
