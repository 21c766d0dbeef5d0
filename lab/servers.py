"""The lab's servers: each starts on a host and is ready when `start` returns.

Sizes are part of a request: the path /500, the key v500. Nginx, memcached and redis get these beforehand.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lab.network import SERVICE_ADDRESS, Network
from lab.processes import PATIENCE_S, ROOT, Process, program

TCP, UDP = 6, 17
BEHIND, BEHIND_PORT = "127.0.0.1", 8080  # the server behind a gateway


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
    cpu_shares: tuple[float, ...] = ()  # of one core, each for a second, again and again; empty: unlimited
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
        return _nginx(
            network, folder, self.port, f"server {{ listen {address}:{self.port} backlog=4096; root {files}; }}"
        )


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


@dataclass(frozen=True)
class Gateway:
    """Nginx before the lab's HTTP server on the same host: HTTP/2 without TLS, or HTTP/1.1 in TLS 1.3 with tickets."""

    service: str = "exponential:10000"
    tls: bool = False

    protocol: ClassVar[int] = TCP

    @property
    def port(self) -> int:
        """The usual one."""
        return 443 if self.tls else 80

    def start(self, network: Network, folder: Path, seed: int, address: str = SERVICE_ADDRESS) -> Process:
        """Start both on the first server, with their own certificate."""
        behind = [f"address={BEHIND}", f"port={BEHIND_PORT}", f"seed={seed}", f"service-us={self.service}"]
        network.start("server1", [program("httpd"), *behind], folder / "behind.txt").wait_for_port(BEHIND_PORT)
        listens = f"listen {address}:{self.port} backlog=4096 {'ssl' if self.tls else 'http2'};"
        if self.tls:
            certificate, key = _certificate(folder)
            listens += f"ssl_certificate {certificate}; ssl_certificate_key {key}; ssl_protocols TLSv1.3;"
        passes = 'proxy_http_version 1.1; proxy_set_header Connection ""; proxy_pass http://behind;'
        return _nginx(
            network,
            folder,
            self.port,
            f"upstream behind {{ server {BEHIND}:{BEHIND_PORT}; keepalive 256; }}"
            f"server {{ {listens} location / {{ {passes} }} }}",
        )


@dataclass(frozen=True)
class Grpc:
    """A gRPC server, by grpcio."""

    service: str = "exponential:20000"

    port: ClassVar[int] = 50051
    protocol: ClassVar[int] = TCP

    def start(self, network: Network, folder: Path, seed: int, address: str = SERVICE_ADDRESS) -> Process:
        """Start it on the first server."""
        script = [sys.executable, str(ROOT / "grpc_server.py"), address, str(self.port), self.service, str(seed)]
        return _started(network, script, folder, self.port)


@dataclass(frozen=True)
class Sshd:
    """OpenSSH, with a shell for whoever has the key `ssh_key` in the folder."""

    port: ClassVar[int] = 22
    protocol: ClassVar[int] = TCP

    def start(self, network: Network, folder: Path, seed: int, address: str = SERVICE_ADDRESS) -> Process:
        """Start it on the first server, with new keys."""
        for name in ("ssh_host_key", "ssh_key"):
            (folder / name).unlink(missing_ok=True)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        settings = folder / "sshd_config"
        settings.write_text(f"""
            ListenAddress {address}:{self.port}
            HostKey {folder}/ssh_host_key
            AuthorizedKeysFile {folder}/ssh_key.pub
            PidFile none
            StrictModes no
            UsePAM no
            UseDNS no
            PrintLastLog no
            PermitRootLogin prohibit-password
            MaxStartups 100
            ForceCommand echo ready; exec /bin/sh -i
        """)
        Path("/run/sshd").mkdir(exist_ok=True)  # which it demands for its separation of privileges
        sshd = shutil.which("sshd", path="/usr/sbin") or "sshd"
        return _started(network, [sshd, "-D", "-e", "-f", str(settings)], folder, self.port)


@dataclass(frozen=True)
class Samba:
    """SMB 3, with files of these sizes for everyone."""

    sizes: Sequence[int] = (500,)

    port: ClassVar[int] = 445
    protocol: ClassVar[int] = TCP

    def start(self, network: Network, folder: Path, seed: int, address: str = SERVICE_ADDRESS) -> Process:
        """Start it on the first server; all its files are in the folder."""
        files = folder / "files"
        files.mkdir(exist_ok=True)
        for size in self.sizes:
            (files / str(size)).write_bytes(b"x" * size)
        kinds = ("private dir", "lock directory", "state directory", "cache directory", "pid directory", "ncalrpc dir")
        places = "\n".join(f"{kind} = {folder}/{kind.replace(' ', '-')}" for kind in kinds)
        for kind in kinds:
            (folder / kind.replace(" ", "-")).mkdir(exist_ok=True)
        settings = folder / "smb.conf"
        settings.write_text(f"""[global]
{places}
smb ports = {self.port}
interfaces = {address}
bind interfaces only = yes
disable netbios = yes
map to guest = bad user
guest account = root
load printers = no
disable spoolss = yes
[files]
path = {files}
guest ok = yes
""")
        command = ["smbd", "-F", "--debug-stdout", "-s", str(settings)]
        return _started(network, command, folder, self.port)


Server = Httpd | Udpd | Http3 | Nginx | Memcached | Redis | Gateway | Grpc | Sshd | Samba


def _nginx(network: Network, folder: Path, port: int, servers: str) -> Process:
    """Start nginx on the first server; its settings and temporary files are in the folder."""
    settings = folder / "nginx.conf"
    places = "".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    settings.write_text(f"""
        daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr; user root;
        events {{ worker_connections 4096; }}
        http {{
            access_log off; sendfile on; tcp_nodelay on; keepalive_timeout 600; keepalive_requests 1000000000;
            {places}
            {servers}
        }}
    """)
    return _started(network, ["nginx", "-e", "stderr", "-c", str(settings)], folder, port)


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate, and its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=lab", "-days", "2", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    return certificate, key


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
