"""`wirelag rtt` as a whole: tshark's figures, its own parts, hostile traffic, and the JSON contract."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import polars as pl
import pytest

from tests.support.captures import SHARED_DATA
from tests.support.command import wirelag
from tests.support.places import ROOT
from tests.support.simulated_captures import write_simulation
from wirelag.capture.writer import CaptureWriter
from wirelag.sim import Scenario, simulate

SCHEMA = json.loads((ROOT / "docs/reference/schema/rtt.json").read_text())
# docs/concepts/tshark.md shows the packet of each.
EXCEPTIONS = {
    "rtt/PcapPlusPlus/example.pcap.gz",
    "rtt/tcptrace/hardware_dups.dmp.gz",
    "twopoint/mptcpanalyzer-0.3.2/client_1_tcp_only.pcap.gz",
    "twopoint/mptcpanalyzer-0.3.2/server_2_filtered.pcapng.gz",
}


def rtt(*words: str | Path, code: int = 0) -> str:
    return wirelag("rtt", *words, code=code).stdout


def report(*words: str | Path) -> dict:
    answer = json.loads(rtt(*words, "--format", "json"))
    jsonschema.validate(answer, SCHEMA)
    return answer


def reference() -> list[tuple[str, int, float, float, float]]:
    """tshark's figures, in ms, for every capture with at least 100 samples."""
    if SHARED_DATA is None:
        return []
    lines = (SHARED_DATA / "rtt/REFERENCE_tshark_ack_rtt.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith(("#", "file\t"))]
    return [(r[0], int(r[1]), float(r[2]), float(r[3]), float(r[4])) for r in rows if int(r[1]) >= 100]


@pytest.mark.parametrize(("name", "samples", "p50", "p95", "p99"), reference(), ids=lambda value: str(value))
@pytest.mark.every(6)
def test_first_copies_agree_with_tshark(
    shared_data: Path, name: str, samples: int, p50: float, p95: float, p99: float
) -> None:
    """With tshark's rule: samples within 1%, quantiles within 2%, except for captures that the docs explain."""
    answer = report(shared_data / name, "--match", "tcp", "--retransmitted", "first", "--leg", "mixed")
    close = abs(answer["samples"] / samples - 1) <= 0.01
    for q, theirs in (("0.5", p50), ("0.95", p95), ("0.99", p99)):
        close &= abs(answer["quantiles"][q] * 1e3 - theirs) <= 0.02 * theirs + 1e-6
    assert close != (name in EXCEPTIONS)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rtt") / "capture.pcap"
    write_simulation(simulate(Scenario(packets=30_000, seed=9, loss=0.01)), path)
    return path


@pytest.mark.every(2)
@pytest.mark.parametrize("method", [[], ["--memory", "32KiB"], ["--slots", "4096", "--entry-probability", "0.5"]])
def test_intervals_and_groups_add_up_to_the_whole(capture: Path, method: list[str]) -> None:
    answer = report(capture, "--interval", "7s", "--by", "server", *method)
    for part in ("intervals", "groups"):
        assert sum(one["samples"] for one in answer[part]) == answer["samples"] > 1_000
        assert sum(one["stands_for"] for one in answer[part]) == answer["stands_for"]
    medians = [group["quantiles"]["0.5"] for group in answer["groups"]]
    assert medians == sorted(medians, reverse=True)


@pytest.mark.every(4)
@pytest.mark.parametrize("by", ["flow", "client", "server", "subnet", "port"])
def test_groups_have_names_and_add_up(capture: Path, by: str) -> None:
    groups = report(capture, "--by", by)["groups"]
    assert sum(group["samples"] for group in groups) == report(capture)["samples"]
    keys = {group["key"] for group in groups}
    assert len(keys) == len(groups)
    assert "other" not in keys


def test_every_format_says_the_same(capture: Path, tmp_path: Path) -> None:
    answer = report(capture, "--by", "port")
    rtt(capture, "--by", "port", "--format", "parquet", "-o", tmp_path / "x.parquet")
    rtt(capture, "--by", "port", "--format", "csv", "-o", tmp_path / "x.csv")
    for frame in (pl.read_parquet(tmp_path / "x.parquet"), pl.read_csv(tmp_path / "x.csv")):
        server = frame.filter(leg="server")
        assert server["samples"].to_list() == [one["samples"] for one in (answer, *answer["groups"]) if one["samples"]]
        legs = [one["legs"]["client"]["samples"] for one in (answer, *answer["groups"]) if "client" in one["legs"]]
        assert frame.filter(leg="client")["samples"].to_list() == legs
        assert server["p99"][0] == pytest.approx(answer["quantiles"]["0.99"])
    lines = rtt(capture, "--interval", "20s", "--format", "jsonl").splitlines()
    assert sum(json.loads(line)["samples"] for line in lines) == answer["samples"]
    assert f"{answer['samples']:,}" in rtt(capture)


def test_a_violated_agreement_exits_with_3(capture: Path) -> None:
    assert "p99<10s: holds" in rtt(capture, "--sla", "p99<10s")
    assert "does not hold" in rtt(capture, "--sla", "p99<10s", "--sla", "mean<1us", code=3)
    assert "above(1ms)<=100%: holds" in rtt(capture, "--sla", "above(1ms)<=100%")
    for wrong in ("p99", "p99<fast", "above(1ms)<much", "p200<1ms"):
        rtt(capture, "--sla", wrong, code=2)


def test_wrong_arguments_are_explained(capture: Path) -> None:
    for words in (
        ["--match", "telepathy"],
        ["--by", "mood"],
        ["--interval", "0s"],
        ["--memory", "3B"],
        ["--slots", "1000"],
        ["--slots", "64", "--entry-probability", "1.5"],
        ["--entry-probability", "0.5", "--slots", "64", "--slots", "64"],
        ["--memory", "64KiB", "--match", "quic-spin"],
        ["--retransmitted", "maybe"],
        ["--format", "parquet"],
    ):
        assert rtt(capture, *words, code=2) == ""


def flood(path: Path, syns: int) -> None:
    """SYNs from random addresses, a million a second, without answers."""
    rng = np.random.default_rng(4)
    frame = np.zeros((65_536, 54), np.uint8)
    frame[:, 12:14] = 8, 0
    frame[:, 14], frame[:, 17], frame[:, 23], frame[:, 46], frame[:, 47] = 0x45, 40, 6, 0x50, 2
    frame[:, 30:34] = 192, 0, 2, 1
    with CaptureWriter(str(path), 54) as writer:
        for start in range(0, syns, len(frame)):
            count = min(len(frame), syns - start)
            frame[:, 26:30] = rng.integers(0, 256, (len(frame), 4))
            frame[:, 34:38] = rng.integers(0, 256, (len(frame), 4))
            size = np.full(count, 54, np.int64)
            times = (np.arange(start, start + count) + 10**15) * 1_000
            writer.write(times, frame[:count].reshape(-1), np.arange(count, dtype=np.int64) * 54, size, size)


@pytest.mark.parametrize(
    ("syns", "memory"), [(200_000, "1MiB"), pytest.param(5_000_000, "64MiB", marks=pytest.mark.acceptance)]
)
def test_a_flood_stays_in_memory_and_reports_evictions(tmp_path: Path, syns: int, memory: str) -> None:
    path = tmp_path / "flood.pcap"
    flood(path, syns)
    script = (
        "import re, sys\nfrom wirelag.cli import app\n"
        f"try: app(['rtt', {str(path)!r}, '--table-memory', {memory!r}])\nexcept SystemExit: pass\n"
        # The peak of this process alone: ru_maxrss would start with its parent's.
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "forgotten before their answer, since memory was full" in ran.stdout
    assert int(ran.stderr.split()[-1]) < 200_000 + int(memory.removesuffix("MiB")) * 1_024
