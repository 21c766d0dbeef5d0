"""Tunnels between client and server: at the point, all connections in a tunnel are one flow of datagrams."""

from __future__ import annotations

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
