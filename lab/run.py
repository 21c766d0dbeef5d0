"""Run a scenario: a capture at the vantage point, and the client's log, on the capture's clock."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network
from pathlib import Path

import numpy as np
import polars as pl

from lab.clients import LOG, Task, read_log
from lab.network import CLIENT_ADDRESS, SERVICE_ADDRESS, Network
from lab.processes import PATIENCE_S
from lab.quota import cpu_quota
from lab.record import InKernel, Recorder
from lab.scenarios import Scenario
from lab.servers import UDP, Httpd
from lab.tunnels import Tunnel, WireGuard
from lab.wire import statistics
from tests.oracles.hashing import endpoint, mix
from wirelag.capture.files import Capture
from wirelag.estimators.pairs import Pairs
from wirelag.estimators.pirate import Method
from wirelag.packets.roles import Roles, Server
from wirelag.synopses.request_response import NOT_SINGLE

MAPPED = 0xFFFF << 32  # the lower half of an IPv4 address written as IPv6


@dataclass(frozen=True)
class Run:
    """The files of a scenario's run."""

    capture: Path  # client packets at the point
    truth: Path | None  # None: the client does not log, and nothing has both directions
    both: Path | None  # both directions at the client, if the scenario wants it
    epochs: Path | None = None  # measured in the kernel, at the point


def run(scenario: Scenario, seed: int, folder: Path, in_kernel: Method | None = None) -> Run:
    """Run it and keep capture.pcap, truth.parquet, both.pcap and the programs' output in the folder.

    With `in_kernel` this method of `pirate` also measures in the kernel, beside the capture: epochs.npy.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    result = Run(
        folder / "capture.pcap",
        folder / "truth.parquet" if scenario.client.logs or scenario.both else None,
        folder / "both.pcap" if scenario.both else None,
        folder / "epochs.npy" if in_kernel else None,
    )
    tunnels = [(WireGuard if scenario.wireguard else Tunnel)(number) for number in range(scenario.tunnels)]
    ways: list[Tunnel | None] = [*tunnels] or [None]
    tasks = [_task(scenario, seed, folder, way) for way in ways]
    delay_ns = scenario.wire.up.delay_us * 1000 if scenario.wire else 0
    with Network("run", wired=scenario.wire is not None) as network, contextlib.ExitStack() as limits:
        if not scenario.timestamps:
            network.run("client", "sysctl", "-qw", "net.ipv4.tcp_timestamps=0")
        wire = scenario.wire.start(network, folder, seed) if scenario.wire else None
        for tunnel in tunnels:
            tunnel.dig(network, folder)
        server = scenario.server.start(network, folder, seed, "0.0.0.0" if tunnels else SERVICE_ADDRESS)
        if isinstance(scenario.server, Httpd) and scenario.server.cpu_shares:
            limits.enter_context(cpu_quota(server.pid, scenario.server.cpu_shares))
        recorders: list[Recorder | InKernel] = []
        if result.both:
            recorders.append(Recorder(network, result.both, "client", both=True))
        if scenario.join_after_s:
            clients = [scenario.client.start(network, task) for task in tasks]
            _wait_for_packets(network, 4 * scenario.connections)  # a busy machine starts programs late
            time.sleep(scenario.join_after_s)
            recorders += _at_the_point(network, result, in_kernel)
        else:
            recorders += _at_the_point(network, result, in_kernel)
            clients = [scenario.client.start(network, task) for task in tasks]
        for client in clients:
            client.finish(2 * scenario.seconds + PATIENCE_S)
        time.sleep(0.02 + 2e-9 * delay_ns)  # the last packets may still be on the wire
        for recorder in recorders:
            recorder.stop()
        if wire:
            (folder / "wire.json").write_text(json.dumps(statistics(wire)))
    if result.truth:
        if scenario.client.logs:
            parts = [_truth(scenario, task, way, delay_ns) for task, way in zip(tasks, ways, strict=True)]
        else:
            assert result.both is not None
            parts = [_exchanges(result.both, scenario.server.port, delay_ns)]
        pl.concat(parts).sort("t_response_ns", maintain_order=True).write_parquet(result.truth)
    return result


def _wait_for_packets(network: Network, count: int) -> None:
    """Wait until the client has sent this many packets: its connections are open, and it has asked."""
    deadline = time.monotonic() + PATIENCE_S
    while (
        json.loads(network.run("client", "ip", "-s", "-j", "link", "show", "eth0"))[0]["stats64"]["tx"]["packets"]
        < count
    ):
        if time.monotonic() > deadline:
            raise OSError(f"the client does not send {count} packets")


def _at_the_point(network: Network, result: Run, in_kernel: Method | None) -> list[Recorder | InKernel]:
    """The recorders there; the one in the kernel starts first, so that it sees no less."""
    inside = [InKernel(network, result.epochs, in_kernel)] if in_kernel and result.epochs else []
    return [*inside, Recorder(network, result.capture)]


def flow_key(client_port: int, server_port: int, protocol: int) -> int:
    """The flow key of packets between the client and the service."""
    ends = ((CLIENT_ADDRESS, client_port), (SERVICE_ADDRESS, server_port))
    return mix(sum(endpoint(0, 0, MAPPED | int(IPv4Address(address)), port) for address, port in ends) + protocol)


def _task(scenario: Scenario, seed: int, folder: Path, tunnel: Tunnel | None) -> Task:
    """The task of the client, or of one of those that each have a tunnel."""
    address = SERVICE_ADDRESS
    if tunnel:
        address, seed, folder = tunnel.server_address, seed * 1000 + tunnel.number, folder / f"client{tunnel.number}"
        folder.mkdir(exist_ok=True)
    return Task(address, scenario.server.port, scenario.connections, scenario.seconds, seed, folder)


def _exchanges(both: Path, port: int, delay_ns: int) -> pl.DataFrame:
    """The same from the packets of both directions at the client: the exchanges that have a time of their own."""
    server = Roles((Server(ip_network(SERVICE_ADDRESS), port),))
    meter = Pairs(from_client=server.from_client).meter("tap")
    for batch in Capture([str(both)]):
        meter.observe(batch)
    rows = meter.finish().rows
    rows = rows[(rows["flags"] & NOT_SINGLE) == 0]
    return pl.DataFrame(
        {
            "flow_key": rows["key"],
            "client_port": (rows["ends"][:, 4] >> np.uint64(32)).astype(np.uint16),
            "t_request_ns": rows["request_ns"] + delay_ns,
            "t_response_ns": rows["last_ns"] + delay_ns,
            "round": np.arange(len(rows), dtype=np.uint32),
            "in_flight": np.ones(len(rows), np.uint16),
        }
    )


def _truth(scenario: Scenario, task: Task, tunnel: Tunnel | None, delay_ns: int) -> pl.DataFrame:
    """One row per answered request; times as the point would see them, so later by the wire's delay."""
    entries = read_log(task.folder / LOG)
    server_port, protocol = scenario.server.port, scenario.server.protocol
    ports = pl.Series(entries["port"])
    if tunnel:
        ports = pl.repeat(tunnel.client_port, len(entries), dtype=pl.UInt16, eager=True)
        server_port, protocol = tunnel.server_port, UDP
    keys = {port: flow_key(port, server_port, protocol) for port in ports.unique().to_list()}
    return pl.DataFrame(
        {
            "flow_key": ports.replace_strict(keys, return_dtype=pl.UInt64),
            "client": pl.repeat(CLIENT_ADDRESS, len(entries), eager=True),
            "client_port": ports,
            "server": pl.repeat(SERVICE_ADDRESS, len(entries), eager=True),
            "server_port": pl.repeat(server_port, len(entries), dtype=pl.UInt16, eager=True),
            "protocol": pl.repeat(protocol, len(entries), dtype=pl.UInt8, eager=True),
            "t_request_ns": entries["asked_ns"] + delay_ns,
            "t_response_ns": entries["answered_ns"] + delay_ns,
            "round": entries["round"],
            "in_flight": entries["in_flight"],
            "rtt_us": entries["rtt_us"],
        }
    )
