"""Programs at interfaces: what they see, which programs follow, their modes, and their end with their process."""

import json
import re
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lab.network import Network
from lab.processes import Process
from tests.support.command import WIRELAG
from tests.support.in_kernel import IN_KERNEL, LONG_NS
from tests.support.in_lab import IN_LAB
from tests.support.waiting import PATIENCE_S, until
from wirelag.capture.live import Live
from wirelag.ebpf import bpf
from wirelag.ebpf.bpf import Map, Program
from wirelag.ebpf.dataplane import UnavailableError
from wirelag.ebpf.fridge import KernelFridge
from wirelag.ebpf.lda import KernelLda
from wirelag.errors import WirelagError
from wirelag.estimators.fridge import Fridge
from wirelag.estimators.lda import Lda
from wirelag.packets.addresses import Direction
from wirelag.packets.interval import Interval
from wirelag.packets.packet_id import PacketId

XDP_DROP, XDP_PASS = 1, 2
LEFT, RIGHT = "10.78.0.1", "10.78.0.2"


@pytest.fixture
def network() -> Iterator[Network]:
    """Two hosts with a cable between them."""
    network = Network("dataplane")
    network.clear()
    for host in ("left", "right"):
        network.add(host)
    network.link("left", "cable", "right", "cable")
    for host, address in (("left", LEFT), ("right", RIGHT)):
        network.ip(host, f"addr add {address}/24 dev cable")
        network.run(host, "ethtool", "-K", "cable", "tso", "off", "gso", "off", "gro", "off")
    try:
        yield network
    finally:
        network.down()


def another(verdict: int, counter: Map) -> Program:
    """A foreign program: it counts packets and always returns the same verdict."""
    code = struct.pack("<BBhiBBhi", 0x18, 0x21, 0, counter.fd, 0, 0, 0, 0)  # r1: the counter
    code += struct.pack("<BBhi", 0xB7, 2, 0, 1) + struct.pack("<BBhi", 0xDB, 0x21, 0, 0)  # add 1
    code += struct.pack("<BBhi", 0xB7, 0, 0, verdict) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    return Program.load("another", bpf.XDP, code, b"GPL\0", 0, b"", 37)


# ---- what they see ----


def talk(network: Network, count: int, payload: bytes = b"x" * 100) -> int:
    """Send `count` requests over TCP from left to right, each after the response to the last; return the duration."""
    began_ns = time.time_ns()
    with network.inside("right"):
        server = socket.create_server((RIGHT, 7000))
    with network.inside("left"):
        client = socket.create_connection((RIGHT, 7000), timeout=PATIENCE_S)
    other, _ = server.accept()
    for one in (client, other):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.settimeout(PATIENCE_S)
    for _ in range(count):
        client.sendall(payload)
        other.sendall(other.recv(4096))
        client.recv(4096)
    for one in (client, other, server):
        one.close()
    return time.time_ns() - began_ns


@IN_LAB
@IN_KERNEL
def test_attached_fridges_see_what_a_capture_sees(network: Network) -> None:
    fridge = Fridge(memory=1 << 20, slots=(8192,), probabilities=(1.0,))
    with network.inside("left"):
        meter = KernelFridge(fridge, "cable", LONG_NS)
        live = Live("cable", direction="both")
    beside, whole = fridge.meter("tap"), Interval(0, LONG_NS)
    took_ns = talk(network, 300)
    live.stop()
    for batch in live:
        beside.observe(batch)
    live.close()
    now_ns = time.time_ns()
    found = meter.cut(Interval(now_ns // LONG_NS * LONG_NS, (now_ns // LONG_NS + 1) * LONG_NS))
    expected = beside.cut(whole)
    assert found.packets == expected.packets > 600
    assert found.counts == expected.counts
    one, other = found.distribution(), expected.distribution()
    assert one.samples == other.samples >= 590
    # The two stamp at different places, so delays differ by the kernel's work in between.
    assert one.min_ns is not None
    assert one.max_ns is not None
    assert 0 < one.min_ns <= one.max_ns < took_ns
    assert meter.busy == 0 or bpf.cpus() > 1
    meter.close()


@pytest.mark.acceptance
@IN_LAB
@IN_KERNEL
def test_both_ends_of_a_cable_count_the_same_packets(network: Network) -> None:
    lda, packet_id, way = Lda(rows=64, shifts=(0,), tail=2048), PacketId(), Direction.parse(f"{LEFT}>{RIGHT}")
    meters = {}
    for host in ("left", "right"):
        with network.inside(host):
            meters[host] = KernelLda(lda, "cable", LONG_NS, packet_id=packet_id, course=way)
    took_ns = talk(network, 200, b"y" * 1000)
    start_ns = time.time_ns() // LONG_NS * LONG_NS
    left, right = (meters[host].cut(Interval(start_ns, start_ns + LONG_NS)) for host in ("left", "right"))
    assert left.packets == right.packets > 200
    assert np.array_equal(left.buckets[0::2], right.buckets[0::2])
    assert sorted(left.tail.ids.tolist()) == sorted(right.tail.ids.tolist())
    report = lda.estimate(left, right)
    assert report.samples == left.packets
    assert report.mean is not None
    assert 0 < report.mean < took_ns / 1e9
    for meter in meters.values():
        meter.close()


# ---- with their process ----


def attached(network: Network, host: str, interface: str = "cable") -> tuple[str, int]:
    """The mode of the program for incoming packets, and the number of programs for outgoing ones."""
    link = json.loads(network.run(host, "ip", "-j", "link", "show", interface))[0]
    query, egress = 16, 47  # BPF_PROG_QUERY, BPF_TCX_EGRESS
    with network.inside(host):
        asked = struct.pack("<IIIIQI36x", socket.if_nametoindex(interface), egress, 0, 0, 0, 0)
        _, said = bpf.call(query, asked)
    modes = {1: "native", 2: "generic"}
    return modes.get(link.get("xdp", {}).get("mode", 0), ""), struct.unpack_from("<I", said, 24)[0]


def start(network: Network, tmp_path: Path, interface: str = "cable", *more: str) -> Process:
    command = [*WIRELAG, "watch", interface, "rtt", "--in-kernel", "--format", "jsonl"]
    process = network.start("left", [*command, "--interval", "200ms", *more], tmp_path / "said.txt")
    process.wait_for_line('"packets": ')
    return process


def samples(process: Process) -> int:
    """Samples of all intervals so far."""
    return sum(int(number) for number in re.findall(r'^{.*?"samples": (\d+)', process.said(), re.MULTILINE))


@pytest.mark.acceptance
@IN_LAB
@IN_KERNEL
def test_a_killed_process_leaves_nothing_attached(network: Network, tmp_path: Path) -> None:
    process = start(network, tmp_path)
    assert attached(network, "left") == ("native", 1)
    talk(network, 100)
    until(lambda: samples(process) > 90, "samples")
    assert "generic" not in process.said()
    process.stop(signal.SIGKILL)
    until(lambda: attached(network, "left") == ("", 0), "its end")


@pytest.mark.acceptance
@IN_LAB
@IN_KERNEL
def test_an_interface_that_disappears_ends_it_with_one_line(network: Network, tmp_path: Path) -> None:
    process = start(network, tmp_path)
    network.ip("left", "link del cable")
    with pytest.raises(OSError, match="cable: the interface has gone; nothing more comes from it"):
        process.finish()


# ---- modes ----


def last_line(said: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(said.strip().splitlines()[-1])
    assert found["final"]
    return found


@pytest.mark.acceptance
@IN_LAB
@IN_KERNEL
def test_without_driver_support_it_runs_in_generic_mode(network: Network, tmp_path: Path) -> None:
    network.ip("left", "link add deck type bridge")  # a bridge has no native XDP
    network.ip("left", f"addr del {LEFT}/24 dev cable")
    network.ip("left", "link set cable master deck")
    network.ip("left", f"addr add {LEFT}/24 dev deck")
    network.ip("left", "link set deck up")
    process = start(network, tmp_path, "deck")
    assert "deck: its driver does not support XDP; ours runs behind it (generic mode)" in process.said()
    assert attached(network, "left", "deck") == ("generic", 1)
    took_ns = talk(network, 100)
    until(lambda: samples(process) > 90, "samples")
    last = last_line(process.stop(signal.SIGINT))
    assert last["samples"] > 90
    assert last["packets"] > 200
    assert 0 < last["mean"] < took_ns / 1e9
    assert attached(network, "left", "deck") == ("", 0)


@pytest.mark.acceptance
@IN_LAB
@IN_KERNEL
def test_without_kernel_support_packets_are_captured(network: Network, tmp_path: Path) -> None:
    counter = Map.create("counter", bpf.ARRAY, 4, 8, 1, bpf.MAPPABLE)
    with network.inside("left"):
        link = another(XDP_PASS, counter).attach_xdp("cable")
    process = start(network, tmp_path)
    talk(network, 100)
    until(lambda: samples(process) > 90, "samples")
    said = process.stop(signal.SIGINT)
    assert attached(network, "left") == ("native", 0), "who was there first stays"
    link.close()
    assert re.search("another XDP program is there.*; measuring outside the kernel instead", said)
    assert last_line(said)["samples"] > 90


# ---- programs that follow ----


@IN_LAB
@IN_KERNEL
@pytest.mark.parametrize("verdict", [XDP_DROP, XDP_PASS], ids=("drops", "passes"))
def test_another_program_gets_each_packet_after_ours_and_decides(network: Network, verdict: int, bpffs: Path) -> None:
    path, count = bpffs / "then", 50
    counter = Map.create("counter", bpf.ARRAY, 4, 8, 1, bpf.MAPPABLE)
    other, ours = another(verdict, counter), Lda(rows=16, shifts=(0,), tail=16)
    other.pin(path)
    mac = json.loads(network.run("left", "ip", "-j", "link", "show", "cable"))[0]["address"]
    network.ip("right", f"neigh replace {LEFT} lladdr {mac} dev cable")  # it would drop the ARP request, too
    way = Direction.parse(f"{RIGHT}>{LEFT}")
    try:
        with network.inside("left"):
            meter = KernelLda(ours, "cable", LONG_NS, packet_id=PacketId(), course=way, then=str(path))
            listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            listening.bind((LEFT, 7001))
        with network.inside("right"):
            sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for number in range(count):
            sending.sendto(number.to_bytes(4, "big"), (LEFT, 7001))
        until(lambda: meter.cells.headers["packets"].sum() == count, "packets that ours sees")
        assert counter.memory().view(np.uint64)[0] >= count
        if verdict == XDP_PASS:
            listening.settimeout(PATIENCE_S)
            assert [int.from_bytes(listening.recv(4), "big") for _ in range(count)] == list(range(count))
        meter.close()
        sending.sendto(b"last", (LEFT, 7001))  # our program is gone
        listening.settimeout(PATIENCE_S)
        assert listening.recv(4) == b"last"
        listening.close()
        sending.close()
    finally:
        path.unlink()
        other.close()


@IN_LAB
@IN_KERNEL
def test_an_interface_has_one_program_and_the_next_one_must_be_pinned(network: Network) -> None:
    with network.inside("left"):
        meter = KernelLda(Lda(), "cable", LONG_NS, packet_id=PacketId())
        with pytest.raises(UnavailableError, match="cable: another XDP program is there"):
            KernelLda(Lda(), "cable", LONG_NS, packet_id=PacketId())
        meter.close()
        with pytest.raises(WirelagError, match="no program is pinned there"):
            KernelLda(Lda(), "cable", LONG_NS, packet_id=PacketId(), then="/sys/fs/bpf/none")
