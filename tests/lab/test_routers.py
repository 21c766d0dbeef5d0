"""Routers in the lab: they forward by the topology, their taps miss nothing, and nothing is left behind."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from lab.network import FOLDERS, NAMESPACES, sweep
from lab.routers import Routers
from lab.traffic import Traffic
from tests.support.effort import ALONE
from tests.support.in_lab import IN_LAB
from tests.support.places import ROOT
from tests.support.places import SIX_ROUTERS as SIX
from tests.support.router_taps import WITH_ROUTERS, delays_ms, passed
from tests.support.waiting import until
from wirelag.network.topology import Topology, read_topology

BRIEF = Traffic(seconds=0.5, rate=100)
pytestmark = [IN_LAB, WITH_ROUTERS]


@pytest.fixture(scope="module")
def six() -> Topology:
    return read_topology(SIX)


@pytest.fixture(scope="module")
def routers(six: Topology) -> Iterator[Routers]:
    with Routers("six", six) as routers:
        yield routers


def _left(prefix: str) -> list[str]:
    return [path.name for room in (NAMESPACES, FOLDERS) for path in room.glob("*") if path.name.startswith(prefix)]


@pytest.mark.acceptance
def test_up_and_down_leave_nothing() -> None:
    small = Routers("small", read_topology(SIX).without(("D", "E"), ("C", "E")))
    small.up()
    small.up()
    pids = [process.pid for process in small.network.processes]
    assert len(pids) == 12
    assert len(_left(small.network.prefix)) == 13
    small.down()
    small.down()
    assert _left(small.network.prefix) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_crash_leaves_nothing_after_the_next_command() -> None:
    script = f"""
import sys
from lab.routers import Routers
from wirelag.network.topology import read_topology
routers = Routers("crash", read_topology({str(SIX)!r}))
routers.up()
print(routers.network.prefix, *(process.pid for process in routers.network.processes), flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crashing:
        assert crashing.stdout is not None
        prefix, *pids = crashing.stdout.readline().split()
        assert len(_left(prefix)) == 13
        crashing.send_signal(signal.SIGKILL)
        crashing.wait()
    sweep()
    assert _left(prefix) == []
    until(lambda: not any(map(_runs, pids)), "the end of its processes")


def _runs(pid: str) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_database_equals_the_topology(routers: Routers, six: Topology, tmp_path: Path) -> None:
    routers.database(tmp_path / "ospf.json")
    read = read_topology(tmp_path / "ospf.json")
    assert set(read.routers) == set(six.routers)
    assert set(read.links) == set(six.links)
    for router, number in routers.numbers.items():
        assert f"10.7.{number}.0/24" in map(str, read.prefixes[router])


def test_taps_miss_nothing(routers: Routers, tmp_path: Path) -> None:
    routers.record(tmp_path, 1, traffic=BRIEF)
    names = routers.topology.routers
    entered = pl.concat(passed(tmp_path, f"{router}.in") for router in names)
    left = pl.concat(passed(tmp_path, f"{router}.out") for router in names)
    sent = len(BRIEF.plan(1, len(names)))
    assert len(entered) == len(left) == sent
    assert set(entered["packet_id"].to_list()) == set(left["packet_id"].to_list())
    assert entered["packet_id"].n_unique() == sent
    for link in routers.topology.links:
        out = passed(tmp_path, f"{link.source}.out.{link.target}")
        arrived = passed(tmp_path, f"{link.target}.in.{link.source}")
        assert out["packet_id"].sort().equals(arrived["packet_id"].sort())
    expected = BRIEF.loads(routers.topology)
    assert {link for link in expected if len(passed(tmp_path, f"{link[0]}.out.{link[1]}"))} == set(expected)


def test_equal_paths_share_flows(routers: Routers, tmp_path: Path) -> None:
    """F sends packets to D through C and E, each flow through one of them."""
    routers.record(tmp_path, 2, traffic=Traffic(seconds=0.6, rate=200, burst=1))
    to_d = passed(tmp_path, "F.in").join(passed(tmp_path, "D.out"), on="packet_id", how="semi")
    by_c, by_e = (to_d.join(passed(tmp_path, f"F.out.{hop}"), on="packet_id", how="semi") for hop in ("C", "E"))
    assert len(by_c) + len(by_e) == len(to_d) > 80
    assert min(len(by_c), len(by_e)) > 0.2 * len(to_d)
    assert not set(by_c["flow_key"]) & set(by_e["flow_key"])


def test_the_queue_lies_between_the_taps_of_its_router(routers: Routers, tmp_path: Path) -> None:
    routers.record(tmp_path, 3, [("F", "C")], Traffic(seconds=1.0, rate=100))
    waited = delays_ms(tmp_path, "F.in.A", "F.out.C")
    assert len(waited) > 100
    assert waited.mean() > 1
    before, beside = (np.median(delays_ms(tmp_path, *taps)) for taps in (("F.out.C", "C.in.F"), ("F.in.A", "F.out.E")))
    assert max(before, beside) < np.median(waited)
    if ALONE:
        assert before < 0.1
        assert beside < 0.2


def test_loads_are_those_of_the_links(routers: Routers, tmp_path: Path) -> None:
    traffic = Traffic(seconds=1.0, rate=100)
    routers.record(tmp_path, 4, traffic=traffic)
    loads = traffic.loads(routers.topology)
    carried = {link: int(passed(tmp_path, f"{link[0]}.out.{link[1]}")["wire_length"].sum()) * 8e-6 for link in loads}
    assert sum(carried.values()) == pytest.approx(sum(loads.values()), rel=0.15)
    assert carried["A", "B"] == pytest.approx(loads["A", "B"], rel=0.5)


def test_a_port_without_traffic_cannot_be_slow(routers: Routers, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nothing is sent from A straight to C"):
        routers.record(tmp_path, 1, [("A", "C")], BRIEF)


@pytest.mark.acceptance
def test_a_link_fails(six: Topology, tmp_path: Path) -> None:
    with Routers("fails", six) as routers:
        routers.record(tmp_path, 1, traffic=BRIEF)
        assert len(passed(tmp_path, "F.out.C"))
        routers.fail("C", "F")
        routers.record(tmp_path, 1, traffic=BRIEF)
    read = read_topology(tmp_path / "ospf.json")
    assert set(read.links) == set(six.without(("C", "F")).links)
    assert not list((tmp_path / "captures").glob("[CF].*.[CF].pcap"))
    assert len(passed(tmp_path, "E.in.F").join(passed(tmp_path, "E.out.C"), on="packet_id")) > 20
