"""`wirelag oneway` as a whole: real captures with known delays, clocks, damage, and files from two places."""

import json
import struct
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.support.captures import SHARED_DATA
from tests.support.command import wirelag
from tests.support.simulated_captures import write_simulation
from wirelag.estimators.join import Join
from wirelag.packets.batch import PacketBatch
from wirelag.sim import Scenario, simulate
from wirelag.twopoint.spans import spans_between, total

TWO = SHARED_DATA / "twopoint" if SHARED_DATA else Path()
# Packets that differ only after the 64th byte of their payload: the reference left them out as copies; the join tells
# them apart by their order, and so measures more of them.
MORE_THAN_THE_REFERENCE = {("tplink-plug/no-firewall", "192.168.1.222"), ("tplink-plug/my-firewall", "192.168.1.222")}


def run(*words: str | Path, code: int = 0) -> str:
    return wirelag(*words, code=code).text


def report(*words: str | Path) -> dict:
    return json.loads(run("oneway", *words, "--format", "json"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two captures of both directions on one clock, with loss, reordering and copies."""
    return captures(tmp_path_factory.mktemp("oneway"), loss=0.01, reorder=0.01, duplicate=0.002)


def captures(folder: Path, packets: int = 30_000, snaplen: int = 128, **scenario: object) -> tuple[Path, Path]:
    paths = folder / "a.pcap", folder / "b.pcap"
    made = simulate(Scenario(packets=packets, points=2, **scenario))  # type: ignore[arg-type]
    write_simulation(made, *paths, snaplen=snaplen)
    made.truth.write_parquet(folder / "truth.parquet")
    return paths


def truth(folder: Path) -> pl.DataFrame:
    """Packets that crossed from the first point to the second."""
    return pl.read_parquet(folder / "truth.parquet").filter(pl.col("direction") == "forward")


# ---- captures with reference delays ----


def reference() -> list[list[str]]:
    if SHARED_DATA is None:
        return []
    lines = (TWO / "REFERENCE_owd_ns.tsv").read_text().splitlines()
    return [line.split("\t") for line in lines if not line.startswith(("#", "fileA"))]


@pytest.mark.parametrize("row", reference(), ids=lambda row: f"{row[0]} {row[4]}>{row[5]}")
@pytest.mark.every(4)
def test_the_reference_is_reproduced(shared_data: Path, row: list[str]) -> None:
    """Matched packets within 0.5%, median and p95 within 0.1%; also rows with negative delays."""
    up, down, source, destination = shared_data / "twopoint" / row[0], shared_data / "twopoint" / row[1], row[4], row[5]
    backwards = ("--clock", "none") if float(row[7]) < 0 else ()  # against what packets of both directions show
    answer = report(up, down, "--direction", f"{source}>{destination}", *backwards)
    matched, median, p95 = int(row[6]), float(row[8]), float(row[9])
    if ("/".join(row[0].split("/")[1:3]), destination) in MORE_THAN_THE_REFERENCE:
        assert answer["samples"] > matched
        return
    assert answer["samples"] == pytest.approx(matched, rel=0.005)
    assert answer["quantiles"]["0.5"] * 1e9 == pytest.approx(median, rel=0.001)
    assert answer["quantiles"]["0.95"] * 1e9 == pytest.approx(p95, rel=0.001)
    assert answer["clock"]["method"] == "none"
    assert (answer["negative"] > 0) == (float(row[7]) < 0)


def test_packets_on_another_path_are_explained(shared_data: Path) -> None:
    """The emulated delay ends before these captures do: the last packets take 3 us, the others 50 ms."""
    folder = shared_data / "twopoint/mptcpanalyzer-0.3.2"
    captures = folder / "client_2_filtered.pcapng.gz", folder / "server_2_filtered.pcapng.gz"
    answer = report(*captures, "--direction", "10.0.0.1>11.0.0.2")
    (note,) = [line for line in answer["notes"] if "separate groups" in line]
    assert "packets took 3.33 us to 148 us" in note


# ---- simulated captures ----


def test_every_delay_is_the_truth(pair: tuple[Path, Path]) -> None:
    answer, known = report(*pair), truth(pair[0].parent)
    arrived = known.filter(~pl.col("lost"))
    assert answer["clock"]["method"] == "none"
    assert answer["used"] + answer["ambiguous"] == pytest.approx(len(arrived), abs=8)  # ends of the capture
    assert answer["mean"] * 1e9 == pytest.approx(arrived["delay_ns"].mean(), rel=2e-4)
    assert answer["lost"] == pytest.approx(known["lost"].sum(), abs=3)
    assert answer["duplicated"] == pytest.approx(arrived["duplicated"].sum(), abs=3)
    assert answer["sent"] - answer["only_upstream"] == answer["received"] - answer["only_downstream"]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "words", [["rda"], ["rda", "--rateless"], ["rda", "--banks", "2", "--no-check", "--buckets", "6000"]]
)
def test_reconciliation_equals_the_join(pair: tuple[Path, Path], words: list[str]) -> None:
    joined, answer = (
        report(*pair, "--interval", "5s"),
        report(*pair, "--interval", "5s", "--estimator", *words),
    )
    for name in (
        "mean",
        "sent",
        "received",
        "lost",
        "only_upstream",
        "only_downstream",
        "duplicated",
        "ambiguous",
        "used",
    ):
        assert answer[name] == joined[name], name
    assert [part["mean"] for part in answer["intervals"]] == [part["mean"] for part in joined["intervals"]]
    if "--buckets" not in words:  # small intervals are sent as they are
        assert answer["wire_bytes"] < 1.05 * joined["wire_bytes"]
    assert answer["reordered"] is None


@pytest.mark.parametrize("estimator", ["lda", "finecomb"])
def test_synopses_are_within_their_bounds(tmp_path: Path, estimator: str) -> None:
    up, down = captures(tmp_path, loss=0.005, delay="constant:1ms")
    exact = report(up, down)
    answer = report(up, down, "--estimator", estimator, "--interval", "10s")
    assert abs(answer["mean"] - exact["mean"]) <= answer["bound98"] + 1e-9
    assert answer["lost"] == pytest.approx(exact["lost"], abs=3)
    assert answer["only_upstream"] is None


def test_a_clock_offset_is_corrected(tmp_path: Path) -> None:
    up, down = captures(tmp_path, 60_000, clock_offset_ns=2000 * 10**9, clock_skew_ppm=50, delay="lognormal:1ms,0.3")
    answer = report(up, down)
    offset = 2000.0
    assert abs(answer["clock"]["offset"] - offset) <= answer["clock"]["uncertainty"]
    assert answer["clock"]["skew"] * 1e6 == pytest.approx(50, rel=0.01)
    assert answer["mean"] * 1e9 == pytest.approx(truth(tmp_path)["delay_ns"].mean(), rel=0.01)
    assert any("smallest delays were the same both ways" in note for note in answer["notes"])
    line = run("oneway", up, down, "--clock", "none", "--interval", "1s", code=2)
    assert "33.3 min" in line
    assert "--offset" in line


def test_one_direction_alone_gives_only_variation(tmp_path: Path) -> None:
    up, down = captures(tmp_path, direction="client", clock_offset_ns=2000 * 10**9)
    answer = report(up, down)
    assert answer["clock"]["method"] == "minimum"
    assert answer["min"] == pytest.approx(0, abs=1e-6)
    assert any("delay above the smallest one" in note for note in answer["notes"])
    given = report(up, down, "--offset", "2000s")
    assert given["mean"] * 1e9 == pytest.approx(truth(tmp_path)["delay_ns"].mean(), rel=1e-3)


def test_a_clock_that_is_set_is_reported(pair: tuple[Path, Path], tmp_path: Path) -> None:
    stepped = tmp_path / "stepped.pcap"
    stepped.write_bytes(shifted(pair[1].read_bytes(), after_s=30, by_ns=10_000_000))
    answer = report(pair[0], stepped)
    (step,) = answer["clock"]["steps"]
    assert step["size"] == pytest.approx(0.010, abs=0.0005)
    assert answer["mean"] == pytest.approx(report(*pair)["mean"], rel=0.1)


def shifted(capture: bytes, after_s: int, by_ns: int) -> bytes:
    """A pcap with ns timestamps whose clock was set."""
    data, place, first = bytearray(capture), 24, None
    while place < len(data):
        seconds, ns, length = struct.unpack_from("<III", data, place)
        time_ns = seconds * 10**9 + ns
        first = time_ns if first is None else first
        if time_ns - first > after_s * 10**9:
            struct.pack_into("<II", data, place, *divmod(time_ns + by_ns, 10**9))
        place += 16 + length
    return bytes(data)


def test_segments_of_a_path(tmp_path: Path) -> None:
    """A third point, half a millisecond after the second."""
    up, down = captures(tmp_path, direction="client", loss=0.01)
    third = tmp_path / "c.pcap"
    third.write_bytes(shifted(down.read_bytes(), after_s=-1, by_ns=500_000))
    answer = report(up, down, third)
    first, second = answer["segments"]
    assert second["mean"] == pytest.approx(0.0005, abs=1e-9)
    assert answer["mean"] == pytest.approx(first["mean"] + second["mean"], rel=1e-3)


def test_classes_of_traffic(pair: tuple[Path, Path]) -> None:
    for by in ("flow", "source", "destination", "prefix", "dscp"):
        answer = report(*pair, "--by", by, "--group-memory", "1MiB", "--estimator", "rda")
        assert sum(group["sent"] for group in answer["groups"]) == answer["sent"]
        assert len(answer["groups"]) <= 1 + (1 << 20) // (24 << 10)


def test_small_classes_take_little_memory(tmp_path: Path) -> None:
    """Hundreds of flows of a few packets all fit, so that none of the slowest is missing."""
    pair = captures(tmp_path, 8_000, direction="client")
    groups = report(*pair, "--by", "flow", "--group-memory", "16MiB", "--estimator", "join")["groups"]
    assert len(groups) > 400
    assert "other" not in {group["key"] for group in groups}


# ---- captures that cannot be measured ----


def test_explanations_instead_of_numbers(pair: tuple[Path, Path], tmp_path: Path) -> None:
    up, down = captures(tmp_path, 5_000, direction="client", seed=9)
    assert "swap the captures" in run("oneway", down, up, code=2)
    assert "no packets in common" in run("oneway", pair[0], down, code=2)
    assert "one capture twice" in run("oneway", up, up, code=2)
    assert "second capture" in run("oneway", up, code=2)
    assert "is not a direction" in run("oneway", up, down, "--direction", "10.0.0.1", code=2)
    assert "missing.pcap" in run("oneway", up, tmp_path / "missing.pcap", code=2)


def test_a_truncated_capture_loses_nothing_else(pair: tuple[Path, Path], tmp_path: Path) -> None:
    short = tmp_path / "short.pcap"
    short.write_bytes(pair[1].read_bytes()[: pair[1].stat().st_size // 2])
    answer, whole = report(pair[0], short), report(*pair)
    assert any("not counted as lost" in note for note in answer["notes"])
    assert answer["lost"] / answer["sent"] == pytest.approx(whole["lost"] / whole["sent"], rel=0.3)
    assert sum(answer["left_out"].values()) > whole["left_out"]["backward"] / 2 + 1_000


def test_snap_lengths_may_differ(tmp_path: Path) -> None:
    up, down = captures(tmp_path, 10_000)
    other = tmp_path / "other"
    other.mkdir()
    _, shorter = captures(other, 10_000, snaplen=96)
    answer, same = report(up, shorter), report(up, down)
    assert any("bytes of payload instead of 16" in note for note in answer["notes"])
    assert answer["used"] == pytest.approx(same["used"], rel=0.01)


# ---- two places, no shared disk ----


@pytest.mark.every(2)
@pytest.mark.parametrize("estimator", ["lda", "finecomb", "rda"])
def test_files_of_synopses(tmp_path: Path, estimator: str) -> None:
    up, down = captures(tmp_path, direction="client", loss=0.002)
    words = ("--estimator", estimator, "--interval", "10s", "--buckets", "3000")
    files = tmp_path / "a.syn", tmp_path / "b.syn"
    for capture, file in zip((up, down), files, strict=True):
        run("cut", capture, *words, "-o", file)
    answer, exact = report(*files), report(up, down, "--interval", "10s")
    whole = {part["start"]: part for part in exact["intervals"]}
    for part in answer["intervals"]:
        same = whole.get(part["start"], exact)  # lda cuts at packets, not at these times
        assert part["mean"] == pytest.approx(same["mean"], abs=part["bound98"] + (1e-4 if estimator == "lda" else 0))
        assert part["quantiles"]["0.5"] == pytest.approx(same["quantiles"]["0.5"], rel=0.1)
    run("cut", down, *words, "--seed", "7", "-o", tmp_path / "c.syn")
    assert "seed: 0 and 7" in run("oneway", files[0], tmp_path / "c.syn", code=2)
    assert "cannot be mixed" in run("oneway", files[0], down, code=2)


def test_packets_under_way_between_intervals_are_not_lost(tmp_path: Path) -> None:
    """Buckets show their numbers in two intervals, if not their times: nothing is lost here."""
    up, down = captures(tmp_path, direction="client", rtt="12ms", loss=0)
    for name, capture in (("a", up), ("b", down)):
        run("cut", capture, "--estimator", "rda", "--interval", "2s", "-o", tmp_path / f"{name}.syn")
    answer = report(tmp_path / "a.syn", tmp_path / "b.syn")
    assert any("in their interval" in note for note in answer["notes"])  # some do straddle
    assert [part["lost"] for part in answer["intervals"][:-1]] == [0] * (len(answer["intervals"]) - 1)
    assert answer["lost"] <= answer["intervals"][-1]["lost"] < 5


def test_the_second_round_makes_rda_exact(tmp_path: Path) -> None:
    up, down = captures(tmp_path, direction="client", loss=0.005, duplicate=0.003)
    words = ("--estimator", "rda", "--interval", "10s", "--buckets", "3000")
    for name, capture in (("a", up), ("b", down)):
        run("cut", capture, *words, "-o", tmp_path / f"{name}.syn")
    files = tmp_path / "a.syn", tmp_path / "b.syn"
    assert any("second round" in note for note in report(*files)["notes"])
    run("oneway", *files, "--ask", tmp_path / "ask.syn")
    for name, capture in (("a", up), ("b", down)):
        run("cut", capture, "--answer", tmp_path / "ask.syn", "-o", tmp_path / f"{name}2.syn")
    answer = report(*files, tmp_path / "a2.syn", tmp_path / "b2.syn")
    joined = report(up, down, "--interval", "10s")
    exact = {part["start"]: part for part in joined["intervals"]}
    assert len(answer["intervals"]) >= 3
    for part in answer["intervals"][:-1]:  # packets sent in the last one may have arrived in the edge that is left out
        same = exact[part["start"]]
        assert (part["used"], part["mean"], part["lost"]) == (same["used"], same["mean"], same["lost"])


def test_address_translation(tmp_path: Path) -> None:
    up, down = captures(tmp_path, 10_000, direction="client", ipv6=0)
    translated = tmp_path / "nat.pcap"
    translated.write_bytes(other_source(down.read_bytes()))
    assert "--nat" in run("oneway", up, translated, code=2)
    answer = report(up, translated, "--nat")
    assert answer["used"] == pytest.approx(report(up, down)["used"], rel=0.01)


def other_source(capture: bytes) -> bytes:
    """All IPv4 packets from one public address, their ports increased by one."""
    data, place = bytearray(capture), 24
    while place < len(data):
        (length,) = struct.unpack_from("<I", data, place + 8)
        frame = place + 16
        data[frame + 26 : frame + 30] = bytes([203, 0, 113, 99])
        (port,) = struct.unpack_from(">H", data, frame + 34)
        struct.pack_into(">H", data, frame + 34, (port + 1) & 0xFFFF)
        place = frame + length
    return bytes(data)


# ---- the command line ----


def test_agreements_formats_and_standard_input(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert "does not hold" in run("oneway", *pair, "--sla", "p99<1us", code=3)
    assert "above 1.50 ms" in run("oneway", *pair, "--above", "1500us")
    run("oneway", *pair, "--interval", "10s", "--format", "parquet", "-o", tmp_path / "x.parquet")
    frame = pl.read_parquet(tmp_path / "x.parquet")
    assert {"lost", "reordered", "sent", "mean", "p99"} <= set(frame.columns)
    assert np.isclose(frame["sent"][0], frame["sent"][1:].sum())
    lines = run("oneway", *pair, "--interval", "10s", "--format", "jsonl").splitlines()
    assert len(lines) == len(frame) - 1


# ---- totals ----


def test_a_busy_interval_counts_with_all_its_packets() -> None:
    """The join keeps few packets of a busy second and all of a quiet one: the mean is still that of all packets."""
    rng = np.random.default_rng(1)
    estimator = Join(memory=960_000)  # 20,000 packets at each point
    parts = []
    for second, (packets, delay_ns) in enumerate(((20_000, 1_000_000), (160_000, 9_000_000))):
        ids = rng.integers(0, 2**64, packets, dtype=np.uint64)
        times_ns = np.sort(rng.integers(0, 900_000_000, packets)) + (1_700_000_000 + second) * 10**9
        parts.append((ids, times_ns, delay_ns))
    up = [PacketBatch({"packet_id": ids, "time_ns": times_ns}) for ids, times_ns, _ in parts]
    down = [PacketBatch({"packet_id": ids, "time_ns": times_ns + delay}) for ids, times_ns, delay in parts]
    spans = list(spans_between(estimator, {"upstream": up, "downstream": down}, 10**9))
    mean_ns = total(spans)[0].mean_ns
    assert [span.whole.details["share"] < 1 for span in spans] == [False, True]
    # The busy second is only sampled.
    assert mean_ns == pytest.approx((20 * 1 + 160 * 9) / 180 * 1e6, rel=0.01)


@pytest.mark.every(2)
@pytest.mark.parametrize("estimator", ["finecomb", "rda"])
def test_an_outage_is_not_left_out_of_files(tmp_path: Path, estimator: str) -> None:
    up, down = captures(tmp_path, direction="client")
    data = down.read_bytes()
    kept, place, first = bytearray(data[:24]), 24, None
    while place < len(data):
        seconds, _, length = struct.unpack_from("<III", data, place)
        first = seconds if first is None else first
        if not 20 <= seconds - first < 23:
            kept += data[place : place + 16 + length]
        place += 16 + length
    down.write_bytes(kept)
    words = ("--estimator", estimator, "--interval", "1s", "--buckets", "3000")
    for name, capture in (("a", up), ("b", down)):
        run("cut", capture, *words, "-o", tmp_path / f"{name}.syn")
    answer, exact = report(tmp_path / "a.syn", tmp_path / "b.syn"), report(up, down)
    # Files leave out the first and the last second, so three seconds are a larger share.
    assert answer["lost"] / answer["sent"] == pytest.approx(exact["lost"] / exact["sent"], rel=0.2)
    assert answer["lost"] > 500


def test_answers_of_another_capture_are_refused(tmp_path: Path) -> None:
    up, down = captures(tmp_path, direction="client", loss=0.005)
    words = ("--estimator", "rda", "--interval", "10s", "--buckets", "3000")
    for name, capture in (("a", up), ("b", down)):
        run("cut", capture, *words, "-o", tmp_path / f"{name}.syn")
    files = tmp_path / "a.syn", tmp_path / "b.syn"
    run("oneway", *files, "--ask", tmp_path / "ask.syn")
    for name, capture in (("a", up), ("b", down)):
        run("cut", capture, "--answer", tmp_path / "ask.syn", "-o", tmp_path / f"{name}2.syn")
    line = run("oneway", *files, tmp_path / "b2.syn", tmp_path / "a2.syn", code=2)
    assert "in the order of the points" in line
    assert "swap the files" in run("oneway", *reversed(files), code=2)
    assert "one capture twice" in run("oneway", files[0], files[0], code=2)
    run("cut", up, *words, "--port", "443", "-o", tmp_path / "c.syn")
    assert "filter: None and ports 443" in run("oneway", files[0], tmp_path / "c.syn", code=2)


def test_captures_in_the_wrong_order(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A third point 2 ms after the second, in both directions."""
    third = tmp_path / "c.pcap"
    third.write_bytes(behind(pair[1].read_bytes(), 2_000_000))
    assert "order packets pass" in run("oneway", pair[0], third, pair[1], code=2)
    first, second = report(*pair, third)["segments"]
    assert (first["mean"], second["mean"]) == (pytest.approx(0.001, rel=0.2), pytest.approx(0.002, rel=0.01))


def behind(capture: bytes, by_ns: int) -> bytes:
    """A point further on: packets to servers are later, those from servers earlier."""
    data, place = bytearray(capture), 24
    while place < len(data):
        seconds, ns, length = struct.unpack_from("<III", data, place)
        ports = place + 16 + (34 if data[place + 28 : place + 30] == b"\x08\x00" else 54)
        source, destination = struct.unpack_from(">HH", data, ports)
        later_ns = by_ns if destination < source else -by_ns
        struct.pack_into("<II", data, place, *divmod(seconds * 10**9 + ns + later_ns, 10**9))
        place += 16 + length
    return bytes(data)


@pytest.mark.parametrize(
    "words",
    [
        ("--ipv4-prefix", "99", "--by", "prefix"),
        ("--group-memory", "0B"),
        ("--memory", "200GiB"),
        ("--interval", "10000000h"),
        ("--control-port", "99999", "--estimator", "lda", "--interval", "1s"),
        ("--cut", "packets", "--estimator", "lda"),
        ("--loss", "150%", "--estimator", "lda"),
        ("--ask", "x.syn"),
    ],
    ids=lambda words: words[0],
)
def test_wrong_options_are_usage_errors(pair: tuple[Path, Path], words: tuple[str, ...]) -> None:
    assert words[0] in run("oneway", *pair, *words, code=2)
