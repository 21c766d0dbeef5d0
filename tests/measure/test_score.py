"""`wirelag score`: a report compared with the truth."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.support.command import wirelag
from wirelag.sim import Scenario, simulate
from wirelag.sim.score import score, true_delays

QUANTILES = ("0.5", "0.9", "0.99")


def perfect_report(delays: np.ndarray[Any, np.dtype[np.float64]], quantity: str) -> dict[str, Any]:
    return {
        "quantity": quantity,
        "samples": len(delays),
        "mean": delays.mean(),
        "std": delays.std(),
        "quantiles": {name: np.quantile(delays, float(name)) for name in QUANTILES},
        "ci95": {"mean": [delays.mean() * 0.9, delays.mean() * 1.1], "0.99": [0.0, 1e-9]},
        "intervals": [],
        "groups": [],
    }


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("scenario", "quantity"),
    [
        (Scenario(packets=5000, loss=0.02), "round_trip"),
        (Scenario(packets=5000, direction="client"), "response"),
        (Scenario(packets=5000, points=2, loss=0.02), "one_way"),
    ],
)
def test_a_perfect_report_has_no_error(scenario: Scenario, quantity: str) -> None:
    truth = simulate(scenario).truth
    delays = true_delays(truth, quantity)
    result = score(perfect_report(delays, quantity), truth)
    assert (result.samples, result.true_samples) == (len(delays), len(delays))
    assert [line.name for line in result.lines] == ["mean", "std", *QUANTILES]
    assert all(line.error == 0 for line in result.lines)
    assert [line.covered for line in result.lines] == [True, None, None, None, False]


def test_errors_are_signed_and_relative() -> None:
    truth = pl.DataFrame({"direction": ["forward"] * 3, "delay_ns": [1_000, 2_000, 3_000], "lost": [False] * 3})
    report = {"quantity": "one_way", "samples": 2, "mean": 3e-6, "std": None, "quantiles": {"0.5": 1e-6}}
    mean, std, median = score(report, truth).lines
    assert mean.error == pytest.approx(0.5)
    assert median.error == pytest.approx(-0.5)
    assert (std.estimate, std.error, std.covered) == (None, None, None)


def test_only_fair_delays_count() -> None:
    truth = pl.DataFrame(
        {
            "kind": ["tcp", "tcp", "tcp", "dns"],
            "leg": ["server", "server", "client", "server"],
            "delay_ns": [1, 2, 4, 8],
            "retransmitted": [False, True, False, False],
            "held": [False, False, False, False],
        }
    )
    assert (true_delays(truth, "round_trip") * 1e9).tolist() == pytest.approx([1, 4, 8])
    assert (true_delays(truth, "round_trip", kind="tcp") * 1e9).tolist() == pytest.approx([1, 4])
    assert (true_delays(truth, "round_trip", leg="server") * 1e9).tolist() == pytest.approx([1, 8])
    with pytest.raises(ValueError, match="no true round_trip delay is left"):
        true_delays(truth, "round_trip", kind="handshake")


def test_directions_are_separate_and_lost_packets_do_not_count() -> None:
    truth = pl.DataFrame(
        {"direction": ["forward", "reverse", "forward"], "delay_ns": [1, 2, None], "lost": [False, False, True]}
    )
    assert (true_delays(truth, "one_way") * 1e9).tolist() == pytest.approx([1])
    assert (true_delays(truth, "one_way", direction="reverse") * 1e9).tolist() == pytest.approx([2])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    truth = simulate(Scenario(packets=2000)).truth
    truth.write_parquet(tmp_path / "truth.parquet")
    report = perfect_report(true_delays(truth, "round_trip"), "round_trip")
    (tmp_path / "report.json").write_text(json.dumps(report))
    return tmp_path / "report.json", tmp_path / "truth.parquet"


def test_the_command_prints_json(files: tuple[Path, Path]) -> None:
    content = json.loads(wirelag("score", *files, "--format", "json", "--leg", "server").stdout)
    assert content["quantity"] == "round_trip"
    assert content["samples"]["estimate"] > content["samples"]["truth"] > 0
    assert set(content["statistics"][0]) == {"name", "estimate", "truth", "relative_error", "ci95", "covered"}


def test_the_command_prints_a_table(files: tuple[Path, Path]) -> None:
    table = wirelag("score", *files).stdout
    assert "+0.00%" in table
    assert "covers" in table
    assert "misses" in table


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("not json", "is not JSON"),
        ("[1]", "not a report"),
        ("{}", 'no "quantity"'),
        ('{"quantity": "speed", "samples": 1}', "must be one of"),
        ('{"quantity": "round_trip", "samples": "many"}', '"samples" is not an integer'),
        ('{"quantity": "round_trip", "samples": 1, "mean": "fast"}', '"mean" is not a number'),
        ('{"quantity": "round_trip", "samples": 1, "mean": NaN}', '"mean" is not a number'),
        ('{"quantity": "round_trip", "samples": 1, "quantiles": [1]}', '"quantiles" is not an object'),
        ('{"quantity": "round_trip", "samples": 1, "quantiles": {"p50": 1}}', "between 0 and 1"),
        ('{"quantity": "round_trip", "samples": 1, "ci95": {"mean": 1}}', "is not [low, high]"),
    ],
)
def test_a_malformed_report_is_one_clear_line(files: tuple[Path, Path], content: str, says: str) -> None:
    report, truth = files
    report.write_text(content)
    (line,) = wirelag("score", report, truth, code=2).stderr.splitlines()
    assert line.startswith(f"wirelag: {report}: ")
    assert says in line


def test_a_malformed_truth_is_one_clear_line(files: tuple[Path, Path], tmp_path: Path) -> None:
    report, truth = files
    other = tmp_path / "other.parquet"
    for content, says in (
        (b"", "not a Parquet file"),
        (b"text", "not a Parquet file"),
        (truth.read_bytes()[:1000], "not a Parquet file"),
        (None, "no column 'leg'"),
    ):
        if content is None:
            simulate(Scenario(packets=100, points=2)).truth.rename({"direction": "kind"}).write_parquet(other)
        else:
            other.write_bytes(content)
        (line,) = wirelag("score", report, other, code=2).stderr.splitlines()
        assert says in line


def test_a_missing_file_is_named(files: tuple[Path, Path]) -> None:
    report, truth = files
    for arguments, name in (([report, "gone.parquet"], "gone.parquet"), (["gone.json", truth], "gone.json")):
        told = wirelag("score", *arguments, code=2).stderr
        assert told.startswith(f"wirelag: {name}: cannot read: No such file or directory")


def test_bad_options_are_explained(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for option, value in (("--kind", "udp"), ("--leg", "left"), ("--direction", "up"), ("--format", "xml")):
        assert "is not one of" in wirelag("score", *files, option, value, code=2).stderr
