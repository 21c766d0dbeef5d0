"""mPlane running: agents at routers that speak OSPF, a collector that follows their database, a link that fails."""

import json
import os
import re
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.frr import DAEMONS
from lab.processes import Process
from lab.routers import Routers
from tests.support import needs
from tests.support.command import WIRELAG, wirelag
from tests.support.in_lab import IN_LAB
from tests.support.places import SIX_ROUTERS
from tests.support.waiting import PATIENCE_S, until
from wirelag.network.topology import read_topology

SIX = SIX_ROUTERS
MEASURING = ("A", "C", "D", "F")
PORT = 8321
COLLECTOR = "10.7.1.2"  # the host beside A
TOKEN = "sesame-open-sesame"
LENGTH_S, EVERY_S, OVERLAP_S = 1.0, 0.25, 5.0
ROUNDS = 3
BEFORE = {"A>F", "F>A", "C>F", "F>C", "C>D", "D>C", "D>>F", "F>>D"}
AFTER = BEFORE - {"C>F", "F>C"} | {"C>>F", "F>>C"}
pytestmark = [
    IN_LAB,
    pytest.mark.skipif(
        not (DAEMONS / "ospfd").exists() or shutil.which("vtysh") is None, reason=needs.program("vtysh")
    ),
]


class Plane:
    """Routers with agents and a collector."""

    def __init__(self, routers: Routers, folder: Path) -> None:
        self.routers, self.folder, self.network = routers, folder, routers.network
        self.names = {f"10.6.0.{number}": router for router, number in routers.numbers.items()}
        (folder / "token").write_text(f"{TOKEN}\n")

    def own_addresses(self) -> None:
        """Give every router a loopback address that OSPF announces, as in a real network."""
        for address, router in self.names.items():
            self.network.ip(router, f"addr add {address}/32 dev lo")
            said = ("configure terminal", "interface lo", "ip ospf area 0", "ip ospf passive")
            words = [word for line in said for word in ("-c", line)]
            self.network.run(router, "vtysh", "--vty_socket", str(self.network.folder / router), *words)
        until(lambda: all(map(self._reaches_all, self.names.values())), "all routers reach each other")

    def _reaches_all(self, router: str) -> bool:
        listed = {route["dst"] for route in json.loads(self.network.run(router, "ip", "-j", "route"))}
        return all(address in listed for address, name in self.names.items() if name != router)

    @property
    def database(self) -> str:
        """The address of B's OSPF daemon."""
        return f"ospf:{self.network.folder}/B"

    def collect(self, settings: Path) -> Process:
        """Start the collector beside A."""
        words = ["--listen", f"{COLLECTOR}:{PORT}", "--store", f"{self.folder}/store.db"]
        words += ["--token-file", f"{self.folder}/token"]
        command = [*WIRELAG, "collect", str(settings), *words]
        process = self.network.start("A-host", command, self.folder / "collector.txt")
        process.wait_for_line("collecting at")
        return process

    def agent(self, router: str, settings: Path) -> Process:
        """Start a router's agent."""
        words = ["--token-file", f"{self.folder}/token", "--spool", f"{self.folder}/spool-{router}", "--status", "1s"]
        words += ["--insecure", "--clock-error", "1us", "--ring", "2MiB"]
        command = [*WIRELAG, "agent", str(settings), *words]
        process = self.network.start(router, command, self.folder / f"{router}.txt")
        process.wait_for_line("listening at any")
        return process

    def follow(self) -> Process:
        """Start a collector that follows the network, and an agent at each measuring router."""
        names = "\n".join(f'"{address}" = "{router}"' for address, router in self.names.items())
        settings = self.folder / "collector.toml"
        follow = f'[follow]\nevery = "{EVERY_S:g}s"\noverlap = "{OVERLAP_S:g}s"\n'
        settings.write_text(f'topology = "{self.database}"\n{follow}[names]\n{names}\n')
        collector = self.collect(settings)
        for router in MEASURING:
            settings = self.folder / f"{router}.toml"
            settings.write_text(
                f"""
point = "{router}"
interface = "any"
filter = "udp dst port 862"
interval = "{LENGTH_S:g}s"
[collector]
url = "http://{COLLECTOR}:{PORT}"
from = "10.6.0.{self.routers.numbers[router]}"
[estimator]
memory = "1MiB"
[m_set]
by = "collector"
every = "20ms"
"""
            )
            self.agent(router, settings)
        return collector

    def ask(self, path: str) -> Any:
        """Query the collector's API."""
        url = f"http://{COLLECTOR}:{PORT}/api/v1/{path}"
        with self.network.inside("A-host"):
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.loads(answer.read())

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
        until(lambda: self.measured(since).keys() >= segments, f"{sorted(segments)} have delays")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with Routers("mplane", read_topology(SIX)) as routers:
        plane = Plane(routers, tmp_path)
        plane.own_addresses()
        yield plane


@pytest.mark.acceptance
def test_the_new_path_is_measured_within_three_intervals(plane: Plane) -> None:
    plane.follow()
    took = []
    for _ in range(ROUNDS):
        plane.wait_for(BEFORE)
        until(lambda: plane.segments() == BEFORE, "what was measured before has ended")
        until(lambda: not plane.measured(time.time()).keys() & (AFTER - BEFORE), "and so have its intervals")
        began = time.time()
        plane.network.ip("C", "link set to-F down")
        failed = time.time()
        plane.wait_for(AFTER - BEFORE, began)
        took.append(time.time() - began)
        _told(plane, began, failed + took[-1])
        until(lambda: plane.ask("path?source=D&target=F")["missing"] == [], "the new path adds up")
        until(lambda: plane.segments() == AFTER, "what is gone has ended")
        ended = time.time() + 2 * LENGTH_S
        plane.wait_for(AFTER, ended)
        assert plane.measured(ended).keys() == AFTER  # removed segments are not measured
        plane.network.ip("C", "link set to-F up")
        until(lambda: plane.segments() >= BEFORE, "the link is back")
    intervals = ", ".join(f"{seconds / LENGTH_S:.2f}" for seconds in took)
    print(f"\nintervals from the failure to the first delays over the new path: {intervals}")
    assert max(took) <= 3 * LENGTH_S


def _told(plane: Plane, began: float, by: float) -> None:
    """The change has its time, and old and new m-sets overlap."""
    said = plane.ask("topology")
    ends = {one["segment"]: one["until"] for one in said["segments"]}
    assert {name for name, end in ends.items() if end is None} == AFTER
    assert {name for name, end in ends.items() if end is not None} == BEFORE - AFTER
    change = said["changes"][0]
    assert began < change["at"] < by
    assert set(change["links_down"]) == {"C>F", "F>C"}
    assert (set(change["new"]), set(change["gone"])) == (AFTER - BEFORE, BEFORE - AFTER)


@pytest.mark.acceptance
def test_a_killed_collector_resumes(plane: Plane) -> None:
    """Agents get no new m-sets: they are the same, and agents have measured without interruption."""
    collector = plane.follow()
    plane.wait_for(BEFORE)
    until(lambda: plane.segments() == BEFORE, "what was measured before has ended")
    before = {router: (plane.folder / f"{router}.txt").read_text().count("m-set of") for router in MEASURING}
    os.kill(collector.pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{collector.pid}").exists() or _zombie(collector.pid), "it is gone")
    killed = time.time()
    plane.collect(plane.folder / "collector.toml")
    plane.wait_for(BEFORE, killed)
    assert plane.segments() == BEFORE
    after = {router: (plane.folder / f"{router}.txt").read_text().count("m-set of") for router in MEASURING}
    assert after == before


def _zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.acceptance
def test_a_plan_becomes_agents(plane: Plane) -> None:
    """`plan --write-agents` on the running database: its files measure every segment in both directions."""
    folder = plane.folder / "agents"
    upgraded = [address for address, router in plane.names.items() if router in MEASURING]
    words = ["plan", plane.database, "--upgraded", ",".join(upgraded), "--write-agents", str(folder)]
    words += ["--collector", f"http://{COLLECTOR}:{PORT}", "--every", "20ms"]
    said = wirelag(*words).stderr
    assert said.count("fill in") == 1, said  # the collector's address
    plane.collect(folder / "collector.toml")
    for address in upgraded:
        plane.agent(plane.names[address], folder / f"agent-{address.replace('.', '-')}.toml")
    points = {router: address.replace(".", "-") for address, router in plane.names.items()}
    wanted = {re.sub("[A-F]", lambda found: points[found[0]], name) for name in BEFORE}
    until(lambda: plane.measured().keys() == wanted, f"{wanted} have delays")
    for name, report in plane.measured().items():
        assert 0 < report["mean"] < 0.1, name
        assert report["sent"] > 0, name
