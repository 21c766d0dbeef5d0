"""`wirelag balance` with real servers, clients and a real kernel: clients see no errors, whatever happens to it."""

import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.balance import EQUAL, Site, entries, site
from lab.network import SERVICE_ADDRESS
from lab.processes import Process
from tests.support.balanced_site import LONG_S, SHORT_LIVES, stop_client, traffic
from tests.support.command import WIRELAG, wirelag
from tests.support.experiment_tables import tables_of
from tests.support.in_lab import IN_LAB
from tests.support.waiting import PATIENCE_S, until
from wirelag.ebpf.balance import open_balancer, remove_balancer
from wirelag.ebpf.balance_maps import Balancer
from wirelag.ebpf.bpf import ARRAY, MAPPABLE, Link, Map, info
from wirelag.ebpf.service import Backend, Service, Way
from wirelag.errors import WirelagError

pytestmark = IN_LAB
FLOOR = 0.0079 / 4  # 0.8% for all that are slow, less the rounding of a table with 65,537 entries
MACS = [bytes.fromhex(f"0205000000{11 + i:02x}") for i in range(4)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site("balance", tmp_path, seed=1, servers=3, service="exponential:5000") as built:
        yield built


def last(process: Process) -> dict[str, dict[str, Any]]:
    said = entries(process)
    return {one["name"]: one for one in said[-1]["backends"]} if said else {}


def test_traffic_outlives_its_controller_and_the_next_one_takes_over(place: Site) -> None:
    place.configure([1, 2, 3], EQUAL)
    first = place.steer()
    client = place.ask(24, LONG_S, SHORT_LIVES)
    until(lambda: sum(one["samples"] for said in entries(first) for one in said["backends"]) > 50, "50 samples")
    assert all(one["weight"] == pytest.approx(1 / 3) for one in last(first).values())

    os.kill(first.pid, signal.SIGKILL)
    traffic(place, 1, 2, 3)

    again = place.steer("again")
    assert "taken over" in again.said()
    traffic(place, 1, 2, 3)

    place.configure([1, 2], EQUAL)  # server3 drains, and is removed when its last connection has ended
    os.kill(again.pid, signal.SIGHUP)
    until(lambda: set(last(again)) == {"server1", "server2"}, "server3 drained")
    drained_ns = time.time_ns()
    again.stop()
    assert "the kernel balances on" in again.said()
    traffic(place, 1, 2)

    asked = stop_client(client, place)
    assert set(asked["server"].tolist()) == {1, 2, 3}
    assert set(asked["server"][asked["asked_ns"] > drained_ns].tolist()) == {1, 2}
    counters = entries(again)[-1]["counters"]
    assert not any(counters.values()), counters


def opened(place: Site, **changes: Any) -> Balancer:
    settings: dict[str, Any] = {"table_size": 251, "connections": 1024, "most_backends": 8, "idle_ns": 10**11}
    given = (
        settings | {"pins": str(place.pins), "service": Service(SERVICE_ADDRESS, (80,)), "interface": "eth0"} | changes
    )
    with place.network.inside("point"):
        return open_balancer(given.pop("service"), given.pop("interface"), **given)


def test_compatible_pins_are_taken_over(place: Site) -> None:
    with pytest.raises(WirelagError, match="eth9: there is no such interface"):
        opened(place, interface="eth9")
    assert not place.pins.exists()
    balancer = opened(place)
    listed = [Backend(f"server{i + 1}", f"10.5.0.{11 + i}", Way(MACS[i])) for i in range(3)]
    slots = balancer.set_backends(listed)
    assert balancer.table() is None
    balancer.set_table(np.resize(np.array([0, 0, 1], np.int32), 251))
    with pytest.raises(WirelagError, match="another process steers"):
        opened(place)
    balancer.close(leave=True)

    for changes, says in (
        ({"service": Service("10.5.0.99", (80,))}, "has another service"),
        ({"service": Service(SERVICE_ADDRESS, (81,))}, "has another service"),
        ({"table_size": 257}, "has 753 maglev, not 771"),
        ({"connections": 4096}, "has 128 groups, not 512"),
        ({"secret": "another"}, "has another table.secret"),
        ({"interface": "lo"}, "lo: has no MAC address"),
        ({"interface": "eth9"}, "eth9: there is no such interface"),
        ({"pins": str(place.folder)}, "pins must be in bpffs"),
    ):
        with pytest.raises(WirelagError, match=says) as raised:
            opened(place, **changes)
        assert "\n" not in str(raised.value)

    other = opened(place, idle_ns=10**10)
    assert "taken over" in other.description
    assert other.backends() == tuple(listed)
    table = other.table()
    assert table is not None
    assert np.bincount(table).tolist() == [168, 83]
    assert other.set_backends(listed[1:]) == {name: slot for name, slot in slots.items() if name != "server1"}
    other.close(leave=False)
    assert not place.pins.exists()
    with place.network.inside("point"):
        shown = subprocess.run(["ip", "-d", "link", "show", "eth0"], capture_output=True, text=True, check=True)
    assert "xdp" not in shown.stdout


def maps(place: Site) -> Path:
    return place.pins / "services" / "service"


def program_at(place: Site) -> int:
    link = Link.pinned(place.pins / "link")
    _, _, number = struct.unpack_from("<3I", info(link.fd, 64))
    link.close()
    return int(number)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["connections", "tallies", "settings"])
def test_pins_of_another_version_are_kept_and_can_be_removed(place: Site, name: str) -> None:
    opened(place).close(leave=True)
    before, old = program_at(place), Map.pinned(maps(place) / name)
    (maps(place) / name).unlink()
    flags = MAPPABLE if old.kind == ARRAY else 0
    Map.create(name, old.kind, old.key_size, old.value_size + 16, old.entries, flags).pin(maps(place) / name)
    with pytest.raises(WirelagError, match="is of another version of wirelag; --remove ends that one"):
        opened(place)
    assert program_at(place) == before
    place.network.ip("point", "link set eth0 name other")  # removal does not need the interface
    place.configure([1])
    for said in ("", "nothing is pinned there"):
        assert said in wirelag("balance", "--config", place.config, "--remove").stderr
        assert not place.pins.exists()
    until(lambda: "xdp" not in place.network.run("point", "ip", "-d", "link", "show", "other"), "the program detached")


def test_pins_in_the_folder_itself_are_of_another_version(place: Site) -> None:
    opened(place).close(leave=True)
    Map.create("settings", ARRAY, 4, 128, 1, MAPPABLE).pin(place.pins / "settings")  # as versions before services did
    with pytest.raises(WirelagError, match="is of another version of wirelag; --remove ends that one"):
        opened(place)
    assert remove_balancer(str(place.pins))
    assert not place.pins.exists()


@pytest.mark.acceptance
def test_a_dead_backend_does_not_stop_the_others(place: Site) -> None:
    place.configure([1, 2, 3], EQUAL)
    first = place.steer()
    os.kill(first.pid, signal.SIGKILL)
    place.network.ip("server3", "link set eth0 down")
    place.network.ip("point", "neigh del 10.5.0.13 dev eth0")
    again = place.steer("again")
    assert "taken over" in again.said()
    assert "left out" not in again.said(), "its MAC address is in the kernel"
    until(lambda: set(last(again)) == {"server1", "server2", "server3"}, "server3")
    again.stop()

    shutil.rmtree(place.pins)
    anew = place.steer("anew")
    assert "server3: 10.5.0.13: no reply on eth0" in anew.said()
    until(lambda: set(last(anew)) == {"server1", "server2"}, "server3 left out")
    place.network.ip("server3", "link set eth0 up")
    until(lambda: set(last(anew)) == {"server1", "server2", "server3"}, "server3 noticed")
    assert "server3: 10.5.0.13 answers now" in anew.said()
    anew.stop()


def settings(place: Site) -> bytes:
    one = Map.pinned(maps(place) / "settings")
    found = one.lookup(0)
    one.close()
    assert found
    return found


@pytest.mark.acceptance
def test_a_missing_interface_is_reported_and_can_be_replaced(place: Site) -> None:
    balancer = opened(place)
    balancer.set_backends([Backend("server1", "10.5.0.11", Way(MACS[0]))])
    balancer.set_table(np.zeros(251, np.int32))
    balancer.close(leave=True)
    place.network.ip("point", "link add spare type veth peer name other")
    before = settings(place)
    with pytest.raises(WirelagError, match="is at another interface"):
        opened(place, interface="spare")
    assert settings(place) == before, "who is refused changes nothing"
    with pytest.raises(WirelagError, match="eth0: another XDP program is attached there"):
        opened(place, pins=f"{place.pins}-other")
    assert not Path(f"{place.pins}-other").exists()
    balancer = opened(place)
    balancer.read()
    place.network.ip("point", "link del eth0")
    with pytest.raises(WirelagError, match="the interface is gone"):
        balancer.read()
    balancer.close(leave=True)
    balancer = opened(place, interface="spare")
    assert "XDP at spare (native, taken over)" in balancer.description
    assert balancer.table() is not None
    balancer.close(leave=False)


@pytest.mark.acceptance
def test_an_interrupted_start_is_repeated(place: Site) -> None:
    opened(place).close(leave=True)
    (place.pins / "link").unlink()
    balancer = opened(place)
    assert "taken over" not in balancer.description
    balancer.close(leave=False)


def test_three_capabilities_are_enough_and_fewer_are_one_line(place: Site, tool: Callable[[str], str]) -> None:
    place.configure([1, 2, 3])
    for lacking in ("", "perfmon"):
        kept = [f"+{name}" for name in ("bpf", "net_admin", "perfmon") if name != lacking]
        sets = [f"--{kind}={','.join(['-all', *kept])}" for kind in ("bounding-set", "inh-caps", "ambient-caps")]
        command = [*WIRELAG, "balance", "--config", str(place.config), "--for", "600ms"]
        words = place.network.command("point", [tool("setpriv"), "--securebits=+noroot", *sets, *command])
        ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        if lacking:
            assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
            assert "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON" in ran.stderr
        else:
            assert ran.returncode == 0, ran.stderr
            shutil.rmtree(place.pins)


def weighs(command: Process, number: int, least: float, most: float) -> None:
    """Wait until this server's weight lies between the two bounds."""
    name = f"server{number}"
    until(lambda: least <= last(command).get(name, {"weight": -1})["weight"] <= most, f"{name} at {least} to {most}")


def listed(place: Site, command: Process, numbers: set[int]) -> None:
    """Reload the command with these servers, and wait until it has no others."""
    place.configure(sorted(numbers))
    os.kill(command.pid, signal.SIGHUP)
    until(lambda: set(last(command)) == {f"server{number}" for number in numbers}, f"{numbers}")


def turn(place: Site, first: Process, number: int) -> Process:
    """Slow, killed, taken over, normal, drained, added, stopped, taken over."""
    ill = 1 + number % 3
    place.slow(ill)
    weighs(first, ill, 0, 0.05)
    os.kill(first.pid, signal.SIGKILL)
    traffic(place, *({1, 2, 3} - {ill}))
    second = place.steer(f"second{number}")
    assert "taken over" in second.said()
    weighs(second, ill, 0, 1)
    assert entries(second)[0]["backends"][ill - 1]["weight"] < 0.1, "the last weights are the first"
    place.well(ill)
    weighs(second, ill, 0.25, 1)
    listed(place, second, {1, 2, 3} - {ill})
    listed(place, second, {1, 2, 3})
    weighs(second, ill, 0.25, 1)
    second.stop()
    traffic(place, 1, 2, 3)
    third = place.steer(f"third{number}")
    weighs(third, ill, 0.2, 1)
    for command in (first, second, third):
        assert min(one["weight"] for said in entries(command) for one in said["backends"] if one["weight"]) >= FLOOR
    return third


@pytest.mark.acceptance
def test_clients_do_not_notice_changes_of_backends_and_controllers(place: Site) -> None:
    place.configure([1, 2, 3])
    command = place.steer()
    client = place.ask(48, LONG_S, SHORT_LIVES)
    for number in range(5):
        command = turn(place, command, number)
    asked = stop_client(client, place)
    assert len(asked) > 10_000
    assert not any(entries(command)[-1]["counters"].values())


@pytest.mark.acceptance
def test_the_required_figures() -> None:
    """The figures of experiments/balance_lab.py: about 25 minutes on an idle machine."""
    ill, mean, equal, found, dead = tables_of("balance_lab", quick=False).values()
    assert float(mean["mean"]["lower by, %"]) >= 37
    for row in (*ill.values(), *equal.values()):
        assert row["failed"] == "0"
        assert float(row["least weight"]) >= FLOOR
    (same,) = equal.values()
    assert float(same["lower by, %"].split()[0]) >= -5
    assert float(found["well: 80% of its share after, s"]["found"]) <= 15
    assert float(found["all slow: least weight, fair shares"]["found"]) > 0.5
    stays = {
        kind: float(found[f"one stays slow: p99{kind}, ms"]["found"])
        for kind in (", equal", ", aware", " of the others")
    }
    assert stays[", aware"] < 1.25 * stays[" of the others"], "p99 is that of the healthy servers"
    assert stays[", aware"] < 0.7 * stays[", equal"]
    for row in dead.values():
        assert float(row["out after, s"].split()[0]) <= 10
        after, unchecked = row["failures a second after 5 s (equal weights, no checks)"].strip(")").split(" (")
        assert float(after) < float(unchecked) / 4
    assert found["churn: failed requests"]["found"] == "0"
    assert found["churn: faults"]["found"] == "none"
