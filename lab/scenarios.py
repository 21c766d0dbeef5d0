"""The lab's scenarios as data: a server, a client, a wire.

`held_back` returns the same scenario with other service times and sizes: parameters are chosen on one and scored on the
other.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product

from lab.clients import Client, GrpcCalls, H2load, Http3Load, Https, Load, Person, RedisBenchmark, SmbClient, Wrk
from lab.servers import Gateway, Grpc, Http3, Httpd, Memcached, Nginx, Redis, Samba, Server, Sshd, Udpd
from lab.wire import Direction, Wire

FAR = Wire(Direction(5000), Direction(5000))
WIDE = Wire(Direction(35000), Direction(35000))
LOSSY = Wire(Direction(5000, loss=0.01), Direction(5000, loss=0.01))
REORDERING = Wire(Direction(5000, held=0.25, hold_us=4000), Direction(5000))


@dataclass(frozen=True)
class Scenario:
    """One row of the table of scenarios."""

    name: str
    server: Server
    client: Client
    wire: Wire | None = None
    connections: int = 20
    seconds: float = 6.0
    tunnels: int = 0  # number of clients, the connections of each in one flow of datagrams
    wireguard: bool = False  # tunnels are WireGuard's
    join_after_s: float = 0.0  # the recorder starts this long after the client
    timestamps: bool = True  # TCP timestamps
    both: bool = False  # also record both directions at the client


def _few(scenario: Scenario) -> Scenario:
    """Servers without service time: few connections, for longer, so that clients need not wait for a processor."""
    return replace(scenario, connections=4, seconds=28)


def _single() -> list[Scenario]:
    """One request in flight."""
    exponential = Httpd("exponential:2000")
    return [
        Scenario("w1-constant", Httpd("constant:2000"), Load()),
        Scenario("w1-exponential", exponential, Load()),
        Scenario("w1-exponential-20ms", Httpd("exponential:20000"), Load()),
        Scenario("w1-bimodal", Httpd("bimodal:2000:20000:0.3"), Load()),
        Scenario("w1-pareto", Httpd("pareto:3000:1.5"), Load()),
        Scenario("w1-post-8k", exponential, Load(post=8192)),
        Scenario("w1-20k", exponential, Load(response="constant:20000")),
        Scenario("w1-300k", Httpd("exponential:5000"), Load(response="constant:300000")),
        _few(Scenario("w1-nginx", Nginx((2000,)), Load(response="constant:2000"))),
    ]


def _several() -> list[Scenario]:
    """Several in flight. Parallel servers take longer, so that clients send about as often."""
    scenarios = []
    for w, order in product((4, 16), ("parallel", "serial")):
        server = Httpd("exponential:2000" if order == "serial" else f"exponential:{w * 1250}", order)
        scenarios += [
            Scenario(f"w{w}-{order}-lan", server, Load(in_flight=w)),
            Scenario(f"w{w}-{order}-far", server, Load(in_flight=w), FAR),
            Scenario(f"w{w}-batch-{order}", server, Load("batch", w)),
        ]
    return scenarios


def _others() -> list[Scenario]:
    exponential = "exponential:2000"
    pages = Load("pages", 4, response="constant:10000")
    varied = Load("open", response="uniform:100:3000", request="uniform:60:1200")
    tenth = Load(think="constant:50000", think_share=0.1)
    return [
        Scenario("pages-equal", Httpd("exponential:5000", "serial"), pages),
        Scenario("pages-varied", Httpd("exponential:10000", "serial"), replace(pages, response="page"), None, 10, 12),
        Scenario("think-tenth", Httpd(exponential), tenth),
        Scenario("think-all", Httpd(exponential), Load(think="exponential:20000", think_share=1)),
        Scenario("think-no-timestamps", Httpd(exponential), tenth, timestamps=False),
        Scenario("w4-no-timestamps", Httpd("exponential:5000"), Load(in_flight=4), timestamps=False),
        Scenario("w1-loss", Httpd(exponential), Load(), LOSSY),
        Scenario("w4-loss", Httpd(exponential), Load(in_flight=4), LOSSY),
        Scenario("w1-reordering", Httpd(exponential), Load(), REORDERING),
        Scenario("w4-reordering", Httpd(exponential), Load(in_flight=4), REORDERING),
        _few(Scenario("redis-w1", Redis(), Load(format="redis"))),
        _few(Scenario("redis-w4", Redis(), Load(in_flight=4, format="redis"))),
        _few(Scenario("memcached-w1", Memcached(), Load(format="memcached"))),
        _few(Scenario("memcached-w4", Memcached(), Load(in_flight=4, format="memcached"))),
        _few(Scenario("memcached-w4-batch", Memcached(), Load("batch", 4, "memcached"))),
        Scenario("open-equal", Httpd(exponential), Load("open", request="constant:100")),
        Scenario("open-varied", Httpd(exponential), varied),
        Scenario("udp-w1", Udpd(exponential), Load(format="udp", request="constant:100")),
        Scenario("udp-w4", Udpd("exponential:5000"), Load(in_flight=4, format="udp", request="constant:100")),
        Scenario("http3-w1", Http3("exponential:20000"), Http3Load(), connections=10, seconds=12),
        Scenario("http3-w4", Http3("exponential:50000"), Http3Load(4), connections=10, seconds=12),
        Scenario("tunnel", Httpd("exponential:50000"), Load(), connections=20, seconds=11, tunnels=10),
        Scenario("joined", Httpd("exponential:5000"), Load(in_flight=4), seconds=8, join_after_s=1.5),
        Scenario("staggered", Httpd(exponential, pieces=5, gap_us=2000), Load(in_flight=4, response="constant:100000")),
        Scenario("paced-responses", Httpd(exponential, pace_mbit=80), Load(response="constant:50000")),
        Scenario("paced-requests", Httpd(exponential), Load("batch", 4, pace_us=500)),
        Scenario("short-flows", Httpd(exponential), Load(each=50)),
        Scenario("quota", Httpd("exponential:1000", burn=True, cpu_shares=(0.4,)), Load(), connections=4, seconds=28),
        Scenario("wrk", Httpd(exponential), Wrk(), both=True),
        Scenario("redis-benchmark", Redis(), RedisBenchmark(), both=True),
        Scenario("redis-benchmark-p4", Redis(), RedisBenchmark(4), both=True),
    ]


def _datagrams() -> list[Scenario]:
    """Datagrams: acknowledged by others, in streams, of TCP in WireGuard, and of several streams in QUIC."""
    scenarios = [
        Scenario("udp-clock", Udpd(), Load("clock", format="udp", request="constant:172", rate=50)),
        Scenario("udp-open", Udpd(), Load("open", format="udp", request="constant:172", rate=50)),
        Scenario("wireguard-w1", Httpd("exponential:20000"), Load(), None, 1, 11, tunnels=5, wireguard=True),
        Scenario("wireguard", Httpd("exponential:50000"), Load(), None, 20, 11, tunnels=5, wireguard=True),
        Scenario("http3-20k", Http3("exponential:20000"), Http3Load(response=20000), connections=10, seconds=12),
    ]
    for w in (2, 16):
        scenarios.append(
            Scenario(f"http3-w{w}", Http3(f"exponential:{w * 12500}"), Http3Load(w), connections=10, seconds=12)
        )
    for w in (1, 2, 4, 16):
        asks = Load(in_flight=w, format="udp", request="constant:100", ack="constant:20")
        server = Udpd(f"exponential:{max(2000, w * 1250)}")
        scenarios += [
            Scenario(f"udp-ack-w{w}", server, asks),
            Scenario(f"udp-ack-half-w{w}", server, replace(asks, ack="bimodal:20:36:0.5", ack_every=2)),
            Scenario(f"udp-ack-late-w{w}", server, replace(asks, ack_delay_us=5000)),
        ]
    return scenarios


def _wide_area() -> list[Scenario]:
    """Wide area, today's protocols, and clients that are persons or wait for events."""
    pages = Load("pages", 4, response="constant:10000")
    exponential = Httpd("exponential:10000")
    quick, slow = "exponential:10000", "exponential:40000"
    typing = Scenario("ssh-person", Sshd(), Person(), connections=10, seconds=10, both=True)
    files = Scenario("smb", Samba(), SmbClient(rate=100), connections=4, seconds=10, both=True)
    http2 = Scenario("http2-w1", Gateway(quick), H2load(), connections=10, seconds=10)
    grpc = Scenario("grpc-w1", Grpc(), GrpcCalls(), connections=8, seconds=10)
    return [
        Scenario("pages-equal-wide", Httpd("exponential:5000", "serial"), pages, WIDE, seconds=10),
        Scenario("pages-varied-wide", Httpd(quick, "serial"), replace(pages, response="page"), WIDE, seconds=10),
        http2,
        replace(http2, name="http2-w4", server=Gateway(slow), client=H2load(4)),
        replace(http2, name="http2-w16-20k", server=Gateway(slow), client=H2load(16, 20000)),
        replace(http2, name="http2-w4-far", server=Gateway(slow), client=H2load(4), wire=FAR),
        grpc,
        replace(grpc, name="grpc-w4", client=GrpcCalls(4), server=Grpc("exponential:50000")),
        replace(grpc, name="grpc-w4-20k-far", client=GrpcCalls(4, 20000), server=Grpc("exponential:50000"), wire=FAR),
        Scenario("tls-tickets", Gateway(quick, tls=True), Https(tls=True, each=50), connections=10, seconds=10),
        Scenario("tls-far", Gateway(quick, tls=True), Https(tls=True), FAR, 10, 10),
        Scenario("tls-20k", Gateway(quick, tls=True), Https(tls=True, response=20000), connections=10, seconds=10),
        Scenario("parts", exponential, Https(parts=3, gap_us=2000), connections=10, seconds=10),
        Scenario("parts-at-once", exponential, Https(parts=4), connections=10, seconds=10),
        Scenario("long-polls", Httpd("exponential:1000000"), Load(), connections=40, seconds=12),
        Scenario("long-polls-some", Httpd("bimodal:5000:1500000:0.2"), Load(), connections=40, seconds=12),
        typing,
        replace(typing, name="ssh-person-far", wire=FAR),
        files,
        replace(files, name="smb-far", client=SmbClient(), wire=FAR),
    ]


SCENARIOS = {
    scenario.name: scenario for scenario in (*_single(), *_several(), *_others(), *_datagrams(), *_wide_area())
}


NEEDS: dict[type[Server | Client], tuple[str, str]] = {
    H2load: ("h2load", "apt-get install nghttp2-client"),
    Grpc: ("grpc", "pip install grpcio"),
    Sshd: ("sshd", "apt-get install openssh-server"),
    Samba: ("smbd", "apt-get install samba smbclient"),
}  # programs or modules that few machines have


def missing(scenario: Scenario) -> str:
    """What the scenario needs and this machine lacks, and the command that installs it; empty: nothing."""
    for part in (scenario.server, scenario.client):
        name, command = NEEDS.get(type(part), ("", ""))
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin") or (name == "grpc" and find_spec(name))
        if name and not found:
            return f"needs {name} (run: {command})"
    return ""


def held_back(scenario: Scenario, service: float = 1.6, size: float = 0.7) -> Scenario:
    """The same with service times and sizes multiplied by these factors."""
    server, client = scenario.server, scenario.client
    if isinstance(server, Httpd | Udpd | Http3 | Gateway | Grpc):
        server = replace(server, service=_times(server.service, service))
    elif not isinstance(server, Sshd):
        server = replace(server, sizes=[int(bytes_ * size) for bytes_ in server.sizes])
    if isinstance(client, Load):
        client = replace(client, response=_times(client.response, size), post=int(client.post * size))
    elif isinstance(client, Http3Load | Wrk | Https | H2load | GrpcCalls | SmbClient):
        client = replace(client, response=int(client.response * size))
    return replace(scenario, server=server, client=client)


def _times(distribution: str, factor: float) -> str:
    """A distribution with its times or sizes, but not shares or exponents, multiplied by this factor."""
    name, *numbers = distribution.split(":")
    scaled = {"constant": 1, "uniform": 2, "exponential": 1, "bimodal": 2, "pareto": 1, "lognormal": 1, "page": 0}[name]
    return ":".join([name, *(str(round(float(x) * factor)) if i < scaled else x for i, x in enumerate(numbers))])
