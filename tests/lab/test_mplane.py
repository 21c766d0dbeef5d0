"""mPlane running: agents at routers that speak OSPF, a collector that follows their database, a link that fails."""

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.frr import DAEMONS
from lab.plane import Plane
from lab.routers import Routers
from tests.support import needs
from tests.support.command import wirelag
from tests.support.in_lab import IN_LAB
from tests.support.places import SIX_ROUTERS
from tests.support.waiting import until
from wirelag.network.topology import read_topology

SIX = SIX_ROUTERS
MEASURING = ("A", "C", "D", "F")
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


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with Routers("mplane", read_topology(SIX)) as routers:
        plane = Plane(routers, tmp_path)
        plane.own_addresses()
        yield plane


@pytest.mark.acceptance
def test_the_new_path_is_measured_within_three_intervals(plane: Plane) -> None:
    plane.follow(MEASURING, EVERY_S, OVERLAP_S)
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
    collector = plane.follow(MEASURING, EVERY_S, OVERLAP_S)
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
    """`plan --write-agents` on the running database: its files measure every segment, between routers and inside."""
    folder = plane.folder / "agents"
    upgraded = [address for address, router in plane.names.items() if router in MEASURING]
    words = ["plan", plane.database, "--upgraded", ",".join(upgraded), "--write-agents", str(folder)]
    words += ["--collector", plane.url, "--every", "20ms"]
    said = wirelag(*words).stderr
    assert said.count("fill in") == 1, said  # the collector's address
    plane.collect(folder / "collector.toml")
    for address in upgraded:
        plane.agent(plane.names[address], folder / f"agent-{address.replace('.', '-')}.toml")
    points = {router: address.replace(".", "-") for address, router in plane.names.items()}
    # Agents' messages to the host of A pass F on their way from C and D.
    wanted = {re.sub("[A-F]", lambda found: points[found[0]], name) for name in {*BEFORE, "F[C>A]"}}
    until(lambda: plane.measured().keys() >= wanted, f"{wanted} have delays")
    for name, report in plane.measured().items():
        assert 0 < report["mean"] < 0.1, name
        assert report["sent"] > 0, name
