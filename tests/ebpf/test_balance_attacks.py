"""The balancer's tables under attack: forged packets cost no confirmed connection its place, and none moves."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from itertools import islice

import numpy as np
import pytest

from tests.oracles.connection_table import Twin
from tests.support.balancer_program import ACK, FIN, GROUPS, MS, PSH, RST, SYN, TABLE, Packet, Run, backends
from tests.support.effort import scaled
from wirelag.balance.controller import Controller
from wirelag.balance.maglev import maglev
from wirelag.ebpf.balance_maps import GROUP
from wirelag.ebpf.service import Counts

S = 10**9


def forged(rng: random.Random, flags: int) -> Packet:
    return Packet(rng.randrange(1024, 65536), flags, 0, client=str(ip_address(rng.randrange(1 << 24, 1 << 31))))


def pours(run: Run, rng: random.Random, packets: int, *flags: int) -> None:
    """Send forged packets, 5 us apart; with several flags, as many packets from each address."""
    for _ in range(packets // len(flags)):
        one = forged(rng, 0)
        for each in flags:
            run.now_ns += 5000
            run.program.run(replace(one, flags=each).frame())


@pytest.mark.every(2)
@pytest.mark.parametrize("flags", [(ACK,), (SYN,), (SYN, ACK), (ACK, ACK | PSH)], ids=str)
def test_a_flood_moves_no_established_connection(make: Callable[..., Run], flags: tuple[int, ...]) -> None:
    """Eight times as many forged packets as there are places; weights move between them."""
    run, rng = make(), random.Random(3)
    run.serve("a", "b", "c")
    homes = {port: run.connect(port) for port in range(1000, 1200)}
    run.now_ns += 5 * S  # settled
    assert {port: run.send(Packet(port)) for port in homes} == homes
    for names in ("a", "bc", "cab"):
        pours(run, rng, scaled(12 * GROUP * GROUPS, 4 * GROUP * GROUPS), *flags)
        run.share(*names)
        assert {port: run.send(Packet(port)) for port in homes} == homes
    assert run.faults()["orphaned"] == 0


def test_who_forges_a_client_s_address_and_port_does_not_move_its_connection(make: Callable[..., Run]) -> None:
    """RST and SYN, or FIN and SYN, with any sequence number but the next one: both moved every connection."""
    run, rng = make(), random.Random(6)
    run.serve("a", "b", "c")
    homes = {port: run.connect(port) for port in range(1000, 1100)}
    run.now_ns += 5 * S
    assert {port: run.send(Packet(port, seq=0)) for port in homes} == homes  # 10 bytes: the next is 10
    run.share("c")
    for ends in (RST, RST | ACK, FIN | ACK):
        for seq in (0, 9, 11, 1 << 16, 1 << 31, 2**32 - 1, *(rng.randrange(100, 2**32) for _ in range(20))):
            for port in homes:
                run.send(Packet(port, ends, 0, seq))
                run.send(Packet(port, SYN, 0, rng.getrandbits(32)))
        assert {port: run.send(Packet(port, seq=10)) for port in homes} == homes
        run.now_ns += 20 * S  # none of them counts as closed, so none makes room
        assert {port: run.send(Packet(port, ACK, 0, 20)) for port in homes} == homes
        for port in homes:  # the client sends 10 bytes again
            run.send(Packet(port, ACK | PSH, 10, 10))
    for port in homes:  # and at last ends it
        run.send(Packet(port, FIN | ACK, 0, 20))
    assert {run.send(Packet(port, SYN, 0)) for port in homes} == {"c"}


def test_data_that_is_forged_before_an_end_does_not_move_a_connection(make: Callable[..., Run]) -> None:
    """As found: data 65,536 apart, each followed by an RST at its end, moved a connection within 131,072 packets."""
    run, rng = make(), random.Random(8)
    run.serve("a", "b", "c")
    homes = {port: run.connect(port) for port in range(1000, 1030)}
    run.now_ns += 5 * S
    assert {port: run.send(Packet(port, seq=0, ack=5_000_000)) for port in homes} == homes
    run.share("c")
    for port in homes:
        for _ in range(20):
            seq, ack = 10 + rng.randrange(1 << 16), rng.randrange(6_000_000, 2**32)
            for one in (
                Packet(port, ACK | PSH, 10, seq, ack),
                Packet(port, PSH, 10, seq),
                Packet(port, RST | ACK, 0, seq + 10, ack),
                Packet(port, RST, 0, seq + 10),
                Packet(port, SYN, 0, rng.getrandbits(32)),
            ):
                run.send(one)
    assert {port: run.send(Packet(port, seq=10, ack=5_000_000 + (1 << 18))) for port in homes} == homes
    for port in homes:
        run.send(Packet(port, FIN | ACK, 0, 20, 5_000_000 + (1 << 18)))
    assert {run.send(Packet(port, SYN, 0)) for port in homes} == {"c"}


def test_new_connections_survive_a_flood_until_they_are_settled(make: Callable[..., Run]) -> None:
    """They open, are confirmed and talk between forged pairs, at the limit of new ones; weights move meanwhile."""
    run, rng = make(), random.Random(4)
    run.settings["most_new"] = 8  # per 134 ms: an eighth of the table in a second
    run.serve("a", "b", "c")
    homes: dict[int, str] = {}
    moved = Counter[str]()
    for turn in range(scaled(60, 24)):
        homes[2000 + turn] = run.send(Packet(2000 + turn, SYN, 0))
        for port, home in homes.items():
            moved["stays" if run.send(Packet(port)) == home else "moves"] += 1
        run.share(*("ab", "bc", "cab", "ba")[turn % 4])
        for _ in range(20):  # 200 forged packets in 200 ms
            pours(run, rng, 10, SYN, ACK)
            run.now_ns += 10 * MS
    assert moved["moves"] == 0, moved
    assert run.faults()["limited"] > 100, "the flood was beyond the limit"


def test_unconfirmed_entries_are_pushed_out_by_newer_ones_only(make: Callable[..., Run]) -> None:
    """And without an entry a packet is sent where the connection was before weights began to move."""
    run, rng = make(), random.Random(5)
    run.serve("a", "b", "c")
    run.now_ns += 20 * S  # in use for long
    homes = {port: run.send(Packet(port, SYN, 0)) for port in range(1000, 1100)}
    pours(run, rng, 12 * 4 * GROUP * GROUPS, SYN)  # twelve times the room for unconfirmed ones
    for names in ("ab", "a", "ca"):
        run.now_ns += S // 2
        run.share(*names)
    away = {port for port in homes if run.send(Packet(port, SYN, 0)) != homes[port]}
    run.now_ns += 10 * S
    assert len(away) > 20, "a SYN follows the new weights"
    clean = make()
    clean.serve("a", "b", "c")
    clean.now_ns += 20 * S
    for names in ("ab", "a", "ca"):
        clean.share(*names)
    assert {port: clean.send(Packet(port)) for port in homes} == homes
    assert clean.faults() == {"unknown": len(homes)}
    late = make()
    late.serve("a", "b", "c")
    late.now_ns += 20 * S
    late.share("c")
    late.now_ns += 101 * S  # longer than a connection may be idle
    assert {late.send(Packet(port)) for port in homes} == {"c"}


def test_a_backend_that_is_gone_or_down_is_not_gone_back_to(make: Callable[..., Run]) -> None:
    run = make()
    run.serve("a", "b", "c")
    run.now_ns += 20 * S
    silent = {port: run.send(Packet(port, SYN, 0)) for port in range(1000, 1060)}
    run.share("b", "c")
    down = [replace(one, down=one.name == "a") for one in backends("a", "b", "c")]
    run.balancer.set_backends(down)
    assert run.balancer.backends() == tuple(down)
    for port, home in silent.items():
        again = run.send(Packet(port, SYN, 0))
        assert (again in "bc") if home == "a" else (again == home), "a SYN without an answer tries another server"
    assert {run.send(Packet(port)) for port in range(3000, 3060)} == {"b", "c"}
    run.balancer.set_backends(backends("b", "c"))
    assert {run.send(Packet(port)) for port in range(4000, 4060)} == {"b", "c"}


def test_established_connections_stay_with_a_backend_that_is_down(make: Callable[..., Run]) -> None:
    run = make()
    run.serve("a", "b")
    homes = {port: run.connect(port) for port in range(1000, 1060)}
    run.balancer.set_backends([replace(one, down=one.name == "a") for one in backends("a", "b")])
    run.share("b")
    assert {port: run.send(Packet(port)) for port in homes} == homes


def test_a_port_that_is_used_again_does_not_lead_to_a_backend_that_is_down(make: Callable[..., Run]) -> None:
    """Its connection ended by an RST of the server, which does not pass the balancer."""
    run = make()
    run.serve("a", "b")
    homes = {port: run.connect(port) for port in range(1000, 1060)}
    run.share("b")
    assert {port: run.send(Packet(port, SYN, 0)) for port in homes} == homes, "a SYN that was repeated, and late"
    run.balancer.set_backends([replace(one, down=one.name == "a") for one in backends("a", "b")])
    assert {run.connect(port) for port in homes} == {"b"}
    assert {run.send(Packet(port)) for port in homes} == {"b"}
    assert run.faults() == {}


def test_a_removed_backend_leaves_new_connections_in_its_places_alone(make: Callable[..., Run]) -> None:
    """Removing one writes to no connection: the program may be giving its places to others at that moment."""
    run = make()
    slots = run.serve("a", "b")
    homes = {port: run.connect(port) for port in range(1000, 1100)}
    for port in homes:
        run.send(Packet(port, FIN | ACK, 0))
    run.share("b")
    before = run.plane.maps["connections"].memory().tobytes()
    run.balancer.set_backends(backends("b"))
    assert run.plane.maps["connections"].memory().tobytes() == before
    assert {run.connect(port) for port in homes} == {"b"}
    assert run.faults() == {}
    assert run.balancer.set_backends(backends("b", "c"))["c"] != slots["a"], "other slots come first"


def test_the_next_owner_of_a_slot_inherits_nothing(make: Callable[..., Run]) -> None:
    run = make()
    number = run.serve("a", "b")["a"]
    homes = {port: run.connect(port) for port in range(1000, 1100)}
    waiting = {port: run.send(Packet(port, SYN, 0)) for port in range(2000, 2100)}
    run.share("b")
    run.balancer.set_backends(backends("b"))
    names = iter("cdefghijklmnopqrstuvwxyz")
    while run.balancer.set_backends(backends("b", name := next(names)))[name] != number:
        pass
    again = {port: run.send(Packet(port)) for port in (homes | waiting)}
    assert set(again.values()) == {"b"}, "not to the new owner"


def test_two_balancers_give_the_same_answer_without_shared_state(make: Callable[..., Run]) -> None:
    """Other seeds, other slots, another history: the same weights are enough; for old connections, for some time."""
    one, other = make(), make()
    other.settings["seed"] = 8
    one.serve("a", "b", "c", "d")
    other.serve("d", "x", "c")
    other.balancer.set_backends(backends("d", "c", "b", "a"))
    weights = {"a": 0.5, "b": 0.2, "c": 0.2, "d": 0.1}
    for each in (one, other):
        each.weigh(weights)
    ports = range(1000, 1400)
    homes = {port: one.connect(port) for port in ports}
    assert {port: other.send(Packet(port, SYN, 0)) for port in ports} == homes
    ports = range(2000, 2400)
    homes = {port: one.connect(port) for port in ports}
    other.now_ns += 20 * S
    other.weigh({"a": 0.1, "b": 0.2, "c": 0.2, "d": 0.5})
    assert {port: other.send(Packet(port)) for port in ports} == homes, "what a router sends another way stays"
    stranger = make(secret="another")
    stranger.serve("a", "b", "c", "d")
    stranger.weigh(weights)
    assert {port: stranger.connect(port) for port in ports} != homes


def heard(rng: np.random.Generator, weights: dict[str, float], slow: str) -> dict[str, Counts]:
    """What a balancer hears in an interval: its own clients, so other latencies than the other hears."""
    found = {}
    for name, weight in weights.items():
        count = int(rng.poisson(300 * weight))
        sum_ns = rng.exponential(100e6 if name == slow else 20e6, count).sum()
        found[name] = Counts(int(sum_ns), count, 0, count, 10, 10, count)
    return found


def test_two_balancers_agree_while_weights_move_by_what_each_measures(make: Callable[..., Run]) -> None:
    """One backend becomes slow (interval 30) and well again (60); every half second each balancer decides for itself.

    Connections that were opened before weights began to move are answered alike. New ones are answered alike where
    weights rest, at fair shares and at the floor; while they move, in as many entries as the two tables have in common.
    """
    two, rngs = (make(), make()), (np.random.default_rng(1), np.random.default_rng(2))
    two[1].settings["seed"] = 8
    controllers = [Controller(dict.fromkeys("abcd", 1.0)) for _ in two]
    for run, controller in zip(two, controllers, strict=True):
        run.balancer.set_backends(backends(*"abcd"))
        run.weigh(controller.weights)
        run.now_ns += 20 * S
    ports = iter(range(1024, 65536))
    before: dict[int, str] = {}  # opened at the first balancer while weights rested
    resting, moving, common = Counter[bool](), Counter[bool](), list[float]()
    for interval in range(100):
        if interval in (25, 55):
            before = {port: two[0].connect(port) for port in islice(ports, 400)}
        for run, controller, rng in zip(two, controllers, rngs, strict=True):
            run.now_ns += S // 2
            if controller.step(heard(rng, controller.weights, "b" if 30 <= interval < 60 else "")).changes:
                run.weigh(controller.weights)
        one, other = (maglev(each.weights, dict(zip("abcd", range(4), strict=True)), TABLE) for each in controllers)
        if 25 <= interval < 40 or (interval >= 60 and controllers[1].weights["b"] > 0.01):  # it has moved since
            old = dict(islice(iter(before.items()), 8))
            assert {port: two[1].send(Packet(port)) for port in old} == old, interval
            before = {port: home for port, home in before.items() if port not in old}
        answers = Counter(two[0].connect(port) == two[1].send(Packet(port, SYN, 0)) for port in islice(ports, 20))
        if controllers[0].weights == controllers[1].weights:
            resting += answers
        else:
            assert 30 <= interval < 45 or 60 <= interval < 95, "at fair shares and at the floor they are equal"
            moving += answers
            common.append(float(np.mean(one == other)))
    assert resting[False] == 0
    assert resting[True] > 20 * 30, "weights rest most of the time"
    assert min(common) > 0.75
    assert moving[True] / moving.total() == pytest.approx(np.mean(common), abs=4 * (0.1 / moving.total()) ** 0.5)


def test_the_limit_of_new_connections(make: Callable[..., Run]) -> None:
    run = make()
    run.settings["most_new"] = 5
    run.serve("a", "b")
    run.now_ns = 1000 << 27  # the beginning of a unit of the limit
    homes = {port: run.connect(port) for port in range(1000, 1020)}
    assert run.faults() == {"limited": 15}
    assert sum(one.connections for one in run.counts().values()) == 5
    run.now_ns += 1 << 27
    assert {port: run.send(Packet(port)) for port in homes} == homes
    assert sum(one.connections for one in run.counts().values()) == 10


def test_the_twin_answers_the_same(make: Callable[..., Run]) -> None:
    """Random packets of few clients, tables that move, backends that go down: every answer and every counter."""
    for seed in range(scaled(12, 2)):
        rng = random.Random(seed)
        groups = rng.choice((1, 2, 8))
        run = make(groups=groups)
        run.settings["idle"], run.settings["closing"], run.settings["most_new"] = 600, 60, rng.choice((3, 1000))
        slots = run.serve("a", "b", "c", "d")
        names = {slot: name for name, slot in slots.items()}
        table = run.balancer.table()
        assert table is not None
        first = run.settings
        twin = Twin(
            groups, 600, 60, int(first["most_new"][0]), int(first["seed"][0]), int(first["table_seed"][0]),
            table.tolist(), table.tolist(), run.now_ns >> 24,
        )  # fmt: skip
        stable_since = kept = run.now_ns
        seqs, acks = dict[int, int](), dict[int, int]()
        for _ in range(scaled(12000, 1500)):
            run.now_ns += int(rng.expovariate(1) * rng.choice((1, 20, 400)) * MS)
            if rng.random() < 0.02:
                weighted = rng.choices(sorted(slots.values()), k=TABLE)
                units = (run.now_ns >> 24) - (stable_since >> 24)
                if units >= 10 * S >> 24 or (run.now_ns >> 24) - (kept >> 24) > 600:
                    twin.previous, kept = twin.active, run.now_ns
                twin.active, twin.changed, stable_since = weighted, run.now_ns >> 24, run.now_ns
                run.balancer.set_table(np.array(weighted, np.int32), run.now_ns)
            if rng.random() < 0.01:
                twin.down = {slots[name] for name in "abcd" if rng.random() < 0.3}
                listed = [replace(one, down=slots[one.name] in twin.down) for one in backends("a", "b", "c", "d")]
                run.balancer.set_backends(listed)
            flags = rng.choice((SYN, ACK, ACK | PSH, ACK | PSH, ACK | FIN, RST))
            port = 1000 + int(rng.expovariate(1 / (4 * groups * GROUP)))
            packet = Packet(port, flags, 10 if flags & PSH else 0, seqs.get(port, 2**32 - 100), acks.get(port, 7))
            if rng.random() < 0.1:
                acks[port] = (packet.ack + rng.choice((1, 1 << 18, 1 << 31))) % 2**32
            elif rng.random() < 0.1:
                packet = replace(packet, ack=(packet.ack + rng.choice((-1, 1, 1 << 18, (1 << 18) + 1))) % 2**32)
            if rng.random() < 0.1:  # forged, or after some that were lost
                packet = replace(
                    packet, seq=(packet.seq + rng.choice((-1, 1, 1 << 16, (1 << 16) + 1, 1 << 31))) % 2**32
                )
            elif flags != SYN:
                seqs[port] = (packet.seq + packet.payload) % 2**32
            client, ends = int(ip_address(packet.client)), bool(flags & (FIN | RST))
            ack = packet.ack if flags & ACK else None
            wanted = twin.packet(client, port, 80, flags == SYN, ends, run.now_ns, packet.seq, packet.payload, ack)
            assert run.send(packet) == names[wanted]
        assert run.faults() == twin.faults
        assert set(twin.faults) >= {"unknown"}
