"""A whole system in namespaces under load, for tests that kill its parts: agents, collector, broker, and the truth.

The client sends datagrams to the server over a lossy wire; agents and tcpdump watch both ends. They reach the
collector over separate links, which can be cut without affecting the measurement.
"""

import http.client
import json
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import numpy as np
import pytest

from lab.network import Network
from lab.processes import Process
from lab.wire import Direction, Wire
from tests.support import needs
from tests.support.command import WIRELAG
from tests.support.waiting import PATIENCE_S
from wirelag.capture.files import Capture
from wirelag.packets.batch import PacketBatch
from wirelag.packets.packet_id import PacketId

SEGMENT = "client>server1"
LENGTH_NS = 500 * 10**6
PORT, COLLECTOR_PORT, BROKER_PORT = 7001, 8321, 4222
RATE = 2000  # datagrams per second
TOKEN = "a-token-that-nobody-may-read-in-a-log"
SECRET = "wirelag:a-password-that-nobody-may-read"
LINKS = {"client": ("to-client", "10.6.1"), "server1": ("to-server1", "10.6.2")}
LOSS = 0.01


class Load:
    """Different datagrams from the client to the server, until the context ends."""

    def __init__(self, network: Network) -> None:
        with network.inside("server1"):
            self._sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._sink.bind(("10.5.0.11", PORT))
        with network.inside("client"):
            self._out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._out.connect(("10.5.0.11", PORT))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._over.wait(0.004):
            while sent < (time.monotonic() - began) * RATE:
                self._out.send(sent.to_bytes(8, "big") + bytes(56))
                sent += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._out.close()
        self._sink.close()


@dataclass
class Truth:
    """tcpdump's packets at both ends, by interval of sending."""

    sent: dict[int, int] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    mean_s: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, upstream: Path, downstream: Path) -> "Truth":
        up, down = (
            PacketBatch.concatenate(list(Capture([str(path)], packet_id=PacketId()))) for path in (upstream, downstream)
        )
        received = dict(zip(down.packet_id.tolist(), down.time_ns.tolist(), strict=True))
        truth, places = cls(), up.time_ns // LENGTH_NS * LENGTH_NS
        arrived_ns = np.array([received.get(number, -1) for number in up.packet_id.tolist()])
        for start_ns in np.unique(places).tolist():
            mine = places == start_ns
            came = mine & (arrived_ns >= 0)
            truth.sent[start_ns], truth.lost[start_ns] = int(mine.sum()), int(mine.sum() - came.sum())
            truth.mean_s[start_ns] = float((arrived_ns - up.time_ns)[came].mean()) / 1e9 if came.any() else 0.0
        return truth


class System:
    """All running processes. `dead` has the times without an agent."""

    def __init__(self, network: Network, folder: Path, by_nats: bool, estimator: str = "rda") -> None:
        self.network, self.folder, self.by_nats, self.estimator = network, folder, by_nats, estimator
        self.ring = "64MiB"  # ring of agents started from now on
        self.running: dict[str, Process] = {}
        self.dead: list[tuple[int, int]] = []
        self.said = ""  # output of processes that have ended
        self._started = 0
        (folder / "token").write_text(TOKEN)
        (folder / "secret").write_text(SECRET)
        for host, (name, net) in LINKS.items():
            network.link("point", name, host, "manage")
            network.ip("point", f"addr add {net}.1/24 dev {name}")
            network.ip(host, f"addr add {net}.2/24 dev manage")

    def start(self, what: str) -> None:
        """Start `client`, `server1`, `collector` or `broker`; return once it works."""
        self._started += 1
        command, host, ready = {"collector": self._collector, "broker": self._broker}.get(what, self._agent)(what)
        log = self.folder / f"{what}-{self._started}.log"
        self.running[what] = self.network.start(host, command, log)
        self.running[what].wait_for_line(ready)

    def kill(self, what: str) -> None:
        """Kill without warning, and wait until it is gone."""
        process = self.running.pop(what)
        self.network.processes.remove(process)
        self.said += process.stop(signal.SIGKILL)

    def _agent(self, host: str) -> tuple[list[str], str, str]:
        net = LINKS[host][1]
        url = f"nats://{net}.1:{BROKER_PORT}" if self.by_nats else f"http://{net}.1:{COLLECTOR_PORT}"
        settings = self.folder / f"{host}.toml"
        settings.write_text(
            f"""
point = "{host}"
interface = "eth0"
interval = "{LENGTH_NS // 10**6}ms"
status = "1s"
filter = "udp port {PORT}"
[collector]
url = "{url}"
insecure = true
token_file = "{self.folder}/{"secret" if self.by_nats else "token"}"
[spool]
folder = "{self.folder}/spool-{host}"
[clock]
error = "1us"
[capture]
ring = "{self.ring}"
[estimator]
name = "{self.estimator}"
[cut]
at = "clock"
[[segments]]
name = "{SEGMENT}"
direction = "10.5.0.1>10.5.0.11"
"""
        )
        return [*WIRELAG, "agent", str(settings)], host, "listening at eth0"

    def _collector(self, _: str) -> tuple[list[str], str, str]:
        settings = self.folder / "collector.toml"
        nats = f'[nats]\nurl = "nats://127.0.0.1:{BROKER_PORT}"\nsecret_file = "{self.folder}/secret"\n'
        settings.write_text(
            f'listen = "0.0.0.0:{COLLECTOR_PORT}"\nstore = "{self.folder}/store.db"\nsegments = ["{SEGMENT}"]\n'
            f'token_file = "{self.folder}/token"\n' + (nats if self.by_nats else "")
        )
        return [*WIRELAG, "collect", str(settings)], "point", "collecting at"

    def _broker(self, _: str) -> tuple[list[str], str, str]:
        found = needs.find("nats-server")
        if found is None:
            pytest.skip(needs.program("nats-server"))
        user, _, password = SECRET.partition(":")
        settings = self.folder / "nats.conf"
        settings.write_text(
            f'listen: "0.0.0.0:{BROKER_PORT}"\njetstream {{ store_dir: "{self.folder}/js" }}\n'
            f"authorization {{ user: {user}, password: {password!r} }}\n"
        )
        return [found, "-c", str(settings)], "point", "Server is ready"

    def json(self, path: str) -> Any:
        """The collector's response."""
        with self.network.inside("point"):
            line = http.client.HTTPConnection("127.0.0.1", COLLECTOR_PORT, timeout=PATIENCE_S)
            line.connect()
        try:
            line.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
            answer = line.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            return json.loads(text)
        finally:
            line.close()

    def reports(self) -> dict[int, dict[str, Any]]:
        """Reports by the beginning of the interval; none comes twice."""
        found = self.json(f"/api/v1/reports?segment={quote(SEGMENT)}&limit=10000")["reports"]
        by_start = {round(one["start"] * 1e9 / LENGTH_NS) * LENGTH_NS: one for one in found}
        assert len(by_start) == len(found)
        return by_start

    def alive(self, start_ns: int, more_ns: int = 0) -> bool:
        """Whether both agents saw an interval completely, and `more_ns` before and after it."""
        first_ns, last_ns = start_ns - more_ns, start_ns + LENGTH_NS + more_ns
        return not any(start < last_ns and end > first_ns for start, end in self.dead)

    def caught_up(self, since_ns: int, seconds: float = PATIENCE_S) -> float:
        """Wait until all that both have seen so far is measured; return the time that it took."""
        now_ns, began = time.time_ns(), time.monotonic()
        wanted = [
            start_ns
            for start_ns in range(-(-since_ns // LENGTH_NS) * LENGTH_NS, now_ns - LENGTH_NS, LENGTH_NS)
            if self.alive(start_ns)
        ]
        missing: list[int] = wanted
        while missing:
            with suppress(OSError, http.client.HTTPException):
                known = self.reports()
                missing = [at for at in wanted if not self._said_of(at, known.get(at))]
            assert time.monotonic() - began < seconds, (
                [(at - since_ns) / 1e9 for at in missing][:20], self.json("/api/v1/status")["counted"],
            )  # fmt: skip
            time.sleep(0.1)
        return time.monotonic() - began

    def _said_of(self, start_ns: int, report: dict[str, Any] | None) -> bool:
        """Measured; and settled, if the next second was seen, too."""
        if report is None or report["missed"]:
            return False
        return bool(report["settled"]) or not self.alive(start_ns, 2 * LENGTH_NS)

    def logs(self) -> str:
        """The output of all processes."""
        return self.said + "".join(process.said() for process in self.running.values())


@contextmanager
def stalled(process: Process, seconds: float, of: float) -> Iterator[None]:
    """A process that is repeatedly stopped for `seconds` out of every `of` seconds."""
    over = threading.Event()

    def stall() -> None:
        while not over.wait(of - seconds):
            os.kill(process.pid, signal.SIGSTOP)
            over.wait(seconds)
            os.kill(process.pid, signal.SIGCONT)

    thread = threading.Thread(target=stall)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def recorded(network: Network, folder: Path) -> Iterator[Callable[[], Truth]]:
    """tcpdump at both ends; returns its packets, once it is asked to end."""
    paths, recorders = [], []
    for host, way in (("client", "out"), ("server1", "in")):
        path = folder / f"{host}.pcap"
        options = f"-i eth0 -n -s 128 -B 65536 -Z root -Q {way} --immediate-mode --time-stamp-precision=nano -w {path}"
        recorder = network.start(
            host, ["tcpdump", *options.split(), "udp", "port", str(PORT)], path.with_suffix(".txt")
        )
        recorder.wait_for_line("listening on")
        paths.append(path)
        recorders.append(recorder)

    def end() -> Truth:
        for recorder in recorders:
            recorder.wait_until_idle()
            assert "0 packets dropped by kernel" in recorder.stop(signal.SIGINT)
        return Truth.of(*paths)

    yield end


@contextmanager
def burning(folder: Path, by_nats: bool, estimator: str = "rda") -> Iterator[System]:
    """The whole system with the wire in between; load and recorders are the test's."""
    with Network(f"fire{secrets.token_hex(2)}", wired=True) as network:
        Wire(up=Direction(delay_us=3000, jitter_us=1000, loss=LOSS, held=0.05, hold_us=500)).start(network, folder, 7)
        system = System(network, folder, by_nats, estimator)
        if by_nats:
            system.start("broker")
        for what in ("collector", "server1", "client"):
            system.start(what)
        yield system
        for process in system.running.values():
            os.kill(process.pid, 0)  # no process has ended by itself
