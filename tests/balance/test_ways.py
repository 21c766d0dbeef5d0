"""How frames reach a backend: neighbours, next routers, and what a route does not say."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.beyond import FORWARDS, SIX, UNDOUBTED
from lab.network import Network
from tests.support.balancer_packets import CONFIG
from tests.support.in_lab import IN_LAB
from wirelag.balance.settings import BackendSettings, Config, TunnelSettings
from wirelag.balance.ways import way_to
from wirelag.capture.next_hop import NextHop, next_hop
from wirelag.ebpf.service import Way
from wirelag.errors import WirelagError

pytestmark = IN_LAB
ROUTER = bytes.fromhex("02060000000a")
OWN = "02:06:00:00:00:01"


@pytest.fixture
def network() -> Iterator[Network]:
    """A point with two cables to a router: 10.8.1.0/24 and 10.8.2.0/24, and IPv6 on the first."""
    network = Network("ways")
    network.clear()
    try:
        for host in ("point", "router"):
            network.add(host, *SIX, *UNDOUBTED, *FORWARDS)
        network.link("router", "one", "point", "eth0", OWN)
        network.link("router", "two", "point", "eth1", "02:06:00:00:00:02")
        network.ip("router", f"link set one address {ROUTER.hex(':')}")
        for number, (there, here) in enumerate((("one", "eth0"), ("two", "eth1")), 1):
            network.ip("router", f"addr add 10.8.{number}.254/24 dev {there}")
            network.ip("point", f"addr add 10.8.{number}.1/24 dev {here}")
        network.ip("router", "addr add fd08::254/64 dev one nodad")
        network.ip("point", "addr add fd08::1/64 dev eth0 nodad")
        network.ip("point", "route add 10.9.0.0/24 via 10.8.1.254")
        network.ip("point", "route add 10.9.1.0/24 via 10.8.2.254")
        network.ip("point", "-6 route add fd09::/64 via fd08::254")
        yield network
    finally:
        network.down()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "lb.toml"
    path.write_text('interface = "eth0"\n' + CONFIG, encoding="utf-8")
    return Config.load(str(path))


def test_the_way_is_the_kernel_s_route(network: Network, config: Config) -> None:
    def way(address: str, via: str = "ipip", mac: bytes | None = None) -> Way:
        return way_to(BackendSettings("a", address, mac, 1.0, via), config, 5.0)  # type: ignore[arg-type]

    with network.inside("point"):
        assert next_hop("10.9.0.7") == NextHop("eth0", "10.8.1.254", "10.8.1.1")
        assert next_hop("10.8.2.9") == NextHop("eth1", "10.8.2.9", "10.8.2.1")
        assert next_hop("fd09::7") == NextHop("eth0", "fd08::254", "fd08::1")
        assert way("10.9.0.7") == Way(ROUTER, "10.8.1.1")
        assert way("fd09::7", "gue") == Way(ROUTER, "fd08::1")
        assert way("10.8.1.254") == Way(ROUTER, "10.8.1.1")  # on the link itself
        assert way("10.8.1.254", "l2") == Way(ROUTER)
        given = bytes.fromhex("020000000009")
        assert way("10.9.1.7", mac=given) == Way(given, "10.8.2.1")
        with pytest.raises(WirelagError, match=r"10.9.1.7: the route leaves by eth1, not by eth0: .*set its mac"):
            way("10.9.1.7")
        with pytest.raises(WirelagError, match=r"192.0.2.1: no route \(network is unreachable\): add one"):
            way("192.0.2.1")
        with pytest.raises(WirelagError, match=r"10.8.1.1: the route leads to no other host"):
            way("10.8.1.1")
        config = replace(config, tunnel=TunnelSettings(("192.0.2.9", "2001:db8::9")))
        assert way("192.0.2.1", mac=given) == Way(given, "192.0.2.9")  # needs no route
        assert way("fd09::7") == Way(ROUTER, "2001:db8::9")


def test_a_vlan_has_the_mac_address_of_its_interface(network: Network, config: Config) -> None:
    network.ip("point", "link set eth1 down")
    network.ip("point", f"link set eth1 address {OWN}")
    network.ip("point", "link set eth1 up")
    network.ip("router", "link set two address 02:06:00:00:00:0b")
    with network.inside("point"):
        assert way_to(BackendSettings("a", "10.8.2.254", None, 1.0), config, 5.0) == Way(bytes.fromhex("02060000000b"))
