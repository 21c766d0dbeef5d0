"""The kernel of method `auto` equals its twin, bit for bit: every field of every epoch, and the table's counts.

Simulated connections resemble real traffic, whole and tampered with; odd rows have numbers of every kind.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wirelag
from tests.oracles.pirate_auto import AUTO, Epoch, Table
from tests.oracles.pirate_modes import REASONS, ClientPacket, Settings
from tests.support.client_connections import (
    ACK,
    IP_ID,
    SYN,
    TCP,
    TIMESTAMPS,
    Connection,
    constant,
)
from tests.support.client_loops import MS, US, Loop, S, exponential, observe, poisson, run
from tests.support.effort import examples, scaled
from tests.support.pirate_connections import (
    ACKS,
    CONNECTIONS,
    FLAGS,
    IDS,
    JUMPS_NS,
    MANY,
    PAYLOADS,
    SEQS,
    connection,
    shifted,
    tampered,
    wrapping,
)
from tests.support.places import DATA
from wirelag import _kernels
from wirelag.packets.batch import Flag, TcpFlag

CLIENTS = DATA / "clients.pcap.gz"
FIELDS = tuple(field.name for field in fields(Epoch))
ROOMY, SEED = 1 << 16, 7
USUAL = Settings()
SHORT = Settings(epoch_ns=20 * MS, fewest=1)


def test_an_epoch_ends_before_its_counters_do() -> None:
    told = hold_equal(USUAL, [ClientPacket(S + US * number) for number in range(2**15 + 9)])
    assert [epoch.requests for epoch in told] == [2**15, 9]


def taken(kernel: _kernels.Pirate) -> list[Epoch]:
    """The epochs since the last call, without the table's fields."""
    room = np.zeros((kernel.epochs, len(_kernels.EPOCH_COLUMNS)), np.uint64)
    assert kernel.take(room) == len(room)
    words = room[:, [_kernels.EPOCH_COLUMNS.index(name) for name in FIELDS]]
    whole = [FIELDS.index(name) for name in ("key", "waits")]  # words without a sign
    rows = words.view(np.int64).tolist()
    for row, unsigned in zip(rows, words[:, whole].tolist(), strict=True):
        for place, value in zip(whole, unsigned, strict=True):
            row[place] = value
    return [Epoch(*row) for row in rows]


def hold_equal(
    chosen: Settings, rows: Sequence[ClientPacket], at: Sequence[int] = (), memory: int = ROOMY
) -> list[Epoch]:
    """Both take the rows in parts; a cut follows every second part and the end."""
    kernel = _kernels.Pirate(AUTO, memory, chosen.epoch_ns, chosen.fewest, 0, False, SEED)
    twin = Table(chosen, memory, SEED)
    edges = [0, *sorted(min(i, len(rows)) for i in at), len(rows)]
    told = 0
    for part, (start, end) in enumerate(pairwise(edges)):
        observe(kernel, rows[start:end])
        twin.observe(rows[start:end])
        if part % 2 == 1 or end == len(rows):
            now_ns = min(max((row.time_ns for row in rows[:end]), default=0), 2**62 - 1)
            kernel.cut(max(0, now_ns))
            twin.cut(max(0, now_ns))
        assert taken(kernel) == twin.given[told:]
        assert kernel.counts() == {name: twin.counts[name] for name in kernel.counts()}
        told = len(twin.given)
    return twin.given


# Connections


@pytest.mark.every(16)
@pytest.mark.parametrize("name", CONNECTIONS)
def test_connections(name: str) -> None:
    rows = connection(name)
    hold_equal(USUAL, rows)
    hold_equal(SHORT, rows, [1000, 1500])
    hold_equal(Settings(epoch_ns=2**34), rows[30:], [300])


@pytest.mark.parametrize(
    "rows",
    [
        run(Loop(exponential(2 * MS), rtt_ns=60 * US, seconds=2), seed=1)[0],
        run(Loop(exponential(2 * MS), 4, rtt_ns=60 * US, seconds=1), seed=2)[0],
        run(Loop(exponential(2 * MS), 4, batch=True, rtt_ns=60 * US, seconds=1), seed=3)[0],
        run(Loop(exponential(2 * MS), think=lambda rng: 9 * MS * (rng.random() < 0.3), rtt_ns=US, seconds=1), 4)[0],
        run(Loop(exponential(900 * MS), rtt_ns=300 * MS, seconds=30), seed=5)[0],
        run(Loop(exponential(5 * MS), 3, seconds=1), seed=6)[0],
        poisson(3 * MS, 3, seed=7),
    ],
    ids=["one", "sliding", "batches", "thinks", "slow", "without headers", "open loop without headers"],
)
def test_closed_loops(rows: list[ClientPacket]) -> None:
    hold_equal(USUAL, rows)
    hold_equal(SHORT, rows, [100, 700])


def clients() -> list[ClientPacket]:
    """Recorded in the lab: the first packets of two connections in each of many scenarios."""
    rows = []
    for part in wirelag.read(str(CLIENTS)):
        opening = (part.message & np.uint8(TcpFlag.SYN)) != 0
        has = TCP + part.has(Flag.TIMESTAMPS) * TIMESTAMPS + (part.ip_id != 0) * IP_ID
        columns = (
            part.time_ns, part.flow_key, part.seq, part.ack, part.tsval, part.tsecr, part.wire_length,
            part.payload_length, part.ip_id, np.where(opening, part.transaction, 0) % 2**16, part.message, has,
        )  # fmt: skip
        rows += [ClientPacket(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return rows


def test_recorded_clients() -> None:
    rows = clients()
    told = hold_equal(Settings(epoch_ns=50 * MS), rows)
    assert len({epoch.key for epoch in told}) == len({row.key for row in rows}) > 20
    assert sum(REASONS[epoch.reason] == "answered" for epoch in told) > len(told) / 2
    hold_equal(USUAL, rows, memory=1)


# Tampered with


@pytest.mark.every(16)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", CONNECTIONS)
def test_tampered_connections(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    rows = tampered(connection(name)[:2500], rng, rng.choice((0.002, 0.01, 0.05)))
    chosen = Settings(rng.choice((20 * MS, 100 * MS, 500 * MS, 2**34)), rng.choice((1, 4, 20)))
    hold_equal(chosen, rows, [1000, 1200])


def test_evicted_flows() -> None:
    """More flows than slots: the longest silent are evicted, and return in mid-connection."""
    rng = random.Random(5)
    rows = []
    for key, name in enumerate(CONNECTIONS):
        begin_ns = rng.randrange(S)
        part = shifted(tampered(connection(name)[:200], rng, 0.01), begin_ns)
        rows += [row._replace(key=(key * 2**60 + key) % 2**64) for row in part]
    rows.sort(key=lambda row: row.time_ns)
    for memory in (1, 8 * 312, 2 * 8 * 312 + 5, 1 << 20):
        hold_equal(SHORT, rows, [2000, 2100], memory)


# Rare cases


@pytest.mark.parametrize("tick_ns", [10 * US, 100 * US, 2 * MS, 4 * MS, 100 * MS])
def test_a_server_whose_clock_changes(tick_ns: int) -> None:
    """The tick is learned, and changes later."""
    c = Connection(exponential(20 * MS), think_ns=exponential(50 * MS), tick_ns=tick_ns, seconds=12)
    rows = wrapping(c.run())
    half, tsecr = len(rows) // 2, rows[len(rows) // 2].tsecr
    for factor in (2, 5, 10):
        slower = [row._replace(tsecr=(row.tsecr - tsecr) % MANY // factor) for row in rows[half:]]
        faster = [row._replace(tsval=row.tsval * factor % MANY) for row in slower]
        hold_equal(USUAL, rows[:half] + slower)
        hold_equal(SHORT, rows[:half] + faster)
    hold_equal(USUAL, [row._replace(tsecr=0) for row in rows])


@pytest.mark.parametrize("size", [1199, 1200, 1448, 2400, 16384, 16385])
def test_segments_of_a_joined_flow(size: int) -> None:
    rows = wrapping(Connection(exponential(5 * MS), in_flight=2, response=constant(size), seconds=1).run())
    pause = [row._replace(time_ns=row.time_ns + S) for row in rows[100:]]
    hold_equal(SHORT, rows[20:100] + pause)


@pytest.mark.every(8)
@pytest.mark.parametrize("missing", range(0, 60, 3))
def test_missing_bytes(missing: int) -> None:
    """Requests or responses are missing before sizes are known: an impossible number is outstanding."""
    for name in ("sliding", "batches", "huge responses"):
        rows = connection(name)[:400]
        response = 1 << 26 if name == "huge responses" else 540
        for at in (2, 12):
            seqs = [row._replace(seq=(row.seq + 100 * missing) % MANY) for row in rows[at:]]
            acks = [row._replace(ack=(row.ack + response * missing) % MANY) for row in rows[at:]]
            hold_equal(SHORT, rows[:at] + seqs)
            hold_equal(SHORT, rows[:at] + acks)


def conversation(steps: Sequence[tuple[int, int, int]]) -> list[ClientPacket]:
    """A handshake, then steps of (units of time to wait, bytes to acknowledge, bytes to send)."""
    syn = ClientPacket(10**18 >> 10 << 10, seq=MANY - 1, tcp_flags=SYN, has=TCP, mss=1460)
    rows = [syn, syn._replace(time_ns=syn.time_ns + MS, seq=0, ack=MANY - 3, tcp_flags=ACK, payload=0)]
    for later, acked, sent in steps:
        last = rows[-1]
        rows.append(
            last._replace(
                time_ns=last.time_ns + 1024 * later,
                seq=(last.seq + last.payload) % MANY,
                ack=(last.ack + acked) % MANY,
                payload=sent,
            )
        )
    return rows


@pytest.mark.parametrize(("latency", "least"), [(5_000, 488_281), (90_000, 8 * 90_000)])
def test_the_silence_after_which_no_request_is_outstanding(latency: int, least: int) -> None:
    """Half a second, and eight latencies: a flow joined in the middle is known from then on."""
    for silence in (least - 1, least, least + 1):
        steps = [*[(latency, 540, 100)] * 30, (silence, 540, 100), *[(latency, 540, 100)] * 30]
        told = hold_equal(SHORT, conversation(steps)[2:])
        assert any(REASONS[epoch.reason] == "answered" for epoch in told) == (silence > least)


@pytest.mark.parametrize("later", [195_311, 195_312, 195_313, 200_000, 800_000])
def test_more_of_the_last_response(later: int) -> None:
    """An advance after the seemingly last response: within 200 ms, or four latencies, it continued."""
    for steady in (5_000, 200_000):
        steps = [(300, 0, 100), (steady, 540, 0), (later, 540, 0), (20, 1, 0)]
        told = hold_equal(Settings(epoch_ns=2**34, fewest=1), conversation(steps * 3))
        is_more = later <= max(195_312, 4 * steady)
        assert told[0].sum_ns == 3 * 1024 * (steady + later * is_more)


def test_a_download_beyond_the_sequence_numbers() -> None:
    steps = [(20, 0, 100), *[(9, 2**28, 0)] * 20, (9, 2**27 + 7, 0)]
    hold_equal(SHORT, conversation(steps * 40))
    hold_equal(SHORT, conversation([(20, 2**28, 100)] * 200))


# Odd rows

GAPS_NS = (0, 0, 1, 900, 20 * US, 70 * US, 300 * US, MS, 5 * MS, 60 * MS, 700 * MS, 3 * S, -5 * US, *JUMPS_NS)
HAS = (TCP | TIMESTAMPS | IP_ID, TCP | TIMESTAMPS | IP_ID, TCP | TIMESTAMPS, TCP | IP_ID, TCP, 0, 6)
MSS = (0, 87, 88, 99, 536, 1460, 65535)
DOMAINS = (GAPS_NS, PAYLOADS, (*[0] * 20, *SEQS), (*[0, 540] * 6, *ACKS), (1, *IDS), (*[ACK] * 12, *FLAGS), HAS, MSS)


def odd_rows(choices: Sequence[Sequence[int]], begin_ns: int) -> list[ClientPacket]:
    """Random rows from the domains, of few flows, whose numbers mostly continue from the last one."""
    rows, now_ns, seq, ack, number = [], begin_ns, MANY - 40, MANY - 900, 0
    for i, choice in enumerate(choices):
        gap_ns, payload, ahead, moved, more, flags, has, mss = (
            domain[n % len(domain)] for n, domain in zip(choice, DOMAINS, strict=True)
        )
        now_ns += gap_ns
        ack, number = (ack + moved) % MANY, (number + more) % 2**16
        start = (seq + ahead) % MANY
        time_ns = now_ns if choice[0] % 41 != 40 else (-1, 2**62, -(2**63), 2**63 - 1)[i % 4]
        key = (1, 1, 1, 0, 2**64 - 1)[choice[7] % 5]
        tsval, tsecr = (now_ns // MS + choice[6] // 200) % MANY, (now_ns - choice[1] * MS) // MS % MANY
        rows.append(ClientPacket(time_ns, key, start, ack, tsval, tsecr, 100, payload, number, mss, flags, has))
        if ahead == 0:
            seq = (start + payload) % MANY
    return rows


odd_choices = st.lists(st.lists(st.integers(0, 210), min_size=8, max_size=8), max_size=80)
odd_settings = st.builds(
    Settings,
    epoch_ns=st.sampled_from([1, 100 * US, 20 * MS, 500 * MS, 2**34]),
    fewest=st.sampled_from([1, 2, 4, 2**16]),
)


@examples(400)
@given(odd_settings, odd_choices, st.sampled_from([0, 10**18, 2**62 - 2**43]), st.lists(st.integers(0, 80), max_size=3))
def test_odd_rows(chosen: Settings, odd: list[list[int]], begin_ns: int, at: list[int]) -> None:
    hold_equal(chosen, odd_rows(odd, begin_ns), at)


def test_many_odd_rows() -> None:
    """Mostly small numbers, so that flows last; every reason of the method occurs."""
    seen: Counter[str] = Counter()
    for seed in range(scaled(30, 12)):
        rng = random.Random(seed)
        small = [rng.randrange(2, 10), 6, 20, 12, 3, 12, 5 if seed % 3 else 1, 1]
        odd = [[rng.randrange(n if rng.random() < 0.98 else 210) for n in small] for _ in range(1500)]
        chosen = Settings(rng.choice([100 * US, 20 * MS]), rng.choice([1, 4]))
        seen.update(REASONS[epoch.reason] for epoch in hold_equal(chosen, odd_rows(odd, 10**18), [700, 900]))
    assert {"answered", "too_few", "spontaneous", "joined", "reordered", "coalesced", "not_tcp"} <= set(seen), seen
