"""OSPF link-state databases.

`data/ospf.json` is the output of FRRouting 8.4.4 at the first of four routers. Three share a network, 10.0.0.0/24, and
leave it at costs of 10, 20 and 30; two point-to-point links join the third and the fourth.
"""

import copy
import json
import shutil
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from tests.support import needs
from tests.support.places import DATA
from wirelag.errors import WirelagError
from wirelag.network.ospf import read_dump
from wirelag.network.topology import Topology, read_topology

DUMP = DATA / "ospf.json"
COSTS = {(1, 2): 10, (1, 3): 10, (2, 1): 20, (2, 3): 20, (3, 1): 30, (3, 2): 30, (3, 4): 8, (4, 3): 9}


def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    router, network = (json.loads(line) for line in DUMP.read_text().splitlines())
    return router, network


def routers(router: dict[str, Any]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = router["routerLinkStates"]["areas"]["0.0.0.0"]
    return listed


def costs(topology: Topology) -> dict[tuple[int, int], int]:
    return {(int(link.source[-1]), int(link.target[-1])): link.weight for link in topology.links}


def settled(*dump: object) -> Topology:
    return read_dump("dump", list(dump)).settle()


def test_a_dump() -> None:
    topology = read_topology(DUMP)
    assert topology.routers == tuple(f"10.255.0.{number}" for number in (1, 2, 3, 4))
    assert costs(topology) == COSTS
    assert topology.notes == ("2 duplicate links: the cheapest kept",)
    lan = ip_network("10.0.0.0/24")
    assert {router[-1]: lan in prefixes for router, prefixes in topology.prefixes.items()} == {
        "1": True,
        "2": True,
        "3": True,
        "4": False,
    }
    assert topology.prefixes["10.255.0.4"] == tuple(
        ip_network(text) for text in ("10.255.0.4/32", "10.0.31.0/31", "10.0.32.0/31", "192.168.4.0/24")
    )


def test_names(tmp_path: Path) -> None:
    names = {f"10.255.0.{number}": f"r{number}" for number in (1, 2, 3, 4)}
    file = tmp_path / "dump"
    file.write_text(DUMP.read_text() + json.dumps({"hostnames": names}))
    topology = read_topology(file)
    assert topology.routers == ("r1", "r2", "r3", "r4")
    assert topology.prefixes.keys() == set(topology.routers)
    router, network = documents()
    file.write_text(json.dumps({"router": router, "network": network, "hostnames": names}))
    assert read_topology(file) == topology


def test_layouts_of_other_versions() -> None:
    router, network = documents()
    by_address = {
        "routerId": "10.255.0.1",
        "Router Link States": {"0.0.0.0 [Stub]": {one["linkStateId"]: one for one in routers(router)}},
    }
    (lan,) = network["networkLinkStates"]["areas"]["0.0.0.0"]
    lan["attachedRouters"] = lan.pop("attchedRouters")
    assert costs(settled(by_address, {"Net Link States": {"0.0.0.0 [Stub]": {"10.0.0.3": lan}}})) == COSTS


def test_a_link_counts_only_if_both_ends_announce_it() -> None:
    router, network = documents()
    gone = routers(router)[3]["routerLinks"]
    del gone["link1"], gone["link3"]
    (lan,) = network["networkLinkStates"]["areas"]["0.0.0.0"]
    del lan["attchedRouters"]["10.255.0.2"]
    topology = settled(router, network)
    assert costs(topology) == {(1, 3): 10, (3, 1): 30}
    assert topology.notes == (
        "3 links advertised by only one end: left out, as in OSPF",
        "2 routers without a link",
    )


def test_the_newest_advertisement_counts_unless_withdrawn() -> None:
    router, network = documents()
    newer = copy.deepcopy(routers(router)[2])
    newer["lsaSeqNumber"] = "8000000a"
    newer["routerLinks"]["link0"]["tos0Metric"] = 31
    routers(router).append(newer)
    routers(router)[3]["lsaAge"] = 3600
    topology = settled(router, network)
    assert costs(topology) == {(1, 2): 10, (1, 3): 10, (2, 1): 20, (2, 3): 20, (3, 1): 31, (3, 2): 31}
    assert "10.255.0.4" not in topology.routers


def test_areas_are_kept_apart() -> None:
    router, network = documents()
    areas = router["routerLinkStates"]["areas"]
    areas["0.0.0.1"] = [copy.deepcopy(routers(router)[2]), routers(router).pop(3)]
    for one in areas["0.0.0.0"]:
        one["routerLinks"] = {key: link for key, link in one["routerLinks"].items() if "neighborRouterId" not in link}
    del areas["0.0.0.1"][0]["routerLinks"]["link0"]
    topology = settled(router, network)
    assert costs(topology) == COSTS
    assert topology.notes[0] == "2 areas: routes between them are assumed to be the shortest, unlike in OSPF"


def without_networks(router: dict[str, Any], network: dict[str, Any]) -> list[object]:
    return [router]


def without_routers(router: dict[str, Any], network: dict[str, Any]) -> list[object]:
    return [network]


def without_cost(router: dict[str, Any], network: dict[str, Any]) -> list[object]:
    del routers(router)[3]["routerLinks"]["link1"]["tos0Metric"]
    return [router, network]


def with_odd_mask(router: dict[str, Any], network: dict[str, Any]) -> list[object]:
    routers(router)[3]["routerLinks"]["link2"]["networkMask"] = "255.0.255.0"
    return [router, network]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (without_networks, "the networks that routers share are missing; save the output of vtysh"),
        (without_routers, "no router links in this dump; save the output of vtysh"),
        (without_cost, "router 10.255.0.4: a link without tos0Metric, its cost"),
        (with_odd_mask, "router 10.255.0.4: 10.0.31.0/255.0.255.0 is not a network"),
    ],
)
def test_invalid_databases(change: Callable[..., list[object]], what: str) -> None:
    with pytest.raises(WirelagError) as caught:
        settled(*change(*documents()))
    assert str(caught.value).startswith(f"dump: {what}")


def test_a_running_router_is_queried_through_vtysh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake vtysh with the output of the real one; the lab's tests use a real one."""
    asked = tmp_path / "asked"
    vtysh = tmp_path / "vtysh"
    vtysh.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {asked}\n/bin/cat {DUMP}\n')
    vtysh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for source, options in (("ospf:", ""), ("ospf:r1", "-N|r1|"), ("ospf:/run/x", "--vty_socket|/run/x|")):
        assert costs(read_topology(source)) == COSTS
        commands = "-c|show ip ospf database router json|-c|show ip ospf database network json|"
        assert asked.read_text() == options + commands
    vtysh.write_text("#!/bin/sh\necho ospfd is not running\n")
    with pytest.raises(WirelagError, match=r"^ospf:: vtysh shows no links \(ospfd is not running\)"):
        read_topology("ospf:")
    vtysh.unlink()
    with pytest.raises(WirelagError, match=r"^ospf:: vtysh not found; save the output of vtysh -c 'show ip ospf"):
        read_topology("ospf:")


@pytest.mark.skipif(shutil.which("vtysh") is None, reason=needs.program("vtysh"))
def test_no_router_is_running(tmp_path: Path) -> None:
    # The second is vtysh's message for an unprivileged user.
    with pytest.raises(WirelagError, match=r"shows no links \(.*(failed to connect to any daemons|privileged user)"):
        read_topology(f"ospf:{tmp_path}/")
