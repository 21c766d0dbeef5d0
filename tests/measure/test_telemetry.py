"""`wirelag telemetry`: traces of IOAM as tshark reads and as the kernel writes them, and loss bits of QUIC."""

import contextlib
import io
import json
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wirelag as api
from lab.network import Network
from tests.support import needs
from tests.support.captures import capture_name, capture_paths, ethernet, ipv4, ipv6, pcap, udp
from tests.support.command import wirelag
from tests.support.in_lab import IN_LAB
from tests.support.places import SCHEMAS
from wirelag.packets.ioam import trace
from wirelag.packets.options import mark

# Packets with a short header, directions, those without the bits, and those whose bits mean something else.
QUIC = {
    "trace_quic_titalia_delaybit.pcap.gz": (5222, 2, 0, 2),
    "trace_quic_v25_picoquic.pcap": (57, 6, 0, 0),
    "quic_t51.pcap.gz": (633, 2, 2, 0),
    "firefox-102.13.0esr-blog-cloudflare-com.pcap.gz": (595, 2, 2, 0),
    "quic_follow_multistream.pcapng.gz": (896, 2, 2, 0),
}

BEGIN_NS = 1_700_000_000 * 10**9
MS = 10**6
NODE, TIME, FRACTION, TRANSIT, QUEUE, WIDE = (1 << 23 - bit for bit in (0, 2, 3, 4, 6, 8))
SNAPSHOT = 1 << 1


def told(*words: object) -> dict[str, Any]:
    """The JSON of the command, which fits its schema."""
    found: dict[str, Any] = json.loads(wirelag("telemetry", *words, "--format", "json").stdout)
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(found, json.loads((SCHEMAS / "telemetry.json").read_text()))
    return found


def option(kind: int, content: bytes) -> bytes:
    return bytes([kind, len(content)]) + content


def with_options(*options: bytes, header: int = 0, payload: bytes = b"x" * 20, port: int = 9) -> bytes:
    """A frame of UDP over IPv6 with these options."""
    inside = b"".join(options)
    inside += b"" if len(inside) % 8 == 6 else option(1, bytes((4 - len(inside)) % 8))
    assert len(inside) % 8 == 6
    body = bytes([17, len(inside) // 8]) + inside + udp(payload, (4000, port))
    return ethernet(ipv6(body, header), 0x86DD)


def ioam(nodes: Sequence[bytes], kind: int, *, size: int, free: int = 0, form: int = 0, flags: int = 0) -> bytes:
    """A trace with these nodes, the last of the path first; `free` words are left in a pre-allocated one."""
    head = struct.pack(">BBHHI", 0, form, 7, size << 11 | flags << 7 | free, kind << 8)
    return option(0x31, head + bytes(4 * free if form == 0 else 0) + b"".join(nodes))


def node(number: int, time_ns: int, unit: int, transit: int, queue: int) -> bytes:
    seconds, ns = divmod(time_ns, 10**9)
    return struct.pack(">IIIII", 63 << 24 | number, seconds, ns // unit, transit, queue)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 packets over three nodes, 10 ms apart: 2 ms from 11 to 12, and 5 ms or, one in four, 9 ms to 13."""
    records = []
    kind = NODE | TIME | FRACTION | TRANSIT | QUEUE
    for i in range(200):
        sent = BEGIN_NS + i * 10 * MS
        times = sent, sent + 2 * MS, sent + 2 * MS + (9 * MS if i % 4 == 0 else 5 * MS)
        nodes = [node(11 + at, when, 1000, 40_000 + at, i % 10) for at, when in enumerate(times)]
        pre_allocated = i % 2 == 0
        frame = with_options(
            ioam(nodes[::-1], kind, size=5, free=5 if pre_allocated else 0, form=0 if pre_allocated else 1),
            header=0 if i % 3 else 60,
        )
        records.append((times[2] + MS, frame, len(frame)))
    path = tmp_path_factory.mktemp("traced") / "traced.pcap"
    path.write_bytes(pcap(sorted(records), magic=0xA1B23C4D))
    return path


def test_delays_of_hops(traced: Path) -> None:
    found = told(traced)["ioam"]
    assert (found["packets"], found["timestamps"], found["strange"]) == (200, "posix", 0)
    hops = {(one["from"], one["to"]): one for one in found["hops"]}
    assert set(hops) == {("11", "12"), ("12", "13"), ("13", "here")}
    assert hops["11", "12"]["mean"] == pytest.approx(2e-3)
    assert hops["12", "13"]["mean"] == pytest.approx(6e-3)
    assert hops["12", "13"]["adds"] == pytest.approx(1e-3)
    assert hops["12", "13"]["quantiles"]["0.5"] == pytest.approx(5e-3, rel=0.01)
    low, high = hops["12", "13"]["ci95"]["mean"]
    assert low < 6e-3 < high
    assert hops["13", "here"]["mean"] == pytest.approx(1e-3)
    nodes = {one["node"]: one for one in found["nodes"]}
    assert nodes["12"]["inside"]["mean"] == pytest.approx(40_001e-9)
    assert nodes["11"]["queue"] == {"mean": 4.5, "max": 9}
    text = wirelag("telemetry", traced).stdout
    assert "12 > 13" in text
    assert "200 packets with a trace of IOAM" in text
    assert len(wirelag("telemetry", traced, "--format", "csv").stdout.splitlines()) == 1 + 3 + 3


@pytest.mark.skipif(bool(needs.absent("tshark")), reason=needs.program("tshark"))
def test_tshark_reads_the_same_nodes(traced: Path) -> None:
    """Numbers and times of nodes of every pre-allocated trace (tshark 4.0 reads no incremental ones)."""
    names = ("id", "tss", "tsf", "trdelay", "qdepth")
    words = [word for name in names for word in ("-e", f"ipv6.opt.ioam.trace.node.{name}")]
    ran = subprocess.run(
        ["tshark", "-r", traced, "-Y", "ipv6.opt.ioam.opt_type == 0", "-T", "fields", *words],
        *(),
        capture_output=True,
        text=True,
        check=True,
    )
    expected = []
    for batch in api.read(str(traced)):
        for row in range(len(batch)):
            data = batch.frame(row)
            at = data.index(b"\x31", 54)
            content = data[at + 2 : at + 2 + data[at + 1]]
            found = trace(content)
            assert found is not None
            if content[1] == 0:
                expected.append([list(column) for column in zip(*reversed(found.nodes), strict=True)])
    read = [
        [[int(one, 0) for one in column.split(",")] for column in line.split("\t")] for line in ran.stdout.splitlines()
    ]
    assert len(read) == 100
    assert read == expected


def test_forms_of_timestamps(tmp_path: Path) -> None:
    """Nanoseconds and fractions of 2^-32 are told apart from microseconds, and may be given."""
    for form, fraction in (("ptp", lambda ns: ns), ("ntp", lambda ns: (ns << 32) // 10**9)):
        records = []
        for i in range(40):
            times = [BEGIN_NS + i * 37 * MS + late for late in (0, 3 * MS)]
            seconds = 2_208_988_800 if form == "ntp" else 0
            nodes = [struct.pack(">II", when // 10**9 + seconds & 0xFFFFFFFF, fraction(when % 10**9)) for when in times]
            frame = with_options(ioam(nodes[::-1], TIME | FRACTION, size=2))
            records.append((times[1], frame, len(frame)))
        path = tmp_path / f"{form}.pcap"
        path.write_bytes(pcap(records, magic=0xA1B23C4D))
        for words in ((), ("--timestamps", form)):
            found = told(path, *words)["ioam"]
            assert found["timestamps"] == form
            assert found["hops"][0]["mean"] == pytest.approx(3e-3, abs=1e-8)
            assert found["hops"][0]["from"] == "?"


def test_wide_nodes_and_snapshots() -> None:
    """Fields of 8 bytes, and one whose length each node chooses."""
    nodes = [
        struct.pack(">IQ", 7, 63 << 56 | number) + bytes([words]) + bytes(3 + 4 * words)
        for number, words in ((9, 2), (8, 0))
    ]
    found = trace(ioam(nodes, WIDE | TIME | SNAPSHOT, size=3)[2:])
    assert found is not None
    assert [(one.number, one.seconds) for one in found.nodes] == [(8, 7), (9, 7)]


@given(st.binary(max_size=80), st.integers(0, 3))
def test_any_bytes_are_a_trace_or_none(data: bytes, form: int) -> None:
    content = bytes([0, form]) + data
    found = trace(content)
    assert found is None or len(found.nodes) * 4 <= len(data)


@given(st.binary(max_size=60), st.sampled_from([0, 60]), st.integers(20, 120))
def test_damaged_options_never_crash(inside: bytes, header: int, length: int) -> None:
    frame = ethernet(ipv6(bytes([17, len(inside) // 8]) + inside + bytes(8), header), 0x86DD)[:length]
    for batch in api.read(io.BytesIO(pcap([(1, frame, len(frame))]))):
        for row in range(len(batch)):
            mark(batch, row)
    api.telemetry(io.BytesIO(pcap([(1, frame, len(frame))])))


@IN_LAB
def test_traces_that_the_kernel_writes() -> None:
    """Two Linux routers fill in a trace that a host prepared; the last host captures it."""
    network = Network("ioam")
    on = (
        "net.ipv6.conf.all.disable_ipv6=0",
        "net.ipv6.conf.default.disable_ipv6=0",
        "net.ipv6.conf.default.accept_dad=0",
    )
    names = ("a", "r1", "r2", "b")
    network.clear()
    try:
        for name in names:
            network.add(name, *on)
            network.run(name, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
        for i, (left, right) in enumerate(pairwise(names)):
            network.link(left, "right", right, "left")
            for host, interface, last in ((left, "right", 1), (right, "left", 2)):
                network.ip(host, f"-6 addr add fd00:{i}::{last}/64 dev {interface} nodad")
        for host, via in (("a", "fd00:0::2"), ("r1", "fd00:1::2")):
            network.ip(host, f"-6 route add fd00:2::/64 via {via}")
        for number, name in ((101, "r1"), (102, "r2")):
            try:
                network.run(name, "sysctl", "-qw", "net.ipv6.conf.left.ioam6_enabled=1", f"net.ipv6.ioam6_id={number}")
                network.run(name, "ip", "ioam", "namespace", "add", "7")
            except OSError:
                pytest.skip(needs.needs("a kernel with IOAM"))
        with network.inside("b"), contextlib.closing(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as server:
            server.bind(("fd00:2::2", 5000))
            tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
            tap.bind(("left", 0x86DD))
            tap.settimeout(10)
        kind = NODE | TIME | FRACTION | QUEUE
        empty = ioam([], kind, size=4, free=12)
        hops = bytes([0, (4 + len(empty)) // 8 - 1]) + option(1, b"") + empty  # at a multiple of 4
        with network.inside("a"), contextlib.closing(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as client:
            client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_HOPOPTS, hops)
            for i in range(40):
                client.sendto(b"traced %d" % i, ("fd00:2::2", 5000))
        records: list[tuple[int, bytes, int]] = []
        with contextlib.closing(tap):
            while len(records) < 40:
                frame = tap.recv(2000)
                if b"traced" in frame:
                    records.append((time.time_ns(), frame, len(frame)))
    finally:
        network.down()
    found = api.telemetry(io.BytesIO(pcap(records, magic=0xA1B23C4D))).to_dict()["ioam"]
    assert (found["packets"], found["timestamps"], found["strange"]) == (40, "posix", 0)
    assert [(one["from"], one["to"], one["samples"]) for one in found["hops"]] == [
        ("101", "102", 40),
        ("102", "here", 40),
    ]
    assert all(0 <= one["min"] <= one["mean"] < 1 for one in found["hops"])
    assert {one["node"]: one["packets"] for one in found["nodes"]} == {"101": 40, "102": 40}


def short(first: int, ports: tuple[int, int], i: int) -> bytes:
    return ethernet(ipv4(udp(bytes([first]) + i.to_bytes(8) + bytes(20), ports), 17, ident=i & 0xFFFF))


def test_loss_bits_of_connections(tmp_path: Path) -> None:
    """One direction carries the bits, on a port that only a long header makes known; another is encrypted."""
    draw = np.random.default_rng(2)
    version = bytes([0xC0]) + struct.pack(">I", 1) + bytes([8]) + bytes(8) + bytes([0]) + bytes(30)
    frames = [ethernet(ipv4(udp(version, (5000, 8443)), 17))]
    missing = 0
    for i in range(64 * 60):
        gone = draw.random() < 0.03
        missing += gone and 64 <= i < 64 * 59
        if not gone:
            frames.append(short(0x40 | (i // 64 % 2) << 4 | (draw.random() < 0.05) << 3, (5000, 8443), i))
        frames.append(short(0x40 | int(draw.integers(0, 64)), (443, 5001), i))
    path = tmp_path / "quic.pcap"
    path.write_bytes(pcap([(i * 1000, frame, len(frame)) for i, frame in enumerate(frames)]))
    found = told(path)["quic"]
    assert (found["directions"], found["encrypted"], found["carrying"]) == (2, 1, 1)
    (flow,) = found["flows"]
    assert flow["key"] == "192.0.2.1:5000 > 198.51.100.2:8443"
    assert (flow["block"], flow["blocks"], flow["lost"]) == (64, 58, missing)
    assert flow["upstream"] == pytest.approx(missing / (64 * 58))
    assert flow["end_to_end"] == pytest.approx(0.05, abs=0.012)
    low, high = flow["ci95"]["downstream"]
    assert low <= (0.05 - 0.03) / 0.97 <= high
    assert "before here" in wirelag("telemetry", path).stdout
    assert told(path, "--port", 443)["quic"]["flows"] == []
    late = tmp_path / "late.pcap"
    late.write_bytes(pcap([(i * 1000, frame, len(frame)) for i, frame in enumerate(frames[1:])]))
    assert told(late)["quic"]["carrying"] == 0
    assert told(late, "--every-port", "--block", 64)["quic"]["flows"][0]["lost"] == missing


def test_info_names_it_where_packets_carry_something(tmp_path: Path, traced: Path) -> None:
    """A trace, or loss bits; QUIC without loss bits has nothing to read."""
    draw = np.random.default_rng(3)
    says = []
    for first in (lambda i: i // 64 % 2 << 4, lambda _: int(draw.integers(0, 64))):
        path = tmp_path / f"{len(says)}.pcap"
        frames = [short(0x40 | first(i), (443, 5001), i) for i in range(64 * 40)]
        path.write_bytes(pcap([(i * 1000, frame, len(frame)) for i, frame in enumerate(frames)]))
        says.append(wirelag("info", path).stdout)
    assert "1 direction of QUIC with loss bits" in says[0]
    assert "telemetry" not in says[1]
    assert "200 packets with a trace of IOAM" in wirelag("info", traced).stdout


def test_the_same_packets_twice_are_refused(tmp_path: Path, traced: Path) -> None:
    copy = tmp_path / "copy.pcap"
    copy.write_bytes(traced.read_bytes())
    assert "hold the same packets" in wirelag("telemetry", traced, copy, code=2).stderr
    assert "may count twice (--force)" in told(traced, copy, "--force")["notes"][0]


@pytest.mark.parametrize("path", [path for path in capture_paths("hidden") if path.name in QUIC], ids=capture_name)
def test_quic_without_loss_bits_has_no_loss(path: Path) -> None:
    """Real connections: encrypted headers, short ones, and one whose bits are another experiment (the delay bit)."""
    found = json.loads(wirelag("telemetry", path, "--format", "json").stdout)["quic"]
    assert (found["packets"], found["directions"], found["encrypted"], found["other"]) == QUIC[path.name]
    assert found["carrying"] == 0
    assert found["flows"] == []
    assert "all" not in found
    said = wirelag("telemetry", path).stdout
    assert "0 with loss bits" in said
    assert "%" not in said


def test_what_is_refused(tmp_path: Path, traced: Path) -> None:
    assert "--block: must be a power of two" in wirelag("telemetry", traced, "--block", 100, code=2).stderr
    assert "--timestamps: 'ms' is not one of auto" in wirelag("telemetry", traced, "--timestamps", "ms", code=2).stderr
    path = tmp_path / "none.pcap"
    frame = ethernet(ipv4(udp(b"x"), 17))
    path.write_bytes(pcap([(1, frame, len(frame))]))
    assert "no packet carries a trace of IOAM" in wirelag("telemetry", path).stdout
