"""A fleet on one machine: three brokers, a database, three collectors behind a load balancer, hosts with agents.

    client (agent) --[wire]-- switch -- server1 (agent)
                                |
        balancer (nginx), collector1-3, broker1-3 (NATS), database (PostgreSQL)

Each is a host of its own, in a network namespace, so that any two of them can be cut off from each other. The page is
on this machine's loopback, by way of the balancer. When it ends no host, file or process is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from lab.clients import Task
from lab.network import Network
from lab.processes import PATIENCE_S, Process
from lab.servers import Httpd
from lab.system import CONNECTIONS, LOAD, ROUND_S, SEGMENTS, SERVER_ADDRESS, TOLD_S, WIRE, WIRELAG, line_of

COUNT = 3  # of brokers, and of collectors
HOSTS = {
    "balancer": 2,
    "database": 20,
    **{f"broker{i + 1}": 21 + i for i in range(COUNT)},
    **{f"collector{i + 1}": 31 + i for i in range(COUNT)},
    "agents": 40,  # whoever else sends
}
PORT, BROKER_PORT, CLUSTER_PORT, DATABASE_PORT = 8321, 4222, 6222, 5432
NEEDED = ("nats-server", "nginx", "setpriv", "ip", "ethtool", "sysctl", "bridge", "nsenter")


def address_of(host: str) -> str:
    """The address of a host."""
    return f"10.5.0.{HOSTS[host]}"


def postgres_programs() -> Path | None:
    """The folder of PostgreSQL's programs: Debian's is not on PATH."""
    found = [path for path in sorted(Path("/usr/lib/postgresql").glob("*/bin")) if (path / "initdb").exists()]
    return found[-1] if found else None


def missing() -> str | None:
    """What this machine lacks, in words."""
    lacking = [name for name in NEEDED if shutil.which(name) is None]
    if postgres_programs() is None:
        lacking.append("postgresql")
    return f"needs {', '.join(lacking)}: apt-get install nats-server nginx-light postgresql" if lacking else None


class Fleet(Network):
    """`with Fleet(name, folder) as fleet:` builds the hosts; `start_all` starts what runs on them."""

    def __init__(self, name: str, folder: Path, lease: str = "1500ms") -> None:
        super().__init__(name, wired=True)
        self.files, self._lease = folder, lease
        self.token = secrets.token_urlsafe(16)
        self.running: dict[str, Process] = {}  # by host
        folder.chmod(0o711)  # the database runs as another user
        (folder / "token").write_text(self.token)
        (folder / "share.toml").write_text(f'[share]\nlease = "{lease}"\n')

    def __enter__(self) -> Self:
        """Build it."""
        self.up()
        return self

    def _build(self) -> None:
        super()._build()
        for host, number in HOSTS.items():
            if host != "balancer":  # that is the lab's point
                self.add(host)
                self._connect(host, number)
        self.run("point", "sysctl", "-qw", "net.ipv4.ip_forward=0")
        for host in HOSTS:
            self.ip(self._of(host), "link add nowhere type bridge")  # without ports: what is sent there is gone
            self.ip(self._of(host), "link set nowhere arp off up")

    @staticmethod
    def _of(host: str) -> str:
        return "point" if host == "balancer" else host  # the lab's second host

    @property
    def url(self) -> str:
        """Where agents send to: the balancer."""
        return f"http://{address_of('balancer')}:{PORT}"

    @property
    def brokers(self) -> str:
        """The addresses of all brokers."""
        return ",".join(f"nats://{address_of(f'broker{i + 1}')}:{BROKER_PORT}" for i in range(COUNT))

    @property
    def store(self) -> str:
        """The database."""
        return f"postgresql://wirelag@{address_of('database')}:{DATABASE_PORT}/postgres"

    # ---- what runs ----

    def start_all(self) -> None:
        """Start everything, and wait until it works."""
        self._make_database()
        self.begin("database")
        for number in range(COUNT):
            self.begin(f"broker{number + 1}")  # collectors wait until they have agreed on a leader
        for number in range(COUNT):
            self.begin(f"collector{number + 1}")
        self.begin("balancer")

    def begin(self, host: str) -> None:
        """Start what runs on a host, again if it has ended."""
        kind = host.rstrip("0123456789")
        command, ready = {
            "database": self._database,
            "broker": self._broker,
            "collector": self._collector,
            "balancer": self._balancer,
        }[kind](host)
        log = self.files / f"{host}-{time.monotonic_ns()}.txt"
        process = Process(self.command(self._of(host), command), log)
        self.processes.append(process)
        self.running[host] = process
        if ready:
            process.wait_for_line(ready)

    def end(self, host: str, number: int = signal.SIGKILL) -> None:
        """End what runs on a host."""
        process = self.running.pop(host)
        process.stop(number)
        self.processes.remove(process)

    def _make_database(self) -> None:
        here, folder = postgres_programs(), self.files / "database"
        assert here is not None
        folder.mkdir()
        shutil.chown(folder, "nobody", "nogroup")
        words = ["-U", "wirelag", "-A", "trust", "-E", "UTF8", "--no-sync"]
        make = [str(here / "initdb"), "-D", str(folder / "data"), *words]
        subprocess.run(make, check=True, capture_output=True, cwd="/", user="nobody", group="nogroup")
        with open(folder / "data" / "pg_hba.conf", "a") as file:
            file.write("host all all 10.5.0.0/24 trust\n")

    def _database(self, host: str) -> tuple[list[str], str]:
        here, folder = postgres_programs(), self.files / "database"
        options = {
            "listen_addresses": address_of(host),
            "port": DATABASE_PORT,
            "unix_socket_directories": folder,
            "shared_buffers": "32MB",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        who = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        return [*who, f"{here}/postgres", "-D", str(folder / "data"), *words], "ready to accept connections"

    def _broker(self, host: str) -> tuple[list[str], str]:
        others = [f"broker{i + 1}" for i in range(COUNT) if host != f"broker{i + 1}"]
        routes = ", ".join(f'"nats://{address_of(other)}:{CLUSTER_PORT}"' for other in others)
        at, settings = address_of(host), self.files / f"{host}.conf"
        settings.write_text(
            f'server_name: {host}\nlisten: "{at}:{BROKER_PORT}"\n'
            f'cluster {{ name: fleet, listen: "{at}:{CLUSTER_PORT}", routes: [{routes}] }}\n'
            f'jetstream {{ store_dir: "{self.files}/{host}", max_file_store: 100GB }}\n'
        )
        return ["nats-server", "-c", str(settings)], "Server is ready"

    def _collector(self, host: str) -> tuple[list[str], str]:
        at = ["--listen", f"{address_of(host)}:{PORT}", "--token-file", str(self.files / "token")]
        shares = ["--store", self.store, "--nats", self.brokers, "--nats-replicas", str(COUNT), "--insecure"]
        return [*WIRELAG, "collect", str(self.files / "share.toml"), *at, *shares], "collecting at"

    def _balancer(self, host: str) -> tuple[list[str], str]:
        settings = self.files / "nginx.conf"
        servers = " ".join(
            f"server {address_of(f'collector{i + 1}')}:{PORT} max_fails=1 fail_timeout=2s;" for i in range(COUNT)
        )
        settings.write_text(
            f"daemon off; pid {self.files}/nginx.pid; error_log stderr; worker_processes 1;\n"
            f"events {{ worker_connections 1024; }}\n"
            f"http {{ access_log off; client_max_body_size 32m; client_body_temp_path {self.files}/body;\n"
            f"proxy_temp_path {self.files}/proxy; fastcgi_temp_path {self.files}/f; uwsgi_temp_path {self.files}/u;\n"
            f"scgi_temp_path {self.files}/s;\n"
            f"upstream collectors {{ {servers} keepalive 32; }}\n"
            f"server {{ listen {address_of(host)}:{PORT}; location / {{ proxy_pass http://collectors;\n"
            f'proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;\n'
            f"proxy_buffering off; proxy_connect_timeout 2s; proxy_read_timeout 60s; }} }} }}\n"
        )
        return ["nginx", "-c", str(settings), "-e", "stderr"], ""

    # ---- faults ----

    @contextlib.contextmanager
    def cut(self, one: str, other: str) -> Iterator[None]:
        """Let no packet pass between two hosts: neither is told."""
        for here, there in ((one, other), (other, one)):
            self.ip(self._of(here), f"route add {address_of(there)}/32 dev nowhere")
        try:
            yield
        finally:
            for here, there in ((one, other), (other, one)):
                self.ip(self._of(here), f"route del {address_of(there)}/32 dev nowhere")

    def ask(self, path: str, host: str = "balancer") -> Any:
        """The response of the API."""
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"http://{address_of(host)}:{PORT}{path}", headers=headers)
        with self.inside("agents"), urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def wait_until_shared(self) -> None:
        """Wait until every partition has an owner."""
        deadline = time.monotonic() + PATIENCE_S
        hosts = [f"collector{i + 1}" for i in range(COUNT)]
        while True:
            with contextlib.suppress(OSError):
                if all(self.ask("/api/v1/status", host)["counted"].get("partitions taken over") for host in hosts):
                    return
            if time.monotonic() > deadline:
                raise OSError(f"the collectors do not share the work; their logs are in {self.files}")
            time.sleep(0.1)


def _agent(fleet: Fleet, point: str, host: str) -> None:
    """Start the agent of a point."""
    segments = "".join(
        f'[[segments]]\nname = "{name}"\ndirection = "{source}>{target}"\n'
        for name, (source, target) in SEGMENTS.items()
    )
    settings = fleet.files / f"{point}.toml"
    settings.write_text(f"""point = "{point}"
interface = "eth0"
filter = "tcp port 80"
[collector]
url = "{fleet.url}"
token_file = "{fleet.files}/token"
insecure = true
[spool]
folder = "{fleet.files}/spool-{point}"
[clock]
error = "1us"  # both hosts have this machine's clock
{segments}""")
    process = fleet.start(host, [*WIRELAG, "agent", str(settings)], fleet.files / f"agent-{point}.txt")
    process.wait_for_line("listening at")


def run(seconds: float | None, port: int, seed: int, say: Callable[[str], None]) -> list[str]:
    """Run for this many seconds, or until SIGINT or SIGTERM; return the segments' last reports."""
    if os.geteuid():
        raise OSError("the fleet builds hosts in namespaces, which needs root: sudo make fleet")
    if lacking := missing():
        raise OSError(f"the fleet {lacking}")
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="wirelag-fleet-") as name,
            Fleet("fleet", Path(name)) as fleet,
            _door(fleet, port) as here,
        ):
            fleet.start_all()
            WIRE.start(fleet, fleet.files, seed)
            Httpd("exponential:2000").start(fleet, fleet.files, seed, SERVER_ADDRESS)
            for point, host in (("client", "client"), ("server", "server1")):
                _agent(fleet, point, host)
            fleet.wait_until_shared()
            say(_greeting(fleet, here))
            return _live(fleet, seconds, seed, ended, say)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _live(
    fleet: Fleet, seconds: float | None, seed: int, ended: threading.Event, say: Callable[[str], None]
) -> list[str]:
    began, lines = time.monotonic(), [""]
    while not ended.is_set() and (seconds is None or time.monotonic() < began + seconds):
        client = LOAD.start(fleet, Task(SERVER_ADDRESS, Httpd.port, CONNECTIONS, ROUND_S, seed, fleet.files))
        until = time.monotonic() + ROUND_S
        while time.monotonic() < until and not ended.wait(TOLD_S if seconds is None else 1.0):
            with contextlib.suppress(OSError):
                found = fleet.ask("/api/v1/segments")["segments"]
                lines = [line_of(one["segment"], one["settled"]) for one in found]
                say("   ".join(lines))
            if seconds is not None and time.monotonic() >= began + seconds:
                return lines
        client.stop()
        fleet.processes.remove(client)
        seed += 1
    return lines


@contextlib.contextmanager
def _door(fleet: Fleet, port: int) -> Iterator[str]:
    """Forward connections to a port of this machine's loopback to the balancer; its address."""

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def meet(near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            with fleet.inside("agents"):
                far = socket.create_connection((address_of("balancer"), PORT))
            with far:
                back = threading.Thread(target=pass_on, args=(far, near), daemon=True)
                back.start()
                pass_on(near, far)
                back.join()

    def open_up() -> None:
        with contextlib.suppress(OSError):  # closed: it ends
            while True:
                threading.Thread(target=meet, args=(listening.accept()[0],), daemon=True).start()

    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise OSError(f"127.0.0.1:{port}: cannot listen there ({error.strerror}); choose another: --port") from None
    with listening:
        threading.Thread(target=open_up, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


def _greeting(fleet: Fleet, here: str) -> str:
    return f"""
  client --[ wire ]-- server: {round(LOAD.rate * CONNECTIONS)} HTTP requests a second, an agent on each side
  3 collectors share one PostgreSQL database and a cluster of 3 brokers; a load balancer is before them

  page       http://{here}/
  token      {fleet.token}
  try        kill -9 {fleet.running["collector1"].pid}    one of the collectors: the others go on within two seconds

  Ctrl-C ends it and leaves nothing behind.
"""
