"""Routers that measure themselves (mPlane): an agent at some of them, a collector that follows their OSPF, and its API.

The collector runs on the host of the first router. Agents reach it through the network that they measure.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lab.network import PROMPT
from lab.processes import PATIENCE_S, Process
from lab.routers import LOOK_S, Routers

PORT = 8321
TOKEN = "sesame-open-sesame"
WIRELAG = (*PROMPT, sys.executable, "-m", "wirelag.cli")


class Plane:
    """Routers with agents and a collector."""

    def __init__(self, routers: Routers, folder: Path) -> None:
        self.routers, self.folder, self.network = routers, folder, routers.network
        self.names = {f"10.6.0.{number}": router for router, number in routers.numbers.items()}
        self.host, self.collector = f"{routers.topology.routers[0]}-host", "10.7.1.2"
        (folder / "token").write_text(f"{TOKEN}\n")

    def own_addresses(self) -> None:
        """Give every router a loopback address that OSPF announces, as in a real network."""
        for address, router in self.names.items():
            self.network.ip(router, f"addr add {address}/32 dev lo")
            said = ("configure terminal", "interface lo", "ip ospf area 0", "ip ospf passive")
            words = [word for line in said for word in ("-c", line)]
            self.network.run(router, "vtysh", "--vty_socket", str(self.network.folder / router), *words)
        wait(lambda: all(map(self._reaches_all, self.names.values())), "all routers reach each other")

    def _reaches_all(self, router: str) -> bool:
        listed = {route["dst"] for route in json.loads(self.network.run(router, "ip", "-j", "route"))}
        return all(address in listed for address, name in self.names.items() if name != router)

    @property
    def database(self) -> str:
        """The address of the second router's OSPF daemon."""
        return f"ospf:{self.network.folder}/{self.routers.topology.routers[1]}"

    @property
    def url(self) -> str:
        """Of the collector."""
        return f"http://{self.collector}:{PORT}"

    def collect(self, settings: Path) -> Process:
        """Start the collector."""
        words = ["--listen", f"{self.collector}:{PORT}", "--store", f"{self.folder}/store.db"]
        words += ["--token-file", f"{self.folder}/token"]
        process = self.network.start(
            self.host, [*WIRELAG, "collect", str(settings), *words], self.folder / "collector.txt"
        )
        process.wait_for_line("collecting at")
        return process

    def agent(self, router: str, settings: Path) -> Process:
        """Start a router's agent."""
        words = ["--token-file", f"{self.folder}/token", "--spool", f"{self.folder}/spool-{router}", "--status", "1s"]
        words += ["--insecure", "--clock-error", "1us", "--ring", "64MiB"]
        process = self.network.start(router, [*WIRELAG, "agent", str(settings), *words], self.folder / f"{router}.txt")
        process.wait_for_line("listening at any")
        return process

    def follow(
        self, measuring: Iterable[str], every_s: float = 0.25, overlap_s: float = 5.0, inside: str | None = None
    ) -> Process:
        """Start a collector that follows the network, and agents; `inside`: the estimator inside their routers."""
        names = "\n".join(f'"{address}" = "{router}"' for address, router in self.names.items())
        settings = self.folder / "collector.toml"
        follow = f'[follow]\nevery = "{every_s:g}s"\noverlap = "{overlap_s:g}s"\n'
        settings.write_text(f'topology = "{self.database}"\n{follow}[names]\n{names}\n')
        collector = self.collect(settings)
        for router in measuring:
            settings = self.folder / f"{router}.toml"
            settings.write_text(
                f"""
point = "{router}"
interface = "any"
{'filter = "udp dst port 862"' if inside is None else ""}
interval = "1s"
[collector]
url = "{self.url}"
from = "10.6.0.{self.routers.numbers[router]}"
[estimator]
memory = "1MiB"
[m_set]
by = "collector"
every = "20ms"
{"" if inside is None else f'[inside]{chr(10)}by = "collector"{chr(10)}estimator = "{inside}"'}
"""
            )
            self.agent(router, settings)
        return collector

    def ask(self, path: str) -> Any:
        """Query the collector's API."""
        with self.network.inside(self.host):
            request = urllib.request.Request(f"{self.url}/api/v1/{path}", headers={"Authorization": f"Bearer {TOKEN}"})
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                said = (self.folder / "collector.txt").read_text().splitlines()[-5:]
                raise OSError(f"{path}: {error.read().decode()} The collector says: {' | '.join(said)}") from None

    def reports(self, segment: str, since: float) -> list[dict[str, Any]]:
        """The intervals of a segment that began after a time."""
        found: list[dict[str, Any]] = self.ask(f"reports?segment={quote(segment)}&from={since}")["reports"]
        return found

    def segments(self) -> set[str]:
        """The segments of all m-sets, also of those that end."""
        return {one["segment"] for one in self.ask("topology")["segments"]}

    def measured(self, since: float = 0.0) -> dict[str, dict[str, Any]]:
        """The latest report of each segment with a delay, from intervals that ended after a time."""
        latest = {one["segment"]: one["latest"] for one in self.ask("segments")["segments"]}
        return {
            name: report
            for name, report in latest.items()
            if report is not None and report["mean"] is not None and report["end"] > since
        }

    def wait_for(self, segments: set[str], since: float = 0.0) -> None:
        """Wait until each has a delay from an interval that ended after a time."""
        wait(lambda: self.measured(since).keys() >= segments, f"{sorted(segments)} have delays")


def wait(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise OSError(f"waited in vain: {what}")
        time.sleep(LOOK_S)
