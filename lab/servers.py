"""The lab's servers: each starts on a host and is ready when `start` returns.

Sizes are part of a request: the path /500, the key v500. Nginx, memcached and redis get these beforehand.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lab.network import SERVICE_ADDRESS, Network
from lab.processes import PATIENCE_S, ROOT, Process, program

TCP, UDP = 6, 17


@dataclass(frozen=True)
class Httpd:
    """The lab's own HTTP/1.1 server; distributions are as in lab.h, service times in microseconds."""

    service: str = "constant:2000"
    order: str = "parallel"  # serial: one request of a connection at a time; worker: one of all
    size: str = ""  # size of responses, whatever the client requests
    pieces: int = 1  # a response is sent in this many,
    gap_us: int = 0  # this far apart
    pace_mbit: int = 0
    burn: bool = False  # service time is computing time
    cpu_share: float = 0.0  # share of one core; 0: unlimited
    workers: int = 1  # in the order `worker`
    slow: float = 5.0  # SIGUSR1 multiplies service times by this, SIGUSR2 restores them
    number: int = 0  # in responses, to identify the server; 0: none

    port: ClassVar[int] = 80
    protocol: ClassVar[int] = TCP

    def start(
        self, network: Network, folder: Path, seed: int, address: str = SERVICE_ADDRESS, host: str = "server1"
    ) -> Process:
        """Start it on this server."""
        arguments = [
            *(f"address={address}", f"port={self.port}", f"seed={seed}", f"service-us={self.service}"),
            *(f"order={self.order}", f"pieces={self.pieces}", f"gap-us={self.gap_us}"),
            *(f"pace-mbit={self.pace_mbit}", f"burn={int(self.burn)}"),
            *(f"workers={self.workers}", f"slow={self.slow}", f"number={self.number}"),
            *([f"size={self.size}"] if self.size else []),
        ]
        return _started(network, [program("httpd"), *arguments], folder, self.port, host=host)


@dataclass(frozen=True)
class Udpd:
    """Requests and responses in datagrams."""

    service: str = "constant:2000"
    order: str = "parallel"

    port: ClassVar[int] = 9000
    protocol: ClassVar[int] = UDP

    def start(self, network: Network, folder: Path, seed: int, address: str = SERVICE_ADDRESS) -> Process:
        """Start it on the first server."""
        arguments = [f"address={address}", f"port={self.port}", f"service-us={self.service}", f"order={self.order}"]
        return _started(network, [program("udpd"), *arguments, f"seed={seed}"], folder, self.port, udp=True)


@dataclass(frozen=True)
class Http3:
    """HTTP/3 by aioquic."""

    service: str = "constant:20000"

    port: ClassVar[int] = 4433
    protocol: ClassVar[int] = UDP

    def start(self, network: Network, folder: Path, seed: int, address: str = SERVICE_ADDRESS) -> Process:
        """Start it on the first server, with its own certificate."""
        script = [sys.executable, str(ROOT / "http3_server.py"), address, str(self.port), self.service, str(seed)]
        return _started(network, [*script, str(folder)], folder, self.port, udp=True)


@dataclass(frozen=True)
class Nginx:
    """Static files."""

    sizes: Sequence[int] = (500,)

    port: ClassVar[int] = 80
    protocol: ClassVar[int] = TCP

    def start(self, network: Network, folder: Path, seed: int, address: str = SERVICE_ADDRESS) -> Process:
        """Start it on the first server; files and settings are in the folder."""
        files = folder / "files"
        files.mkdir(exist_ok=True)
        for size in self.sizes:
            (files / str(size)).write_bytes(b"x" * size)
        settings = folder / "nginx.conf"
        places = "".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        settings.write_text(f"""
            daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr; user root;
            events {{ worker_connections 4096; }}
            http {{
                access_log off; sendfile on; tcp_nodelay on; keepalive_timeout 600; keepalive_requests 1000000000;
                {places}
                server {{ listen {address}:{self.port} backlog=4096; root {files}; }}
            }}
        """)
        return _started(network, ["nginx", "-e", "stderr", "-c", str(settings)], folder, self.port)


@dataclass(frozen=True)
class Memcached:
    """Values v500 of 500 bytes, and so on."""

    sizes: Sequence[int] = (500,)

    port: ClassVar[int] = 11211
    protocol: ClassVar[int] = TCP

    def start(self, network: Network, folder: Path, seed: int, address: str = SERVICE_ADDRESS) -> Process:
        """Start it on the first server, with two threads."""
        command = ["memcached", "-u", "root", "-l", address, "-p", str(self.port), "-U", "0", "-t", "2", "-c", "4096"]
        process = _started(network, command, folder, self.port)
        stores = [f"set v{size} 0 0 {size}\r\n{'x' * size}\r\n" for size in self.sizes]
        _fill(network, address, self.port, stores, "STORED\r\n")
        return process


@dataclass(frozen=True)
class Redis:
    """Values v500 of 500 bytes, and so on; nothing is written to disk."""

    sizes: Sequence[int] = (500,)

    port: ClassVar[int] = 6379
    protocol: ClassVar[int] = TCP

    def start(self, network: Network, folder: Path, seed: int, address: str = SERVICE_ADDRESS) -> Process:
        """Start it on the first server."""
        options = ["--save", "", "--appendonly", "no", "--protected-mode", "no", "--dir", str(folder)]
        command = ["redis-server", "--bind", address, "--port", str(self.port), *options]
        process = _started(network, command, folder, self.port)
        _fill(network, address, self.port, [f"SET v{size} {'x' * size}\r\n" for size in self.sizes], "+OK\r\n")
        return process


Server = Httpd | Udpd | Http3 | Nginx | Memcached | Redis


def _started(
    network: Network, command: list[str], folder: Path, port: int, udp: bool = False, host: str = "server1"
) -> Process:
    process = network.start(host, command, folder / ("server.txt" if host == "server1" else f"{host}.txt"))
    process.wait_for_port(port, udp)
    return process


def _fill(network: Network, address: str, port: int, stores: Sequence[str], answer: str) -> None:
    """Send each of the stores from the server itself, and check the reply."""
    with (
        network.inside("server1"),
        socket.create_connection((address, port), PATIENCE_S) as connection,
        connection.makefile("rb") as answers,
    ):
        for store in stores:
            connection.sendall(store.encode())
            got = answers.readline().decode()
            if got != answer:
                raise OSError(f"port {port} does not store: {got.strip()}")
