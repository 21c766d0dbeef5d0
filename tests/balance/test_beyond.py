"""Servers behind routers, in the lab: tunnels, tags, IPv6, several services; answers go to the client directly."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.balance import entries
from lab.beyond import SERVICES, Beyond, address, beyond, mac, server
from lab.clients import Load
from lab.processes import Process
from tests.support.balanced_site import LONG_S, moved
from tests.support.in_lab import IN_LAB
from tests.support.waiting import until

FOUR, OTHER, SIX = SERVICES
# Longer requests than a packet: what does not fit into a tunnel must be told to the client.
LOAD = Load(lifetime="exponential:400000", post=3000)

pytestmark = IN_LAB


def service(place: str, via: str, version: int, **more: Any) -> dict[str, Any]:
    """Settings of a service with two servers that are reached over this version of IP."""
    backends = [{"name": f"server{i}", "address": server(i, version), "via": via, **more} for i in (1, 2)]
    return {"address": place, "ports": [80], "backends": backends}


def lines(command: Process, name: str) -> list[dict[str, Any]]:
    return [one for one in entries(command) if one["service"] == name]


def slow_is_noticed(command: Process, name: str) -> bool:
    """Whether server2 has been found slow, and lost weight."""
    found = {one["name"]: one for one in lines(command, name)[-1]["backends"]}
    return bool(found["server2"]["standing"] == "slow" and found["server2"]["weight"] < 0.2)


def drive(place: Beyond, services: dict[str, dict[str, Any]], **common: Any) -> dict[str, dict[str, Any]]:
    """Balance until one server that is slow has lost its weight, in each service; return what was counted last."""
    place.configure(services, **common)
    command = place.steer()
    clients = {name: place.ask(one["address"], 8, LONG_S, LOAD) for name, one in services.items()}
    until(lambda: all(len(lines(command, name)) > 2 for name in services), "some intervals")
    place.slow(2)
    for name in services:
        until(lambda name=name: slow_is_noticed(command, name), f"server2 slow for {name}")  # type: ignore[misc]
    for name, client in clients.items():
        client.stop()
        said = json.loads(client.said())
        assert said["asked"] == said["answered"] > 100, name
        asked = place.asked(services[name]["address"])
        assert not asked["failed"].any()
        assert moved(asked) == 0
        assert set(asked["server"].tolist()) == {1, 2}
        seen = [
            (o["latency"], o["latency_samples"]) for o in lines(command, name)[-1]["backends"] if o["name"] == "server1"
        ]
        late_s = np.median(asked["answered_ns"] - asked["asked_ns"]) / 1e9
        assert late_s / 3 < seen[0][0] < 3 * late_s  # of 5 ms, on a machine that may be busy
    command.stop()
    return {name: lines(command, name)[-1]["counters"] for name in services}


@pytest.fixture
def build(tmp_path: Path, tool: Callable[[str], str]) -> Callable[..., Any]:
    tool("clang")
    return lambda **how: beyond("beyond", tmp_path, seed=1, **how)


def test_two_services_through_two_kinds_of_tunnels(build: Callable[..., Any]) -> None:
    """IPv4 in IPv4, and IPv6 in UDP in IPv6; health checks go to the same addresses as the tunnels."""
    services = {"web": service(FOUR, "ipip", 4), "six": service(SIX, "gue", 6)}
    with build() as place:
        counted = drive(place, services)
    for counters in counted.values():
        assert counters["too_long"] > 0  # and clients sent shorter ones: no request has failed
        assert not {name for name, count in counters.items() if count} - {"too_long", "unknown"}


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("place", "via", "version"),
    [(FOUR, "ipip", 4), (FOUR, "gue", 4), (FOUR, "ipip", 6), (FOUR, "gue", 6), (SIX, "ipip", 6), (SIX, "gue", 6)],
)
def test_each_kind_of_tunnel(build: Callable[..., Any], place: str, via: str, version: int) -> None:
    with build() as network:
        assert drive(network, {"web": service(place, via, version)})["web"]["too_long"] > 0


@pytest.mark.acceptance
@pytest.mark.parametrize("via", ["ipip", "gue"])
def test_tagged_frames_come_and_go_with_their_tag(build: Callable[..., Any], via: str) -> None:
    """The point's own stack has no part in the VLAN: its settings name the router and the source."""
    tunnel = {"source": [address(2), address(2, 6)]}
    router = {"mac": mac(2, router=True)}
    services = {"web": service(FOUR, via, 4, **router), "six": service(SIX, via, 6, **router)}
    for one in services.values():
        one |= {"tunnel": tunnel, "health": {"check": "none"}}
    with build(trunk=True) as network:
        drive(network, services)


@pytest.mark.acceptance
def test_a_server_behind_a_tunnel_that_dies_is_taken_out(build: Callable[..., Any]) -> None:
    with build() as place:
        place.configure({"web": service(FOUR, "gue", 4), "api": service(OTHER, "ipip", 4)})
        command = place.steer()
        client = place.ask(FOUR, 8, LONG_S, Load(lifetime="exponential:300000", patience_us=1_000_000))
        until(lambda: len(lines(command, "web")) > 4, "some intervals")
        place.servers[2].stop()
        for name in ("web", "api"):
            until(
                lambda name=name: (
                    {o["name"]: o["standing"] for o in lines(command, name)[-1]["backends"]}["server2"]  # type: ignore[misc]
                    == "down"
                ),
                f"server2 down for {name}",
            )
        client.stop()
        command.stop()
