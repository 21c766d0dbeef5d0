"""LDA: 30 segments across routers, in the kernel beside outside of it, on the same packets.

Six routers run OSPF (FRRouting), and the host of each has two agents: one measures in the kernel, one outside. Each has
ten segments, to and from every other host, cut at packets. A queue (tbf) is placed at a random port, all hosts send to
each other, and tcpdump at the hosts sees what agents see: its captures, joined, are the truth. Errors are of every
interval. Through the queue they are relative; elsewhere packets take some 50 us, a few of which lie between the hook of
a program and that of a capture, so that they are in us. Pairs with two equal paths, one of which has the queue, are
counted apart: their packets overtake each other. Needs root.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from traces import arguments, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the lab

from lab.live import Done, Setting, join_captures, stop_recording
from lab.network import PROMPT
from lab.processes import PATIENCE_S, ROOT, Process
from lab.routers import BUSY, Routers
from lab.traffic import PORT as TRAFFIC_PORT
from lab.traffic import Traffic
from wirelag.network.routes import Routes
from wirelag.network.topology import read_topology

SIX = ROOT.parent / "tests" / "data" / "six.json"
WHERE = ("kernel", "outside")
PLACEMENTS, QUICK, SECONDS = 5, 1, 20.0
PORT, COLLECTOR, SNAP_BYTES = 8321, "10.8.0.1", 96
Port = tuple[str, str]  # a router, and the neighbour that the port leads to


@dataclass
class Errors:
    """Of the means of intervals: relative through the queue, in ns elsewhere; `missing` intervals have none."""

    queued: list[float] = field(default_factory=list)
    split: list[float] = field(default_factory=list)  # of pairs with one of two paths through the queue
    others: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)  # shares of the packets
    missing: int = 0


class Hosts:
    """Hosts of routers with agents, and a collector that has a cable to each of them."""

    def __init__(self, routers: Routers, folder: Path) -> None:
        self.routers, self.folder, self.network = routers, folder, routers.network
        self.log = folder / "stopwatch.jsonl"
        self.names = routers.topology.routers
        self.pairs = [(one, other) for one in self.names for other in self.names if one != other]

    def start(self) -> None:
        """Start the collector and all agents."""
        self.network.add("collector")
        self.network.ip("collector", f"addr add {COLLECTOR}/32 dev lo")
        for number, name in enumerate(self.names, 1):
            self.network.link(f"{name}-host", "cable", "collector", f"to{number}")
            self.network.ip(f"{name}-host", f"addr add 10.8.{number}.2/24 dev cable")
            self.network.ip("collector", f"addr add 10.8.{number}.1/24 dev to{number}")
            self.network.ip(f"{name}-host", f"route add {COLLECTOR}/32 via 10.8.{number}.1")
        (self.folder / "token").write_text("open-sesame-open")
        words = ["collect", "--store", f"{self.folder}/store.db", "--listen", f"{COLLECTOR}:{PORT}"]
        words += ["--token-file", f"{self.folder}/token"]
        words += [word for where in WHERE for pair in self.pairs for word in ("--segment", segment(where, pair))]
        command = [*PROMPT, sys.executable, str(ROOT / "stopwatch.py"), str(self.log), *words]
        collector = self.network.start("collector", command, self.folder / "collector.txt")
        collector.wait_for_line("collecting at")
        for where in WHERE:
            for name in self.names:
                self._agent(where, name)

    def _agent(self, where: str, name: str) -> None:
        settings = self.folder / f"{where}-{name}.toml"
        measured = "".join(
            f'[[segments]]\nname = "{segment(where, pair)}"\n'
            f'direction = "{self.routers.address(pair[0])}>{self.routers.address(pair[1])}"\n'
            for pair in self.pairs
            if name in pair
        )
        settings.write_text(
            f"""
point = "{where}-{name}"
interface = "eth0"
interval = "1s"
status = "10s"
[collector]
url = "http://{COLLECTOR}:{PORT}"
insecure = true
token_file = "{self.folder}/token"
[spool]
folder = "{self.folder}/spool-{where}-{name}"
[clock]
error = "1us"
[capture]
in_kernel = {"true" if where == "kernel" else "false"}
[cut]
at = "packets"
[estimator]
name = "lda"
rows = 256
{measured}"""
        )
        command = [*PROMPT, sys.executable, "-m", "wirelag.cli", "agent", str(settings)]
        agent = self.network.start(f"{name}-host", command, self.folder / f"agent-{where}-{name}.txt")
        agent.wait_for_line("listening at eth0")
        if where == "kernel" and "outside the kernel" in agent.said():
            raise OSError(f"it does not measure in the kernel: {agent.said().strip()}")

    @contextmanager
    def recorded(self, folder: Path) -> Iterator[None]:
        """Capture at every host."""
        folder.mkdir()
        recorders = {name: self._record(name, folder) for name in self.names}
        yield
        for recorder in recorders.values():
            stop_recording(recorder)

    def _record(self, name: str, folder: Path) -> Process:
        command = f"tcpdump -i eth0 -n -s {SNAP_BYTES} -B 16384 -Z root --immediate-mode --time-stamp-precision=nano"
        words = [*PROMPT, *command.split(), "-w", str(folder / f"{name}.pcap"), *f"udp dst port {TRAFFIC_PORT}".split()]
        process = self.network.start(f"{name}-host", words, folder / f"{name}.txt")
        process.wait_for_line("listening on")
        return process

    def events(self, ended_ns: int) -> list[dict[str, Any]]:
        """What the collector found, when every segment has a result behind the end of the traffic, or after a while."""
        wanted = {segment(where, pair) for where in WHERE for pair in self.pairs}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]
            results = [one for one in lines if one["what"] == "result"]
            if wanted <= {one["segment"] for one in results if one["end_ns"] >= ended_ns - 2 * 10**9}:
                return results
            if time.monotonic() > deadline:
                return results
            time.sleep(0.2)


def segment(where: str, pair: Port) -> str:
    """The name of a pair's segment."""
    return f"{where}-{pair[0]}>{where}-{pair[1]}"


def placed(hosts: Hosts, port: Port, seed: int, seconds: float) -> dict[str, Errors]:
    """Send, with a queue at a port; compare what the collector says with captures."""
    routers, folder = hosts.routers, hosts.folder / f"run{seed}"
    traffic, routes = Traffic(seconds=seconds), Routes(routers.topology)
    began_ns = time.time_ns()
    with hosts.recorded(folder), routers.slow(*port, traffic.loads(routers.topology)[port] / BUSY):
        traffic.send(routers.network, {f"{name}-host": routers.address(name) for name in hosts.names}, seed)
        ended_ns = time.time_ns()
    events = hosts.events(ended_ns)
    found = {where: Errors() for where in WHERE}
    for pair in hosts.pairs:
        truth = join_captures(folder / f"{pair[0]}.pcap", folder / f"{pair[1]}.pcap", routers.address(pair[0]))
        for where, errors in found.items():
            mine = [one for one in events if one["segment"] == segment(where, pair)]
            for start_ns, end_ns, one in Done(Setting(), began_ns, ended_ns, mine, truth, 0).spans():
                used, sum_ns, _ = truth.during(start_ns, end_ns)
                if not used:
                    continue
                if one["mean_ns"] is None:
                    errors.missing += 1
                    continue
                off_ns = abs(one["mean_ns"] - sum_ns / used)
                errors.used.append(one["used"] / used)
                share = routes.shares(*pair).get(port, 0)
                if share:
                    (errors.queued if share == 1 else errors.split).append(off_ns * used / sum_ns)
                else:
                    errors.others.append(off_ns)
    return found


def figures(placements: int, seconds: float) -> dict[Port, dict[str, Errors]]:
    """Queues at random ports."""
    topology = read_topology(SIX)
    with TemporaryDirectory() as folder, Routers("across", topology) as routers:
        hosts = Hosts(routers, Path(folder))
        hosts.start()
        ports = random.Random(1).sample(sorted(Traffic().loads(topology)), placements)
        found = {port: placed(hosts, port, seed, seconds) for seed, port in enumerate(ports, 1)}
        for process in routers.network.processes:
            process.stop(signal.SIGTERM)
        return found


def show_figures(found: dict[Port, dict[str, Errors]], seconds: float) -> None:
    rows = []
    for port, both in found.items():
        for where, errors in both.items():
            kinds = (errors.queued, errors.split, errors.others)
            queued, split, others = (np.array(values or [np.nan]) for values in kinds)
            rows.append(
                (
                    f"{'>'.join(port)}, {where}",
                    str(len(errors.queued)),
                    f"{np.median(queued):.3%}",
                    f"{queued.max():.3%}",
                    f"{len(errors.split)}: {np.median(split):.1%}",
                    str(len(errors.others)),
                    f"{np.median(others) / 1e3:.2f}",
                    f"{others.max() / 1e3:.1f}",
                    f"{np.median(errors.used):.1%}",
                    str(errors.missing),
                )
            )
    through = ("intervals through the queue", "median error of the mean", "worst")
    header = (
        "queue at",
        *through,
        "by two paths",
        "others",
        "median, us",
        "worst, us",
        "packets used",
        "without a mean",
    )
    show(f"30 segments across six routers, {seconds:g} s each, cut at packets", header, rows)


if __name__ == "__main__":
    options = arguments(__doc__)
    if os.geteuid():
        print("the lab needs root: network namespaces", file=sys.stderr)
        sys.exit(2)
    seconds = SECONDS / 2 if options.quick else SECONDS
    show_figures(figures(QUICK if options.quick else PLACEMENTS, seconds), seconds)
