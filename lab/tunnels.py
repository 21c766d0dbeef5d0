"""Tunnels between client and server: at the point, all connections in a tunnel are one flow of datagrams."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lab.network import SERVICE_ADDRESS, Network
from lab.processes import program


@dataclass(frozen=True)
class Tunnel:
    """One tunnel, by number."""

    number: int

    @property
    def client_port(self) -> int:
        """Client port of its datagrams."""
        return 7000 + self.number

    @property
    def server_port(self) -> int:
        """Server port of its datagrams."""
        return 8000 + self.number

    @property
    def server_address(self) -> str:
        """The server's address inside this tunnel."""
        return f"10.9.{self.number}.2"

    def dig(self, network: Network, folder: Path) -> None:
        """Create both ends. The server's end learns the client's address from received packets."""
        there = [f"to={SERVICE_ADDRESS}", f"to-port={self.server_port}"]
        self._end(network, folder, "server1", self.server_address, self.server_port, [f"address={SERVICE_ADDRESS}"])
        self._end(network, folder, "client", f"10.9.{self.number}.1", self.client_port, there)

    def _end(self, network: Network, folder: Path, host: str, address: str, port: int, arguments: list[str]) -> None:
        device = f"tun{self.number}"
        command = [program("tunnel"), f"device={device}", f"port={port}", *arguments]
        process = network.start(host, command, folder / f"{device}-{host}.txt")
        process.wait_for_port(port, udp=True)
        network.run(host, *f"ip addr add {address}/24 dev {device}".split())
        network.run(host, *f"ip link set {device} mtu 1400 up".split())


@dataclass(frozen=True)
class WireGuard(Tunnel):
    """One tunnel by wireguard-go, which needs no module of the kernel."""

    def dig(self, network: Network, folder: Path) -> None:
        """Create both ends. Only the client's end knows where the other is."""
        ends = [
            ("server1", "client", self.server_address, self.server_port),
            ("client", "server1", f"10.9.{self.number}.1", self.client_port),
        ]
        keys = {host: network.run(host, "wg", "genkey") for host, *_ in ends}
        for host, peer, address, port in ends:
            device = f"wl{self.number}{host[0]}{os.getpid()}"  # names of devices are also those of files in /run
            process = network.start(host, ["wireguard-go", "-f", device], folder / f"{device}.txt")
            process.wait_for_file(Path("/run/wireguard") / f"{device}.sock")
            (folder / f"{device}.key").write_text(keys[host])
            (folder / f"{device}.peer").write_text(keys[peer])
            public = network.run(host, "sh", "-c", f"wg pubkey < {folder / f'{device}.peer'}").strip()
            where = ["endpoint", f"{SERVICE_ADDRESS}:{self.server_port}"] if host == "client" else []
            own = ["listen-port", str(port), "private-key", str(folder / f"{device}.key")]
            network.run(host, "wg", "set", device, *own, "peer", public, "allowed-ips", "10.9.0.0/16", *where)
            network.run(host, *f"ip addr add {address}/24 dev {device}".split())
            network.run(host, *f"ip link set {device} mtu 1400 up".split())
