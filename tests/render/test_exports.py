"""Flows in formats of other programs: IPFIX in files and on the wire, logs of Zeek, OpenMetrics."""

import contextlib
import csv
import io
import ipaddress
import json
import math
import os
import re
import socket
import ssl
import struct
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import ipfix, needs
from tests.support.command import wirelag
from tests.support.frame_captures import write
from tests.support.ipfix_programs import ABSENT, collected, dumped, milliseconds, nfcapd, nfdump
from tests.support.ports import free_port
from tests.support.transport_peers import make_certificate
from wirelag.sim.queue import QueueScenario, run
from wirelag.sim.queue_frames import downstream_frames

MEAN, MIN, MAX, SUM = 530, 531, 532, 533
REVERSE = 29305
TCP, UDP = (6, "TCP"), (17, "UDP")
PROTOCOL = {"22": TCP, "80": TCP, "443": TCP, "8443": TCP, "53": UDP, "123": UDP}  # by the server's port


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exports") / "traffic.pcap"
    wirelag("simulate", "--packets", 4000, "--seed", 3, "-o", path)
    return path


@pytest.fixture(scope="module")
def groups(capture: Path) -> dict[str, Any]:
    found = json.loads(wirelag("rtt", capture, "--by", "flow", "--format", "json").stdout)["groups"]
    assert len(found) > 100
    return {one["key"]: one for one in found}


def number(data: bytes) -> int:
    return int.from_bytes(data)


def key_of(record: ipfix.Record) -> str:
    elements = (8, 12) if (8, 0) in record else (27, 28)
    source, destination = (str(ipaddress.ip_address(record[element, 0])) for element in elements)
    return flow(source, number(record[7, 0]), destination, number(record[11, 0]))


def flow(source: str, source_port: object, destination: str, port: object) -> str:
    ends = ((source, source_port), (destination, port))
    return " > ".join(f"[{one}]:{at}" if ":" in one else f"{one}:{at}" for one, at in ends)


def check(reader: ipfix.Reader, groups: dict[str, Any]) -> None:
    """Compare what was read with the JSON."""
    assert {key_of(record) for record in reader.records} == set(groups)
    for record in reader.records:
        legs = groups[key_of(record)]["legs"]
        for leg, enterprise in (("server", 0), ("client", REVERSE)):
            figures = legs.get(leg, {"samples": 0, "mean": None})
            assert number(record[2, enterprise]) == figures["samples"]
            assert ((MEAN, enterprise) in record) == (figures["mean"] is not None)
            if figures["mean"] is None:
                continue
            told = {name: number(record[name, enterprise]) for name in (MEAN, MIN, MAX, SUM)}
            assert told[MEAN] == round(figures["mean"] * 1e6)
            assert (told[MIN], told[MAX]) == (round(figures["min"] * 1e6), round(figures["max"] * 1e6))
            assert told[SUM] == round(figures["mean"] * figures["samples"] * 1e6)
            assert ((337, enterprise) in record) == ("mean" in figures["ci95"])
            if "mean" in figures["ci95"]:
                bounds = [struct.unpack(">d", record[name, enterprise])[0] / 1e6 for name in (337, 336)]
                assert bounds == pytest.approx(figures["ci95"]["mean"], rel=1e-12)


def test_a_file_of_ipfix(capture: Path, groups: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "flows.ipfix"
    wirelag("rtt", capture, "--by", "flow", "-o", file)
    reader = ipfix.Reader()
    for message in ipfix.messages(file.read_bytes()):
        reader.read(message)
    check(reader, groups)
    assert number(reader.about[0][86, 0]) == 4000
    assert reader.about[0][300, 0].decode() == f"wirelag rtt: round trips, {capture}"
    assert all(number(record[4, 0]) == PROTOCOL[str(number(record[11, 0]))][0] for record in reader.records)
    if needs.absent("ipfixDump"):
        pytest.skip(needs.absent("ipfixDump"))
    said = subprocess.run(["ipfixDump", "--in", file], capture_output=True, text=True, check=True).stdout
    assert re.search(rf"{len(groups) + 1} Data Records", said)
    for record in reader.records[:5]:
        assert f": {number(record[7, 0])}\n" in said
    told = dumped(file)
    assert len(told) == len(groups)
    assert sum(figures_told(one, groups[ends_of(one)]["legs"]) for one in told) > 3 * len(groups)


def figures_told(one: dict[str, str], legs: dict[str, Any]) -> int:
    """How many figures of both legs a record of ipfixDump has; all of them are those of the JSON."""
    told = 0
    for leg, prefix in (("server", ""), ("client", f"{REVERSE}/")):
        figures = legs.get(leg, {"samples": 0})
        assert int(one[f"{prefix}2"]) == figures["samples"]
        for element, figure in ((MEAN, "mean"), (MIN, "min"), (MAX, "max")):
            if (known := figures.get(figure)) is not None:
                assert int(one[f"{prefix}{element}"]) == round(known * 1e6)
                told += 1
    return told


def ends_of(one: dict[str, str]) -> str:
    """The flow of a record of ipfixDump."""
    source, destination = (one[number] for number in (("8", "12") if "8" in one else ("27", "28")))
    return flow(str(ipaddress.ip_address(source)), one["7"], str(ipaddress.ip_address(destination)), one["11"])


def receive(capture: Path, *more: str) -> list[bytes]:
    """The datagrams of an export."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inbox:
        inbox.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        inbox.bind(("127.0.0.1", 0))
        url = f"ipfix+udp://127.0.0.1:{inbox.getsockname()[1]}?domain=7"
        wirelag("rtt", capture, "--by", "flow", *more, "--export", url)
        inbox.setblocking(False)
        found = []
        while True:
            try:
                found.append(inbox.recv(65_536))
            except BlockingIOError:
                return found


def test_ipfix_over_udp_repeats_its_templates(capture: Path, groups: dict[str, Any]) -> None:
    datagrams = receive(capture)
    assert max(map(len, datagrams)) <= 1400
    reader, late = ipfix.Reader(), ipfix.Reader()
    for datagram in datagrams:
        reader.read(datagram)
    check(reader, groups)
    assert len(datagrams) > 10
    late.sequence = struct.unpack_from(">I", datagrams[10], 8)[0]  # a collector that starts late
    late.read(datagrams[10])
    assert late.records


def test_tshark_reads_ipfix(capture: Path, groups: dict[str, Any], tmp_path: Path) -> None:
    if needs.absent("tshark"):
        pytest.skip(needs.absent("tshark"))
    datagrams = receive(capture)
    file = tmp_path / "export.pcap"
    with file.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 101))
        for data in datagrams:
            udp = struct.pack(">HHHH", 4739, 4739, 8 + len(data), 0) + data
            packet = struct.pack(">BBHHHBBH4s4s", 69, 0, 20 + len(udp), 0, 0, 64, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
            out.write(struct.pack("<IIII", 0, 0, 20 + len(udp), 20 + len(udp)) + packet + udp)
    fields = ("cflow.srcport", "_ws.expert.message", "cflow.od_id")
    command = ["tshark", "-r", str(file), "-T", "fields", *(word for name in fields for word in ("-e", name))]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ports = [port for line in said for port in line.split("\t")[0].split(",") if port]
    assert sorted(ports) == sorted(key.split(" > ")[0].rpartition(":")[2] for key in groups)
    assert {line.split("\t")[2].partition(",")[0] for line in said} == {"7"}
    assert not any("alformed" in line for line in said)


def test_nfdump_collects_ipfix(capture: Path, groups: dict[str, Any], tmp_path: Path) -> None:
    if needs.absent("nfcapd"):
        pytest.skip(needs.absent("nfcapd"))
    with nfcapd(tmp_path) as port:
        wirelag("rtt", capture, "--by", "flow", "--export", f"ipfix+udp://127.0.0.1:{port}")
    rows = nfdump(tmp_path)
    found = {flow(row["sa"], row["sp"], row["da"], row["dp"]): int(row["ipkt"]) for row in rows}
    assert found == {key: one["legs"].get("server", {"samples": 0})["samples"] for key, one in groups.items()}
    assert all(row["pr"] == PROTOCOL[row["dp"]][1] for row in rows)


def serve(wrap: Callable[[socket.socket], socket.socket], found: bytearray) -> tuple[int, threading.Thread]:
    """A collector that takes one connection."""
    server = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        with server, server.accept()[0] as plain, wrap(plain) as one:
            while data := one.recv(1 << 16):
                found.extend(data)

    thread = threading.Thread(target=work)
    thread.start()
    return server.getsockname()[1], thread


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_ipfix_over_connections(scheme: str, capture: Path, groups: dict[str, Any], tmp_path: Path) -> None:
    found, more = bytearray(), ""

    def wrap(plain: socket.socket) -> socket.socket:
        return plain if context is None else context.wrap_socket(plain, server_side=True)

    context: ssl.SSLContext | None = None
    if scheme == "tls":
        certificate, key = make_certificate(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        more = f"?ca={certificate}&cert={certificate}&key={key}"
    port, thread = serve(wrap, found)
    wirelag("rtt", capture, "--by", "flow", "--export", f"ipfix+{scheme}://127.0.0.1:{port}{more}")
    thread.join()
    reader = ipfix.Reader()
    for message in ipfix.messages(bytes(found)):
        reader.read(message)
    check(reader, groups)


@pytest.mark.parametrize("scheme", ["udp", "tcp"])
def test_watch_sends_flows_of_each_interval(scheme: str, capture: Path, groups: dict[str, Any], tmp_path: Path) -> None:
    """Together they are those of the capture; over TCP each interval has a connection of its own."""
    found: list[bytes] = []
    kind = socket.SOCK_DGRAM if scheme == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as inbox:
        inbox.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        inbox.bind(("127.0.0.1", 0))
        inbox.settimeout(20)
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                with contextlib.suppress(TimeoutError, BlockingIOError), inbox.accept()[0] as one:
                    found.append(b"".join(iter(lambda: one.recv(1 << 16), b"")))

        thread = threading.Thread(target=work)
        if scheme == "tcp":
            inbox.listen()
            inbox.settimeout(0.05)
            thread.start()
        url = f"ipfix+{scheme}://127.0.0.1:{inbox.getsockname()[1]}"
        words = ("watch", "rtt", "-r", capture, "--speed", "max", "--by", "flow", "--interval", "10s")
        said = wirelag(*words, "--format", "jsonl", "--export", url)
        over.set()
        if scheme == "tcp":
            thread.join()
        inbox.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while scheme == "udp":
                found.append(inbox.recv(65_536))
    assert said.stderr == ""
    readers = [ipfix.Reader()] if scheme == "udp" else [ipfix.Reader() for _ in found]
    for i, data in enumerate(found):
        for message in ipfix.messages(data):
            readers[min(i, len(readers) - 1)].read(message)
    records = [record for reader in readers for record in reader.records]
    intervals = [json.loads(line) for line in said.stdout.splitlines()[:-1]]
    assert len(intervals) > 3
    assert {number(record[152, 0]) for record in records} == {
        math.floor(one["start"] * 1e3) for one in intervals if one["groups"]
    }
    assert len(records) == sum(len(one["groups"]) for one in intervals)
    assert {reader.about[0][300, 0].decode() for reader in readers} == {"wirelag watch captures: round trips"}
    for enterprise, leg in ((0, "server"), (REVERSE, "client")):
        counts: Counter[str] = Counter()
        for record in records:
            counts[key_of(record)] += number(record[2, enterprise])
        expected = {key: one["legs"].get(leg, {"samples": 0})["samples"] for key, one in groups.items()}
        assert counts == expected
    if ABSENT or scheme == "tcp":
        return
    file = tmp_path / "watched.ipfix"
    file.write_bytes(b"".join(found))
    ours = {
        (math.floor(one["start"] * 1e3), group["key"]): group["legs"] for one in intervals for group in one["groups"]
    }
    theirs = {(milliseconds(one["152"]), ends_of(one)): one for one in dumped(file)}
    assert set(theirs) == set(ours)
    assert sum(figures_told(theirs[name], legs) for name, legs in ours.items()) > 3 * len(groups)
    rows = collected(found, tmp_path / "nfdump", len(readers[0].about))
    assert Counter((flow(row["sa"], row["sp"], row["da"], row["dp"]), int(row["ipkt"])) for row in rows) == Counter(
        (key, legs.get("server", {"samples": 0})["samples"]) for (_, key), legs in ours.items()
    )


def test_a_receiver_that_is_not_there_is_told_once(capture: Path) -> None:
    words = ("watch", "rtt", "-r", capture, "--speed", "max", "--by", "flow", "--format", "jsonl")
    said = wirelag(*words, "--export", f"ipfix+tcp://127.0.0.1:{free_port()}")
    assert said.stderr.count("Connection refused") == 1
    assert len(said.stdout.splitlines()) > 3
    wrong = wirelag("watch", "rtt", "-r", capture, "--export", "ipfix+tcp://x", code=2)
    assert "--export: lists flows only with --by flow" in wrong.stderr


def test_delays_of_flows_in_one_direction(tmp_path: Path) -> None:
    """`flows` knows packets, bytes and times of each flow; a sum is told where all packets have a delay."""
    behind = write(tmp_path / "behind.pcap", downstream_frames(run(QueueScenario(0.7, seed=3, seconds=0.05))))
    wirelag("flows", behind, "-o", tmp_path / "flows.ipfix")
    flows = json.loads(wirelag("flows", behind, "--format", "json").stdout)["flows"]
    reader = ipfix.Reader()
    for message in ipfix.messages((tmp_path / "flows.ipfix").read_bytes()):
        reader.read(message)
    assert len(reader.records) == len(flows) > 100
    for one, record in zip(flows, reader.records, strict=True):
        assert one["key"].rpartition(" ")[0] == key_of(record)
        assert (number(record[2, 0]), number(record[1, 0])) == (one["packets"], one["bytes"])
        assert ((SUM, 0) in record) == (one["timed"] == one["packets"])
        if one["mean"] is not None:
            assert number(record[MEAN, 0]) == round(one["mean"] * 1e6)
        assert number(record[152, 0]) <= number(record[153, 0])
    assert any(one["timed"] < one["packets"] for one in flows)


def test_a_log_of_zeek(capture: Path, groups: dict[str, Any]) -> None:
    """Read as zeek-cut does: by the header's separator and names."""
    lines = wirelag("rtt", capture, "--by", "flow", "--format", "zeek").stdout.splitlines()
    head = {line.split("\t")[0]: line.split("\t")[1:] for line in lines if line.startswith("#") and "\t" in line}
    assert lines[0] == "#separator \\x09"
    assert head["#fields"][:7] == ["ts", "uid", "id.orig_h", "id.orig_p", "id.resp_h", "id.resp_p", "proto"]
    assert len(head["#fields"]) == len(head["#types"])
    rows = [dict(zip(head["#fields"], line.split("\t"), strict=True)) for line in lines if line[0] != "#"]
    assert len({row["uid"] for row in rows}) == len(groups)
    for row in rows:
        legs = groups[flow(row["id.orig_h"], row["id.orig_p"], row["id.resp_h"], row["id.resp_p"])]["legs"]
        for leg, prefix in (("server", "delay"), ("client", "reverse_delay")):
            if leg not in legs:
                assert row[f"{prefix}_mean"] == "-"
                continue
            assert float(row[f"{prefix}_mean"]) == pytest.approx(legs[leg]["mean"], abs=1e-9)
            assert int(row[f"{prefix}_samples"]) == legs[leg]["samples"]
        assert row["proto"] == PROTOCOL[row["id.resp_p"]][1].lower()


def test_flows_that_did_not_fit_are_told(tmp_path: Path) -> None:
    wirelag("simulate", "--packets", 12_000, "--dns", "100%", "-o", tmp_path / "dns.pcap")
    ran = wirelag("rtt", tmp_path / "dns.pcap", "--by", "flow", "--group-memory", "1MiB", "--format", "zeek")
    told = re.search(
        r"warning: ([\d,]+) round trips of flows that did not fit --group-memory have no record", ran.stderr
    )
    assert told is not None
    rows = [line.split("\t") for line in ran.stdout.splitlines() if line[0] != "#"]
    kept = sum(int(row[10]) for row in rows)
    total = json.loads(wirelag("rtt", tmp_path / "dns.pcap", "--format", "json").stdout)["samples"]
    assert kept + int(told[1].replace(",", "")) == total > kept > 0


@pytest.mark.parametrize("words", [("rtt", "--by", "flow"), ("response",)])
def test_openmetrics(words: tuple[str, ...], capture: Path) -> None:
    """Prometheus' own parser reads each figure of the CSV."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason=needs.LIVE)
    text = wirelag(words[0], capture, *words[1:], "--format", "openmetrics").stdout
    rows = list(csv.DictReader(io.StringIO(wirelag(words[0], capture, *words[1:], "--format", "csv").stdout)))
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    quantity = {"rtt": "round_trip", "response": "response"}[words[0]]
    means = families[f"wirelag_{quantity}_mean_seconds"]
    assert means.unit == "seconds"
    assert [sample.value for sample in means.samples] == [float(row["mean"]) for row in rows if row["mean"]]
    counts = families[f"wirelag_{quantity}_samples"].samples
    assert [sample.value for sample in counts] == [float(row["samples"]) for row in rows]
    assert all(math.isfinite(sample.value) for family in families.values() for sample in family.samples)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--format", "zeek"], "--format: lists flows only with --by flow"),
        (["--export", "ipfix+udp://127.0.0.1"], "--export: lists flows only with --by flow"),
        (["--by", "flow", "--export", "udp://127.0.0.1"], "is not a collector of flows: write ipfix+udp://HOST:PORT"),
        (["--by", "flow", "--export", "ipfix+udp://127.0.0.1?ca=x"], "ca is not one of domain"),
        (["--by", "flow", "--export", "ipfix+tls://127.0.0.1?cert=x"], "cert and key belong together"),
        (["--by", "flow", "--format", "ipfix"], "cannot print IPFIX on a terminal: name a file with -o"),
        (["--by", "flow", "--export", "ipfix+tcp://127.0.0.1:1"], "ipfix+tcp://127.0.0.1:1: cannot be reached"),
    ],
)
def test_what_is_refused(words: list[str], says: str, capture: Path) -> None:
    assert says in wirelag("rtt", capture, *words, code=2).stderr
    assert os.path.exists(capture)
