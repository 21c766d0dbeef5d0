"""Several services in one file: settings, one data plane, output, takeover service by service."""

import json
import struct
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Lock

import pytest

from lab.balance import Site, site
from lab.network import POINT, mac_of
from tests.support import needs
from tests.support.balance_loop import steered, well
from tests.support.balancer_packets import MACS
from tests.support.balancer_program import PASS, REDIRECT, ROUTER, SYN, Packet, ip, mac
from tests.support.command import wirelag
from tests.support.in_lab import IN_LAB
from tests.support.places import ROOT
from tests.support.waiting import PATIENCE_S
from wirelag.balance.maglev import maglev
from wirelag.balance.metrics import Totals, exporter
from wirelag.balance.settings import Config
from wirelag.ebpf.balance import Balancers, Wanted, open_balancers
from wirelag.ebpf.bpf import XDP, Link, Program, call, info
from wirelag.ebpf.service import Backend, Service, Way
from wirelag.errors import WirelagError

PROGRAM_BY_NUMBER = 13  # BPF_PROG_GET_FD_BY_ID
CAPTURE = ROOT / "tests" / "data" / "balance.pcap.gz"


def backends(*numbers: int) -> str:
    rows = (f'{{name = "web{i}", address = "10.0.0.{10 + i}", mac = "{MACS[i - 1].hex(":")}"}}' for i in numbers)
    return f"backends = [{', '.join(rows)}]\n"


TWO = f"""
[policy]
high = 2
[[services]]
name = "web"
address = "192.0.2.10"
ports = [80]
{backends(1, 2)}
[[services]]
name = "names"
address = "192.0.2.10"
ports = [80]
protocol = "udp"
drain = ["web4"]
{backends(3, 4)}
[services.policy]
low = 1.1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lb.toml"
    path.write_text(TWO, encoding="utf-8")
    return path


# ---- settings ----


def test_each_service_has_its_own_settings_over_those_of_the_file(file: Path) -> None:
    web, names = Config.load_all(str(file))
    assert (web.name, web.service, web.method) == ("web", Service("192.0.2.10", (80,)), "auto")
    assert (names.name, names.service, names.method) == ("names", Service("192.0.2.10", (80,), "udp"), "modes")
    assert (web.policy.high, web.policy.low) == (2, 1.2)
    assert (names.policy.high, names.policy.low) == (2, 1.1)
    assert [one.name for one in names.backends] == ["web3", "web4"]
    assert names.draining == {"web4"}
    assert web.pins == names.pins == "/sys/fs/bpf/wirelag/lb"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('name = "names"', 'name = "web"', "services.web.name: two services have it"),
        ('name = "names"\n', "", "services.1.name: is missing: each of several services has a name"),
        (
            'name = "names"',
            'name = "a.b"',
            "services.a.b.name: 'a.b' is not a name: use 1 to 64 letters, digits, - and _",
        ),
        ('protocol = "udp"\n', "", "services.names: web has 192.0.2.10, port 80, too"),
        ('drain = ["web4"]', 'drain = ["web1"]', "services.names.drain: unknown backend web1; did you mean web4?"),
        ("low = 1.1", "low = 3", "services.names.policy.low: 3 is above policy.high (2): lower it"),
        ("high = 2", "high = 200", "policy.high: 200 is out of range: 1.05 to 100"),
        ("[policy]", "[service]\naddress = '192.0.2.1'\n[policy]", "service: there are [[services]]: write it into"),
        (
            'drain = ["web4"]',
            'interval = "1s"',
            "services.names.interval: is the same for all services: write it above",
        ),
        ('drain = ["web4"]', 'via = "ipip"', "services.names.via: unknown setting"),
        (
            'address = "192.0.2.10"\nports = [80]\nprotocol',
            "ports = [80]\nprotocol",
            "services.names.address: is missing",
        ),
    ],
)
def test_a_mistake_has_its_place_and_a_way_out(file: Path, before: str, after: str, said: str) -> None:
    assert before in TWO
    file.write_text(TWO.replace(before, after), encoding="utf-8")
    done = wirelag("balance", "--config", file, "--check", code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_mistakes_in_tunnels(file: Path) -> None:
    tunnel = '[[services]]\nname = "six"\naddress = "2001:db8::1"\n'
    tunnel += 'backends = [{name = "a", address = "10.0.0.1", via = "gue"}]\n'
    for more, said in (
        (tunnel, "services.six.backends.a.address: an IPv6 service needs an IPv6 address at the end of a tunnel"),
        (
            tunnel.replace("10.0.0.1", "2001:db8::2") + "[services.tunnel]\nmtu = 1300\n",
            "services.six.tunnel.mtu: 1300 is too small for IPv6: at least 1328",
        ),
        (
            tunnel.replace("10.0.0.1", "2001:db8::2") + '[services.tunnel]\nsource = ["10.0.0.1", "10.0.0.2"]\n',
            "services.six.tunnel.source: two of the same version",
        ),
        (tunnel.replace("gue", "gre"), "services.six.backends.a.via: 'gre' is not one of l2, ipip, gue"),
    ):
        file.write_text(TWO + more, encoding="utf-8")
        assert said in wirelag("balance", "--config", file, "--check", code=2).stderr
    router = 'mac = "02:00:00:00:00:99"'
    file.write_text(
        f'[service]\naddress = "10.1.0.1"\n[[backends]]\nname = "a"\naddress = "10.7.0.1"\nvia = "ipip"\n{router}\n'
        f'[[backends]]\nname = "b"\naddress = "fd00::7"\nvia = "gue"\n{router}\n',  # one router may lead to both
        encoding="utf-8",
    )
    said = wirelag("balance", "--config", file, "--check").stdout
    assert "a: 10.7.0.1, IP in IP by 02:00:00:00:00:99, 50.0%" in said
    assert "b: fd00::7, IP in UDP to port 6080 by 02:00:00:00:00:99, 50.0%" in said


# ---- output ----


def test_a_dry_run_has_a_line_for_each_service(file: Path) -> None:
    done = wirelag("balance", "--config", file, "--dry-run", "--speed", "max", "-r", CAPTURE)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["service"] for line in lines[:4]] == ["web", "names", "web", "names"]
    assert all(line["backends"][0]["name"] == {"web": "web1", "names": "web3"}[line["service"]] for line in lines)
    assert sum(back["requests"] for line in lines if line["service"] == "web" for back in line["backends"]) > 100
    assert not any(back["packets"] for line in lines if line["service"] == "names" for back in line["backends"])
    assert "tunnels" not in done.stderr


def test_a_dry_run_says_that_it_does_not_look_into_tunnels(file: Path) -> None:
    file.write_text(TWO.replace('{name = "web2"', '{via = "ipip", name = "web2"'), encoding="utf-8")
    done = wirelag("balance", "--config", file, "--dry-run", "--for", "1s", "--speed", "max", "-r", CAPTURE)
    assert "web: packets in tunnels are not looked into: nothing will be known of web2" in done.stderr


def test_metrics_have_the_service(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason=needs.LIVE)
    path, totals = tmp_path / "one.toml", list[Totals]()
    for name in ("web", "api"):
        path.write_text(f'{backends(1, 2)}[service]\nname = "{name}"\naddress = "192.0.2.10"\n', encoding="utf-8")
        dataplane, balancer = steered(path)
        totals.append(Totals(name))
        totals[-1].add(balancer.step(dataplane.reading(web1=well(), web2=well())))
    served = exporter("127.0.0.1:0", Lock(), totals)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
    finally:
        served.close()
    for name in ("web", "api"):
        assert f'wirelag_balance_weight{{backend="web1",service="{name}"}} 0.5' in text
    assert text.count("# TYPE wirelag_balance_weight gauge") == 1


# ---- the kernel ----


def wanted(name: str, service: Service) -> Wanted:
    return Wanted(
        name=name, service=service, table_size=251, connections=1024, most_backends=8, idle_ns=10**11, method="modes"
    )


WEB = wanted("web", Service("10.5.0.100", (80, 443)))
REST = wanted("rest", Service("10.5.0.100", ()))
DATAGRAMS = wanted("datagrams", Service("10.5.0.100", (80,), "udp"))
SIX = wanted("six", Service("fd00::100", (80,)))


@pytest.fixture
def place(tmp_path: Path, tool: Callable[[str], str]) -> Iterator[Site]:
    tool("clang")
    with site("services", tmp_path, seed=1, servers=1) as built:
        yield built


def serve(opened: Balancers, first: int = 1) -> None:
    """Give each service one backend of its own."""
    for number, one in enumerate(opened.services, first):
        slots = one.set_backends([Backend("only", "10.5.0.11", Way(mac(number)))])
        one.set_table(maglev({"only": 1.0}, slots, 251))


@IN_LAB
def test_each_packet_reaches_its_service(place: Site) -> None:
    with place.network.inside("point"):
        opened = open_balancers([WEB, REST, DATAGRAMS, SIX], "eth0", str(place.pins))
        link = Link.pinned(place.pins / "link")
        (number,) = struct.unpack_from("<I", info(link.fd, 64), 8)
        fd, _ = call(PROGRAM_BY_NUMBER, struct.pack("<I8x", number))
        front, own = Program(fd, "front", XDP), bytes.fromhex(mac_of(POINT).replace(":", ""))
    try:
        serve(opened)
        base = Packet(vip="10.5.0.100", to=own, flags=SYN, payload=0)
        cases = {
            base: 1,
            replace(base, service_port=443): 1,
            replace(base, service_port=8080): 2,
            replace(base, protocol=17): 3,
            replace(base, vip="fd00::100", client="fd00:2::1"): 4,
            replace(base, vip="fd00::100", client="fd00:2::1", service_port=81): 0,
            replace(base, protocol=17, service_port=81): 0,
            replace(base, vip="10.5.0.101"): 0,
        }
        for packet, service in cases.items():
            plain = packet.frame()
            for frame in (plain, plain[:12] + b"\x81\x00\x00\x07" + plain[12:]):
                ran = front.run(frame)
                assert (ran.result, ran.frame[:6]) == ((REDIRECT, mac(service)) if service else (PASS, own))
        error = struct.pack(">BBHHH", 3, 4, 0, 0, 1400)
        for port, service in ((80, 1), (8080, 2)):  # an error about a packet of the service finds it
            quoted = ip("10.5.0.100", "10.2.0.1", 6, struct.pack(">HHI", port, 40000, 1))[2:]
            ran = front.run(own + ROUTER + ip("10.9.9.9", "10.5.0.100", 1, error + quoted))
            assert (ran.result, ran.frame[:6]) == (REDIRECT, mac(service))
        ran = front.run(replace(base, fragment=0x0010).frame())
        assert ran.result == PASS
        faults = [one.read().counters["fragments"] for one in opened.services]
        assert faults == [1, 0, 0, 0]
    finally:
        front.close()
        link.close()
        opened.close(leave=False)
    assert not place.pins.exists()


@IN_LAB
def test_services_are_taken_over_one_by_one(place: Site) -> None:

    def opened(*services: Wanted) -> Balancers:
        with place.network.inside("point"):
            return open_balancers(services, "eth0", str(place.pins))

    first = opened(WEB)
    serve(first)
    first.close(leave=True)
    assert sorted(path.name for path in place.pins.iterdir()) == ["link", "services"]
    both = opened(DATAGRAMS, WEB)  # one more, and the front program
    assert [one.table() is None for one in both.services] == [True, False]
    assert both.services[1].backends() == (Backend("only", "10.5.0.11", Way(mac(1))),)
    assert both.gone == ()
    both.close(leave=True)
    assert sorted(path.name for path in place.pins.iterdir()) == ["link", "programs", "services"]
    with pytest.raises(WirelagError, match="services/web: the balancer there has another service"):
        opened(wanted("web", SIX.service), DATAGRAMS)
    again = opened(WEB, SIX)
    assert again.gone == ("datagrams",)
    assert again.services[0].table() is not None
    again.close(leave=True)
    last = opened(WEB)
    assert last.gone == ("six",)
    assert sorted(path.name for path in place.pins.iterdir()) == ["link", "services"]
    last.close(leave=False)
    assert not place.pins.exists()
