"""blind, which uses sizes and times only: it equals its twin bit for bit, and is tested on simulated loops."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
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


def varied(ns: float) -> Callable[[random.Random], float]:
    """Not alike: the standard deviation is a third of the mean."""
    return constant(ns, jitter=0.6)


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
    "idle": Loop(varied(2 * MS), think=lambda rng: 300 * MS * (rng.random() < 0.05), seconds=8),
    "large": Loop(constant(5 * MS), size=lambda rng: rng.choice([100, 1348, 1448]), rtt_ns=LAN_NS),
}


@pytest.mark.every(3)
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
    assert set(seen) >= {"paced", "acks"}, seen


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
    rng = random.Random(1)
    gaps = [rng.randrange(MS, 3 * MS) for _ in range(80)]
    gaps[40] = 60 * MS
    requests = hidden_tcp(LAN_NS, *accumulate(gaps, initial=0))
    small = ClientPacket(requests[43].time_ns - quiet_ns, length=52)
    (epoch,) = hold_equal(merged([requests, [small]]))
    assert epoch.sum_ns == sum(gaps) - (60 * MS if is_idle else 0)


# Truth


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("rtt_ns", "latency", "in_flight"),
    [
        *((rtt_ns, exponential(2 * MS), in_flight) for rtt_ns in (0, LAN_NS) for in_flight in (1, 4)),
        *((FAR_NS, far(exponential(2 * MS)), in_flight) for in_flight in (1, 4)),
        *((rtt_ns, varied(2 * MS), 1) for rtt_ns in (0, LAN_NS)),
    ],
)
def test_closed_loops(in_flight: int, latency: Callable[[random.Random], float], rtt_ns: int) -> None:
    """UDP, and TCP with hidden headers, near and far."""
    loop = Loop(latency, in_flight, rtt_ns=rtt_ns, seconds=6)
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


@pytest.mark.every(2)
@pytest.mark.parametrize("mean_ns", [0.15 * MS, 0.5 * MS, 2 * MS, 10 * MS])
def test_open_loops(mean_ns: float) -> None:
    """By chance one flow in 140 has no short gaps, and one in 30 an opening flight."""
    told = [epoch for seed in range(scaled(40, 20)) for epoch in epochs("blind", poisson(mean_ns, 2, seed))]
    assert reasons(told).get("answered", 0) < 0.06


@pytest.mark.every(12)
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
    assert set(reasons(hold_equal(run(LOOPS["think"], seed=2)[0])[1:])) == {"think"}


def test_silence_is_not_latency() -> None:
    packets, truth = run(LOOPS["idle"], seed=2)
    told = hold_equal(packets)
    assert abs(median(errors(told, truth))) < 0.001


def test_an_initial_window() -> None:
    """The first round trip may contain all that the client was allowed to send."""
    packets, _ = run(Loop(far(exponential(2 * MS)), 10, rtt_ns=FAR_NS), seed=2)
    assert set(reasons(hold_equal(packets))) == {"initial"}


# A pace


def stream(times_ns: Sequence[float], length: int = 200) -> list[ClientPacket]:
    """Datagrams at these times."""
    return [ClientPacket(BEGIN_NS + int(at_ns), length=length) for at_ns in sorted(times_ns)]


def clock(period_ns: float, jitter: float, seconds: float, seed: int, talks: float = 1.0) -> list[float]:
    """Times of a clock; each is late by up to `jitter` periods, and a share of half-seconds is silent."""
    rng = random.Random(seed)
    spoken = [rng.random() < talks for _ in range(int(2 * seconds) + 2)]
    beats = (i * period_ns for i in range(int(seconds * 1e9 / period_ns)))
    return [at_ns + rng.random() * jitter * period_ns for at_ns in beats if spoken[int(at_ns // (500 * MS))]]


def frames(period_ns: float, seconds: float, seed: int) -> list[float]:
    """Video: bursts of packets at equal intervals, of unequal numbers."""
    rng = random.Random(seed)
    return [at_ns + i * 60 * US for at_ns in clock(period_ns, 0.1, seconds, seed) for i in range(rng.randrange(2, 9))]


def ragged(mean_ns: float, seconds: float, seed: int) -> list[float]:
    """Bursts of packets at random times, of unequal numbers; the first two look like requests in flight."""
    rng, now_ns, times = random.Random(seed), 0.0, [0.0, 20.0 * US]
    while now_ns < seconds * 1e9:
        now_ns += rng.expovariate(1 / mean_ns)
        times += [now_ns + i * 60 * US for i in range(rng.randrange(1, 5))]
    return times


STREAMS: dict[str, Callable[[int], list[float]]] = {
    "voice": lambda seed: clock(20 * MS, 0.01, 10, seed),
    "voice with jitter": lambda seed: clock(20 * MS, 0.5, 20, seed),
    "voice with silences": lambda seed: clock(20 * MS, 0.1, 30, seed, talks=0.5),
    "video": lambda seed: frames(33 * MS, 10, seed),
    "updates of a game": lambda seed: ragged(20 * MS, 10, seed),
    "voice and video": lambda seed: clock(20 * MS, 0.02, 20, seed) + frames(40 * MS, 20, seed),
    "four pings": lambda seed: [
        at + late for late in (0, 54 * MS, 155 * MS, 592 * MS) for at in clock(1e9, 0, 60, seed)
    ],
    "polling": lambda seed: list(accumulate(100 * MS + random.Random(i * seed).random() * 9 * MS for i in range(200))),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_have_no_latency(name: str) -> None:
    """No response triggers them. Their pace shows, also with jitter, silences, and several paces in one flow."""
    told = [epoch for seed in range(5) for epoch in hold_equal(stream(STREAMS[name](seed)))]
    assert reasons(told).get("answered", 0) <= 0.02
    if name in ("voice", "polling"):
        assert reasons(told)["paced"] > 0.5


def test_equal_latencies_are_a_pace() -> None:
    """A client that waits for responses of equal latency sends as a clock does: nobody can tell."""
    for rtt_ns in (0, LAN_NS):
        told = hold_equal(run(Loop(constant(2 * MS), rtt_ns=rtt_ns), seed=2)[0])
        assert set(reasons(told)) == {"paced"}


# Acknowledgements in datagrams


def acknowledged(
    packets: Sequence[ClientPacket], truth: Sequence[Truth], every: int, late_ns: int, sizes: Sequence[int]
) -> list[ClientPacket]:
    """With a short datagram for every so many responses, just before the request that follows, or later."""
    ends = sorted(one.sent_ns + one.latency_ns for one in truth)
    acks = [ClientPacket(at_ns + late_ns - 5 * US, length=sizes[i % len(sizes)]) for i, at_ns in enumerate(ends)]
    return merged([packets, acks[every - 1 :: every]])


@pytest.mark.every(3)
@pytest.mark.parametrize("in_flight", [1, 2, 4, 16])
@pytest.mark.parametrize(("every", "sizes"), [(1, [48]), (1, [48, 64]), (2, [48]), (2, [64, 48])])
def test_acknowledgements_beside_requests(in_flight: int, every: int, sizes: list[int]) -> None:
    latency = exponential(in_flight * 2 * MS, least_ns=MS)
    packets, truth = run(Loop(latency, in_flight, seconds=6), seed=in_flight)
    told = hold_equal(acknowledged(packets, truth, every, 0, sizes))
    assert reasons(told)["answered"] > 0.7
    off = [abs(error) for error in errors(told, truth)]
    assert median(off) < 0.03
    assert max(off) < 0.15
    # Were they requests, the mean would be half of that, or two thirds.
    assert all(epoch.requests > 1.3 * epoch.count for epoch in told if epoch.reason == "answered")


@pytest.mark.parametrize("in_flight", [1, 2, 4, 16])
@pytest.mark.parametrize("late_ns", [500 * US, 5 * MS])
def test_late_acknowledgements(in_flight: int, late_ns: int) -> None:
    """Only a large flight without any shows that they are not requests; otherwise there is no estimate."""
    packets, truth = run(Loop(exponential(in_flight * 2 * MS, least_ns=MS), in_flight, seconds=6), seed=in_flight)
    told = hold_equal(acknowledged(packets, truth, 1, late_ns, [48]))
    if in_flight == 16:
        assert reasons(told)["answered"] > 0.7
        assert max(map(abs, errors(told, truth))) < 0.15
    else:
        assert set(reasons(told)) <= {"acks", "paced", "too_few", "crowd", "spontaneous"}


def test_requests_of_two_sizes() -> None:
    """Short requests among long ones are not taken for acknowledgements."""
    loop = Loop(exponential(2 * MS, least_ns=MS), size=lambda rng: 100 if rng.random() < 0.6 else 20, seconds=6)
    for seed in range(10):
        packets, truth = run(loop, seed)
        told = hold_equal(packets)
        assert all(abs(error) < 0.1 for error in errors(told, truth))
