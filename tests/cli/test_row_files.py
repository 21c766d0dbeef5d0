"""Every packet and every exchange as rows of a file, and files of several results read together."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import wirelag as api
from tests.support.command import wirelag
from tests.support.places import DATA, SIX_ROUTERS

PAIRS = [
    ("mptcpanalyzer-0.3.2/client_1_tcp_only.pcap.gz", "mptcpanalyzer-0.3.2/server_1_tcp_only.pcap.gz"),
    (
        "smart-home-firewall/tplink-plug/no-firewall/wlan2.4.pcap",
        "smart-home-firewall/tplink-plug/no-firewall/wan.pcap",
    ),
]
HTTP = "rtt/zeek/1000-requests-one-dropped-response.pcap.gz"


def read(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema_length=None) if path.suffix == ".csv" else pl.read_parquet(path)


def numbers(*paths: Path) -> dict[str, tuple[pl.DataFrame, dict[int, int]]]:
    """The packets of captures by number."""
    frames = {str(path): pl.concat([batch.to_polars() for batch in api.read(str(path))]) for path in paths}
    return {name: (frame, {n: i for i, n in enumerate(frame["number"].to_list())}) for name, frame in frames.items()}


@pytest.mark.every(2)
@pytest.mark.parametrize("more", [(), ("--interval", "2s"), ("--by", "destination"), ("--port", "1-65535")])
@pytest.mark.parametrize("pair", PAIRS)
def test_every_packet_between_two_points(
    pair: tuple[str, str], more: tuple[str, ...], shared_data: Path, tmp_path: Path
) -> None:
    points, file = [shared_data / "twopoint" / name for name in pair], tmp_path / "packets.parquet"
    report = json.loads(wirelag("oneway", *points, *more, "--samples", file, "--format", "json").stdout)
    rows = read(file)
    delays = rows["delay_ns"].sort()
    assert len(rows) == report["samples"] > 50
    assert delays.sum() / len(delays) / 1e9 == pytest.approx(report["mean"], rel=1e-12)
    assert (delays[0] / 1e9, delays[-1] / 1e9) == (report["min"], report["max"])
    for q, value in report["quantiles"].items():
        assert delays[min(len(delays) - 1, int(float(q) * len(delays)))] / 1e9 == pytest.approx(value, rel=0.02)
    assert (rows["downstream_ns"] - rows["upstream_ns"] == rows["delay_ns"]).all()
    known = numbers(*points)
    for row in rows.gather_every(max(1, len(rows) // 20)).iter_rows(named=True):
        up, down = (
            known[row[f"{point}_capture"]][0].row(known[row[f"{point}_capture"]][1][row[f"{point}_number"]], named=True)
            for point in ("upstream", "downstream")
        )
        assert up["packet_id"] == down["packet_id"]
        assert up["time_ns"] == row["upstream_ns"]
        assert (up["src"], up["dst"], up["src_port"]) == (row["source"], row["destination"], row["source_port"])
    slowest = [(round(one["delay"] * 1e9), one["frames"][0]["number"]) for one in report["slowest"]]
    by_delay = rows.sort("delay_ns", descending=True, maintain_order=True).head(len(slowest))
    assert [delay for delay, _ in slowest] == by_delay["delay_ns"].to_list()
    assert {n for _, n in slowest} <= set(rows.filter(pl.col("delay_ns") >= slowest[-1][0])["upstream_number"])


def test_python_keeps_what_the_command_writes(shared_data: Path, tmp_path: Path) -> None:
    up, down = (str(shared_data / "twopoint" / name) for name in PAIRS[0])
    files = tmp_path / "packets.csv", tmp_path / "packets.parquet"
    for file in files:
        wirelag("oneway", up, down, "--samples", file)
    kept = api.oneway(up, down, samples=True).samples
    assert kept is not None
    assert kept.to_polars().equals(read(files[1]))
    assert read(files[0]).cast(dict(kept.to_polars().schema)).equals(read(files[1]))


def test_every_exchange(shared_data: Path, tmp_path: Path) -> None:
    capture, files = shared_data / HTTP, (tmp_path / "exchanges.csv", tmp_path / "exchanges.parquet")
    for file in files:
        report = json.loads(wirelag("response", capture, "--exchanges", file, "--format", "json").stdout)
    rows = read(files[1])
    single = rows.filter(pl.col("excluded").is_null())
    assert (len(rows), len(single)) == (report["exchanges"], report["samples"])
    assert float(single["delay_ns"].mean()) / 1e9 == pytest.approx(report["mean"], rel=1e-12)  # type: ignore[arg-type]
    assert {name: report[name] for name in ("pipelined", "joined", "cut", "unseen", "overlapping")} == {
        name: rows["excluded"].fill_null("").str.split("+").list.contains(name).sum()
        for name in ("pipelined", "joined", "cut", "unseen", "overlapping")
    }
    kept = api.response(str(capture), exchanges=True).exchanges
    assert kept is not None
    assert kept.to_polars().equals(rows)
    assert read(files[0]).cast(dict(rows.schema)).equals(rows)
    ((frame, places),) = numbers(capture).values()
    for row in single.gather_every(max(1, len(single) // 20)).iter_rows(named=True):
        asked, told = (frame.row(places[row[f"{part}_number"]], named=True) for part in ("request", "response"))
        assert (asked["time_ns"], told["time_ns"]) == (row["begin_ns"], row["response_ns"])
        assert (asked["src"], told["src"]) == (row["client"], row["server"])
        assert (asked["src_port"], told["src_port"]) == (row["client_port"], row["server_port"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("oneway", "UP", "DOWN", "--estimator", "lda", "--samples", "F"), "lda sees no single packets"),
        (("oneway", "UP", "DOWN", "--estimator", "rda", "--samples", "F"), "use --estimator join"),
        (("response", DATA / "response.pcap.gz", "--method", "blind", "--exchanges", "F"), "use --method pairs"),
    ],
)
def test_who_cannot_tell_says_so(words: tuple[object, ...], says: str, shared_data: Path, tmp_path: Path) -> None:
    up, down = (shared_data / "twopoint" / name for name in PAIRS[0])
    given = {"UP": up, "DOWN": down, "F": tmp_path / "rows.parquet"}
    told = wirelag(*(given.get(str(word), word) for word in words), code=2).stderr
    assert says in " ".join(told.split())
    assert not list(tmp_path.iterdir())


def reports(command: str, shared_data: Path, folder: Path) -> list[Path]:
    """An empty result, a tiny one and a larger one, as files."""
    nothing, tiny, large = ("--port", "1"), DATA / "loopback.pcap", shared_data / HTTP
    up, down = (shared_data / "twopoint" / name for name in PAIRS[0])
    runs: dict[str, list[tuple[Any, ...]]] = {
        "rtt": [(tiny, *nothing), (tiny,), (large, "--by", "flow", "--interval", "1s")],
        "response": [(tiny, "--method", "syn"), (tiny,), (large, "--by", "flow", "--interval", "1s")],
        "oneway": [(up, down, "--estimator", "lda"), (up, down), (up, down, "--by", "flow", "--interval", "1s")],
        "flows": [(down, "--upstream", up, *nothing), (down, "--upstream", up, "--by", "server", "--interval", "1s")],
        "plan": [(SIX_ROUTERS, "--upgrade", "0"), (SIX_ROUTERS, "--upgrade", "3")],
    }
    paths = []
    for i, words in enumerate(runs[command]):
        for ending in ("parquet", "csv"):
            paths.append(folder / f"{i}.{ending}")
            wirelag(command, *words, "-o", paths[-1])
    return paths


def by_duckdb(files: str) -> Any:
    """Columns and number of rows; in a process of its own, since the extension complains when its process ends."""
    program = "import duckdb, json, sys; found = duckdb.sql(f\"SELECT * FROM read_parquet('{sys.argv[1]}')\"); "
    program += "print(json.dumps([found.columns, len(found.fetchall())]))"
    ran = subprocess.run([sys.executable, "-c", program, files], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


@pytest.mark.every(4)
@pytest.mark.parametrize("command", ["rtt", "response", "oneway", "flows", "plan"])
def test_files_of_several_results_are_read_together(command: str, shared_data: Path, tmp_path: Path) -> None:
    paths = reports(command, shared_data, tmp_path)
    frames = [pl.read_parquet(path) for path in paths if path.suffix == ".parquet"]
    together = pl.concat(frames)  # strict: names and types must be equal
    assert len(together) == sum(map(len, frames)) > len(frames)
    assert by_duckdb(f"{tmp_path}/*.parquet") == [together.columns, len(together)]
    heads = {path.read_text().splitlines()[0] for path in paths if path.suffix == ".csv"}
    assert heads == {",".join(together.columns)}


def test_results_without_rows_have_the_same_columns(shared_data: Path) -> None:
    from wirelag.render.rows import COLUMNS, table_of

    captures = [api.info(str(DATA / "loopback.pcap")), api.info(str(shared_data / HTTP))]
    pl.concat([table_of([], "info").to_polars(), *(result.to_polars() for result in captures)])
    one, other = (api.rtt(str(path), by="flow") for path in (DATA / "loopback.pcap", shared_data / HTTP))
    compared = [api.compare(one, one), api.compare(one, other)]
    assert len(pl.concat([table_of([], "compare").to_polars(), *(result.to_polars() for result in compared)])) > 10
    assert {name: table_of([], name).to_polars().columns for name in COLUMNS} == {
        name: list(COLUMNS[name]) for name in COLUMNS
    }
