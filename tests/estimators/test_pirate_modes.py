"""gap, modes, ack, window and syn: equal to their twins, bit for bit, and tested on simulated loops."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.pirate_modes import ACK, FIN, HAS_TCP, RST, RULES, SYN, ClientPacket, Epoch, Front, Settings, Syn
from tests.support.client_loops import (
    MS,
    US,
    Loop,
    any_loop,
    constant,
    epochs,
    errors,
    exponential,
    kernel,
    merged,
    observe,
    reasons,
    run,
    taken,
)
from tests.support.effort import examples, scaled

LAN_NS = 60 * US
MANY = 2**32

Method = Front | Syn


def twin(method: str, chosen: Settings) -> Method:
    return Syn(chosen) if method == "syn" else Front(chosen, RULES[method])


def hold_equal(method: str, chosen: Settings, rows: Sequence[ClientPacket], at: Sequence[int] = ()) -> list[Epoch]:
    """Both take the rows in parts; after every second part, and at the end, a cut ends all flows."""
    meter, flows = kernel(method, chosen), dict[int, Method]()
    told = []
    edges = [0, *sorted(min(i, len(rows)) for i in at), len(rows)]
    for part, (start, end) in enumerate(pairwise(edges)):
        observe(meter, rows[start:end])
        expected = []
        for row in rows[start:end]:
            epoch = flows.setdefault(row.key, twin(method, chosen)).packet(row)
            expected += [] if epoch is None else [(row.key, epoch)]
        assert taken(meter) == expected
        if part % 2 == 1 or end == len(rows):
            meter.cut(0)
            ends = [(key, flow.finish()) for key, flow in flows.items()]
            flows.clear()
            last = [(key, epoch) for key, epoch in ends if epoch is not None]
            assert sorted(taken(meter), key=lambda told: told[0]) == sorted(last, key=lambda told: told[0])
            expected += last
        told += [epoch for _, epoch in expected]
    return told


METHODS = [*RULES, "syn"]
LOOPS = {
    "one": Loop(constant(2 * MS), rtt_ns=LAN_NS),
    "exponential": Loop(exponential(2 * MS), rtt_ns=LAN_NS),
    "sliding": Loop(exponential(2 * MS), 4, rtt_ns=LAN_NS),
    "batches": Loop(exponential(2 * MS), 4, batch=True, rtt_ns=LAN_NS),
    "think": Loop(constant(2 * MS), think=lambda rng: 50 * MS * (rng.random() < 0.1), rtt_ns=LAN_NS),
    "large": Loop(constant(5 * MS), size=lambda rng: rng.choice([100, 1348, 1448]), rtt_ns=LAN_NS),
    "udp": Loop(exponential(5 * MS), 3),
    "slow": Loop(exponential(900 * MS), rtt_ns=300 * MS, seconds=20),
}


@pytest.mark.every(6)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str, method: str) -> None:
    packets, _ = run(LOOPS[name], seed=3)
    for chosen in (Settings(), Settings(20 * MS, 2, 200 * US), Settings(literal=True)):
        hold_equal(method, chosen, packets, [500, 1000, 1200])


@pytest.mark.every(2)
@pytest.mark.parametrize("method", METHODS)
def test_any_loop(method: str) -> None:
    """Two loops at a time; short epochs, so that verdicts are frequent."""
    for seed in range(scaled(40)):
        rng = random.Random(seed)
        loops = [any_loop(rng) for _ in range(2)]
        flows = [[packet._replace(key=key + 1) for packet in run(loop, seed)[0]] for key, loop in enumerate(loops)]
        chosen = Settings(rng.choice([2 * MS, 20 * MS, 100 * MS]), rng.choice([1, 4]), literal=seed % 4 == 0)
        hold_equal(method, chosen, merged(flows), [600])


# Odd rows

GAPS_NS = (0, 0, 1, 900, 20 * US, 70 * US, 300 * US, MS, 2 * MS, 2 * MS, 60 * MS, 700 * MS, 3000 * MS, -5 * US, 2**42)
LENGTHS = (0, 40, 100, 1399, 1400, 1500, 2**32 - 1)
PAYLOADS = (0, 0, 10, 10, 500, 2**24, 2**31)
SEQS = (0, 0, 0, 0, -10, 10, -(2**24), -(2**24) - 11, 2**31, 7)
ACKS = (0, 0, 500, 500, -500, 2**31, 2**31 - 1)
FLAGS = (ACK, ACK, ACK, ACK, ACK, 0, SYN, SYN | ACK, ACK | FIN, RST)
HAS = (HAS_TCP, HAS_TCP, HAS_TCP, HAS_TCP, 0, 6, 7)
DOMAINS = (GAPS_NS, LENGTHS, PAYLOADS, SEQS, ACKS, FLAGS, HAS)


def odd_rows(choices: Sequence[Sequence[int]], begin_ns: int, flags: Sequence[int]) -> list[ClientPacket]:
    """Rows of two flows, whose numbers mostly continue from the last one."""
    rows, now_ns, seq, ack = [], begin_ns, 2**32 - 40, 2**32 - 900
    for i, choice in enumerate(choices):
        gap_ns, length, payload, ahead, moved, _, has = (
            domain[n % len(domain)] for n, domain in zip(choice, DOMAINS, strict=True)
        )
        now_ns = max(now_ns + gap_ns, 0)
        ack = (ack + moved) % MANY
        flag = flags[choice[5] % len(flags)]
        start = (seq + ahead) % MANY
        bad_ns = (-1, 2**62, -(2**63), 2**63 - 1)[i % 4]
        time_ns = now_ns if choice[0] % 31 != 30 else bad_ns
        key = 1 if choice[1] % 9 else 2**64 - 1 >> 1
        rows.append(ClientPacket(time_ns, key, start, ack, 0, 0, length, payload, 0, 0, flag, has))
        seq = (start + payload) % MANY if ahead == 0 else seq
    return rows


odd_settings = st.builds(
    Settings,
    epoch_ns=st.sampled_from([1, 100 * US, 4 * MS, 500 * MS, 2**34]),
    fewest=st.sampled_from([1, 2, 4, 2**16]),
    gap_ns=st.sampled_from([0, 50 * US, MS, 2**40]),
    literal=st.booleans(),
)
odd_choices = st.lists(st.lists(st.integers(0, 210), min_size=7, max_size=7), max_size=60)
cuts = st.lists(st.integers(0, 60), max_size=3)
begins = st.sampled_from([0, 10**18, 2**62 - 2**43])


@pytest.mark.parametrize("method", METHODS)
@examples(150)
@given(odd_settings, odd_choices, begins, cuts)
def test_odd_rows(method: str, chosen: Settings, odd: list[list[int]], begin_ns: int, at: list[int]) -> None:
    hold_equal(method, chosen, odd_rows(odd, begin_ns, FLAGS), at)


@pytest.mark.every(4)
@pytest.mark.parametrize("method", METHODS)
def test_many_odd_rows(method: str) -> None:
    """Few flags, so that flows last; every reason of the method occurs."""
    seen: Counter[str] = Counter()
    for seed in range(scaled(20, 10)):
        rng = random.Random(seed)
        odd = [[rng.randrange(5), *(rng.randrange(210) for _ in range(6))] for _ in range(3000)]
        odd = [[rng.randrange(30) if rng.random() < 0.1 else c[0], *c[1:6], 0 if seed % 4 else c[6]] for c in odd]
        flags = [ACK] * 200 + [SYN, FIN, RST] if seed % 2 else [ACK]
        chosen = Settings(
            rng.choice([100 * US, 4 * MS]), rng.choice([1, 4]), rng.choice([100 * US, 10 * MS]), seed == 3
        )
        seen.update(epoch.reason for epoch in hold_equal(method, chosen, odd_rows(odd, 10**18, flags), [999, 2000]))
    given_by = {
        "gap": {"answered", "too_few"},
        "modes": {"answered", "too_few", "no_gap"},
        "ack": {"answered", "too_few", "not_tcp"},
        "in_flight": {"answered", "too_few", "not_tcp", "joined"},
        "syn": {"answered", "not_tcp", "joined"},
    }
    assert given_by[method] <= set(seen), seen


@pytest.mark.acceptance
def test_an_epoch_ends_before_its_counters_do() -> None:
    rows = [ClientPacket(10**18 + i, length=1400) for i in range(70_000)]
    for method in ("gap", "modes", "ack", "in_flight"):
        assert len(hold_equal(method, Settings(), rows)) == 2


# Truth


@pytest.mark.parametrize("latency", [constant(2 * MS), constant(20 * MS), exponential(2 * MS)])
@pytest.mark.parametrize("method", ["modes", "ack", "in_flight"])
def test_one_in_flight(method: str, latency: Callable[[random.Random], float]) -> None:
    packets, truth = run(Loop(latency, rtt_ns=LAN_NS, seconds=5), seed=1)
    told = epochs(method, packets)
    assert reasons(told) == {"answered": 1}
    # The client takes no time: only the rounding of gaps to units is left.
    assert max(map(abs, errors(told, truth))) < 0.001
    assert {epoch.in_flight for epoch in told} == {1}
    assert {epoch.network_ns for epoch in told} == {LAN_NS}


@pytest.mark.parametrize("method", ["gap", "modes", "ack", "in_flight"])
def test_batches(method: str) -> None:
    packets, truth = run(Loop(constant(2 * MS), 4, batch=True, rtt_ns=LAN_NS), seed=1)
    told = epochs(method, packets)
    assert reasons(told) == {"answered": 1}
    # A batch ends with the slowest of four, sent up to 30 us late: 2% of jitter and 1.5%.
    assert all(0 <= error < 0.035 for error in errors(told, truth))
    assert {epoch.in_flight for epoch in told} == {4}


def test_only_window_handles_a_sliding_window() -> None:
    packets, truth = run(Loop(exponential(2 * MS), 4, rtt_ns=LAN_NS), seed=1)
    assert max(map(abs, errors(epochs("in_flight", packets), truth))) < 0.02
    assert median(errors(epochs("ack", packets), truth)) < -0.7
    assert median(errors(epochs("modes", packets), truth)) < -0.7


@pytest.mark.parametrize("loop", [Loop(constant(2 * MS)), Loop(constant(2 * MS), 4, batch=True)])
def test_one_outlier_ruins_the_literal_reading(loop: Loop) -> None:
    """The largest mode is taken for the gap between batches, and all others for gaps in a batch of hundreds."""
    packets, truth = run(loop, seed=1)
    late = [packet._replace(time_ns=packet.time_ns + 60 * MS * (i >= 100)) for i, packet in enumerate(packets[:400])]
    ours, literal = (epochs("modes", late, Settings(2000 * MS, literal=which)) for which in (False, True))
    true_ns = sum(t.latency_ns for t in truth[:100]) / 100
    assert [epoch.sum_ns / epoch.count for epoch in ours if epoch.count] == pytest.approx([true_ns], rel=0.04)
    # The outlier is a single gap, so the literal reading has one sample: it needs `fewest` 1 to answer at all.
    assert reasons(literal) == {"too_few": 1}
    (epoch,) = epochs("modes", late, Settings(2000 * MS, fewest=1, literal=True))
    assert epoch.sum_ns / epoch.count > 10 * true_ns


def test_the_literal_reading_fails_with_a_few_similar_outliers() -> None:
    packets, truth = run(Loop(constant(2 * MS)), seed=1)
    late = [packet._replace(time_ns=packet.time_ns + 60 * MS * (i // 100)) for i, packet in enumerate(packets[:1000])]
    (wrong,) = epochs("modes", late, Settings(10**10, literal=True))
    (right,) = epochs("modes", late, Settings(10**10))
    assert wrong.sum_ns / wrong.count > 100 * truth[0].latency_ns
    assert right.sum_ns / right.count == pytest.approx(2 * MS, rel=0.01)


def stream(rng: random.Random, gap: Callable[[], float], length: int = 128) -> list[ClientPacket]:
    now_ns, rows = 10**18, []
    for _ in range(2000):
        rows.append(ClientPacket(now_ns, length=length))
        now_ns += int(gap())
    return rows


def test_modes_abstain_where_no_gap_is_prominent() -> None:
    rng = random.Random(1)
    uploads = stream(rng, lambda: rng.uniform(0.1, 3) * MS, length=1500)
    close = stream(rng, lambda: rng.choice([1, 1.02, 3, 3.1]) * MS)
    scattered = stream(rng, lambda: 10 ** rng.choice([3.5, 4.2, 4.8, 5.3, 5.8, 6.3, 6.8, 7.3, 7.8, 8.3]))
    for rows in (uploads, close):
        assert reasons(epochs("modes", rows)) == {"no_gap": 1}
    # Ten kinds of gaps do not fit into eight modes; epochs must be long enough to contain all.
    assert reasons(epochs("modes", scattered, Settings(10**10)))["no_gap"] > 0.8


def test_pure_acks_are_left_out() -> None:
    packets, truth = run(Loop(constant(2 * MS), rtt_ns=LAN_NS), seed=1)
    acks = [
        packet._replace(time_ns=packet.time_ns + MS, payload=0, length=52, seq=(packet.seq + packet.payload) % MANY)
        for packet in packets[2:]
    ]
    told = epochs("modes", merged([packets, acks]))
    assert max(map(abs, errors(told, truth))) < 0.001


def test_think_time_shown_by_acknowledgements() -> None:
    packets, truth = run(LOOPS["think"], seed=1)
    assert reasons(epochs("ack", packets)) == reasons(epochs("in_flight", packets)) == {"think": 1}
    assert median(errors(epochs("modes", packets), truth)) > 5


def test_retransmissions_are_not_requests() -> None:
    packets, truth = run(Loop(constant(20 * MS), rtt_ns=LAN_NS), seed=1)
    again = [packet._replace(time_ns=packet.time_ns + 7 * MS) for packet in packets[2:]]
    told = epochs("modes", merged([packets, again]))
    assert max(map(abs, errors(told, truth))) < 0.001
    assert sum(epoch.lost for epoch in told) == len(again)


def test_a_joined_flow_is_marked_until_it_was_silent() -> None:
    loop = Loop(exponential(2 * MS), 4, rtt_ns=LAN_NS)
    before = run(loop, seed=1)[0][50:]
    after, truth = run(loop._replace(begin_ns=loop.begin_ns + 4000 * MS), seed=2)
    moved = before[-1].ack - after[2].ack
    goes_on = [packet._replace(ack=(packet.ack + moved) % MANY) for packet in after[2:]]
    told = hold_equal("in_flight", Settings(), [*before, *goes_on])
    assert {epoch.reason for epoch in told if epoch.end_ns <= before[-1].time_ns} == {"joined"}
    answered = [epoch for epoch in told if epoch.start_ns > goes_on[0].time_ns]
    assert {(epoch.reason, epoch.in_flight) for epoch in answered} == {("answered", 4)}
    assert max(map(abs, errors(answered, truth))) < 0.02


def test_syn() -> None:
    packets, _ = run(Loop(constant(2 * MS), rtt_ns=3 * MS), seed=1)
    (epoch,) = epochs("syn", packets)
    assert (epoch.sum_ns, epoch.count, epoch.network_ns, epoch.lost) == (3 * MS, 1, 3 * MS, 0)
    lost = packets[0]._replace(time_ns=packets[0].time_ns - 1000 * MS)
    (epoch,) = epochs("syn", [lost, *packets])
    assert (epoch.sum_ns, epoch.lost) == (3 * MS, 1)
    assert reasons(epochs("syn", packets[1:])) == {"joined": 1}
    assert reasons(epochs("syn", run(Loop(constant(MS)), seed=1)[0])) == {"not_tcp": 1}


def test_a_fin_ends_the_epoch() -> None:
    packets, truth = run(Loop(constant(2 * MS), rtt_ns=LAN_NS, seconds=0.05), seed=1)
    fin = packets[-1]._replace(time_ns=packets[-1].time_ns + MS, payload=0, tcp_flags=ACK | FIN)
    for method in ("gap", "modes", "ack", "in_flight"):
        meter = kernel(method)
        observe(meter, [*packets, fin])
        ((_, epoch),) = taken(meter)
        assert epoch.end_ns == fin.time_ns
        assert errors([epoch], truth) == pytest.approx([0], abs=0.05)
