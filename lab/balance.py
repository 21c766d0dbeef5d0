"""A balancer and its servers: clients use a service, and `wirelag balance` at the point distributes their connections.

    client -- switch -- point (XDP), server1 .. server4

Servers reply to the client directly. They wait instead of computing, so that the machine is not what is measured; each
can be made slow and healthy again while they run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.clients import LOG, Load, Task, read_log
from lab.mounts import private_bpffs
from lab.network import CLIENT, FIRST_SERVER, POINT, SERVICE_ADDRESS, Network, mac_of
from lab.processes import Process, program
from lab.servers import Httpd
from wirelag.ebpf import bpf
from wirelag.ebpf.bpf import Program

STEERING = "XDP at"  # printed by the command when it handles packets
# XDP: drop what comes from 198.18.0.0/15, the sources of forge.c.
DROPS_FORGED = bytes.fromhex(
    "6112000000000000 6113040000000000 b700000002000000"  # data and its end; pass, unless:
    "bf24000000000000 0704000022000000 2d34040000000000"  # an IPv4 header is there
    "69251a0000000000 57050000fffe0000 55050100c6120000"  # and its source begins with 198.18 or 198.19
    "b700000001000000 9500000000000000"
)
EQUAL = {"policy": {"high": 100, "attempts": 1 << 20}}  # no backend is ever slow or silent


@dataclass(frozen=True)
class Site:
    """The running site; `site(...)` builds it."""

    network: Network
    folder: Path
    seed: int
    servers: Mapping[int, Process]  # by number, from 1
    pins: Path

    @property
    def config(self) -> Path:
        """The settings file of the command."""
        return self.folder / "lb.toml"

    def configure(self, numbers: Sequence[int], changes: Mapping[str, Any] | None = None) -> None:
        """Write the file with these servers; `changes` are settings, in tables."""
        service = {"address": SERVICE_ADDRESS, "ports": [Httpd.port]}
        tables = {"interface": "eth0", "pins": str(self.pins), "service": service, **(changes or {})}
        lines = [f"{name} = {json.dumps(value)}" for name, value in tables.items() if not isinstance(value, dict)]
        for table, settings in tables.items():
            if isinstance(settings, dict):
                lines += [f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in settings.items())]
        for number in numbers:
            address = f"10.5.0.{FIRST_SERVER + number - 1}"
            lines += ["[[backends]]", f'name = "server{number}"', f'address = "{address}"']
        self.config.write_text("\n".join(lines) + "\n")

    def steer(self, name: str = "balance", before: Sequence[str] = ()) -> Process:
        """Start the command, with the words `before` it; when this returns, packets are balanced."""
        command = [
            *before,
            sys.executable,
            "-m",
            "wirelag.cli",
            "balance",
            "--config",
            str(self.config),
            "--format",
            "jsonl",
        ]
        process = self.network.start("point", command, self.folder / f"{name}.txt")
        process.wait_for_line(STEERING)
        return process

    def within(self, name: str) -> Site:
        """The same site, for another client, whose log is in this folder."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return replace(self, folder=folder)

    def slow(self, number: int) -> None:
        """Make its service times five times as long, for all requests from now on."""
        os.kill(self.servers[number].pid, signal.SIGUSR1)

    def well(self, number: int) -> None:
        """Restore its service times."""
        os.kill(self.servers[number].pid, signal.SIGUSR2)

    def ask(self, connections: int, seconds: float, load: Load) -> Process:
        """Start the client."""
        return load.start(self.network, Task(SERVICE_ADDRESS, Httpd.port, connections, seconds, self.seed, self.folder))

    def forge(self, kind: str, rate: float, seconds: float, seed: int) -> Process:
        """Send forged packets of other clients to the service: `syns`, `acks`, or `pairs` of them.

        They enter at the balancer's port of the switch. `forgotten` ends them there when they have been balanced.
        """
        ends = [f"from={mac_of(CLIENT)}", f"to={mac_of(POINT)}", f"address={SERVICE_ADDRESS}", f"port={Httpd.port}"]
        how = [f"interface=port{POINT}", f"kind={kind}", f"rate={rate}", f"seconds={seconds}", f"seed={seed}"]
        output = self.folder / f"forged-{kind}-{seed}.txt"
        return self.network.start("switch", [program("forge"), *ends, *how], output)

    @contextlib.contextmanager
    def forgotten(self) -> Iterator[None]:
        """Drop balanced packets of forged sources at the switch, so that what is flooded is the balancer."""
        program = Program.load("forged", bpf.XDP, DROPS_FORGED, b"GPL\0", 0, b"", 37)
        with self.network.inside("switch"):
            link = program.attach_xdp(f"port{POINT}", "native")
        try:
            yield
        finally:
            link.close()
            program.close()

    def openings(self, number: int) -> Process:
        """Record the packets that open connections to a server, as the balancer's host sends them; see `opened`."""
        what = f"ether dst {mac_of(FIRST_SERVER + number - 1)} and tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn"
        how = ["-i", f"port{POINT}", "-Q", "in", "-n", "-tt", "-l", "--immediate-mode", "-Z", "root", what]
        process = self.network.start("switch", ["tcpdump", *how], self.folder / f"openings{number}.txt")
        process.wait_for_line("listening on")
        return process

    def asked(self) -> npt.NDArray[np.void]:
        """All requests that ended, including failed ones."""
        return read_log(self.folder / LOG)


@dataclass(frozen=True)
class Opening:
    """A packet that opens a connection, or repeats to."""

    time_s: float
    source: str  # address: a client, or the balancer's host, which checks servers


def opened(recorder: Process) -> list[Opening]:
    """What was recorded so far."""
    found = re.findall(r"^(\d+\.\d+) IP (\S+)\.\d+ > ", recorder.said(), re.MULTILINE)
    return [Opening(float(time), source) for time, source in found]


@contextlib.contextmanager
def site(
    name: str,
    folder: Path,
    seed: int,
    servers: int = 4,
    service: str = "exponential:10000",
    workers: int = 8,
    before: tuple[str, ...] = (),
) -> Iterator[Site]:
    """Build it with running servers; leave nothing behind. Pins are in a bpffs of this process.

    `before`: words before every program.
    """
    bpffs = private_bpffs()
    folder.mkdir(parents=True, exist_ok=True)
    with Network(name, servers=servers) as network:
        network.before = before
        pins = bpffs / network.prefix.rstrip("-")
        # Packets that the point sends back by XDP reach the switch only if its port collects packets (GRO).
        network.run("switch", "ethtool", "-K", f"port{POINT}", "gro", "on")
        network.run("client", "sysctl", "-qw", "net.ipv4.tcp_tw_reuse=1")
        network.run("point", "sysctl", "-qw", "net.ipv4.ip_forward=0")  # all packets that arrive have been balanced
        started = {}
        for number, host in enumerate(network.servers, 1):
            server = Httpd(service=service, order="worker", workers=workers, number=number)
            started[number] = server.start(network, folder, 100 * seed + number, address="0.0.0.0", host=host)
        try:
            yield Site(network, folder, seed, started, pins)
        finally:
            for process in network.processes:
                process.stop()
            shutil.rmtree(pins, ignore_errors=True)


def entries(process: Process) -> list[dict[str, Any]]:
    """The output of the command so far, one entry per interval."""
    lines = process.said().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
