"""The whole system on one machine: two hosts, a wire between them, agents on both, a collector and its page.

    client (agent) --[wire: delay, jitter, loss, reordering]-- switch -- server (agent)

The collector listens on this machine's loopback, so that a browser finds it. Agents reach it through a door: a port on
the loopback of their own host that leads there, bypassing the wire. When it ends no host, file or process is left.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.clients import Load, Task
from lab.network import CLIENT_ADDRESS, FIRST_SERVER, Network
from lab.processes import PATIENCE_S, Process
from lab.servers import Httpd
from lab.wire import Direction, Wire
from wirelag.units import format_duration

WIRELAG = (sys.executable, "-m", "wirelag.cli")
PORT = 8321
SERVER_ADDRESS = f"10.5.0.{FIRST_SERVER}"
POINTS = {"client": "client", "server": "server1"}  # and their hosts
SEGMENTS = {"client>server": (CLIENT_ADDRESS, SERVER_ADDRESS), "server>client": (SERVER_ADDRESS, CLIENT_ADDRESS)}
# 1% lost, and 5% held back for longer than the gap to the next packet.
WIRE = Wire(
    Direction(delay_us=5000, jitter_us=500, loss=0.01, held=0.05, hold_us=3000),
    Direction(delay_us=8000, jitter_us=2000, loss=0.01, held=0.05, hold_us=3000),
)
LOAD = Load(pattern="open", rate=10.0, response="lognormal:4000:1:60000")
CONNECTIONS = 20
ROUND_S = 300.0  # the client logs its requests in memory: it restarts before the log is large
TOLD_S, FIRST_S = 5.0, 0.5  # interval of reports, and of checks whether there is anything to report
NOTHING = "not yet"


@dataclass(frozen=True)
class System:
    """The running system."""

    url: str
    token: str
    folder: Path

    def ask(self, path: str) -> Any:
        """The response of the collector's API."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def lines(self) -> list[str]:
        """Its segments, as far as measured."""
        return [line_of(one["segment"], one["settled"]) for one in self.ask("/api/v1/segments")["segments"]]


@contextlib.contextmanager
def built(network: Network, folder: Path, port: int, seed: int) -> Iterator[System]:
    """Build the wire, the server and the collector."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise OSError(
            f"127.0.0.1:{port}: cannot listen there ({error.strerror}); choose another port: --port"
        ) from None
    token = secrets.token_urlsafe(16)
    (folder / "token").write_text(token)
    WIRE.start(network, folder, seed)
    Httpd("exponential:2000").start(network, folder, seed, SERVER_ADDRESS)
    keep = ["--store", str(folder / "results.db"), "--token-file", str(folder / "token")]
    segments = [word for name in SEGMENTS for word in ("--segment", name)]
    collect = [*WIRELAG, "collect", "--listen", f"127.0.0.1:{port}", *keep, *segments]
    collector = Process(collect, folder / "collector.txt")
    try:
        collector.wait_for_line("collecting at")
        yield System(collector.said().split()[2].rstrip("/,"), token, folder)
    finally:
        collector.stop()


def agent(network: Network, folder: Path, point: str) -> Process:
    """Start the agent of a point."""
    settings = folder / f"{point}.toml"
    segments = "".join(
        f'[[segments]]\nname = "{name}"\ndirection = "{source}>{target}"\n'
        for name, (source, target) in SEGMENTS.items()
    )
    settings.write_text(f"""point = "{point}"
interface = "eth0"
filter = "tcp port 80"
[collector]
url = "http://127.0.0.1:{PORT}"
token_file = "{folder}/token"
[spool]
folder = "{folder}/spool-{point}"
[clock]
error = "1us"  # both hosts have this machine's clock
{segments}""")
    process = network.start(POINTS[point], [*WIRELAG, "agent", str(settings)], folder / f"agent-{point}.txt")
    process.wait_for_line("listening at")
    return process


def run(seconds: float | None, port: int, seed: int, say: Callable[[str], None]) -> list[str]:
    """Run for this many seconds, or until SIGINT or SIGTERM; return the segments' last reports."""
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="wirelag-lab-") as name,
            Network("system", wired=True) as network,
            built(network, Path(name), port, seed) as system,
            contextlib.ExitStack() as doors,
        ):
            for point, host in POINTS.items():
                doors.enter_context(_door(network, host, int(system.url.rpartition(":")[2])))
                agent(network, system.folder, point)
            say(_greeting(system))
            return _live(network, system, seconds or math.inf, seed, ended, say)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _live(
    network: Network, system: System, seconds: float, seed: int, ended: threading.Event, say: Callable[[str], None]
) -> list[str]:
    """Run traffic and report measurements; return the last ones."""
    began, lines = time.monotonic(), [""]
    while time.monotonic() < began + seconds and not ended.is_set():
        client = LOAD.start(network, Task(SERVER_ADDRESS, Httpd.port, CONNECTIONS, ROUND_S, seed, system.folder))
        until, pause = time.monotonic() + ROUND_S, FIRST_S
        while (left := min(until, began + seconds) - time.monotonic()) > 0 and not ended.wait(min(pause, left)):
            try:
                lines = system.lines()
            except OSError:
                if ended.wait(FIRST_S):  # Ctrl-C also ends the collector
                    break
                raise
            if not any(NOTHING in line for line in lines):
                say("   ".join(lines))
                pause = TOLD_S
        if time.monotonic() >= until:
            client.finish(ROUND_S)
            network.processes.remove(client)
            seed += 1
    return lines


@contextlib.contextmanager
def _door(network: Network, host: str, port: int) -> Iterator[None]:
    """Forward connections to PORT on the host's loopback to this port of ours."""

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def meet(here: socket.socket) -> None:
        with here, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as there:
            back = threading.Thread(target=pass_on, args=(there, here), daemon=True)
            back.start()
            pass_on(here, there)
            back.join()

    def open_up() -> None:
        with contextlib.suppress(OSError):  # closed: it ends
            while True:
                threading.Thread(target=meet, args=(listening.accept()[0],), daemon=True).start()

    with network.inside(host):
        listening = socket.create_server(("127.0.0.1", PORT))
    with listening:
        threading.Thread(target=open_up, daemon=True).start()
        yield
        listening.shutdown(socket.SHUT_RDWR)


def line_of(segment: str, report: dict[str, Any] | None) -> str:
    """A segment's last report in one line."""
    if report is None or report["mean"] is None:
        return f"{segment} {NOTHING}"
    loss = "unknown" if report["loss"] is None else f"{report['loss']:.2%}"
    p99 = report["quantiles"]["0.99"]
    tail = "" if p99 is None else f", p99 {format_duration(p99 * 1e9)}"
    return f"{segment} {format_duration(report['mean'] * 1e9)}{tail}, loss {loss}"


def _greeting(system: System) -> str:
    there_ms, back_ms = (way.delay_us / 1000 for way in (WIRE.up, WIRE.down))
    wire = f"{there_ms:g} ms there, {back_ms:g} ms back, {WIRE.up.loss:.0%} lost, {WIRE.up.held:.0%} held back"
    return f"""
  client --[ {wire} ]-- server
  {round(LOAD.rate * CONNECTIONS)} HTTP requests a second; an agent on each side, an interval every second

  page       {system.url}/
  token      {system.token}
  metrics    curl -H 'Authorization: Bearer {system.token}' {system.url}/metrics

  Ctrl-C ends it and leaves nothing behind.
"""
