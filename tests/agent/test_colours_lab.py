"""Agents and `wirelag marking` on marked packets in network namespaces: as captures of both ends have them."""

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from lab.network import Network
from lab.processes import Process
from lab.wire import Direction, Wire
from tests.oracles.marking import blocks
from tests.support.agent_receiver import AGENT, LENGTH_NS, Receiver, synopses
from tests.support.agent_receiver import PORT as RECEIVER
from tests.support.command import wirelag
from tests.support.in_kernel import IN_KERNEL
from tests.support.in_lab import IN_LAB
from tests.support.live_system import PORT, recorded
from wirelag.capture.files import Capture
from wirelag.packets.batch import PacketBatch
from wirelag.packets.packet_id import PacketId
from wirelag.protocol.messages import Message
from wirelag.protocol.results import Ends, Result
from wirelag.protocol.session import Rounds

MARKED = "10.5.0.99"  # another address of the server: nothing but marked packets goes there
PERIODS = 14


def send(network: Network, stop: threading.Event) -> None:
    """Datagrams from the client whose colour changes every period."""
    with network.inside("client"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        number, colour = 0, -1
        while not stop.wait(0.002):
            if (now := time.time_ns() // LENGTH_NS % 2) != colour:
                colour = now
                out.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, colour << 2)
            number += 1
            out.sendto(number.to_bytes(8, "big") + bytes(24), (MARKED, PORT))


def start(network: Network, host: str, folder: Path, *more: str) -> Process:
    (folder / "token").write_text("sesame")
    said = (
        *("--point", host, "--interface", "eth0", "--interval", f"{LENGTH_NS // 10**6}ms", "--clock-error", "1us"),
        *("--collector", f"http://10.5.0.11:{RECEIVER}", "--insecure", "--token-file", str(folder / "token")),
        *("--spool", str(folder / f"spool-{host}"), "--segment", "client>server1", "--estimator", "lda"),
        *("--cut", "colours", "--rows", "64", "--direction", f"10.5.0.1>{MARKED}"),
    )
    process = network.start(host, [*AGENT, *said, *more], folder / f"{host}.txt")
    process.wait_for_line("listening at eth0")
    return process


def truth_of(folder: Path) -> dict[int, tuple[int, int]]:
    """Packets sent and received of each period, by when its first one was sent."""
    up, down = (
        PacketBatch.concatenate(list(Capture([str(folder / f"{host}.pcap")], packet_id=PacketId())))
        for host in ("client", "server1")
    )
    arrived = set(down.packet_id.tolist())
    coming = [one in arrived for one in up.packet_id.tolist()]
    found, at = {}, 0
    for _, times in blocks(zip(up.time_ns.tolist(), (up.dscp & 1 == 1).tolist(), strict=True), LENGTH_NS):
        found[times[0]] = len(times), sum(coming[at : at + len(times)])
        at += len(times)
    return found


def results_of(messages: list[Message]) -> list[Result]:
    rounds, found = Rounds([Ends("client>server1", "client", "server1")]), list[Result]()
    for message in messages:
        if message.type == "synopsis":
            found += [one for one in rounds.take(message, 1) if isinstance(one, Result) and one.crossings]
    return found


@pytest.mark.acceptance
@IN_LAB
@IN_KERNEL
def test_marked_packets_are_measured_as_captures_have_them(tmp_path: Path) -> None:
    """One agent outside of the kernel and one in it, and a wire that loses packets: loss is exact in every period."""
    stop = threading.Event()
    with Network("colours", wired=True) as network:
        wire = Wire(up=Direction(delay_us=3000, jitter_us=2000, loss=0.005, held=0.05, hold_us=4000))
        wire.start(network, tmp_path, 7)
        network.ip("server1", f"addr add {MARKED}/24 dev eth0")
        sender = threading.Thread(target=send, args=(network, stop))
        with Receiver(lambda: network.inside("server1")) as receiver, recorded(network, tmp_path) as end:
            inside = start(network, "server1", tmp_path, "--in-kernel")
            start(network, "client", tmp_path)
            sender.start()
            try:
                messages = receiver.wait(
                    lambda m: min(len(synopses(m, point)) for point in ("client", "server1")) >= PERIODS
                )
            finally:
                stop.set()
                sender.join()
            end()
            assert "outside the kernel" not in inside.said()
    truth, results = truth_of(tmp_path), results_of(messages)
    compared = []
    for result in results:
        crossing = result.crossings[None]
        first_ns = min(truth, key=lambda at_ns: abs(at_ns - result.interval.start_ns))
        assert abs(first_ns - result.interval.start_ns) < 10**7
        assert (crossing.sent, crossing.received) == truth[first_ns]
        compared.append((crossing.sent, crossing.sent - crossing.received))
        if crossing.used:
            assert 10**6 < crossing.moments.sum_ns / crossing.used < 10**8
    assert len(compared) >= PERIODS - 4
    assert sum(lost for _, lost in compared) > 0
    captures = [tmp_path / f"{host}.pcap" for host in ("client", "server1")]
    found = json.loads(wirelag("marking", *captures, "--period", "250ms", "--format", "json").stdout)
    periods = [(one["sent"], one["lost"]) for one in found["periods"]]
    assert set(compared) <= set(periods)  # the command counts the same
