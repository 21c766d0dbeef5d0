"""Two agents and a collector running for a while, with captures beside them, and their costs.

    client (agent, tcpdump) --[wire]-- switch -- server1 (agent, tcpdump)

The collector is a separate host; dedicated cables lead to it, so that their traffic is the cost.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.network import CLIENT_ADDRESS, FIRST_SERVER, Network
from lab.processes import PATIENCE_S, ROOT, Process
from lab.wire import Direction, Wire
from wirelag.capture.files import Capture
from wirelag.packets.packet_id import PacketId
from wirelag.synopses.cache import join

SERVER_ADDRESS = f"10.5.0.{FIRST_SERVER}"
PORT, TRAFFIC_PORT, CONTROL_PORT, REFERENCE_PORT = 8321, 5201, 5862, 862
HOSTS = ("client", "server1")
HEADER_BYTES = 42  # Ethernet, IPv4, UDP
SNAP_BYTES = 96
QUIET_S = 1.5  # after the traffic, while the last intervals settle
USUAL = Direction(delay_us=2000, jitter_us=200, loss=0.01, held=0.05, hold_us=1000)

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Setting:
    """What is measured, and how."""

    estimator: str = "rda"
    options: str = ""  # lines of the agents' [estimator]
    references: str = ""  # interval at which the client's agent sends them, for rli
    by: str = ""  # classes of traffic
    controlled: bool = False  # control packets of the client's agent cut the intervals, not the clock
    seconds: int = 60
    rate: int = 8000  # packets per second
    payload: int = 1400  # almost the maximum of Ethernet
    interval: str = "1s"
    wire: Direction = USUAL
    captured: bool = True
    in_kernel: bool = False
    cut: str = ""  # where intervals end, if not as usual: "packets", "clock"
    filtered: bool = True  # only the traffic; in the kernel the direction must do
    also: tuple[Setting, ...] = ()  # more agents at both hosts, which see the same packets


@dataclass(frozen=True)
class Truth:
    """The join of both captures: send time and delay of each packet; -1: it never arrived."""

    sent_ns: Times
    delays_ns: Times

    def during(self, start_ns: int, end_ns: int) -> tuple[int, int, int]:
        """Of the packets sent in this time: how many arrived, their summed delay, and how many did not."""
        delays_ns = self.delays_ns[(self.sent_ns >= start_ns) & (self.sent_ns < end_ns)]
        arrived = delays_ns[delays_ns >= 0]
        return len(arrived), int(arrived.sum()), len(delays_ns) - len(arrived)

    def std_ns(self, start_ns: int, end_ns: int) -> float:
        """The deviation of their delays."""
        delays_ns = self.delays_ns[(self.sent_ns >= start_ns) & (self.sent_ns < end_ns)]
        return float(delays_ns[delays_ns >= 0].std())

    @property
    def overtaken(self) -> float:
        """The share of packets that arrived directly behind one sent later."""
        arrived = self.delays_ns >= 0
        sent_ns = self.sent_ns[arrived][np.argsort((self.sent_ns + self.delays_ns)[arrived], kind="stable")]
        return float((sent_ns[1:] < sent_ns[:-1]).mean())


@dataclass(frozen=True)
class Done:
    """The record of a run."""

    setting: Setting
    began_ns: int  # the traffic
    ended_ns: int
    events: list[dict[str, Any]] = field(repr=False)
    truth: Truth | None
    cable_bytes: int  # bytes on the collector's cables, both directions, with all headers, during the traffic

    def of(self, number: int) -> Done:
        """What one of the pairs of agents did: 0, or one of `also`, counted from 1."""
        events = [one for one in self.events if one.get("segment", _segment(0)) == _segment(number)]
        return replace(self, events=events)

    def during(self, what: str) -> list[dict[str, Any]]:
        """Events about whole intervals of the traffic."""
        last_ns = self.ended_ns - 2 * 10**9
        first_ns = self.began_ns + 3 * 10**9  # until then agents learn the size of differences
        return [one for one in self.events if one["what"] == what and first_ns <= one.get("start_ns", 0) <= last_ns]

    def results(self) -> dict[int, dict[str, Any]]:
        """The last result of every interval, by start; with `ready_ns`, when it was first complete."""
        found: dict[int, dict[str, Any]] = {}
        for one in self.during("result"):
            before = found.get(one["start_ns"], {"rank": -1})
            ready = before.get("ready_ns") or (one["at_ns"] - one["end_ns"] if one["complete"] else None)
            first = before.get("first_ns") or one["at_ns"] - one["end_ns"]
            kept = one if one["rank"] >= before["rank"] else before
            found[one["start_ns"]] = kept | {"ready_ns": ready, "first_ns": first}
        return found

    def spans(self) -> list[tuple[int, int, dict[str, Any]]]:
        """The results, each with the time it covers: cut at packets, an interval ends where the next one begins."""
        found = sorted(((at, one) for at, one in self.results().items() if one["used"]), key=lambda each: each[0])
        return [(start_ns, end_ns, one) for (start_ns, one), (end_ns, _) in pairwise(found)]


def run(setting: Setting, folder: Path, seed: int = 1) -> Done:
    """Run it; needs root."""
    with Network(f"live{seed}", wired=True) as network:
        _cables(network)
        Wire(up=setting.wire, down=Direction(delay_us=setting.wire.delay_us)).start(network, folder, seed)
        log = folder / "stopwatch.jsonl"
        command = [sys.executable, str(ROOT / "stopwatch.py"), str(log), "collect", "--store", str(folder / "store.db")]
        (folder / "token").write_text("open-sesame-open")
        words = ["--listen", f"10.6.0.1:{PORT}", "--token-file", str(folder / "token")]
        settings = (setting, *setting.also)
        words += [word for number in range(len(settings)) for word in ("--segment", _segment(number))]
        collector = network.start("collector", [*command, *words], folder / "collector.txt")
        collector.wait_for_line("collecting at")
        server = network.start("server1", f"iperf3 -4 -s -1 -p {TRAFFIC_PORT}".split(), folder / "iperf-server.txt")
        server.wait_for_port(TRAFFIC_PORT)
        captures = [folder / f"{host}.pcap" for host in HOSTS]
        recorders = [_record(network, host, path) for host, path in zip(HOSTS, captures, strict=True)]
        agents = [
            _agent(network, host, folder, one, number)
            for number, one in enumerate(settings)
            for host in reversed(HOSTS)
        ]
        before, began_ns = _carried(network), time.time_ns()
        bits = 8 * setting.payload * setting.rate
        arguments = (
            f"iperf3 -c {SERVER_ADDRESS} -p {TRAFFIC_PORT} -u -b {bits} -l {setting.payload} -t {setting.seconds}"
        )
        client = network.start("client", [*arguments.split(), "--pacing-timer", "200"], folder / "iperf.txt")
        client.finish(setting.seconds + PATIENCE_S)
        ended_ns, cable_bytes = time.time_ns(), _carried(network) - before
        _settled(log, ended_ns)
        for agent in agents:
            agent.stop(signal.SIGTERM)
        for recorder in recorders:
            stop_recording(recorder)
        collector.stop()
        events = [json.loads(line) for line in log.read_text().splitlines()]
        truth = join_captures(captures[0], captures[1]) if setting.captured else None
        return Done(setting, began_ns, ended_ns, events, truth, cable_bytes)


def _cables(network: Network) -> None:
    """From both hosts to the collector."""
    network.add("collector")
    network.ip("collector", "addr add 10.6.0.1/32 dev lo")
    for number, host in enumerate(HOSTS, 1):
        network.link(host, "cable", "collector", f"to{number}")
        network.ip(host, f"addr add 10.6.{number}.2/24 dev cable")
        network.ip("collector", f"addr add 10.6.{number}.1/24 dev to{number}")
        network.ip(host, f"route add 10.6.0.1/32 via 10.6.{number}.1")


def _carried(network: Network) -> int:
    """Bytes over both cables so far, both directions."""
    lines = network.run("collector", "cat", "/proc/net/dev").splitlines()
    counts = [line.split() for line in lines if re.match(r"\s*to[12]:", line)]
    return sum(int(one[1]) + int(one[9]) for one in counts)


def _record(network: Network, host: str, path: Path) -> Process:
    command = (
        f"tcpdump -i eth0 -n -s {SNAP_BYTES} -B 65536 -Z root --immediate-mode --time-stamp-precision=nano -w {path}"
    )
    wanted = f"udp dst port {TRAFFIC_PORT} and dst host {SERVER_ADDRESS}"
    process = network.start(host, [*command.split(), *wanted.split()], path.with_suffix(".txt"))
    process.wait_for_line("listening on")
    return process


def stop_recording(recorder: Process) -> None:
    """End tcpdump; an OSError if it missed packets."""
    recorder.wait_until_idle()
    said = recorder.stop(signal.SIGINT)
    dropped = re.search(r"(\d+) packets? dropped by kernel", said)
    if dropped is None or int(dropped[1]):
        raise OSError(f"a capture missed packets: {said.strip()}")


def _point(host: str, number: int) -> str:
    return f"{host}-{number}" if number else host


def _segment(number: int) -> str:
    return ">".join(_point(host, number) for host in HOSTS)


def _agent(network: Network, host: str, folder: Path, setting: Setting, number: int) -> Process:
    point = _point(host, number)
    settings = folder / f"{point}.toml"
    wanted = f"udp dst port {TRAFFIC_PORT} or udp dst port {CONTROL_PORT} or udp dst port {REFERENCE_PORT}"
    settings.write_text(
        f"""
point = "{point}"
interface = "eth0"
interval = "{setting.interval}"
status = "10s"
{f'filter = "{wanted}"' if setting.filtered else ""}
receive_references = {"true" if setting.references and host != HOSTS[0] else "false"}
{f'by = "{setting.by}"' if setting.by else ""}
[collector]
url = "http://10.6.0.1:{PORT}"
insecure = true
token_file = "{folder}/token"
[spool]
folder = "{folder}/spool-{point}"
[clock]
error = "1us"
[capture]
in_kernel = {"true" if setting.in_kernel else "false"}
[estimator]
name = "{setting.estimator}"
{setting.options}
[[segments]]
name = "{_segment(number)}"
direction = "{CLIENT_ADDRESS}>{SERVER_ADDRESS}"
"""
        + _cut(setting, host)
        + _references(setting, host)
    )
    command = [sys.executable, "-m", "wirelag.cli", "agent", str(settings)]
    process = network.start(host, command, folder / f"agent-{point}.txt")
    process.wait_for_line("listening at eth0")
    if setting.in_kernel and "outside the kernel" in process.said():
        raise OSError(f"it does not measure in the kernel: {process.said().strip()}")
    return process


def _cut(setting: Setting, host: str) -> str:
    if not setting.controlled:
        return f'[cut]\nat = "{setting.cut}"\n' if setting.cut else ""
    to = f'control_to = "{SERVER_ADDRESS}"\n' if host == HOSTS[0] else ""
    return f"[cut]\ncontrol_port = {CONTROL_PORT}\n{to}"


def _references(setting: Setting, host: str) -> str:
    if not setting.references or host != HOSTS[0]:
        return ""
    return f'[[references]]\nto = "{SERVER_ADDRESS}"\nevery = "{setting.references}"\nshare = "1%"\n'


def _settled(log: Path, ended_ns: int) -> None:
    """Wait until the interval after the traffic's end has its result, and a moment longer."""
    limit = time.monotonic() + PATIENCE_S
    while time.monotonic() < limit:
        lines = [json.loads(line) for line in log.read_text().splitlines()[-40:] if line.endswith("}")]
        if any(one["what"] == "result" and one["end_ns"] > ended_ns + QUIET_S * 1e9 for one in lines):
            return
        time.sleep(0.1)


def join_captures(up: Path, down: Path, source: str | None = None) -> Truth:
    """Find the packets of one capture in the other; `source`: only those from this IPv4 address."""
    columns = []
    for path in (up, down):
        batches = list(Capture([str(path)], packet_id=PacketId(), filter=source and f"src host {source}"))
        columns.append([np.concatenate([getattr(b, name) for b in batches]) for name in ("packet_id", "time_ns")])
    (up_ids, sent_ns), (down_ids, came_ns) = columns
    found = join(up_ids, down_ids)
    delays_ns = np.full(len(sent_ns), -1, np.int64)
    delays_ns[found.up_rows] = came_ns[found.down_rows] - sent_ns[found.up_rows]
    return Truth(sent_ns, delays_ns)
