"""`wirelag simulate`: exact counts, correct bytes, and a truth that is confirmed independently."""

import shutil
import struct
import subprocess
from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.support import needs
from tests.support.simulated_captures import write_point
from wirelag.sim import Scenario, Simulation, simulate
from wirelag.sim.truth import START_NS

needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason=needs.program("tshark"))
needs_capinfos = pytest.mark.skipif(shutil.which("capinfos") is None, reason=needs.program("capinfos"))

ROUGH = Scenario(packets=20_000, seed=3, loss=0.03, reorder=0.03, duplicate=0.03, ipv6=0.0)


def write(simulation: Simulation, path: Path, point: int = 0, snaplen: int = 128) -> Path:
    write_point(simulation, point, path, snaplen)
    return path


def frames_of(simulation: Simulation, point: int = 0, snaplen: int = 128) -> list[bytes]:
    return [
        frames.buffer[start : start + size].tobytes()
        for frames in simulation.frames(point, snaplen)
        for start, size in zip(frames.offset, frames.captured, strict=True)
    ]


def tshark(path: Path, *fields: str, options: tuple[str, ...] = ()) -> list[dict[str, str]]:
    names = [word for field in fields for word in ("-e", field)]
    done = subprocess.run(
        ["tshark", "-r", path, *options, "-T", "fields", *names], capture_output=True, text=True, check=True
    )
    return [dict(zip(fields, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]


# The packets


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(packets=1),
        Scenario(packets=777, loss=0.5, reorder=0.5, duplicate=0.5),
        Scenario(packets=2000, dns=1.0),
        Scenario(packets=2000, unanswered=1.0),
        Scenario(packets=2000, ipv6=1.0, servers=2000),
        Scenario(packets=500, rtt="constant:0s"),
        Scenario(packets=500, rtt="pareto:1ms,0.3"),
        Scenario(packets=100, duration_ns=10**6),
    ],
)
@pytest.mark.parametrize("points", [1, 2])
@pytest.mark.parametrize("direction", ["both", "client"])
def test_packets_are_exact_and_in_order(scenario: Scenario, points: int, direction: str) -> None:
    changed = Scenario(**{**vars(scenario), "points": points, "direction": direction})
    simulation = simulate(changed)
    assert len(simulation.captures) == points
    assert len(simulation.captures[0].row) == scenario.packets
    for capture in simulation.captures:
        assert (np.diff(capture.time_ns) >= 0).all()
        assert direction == "both" or not simulation.packets.sender[capture.row].any()


def test_the_same_scenario_gives_the_same_bytes(tmp_path: Path) -> None:
    first = write(simulate(ROUGH), tmp_path / "first.pcap").read_bytes()
    assert write(simulate(ROUGH), tmp_path / "second.pcap").read_bytes() == first
    other = Scenario(**{**vars(ROUGH), "seed": 4})
    assert write(simulate(other), tmp_path / "third.pcap").read_bytes() != first


def test_a_retransmission_carries_the_same_bytes_and_other_segments_differ() -> None:
    simulation = simulate(ROUGH)
    packets = simulation.packets
    payloads: dict[tuple[int, int, int], set[bytes]] = defaultdict(set)
    ids: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    for row, frame in enumerate(frames_of(simulation, snaplen=2000)):
        if packets.length[row] >= 8:
            key = int(packets.connection[row]), int(packets.sender[row]), int(packets.seq[row])
            payloads[key].add(frame[-int(packets.length[row]) :])
            ids[key].add(int(packets.ip_id[row]))
    assert all(len(seen) == 1 for seen in payloads.values())
    assert len({next(iter(seen)) for seen in payloads.values()}) == len(payloads)
    assert any(len(seen) > 1 for seen in ids.values()), "a retransmission is a new IP packet"


def test_without_loss_and_reordering_nothing_overtakes_in_a_connection() -> None:
    packets = simulate(Scenario(packets=20_000, seed=5)).packets
    order = np.lexsort((packets.sent_ns, packets.sender, packets.connection))
    side = packets.connection[order].astype(np.int64) * 2 + packets.sender[order]
    same = side[1:] == side[:-1]
    assert (np.diff(packets.time_ns[order])[same] >= 0).all()


def test_hosts_are_as_requested() -> None:
    simulation = simulate(Scenario(packets=50_000, servers=3, dns=0.3, ipv6=0.5, unanswered=0.1, loss=0.0))
    connections = simulation.connections
    assert set(connections.server) == {0, 1, 2}
    for share, asked in ((connections.dns, 0.3), (connections.ipv6, 0.5), (connections.dead, 0.1)):
        assert share.mean() == pytest.approx(asked, abs=0.05)


def test_round_trip_times_follow_the_distribution() -> None:
    simulation = simulate(Scenario(packets=200_000, servers=1, rtt="exponential:40ms", seed=8))
    rtt = 2 * (simulation.connections.near_ns + simulation.connections.far_ns)
    assert rtt.mean() == pytest.approx(40e6, rel=0.05)
    assert np.median(rtt) == pytest.approx(40e6 * np.log(2), rel=0.05)


def test_handshakes_take_exactly_one_round_trip() -> None:
    truth = simulate(Scenario(packets=5000, servers=1, rtt="constant:10ms")).truth
    legs = (
        truth.filter(kind="handshake")
        .group_by("client", "client_port", "server")
        .agg(pl.col("delay_ns").sum(), pl.len())
    )
    whole = legs.filter(pl.col("len") == 2)["delay_ns"].to_numpy()
    # The server takes 20 to 60 us to answer a SYN; the client acknowledges at once.
    assert len(whole) > 100
    assert whole.min() >= 10_020_000
    assert whole.max() <= 10_062_000


# The files


@needs_capinfos
@pytest.mark.parametrize("name", ["x.pcap", "x.pcapng", "x.pcap.gz", "x.pcapng.gz"])
def test_capinfos_reads_every_format(tmp_path: Path, name: str) -> None:
    simulation = simulate(Scenario(packets=3000))
    path = write(simulation, tmp_path / name)
    lines = subprocess.run(
        ["capinfos", "-M", "-c", "-t", "-T", "-r", "-a", "-S", path], capture_output=True, text=True, check=True
    ).stdout.split("\t")
    assert ("pcapng" if ".pcapng" in name else "nsecpcap") in lines[1]
    assert lines[2] == "3000"
    first = simulation.captures[0].time_ns[0]
    assert lines[3].strip() == f"{first // 10**9}.{first % 10**9:09d}"


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_hold_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    simulation = simulate(Scenario(packets=3000))
    plain = write(simulation, tmp_path / "x.pcap").read_bytes()
    packed = write(simulation, tmp_path / f"x.pcap{suffix}").read_bytes()
    if suffix == ".gz":
        import gzip

        assert gzip.decompress(packed) == plain
    else:
        import zstandard

        assert zstandard.ZstdDecompressor().decompressobj().decompress(packed) == plain
    assert write(simulation, tmp_path / f"y.pcap{suffix}").read_bytes() == packed


def test_pcapng_blocks_are_well_formed(tmp_path: Path) -> None:
    simulation = simulate(Scenario(packets=500))
    data = write(simulation, tmp_path / "x.pcapng", snaplen=61).read_bytes()
    place, packets = 0, 0
    while place < len(data):
        kind, size = struct.unpack_from("<II", data, place)
        assert size % 4 == 0
        assert struct.unpack_from("<I", data, place + size - 4) == (size,)
        packets += kind == 6
        place += size
    assert (place, packets) == (len(data), 500)


@needs_tshark
def test_wire_lengths_are_kept_when_frames_are_cut(tmp_path: Path) -> None:
    simulation = simulate(Scenario(packets=2000, seed=6))
    whole = tshark(write(simulation, tmp_path / "whole.pcap", snaplen=2000), "frame.len", "frame.cap_len")
    cut = tshark(write(simulation, tmp_path / "cut.pcap", snaplen=100), "frame.len", "frame.cap_len")
    assert all(row["frame.len"] == row["frame.cap_len"] for row in whole)
    assert [row["frame.len"] for row in cut] == [row["frame.len"] for row in whole]
    assert all(int(row["frame.cap_len"]) == min(100, int(row["frame.len"])) for row in cut)
    assert all(
        short == long[:100]
        for short, long in zip(frames_of(simulation, snaplen=100), frames_of(simulation, snaplen=2000), strict=True)
    )


@needs_tshark
def test_every_checksum_is_valid(tmp_path: Path) -> None:
    scenario = Scenario(packets=10_000, seed=2, loss=0.05, reorder=0.05, duplicate=0.05, dns=0.4, ipv6=0.4, points=2)
    fields = ("ip.checksum.status", "tcp.checksum.status", "udp.checksum.status")
    options = tuple(word for name in ("ip", "tcp", "udp") for word in ("-o", f"{name}.check_checksum:TRUE"))
    simulation = simulate(scenario)
    for point in (0, 1):
        rows = tshark(write(simulation, tmp_path / "x.pcap", point, 2000), *fields, options=options)
        assert {row["ip.checksum.status"] for row in rows} == {"1", ""}
        transport = [row["tcp.checksum.status"] + row["udp.checksum.status"] for row in rows]
        assert set(transport) == {"1"}


@needs_tshark
def test_tshark_finds_no_fault_in_clean_traffic(tmp_path: Path) -> None:
    path = write(simulate(Scenario(packets=20_000, seed=7, unanswered=0.0)), tmp_path / "x.pcap")
    rows = tshark(path, "frame.number", "_ws.malformed", options=("-Y", "tcp.analysis.flags or _ws.malformed"))
    reused = tshark(path, "frame.number", "_ws.malformed", options=("-Y", "tcp.analysis.reused_ports"))
    assert rows == reused
    assert reused, "some connections come again on the same ports"


# The truth of one point


@needs_tshark
def test_truth_equals_tshark_without_loss(tmp_path: Path) -> None:
    simulation = simulate(Scenario(packets=30_000, seed=11))
    path = write(simulation, tmp_path / "x.pcap")
    rows = tshark(path, "frame.number", "tcp.analysis.acks_frame", "dns.response_to", "dns.time")
    theirs = {
        int(row["frame.number"]): int(row["tcp.analysis.acks_frame"] or row["dns.response_to"])
        for row in rows
        if row["tcp.analysis.acks_frame"] or row["dns.response_to"]
    }
    truth = simulation.truth
    ours = dict(zip(truth["response_number"], truth["request_number"], strict=True))
    assert ours == theirs
    assert not truth["held"].any()
    assert not truth["retransmitted"].any()


def watched(rows: list[dict[str, str]]) -> dict[int, tuple[int, bool]]:
    """Read a capture packet by packet, as the documentation defines the truth: response -> (request, retransmitted)."""
    half = 2**31
    first: dict[tuple[str, str, int], int] = {}
    last: dict[tuple[str, str, int], int] = {}
    seen: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    highest: dict[tuple[str, str], int] = {}
    answers: dict[int, tuple[int, bool]] = {}
    pending: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        if not row["tcp.stream"]:
            continue
        number, flags = int(row["frame.number"]), int(row["tcp.flags"], 16)
        own = row["tcp.stream"], row["tcp.srcport"]
        other = row["tcp.stream"], row["tcp.dstport"]
        if flags & 0x10:
            ack = int(row["tcp.ack_raw"])
            if other not in highest or 0 < (ack - highest[other]) % 2**32 < half:
                covered = [end for end in pending[other] if (ack - end) % 2**32 < half]
                if ack in covered:
                    chosen = max(covered, key=lambda end: last[*other, end])
                    answers[number] = first[*other, chosen], len(seen[*other, chosen]) > 1
                pending[other] = [end for end in pending[other] if end not in covered]
                highest[other] = ack
        size = int(row["tcp.len"]) + bool(flags & 0x02) + bool(flags & 0x01)
        if size:
            end = (int(row["tcp.seq_raw"]) + size) % 2**32
            if (*own, end) not in first:
                first[*own, end] = number
                pending[own].append(end)
            if row["ip.id"] not in seen[*own, end]:  # an exact copy has the same
                last[*own, end] = number
            seen[*own, end].add(row["ip.id"])
    return answers


@pytest.mark.every(6)
@needs_tshark
@pytest.mark.parametrize(
    "scenario",
    [
        ROUGH,
        Scenario(packets=20_000, seed=12, loss=0.2, ipv6=0.0),
        Scenario(packets=20_000, seed=13, reorder=0.2, ipv6=0.0),
        Scenario(packets=20_000, seed=14, duplicate=0.2, ipv6=0.0, rtt="constant:200us"),
        Scenario(packets=20_000, seed=15, loss=0.1, reorder=0.1, duplicate=0.1, ipv6=0.0, rtt="exponential:1ms"),
    ],
)
def test_truth_equals_a_reading_packet_by_packet(tmp_path: Path, scenario: Scenario) -> None:
    simulation = simulate(scenario)
    rows = tshark(
        write(simulation, tmp_path / "x.pcap"),
        *("frame.number", "tcp.stream", "tcp.srcport", "tcp.dstport", "tcp.flags", "tcp.seq_raw", "tcp.ack_raw"),
        *("tcp.len", "ip.id"),
    )
    truth = simulation.truth.filter(pl.col("kind") != "dns")
    columns = truth.select("response_number", "request_number", "retransmitted").rows()
    ours = {response: (request, retransmitted) for response, request, retransmitted in columns}
    assert ours == watched(rows)
    times = simulation.captures[0].time_ns
    assert (truth["request_ns"].to_numpy() == times[truth["request_number"].to_numpy() - 1]).all()
    assert (truth["response_ns"].to_numpy() == times[truth["response_number"].to_numpy() - 1]).all()
    assert (truth["delay_ns"] == truth["response_ns"] - truth["request_ns"]).all()
    assert truth["delay_ns"].min() > 0


def test_other_packets_take_the_way_and_at_most_a_delayed_acknowledgement() -> None:
    scenario = Scenario(packets=30_000, seed=16, servers=1, rtt="constant:30ms", loss=0.05, unanswered=0.0)
    simulation = simulate(scenario)
    truth = simulation.truth.filter(pl.col("kind") == "tcp")
    fair = truth.filter(~pl.col("held") & ~pl.col("retransmitted"))
    # An acknowledgement on data can get lost with it, and is then seen late; a pure one cannot.
    bare = simulation.packets.length[fair["response_number"].to_numpy() - 1] == 0
    assert bare.sum() > 5000
    assert fair["delay_ns"].to_numpy()[bare].max() <= 30e6 + 40e6
    assert truth.filter(pl.col("held") | pl.col("retransmitted"))["delay_ns"].max() > 200e6


@needs_tshark
def test_timestamps_echo_a_value_that_was_seen(tmp_path: Path) -> None:
    path = write(simulate(Scenario(packets=20_000, seed=17, reorder=0.02)), tmp_path / "x.pcap")
    fields = ("tcp.stream", "tcp.srcport", "tcp.dstport", "tcp.options.timestamp.tsval", "tcp.options.timestamp.tsecr")
    sent: dict[tuple[str, str], set[str]] = defaultdict(set)
    with_timestamps = 0
    for row in tshark(path, *fields):
        stream, source, target, value, echo = row.values()
        if value:
            with_timestamps += 1
            sent[stream, source].add(value)
            assert echo == "0" or echo in sent[stream, target]
    assert 15_000 < with_timestamps < 19_500


@needs_tshark
def test_duplicate_acknowledgements_behind_a_hole_carry_sack(tmp_path: Path) -> None:
    path = write(simulate(Scenario(packets=20_000, seed=18, loss=0.05)), tmp_path / "x.pcap")
    rows = tshark(path, "tcp.ack", "tcp.options.sack_le", "tcp.options.sack_re", options=("-Y", "tcp.options.sack_le"))
    assert len(rows) > 100
    for row in rows:
        assert int(row["tcp.ack"]) < int(row["tcp.options.sack_le"]) < int(row["tcp.options.sack_re"])


# The truth of one direction


def test_response_truth_equals_a_reading_packet_by_packet() -> None:
    simulation = simulate(Scenario(packets=10_000, seed=21, direction="client", loss=0.05, duplicate=0.02))
    packets, capture = simulation.packets, simulation.captures[0]
    number = {int(row): i + 1 for i, row in enumerate(capture.row)}
    end = int(packets.time_ns[capture.row[-1]])
    sights: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: {0: [], 1: []})
    known: set[tuple[int, int, int]] = set()
    for row in range(len(packets)):
        segment = int(packets.connection[row]), int(packets.sender[row]), int(packets.seq[row])
        talks = packets.length[row] > 0 or packets.kind[row] in (5, 6)
        if talks and segment not in known:
            known.add(segment)
            sights[segment[0], int(packets.turn[row])][segment[1]].append(row)
    expected = sorted(
        (
            number[request[-1]],
            *(START_NS + int(packets.time_ns[row]) for row in (request[-1], response[0], response[-1])),
        )
        for request, response in ((both[0], both[1]) for both in sights.values())
        if request and response and request[-1] in number and packets.time_ns[response[-1]] <= end
    )
    ours = simulation.truth.select("request_number", "request_ns", "response_ns", "last_ns").rows()
    assert len(ours) > 1000
    assert ours == expected


# The truth of two points

TWO = Scenario(
    packets=20_000,
    seed=31,
    points=2,
    loss=0.02,
    reorder=0.02,
    duplicate=0.02,
    clock_offset_ns=-2_000 * 10**9,
    clock_skew_ppm=50,
    delay="weibull:200us,0.6",
)


def test_two_captures_agree_with_their_truth() -> None:
    simulation = simulate(TWO)
    truth = simulation.truth
    up, down = frames_of(simulation, 0, 2000), frames_of(simulation, 1, 2000)
    assert len(up) == TWO.packets
    both = truth.filter(~pl.col("lost"))
    for row in both.iter_rows(named=True):
        here, there = up[row["upstream_number"] - 1], down[row["downstream_number"] - 1]
        ttl = 22 if here[12:14] == b"\x08\x00" else 21
        changed = {ttl, 24, 25} if ttl == 22 else {ttl}
        differs = {i for i, (a, b) in enumerate(zip(here, there, strict=True)) if a != b}
        assert ttl in differs <= changed
    up_ns, down_ns = simulation.captures[0].time_ns, simulation.captures[1].time_ns
    assert (both["upstream_ns"].to_numpy() == up_ns[both["upstream_number"].to_numpy() - 1]).all()
    true_ns = both["downstream_ns"].to_numpy()
    drift = np.rint(50e-6 * (true_ns - START_NS)).astype(np.int64)
    recorded = down_ns[both["downstream_number"].to_numpy() - 1]
    assert (recorded == true_ns - 2_000 * 10**9 + drift).all()
    sign = np.where(both["direction"] == "forward", 1, -1)
    assert (both["delay_ns"].to_numpy() == sign * (true_ns - both["upstream_ns"].to_numpy())).all()
    # Numbers that are not in the truth are exact copies.
    for frames, name in ((up, "upstream_number"), (down, "downstream_number")):
        numbers = set(truth[name].drop_nulls())
        assert all(frames.count(frames[i]) > 1 for i in range(len(frames)) if i + 1 not in numbers)


def test_loss_copies_and_reordering_have_the_requested_rates() -> None:
    truth = simulate(Scenario(**{**vars(TWO), "packets": 100_000})).truth
    for name in ("lost", "duplicated"):
        assert truth[name].mean() == pytest.approx(0.02, abs=0.003)
    assert 0.005 < truth["reordered"].mean() < 0.03
    lost = truth.filter("lost")
    assert lost.filter(direction="forward")["downstream_number"].is_null().all()
    assert lost.filter(direction="reverse")["upstream_number"].is_null().all()
    assert lost["delay_ns"].is_null().all()


def test_reordered_means_after_a_packet_that_was_sent_later() -> None:
    truth = simulate(Scenario(**{**vars(TWO), "packets": 3000})).truth
    for direction, first, second in (
        ("forward", "upstream_number", "downstream_number"),
        ("reverse", "downstream_number", "upstream_number"),
    ):
        rows = truth.filter((pl.col("direction") == direction) & ~pl.col("lost")).sort(first)
        arrivals = rows[second].to_list()
        naive = [any(later < mine for later in arrivals[i + 1 :]) for i, mine in enumerate(arrivals)]
        assert rows["reordered"].to_list() == naive


def test_two_points_without_impairments_keep_order_and_distribution() -> None:
    truth = simulate(Scenario(packets=200_000, seed=33, points=2, delay="exponential:50us")).truth
    assert not truth["lost"].any()
    assert not truth["reordered"].any()
    assert not truth["duplicated"].any()
    assert truth["delay_ns"].mean() == pytest.approx(50e3, rel=0.05)
    assert truth["delay_ns"].median() == pytest.approx(50e3 * np.log(2), rel=0.08)


@needs_tshark
@pytest.mark.parametrize("point", [0, 1])
def test_no_point_sees_an_answer_before_its_question(tmp_path: Path, point: int) -> None:
    simulation = simulate(Scenario(packets=20_000, seed=34, points=2, delay="pareto:2ms,1.5", unanswered=0.0))
    path = write(simulation, tmp_path / "x.pcap", point)
    faults = "tcp.analysis.flags and not tcp.analysis.reused_ports"
    assert tshark(path, "frame.number", options=("-Y", faults)) == []
