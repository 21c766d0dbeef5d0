"""`wirelag simulate --queue`: captures before and after a queue, their truth, and `wirelag score` on flows."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import polars as pl
import pytest

import wirelag
from tests.support.command import wirelag as run_command
from tests.support.places import SCHEMAS
from wirelag.packets.batch import Kind, PacketBatch
from wirelag.sim.bursts import draw_bursts
from wirelag.sim.queue import QueueScenario, Red, run
from wirelag.sim.score import ReportError, score

SCHEMA = SCHEMAS / "score.json"


def command(*words: str | Path) -> str:
    return run_command(*words, together=True).stdout


def packets(path: Path) -> PacketBatch:
    return PacketBatch.concatenate(list(wirelag.read(str(path))))


@dataclass
class Files:
    up: Path
    down: Path
    truth: Path
    said: str

    @classmethod
    def made(cls, folder: Path, *words: str) -> "Files":
        up, down, truth = folder / "up.pcap", folder / "down.pcap", folder / "truth.parquet"
        return cls(up, down, truth, command("simulate", *words, "-o", up, "-o", down, "--truth", truth))

    def references(self) -> int:
        return int(packets(self.down).of_kind(Kind.STAMP).sum())


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A queue that overflows, so that all fates occur."""
    folder = tmp_path_factory.mktemp("full")
    return Files.made(folder, "--queue", "0.95", "--duration", "300ms", "--limit", "500", "--discipline", "droptail")


# ---- output ----


def test_it_reports_what_it_wrote(full: Files) -> None:
    before, behind = packets(full.up), packets(full.down)
    truth = pl.read_parquet(full.truth)
    assert full.said.splitlines() == [
        f"{full.up}: {len(before):,} packets",
        f"{full.down}: {len(behind):,} packets, {full.references():,} of them references",
        f"{full.truth}: {truth.height:,} rows of truth",
    ]
    assert full.references() > 100
    assert len(before) == truth.height > int((~truth["lost"]).sum()) == len(behind) - full.references()


def test_the_truth_equals_the_captures(full: Files) -> None:
    before, behind = packets(full.up), packets(full.down)
    truth = pl.read_parquet(full.truth)
    arrived = truth.filter(~pl.col("lost"))
    up, down = (arrived[f"{point}_number"].to_numpy() - 1 for point in ("upstream", "downstream"))
    assert (truth["upstream_number"].to_numpy() == np.arange(1, len(before) + 1)).all()
    assert (before.packet_id[up] == behind.packet_id[down]).all()
    assert (before.time_ns[up] == arrived["upstream_ns"].to_numpy()).all()
    assert (behind.time_ns[down] == arrived["downstream_ns"].to_numpy()).all()
    assert (behind.time_ns[down] - before.time_ns[up] == arrived["delay_ns"].to_numpy()).all()
    assert (behind.kind[np.setdiff1d(np.arange(len(behind)), down)] == Kind.STAMP).all()
    assert truth.filter("lost")["delay_ns"].null_count() == truth.height - arrived.height > 0
    assert not truth["duplicated"].any()
    assert not truth["reordered"].any()


def test_the_truth_has_the_flows_of_the_simulation_and_the_report(full: Files) -> None:
    simulation = run(QueueScenario(0.95, seconds=0.3, limit=500, red=None))
    known = simulation.truth()
    truth = pl.read_parquet(full.truth).filter(~pl.col("lost"))
    flows = truth.group_by("flow").agg(pl.len(), pl.col("delay_ns").mean()).sort("flow")
    assert np.allclose(np.sort(flows["delay_ns"].to_numpy()), np.sort(known.mean_ns[known.packets > 0]))
    report = json.loads(command("flows", full.down, "--format", "json", "--quiet"))
    listed = {flow["key"]: flow["packets"] for flow in report["flows"]}
    assert listed == dict(flows.select("flow", "len").iter_rows())


def test_the_same_options_and_seed_give_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name, seed in (("one", "5"), ("two", "5"), ("three", "6")):
        (tmp_path / name).mkdir()
        made = Files.made(tmp_path / name, "--queue", "0.7", "--duration", "50ms", "--seed", seed)
        written.append([path.read_bytes() for path in (made.up, made.down, made.truth)])
    assert written[0] == written[1]
    assert all(one != three for one, three in zip(written[0], written[2], strict=True))


@pytest.mark.acceptance
def test_other_tools_read_the_captures(tmp_path: Path, tool: Callable[[str], str]) -> None:
    made = Files.made(tmp_path, "--queue", "0.7", "--duration", "50ms", "--snaplen", "2000")
    counted = subprocess.run([tool("tcpdump"), "-nntqr", made.down], capture_output=True, text=True, check=True)
    assert len(counted.stdout.splitlines()) == len(packets(made.down))
    fields = ("ip.checksum.status", "tcp.checksum.status", "udp.checksum.status", "udp.dstport", "frame.protocols")
    words = [word for field in fields for word in ("-e", field)]
    checks = [word for layer in ("ip", "tcp", "udp") for word in ("-o", f"{layer}.check_checksum:TRUE")]
    for path, references in ((made.up, 0), (made.down, made.references())):
        done = subprocess.run(
            [tool("tshark"), "-r", path, *checks, "-T", "fields", *words], capture_output=True, text=True, check=True
        )
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        assert all(row[0] == "1" and "1" in row[1:3] for row in rows)  # 1: good
        assert sum(row[3] == "862" for row in rows) == references
        assert not any("malformed" in row[4] for row in rows)


@pytest.mark.parametrize(
    ("name", "snaplen", "least"), [("a.pcapng", 128, 62), ("a.pcap.gz", 60, 60), ("a.pcap.zst", 1, 1)]
)
def test_formats_and_snaplen(tmp_path: Path, name: str, snaplen: int, least: int) -> None:
    up, down = tmp_path / f"up-{name}", tmp_path / f"down-{name}"
    words = ("--queue", "0.7", "--duration", "5ms", "--snaplen", str(snaplen))
    command("simulate", *words, "-o", up, "-o", down, "--quiet")
    for path in (up, down):
        capture = wirelag.read(str(path))
        rows = list(capture)
        seen = capture.statistics.packets + sum(capture.statistics.skipped.values())
        assert seen > 1000
        assert all((batch.captured_length <= snaplen).all() and batch.captured_length.max() >= least for batch in rows)


# ---- the queue ----


def test_the_rate_of_the_queue_and_its_utilisation(tmp_path: Path) -> None:
    made = Files.made(tmp_path, "--queue", "0.5", "--drain", "500Mbps", "--duration", "400ms")
    before, behind = packets(made.up), packets(made.down)
    sizes = behind.wire_length.astype(np.int64) - 14  # the queue counts IP packets
    gaps = np.diff(behind.time_ns)
    assert (gaps >= sizes[1:] * 16 - 1).all()  # 16 ns a byte, and rounding
    assert (gaps == sizes[1:] * 16).any()
    carried = float((before.wire_length.astype(np.int64) - 14).sum()) / (62.5e6 * 0.4)
    assert carried == pytest.approx(0.5, rel=0.1)  # one flow more or less: at most half of 20,000 packets


def test_flows_begin_at_any_ns_also_after_many_others() -> None:
    """88,000 consecutive flows of up to 600 s are 10^17 ns, where floats are 16 to 32 ns apart.

    If all packets of a flow have one size, the gap before the second equals the duration of the first, which gives
    the beginning of the flow. All share a line with 0.1% load, so that few wait there.
    """
    bursts = draw_bursts(1.5e6, 600, seed=1)
    of_one_size = np.bincount(bursts.flow, bursts.size != 40, bursts.flows) == 0
    order = np.argsort(bursts.flow, kind="stable")
    flow, time_ns = bursts.flow[order], bursts.time_ns[order]
    first = np.searchsorted(flow, np.flatnonzero(of_one_size))
    first = first[first > len(flow) // 2]
    first = first[:-1][flow[first[:-1] + 1] == flow[first[:-1]]]
    counts = np.bincount((2 * time_ns[first] - time_ns[first + 1]) % 16, minlength=16)
    expected = len(first) / 16
    assert expected > 1_000
    assert (np.abs(counts - expected) < 6 * expected**0.5).all()


def test_red_drops_before_the_queue_is_full(tmp_path: Path) -> None:
    """Its bounds follow the limit: from 40% to 90% of it."""
    delays = {}
    for discipline, red in (("red", Red(80, 180)), ("droptail", None)):
        (tmp_path / discipline).mkdir()
        words = ("--queue", "1.2", "--limit", "200", "--duration", "300ms", "--discipline", discipline)
        truth = pl.read_parquet(Files.made(tmp_path / discipline, *words).truth)
        simulation = run(QueueScenario(1.2, seconds=0.3, limit=200, red=red))
        assert truth["lost"].mean() == pytest.approx(simulation.loss)
        delays[discipline] = float(truth["delay_ns"].to_numpy()[~truth["lost"].to_numpy()].mean())
    assert delays["red"] < delays["droptail"]


def test_other_coins_drop_other_packets_of_the_same_traffic() -> None:
    scenario = QueueScenario(1.2, seconds=0.3, limit=200, red=Red(80, 180), injection=False)
    own = run(scenario)
    again, other = run(scenario, bursts=own.bursts), run(scenario, bursts=own.bursts, coins=7)
    assert again.bursts is other.bursts is own.bursts
    assert np.array_equal(own.left_ns, again.left_ns)
    assert not np.array_equal(own.left_ns, other.left_ns)


@pytest.mark.parametrize(
    ("injection", "share", "expected"),
    [
        ("none", "0.005", 0),
        ("1-in-n:50", "1", 1 / 50),
        ("1-in-n:50", "0.0005", 0.0005 * 25e6 / 92),
        ("tau:1ms", "0.005", 100),
        ("both:1000000,2ms", "0.005", 50),
    ],
)
def test_references_have_the_requested_rate(tmp_path: Path, injection: str, share: str, expected: float) -> None:
    """By count a share of the packets; by time, or bounded by bytes, a number in 100 ms of 250 MB/s."""
    words = ("--queue", "0.6", "--duration", "100ms", "--injection", injection, "--most-share", share)
    made = Files.made(tmp_path, *words)
    number = expected * len(packets(made.up)) if 0 < expected < 1 else expected
    assert made.references() == pytest.approx(number, rel=0.1, abs=0.5)


# ---- accuracy of a report ----


def judged(folder: Path, *words: str) -> dict[str, Any]:
    made, report = Files.made(folder, *words), folder / "report.json"
    command("flows", made.down, "--format", "json", "-o", report, "--quiet")
    assert "flows: in the median the mean is off by" in command("score", report, made.truth)
    found = json.loads(command("score", report, made.truth, "--format", "json"))
    jsonschema.validate(found, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert isinstance(found, dict)
    return found


@pytest.mark.acceptance
def test_means_of_flows_are_near_the_truth(tmp_path: Path) -> None:
    """Two seconds leave less time to learn than eight: errors may be 10% larger. Nominal 95%, required 90%."""
    found = judged(tmp_path, "--queue", "0.7", "--duration", "2s")
    assert found["flows"]["median_error"]["mean"] < 1.1 * 0.085
    assert found["flows"]["median_error"]["std"] < 0.15
    assert found["flows"]["covered"] > 0.9
    assert 0.99 < found["flows"]["samples"]["estimate"] / found["flows"]["samples"]["truth"] <= 1
    assert abs(found["statistics"][0]["relative_error"]) < 0.05


@pytest.mark.acceptance
def test_means_of_flows_have_the_required_accuracy(tmp_path: Path) -> None:
    errors = []
    for seed in "12345":
        errors.append(judged(tmp_path, "--queue", "0.7", "--seed", seed)["flows"]["median_error"]["mean"])
    assert np.median(errors) < 0.085


def test_captures_of_both_sides_give_the_exact_truth(full: Files, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command("oneway", full.up, full.down, "--offset", "0s", "--format", "json", "-o", report, "--quiet")
    found = json.loads(command("score", report, full.truth, "--format", "json"))
    assert found["samples"]["estimate"] == found["samples"]["truth"]
    assert found["statistics"][0]["relative_error"] == pytest.approx(0, abs=1e-9)
    assert found["flows"] is None


def truth_of(*rows: tuple[str, int | None]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema={"flow": pl.String, "delay_ns": pl.Int64}, orient="row")
    return frame.with_columns(direction=pl.lit("forward"), lost=pl.col("delay_ns").is_null())


def report_of(flows: object) -> dict[str, Any]:
    return {"quantity": "one_way", "samples": 3, "mean": 2e-6, "std": 1e-6, "flows": flows}


def test_flows_one_by_one() -> None:
    truth = truth_of(("a", 1_000), ("a", 3_000), ("a", None), ("b", 4_000), ("b", 4_000), ("c", 9), ("d", None))
    flows = [
        {"key": "a", "mean": 2.2e-6, "std": 0.5e-6, "ci95": [2.1e-6, 2.3e-6]},  # off by 10% and 50%
        {"key": "b", "mean": 2.8e-6, "std": 1e-6, "ci95": [1e-6, 5e-6]},  # off by 30%; no true deviation
        {"key": "c", "mean": None, "std": None, "ci95": None},
        {"key": "nobody's", "mean": 1.0, "std": 1.0, "ci95": [0.0, 2.0]},
    ]
    found = score(report_of(flows), truth).flows
    assert found
    assert (found.flows, found.true_flows) == (2, 3)
    assert found.mean_error == pytest.approx(0.2)
    assert found.std_error == pytest.approx(0.5)
    assert found.covered == pytest.approx(0.5)


def test_no_flows_to_compare() -> None:
    truth = truth_of(("a", 1_000))
    assert score(report_of(None), truth).flows is None
    assert score(report_of([]), truth.drop("flow")).flows is None
    for flows in ([], [{"key": "a", "mean": None}], [{"key": "b", "mean": 1.0}]):
        found = score(report_of(flows), truth)
        assert found.flows
        assert (found.flows.flows, found.flows.mean_error, found.flows.covered) == (0, None, None)
        jsonschema.validate(found.to_json(), json.loads(SCHEMA.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("flows", "says"),
    [
        ("many", "is not a list"),
        ([1], "is not a list"),
        ([{"mean": 1.0}], "is not a list"),
        ([{"key": "a", "mean": "slow"}], "not a number"),
        ([{"key": "a", "mean": 1.0, "ci95": 3}], r"not \[low, high\]"),
    ],
)
def test_malformed_flows_are_explained(flows: object, says: str) -> None:
    with pytest.raises(ReportError, match=says):
        score(report_of(flows), truth_of(("a", 1_000)))


# ---- options ----

QUEUE = ["--queue", "0.7"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*QUEUE, "--packets", "100000"], "--packets: has no effect with --queue"),
        ([*QUEUE, "--points", "2"], "--points: has no effect with --queue"),
        ([*QUEUE, "--clock-offset", "1s"], "--clock-offset: has no effect with --queue"),
        ([*QUEUE, "--loss", "0"], "--loss: has no effect with --queue"),
        (["--drain", "2Gbps"], "--drain: needs --queue"),
        (["--most-share", "0.005"], "--most-share: needs --queue"),
        (["--queue", "0"], "--queue: 0 is not above 0"),
        (["--queue", "nan"], "--queue: nan is not above 0"),
        (["--queue", "2.1"], "at most 2"),
        ([*QUEUE, "--drain", "fast"], "--drain: 'fast' is not a rate"),
        ([*QUEUE, "--drain", "20Gbps"], "comes over a line of 10 Gbps"),
        ([*QUEUE, "--duration", "1h"], "--duration: is 1ms to 600s"),
        ([*QUEUE, "--duration", "1us"], "--duration: is 1ms to 600s"),
        ([*QUEUE, "--duration", "600s", "--drain", "10Gbps"], "more than 4,194,304 flows: choose a shorter one"),
        ([*QUEUE, "--limit", "0"], "--limit: 0 is not between 1"),
        ([*QUEUE, "--discipline", "blue"], "is not one of red, droptail"),
        ([*QUEUE, "--seed", "-1"], "--seed: -1 is not between 0"),
        ([*QUEUE, "--most-share", "0"], "--most-share: 0 is not above 0"),
        ([*QUEUE, "--injection", "often"], "--injection: 'often' is not one of adaptive"),
        ([*QUEUE, "--injection", "1-in-n"], "is not one of adaptive"),
        ([*QUEUE, "--injection", "1-in-n:0"], "0 is not between 1"),
        ([*QUEUE, "--injection", "tau:soon"], "'soon' is not a duration"),
        ([*QUEUE, "--injection", "tau:1ns"], "tau must be 1 us to 18 minutes"),
        ([*QUEUE, "--injection", "tau:1us", "--duration", "60s"], "--injection: 16,777,216 references by time or more"),
        ([*QUEUE, "--injection", "both:10"], "is not one of adaptive"),
    ],
)
def test_wrong_options_are_explained(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    outputs = ["-o", "up.pcap", "-o", "down.pcap"] if "--queue" in words else ["-o", "up.pcap"]
    assert says in run_command("simulate", *outputs, *words, code=2).stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("outputs", [["a.pcap"], ["a.pcap", "b.pcap", "c.pcap"], ["a.pcap", "a.pcap"]])
def test_a_queue_has_two_sides(outputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word for path in outputs for word in ("-o", path)]
    told = run_command("simulate", *QUEUE, *words, code=2).stderr
    assert "needs 2 files" in told or "its own file" in told
