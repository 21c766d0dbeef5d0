"""The command `wirelag simulate`: distributions, options, files."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.support.command import wirelag
from wirelag.sim import Scenario, parse_distribution, simulate

# Distributions


@pytest.mark.parametrize(
    ("text", "mean_ns", "median_ns"),
    [
        ("10ms", 10e6, 10e6),
        ("constant:10ms", 10e6, 10e6),
        ("uniform:1ms,5ms", 3e6, 3e6),
        ("exponential:5ms", 5e6, 5e6 * np.log(2)),
        ("lognormal:20ms,0.5", 20e6 * np.exp(0.125), 20e6),
        ("weibull:50us,0.6", 50e3, 50e3 / 1.504575 * np.log(2) ** (1 / 0.6)),
        ("pareto:1ms,3", 1.5e6, 1e6 * 2 ** (1 / 3)),
    ],
)
def test_distributions(text: str, mean_ns: float, median_ns: float) -> None:
    drawn = parse_distribution(text).draw(np.random.default_rng(1), 400_000)
    assert drawn.mean() == pytest.approx(mean_ns, rel=0.02)
    assert np.median(drawn) == pytest.approx(median_ns, rel=0.02)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gauss:1ms,2ms", "is not a distribution"),
        ("lognormal:20ms", "has 1 parameters instead of 2"),
        ("lognormal:20ms,wide", "is not a positive number"),
        ("weibull:1ms,0", "is not a positive number"),
        ("uniform:5ms,1ms", "lowest duration first"),
        ("constant:ten", "is not a duration"),
        ("constant:-1ms", "negative"),
        ("", "is not a duration"),
    ],
)
def test_bad_distributions_say_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_distribution(text)


def test_a_duration_too_short_for_a_packet_is_refused() -> None:
    with pytest.raises(ValueError, match="choose a longer one"):
        simulate(Scenario(packets=10, rtt="constant:20s", duration_ns=10**6))


# The command


def test_the_command_writes_captures_and_truth(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("up.pcapng", "down.pcap.zst", "truth.parquet")]
    arguments = ["--packets", "500", "--points", "2", "--clock-offset", "3ms", "-o", files[0], "-o", files[1]]
    assert "up.pcapng: 500 packets" in wirelag("simulate", *arguments, "--truth", files[2]).stderr
    assert pl.read_parquet(files[2])["upstream_number"].max() == 500


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--points", "2"], "needs 2 files"),
        (["--points", "3"], "must be 1 or 2"),
        (["--loss", "0.9"], "between 0 and 0.5"),
        (["--rtt", "slow"], "is not a duration"),
        (["--duration", "60"], "is not a duration"),
        (["--direction", "server"], "is not one of both, client"),
        (["--packets", "0"], "between 1 and"),
        (["--snaplen", "0"], "at least 1"),
        (["--snaplen", "999999999999"], "at most 262,144"),
        (["--clock-skew", "5"], "needs --points 2"),
        (["--truth", "x.pcap"], "its own file"),
    ],
)
def test_bad_options_are_explained(arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert says in wirelag("simulate", "-o", "x.pcap", *arguments, code=2).stderr


@pytest.mark.parametrize("option", ["-o", "--truth"])
def test_an_unwritable_file_is_one_clear_line(tmp_path: Path, option: str) -> None:
    missing = str(tmp_path / "no" / "such" / "place.pcap")
    outputs = ["-o", missing] if option == "-o" else ["-o", str(tmp_path / "x.pcap"), "--truth", missing]
    told = wirelag("simulate", "--packets", "10", *outputs, code=2).stderr
    assert told.startswith(
        f"wirelag: {missing}: cannot write (No such file or directory); choose another file with {option}"
    )
    assert not list(tmp_path.iterdir())


def test_a_clock_that_pcap_cannot_hold_is_refused(tmp_path: Path) -> None:
    files = ["-o", str(tmp_path / "a.pcap"), "-o", str(tmp_path / "b.pcap")]
    words = ["--packets", "10", "--points", "2", "--clock-offset=-600000h", *files]
    assert "1970" in wirelag("simulate", *words, code=2).stderr


def test_shares_are_written_in_percent_or_as_fractions(tmp_path: Path) -> None:
    made = []
    for number, text in enumerate(("5%", ".05", "0.05")):
        path = tmp_path / f"{number}.pcap"
        wirelag("simulate", "--packets", "2000", "--seed", "1", f"--loss={text}", "-o", path)
        made.append(path.read_bytes())
    assert made[0] == made[1] == made[2]
    for text in ("5", "-1%", "many", "nan"):
        said = wirelag("simulate", f"--loss={text}", "-o", tmp_path / "no.pcap", code=2).stderr
        assert "is not a share: write 1% or 0.01" in said
