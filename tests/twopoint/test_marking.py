"""Alternate marking: blocks as their plain twin counts them, and loss and delay of marked captures."""

import json
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wirelag as api
from lab.network import Network
from tests.oracles.marking import blocks
from tests.support.captures import ethernet, ipv4, ipv6, pcap, udp
from tests.support.command import WIRELAG, wirelag
from tests.support.in_kernel import IN_KERNEL
from tests.support.in_lab import IN_LAB
from tests.support.places import SCHEMAS
from wirelag.twopoint.marking import Block, MarkingMeter, PeriodFinder, match

PERIOD_NS = 5 * 10**9


@given(
    st.lists(st.tuples(st.integers(-30, 120), st.booleans()), max_size=40),
    st.integers(2, 100),
    st.integers(1, 41),
)
def test_blocks_are_those_of_the_twin(steps: list[tuple[int, bool]], period: int, split: int) -> None:
    """Whatever comes, also backwards in time, and however it is split into batches."""
    times = np.cumsum([10**18, *(step for step, _ in steps)])[1:].astype(np.int64)
    colours = np.array([colour for _, colour in steps], np.bool_)
    meter = MarkingMeter(period)
    for start in range(0, len(times), split):
        meter.observe(times[start : start + split], colours[start : start + split])
    expected = blocks(zip(times.tolist(), colours.tolist(), strict=True), period)
    assert meter.blocks == [Block(colour, len(some), sum(some), min(some), max(some)) for colour, some in expected]


@given(st.integers(0, 2**32), st.floats(0, 0.4), st.booleans())
def test_bounds_hold_whatever_is_lost(seed: int, loss: float, burst: bool) -> None:
    """The true mean delay of the packets that arrived lies within the bounds; without loss it is exact."""
    draw = np.random.default_rng(seed)
    sent = np.sort(draw.integers(0, 6 * 1000, 300)) + 10**15
    colours = sent // 1000 % 2 == 1
    delays = draw.integers(1, 300, 300)
    kept = draw.random(300) >= loss
    if burst:  # the worst case: one end of each period is lost
        kept = sent % 1000 >= 1000 * loss
    got = sent[kept] + delays[kept]
    order = np.argsort(got, kind="stable")
    meters = MarkingMeter(1000), MarkingMeter(1000)
    meters[0].observe(sent, colours)
    meters[1].observe(got[order], colours[kept][order])
    found = match(meters[0].blocks, meters[1].blocks, 1000)
    for period in found.periods:
        mine = (sent >= period.start_ns) & (sent <= period.end_ns)
        assert period.lost == np.count_nonzero(mine & ~kept)
        truth = float(delays[mine & kept].mean())
        assert period.low_ns is not None
        assert period.high_ns is not None
        assert period.low_ns - 1e-3 <= truth <= period.high_ns + 1e-3
        if not period.lost:
            assert period.mean_ns == pytest.approx(truth, abs=1e-9)


def recoloured(path: Path, out: Path, colours: dict[int, bool]) -> Path:
    """A capture of Ethernet with the lowest bit of the DSCP set by packet id; without packets that have no colour."""
    data = bytearray(path.read_bytes())
    ids = np.concatenate([batch.packet_id for batch in api.read(str(path))]).tolist()
    at, kept = 24, [bytes(data[:24])]
    for one in ids:
        length = int.from_bytes(data[at + 8 : at + 12], "little")
        ip = at + 16 + 14
        if data[ip] >> 4 == 4:
            data[ip + 1] = data[ip + 1] & ~4 | colours.get(one, False) << 2
        else:  # the class is in the middle of the first four bytes
            data[ip + 1] = data[ip + 1] & ~0x40 | colours.get(one, False) << 6
        kept += [bytes(data[at : at + 16 + length])] if one in colours else []
        at += 16 + length
    assert at == len(data)
    out.write_bytes(b"".join(kept))
    return out


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[int, tuple[int, list[int]]]]:
    """Two captures on one clock, marked at the upstream point, and the times of each packet at both."""
    folder = tmp_path_factory.mktemp("marked")
    paths = folder / "up.pcap", folder / "down.pcap"
    words = ("--points", 2, "--direction", "client", "--packets", 6000, "--seed", 4, "--loss", "0.1%")
    wirelag("simulate", *words, "-o", paths[0], "-o", paths[1])
    columns = [
        pl.concat([batch.to_polars() for batch in api.read(str(path))])["packet_id", "time_ns"] for path in paths
    ]
    alike = columns[0]["packet_id"].is_duplicated()  # some packets equal others, such as acknowledgements
    sent = dict(columns[0].filter(~alike).iter_rows())
    assert len(sent) > 5000
    colours = {one: when // PERIOD_NS % 2 == 1 for one, when in sent.items()}
    truth: dict[int, tuple[int, list[int]]] = {one: (when, []) for one, when in sent.items()}
    for one, when in columns[1].iter_rows():
        if one in truth:
            truth[one][1].append(when)
    marked = [recoloured(path, folder / f"marked-{path.name}", colours) for path in paths]
    return marked[0], marked[1], truth


def test_periods_fit_a_narrow_terminal(marked: tuple[Path, Path, dict[int, tuple[int, list[int]]]]) -> None:
    """Rows were text of one width: a terminal broke them between figures."""
    up, down, _ = marked
    wide, narrow = (wirelag("marking", up, down, environment={"COLUMNS": columns}).stdout for columns in ("", "80"))
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
    assert "over time (UTC)" in narrow
    assert "left out, to fit 80 columns: received" in narrow
    means = [line[line.index(" us, within ") - 3 :] for line in wide.splitlines() if " us, within " in line]
    assert means
    assert all(f"{mean}\n" in narrow for mean in means)


def test_marked_captures(marked: tuple[Path, Path, dict[int, tuple[int, list[int]]]]) -> None:
    """Loss and mean delay of each period are those of its packets, found by packet id."""
    up, down, truth = marked
    found: dict[str, Any] = json.loads(wirelag("marking", up, down, "--format", "json").stdout)
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(found, json.loads((SCHEMAS / "marking.json").read_text()))
    assert found["period"] == pytest.approx(5, rel=0.1)
    assert len(found["periods"]) > 5
    exact = 0
    for period in found["periods"]:
        number = round(period["start"] * 1e9) // PERIOD_NS
        mine = [(when, got) for when, got in truth.values() if when // PERIOD_NS == number]
        arrived = [when for _, got in mine for when in got]
        assert (period["sent"], period["received"]) == (len(mine), len(arrived))
        delays = [one - when for when, got in mine for one in got]
        mean = sum(delays) / len(delays) / 1e9
        assert period["mean_low"] - 1e-9 <= mean <= period["mean_high"] + 1e-9
        if not period["lost"]:
            exact += 1
            assert period["mean"] == pytest.approx(mean, abs=1e-9)
    assert 0 < exact < len(found["periods"])
    assert found["lost"] == sum(period["lost"] for period in found["periods"]) > 0
    rows = wirelag("marking", up, down, "--format", "csv").stdout.splitlines()
    assert len(rows) == 1 + len(found["periods"])


def test_clocks_that_differ(marked: tuple[Path, Path, dict[int, tuple[int, list[int]]]]) -> None:
    """Without the offset, periods do not match, and that is said; with it, they do."""
    up, down, _ = marked
    same = json.loads(wirelag("marking", up, down, "--format", "json").stdout)
    ahead = json.loads(wirelag("marking", up, down, "--offset", "-1s", "--format", "json").stdout)
    assert [one["sent"] for one in ahead["periods"]] == [one["sent"] for one in same["periods"]]
    assert ahead["mean"] == pytest.approx(same["mean"] + 1, abs=1e-6)
    lines = wirelag("marking", up, down, "--offset", "4s").stdout
    assert "no period was seen whole at both points" in lines
    assert "had no counterpart" in lines


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--field", "dscp:5"), "the colour dscp:5 changes fewer than 3 times"),
        (("--field", "ttl"), "--field: 'ttl' is not one of dscp:0"),
        (("--period", "1us"), "--period: must be at least 1 ms"),
        (("--direction", "x"), "--direction: 'x' is not a direction"),
        (("--in-kernel", "--quiet"), "--in-kernel: counts at two interfaces, for a time"),
    ],
)
def test_what_is_refused(
    words: tuple[str, str], says: str, marked: tuple[Path, Path, dict[int, tuple[int, list[int]]]]
) -> None:
    assert says in wirelag("marking", *marked[:2], *words, code=2).stderr


def test_interfaces_need_a_duration() -> None:
    """The command names its option, Python its argument."""
    said = "duration: is missing: lo is an interface; say how long to listen, such as 10s"
    assert f"--{said}" in wirelag("marking", "lo", "lo", "--period", "1s", code=2).stderr
    with pytest.raises(api.WirelagError, match=f"^{said}"):
        api.rtt("lo")


def test_one_capture_twice_is_refused(
    marked: tuple[Path, Path, dict[int, tuple[int, list[int]]]], tmp_path: Path
) -> None:
    up, down, _ = marked
    copy = tmp_path / "copy.pcap"
    copy.write_bytes(up.read_bytes())
    for other in (up, copy):
        says = wirelag("marking", up, other, code=2).stderr
        assert "show the same packets at the same times: is it one capture twice?" in says
        assert "or use --force" in says
    forced = json.loads(wirelag("marking", up, copy, "--force", "--format", "json").stdout)
    assert (forced["lost"], forced["mean"]) == (0, 0)
    assert "there is nothing between them" in forced["notes"][0]
    assert wirelag("marking", up, down, "--force").stdout == wirelag("marking", up, down).stdout


def test_info_names_marking_where_a_colour_alternates(
    marked: tuple[Path, Path, dict[int, tuple[int, list[int]]]], shared_data: Path
) -> None:
    """Both captures: it applies; one: another is missing. Classes that differ, or change around a pause, are none."""

    def says(*captures: Path) -> list[dict[str, Any]]:
        told = json.loads(wirelag("info", *captures, "--format", "json").stdout)["commands"]
        return [one for one in told if one["command"] in ("marking", "telemetry")]

    (both,), (alone,) = says(*marked[:2]), says(marked[0])
    assert both["applies"]
    assert both["why"].startswith("the colour dscp:0 changes every ")
    assert not alone["applies"]
    assert alone["why"].endswith("but one capture: add another of the same traffic from a second point")
    for name in ("PcapPlusPlus/example.pcap.gz", "redart/long_cap_2.pcap.gz", "zeek/ssh.pcap.gz"):
        assert not says(shared_data / "rtt" / name)


def test_marks_in_options_of_ipv6(tmp_path: Path) -> None:
    """The L flag of RFC 9343, in either header and among others; a flow that is monitored, alone."""
    sent: list[tuple[int, bytes]] = []
    for i in range(600):
        flow, colour = 5 + i % 2, i // 100 % 2
        mark = struct.pack(">BBI", 0x12, 4, flow << 12 | colour << 11)
        body = bytes([17, 1]) + b"\1\4" + bytes(4) + mark + udp(i.to_bytes(8), (1, 2))
        sent.append((i, ethernet(ipv6(body, 0 if i % 3 else 60), 0x86DD)))
    got = [(i + 3, frame) for i, frame in sent if i != 250]
    plain = (5, ethernet(ipv6(udp(b"x" * 8), 17), 0x86DD))
    paths = tmp_path / "up.pcap", tmp_path / "down.pcap"
    for path, frames in zip(paths, (sent, got), strict=True):
        path.write_bytes(
            pcap([(10**12 + ms * 10**6, frame, len(frame)) for ms, frame in sorted([*frames, plain])], magic=0xA1B23C4D)
        )
    found = json.loads(wirelag("marking", *paths, "--field", "altmark", "--format", "json").stdout)
    assert [(one["sent"], one["lost"]) for one in found["periods"]] == [(100, 0), (100, 1), (100, 0), (100, 0)]
    assert found["mean"] == pytest.approx(3e-3)
    one = json.loads(wirelag("marking", *paths, "--field", "altmark:5", "--format", "json").stdout)
    assert [(period["sent"], period["lost"]) for period in one["periods"]] == [(50, 0), (50, 1), (50, 0), (50, 0)]
    assert "is not one of dscp:0" in wirelag("marking", *paths, "--field", "altmark:x", code=2).stderr


@IN_LAB
@pytest.mark.acceptance
@pytest.mark.parametrize("inside", [(), pytest.param(("--in-kernel",), marks=IN_KERNEL)], ids=("outside", "inside"))
def test_marks_live_through_two_interfaces(inside: tuple[str, ...]) -> None:
    """Frames that enter one end of a cable and leave at the other, as two captures of one program see them."""
    network, stop = Network("marking"), threading.Event()
    network.clear()
    try:
        network.add("host")
        network.link("host", "near", "host", "far")
        with network.inside("host"):
            near = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            near.bind(("near", 0))

        def work() -> None:
            while not stop.wait(0.0005):
                colour = time.time_ns() // 10**8 % 2
                near.send(ethernet(ipv4(udp(b"x" * 20, (1, 2)), 17, tos=colour << 2)))

        sender = threading.Thread(target=work)
        sender.start()
        words = ("marking", "near", "far", "--duration", "1500ms", "--period", "100ms", "--format", "json")
        try:
            found = json.loads(network.run("host", *WIRELAG, *words, *inside))
        finally:
            stop.set()
            sender.join()
            near.close()
    finally:
        network.down()
    assert len(found["periods"]) >= 8
    assert found["lost"] == 0
    assert all(one["sent"] > 10 for one in found["periods"])
    assert 0 <= found["mean"] < 0.05
    assert ("counted inside the kernel" in found["notes"]) == bool(inside)


def test_the_period_is_found_despite_late_packets() -> None:
    draw = np.random.default_rng(1)
    sent = np.sort(draw.integers(0, 20_000, 2000)) + 7
    late = np.where(draw.random(2000) < 0.02, 60, 0)
    order = np.argsort(sent + late, kind="stable")
    finder = PeriodFinder()
    finder.observe((sent + late)[order], (sent // 1000 % 2 == 1)[order])
    assert finder.period_ns is not None
    assert 700 <= finder.period_ns <= 1050


def test_simulated_marks_have_checksums(tmp_path: Path) -> None:
    """A packet has the same colour at both points, its header adds up, and both colours are there."""
    paths = tmp_path / "up.pcap", tmp_path / "down.pcap"
    wirelag("simulate", "--points", 2, "--packets", 600, "--marking", "10s", "-o", paths[0], "-o", paths[1])
    colours = [
        {
            one: bool(dscp)
            for batch in api.read(str(path))
            for one, dscp in zip(batch.packet_id, batch.dscp, strict=True)
        }
        for path in paths
    ]
    both = colours[0].keys() & colours[1].keys()
    assert len(both) > 400
    assert {colours[0][one] for one in both} == {True, False}
    different = sum(colours[0][one] != colours[1][one] for one in both)
    assert different < 20  # packets with equal ids were sent at different times
    data, at, headers = paths[0].read_bytes(), 24, 0
    while at < len(data):
        length = int.from_bytes(data[at + 8 : at + 12], "little")
        header = data[at + 30 : at + 50]
        if header[0] >> 4 == 4:
            headers += 1
            total = sum(int.from_bytes(header[i : i + 2]) for i in range(0, 20, 2))
            assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
        at += 16 + length
    assert headers > 100
