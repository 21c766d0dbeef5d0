"""The balancer's program on test frames, with a clock that is set."""

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

import numpy as np
import pytest

from tests.support import needs
from wirelag.balance.maglev import maglev
from wirelag.ebpf.balance_maps import GROUP, MEASURES, SETTINGS, TABLES, UNCONFIRMED, Balancer, prepare, wanted_settings
from wirelag.ebpf.dataplane import Dataplane
from wirelag.ebpf.service import Backend, Counts, Service, Way
from wirelag.errors import WirelagError

PASS, DROP, REDIRECT = 2, 1, 4
OWN, ROUTER = bytes.fromhex("020000000002"), bytes.fromhex("020000000001")
VIP, CLIENT = "10.1.0.100", "10.2.0.1"
TABLE, GROUPS, MS = 251, 64, 1_000_000
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16


def mac(number: int) -> bytes:
    return bytes.fromhex("0200000001") + bytes([number])


def backends(*names: str) -> list[Backend]:
    return [Backend(name, f"10.1.0.{ord(name)}", Way(mac(ord(name)))) for name in names]


@dataclass(frozen=True)
class Packet:
    """A client's packet to the service."""

    port: int = 40000
    flags: int = ACK | PSH
    payload: int = 10
    seq: int = 0
    ack: int = 0
    client: str = CLIENT
    vip: str = VIP
    service_port: int = 80
    protocol: int = 6
    to: bytes = OWN
    fragment: int = 0x4000

    def transport(self) -> bytes:
        if self.protocol == 17:
            return struct.pack(">HHHH", self.port, self.service_port, 8 + self.payload, 0) + bytes(self.payload)
        ports = struct.pack(">HHII", self.port, self.service_port, self.seq, self.ack)
        return ports + struct.pack(">BBHHH", 0x50, self.flags, 500, 0, 0) + bytes(self.payload)

    def frame(self) -> bytes:
        return self.to + ROUTER + ip(self.client, self.vip, self.protocol, self.transport(), self.fragment)


def ip(source: str, target: str, protocol: int, body: bytes, fragment: int = 0x4000) -> bytes:
    """The IP packet after its ethertype."""
    ends = ip_address(source).packed + ip_address(target).packed
    if len(ends) == 8:
        return (
            b"\x08\x00" + struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), 7, fragment, 64, protocol, 0) + ends + body
        )
    return b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, len(body), protocol, 64) + ends + body


class Run:
    """The program, its maps, and a clock that is set."""

    def __init__(self, service: Service, measures: str = "modes", groups: int = GROUPS, secret: str = "") -> None:
        sizes = {"maglev": TABLES * TABLE, "backends": 16, "tallies": 16, "groups": groups}
        sizes |= {"connections": GROUP * groups, "openings": UNCONFIRMED * groups}
        self.plane = Dataplane("balance", sizes=sizes, constants={"replayed": 1, "measures": MEASURES[measures]})
        self.program = self.plane.programs["wl_balance"]
        wanted = wanted_settings(service, TABLE, groups, 10**11, 10**9, 10**8, 4, most_new=10**6, secret=secret)
        wanted["seed"] = 7
        prepare(self.plane.maps, wanted, OWN, new=True)
        self.balancer = Balancer(self.plane.maps, OWN, "in a test")
        self.settings = self.plane.maps["settings"].memory().view(SETTINGS)
        self._clock = self.plane.variable("replay_ns").view(np.uint64)
        self.now_ns = 10**12

    @property
    def now_ns(self) -> int:
        return int(self._clock[0])

    @now_ns.setter
    def now_ns(self, value: int) -> None:
        self._clock[0] = value

    def serve(self, *names: str) -> dict[str, int]:
        """Set these backends, and a table of equal shares."""
        slots = self.balancer.set_backends(backends(*names))
        self.share(*names)
        return slots

    def share(self, *names: str) -> None:
        every = {one: self.balancer.set_backends(self.balancer.backends())[one] for one in names}
        self.balancer.set_table(np.resize(np.array(list(every.values()), np.int32), TABLE), self.now_ns)

    def weigh(self, weights: dict[str, float]) -> None:
        """Set a Maglev table with these weights."""
        slots = self.balancer.set_backends(self.balancer.backends())
        self.balancer.set_table(maglev(weights, slots, TABLE), self.now_ns)

    def send(self, packet: Packet) -> str:
        """Send a packet; return its backend, `pass` or `drop`."""
        frame = packet.frame()
        ran = self.program.run(frame)
        if ran.result == REDIRECT:
            assert ran.frame[12:] == frame[12:], "only addresses are changed"
            assert ran.frame[6:12] == OWN
            assert ran.frame[:5] == mac(0)[:5]
            return chr(ran.frame[5])
        assert ran.frame == frame, "what is not sent on is not touched"
        return {PASS: "pass", DROP: "drop"}[ran.result]

    def connect(self, port: int) -> str:
        """Send a handshake; return its backend."""
        home = self.send(Packet(port, SYN, 0))
        assert self.send(Packet(port, ACK, 0)) == home
        return home

    def counts(self) -> dict[str, Counts]:
        return dict(self.balancer.read(self.now_ns).backends)

    def faults(self) -> Counter[str]:
        return +Counter(self.balancer.read(self.now_ns).counters)


@pytest.fixture
def make(tool: Callable[[str], str]) -> Iterator[Callable[..., Run]]:
    tool("clang")
    made: list[Run] = []

    def run(
        vip: str = VIP,
        ports: Sequence[int] = (80, 443),
        protocol: str = "tcp",
        measures: str = "modes",  # quicker to load than auto, and where packets go is the same
        groups: int = GROUPS,
        secret: str = "",
    ) -> Run:
        service = Service(vip, tuple(ports), protocol)  # type: ignore[arg-type]
        try:
            made.append(Run(service, measures, groups, secret))
        except WirelagError as error:
            if "permit" in str(error):
                pytest.skip(needs.ebpf(error))
            raise
        return made[-1]

    yield run
    for one in made:
        one.plane.close()
