"""Two hosts with agents, and a router between them whose port is a shaped queue; captures at both hosts are the truth.

    client (agent, tcpdump) -- router [tbf] -- server (agent, collector, tcpdump)

The client sends datagrams of many flows to a network behind the server, which drops them: nothing answers.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.live import stop_recording
from lab.network import PROMPT, Network
from lab.processes import PATIENCE_S, Process, program
from wirelag.capture.files import Capture
from wirelag.collector.sqlite import SqliteStore
from wirelag.packets.batch import PacketBatch
from wirelag.packets.packet_id import PacketId
from wirelag.synopses.cache import join

CLIENT, SERVER, TARGET = "10.1.0.1", "10.2.0.2", "10.9.0.1"
SEGMENT, PORT, SNAP_BYTES, BURST_BYTES = "client>server", 8321, 160, 8000
HEADER_BYTES = 42  # Ethernet, IPv4, UDP
READ_S = 2.0  # until tcpdump has read its buffer
RECORD = np.dtype([("time_ns", "<u8"), ("flow", "<u4"), ("bytes", "<u4")])
# All packets pass the queue on one processor, so that none overtakes another; what looks at them runs on the other one.
PASSING, LOOKING = ("taskset", "-c", "0"), ("taskset", "-c", "1")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """A queue, and how its flows are measured."""

    mbit: float
    references: str  # lines of the client's [[references]]
    method: str  # of the server's [estimator]
    interval: str = "1s"


@dataclass(frozen=True)
class Flows:
    """By flow: packets and mean delay, as captures have them and as the collector does (nan: not among its classes)."""

    packets: npt.NDArray[np.int64]
    true_ns: Floats
    measured_ns: Floats
    references: int  # that came
    lost: int  # packets
    load: float  # of the queue, by regular packets

    def errors(self, least: int) -> Floats:
        """Relative errors of the means of flows with at least `least` packets."""
        chosen = (self.packets >= least) & np.isfinite(self.measured_ns)
        return np.asarray(np.abs(self.measured_ns - self.true_ns)[chosen] / self.true_ns[chosen])


def run(setting: Setting, schedule: np.ndarray, folder: Path) -> Flows:
    """Send these datagrams; needs root."""
    network = Network("shaped")
    network.clear()
    try:
        _build(network, setting.mbit)
        (folder / "token").write_text("open-sesame-open")
        captures = [folder / "client.pcap", folder / "server.pcap"]
        schedule.astype(RECORD).tofile(folder / "schedule")
        recorders = [_record(network, path.stem, path) for path in captures]
        collector = _collector(network, folder)
        agents = [_agent(network, host, folder, setting) for host in ("server", "client")]
        words = [*PASSING, *PROMPT, program("replay"), f"address={TARGET}", f"schedule={folder / 'schedule'}"]
        sender = network.start("client", words, folder / "replay.txt")
        sender.finish(float(schedule["time_ns"][-1]) / 1e9 + PATIENCE_S)
        _drained(network)
        time.sleep(READ_S)
        for recorder in recorders:
            stop_recording(recorder)
        for agent in reversed(agents):
            agent.stop(signal.SIGTERM)
        collector.stop()
    finally:
        network.down()
    load = float((schedule["bytes"] + HEADER_BYTES).sum() * 8e3 / schedule["time_ns"][-1] / setting.mbit)
    return _flows(captures, folder / "store.db", load)


def _build(network: Network, mbit: float) -> None:
    for host in ("client", "router", "server"):
        network.add(host, *(["net.ipv4.ip_forward=1"] if host == "router" else []))
    network.link("router", "left", "client", "eth0")
    network.link("router", "right", "server", "eth0")
    for host, name, address in (
        ("client", "eth0", CLIENT),
        ("router", "left", "10.1.0.2"),
        ("router", "right", "10.2.0.1"),
        ("server", "eth0", SERVER),
    ):
        network.ip(host, f"addr add {address}/24 dev {name}")
    network.ip("client", "route add default via 10.1.0.2")
    network.ip("server", "route add default via 10.2.0.1")
    network.ip("router", f"route add {TARGET}/32 via {SERVER}")
    queue = f"tbf rate {round(mbit * 1e6)}bit burst {BURST_BYTES} limit 20000000"
    network.run("router", *f"tc qdisc add dev right root {queue}".split())


def _drained(network: Network) -> None:
    """Wait until nothing is left in the queue."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if re.search(r"backlog 0b", network.run("router", *["tc", "-s", "qdisc", "show", "dev", "right"])):
            return
        time.sleep(0.05)
    raise TimeoutError("the queue does not drain")


def _record(network: Network, host: str, path: Path) -> Process:
    command = f"tcpdump -i eth0 -n -s {SNAP_BYTES} -B 65536 -Z root --time-stamp-precision=nano -w {path}"
    words = [*LOOKING, *PROMPT, *command.split(), "udp", "and", "dst", "host", "(", TARGET, "or", SERVER, ")"]
    process = network.start(host, words, path.with_suffix(".txt"))
    process.wait_for_line("listening on")
    return process


def _collector(network: Network, folder: Path) -> Process:
    words = ["--listen", f"127.0.0.1:{PORT}", "--token-file", str(folder / "token"), "--segment", SEGMENT]
    command = [sys.executable, "-m", "wirelag.cli", "collect", "--store", str(folder / "store.db"), *words]
    process = network.start("server", command, folder / "collector.txt")
    process.wait_for_line("collecting at")
    return process


def _agent(network: Network, host: str, folder: Path, setting: Setting) -> Process:
    upstream = host == "client"
    settings = folder / f"{host}.toml"
    settings.write_text(
        f"""
point = "{host}"
interface = "eth0"
interval = "{setting.interval}"
by = "flow"
most_groups = 4000
receive_references = {"false" if upstream else "true"}
[collector]
url = "http://127.0.0.1:{PORT}"
token_file = "{folder}/token"
[spool]
folder = "{folder}/spool-{host}"
[clock]
error = "1us"  # both hosts have this machine's clock
[estimator]
name = "rli"
method = "{setting.method}"
[[segments]]
name = "{SEGMENT}"
direction = "{CLIENT}>{TARGET}"
references = "{CLIENT}>{SERVER}"
"""
        + (f'[[references]]\nto = "{SERVER}"\n{setting.references}\n' if upstream else "")
    )
    where = PASSING if upstream else LOOKING
    command = [*where, *PROMPT, sys.executable, "-m", "wirelag.cli", "agent", str(settings)]
    process = network.start(host, command, folder / f"agent-{host}.txt")
    process.wait_for_line("listening at eth0")
    return process


def _flows(captures: Sequence[Path], store: Path, load: float) -> Flows:
    """The truth by flow, from a join of both captures, and the collector's results."""
    up, down = (_packets(path) for path in captures)
    regular = [batch.dst_port != 862 for batch in (up, down)]
    found = join(up.packet_id[regular[0]], down.packet_id[regular[1]])
    sent_ns, came_ns = up.time_ns[regular[0]][found.up_rows], down.time_ns[regular[1]][found.down_rows]
    ports = _ports(up)[regular[0]][found.up_rows]
    keys, flow, packets = np.unique(ports, return_inverse=True, return_counts=True)
    true_ns = np.bincount(flow, (came_ns - sent_ns).astype(np.float64)) / packets
    known = _measured(store)
    measured_ns = np.array([known.get(int(key), np.nan) for key in keys])
    lost = int(regular[0].sum()) - len(sent_ns)
    return Flows(packets, true_ns, measured_ns, int((~regular[1]).sum()), lost, load)


def _packets(path: Path) -> PacketBatch:
    batches = list(Capture([str(path)], packet_id=PacketId()))
    return PacketBatch(
        {
            name: np.concatenate([getattr(batch, name) for batch in batches])
            for name in ("packet_id", "time_ns", "src_port", "dst_port")
        }
    )


def _ports(packets: PacketBatch) -> npt.NDArray[np.int64]:
    return np.asarray(packets.src_port.astype(np.int64) << 16 | packets.dst_port)


def _measured(store: Path) -> dict[int, float]:
    """The mean delay of each class, over all intervals, by its ports."""
    opened = SqliteStore(str(store))
    try:
        found: dict[int, float] = {}
        for _, key in opened.series():
            ports = re.search(rf"{re.escape(CLIENT)}:(\d+) .*{re.escape(TARGET)}:(\d+)", key or "")
            if ports is None:
                continue
            rows = opened.rows(SEGMENT, key, 10**9, (0, 2**62), 1000)
            used = sum(row.tally.moments.used for row in rows)
            if used:
                total_ns = sum(row.tally.moments.sum_ns for row in rows)
                found[int(ports[1]) << 16 | int(ports[2])] = total_ns / used
        return found
    finally:
        opened.close()
