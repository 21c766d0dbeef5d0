"""blind, which uses sizes and times only: it equals its twin bit for bit, and is tested on simulated loops."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.pirate_blind import Blind
from tests.oracles.pirate_modes import ClientPacket, Epoch, Settings
from tests.support.client_loops import (
    BEGIN_NS,
    MS,
    US,
    Loop,
    Truth,
    any_loop,
    constant,
    epochs,
    errors,
    exponential,
    kernel,
    merged,
    observe,
    poisson,
    reasons,
    run,
    taken,
)
from tests.support.effort import examples, scaled

LAN_NS, FAR_NS = 60 * US, 10 * MS
USUAL = Settings()


def hold_equal(rows: Sequence[ClientPacket], chosen: Settings = USUAL, at: int = 0) -> list[Epoch]:
    """The kernel takes the rows in two parts; the split does not matter."""
    meter, twin = kernel("blind", chosen), Blind(chosen)
    observe(meter, rows[:at])
    observe(meter, rows[at:])
    meter.cut(0)
    expected = [*(twin.packet(row) for row in rows), twin.finish()]
    told = [epoch for epoch in expected if epoch is not None]
    assert [epoch for _, epoch in taken(meter)] == told
    return told


def far(latency: Callable[[random.Random], float]) -> Callable[[random.Random], float]:
    return lambda rng: FAR_NS + latency(rng)


def quic(packets: Sequence[ClientPacket], truth: Sequence[Truth], seed: int) -> list[ClientPacket]:
    """The same requests after a QUIC handshake, with an ACK before each; sizes as in aioquic."""
    rng = random.Random(seed)
    begin_ns = packets[0].time_ns
    greeting = [(-9 * MS, 1228), (-5 * MS, 1228), (-4 * MS, 75), (-MS, 60)]
    rows = [ClientPacket(begin_ns + later_ns, length=length) for later_ns, length in greeting]
    rows += [packet._replace(length=rng.choice([73, 78, 79, 92])) for packet in packets]
    rows += [ClientPacket(t.sent_ns + t.latency_ns // 2, length=rng.choice([60, 61, 62, 66])) for t in truth]
    return sorted(rows)


LOOPS = {
    "one": Loop(constant(2 * MS)),
    "exponential": Loop(exponential(2 * MS)),
    "four": Loop(exponential(2 * MS), 4),
    "batches": Loop(exponential(2 * MS), 4, batch=True),
    "lan": Loop(exponential(2 * MS), 4, rtt_ns=LAN_NS),
    "fast": Loop(constant(100 * US), rtt_ns=LAN_NS, seconds=0.5),
    "no_flight": Loop(constant(100 * US), seconds=0.5),
    "far": Loop(far(exponential(2 * MS)), 16, rtt_ns=FAR_NS),
    "think": Loop(constant(2 * MS), think=lambda rng: rng.expovariate(1 / 20 / MS), rtt_ns=LAN_NS),
    "idle": Loop(constant(2 * MS), think=lambda rng: 300 * MS * (rng.random() < 0.05)),
    "large": Loop(constant(5 * MS), size=lambda rng: rng.choice([100, 1348, 1448]), rtt_ns=LAN_NS),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str) -> None:
    packets, truth = run(LOOPS[name], seed=3)
    for chosen in (USUAL, Settings(20 * MS, 2)):
        hold_equal(packets, chosen, at=777)
        hold_equal(quic(packets, truth, seed=3), chosen)


@pytest.mark.acceptance
def test_traffic_that_is_not_a_loop() -> None:
    for seed in range(5):
        hold_equal(poisson(0.2 * MS, 1, seed))
        hold_equal(merged([run(LOOPS["lan"]._replace(begin_ns=BEGIN_NS + i * MS), i)[0] for i in range(5)]))


def test_any_loop() -> None:
    """One loop, or a few in one flow; short epochs, so that verdicts are frequent."""
    for seed in range(scaled(80)):
        rng = random.Random(seed)
        loop = any_loop(rng)
        begins = [loop.begin_ns + i * 777 * US for i in range(rng.choice([1, 1, 1, 2, 5]))]
        flows = [run(loop._replace(begin_ns=begin_ns), seed + i) for i, begin_ns in enumerate(begins)]
        chosen = Settings(rng.choice([2 * MS, 20 * MS]), rng.choice([1, 4]))
        packets = merged([of_one for of_one, _ in flows])
        hold_equal(packets, chosen)
        acked = [t for _, of_one in flows for t in of_one if rng.random() < rng.choice([0.11, 0.13, 1])]
        hold_equal(quic(packets, acked, seed), chosen)


# Odd rows

GAPS_NS = (
    0,
    0,
    1,
    900,
    20 * US,
    90 * US,
    100_000,
    131_072,
    131_073,
    MS,
    2 * MS,
    2 * MS,
    60 * MS,
    300 * MS,
    -5 * US,
    2**42,
)
LENGTHS = (0, 4, 8, 52, 52, 58, 60, 60, 64, 66, 80, 84, 144, 145, 152, 300, 300, 1200, 1399, 1400, 70_000)


def odd_rows(choices: Sequence[tuple[int, int]], begin_ns: int) -> list[ClientPacket]:
    rows, now_ns = [], begin_ns
    for i, (gap, length) in enumerate(choices):
        now_ns = max(now_ns + GAPS_NS[gap % len(GAPS_NS)], 0)
        time_ns = (-1, 2**62)[i % 2] if gap % 37 == 36 else now_ns
        rows.append(ClientPacket(time_ns, length=LENGTHS[length % len(LENGTHS)]))
    return rows


odd_settings = st.builds(
    Settings,
    epoch_ns=st.sampled_from([1, 100 * US, 4 * MS, 500 * MS, 2**34]),
    fewest=st.sampled_from([1, 2, 4, 2**16]),
    gap_ns=st.just(0),
    literal=st.just(value=False),
)
odd_choices = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), max_size=120)


@examples(500)
@given(odd_settings, odd_choices, st.sampled_from([0, 10**18, 2**62 - 2**44]), st.integers(0, 120))
def test_odd_rows(chosen: Settings, odd: list[tuple[int, int]], begin_ns: int, at: int) -> None:
    hold_equal(odd_rows(odd, begin_ns), chosen, at)


def test_many_odd_rows() -> None:
    """Flows with few lengths and gaps, so that something is learned; every reason occurs."""
    seen: Counter[str] = Counter()
    for seed in range(scaled(120, 60)):
        rng = random.Random(seed)
        gaps = [rng.randrange(12) for _ in range(rng.choice([1, 2, 3]))]
        lengths = [rng.choice([3, 6, 15, 15, 19]) for _ in range(rng.choice([1, 2, 3]))]
        flight = [rng.choice([2, 3, 4]) for _ in range(rng.choice([0, 3, 9]))]
        first = rng.choice([[(0, 6), (rng.choice([4, 9, 10]), 3)], [(0, 17), (10, 6)], [(0, 17)] * 9, [(0, 15)], []])
        odd = [*first, *((gap, 15) for gap in flight)]
        odd += [(rng.choice(gaps), rng.choice(lengths)) if rng.random() < 0.97 else (12, 15) for _ in range(2500)]
        chosen = Settings(rng.choice([100 * US, 4 * MS, 500 * MS]), rng.choice([1, 4]))
        seen.update(epoch.reason for epoch in hold_equal(odd_rows(odd, 10**18), chosen))
    assert set(seen) >= {"answered", "too_few", "no_gap", "spontaneous", "joined", "crowd", "think", "initial"}, seen


def hidden_tcp(rtt_ns: int, *requests_ns: int) -> list[ClientPacket]:
    """SYN, ACK, and requests at this time after the ACK."""
    sizes = [(-rtt_ns, 60), (0, 52), *((after_ns, 300) for after_ns in requests_ns)]
    return [ClientPacket(BEGIN_NS + after_ns, length=length) for after_ns, length in sizes]


@pytest.mark.parametrize(("late_ns", "in_flight"), [(7 * MS - 1, 2), (7 * MS, 1)])
def test_a_flight_lasts_seven_eighths_of_a_round_trip(late_ns: int, in_flight: int) -> None:
    (epoch,) = hold_equal(hidden_tcp(8 * MS, 0, late_ns, 20 * MS, 30 * MS))
    assert epoch.in_flight == in_flight


@pytest.mark.parametrize(("quiet_ns", "is_idle"), [(30 * MS, False), (30 * MS + 1, True)])
def test_idle_flows_acknowledged_and_were_silent_for_longer(quiet_ns: int, is_idle: bool) -> None:
    requests = hidden_tcp(LAN_NS, *(i * MS for i in range(40)), *(100 * MS + i * MS for i in range(40)))
    idle_ns = requests[42].time_ns - requests[41].time_ns
    shorter = [row._replace(time_ns=row.time_ns - (idle_ns - 60 * MS) * (i > 41)) for i, row in enumerate(requests)]
    small = ClientPacket(shorter[42].time_ns - quiet_ns, length=52)
    (epoch,) = hold_equal(merged([shorter, [small]]))
    assert epoch.sum_ns == 78 * MS + (0 if is_idle else 60 * MS)


# Truth


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("latency", [constant(2 * MS), exponential(2 * MS)])
@pytest.mark.parametrize("rtt_ns", [0, LAN_NS, FAR_NS])
def test_closed_loops(in_flight: int, latency: Callable[[random.Random], float], rtt_ns: int) -> None:
    """UDP, and TCP with hidden headers, near and far."""
    loop = Loop(far(latency) if rtt_ns == FAR_NS else latency, in_flight, rtt_ns=rtt_ns, seconds=6)
    packets, truth = run(loop, seed=2)
    told = hold_equal(packets)
    assert reasons(told)["answered"] > 0.9
    # One in flight is exact; with four, those in flight at the edges of an epoch count in the wrong one.
    assert max(map(abs, errors(told, truth))) < (0.001 if in_flight == 1 else 0.03)
    assert {epoch.in_flight for epoch in told} == {in_flight}


def test_batches_are_timed_as_a_whole() -> None:
    packets, truth = run(Loop(constant(2 * MS, jitter=0.2), 4, batch=True), seed=2)
    told = hold_equal(packets)
    # The slowest of four with 20% of jitter takes 1.12 times as long as their mean, plus its later sending.
    assert all(0.08 < error < 0.16 for error in errors(told, truth))


def test_headers_are_not_used() -> None:
    packets, _ = run(LOOPS["lan"], seed=2)
    bare = [ClientPacket(packet.time_ns, length=packet.length) for packet in packets]
    odd = [packet._replace(tcp_flags=7, has=7, payload=0, seq=i) for i, packet in enumerate(bare)]
    assert epochs("blind", packets) == epochs("blind", bare) == epochs("blind", odd)


def test_quic() -> None:
    packets, truth = run(Loop(exponential(5 * MS, least_ns=MS), seconds=5), seed=2)
    told = hold_equal(quic(packets, truth, seed=2))
    assert reasons(told)["answered"] > 0.9
    assert max(map(abs, errors(told, truth))) < 0.001


def test_quic_with_several_requests_behind_the_handshake() -> None:
    """Its last packet carries them: the number in flight is unknown, though requests then follow one by one."""
    packets, truth = run(Loop(exponential(5 * MS, least_ns=MS), seconds=5), seed=2)
    rows = quic(packets, truth, seed=2)
    rows[2] = rows[2]._replace(length=146)
    assert set(reasons(hold_equal(rows))) <= {"coalesced", "too_few"}


def test_quic_with_several_requests_that_began_apart() -> None:
    """Only some requests have ACKs between them, which makes it look like one in flight."""
    packets, truth = run(Loop(exponential(20 * MS, least_ns=5 * MS), 4, gap_ns=MS, seconds=5), seed=2)
    told = hold_equal(quic(packets, truth, seed=2))
    assert set(reasons(told)) <= {"crowd", "spontaneous", "too_few"}


@pytest.mark.parametrize("mean_ns", [0.15 * MS, 0.5 * MS, 2 * MS, 10 * MS])
def test_open_loops(mean_ns: float) -> None:
    """By chance one flow in 140 has no short gaps, and one in 30 an opening flight."""
    told = [epoch for seed in range(scaled(40, 20)) for epoch in epochs("blind", poisson(mean_ns, 2, seed))]
    assert reasons(told).get("answered", 0) < 0.06


@pytest.mark.every(3)
@pytest.mark.parametrize("latency", [constant(2 * MS), exponential(2 * MS), constant(20 * MS), exponential(20 * MS)])
@pytest.mark.parametrize("rtt_ns", [0, LAN_NS])
@pytest.mark.parametrize("spread_ns", [0, 300 * MS])
def test_a_tunnel(latency: Callable[[random.Random], float], rtt_ns: int, spread_ns: int) -> None:
    """Twenty connections in one flow, started together or one after the other."""
    told, wrong = [], 0
    for seed in range(scaled(3)):
        rng = random.Random(seed)
        loops = [
            Loop(latency, rtt_ns=rtt_ns, begin_ns=BEGIN_NS + i * 11 * US + int(rng.random() * spread_ns))
            for i in range(20)
        ]
        flows = [run(loop, seed * 100 + i) for i, loop in enumerate(loops)]
        said = hold_equal(merged([packets for packets, _ in flows]))
        told += said
        truth = sorted(t for _, of_one in flows for t in of_one)
        wrong += sum(abs(error) > 0.15 for error in errors(said, truth))
    # Connections started in one flight of datagrams are a loop with twenty in flight, and its estimate is right.
    assert wrong <= 0.05 * len(told)
    if rtt_ns or spread_ns:
        assert reasons(told).get("answered", 0) <= 0.05


def test_several_loops_balance_each_other() -> None:
    loops = [Loop(constant(2 * MS), begin_ns=BEGIN_NS + i * 700 * US) for i in range(3)]
    told = hold_equal(merged([run(loop, i)[0] for i, loop in enumerate(loops)]))
    assert reasons(told)["crowd"] > 0.8


def test_think_time() -> None:
    assert reasons(hold_equal(run(LOOPS["think"], seed=2)[0])) == {"think": 1}


def test_silence_is_not_latency() -> None:
    packets, truth = run(LOOPS["idle"], seed=2)
    told = hold_equal(packets)
    assert abs(median(errors(told, truth))) < 0.001


def test_an_initial_window() -> None:
    """The first round trip may contain all that the client was allowed to send."""
    packets, _ = run(Loop(far(exponential(2 * MS)), 10, rtt_ns=FAR_NS), seed=2)
    assert set(reasons(hold_equal(packets))) == {"initial"}
