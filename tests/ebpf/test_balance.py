"""The balancer's program on test frames: their destinations, their state, counters and costs."""

import os
import random
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.balance import LIMIT, costs
from tests.support import needs
from tests.support.balancer_program import (
    ACK,
    CLIENT,
    FIN,
    MS,
    OWN,
    PASS,
    PSH,
    REDIRECT,
    ROUTER,
    RST,
    SYN,
    TABLE,
    VIP,
    Packet,
    Run,
    backends,
    ip,
    mac,
)
from tests.support.captures import random_frame
from wirelag.ebpf.balance_maps import BACKEND, CONNECTION, GROUP, OPENING, SETTINGS, TAKEN, TALLY_WORDS
from wirelag.ebpf.service import Backend, Way
from wirelag.errors import WirelagError

KEY_BYTES = 8


@pytest.fixture
def run(make: Callable[..., Run]) -> Run:
    one = make()
    one.serve("a", "b", "c")
    return one


def test_only_packets_to_the_service_are_touched(run: Run) -> None:
    packet = Packet(flags=SYN, payload=0)
    assert run.send(packet) in "abc"
    others = [
        replace(packet, vip="10.1.0.101"),
        replace(packet, service_port=8080),
        replace(packet, protocol=17),
        replace(packet, to=mac(ord("a"))),  # a frame that a switch floods is not forwarded again
        replace(packet, client="fd00::1", vip="fd00::2"),
    ]
    assert [run.send(one) for one in others] == ["pass"] * len(others)
    for body in (
        b"\x08\x06" + bytes(28),
        3 * b"\x81\x00\x00\x05" + packet.frame()[12:],  # more tags than two
        ip(CLIENT, VIP, 1, b"\x08\0" + bytes(30)),
    ):
        frame = OWN + ROUTER + body
        ran = run.program.run(frame)
        assert (ran.result, ran.frame) == (PASS, frame)
    assert sum(one.packets for one in run.counts().values()) == 1
    assert not run.faults()


def test_before_the_first_table_everything_passes(make: Callable[..., Run]) -> None:
    one = make()
    assert one.send(Packet()) == "pass"
    one.balancer.set_backends(backends("a"))
    assert one.send(Packet()) == "pass"
    assert one.balancer.table() is None
    one.share("a")
    assert one.send(Packet()) == "a"


def test_a_connection_stays_when_the_table_changes(run: Run) -> None:
    first = {port: run.send(Packet(port, SYN, 0)) for port in range(1000, 1200)}
    assert set(first.values()) == {"a", "b", "c"}
    for names in ("a", "b", "ca"):
        run.share(*names)
        assert {port: run.send(Packet(port)) for port in first} == first
        assert run.connect(5000 + ord(names[0])) in names
    homes = Counter(first.values()) + Counter(run.send(Packet(5000 + ord(name))) for name in "abc")
    assert {name: one.connections for name, one in run.counts().items()} == homes


def test_draining_keeps_connections_and_gives_no_new_ones(run: Run) -> None:
    on_a = [port for port in range(1000, 1100) if run.send(Packet(port, SYN, 0)) == "a"]
    assert (run.counts()["a"].connections, run.counts()["a"].closing) == (0, len(on_a)), "handshakes are waited for"
    for port in on_a:
        run.send(Packet(port, ACK, 0))
    run.share("b", "c")
    assert all(run.send(Packet(port, SYN, 0)) in "bc" for port in range(2000, 2100))
    assert run.counts()["a"].connections == len(on_a)
    for port in on_a:
        assert run.send(Packet(port)) == "a"
        assert run.send(Packet(port, FIN | ACK, 0, seq=10)) == "a"
    assert (run.counts()["a"].connections, run.counts()["a"].closing) == (0, len(on_a)), "answers may still come"
    run.now_ns += 900 * MS
    assert run.send(Packet(on_a[0], ACK, 0)) == "a", "and are acknowledged there"
    run.now_ns += 900 * MS
    assert run.counts()["a"].closing == 1
    run.now_ns += 200 * MS
    assert run.counts()["a"].closing == 0
    run.balancer.set_backends(backends("b", "c"))
    assert run.balancer.backends() == tuple(backends("b", "c"))
    assert not run.faults()


def test_connections_of_a_removed_backend_are_counted_as_lost(run: Run) -> None:
    slots = run.balancer.set_backends(backends("a", "b", "c"))
    on_a = [port for port in range(1000, 1100) if run.connect(port) == "a"]
    run.share("b", "c")
    after = run.balancer.set_backends(backends("b", "c", *"defghijklmnopq"))
    assert after["d"] not in slots.values(), "the slot that was free for longest"
    assert after["q"] == slots["a"], "and in the end every one is used again"
    moved = [run.send(Packet(port)) for port in on_a]
    assert set(moved) <= {"b", "c"}
    assert run.faults() == {"orphaned": len(on_a)}
    assert [run.send(Packet(port)) for port in on_a] == moved
    assert run.faults() == {"orphaned": len(on_a)}


def test_late_packets_of_a_closed_connection_are_not_a_loss(run: Run) -> None:
    """Its backend was removed after the connection closed: another backend rejects the packets."""
    on_a = [port for port in range(1000, 1100) if run.send(Packet(port, SYN, 0)) == "a"]
    for port in on_a:
        run.send(Packet(port, FIN | ACK, 0))
    run.share("b", "c")
    run.balancer.set_backends(backends("b", "c"))
    assert {run.send(Packet(port)) for port in on_a} <= {"b", "c"}
    assert not run.faults()


def test_a_reused_port_is_a_new_connection(run: Run) -> None:
    ports = range(1000, 1100)
    old = {port: run.send(Packet(port, SYN, 0)) for port in ports}
    run.share("c")
    assert {port: run.send(Packet(port, SYN, 0)) for port in ports} == old, "a SYN that is sent again stays"
    for port in ports:
        run.send(Packet(port, RST, 0))
    assert {run.send(Packet(port, SYN, 0)) for port in ports} == {"c"}
    assert {run.send(Packet(port)) for port in ports} == {"c"}
    counts = run.counts()
    assert sum(one.opened for one in counts.values()) == 2 * len(ports)
    assert counts["c"].connections == len(ports)


def test_settled_connections_make_no_room_and_others_are_counted(make: Callable[..., Run]) -> None:
    one = make(groups=1)
    one.serve("a", "b")
    settled = {port: one.connect(port) for port in range(1000, 1000 + GROUP)}
    one.now_ns += 5 * 10**9
    assert {port: one.send(Packet(port)) for port in settled} == settled
    others = {port: one.connect(port) for port in range(2000, 2012)}
    assert {port: one.send(Packet(port)) for port in others} == others, "their unconfirmed entries tell"
    assert one.faults() == {"table_full": 2 * len(others)}
    one.share("a")
    assert {port: one.send(Packet(port)) for port in settled} == settled
    one.now_ns += 101 * 10**9  # longer than the timeout
    assert sum(counts.connections for counts in one.counts().values()) == 0
    full = one.faults()["table_full"]
    for port in range(3000, 3000 + GROUP):
        one.connect(port)
    assert one.faults()["table_full"] == full
    assert sum(counts.connections for counts in one.counts().values()) == GROUP


def test_closed_connections_expire_and_open_ones_do_not(make: Callable[..., Run]) -> None:
    one = make(groups=1)
    one.serve("a", "b")
    for port in range(1000, 1000 + GROUP):
        one.connect(port)
    one.now_ns += 5 * 10**9
    for port in range(1000, 1000 + GROUP):
        one.send(Packet(port))
    one.send(Packet(1002, FIN | ACK, 0, seq=10))
    one.connect(3000)
    assert one.faults() == {"table_full": 1}
    one.now_ns += 2 * 10**9
    assert sum(counts.connections for counts in one.counts().values()) == GROUP - 1
    one.connect(3001)
    assert one.faults() == {"table_full": 1}
    one.connect(3002)
    assert one.faults() == {"table_full": 1, "pushed_out": 1}, "3001 is new, and was silent for longest"


def test_a_half_full_table_has_room_for_nearly_all(make: Callable[..., Run]) -> None:
    one = make(measures="nothing", groups=1024)
    one.serve("a", "b")
    for port in range(1024, 1024 + 4 * 1024):
        one.connect(port)
    assert one.faults()["pushed_out"] < 40


def test_without_any_backend_packets_are_dropped_and_counted(run: Run) -> None:
    run.balancer.set_backends([])
    assert run.send(Packet(flags=SYN)) == "drop"
    assert run.faults() == {"unserved": 1}


@pytest.mark.parametrize("kind", [3, 11, 12])
def test_an_icmp_error_follows_its_connection(run: Run, kind: int) -> None:
    homes = {port: run.send(Packet(port, SYN, 0)) for port in range(1000, 1050)}
    run.share("b")
    for port, home in homes.items():
        quoted = ip(VIP, CLIENT, 6, struct.pack(">HHI", 80, port, 1))[2:]
        body = struct.pack(">BBHHH", kind, 4, 0, 0, 1400) + quoted
        ran = run.program.run(OWN + ROUTER + ip("10.9.9.9", VIP, 1, body))
        assert (ran.result, ran.frame[:6]) == (REDIRECT, mac(ord(home)))
    for wrong in (quoted.replace(b"\x00\x50", b"\x00\x51"), quoted[:10]):
        ran = run.program.run(OWN + ROUTER + ip("10.9.9.9", VIP, 1, body[:8] + wrong))
        assert ran.result == PASS
    assert sum(one.opened for one in run.counts().values()) == len(homes)


def test_ipv6_and_udp(make: Callable[..., Run]) -> None:
    six = make("fd00::100")
    six.serve("a", "b")
    packet = Packet(client="fd00:2::1", vip="fd00::100")
    homes = {port: six.send(replace(packet, port=port, flags=SYN, payload=0)) for port in range(1000, 1050)}
    assert set(homes.values()) == {"a", "b"}
    six.share("a")
    assert {port: six.send(replace(packet, port=port)) for port in homes} == homes
    assert six.send(replace(packet, client="fd00:3::1", flags=SYN)) == "a"
    quoted = ip("fd00::100", "fd00:2::1", 6, struct.pack(">HHI", 80, 1000, 1))[2:]
    ran = six.program.run(OWN + ROUTER + ip("fd00:9::9", "fd00::100", 58, struct.pack(">BBHI", 2, 0, 0, 1280) + quoted))
    assert (ran.result, ran.frame[:6]) == (REDIRECT, mac(ord(homes[1000])))
    assert six.send(Packet()) == "pass"

    udp = make(ports=(), protocol="udp")
    udp.serve("a", "b")
    datagram = Packet(protocol=17, service_port=9999)
    homes = {port: udp.send(replace(datagram, port=port)) for port in range(1000, 1050)}
    udp.share("a")
    assert {port: udp.send(replace(datagram, port=port)) for port in homes} == homes
    assert udp.send(Packet()) == "pass"


def test_malformed_packets_pass_unchanged(run: Run) -> None:
    rng = random.Random(5)
    whole = Packet().frame()
    assert [run.program.run(whole[:length]).result for length in range(14, len(whole))] == [PASS] * (len(whole) - 14)
    for number in range(3000):
        frame = bytearray(whole if number % 2 else OWN + random_frame(rng)[1][6:])
        for _ in range(rng.randrange(6)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        if len(frame) >= 14:
            ran = run.program.run(bytes(frame[:3000]))
            assert ran.result in (PASS, REDIRECT)
            assert ran.frame[12:] == frame[12:3000]
    assert run.send(replace(Packet(), fragment=0x2000)) == "pass"
    assert run.send(replace(Packet(), fragment=0x0010)) == "pass"
    assert set(run.faults()) == {"malformed", "fragments", "unknown"}


@pytest.mark.parametrize("method", ["auto", "modes"])
def test_latency_and_requests_follow_the_client_s_packets(make: Callable[..., Run], method: str) -> None:
    """40 requests, one in flight, answered after 3 ms by a and after 7 ms by the others; then the end."""
    run = make(measures=method)
    run.serve("a", "b", "c")
    late = {"a": 3 * MS, "b": 7 * MS, "c": 7 * MS}
    homes = {}
    for port in range(1000, 1030):
        homes[port] = run.send(Packet(port, SYN, 0))
        for number in range(40):
            run.now_ns += late[homes[port]] if number else MS
            run.send(Packet(port, seq=1 + 10 * number, ack=1 + 500 * number))
        run.send(Packet(port, seq=1 + 10 * 39, ack=1 + 500 * 39))  # again
        run.send(Packet(port, FIN | ACK, 0, seq=401, ack=1 + 500 * 39))
    counts, homed = run.counts(), Counter(homes.values())
    for name, one in counts.items():
        assert one.opened == homed[name]
        assert one.requests == 40 * homed[name]
        assert one.repeated == homed[name]
        assert one.packets == 43 * homed[name]
        assert one.bytes == homed[name] * (54 + 54 + 41 * 64)
        assert one.count >= 30 * homed[name]
        assert one.sum_ns / one.count == pytest.approx(late[name], rel=0.01)
    assert {name: (one.count, one.packets) for name, one in run.counts().items()} == dict.fromkeys("abc", (0, 0))


def test_a_moved_connection_keeps_no_epoch(run: Run) -> None:
    on_a = next(port for port in range(1000, 1100) if run.connect(port) == "a")
    for number in range(18):
        run.now_ns += 5 * MS
        assert run.send(Packet(on_a, seq=1 + 10 * number)) == "a"
    run.share("b")
    run.balancer.set_backends(backends("b", "c"))
    assert run.send(Packet(on_a, seq=181)) == "b"
    run.send(Packet(on_a, FIN | ACK, 0, seq=191))
    counts = run.counts()["b"]
    assert run.faults() == {"orphaned": 1}
    assert (counts.count, counts.requests) == (0, 1)


def test_a_table_has_its_size_and_only_known_backends(run: Run) -> None:
    with pytest.raises(ValueError, match="slots of backends"):
        run.balancer.set_table(np.zeros(TABLE + 1, np.int32))
    with pytest.raises(ValueError, match="slots of backends"):
        run.balancer.set_table(np.full(TABLE, 9, np.int32))
    with pytest.raises(WirelagError, match="only 16 fit"):
        run.balancer.set_backends(backends(*"abcdefghijklmnopq"))
    with pytest.raises(WirelagError, match="backend x"):
        run.balancer.set_backends([Backend("x", "10.1.0.1", Way(bytes(6)))])


def test_both_sides_have_the_same_structures(run: Run) -> None:
    sizes = {
        name: run.plane.maps[name].value_size
        for name in ("settings", "backends", "connections", "groups", "openings", "tallies")
    }
    assert sizes == {
        "settings": SETTINGS.itemsize,
        "backends": BACKEND.itemsize,
        "connections": CONNECTION.itemsize,
        "groups": GROUP * KEY_BYTES,
        "openings": OPENING.itemsize,
        "tallies": 8 * TALLY_WORDS,
    }


def test_a_later_time_on_another_cpu_is_not_an_age(run: Run) -> None:
    homes = {port: run.send(Packet(port, SYN, 0)) for port in range(1000, 1150)}
    run.now_ns -= 50 * MS
    run.share("a")
    for port in range(3000, 3100):
        run.send(Packet(port, SYN, 0))
    assert not run.faults()
    assert {port: run.send(Packet(port)) for port in homes} == homes


def test_two_cpus_at_the_same_connections(make: Callable[..., Run]) -> None:
    """Meanwhile tables change and a backend comes and goes; it gets no connections, so none may move."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip(needs.TWO_CPUS)
    one, ports, turns = make(groups=16), range(1000, 1040), 60
    one.serve("a", "b", "c")
    homes: list[dict[int, set[int]]] = []

    def sends(cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})  # this thread only
        found: dict[int, set[int]] = {port: set() for port in ports}
        homes.append(found)
        for turn in range(turns):
            for port in ports:
                ran = one.program.run(Packet(port, SYN if turn == 0 else ACK | PSH, 10, seq=10 * turn).frame())
                assert ran.result == REDIRECT
                found[port].add(ran.frame[5])

    threads = [threading.Thread(target=sends, args=(cpu,)) for cpu in allowed[:2]]
    for port in ports:
        one.send(Packet(port, SYN, 0))
    for thread in threads:
        thread.start()
    turn = 0
    while any(thread.is_alive() for thread in threads):
        turn += 1
        one.balancer.set_backends(backends(*"abc", *("d" if turn % 2 else "")))
        one.share(*("abc", "cab", "bca")[turn % 3])
    for thread in threads:
        thread.join()
    assert len(homes) == 2
    assert all(len(homes[0][port] | homes[1][port]) == 1 for port in ports)
    counts = one.counts()
    assert sum(each.packets for each in counts.values()) == (2 * turns + 1) * len(ports)
    assert sum(each.connections for each in counts.values()) == len(ports)
    keys, held = one.plane.maps["groups"].memory().view("<u8"), one.plane.maps["connections"].memory().view(CONNECTION)
    assert not (keys == TAKEN).any()
    assert not held["busy"].any()
    assert set(one.faults()) <= {"busy"}


@pytest.mark.acceptance
def test_the_cost_of_a_packet(make: Callable[..., Run]) -> None:
    """At most 6.5 times the cost of passing a packet, on an idle machine."""
    make()  # skips where programs cannot be loaded
    found = costs()
    print(found)
    assert max(value for name, value in found.items() if name != "pass") <= LIMIT
