"""The lab's clients. Ours log every request; wrk and redis-benchmark, which are not ours, do not."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from lab.network import Network
from lab.processes import ROOT, Process, program

LOG = "log.bin"
ENTRY = np.dtype(
    [
        *(("asked_ns", "<i8"), ("answered_ns", "<i8"), ("round", "<u4"), ("port", "<u2"), ("in_flight", "<u2")),
        *(("rtt_us", "<u4"), ("failed", "<u2"), ("server", "<u2")),
    ]
)


@dataclass(frozen=True)
class Task:
    """Where and for how long a client works."""

    address: str
    port: int
    connections: int
    seconds: float
    seed: int
    folder: Path


@dataclass(frozen=True)
class Load:
    """The lab's own client; load.c and lab.h explain patterns, formats and distributions."""

    pattern: str = "sliding"  # batch, pages, open, clock
    in_flight: int = 1
    format: str = "http"  # memcached, redis, udp
    response: str = "constant:500"  # bytes requested
    request: str = ""  # bytes; empty: as short as possible
    post: int = 0  # bytes of a body
    objects: str = "uniform:4:21"  # objects per page
    think: str = "constant:0"  # microseconds
    think_share: float = 0.0
    rate: float = 100.0  # requests per second of an open loop, per connection
    pace_us: int = 0
    each: int = 0  # requests of a connection before a new one replaces it
    lifetime: str = ""  # lifetime of a connection in microseconds; then a new one replaces it
    patience_us: int = 0  # after which a request has failed, and is logged so; 0: any failure ends the client
    ack: str = ""  # bytes of a datagram that acknowledges responses; empty: there is none
    ack_every: int = 1  # responses
    ack_delay_us: int = 0
    tcp_info: bool = False  # log the kernel's round-trip time with each response

    logs: ClassVar[bool] = True

    def start(self, network: Network, task: Task) -> Process:
        """Start it on the client."""
        arguments = [
            *(f"address={task.address}", f"port={task.port}", f"connections={task.connections}"),
            *(f"seconds={task.seconds}", f"seed={task.seed}", f"log={task.folder / LOG}"),
            *(f"pattern={self.pattern}", f"in-flight={self.in_flight}", f"format={self.format}"),
            *(f"response={self.response}", *([f"request={self.request}"] if self.request else [])),
            *(f"post={self.post}", f"objects={self.objects}", f"think-us={self.think}"),
            *(f"tcp-info={int(self.tcp_info)}", f"patience-us={self.patience_us}"),
            *([f"ack={self.ack}", f"ack-every={self.ack_every}"] if self.ack else []),
            f"ack-delay-us={self.ack_delay_us}",
            *([f"lifetime-us={self.lifetime}"] if self.lifetime else []),
            *(f"think-share={self.think_share}", f"rate={self.rate}", f"pace-us={self.pace_us}", f"each={self.each}"),
        ]
        return network.start("client", [program("load"), *arguments], task.folder / "client.txt")


@dataclass(frozen=True)
class Http3Load:
    """HTTP/3 by aioquic, with requests in flight on streams of one connection."""

    in_flight: int = 1
    response: int = 500

    logs: ClassVar[bool] = True

    def start(self, network: Network, task: Task) -> Process:
        """Start it on the client."""
        return _streams("http3_client.py", self, network, task)


@dataclass(frozen=True)
class Wrk:
    """HTTP, one request in flight."""

    response: int = 500

    logs: ClassVar[bool] = False

    def start(self, network: Network, task: Task) -> Process:
        """Start it on the client."""
        options = ["-t", "1", "-c", str(task.connections), "-d", f"{max(1, round(task.seconds))}s", "--latency"]
        command = ["wrk", *options, f"http://{task.address}:{task.port}/{self.response}"]
        return network.start("client", command, task.folder / "client.txt")


@dataclass(frozen=True)
class RedisBenchmark:
    """GET, with `in_flight` in a pipeline: that many requests in one packet, as a batch."""

    in_flight: int = 1
    rate: int = 5000  # roughly the achievable rate: the run is bounded by count, not by time

    logs: ClassVar[bool] = False

    def start(self, network: Network, task: Task) -> Process:
        """Start it on the client."""
        options = ["-c", str(task.connections), "-P", str(self.in_flight), "-n", str(int(self.rate * task.seconds))]
        command = ["redis-benchmark", "-h", task.address, "-p", str(task.port), "-t", "get", "-q", *options]
        return network.start("client", command, task.folder / "client.txt")


@dataclass(frozen=True)
class Https:
    """HTTP/1.1 by Python's ssl: in TLS 1.3 with tickets, or a request in several parts."""

    tls: bool = False
    each: int = 0  # requests of a connection before a new one, which resumes the session, replaces it
    parts: int = 1
    gap_us: int = 0  # between parts
    response: int = 500

    logs: ClassVar[bool] = True

    def start(self, network: Network, task: Task) -> Process:
        """Start it on the client."""
        script = [sys.executable, str(ROOT / "https_client.py"), task.address, str(task.port), str(task.connections)]
        settings = [f"tls={int(self.tls)}", f"each={self.each}", f"parts={self.parts}", f"gap-us={self.gap_us}"]
        arguments = [str(task.seconds), str(task.folder / LOG), *settings, f"response={self.response}"]
        return network.start("client", [*script, *arguments], task.folder / "client.txt")


@dataclass(frozen=True)
class H2load:
    """HTTP/2 by nghttp2's h2load, with requests in flight on streams of one connection."""

    in_flight: int = 1
    response: int = 500

    logs: ClassVar[bool] = True

    def start(self, network: Network, task: Task) -> Process:
        """Start it on the client."""
        return _streams("h2load_client.py", self, network, task)


@dataclass(frozen=True)
class GrpcCalls:
    """gRPC by grpcio, with calls in flight on streams of one connection."""

    in_flight: int = 1
    response: int = 500

    logs: ClassVar[bool] = True

    def start(self, network: Network, task: Task) -> Process:
        """Start it on the client."""
        return _streams("grpc_client.py", self, network, task)


@dataclass(frozen=True)
class Person:
    """Sessions of persons who type, by OpenSSH."""

    logs: ClassVar[bool] = False

    def start(self, network: Network, task: Task) -> Process:
        """Start it on the client."""
        script = [sys.executable, str(ROOT / "ssh_person.py"), task.address, str(task.port), str(task.connections)]
        arguments = [str(task.seconds), str(task.seed), str(task.folder / "ssh_key")]
        return network.start("client", [*script, *arguments], task.folder / "client.txt")


@dataclass(frozen=True)
class SmbClient:
    """Samba's smbclient: each connection lists the share and gets a file, again and again."""

    response: int = 500
    rate: int = 10  # of list and get, roughly as achievable: the run is bounded by count, not by time

    logs: ClassVar[bool] = False

    def start(self, network: Network, task: Task) -> Process:
        """Start it on the client."""
        commands = f"ls; get {self.response} /dev/null;" * max(1, round(self.rate * task.seconds))
        script = task.folder / "commands.txt"
        script.write_text(commands.replace(";", "\n"))
        one = f"smbclient -s /dev/null -N -p {task.port} //{task.address}/files <{script} >/dev/null 2>&1 &"
        return network.start("client", ["sh", "-c", one * task.connections + " wait"], task.folder / "client.txt")


Client = Load | Http3Load | Wrk | RedisBenchmark | Https | H2load | GrpcCalls | Person | SmbClient


def _streams(script: str, client: Http3Load | H2load | GrpcCalls, network: Network, task: Task) -> Process:
    """Start a script of the lab on the client that keeps requests in flight on streams."""
    command = [sys.executable, str(ROOT / script), task.address, str(task.port), str(task.connections)]
    arguments = [str(client.in_flight), str(client.response), str(task.seconds), str(task.folder / LOG)]
    return network.start("client", [*command, *arguments], task.folder / "client.txt")


def read_log(path: Path) -> npt.NDArray[np.void]:
    """The entries of a log, with times on CLOCK_REALTIME."""
    with path.open("rb") as file:
        offset_ns = int(np.fromfile(file, "<i8", 1)[0])
        entries = np.fromfile(file, ENTRY)
    entries["asked_ns"] += offset_ns
    entries["answered_ns"] += offset_ns
    return entries
