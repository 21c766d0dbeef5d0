"""A balancer whose servers are behind routers: they are reached through tunnels, or in a VLAN.

    client -- edge -- core -- server1 .. server3
               |
             [trunk]
               |
             point (XDP)

Every host has an address of IPv4 and one of IPv6. The services' addresses are on the loopback of the servers, which
unpack tunnels by a program (bpf/unpacking.bpf.c), since not every kernel has devices for it, and reply to the client by
core and edge. With a trunk all frames between edge and point carry a tag, and those without one are dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.balance import STEERING
from lab.clients import LOG, Load, Task, read_log
from lab.mounts import private_bpffs
from lab.network import SERVING, Network
from lab.processes import Process
from lab.servers import Httpd
from wirelag.ebpf.dataplane import Dataplane

LINKS = {"client": 1, "point": 2, "core": 3}  # of edge; servers are at 11, 12, ... of core
SERVICES = ("10.6.0.100", "10.6.0.101", "fd06::100")
FORWARDS = ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
SIX = ("net.ipv6.conf.all.disable_ipv6=0", "net.ipv6.conf.default.disable_ipv6=0")
UNDOUBTED = ("net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0")  # addresses are there at once


def address(number: int, version: int = 4, router: bool = False) -> str:
    """The address of the host at a link, or of its router."""
    last = 254 if router else 1
    return f"10.6.{number}.{last}" if version == 4 else f"fd06:0:0:{number}::{last}"


def server(number: int, version: int = 4) -> str:
    """The address of a server, from 1."""
    return address(10 + number, version)


def mac(number: int, router: bool = False) -> str:
    """The MAC address of the host at a link, or of its router."""
    return f"02:06:00:00:{int(router):02x}:{number:02x}"


@dataclass(frozen=True)
class Beyond:
    """The running network; `beyond(...)` builds it."""

    network: Network
    folder: Path
    seed: int
    servers: Mapping[int, Process]
    pins: Path

    @property
    def config(self) -> Path:
        """The settings file of the command."""
        return self.folder / "lb.toml"

    def configure(self, services: Mapping[str, Mapping[str, Any]], **common: Any) -> None:
        """Write the file: settings of each service by name, and common ones."""
        lines = [
            f"{name} = {_toml(value)}"
            for name, value in {"interface": "eth0", "pins": str(self.pins), **common}.items()
        ]
        for name, settings in services.items():
            lines += [
                "[[services]]",
                f"name = {_toml(name)}",
                *(f"{key} = {_toml(one)}" for key, one in settings.items()),
            ]
        self.config.write_text("\n".join(lines) + "\n")

    def steer(self) -> Process:
        """Start the command; when this returns, packets are balanced."""
        words = [sys.executable, "-m", "wirelag.cli", "balance", "--config", str(self.config), "--format", "jsonl"]
        process = self.network.start("point", words, self.folder / "balance.txt")
        process.wait_for_line(STEERING)
        return process

    def ask(self, service: str, connections: int, seconds: float, load: Load) -> Process:
        """Start a client of the service at this address."""
        folder = self.folder / service.replace(":", "-")
        folder.mkdir()
        return load.start(self.network, Task(service, Httpd.port, connections, seconds, self.seed, folder))

    def asked(self, service: str) -> npt.NDArray[np.void]:
        """All requests of a service's client that ended."""
        return read_log(self.folder / service.replace(":", "-") / LOG)

    def slow(self, number: int) -> None:
        """Make a server's service times five times as long."""
        os.kill(self.servers[number].pid, signal.SIGUSR1)


@contextlib.contextmanager
def beyond(name: str, folder: Path, seed: int, servers: int = 2, trunk: bool = False) -> Iterator[Beyond]:
    """Build it with running servers; leave nothing behind. Pins are in a bpffs of this process."""
    bpffs = private_bpffs()
    folder.mkdir(parents=True, exist_ok=True)
    network = Network(name)
    network.clear()
    with contextlib.ExitStack() as stack:
        stack.callback(network.down)
        pins = bpffs / network.prefix.rstrip("-")
        stack.callback(shutil.rmtree, pins, ignore_errors=True)
        _build(network, servers, trunk)
        _programs(network, servers, trunk, stack)
        started = {}
        for number in range(1, servers + 1):
            one = Httpd(service="exponential:5000", order="worker", workers=16, number=number)
            started[number] = one.start(network, folder, 100 * seed + number, address="::", host=f"server{number}")
        yield Beyond(network, folder, seed, started, pins)
        for process in network.processes:
            process.stop()


def _build(network: Network, servers: int, trunk: bool) -> None:
    """Hosts, cables, addresses and routes."""
    for host in ("edge", "core"):
        network.add(host, *SIX, *UNDOUBTED, *FORWARDS)
    for host in ("client", "point", *(f"server{i}" for i in range(1, servers + 1))):
        network.add(host, *SIX, *UNDOUBTED, *(SERVING if host.startswith("server") else ()))
    if trunk:
        network.add("trunk")
    network.run("client", "sysctl", "-qw", "net.ipv4.tcp_tw_reuse=1")
    network.link("edge", "to1", "client", "eth0", mac(1))
    if trunk:
        network.link("edge", "to2", "trunk", "edge", mac(99))
        network.link("trunk", "point", "point", "eth0", mac(2))
    else:
        network.link("edge", "to2", "point", "eth0", mac(2))
    # What the point sends by XDP arrives only where packets are collected (GRO).
    network.run("trunk" if trunk else "edge", "ethtool", "-K", "point" if trunk else "to2", "gro", "on")
    network.link("edge", "to3", "core", "to3", mac(3))
    for number in range(1, servers + 1):
        network.link("core", f"to{10 + number}", f"server{number}", "eth0", mac(10 + number))
    ends = [
        ("edge", 1, "client"),
        ("edge", 2, "point"),
        *(("core", 10 + i, f"server{i}") for i in range(1, servers + 1)),
    ]
    for router, number, host in ends:
        network.ip(router, f"link set to{number} address {mac(number, router=True)}")
        _addresses(network, router, f"to{number}", number, router=True)
        _addresses(network, host, "eth0", number)
        for version in (4, 6):
            network.ip(host, f"-{version} route add default via {address(number, version, router=True)}")
            there = f"{address(number, version)} lladdr {mac(number)} dev to{number} nud permanent"
            network.ip(router, f"neigh replace {there}")
    _addresses(network, "edge", "to3", 3, router=True)
    _addresses(network, "core", "to3", 3)
    for version in (4, 6):
        network.ip("core", f"-{version} route add default via {address(3, version, router=True)}")
        for number in range(1, servers + 1):
            network.ip("edge", f"-{version} route add {server(number, version)} via {address(3, version)}")
    for service in SERVICES:
        network.ip("edge", f"route add {service} via {address(2, 6 if ':' in service else 4)}")
        for number in range(1, servers + 1):
            network.ip(f"server{number}", f"addr add {service}/{128 if ':' in service else 32} dev lo")


def _addresses(network: Network, host: str, interface: str, number: int, router: bool = False) -> None:
    network.ip(host, f"addr add {address(number, 4, router)}/24 dev {interface}")
    network.ip(host, f"addr add {address(number, 6, router)}/64 dev {interface} nodad")


def _programs(network: Network, servers: int, trunk: bool, stack: contextlib.ExitStack) -> None:
    """Let servers unpack, and the trunk set and remove tags."""
    for number in range(1, servers + 1):
        plane = stack.enter_context(Dataplane("unpacking"))
        with network.inside(f"server{number}"):
            plane.links.append(plane.programs["wl_unpack"].attach_xdp("eth0", "generic"))
    if not trunk:
        return
    for name, here, there in (("wl_tag", "edge", "point"), ("wl_untag", "point", "edge")):
        index = _index(network, there)
        plane = stack.enter_context(Dataplane("unpacking", constants={"interface": index}))
        with network.inside("trunk"):
            plane.links.append(plane.programs[name].attach_xdp(here, "generic"))


def _index(network: Network, interface: str) -> int:
    return int(json.loads(network.run("trunk", "ip", "-j", "link", "show", interface))[0]["ifindex"])


def _toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
