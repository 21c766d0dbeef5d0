"""What leaves the balancer's program, bit for bit as the plain twin has it: tags, tunnels, and what does not fit."""

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address

import pytest

from tests.oracles.encapsulation import checksum, encapsulated, ends_of, link_of, pseudo, told
from tests.support import needs
from tests.support.balancer_program import (
    ACK,
    DROP,
    FIN,
    OWN,
    PASS,
    PSH,
    REDIRECT,
    ROUTER,
    SYN,
    VIP,
    Packet,
    Run,
    backends,
    mac,
)
from tests.support.captures import capture_paths, packets, plain_bytes
from tests.support.effort import FULL, scaled
from wirelag.ebpf.balance_maps import PROTOCOLS, halves
from wirelag.ebpf.service import Backend, Via, Way

VIP6, CLIENT6 = "fd00::100", "fd00:2::1"
HERE, THERE = {4: "10.1.0.2", 6: "fd00:1::2"}, {4: "172.16.9.11", 6: "fd00:9::11"}
TAGGED = {0: b"", 1: bytes.fromhex("81002007"), 2: bytes.fromhex("88a8006481000007")}
PORT = 6080
VIAS: tuple[Via, ...] = ("ipip", "gue", "ipip", "gue")
# What is inside, what is outside, how: IPv6 in IPv4 is not offered.
WAYS: list[tuple[int, int, Via]] = [
    *((4, 4, "l2"), (6, 6, "l2"), (4, 4, "ipip"), (4, 6, "ipip"), (6, 6, "ipip")),
    *((4, 4, "gue"), (4, 6, "gue"), (6, 6, "gue")),
]


@dataclass(frozen=True)
class Sound(Packet):
    """A packet whose checksums are right, with these DSCP, ECN, hops and packet number."""

    mark: int = 0xB9
    hops: int = 57
    number: int = 0x1234
    plain: bool = False  # UDP without a checksum

    def packet(self) -> bytes:
        body, source, to = self.transport(), ip_address(self.client), ip_address(self.vip)
        at = 16 if self.protocol == 6 else 6
        over = pseudo(source, to, self.protocol, len(body))  # for IPv4 the same words in another order
        if not self.plain:
            body = body[:at] + struct.pack(">H", checksum(over + body) or 0xFFFF) + body[at + 2 :]
        ends = source.packed + to.packed
        if source.version == 6:
            return (
                struct.pack(">IHBB", 6 << 28 | self.mark << 20 | 77, len(body), self.protocol, self.hops) + ends + body
            )
        words = (0x45, self.mark, 20 + len(body), self.number, self.fragment, self.hops, self.protocol)
        head = struct.pack(">BBHHHBBH", *words, 0) + ends
        return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + body

    def tagged(self, tags: int) -> bytes:
        kind = b"\x86\xdd" if ":" in self.vip else b"\x08\x00"
        return self.to + ROUTER + TAGGED[tags] + kind + self.packet()


def sound(version: int, **changes: object) -> Sound:
    packet = Sound() if version == 4 else Sound(client=CLIENT6, vip=VIP6)
    return replace(packet, **changes)  # type: ignore[arg-type]


def one_backend(run: Run, outer: int, via: Via) -> None:
    run.balancer.set_backends([Backend("a", THERE[outer], Way(mac(1), HERE[outer] if via != "l2" else ""), via=via)])
    run.share("a")


def expected(run: Run, frame: bytes, outer: int, via: Via) -> bytes:
    seed = int(run.settings["table_seed"][0])
    return encapsulated(frame, via, frame[:6], mac(1), HERE[outer], THERE[outer], PORT, seed)


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_frames_leave_as_the_twin_has_them(make: Callable[..., Run], protocol: str) -> None:
    for version, vip in ((4, VIP), (6, VIP6)):
        run = make(vip, protocol=protocol)
        for inner, outer, via in WAYS:
            if inner != version:
                continue
            one_backend(run, outer, via)
            for tags in TAGGED:
                for payload in (0, 1, 700, 1391):
                    for mark, hops in ((0, 64), (0xB9, 3), (0x03, 255)):
                        packet = sound(version, payload=payload, mark=mark, hops=hops, port=40000 + payload + hops)
                        frame = replace(packet, protocol=PROTOCOLS[protocol]).tagged(tags)
                        ran = run.program.run(frame + bytes(max(0, 60 - len(frame))))
                        assert ran.result == REDIRECT
                        assert ran.frame == expected(run, frame + bytes(max(0, 60 - len(frame))), outer, via)
        assert not set(run.faults()) - {"unknown"}


def test_without_a_checksum_inside_there_is_none_outside(make: Callable[..., Run]) -> None:
    run = make(protocol="udp")
    one_backend(run, 6, "gue")
    frame = sound(4, protocol=17, plain=True).tagged(0)
    ran = run.program.run(frame)
    assert ran.frame == expected(run, frame, 6, "gue")
    assert ran.frame[14 + 40 + 6 :][:2] == b"\0\0"


def test_flows_have_ports_and_labels_of_their_own(make: Callable[..., Run]) -> None:
    run = make()
    one_backend(run, 6, "gue")
    seen = {run.program.run(sound(4, port=port).tagged(0)).frame[14:18] for port in range(1000, 1200)}
    ports = {run.program.run(sound(4, port=port).tagged(0)).frame[54:56] for port in range(1000, 1200)}
    assert len(seen) == 200
    assert len(ports) > 190
    assert all(port[0] >= 0xC0 for port in ports)


@pytest.mark.every(2)
@pytest.mark.parametrize(("inner", "outer", "via"), [way for way in WAYS if way[2] != "l2"])
def test_what_does_not_fit_is_told_to_its_sender(make: Callable[..., Run], inner: int, outer: int, via: Via) -> None:
    run = make(VIP if inner == 4 else VIP6)
    one_backend(run, outer, via)
    more = (20 if outer == 4 else 40) + (8 if via == "gue" else 0)
    fits = 1500 - more
    for tags in TAGGED:
        longest = sound(inner, payload=fits - (40 if inner == 4 else 60))
        frame = longest.tagged(tags)
        assert run.program.run(frame).frame == expected(run, frame, outer, via)
        long = replace(longest, payload=longest.payload + 1).tagged(tags)
        ran = run.program.run(long)
        assert (ran.result, ran.frame) == (REDIRECT, told(long, OWN, fits))
        _, answer = link_of(ran.frame)
        assert ends_of(answer) == (ip_address(longest.vip), ip_address(longest.client))
    assert run.faults()["too_long"] == len(TAGGED)
    run.settings["mtu"] = 1400
    assert run.program.run(frame).frame == told(frame, OWN, 1400 - more)
    if inner == 4:  # a router would cut it; nobody is told
        assert told(replace(longest, fragment=0).tagged(0), OWN, 1) is None
        assert run.program.run(replace(longest, fragment=0).tagged(0)).result == DROP


def test_senders_are_told_at_a_pace(make: Callable[..., Run]) -> None:
    run = make()
    one_backend(run, 4, "ipip")
    long = sound(4, payload=1450).tagged(0)
    results = [run.program.run(long).result for _ in range(70)]
    assert results == [REDIRECT] * 64 + [DROP] * 6
    run.now_ns += 1 << 27
    assert run.program.run(long).result == REDIRECT
    assert run.faults()["too_long"] == 71


def test_errors_about_a_connection_take_its_tunnel(make: Callable[..., Run]) -> None:
    for version, vip, client in ((4, VIP, "10.2.0.1"), (6, VIP6, CLIENT6)):
        run = make(vip)
        one_backend(run, 6, "gue")
        syn = sound(version, flags=SYN, payload=0)
        opening = run.program.run(syn.tagged(1)).frame
        back = sound(version, vip=client, client=vip, port=80, service_port=40000).packet()
        if version == 4:
            body = struct.pack(">BBHHH", 3, 4, 0, 0, 1400) + back[:28]
            body = body[:2] + struct.pack(">H", checksum(body)) + body[4:]
            error = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), 9, 0, 60, 1, 0)
            error += ip_address("10.9.9.9").packed + ip_address(vip).packed
            error = error[:10] + struct.pack(">H", checksum(error)) + error[12:] + body
        else:
            body = struct.pack(">BBHI", 2, 0, 0, 1280) + back
            over = pseudo(ip_address("fd00:9::9"), ip_address(vip), 58, len(body))
            body = body[:2] + struct.pack(">H", checksum(over + body)) + body[4:]
            error = struct.pack(">IHBB", 6 << 28, len(body), 58, 60)
            error += ip_address("fd00:9::9").packed + ip_address(vip).packed + body
        frame = OWN + ROUTER + TAGGED[1] + (b"\x08\x00" if version == 4 else b"\x86\xdd") + error
        ran = run.program.run(frame)
        assert ran.frame == expected(run, frame, 6, "gue")
        ports = slice(18 + 40, 18 + 42)
        assert ran.frame[ports] == opening[ports]  # the same path through the network


def test_a_tunnel_changes_at_once_and_is_found_again(make: Callable[..., Run]) -> None:
    run = make()
    for number in range(5):
        there = [Backend("a", f"172.16.9.{number}", Way(mac(number + 1), HERE[4]), via="ipip")]
        run.balancer.set_backends(there)
        run.share("a")
        assert run.balancer.backends() == tuple(there)
        frame = run.program.run(sound(4).tagged(0)).frame
        assert frame[30:34] == ip_address(there[0].address).packed
        assert frame[:6] == mac(number + 1)
        again = run.program.run(sound(4).tagged(0)).frame
        run.balancer.set_backends(there)
        assert run.program.run(sound(4).tagged(0)).frame == again == frame
    run.balancer.set_backends(backends("a"))
    assert run.balancer.backends() == tuple(backends("a"))
    assert run.program.run(sound(4).tagged(0)).frame[12:] == sound(4).tagged(0)[12:]


def test_what_has_three_tags_or_half_a_one_passes(make: Callable[..., Run]) -> None:
    run = make()
    run.serve("a")
    for tags in (TAGGED[2] + TAGGED[1], TAGGED[1] * 3):
        frame = OWN + ROUTER + tags + b"\x08\x00" + sound(4).packet()
        assert (run.program.run(frame).result, run.program.run(frame).frame) == (PASS, frame)
    frame = sound(4).tagged(2)
    assert {run.program.run(frame[:length]).result for length in range(14, 62)} == {PASS}


def test_where_packets_go_does_not_depend_on_the_way(make: Callable[..., Run]) -> None:
    """Floods, moving weights, backends that go down or away: the same choices and counters through tunnels and tags."""
    names, rng = "abcd", random.Random(7)
    ways: list[list[Backend]] = [backends(*names)]
    ways.append(
        [Backend(n, f"172.16.0.{ord(n)}", Way(mac(1), HERE[4]), via=v) for n, v in zip(names, VIAS, strict=True)]
    )
    ends = {ip_address(one.address).packed: one.name for one in ways[1]}
    runs = [make(groups=4) for _ in ways]
    known = list(range(40))
    for turn in range(900):
        if turn % 60 == 0:
            weights = {name: 0.1 + rng.random() for name in names}
            down, there = rng.choice(names), names[: rng.choice((3, 4))]
            for run, every in zip(runs, ways, strict=True):
                run.balancer.set_backends([replace(one, down=one.name == down) for one in every if one.name in there])
                run.weigh({name: weights[name] for name in there})
        forged = rng.random() < 0.5
        port = rng.randrange(10_000, 60_000) if forged else 1000 + rng.choice(known)
        packet = sound(
            4, port=port, flags=rng.choice((SYN, ACK, ACK | PSH, FIN | ACK)), payload=0, seq=rng.choice((0, 1))
        )
        found = []
        for number, run in enumerate(runs):
            run.now_ns = 10**12 + turn * 40_000_000
            left = run.program.run(packet.tagged(2 * number)).frame
            found.append(chr(left[5]) if not number else ends[left[22 + 16 : 22 + 20]])
        assert found[0] == found[1]
    assert runs[0].faults() == runs[1].faults()
    assert {"unknown", "pushed_out", "orphaned"} <= set(runs[0].faults())


def is_sound(packet: bytes) -> bool:
    """Whether the checksums of a captured packet are right: offloading leaves them to the card."""
    source, to = ends_of(packet)
    if packet[0] >> 4 == 4:
        head = (packet[0] & 15) * 4
        body, protocol = packet[head:], packet[9]
        if checksum(packet[:head]):
            return False
    else:
        body, protocol = packet[40:], packet[6]
    return not checksum(pseudo(source, to, protocol, len(body)) + body)


def captured_frames() -> list[bytes]:
    """Whole TCP and UDP frames of real hosts with right checksums: for each destination each length once."""
    found = dict[tuple[bytes, int], bytes]()
    paths = [path for path in capture_paths("rtt", "wild") if path.stat().st_size < scaled(400_000)]
    for path in paths:
        for captured in packets(plain_bytes(path)):
            frame = captured.frame
            whole = captured.link_type == 1 and captured.wire_length == len(frame) and 60 <= len(frame) <= 1454
            at = 16 if frame[12:14] == b"\x81\0" else 12
            if not whole or frame[0] & 1 or frame[at : at + 2] not in (b"\x08\0", b"\x86\xdd"):
                continue
            _, packet = link_of(frame)
            six = packet[0] >> 4 == 6
            if len(packet) < 48 or packet[6 if six else 9] not in (6, 17) or (not six and packet[6] & 0x3F):
                continue
            key = ends_of(packet)[1].packed, len(frame)
            if key not in found and is_sound(packet):
                found[key] = frame
    return list(found.values())


def test_captured_frames_leave_as_the_twin_has_them(make: Callable[..., Run]) -> None:
    run, frames = make(ports=()), captured_frames()[:: 1 if FULL else 8]
    if not frames:
        pytest.skip(needs.SHARED_DATA)
    for inner, outer, via in WAYS:
        one_backend(run, outer, via)
        for frame in frames:
            _, packet = link_of(frame)
            if packet[0] >> 4 != inner:
                continue
            run.settings["vip_high"], run.settings["vip_low"] = halves(str(ends_of(packet)[1]))
            run.settings["protocol"], run.settings["mac"][0] = packet[6 if inner == 6 else 9], list(frame[:6])
            assert run.program.run(frame).frame == expected(run, frame, outer, via)
    assert len(frames) > (500 if FULL else 30)
