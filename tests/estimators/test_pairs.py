"""Requests and responses seen in both directions: the kernel equals its twin bit for bit; examples by hand."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import pairs as naive
from tests.support.conversations import (
    ACK,
    FIN,
    PSH,
    RST,
    SILENCE_NS,
    SYN,
    Row,
    Talk,
    batch_of,
    ends_of,
    hold_equal,
    taken,
)
from tests.support.effort import examples
from wirelag import _kernels
from wirelag.estimators.pairs import Pairs
from wirelag.measure.loop import run
from wirelag.packets.batch import Flag, Kind
from wirelag.synopses.request_response import FLAGS, OVERLAPPING, STREAM

# The kernel and its twin


# Few flows and few numbers, near the point where they wrap: packets that match each other.
numbers = st.sampled_from([*range(12)] * 4 + [2**28, 2**28 + 1, 2**28 + 9, 2**31, 2**31 + 4, 2**32 - 2**28 - 1])
odd_packet = st.fixed_dictionaries(
    {
        "time_ns": st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 20, -1, 2**62 - 1, 2**62]),
        "flow_key": st.sampled_from([0, 1, 2]),
        "flags": st.sampled_from([0, 0, 0, Flag.REVERSE, Flag.REVERSE, Flag.REVERSE, Flag.SHORT, Flag.TUNNEL]),
        "kind": st.sampled_from([Kind.TCP] * 12 + [Kind.UDP, Kind.DNS, Kind.NTP, Kind.QUIC]),
        "message": st.sampled_from(
            [ACK] * 9 + [ACK | PSH] * 5 + [0, SYN, SYN | ACK, SYN | ACK, FIN | ACK, FIN, RST, RST | ACK, 255]
        ),
        "transaction": st.sampled_from([0, 1, 1 << 32, 3]),
        "payload_length": st.sampled_from([0, 0, 1, 1, 2, 3, 5, 2**24, 2**24 + 1]),
        "seq": numbers.map(lambda n: (n - 6) % 2**32),
        "ack": numbers.map(lambda n: (n - 6) % 2**32),
        "src_port": st.sampled_from([7, 80]),
        "dst_port": st.sampled_from([7, 80]),
        "from_client": st.sampled_from([True, True, False]),
    }
)


@examples(500)
@given(
    st.lists(odd_packet, max_size=50),
    st.lists(st.integers(0, 50), max_size=3),
    st.sampled_from([0, 4, SILENCE_NS]),
    st.booleans(),
)
def test_kernel_and_twin_agree_on_any_packets(rows: list[Row], at: list[int], silence_ns: int, rising: bool) -> None:
    if rising:
        rows = [
            row | {"time_ns": row["time_ns"] + 10 * i} if row["time_ns"] < 30 else row for i, row in enumerate(rows)
        ]
    packets, from_client = batch_of(rows), np.array([row["from_client"] for row in rows], np.uint8)
    edges = [0, *sorted(min(i, len(rows)) for i in at), len(rows)]
    hold_equal([(packets[a:b], from_client[a:b]) for a, b in pairwise(edges)], silence_ns=silence_ns)


# Conversations


# One connection with a handshake, then segments in any order: holes appear, split, fill and are acknowledged.
segment = st.tuples(
    st.sampled_from([True, False, False, False]),
    st.sampled_from([*range(20)] * 3 + [2**28 - 3, 2**28 - 1, 2**28, 2**28 + 1, 2**28 + 5, -(2**28), -(2**28) - 1]),
    st.integers(0, 4),
    st.sampled_from([*range(20)] + [0] * 20 + [2**28 + n for n in range(8)]),
    st.sampled_from([ACK] * 12 + [ACK | PSH] * 6 + [ACK | FIN] * 3 + [SYN, SYN | ACK, RST]),
)


@examples(500)
@given(st.lists(segment, max_size=30), st.integers(0, 30))
def test_kernel_and_twin_agree_on_segments_in_any_order(
    segments: list[tuple[bool, int, int, int, int]], at: int
) -> None:
    talk = Talk(first=2**32 - 6)
    talk.shake_hands()
    base = dict(talk.next)
    talk.send(100, True, 5, ACK | PSH)
    talk.send(100, False, 1, ACK | PSH)
    for from_client, offset, size, ack, message in segments:
        numbers = {"seq": (base[from_client] + offset) % 2**32, "ack": (base[not from_client] + ack) % 2**32}
        if message & SYN:
            numbers["seq"] = (base[from_client] - 1) % 2**32
        talk.send(100, from_client, 0 if message & SYN else size, message, **numbers)
    packets, from_clients = batch_of(talk.rows), np.array([row["from_client"] for row in talk.rows], np.uint8)
    hold_equal([(packets[:at], from_clients[:at]), (packets[at:], from_clients[at:])])


def exchanges_of(rows: Sequence[Row], **changes: int) -> list[naive.Exchange]:
    """The common result of both for these packets, in one piece and cut at the end."""
    return hold_equal([(batch_of(rows), np.array([row["from_client"] for row in rows], np.uint8))], **changes).exchanges


def test_an_exchange_of_http_by_hand() -> None:
    """A request of two packets and its response of two, then another request.

    ms    0    6      8    10       11       17    20        31        32    40       47        50
          SYN  < S/A  ACK  300 B >  200 B >  <ACK  < 1000 B  < 400 B   ACK > 100 B >  < 50 B    ACK >

    The first request begins at 10 and is whole at 11, its response lasts from 20 to 31. To the server: SYN to SYN/ACK,
    6 ms; the ACK at 17 is 7 after the data, so 6 stays. To the client: SYN/ACK to ACK, 2 ms; the ACK at 32 is 12 after
    the first data that it acknowledges, so 2 stays. Response time 31 - 11 = 20 ms: to the first byte 9, of these
    network 6 and server 3; transfer 11. The next request is 9 ms later, 2 of them network: think time 7. Its response
    takes 7 ms, network 6, server 1. The client experiences 22 and 9.
    """
    talk = Talk(start_ns=0)
    talk.shake_hands()
    talk.send(2_000_000, True, 300)
    talk.send(1_000_000, True, 200)
    talk.send(6_000_000, False)
    talk.send(3_000_000, False, 1000)
    talk.send(11_000_000, False, 400)
    talk.send(1_000_000, True)
    talk.send(8_000_000, True, 100)
    talk.send(7_000_000, False, 50)
    talk.send(3_000_000, True)
    ms, ends = 1_000_000, (0, 1, 0, 2, 5000 << 32 | 80 << 16 | 6)
    assert exchanges_of(talk.rows) == [
        (9, 10 * ms, 11 * ms, 20 * ms, 31 * ms, -1, 6 * ms, 2 * ms, 500, 1400, 0, 4, 8, ends),
        (9, 40 * ms, 40 * ms, 47 * ms, 47 * ms, 9 * ms, 6 * ms, 2 * ms, 100, 50, 0, 10, 11, ends),
    ]
    (report,) = run(Pairs(), {"tap": [batch_of(talk.rows)]})
    assert (report.samples, report.details["batches"]) == (2, 0)
    assert report.mean == pytest.approx(0.0135)
    told = {name: report.details[name] for name in ("first_byte", "network", "server", "transfer", "think", "felt")}
    assert told == pytest.approx(
        {"first_byte": 0.008, "network": 0.006, "server": 0.002, "transfer": 0.0055, "think": 0.007, "felt": 0.0155}
    )


def flags_of(talk: Talk) -> list[int]:
    return [exchange.flags for exchange in exchanges_of(talk.rows)]


def asked_and_answered() -> Talk:
    talk = Talk()
    talk.shake_hands()
    talk.send(1_000_000, True, 100)
    talk.send(9_000_000, False, 500)
    return talk


def test_a_request_before_the_response_has_arrived_makes_a_batch() -> None:
    """The client asks before it acknowledges the bytes that passed: which bytes answer which request is unknown."""
    talk = asked_and_answered()
    talk.send(100, True, 100, ack=(talk.next[False] - 500) % 2**32)
    talk.send(9_000_000, False, 500)
    talk.send(2_000_000, True)
    (batch,) = exchanges_of(talk.rows)
    assert (batch.flags, batch.request_bytes, batch.response_bytes) == (naive.PIPELINED, 200, 1000)
    assert batch.last_ns - batch.begin_ns == 18_000_100


def test_a_response_that_continues_after_a_request_makes_a_batch() -> None:
    """The client had every byte, but its number shows that the server continued before it had the next request."""
    talk = asked_and_answered()
    talk.send(2_000_000, True, 100)
    talk.send(1_000_000, False, 500, ack=(talk.next[True] - 100) % 2**32)
    talk.send(9_000_000, False, 500)
    talk.send(2_000_000, True, 100)
    talk.send(9_000_000, False, 500)
    talk.send(2_000_000, True)
    batch, single = exchanges_of(talk.rows)
    assert (batch.flags, batch.response_bytes) == (naive.PIPELINED, 1500)
    assert (single.flags, single.last_ns - single.request_ns) == (0, 9_000_000)


@pytest.mark.parametrize(("writes", "replies", "flags"), [(1, 2, 0), (2, 1, 0), (2, 2, naive.PIPELINED)])
def test_several_writes_with_several_responses_may_be_a_batch(writes: int, replies: int, flags: int) -> None:
    talk = Talk()
    talk.shake_hands()
    for _ in range(writes):
        talk.send(1_000, True, 100, ACK | PSH)
    for _ in range(replies):
        talk.send(9_000_000, False, 500, ACK | PSH)
    talk.send(2_000_000, True)
    assert flags_of(talk) == [flags]


def test_a_retransmitted_request_is_timed_from_its_first_copy() -> None:
    talk = Talk()
    talk.shake_hands()
    talk.send(1_000_000, True, 100)
    first_ns = talk.now_ns
    talk.send(200_000_000, True, 100, seq=(talk.next[True] - 100) % 2**32)
    talk.send(9_000_000, False, 500)
    talk.send(2_000_000, True)
    (exchange,) = exchanges_of(talk.rows)
    assert (exchange.flags, exchange.request_ns, exchange.request_bytes) == (naive.RETRANSMITTED, first_ns, 100)


def test_missing_packets_are_flagged() -> None:
    talk = asked_and_answered()
    del talk.rows[-1]  # the response
    talk.send(2_000_000, True)
    talk.send(2_000_000, True, 100)
    talk.send(9_000_000, False, 500)
    talk.send(2_000_000, True)
    assert flags_of(talk) == [naive.UNSEEN]


def test_joined_in_the_middle() -> None:
    """The first exchange is like any other if the client had all that the server sent, and the server all of it."""
    talk = asked_and_answered()
    talk.rows = talk.rows[3:]
    talk.send(2_000_000, True, 100)
    talk.send(9_000_000, False, 500)
    talk.send(2_000_000, True)
    assert flags_of(talk) == [0, 0]


@pytest.mark.parametrize("under_way", ["to the client", "to the server"])
def test_joined_while_bytes_are_under_way(under_way: str) -> None:
    talk = asked_and_answered()
    talk.rows = talk.rows[4:]  # the response to a request that was not seen
    lag = 500 if under_way == "to the client" else 0
    talk.send(2_000_000, True, 100, ack=(talk.next[False] - lag) % 2**32)
    talk.send(9_000_000, False, 500, ack=(talk.next[True] - (1 if lag == 0 else 0)) % 2**32)
    talk.send(2_000_000, True)
    (first,) = flags_of(talk)
    assert first & naive.JOINED


def test_a_syn_from_before_is_a_copy() -> None:
    """Some programs write packets again, with the time they had: that does not open a connection."""
    talk = Talk()
    talk.shake_hands()
    talk.send(1_000_000, True, 100)
    talk.send(-9_000_000, True, message=SYN, seq=talk.rows[0]["seq"], ack=0)
    talk.send(18_000_000, False, 500)
    talk.send(2_000_000, True)
    (only,) = exchanges_of(talk.rows)
    assert (only.flags, only.last_ns - only.request_ns) == (0, 9_000_000)


def test_a_reset_in_the_middle_of_a_response_cuts_it() -> None:
    talk = asked_and_answered()
    talk.send(1_000_000, False, message=RST | ACK)
    talk.send(1_000_000, True, 100)
    talk.send(1_000_000, False, 100)
    talk.send(1_000_000, True)
    assert [(exchange.flags, exchange.idle_ns) for exchange in exchanges_of(talk.rows)] == [(naive.CUT, -1), (0, -1)]


def test_the_last_bytes_come_when_the_hole_is_filled() -> None:
    talk = asked_and_answered()
    talk.next[False] += 500
    talk.send(1_000_000, False, 500)
    talk.send(200_000_000, False, 500, seq=(talk.next[False] - 1000) % 2**32)
    filled_ns = talk.now_ns
    talk.send(1_000_000, False, 500, seq=(talk.next[False] - 500) % 2**32)
    talk.send(1_000_000, True)
    (exchange,) = exchanges_of(talk.rows)
    assert (exchange.flags, exchange.last_ns, exchange.response_bytes) == (naive.RETRANSMITTED, filled_ns, 1500)


def test_a_keep_alive_is_not_a_copy_and_silence_ends_a_response() -> None:
    talk = asked_and_answered()
    talk.send(2_000_000, True)
    talk.send(10**9, True, 1, seq=(talk.next[True] - 1) % 2**32)
    talk.send(SILENCE_NS, False, 500)
    (exchange,) = exchanges_of(talk.rows)
    assert (exchange.flags, exchange.response_bytes) == (0, 500)


def random_talk(rng: np.random.Generator, key: int) -> list[Row]:
    """A conversation in order; sometimes requests overlap with responses."""
    kind = Kind.TCP if rng.random() < 0.8 else (Kind.UDP, Kind.DNS)[key % 2]
    talk = Talk(key, int(rng.integers(10**9, 3 * 10**9)), kind, int(rng.integers(2**32)))
    named = {} if kind == Kind.TCP else {"message": 0}
    if kind == Kind.TCP and rng.random() < 0.8:
        talk.shake_hands()
    for turn in range(rng.integers(1, 6)):
        overlap = rng.random() < 0.2
        name, pushed = named | {"transaction": turn}, {"message": ACK | PSH * int(rng.integers(2))}
        for _ in range(rng.integers(1, 4) if kind == Kind.TCP else 1):
            talk.send(int(rng.integers(10**7)), True, int(rng.integers(1, 1400)), **(pushed | name))
        if rng.random() < 0.4 and kind == Kind.TCP:
            talk.send(int(rng.integers(10**7)), False)
        for _ in range(rng.integers(1, 7) if kind == Kind.TCP else 1):
            talk.send(int(rng.integers(10**7)), False, int(rng.integers(1, 1400)), **(pushed | name))
            if rng.random() < 0.1:
                talk.send(100, True, 10, **({"ack": (talk.next[False] - 3) % 2**32} if overlap else {}), **name)
        if rng.random() < 0.8 and kind == Kind.TCP:
            talk.send(int(rng.integers(10**7)), True)
        talk.now_ns += int(rng.choice([0, 10**8, 7 * 10**9]))
    for from_client in (True, False) if rng.random() < 0.5 and kind == Kind.TCP else ():
        talk.send(10**6, from_client, message=ACK | int(rng.choice([FIN, FIN, RST])))
    return talk.rows


def damaged(rng: np.random.Generator, rows: list[Row]) -> list[Row]:
    """Lose, repeat and delay some packets; sometimes change a number or a time."""
    out = []
    for row in rows:
        draw = rng.random()
        if draw > 0.03:
            out.append(row)
        if 0.03 < draw < 0.06:
            out.append(row | {"time_ns": row["time_ns"] + int(rng.integers(10**8))})
        if 0.06 < draw < 0.1:
            out[-1] = row | {"time_ns": row["time_ns"] + int(rng.integers(10**8))}
        if 0.1 < draw < 0.103:
            wrong = {"seq": int(rng.integers(2**32)), "time_ns": -5, "payload_length": 2**31, "kind": Kind.QUIC}
            name = str(rng.choice(list(wrong)))
            out[-1] = row | {name: wrong[name]}
    return out


@pytest.mark.parametrize("memory", [8 * 280, 1 << 20])
def test_kernel_and_twin_agree_on_damaged_conversations_however_split(memory: int) -> None:
    rng = np.random.default_rng(memory)
    rows = [row for key in range(1, 400) for row in damaged(rng, random_talk(rng, key))]
    rows.sort(key=lambda row: row["time_ns"] + int(rng.integers(1000)))
    packets, from_client = batch_of(rows), np.array([row["from_client"] for row in rows], np.uint8)
    edges = [0, *sorted(rng.integers(0, len(rows), 6).tolist()), len(rows)]
    parts = [(packets[a:b], from_client[a:b]) for a, b in pairwise(edges)]
    twin = hold_equal(parts, memory)
    flags = {bit for exchange in twin.exchanges for bit in FLAGS.values() if exchange.flags & bit}
    assert flags == {*FLAGS.values()} - {OVERLAPPING, STREAM}  # other tests have it
    assert len(twin.exchanges) > 500
    expected = {"passed", "bad_time", "backwards", "unanswered", "unasked", "jumps", "evicted"}
    assert {name for name in expected if twin.counts[name]} >= expected - ({"evicted"} if memory > 2000 else set())
    # For any split: without cuts in between, the same exchanges as in one piece.
    found = []
    for pieces in (parts, [(packets, from_client)]):
        kernel = _kernels.Pairs(memory, SILENCE_NS)
        for part, clients in pieces:
            kernel.observe(part, clients, ends_of(part))
        kernel.cut(1 << 62)
        found.append(taken(kernel))
    assert found[0] == found[1]
