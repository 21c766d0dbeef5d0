"""Method `auto` of Pirate on client packets with known truth: a small event simulation of a client and a server.

The vantage point is at the client. Responses come in order, as bytes of one connection; requests carry
acknowledgements, or these are delayed by 40 ms, as kernels do.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, pairwise
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.client_connections import (
    ACK,
    FIN,
    IP_ID,
    MS,
    PSH,
    RST,
    START_NS,
    SYN,
    TCP,
    TIMESTAMPS,
    US,
    Connection,
    Draw,
    Row,
    S,
    bimodal,
    constant,
)
from tests.support.effort import examples
from wirelag import _kernels

AUTO = 5
ANSWERED, TOO_FEW, SPONTANEOUS, JOINED, THINK, NOT_TCP = 0, 1, 2, 3, 4, 10
LONGEST_NS = 1 << 38


@dataclass(frozen=True)
class Epoch:
    """A row of EPOCH_COLUMNS without the addresses."""

    key: int
    start_ns: int
    end_ns: int
    sum_ns: int
    count: int
    reason: int
    method: int
    in_flight: int
    batch_sum_ns: int
    batch_count: int
    think_sum_ns: int
    think_count: int
    requests: int
    lost: int
    network_ns: int
    confidence: int


TYPES = {
    np.int64: ("time_ns",),
    np.uint64: ("key",),
    np.uint16: ("ip_id", "mss"),
    np.uint8: ("tcp_flags", "has"),
    np.uint32: ("seq", "ack", "tsval", "tsecr", "length", "payload"),
}
COLUMN_TYPES = {name: dtype for dtype, names in TYPES.items() for name in names}


def feed(kernel: _kernels.Pirate, rows: Iterable[Row]) -> None:
    values = list(zip(*rows, strict=True)) or [()] * len(Row._fields)
    kernel.observe(**{n: np.array(v, COLUMN_TYPES[n]) for n, v in zip(Row._fields, values, strict=True)})


def taken(kernel: _kernels.Pirate) -> list[Epoch]:
    room = np.zeros((kernel.epochs, len(_kernels.EPOCH_COLUMNS)), np.uint64)
    kernel.take(room)
    return [Epoch(*row[:16]) for row in room.view(np.int64).tolist()]


def pirate(memory: int = 1 << 16, epoch_ns: int = 500 * MS, fewest: int = 4) -> _kernels.Pirate:
    return _kernels.Pirate(AUTO, memory, epoch_ns, fewest, 0, False, 7)


def epochs_of(rows: list[Row], **parameters: int) -> list[Epoch]:
    kernel = pirate(**parameters)
    feed(kernel, rows)
    kernel.cut(rows[-1].time_ns)
    return taken(kernel)


def exponential(ns: float) -> Draw:
    return lambda rng: rng.expovariate(1 / ns)


def errors(truth: list[tuple[int, int]], epochs: list[Epoch], batches: bool = False) -> list[float]:
    """The signed relative error of each answered epoch, compared with the responses that ended in it."""
    found = []
    for e in epochs:
        ended = [end - sent for sent, end in truth if e.start_ns <= end < e.end_ns]
        total, count = (e.batch_sum_ns, e.batch_count) if batches else (e.sum_ns, e.count)
        if count and ended:
            found.append(total / count / (sum(ended) / len(ended)) - 1)
    return found


def close(found: list[float], share: float = 1, within: float = 0.15, middle: float = 0.01) -> None:
    assert found
    assert abs(median(found)) <= middle, sorted(found)
    assert sum(abs(e) <= within for e in found) >= share * len(found), sorted(found)


def reasons(epochs: list[Epoch]) -> list[int]:
    return [e.reason for e in epochs]


@pytest.mark.parametrize("has", [7, TCP | TIMESTAMPS, TCP | IP_ID, TCP])
@pytest.mark.parametrize("service", [constant(2 * MS), exponential(2 * MS), exponential(20 * MS), bimodal])
def test_one_in_flight(service: Draw, has: int) -> None:
    """Every response triggers a request that acknowledges it: exact, except for the client's 10 us."""
    c = Connection(service, has=has).run()
    epochs = epochs_of(c.rows)
    assert set(reasons(epochs[:-1])) == {ANSWERED}
    assert {e.in_flight for e in epochs} == {1}
    # The last response is acknowledged 40 ms late: only timestamps show it.
    close(errors(c.truth, epochs if has & TIMESTAMPS else epochs[:-1]), within=0.02)
    assert sum(e.count for e in epochs) >= len(c.truth) - 4


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("in_flight", [4, 16])
def test_a_sliding_window(in_flight: int, serial: bool) -> None:
    """Little's law, with the ages of outstanding requests at an epoch's edges: 16, where about 100 end in an epoch."""
    service_ns = 80 * MS if not serial else 5 * MS
    c = Connection(exponential(service_ns), in_flight=in_flight, serial=serial, rtt_ns=MS, seconds=12).run()
    epochs = epochs_of(c.rows)
    close(errors(c.truth, epochs), within=0.1, share=0.95, middle=0.02)
    assert {e.in_flight for e in epochs} == {in_flight}
    assert sum(e.reason == ANSWERED for e in epochs) >= len(epochs) - 1


def test_responses_in_pieces() -> None:
    """Of one size, though the first pieces of the next come before the client has sent its request."""
    c = Connection(exponential(2 * MS), in_flight=4, serial=True, response=constant(100_040), pieces=5).run()
    epochs = epochs_of(c.rows)
    assert {e.in_flight for e in epochs} == {4}
    close(errors(c.truth, epochs), within=0.05)


@pytest.mark.parametrize("size", [540, 1448, 20_000])
def test_batches(size: int) -> None:
    c = Connection(exponential(5 * MS), in_flight=4, batch=True, response=constant(size), seconds=6).run()
    epochs = epochs_of(c.rows)
    rounds = [c.truth[i : i + 4] for i in range(0, len(c.truth) - 3, 4)]
    whole = [(min(s for s, _ in r), max(e for _, e in r)) for r in rounds]
    close(errors(whole, epochs, batches=True), within=0.05, middle=0.01)
    if size == 20_000:  # each response is acknowledged separately
        close(errors(c.truth, epochs), middle=0.03)


def test_responses_of_varied_sizes_with_or_without_full_segments() -> None:
    c = Connection(
        exponential(5 * MS), in_flight=4, response=lambda rng: rng.choice((300, 1448, 2896, 5000)), seconds=6
    ).run()
    close(errors(c.truth, epochs_of(c.rows)), share=0.9, middle=0.05)


@pytest.mark.parametrize(("share", "think"), [(0.1, constant(50 * MS)), (1, exponential(20 * MS))])
def test_think_time_is_separated_from_latency(share: float, think: Draw) -> None:
    """Timestamps tick once a millisecond, and the estimate may drift by 30 ppm: 0.1 ms of 2.2 in 4 s."""
    c = Connection(exponential(2 * MS), think_ns=lambda rng: think(rng) if rng.random() < share else 0).run()
    epochs = epochs_of(c.rows)
    close(errors(c.truth, epochs), middle=0.1)
    spans = [(e.start_ns, e.end_ns) for e in epochs if e.think_count]  # not before the tick is known
    pauses = [
        later[0] - earlier[1]
        for earlier, later in pairwise(c.truth)
        if any(start <= later[0] < end for start, end in spans)
    ]
    said = sum(e.think_sum_ns for e in epochs) / sum(e.think_count for e in epochs)
    assert said == pytest.approx(sum(pauses) / len(pauses), rel=0.1)


def test_think_time_without_timestamps_is_not_guessed() -> None:
    c = Connection(exponential(2 * MS), think_ns=exponential(20 * MS), has=TCP | IP_ID).run()
    assert set(reasons(epochs_of(c.rows))) <= {THINK, TOO_FEW}


@pytest.mark.parametrize("tick_ns", [US, 100 * US, 4 * MS, 10 * MS])
def test_the_tick_of_the_clocks_is_learned(tick_ns: int) -> None:
    """A clock is as coarse as its tick; 20 ms of latency are two ticks of the coarsest here."""
    c = Connection(exponential(20 * MS), think_ns=exponential(100 * MS), tick_ns=tick_ns, seconds=30).run()
    epochs = epochs_of(c.rows, epoch_ns=2 * S)
    spoilt = [e for e in epochs if e.reason == JOINED]
    assert len(spoilt) == 1, reasons(epochs)  # the one in which the tick was learned
    after = [e for e in epochs if e.start_ns > spoilt[0].start_ns]
    close(errors(c.truth, after), share=0.8, within=0.25, middle=0.1)


@pytest.mark.parametrize("has", [7, TCP | TIMESTAMPS])
def test_requests_lost_before_the_point(has: int) -> None:
    """A delayed acknowledgement has a sequence number after the lost bytes; a jump of the IP-ID shows them, too."""
    c = Connection(exponential(5 * MS), lost=0.02, rtt_ns=10 * MS, has=has, seconds=40, seed=3).run()
    epochs = epochs_of(c.rows, epoch_ns=2 * S)
    told = sum(e.sum_ns for e in epochs) / sum(e.count for e in epochs)
    true = sum(end - sent for sent, end in c.truth) / len(c.truth)
    assert told == pytest.approx(true, rel=0.05)
    assert sum(e.lost for e in epochs) > 0.01 * len(c.truth)


@pytest.mark.parametrize("size", [1448, 8000, 60_000])
def test_requests_of_several_packets(size: int) -> None:
    c = Connection(exponential(5 * MS), request=constant(size)).run()
    epochs = epochs_of(c.rows)
    close(errors(c.truth, epochs), within=0.05)
    assert sum(e.requests for e in epochs) == len(c.truth)


@pytest.mark.parametrize("mss", [536, 1460, 8960])
def test_responses_that_end_with_a_whole_segment(mss: int) -> None:
    """The SYN gives the segment size; an advance by whole segments may continue, so the next request decides."""
    c = Connection(exponential(5 * MS), mss=mss, response=constant(4 * (mss - 12))).run()
    close(errors(c.truth, epochs_of(c.rows)), within=0.05)


def test_a_flow_joined_in_the_middle_gives_nothing_until_it_pauses() -> None:
    c = Connection(exponential(5 * MS), in_flight=4, seconds=3).run()
    joined = c.rows[40:-1]
    later = [r._replace(time_ns=r.time_ns + 10 * S, tsval=r.tsval + 10_000, tsecr=r.tsecr + 10_000) for r in c.rows[2:]]
    moved = joined[-1].seq + joined[-1].payload - later[0].seq
    acked = joined[-1].ack - later[0].ack
    later = [r._replace(seq=(r.seq + moved) % 2**32, ack=(r.ack + acked) % 2**32, has=TCP | TIMESTAMPS) for r in later]
    epochs = epochs_of(joined + later)
    before = [e for e in epochs if e.end_ns <= later[0].time_ns]
    assert set(reasons(before)) == {JOINED}
    assert {e.network_ns for e in epochs} == {-1}
    after = [e for e in epochs if e.start_ns >= later[0].time_ns]
    shifted = [(sent + 10 * S, end + 10 * S) for sent, end in c.truth]
    close(errors(shifted, after), share=0.8, middle=0.06)


def test_an_open_loop_with_varied_sizes_is_recognised() -> None:
    c = Connection(
        exponential(2 * MS),
        open_loop_ns=3 * MS,
        request=lambda rng: rng.randint(60, 1200),
        response=lambda rng: rng.randint(100, 4000),
        seconds=20,
    ).run()
    epochs = epochs_of(c.rows)
    assert sum(e.reason == SPONTANEOUS for e in epochs) >= 0.95 * len(epochs)


def test_ends_of_a_connection_end_the_epoch() -> None:
    c = Connection(constant(2 * MS), seconds=0.2, rtt_ns=3 * MS).run()
    kernel = pirate()
    feed(kernel, c.rows)
    (one,) = taken(kernel)  # FIN, long before the end of the epoch
    assert (one.reason, one.end_ns) == (ANSWERED, c.rows[-1].time_ns)
    assert one.network_ns == pytest.approx(3 * MS, rel=0.01)
    feed(kernel, [c.rows[-1]._replace(time_ns=one.end_ns + MS, tcp_flags=ACK)])
    kernel.cut(one.end_ns + S)
    assert taken(kernel) == []  # no packets since
    kernel = pirate()
    feed(kernel, [*c.rows[:-1], c.rows[-1]._replace(tcp_flags=RST)])
    assert [e.reason for e in taken(kernel)] == [ANSWERED]
    kernel = pirate()
    feed(kernel, c.rows[:-1])
    assert kernel.epochs == 0
    feed(kernel, [c.rows[0]._replace(time_ns=c.rows[-1].time_ns)])  # the next connection between the same ports
    assert [e.reason for e in taken(kernel)] == [ANSWERED]


def test_a_long_silence_is_in_no_epoch() -> None:
    c = Connection(constant(2 * MS), seconds=1).run()
    kernel = pirate()
    feed(kernel, c.rows[:-1])
    feed(kernel, [c.rows[-2]._replace(time_ns=c.rows[-2].time_ns + 100 * S, seq=c.rows[-2].seq + 100)])
    assert max(e.end_ns - e.start_ns for e in taken(kernel)) <= 4 * 500 * MS


def test_without_tcp_headers_there_is_no_estimate() -> None:
    rows = [Row(START_NS + i * MS, payload=50, length=78, has=0) for i in range(3000)]
    assert {e.reason for e in epochs_of(rows)} == {NOT_TCP}


def test_the_table_is_bounded_and_counts_evictions() -> None:
    c = Connection(constant(2 * MS), seconds=0.1).run()
    kernel = pirate(memory=1)  # one group
    for key in range(1, 13):
        feed(kernel, [r._replace(key=key, time_ns=r.time_ns + key * S) for r in c.rows[:-1]])
    counts = kernel.counts()
    assert (counts["flows"], counts["evicted"]) == (12, 4)
    assert 8 * 256 < kernel.memory < 8 * 512
    assert pirate(memory=1 << 20).memory <= 1 << 20
    assert [e.key for e in taken(kernel)] == [1, 2, 3, 4]  # the longest silent
    kernel.cut(c.rows[-1].time_ns + 20 * S)
    assert sorted(e.key for e in taken(kernel)) == list(range(5, 13))


@pytest.mark.parametrize(
    "wrong",
    [{"method": 7}, {"epoch_ns": 0}, {"epoch_ns": (1 << 34) + 1}, {"fewest": 0}, {"gap_ns": -1}, {"memory": 1 << 63}],
)
def test_impossible_settings_are_refused(wrong: dict[str, int]) -> None:
    right = {"method": AUTO, "memory": 1, "epoch_ns": S, "fewest": 1, "gap_ns": 0, "literal": False, "seed": 0}
    with pytest.raises((ValueError, MemoryError)):
        _kernels.Pirate(**(right | wrong))  # type: ignore[arg-type]


numbers = st.one_of(st.integers(0, 4000), st.integers(0, 2**32 - 1), st.sampled_from([2**31, 2**32 - 1, 1448, 100]))
times = st.one_of(
    st.integers(0, 5 * S),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([2**62 - 1, 2**62, 0, 2**40, 2**38]),
)
wild_rows = st.builds(
    Row,
    time_ns=times,
    key=st.integers(0, 3),
    seq=numbers,
    ack=numbers,
    tsval=numbers,
    tsecr=numbers,
    length=numbers,
    payload=st.one_of(st.just(0), st.integers(1, 3000), numbers),
    ip_id=st.integers(0, 65535),
    mss=st.sampled_from([0, 1, 87, 88, 1460, 65535]),
    tcp_flags=st.sampled_from([ACK, ACK, ACK, ACK | PSH, SYN, ACK | FIN, RST, 0, 255]),
    has=st.integers(0, 7),
)


def check(epochs: list[Epoch], epoch_ns: int) -> None:
    for e in epochs:
        assert 0 <= e.sum_ns <= e.count * LONGEST_NS
        assert 0 <= e.end_ns - e.start_ns <= 4 * epoch_ns
        assert (e.count > 0) == (e.reason == ANSWERED)
        assert e.batch_sum_ns >= 0
        assert e.think_sum_ns >= 0
        assert 0 <= e.confidence <= 100
        assert 0 < e.in_flight <= 1024 + 64


@examples(300)
@given(rows=st.lists(wild_rows, max_size=60), epoch_ns=st.sampled_from([1, MS, 1 << 34]), fewest=st.integers(1, 4))
def test_wild_rows_give_no_wild_estimates(rows: list[Row], epoch_ns: int, fewest: int) -> None:
    kernel = pirate(memory=3000, epoch_ns=epoch_ns, fewest=fewest)
    feed(kernel, rows)
    kernel.cut(5 * S)
    check(taken(kernel), epoch_ns)


def tampered(rows: list[Row], rng: random.Random) -> list[Row]:
    """Rows of a connection with changed fields; some rows are dropped, repeated or moved."""
    changed = []
    for row in rows:
        dice = rng.randrange(12)
        if dice == 0:
            name = rng.choice(("seq", "ack", "tsval", "tsecr", "payload"))
            row = row._replace(
                **{name: (getattr(row, name) + rng.choice((1, -1, 540, 2**31, rng.getrandbits(32)))) % 2**32}
            )
        changed += [row] * (0 if dice == 1 else 2 if dice == 2 else 1)
    for _ in range(len(changed) // 10):
        i = rng.randrange(len(changed) - 1)
        changed[i], changed[i + 1] = changed[i + 1], changed[i]
    return changed


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(20))
def test_tampered_connections_give_no_wild_estimates(seed: int) -> None:
    rng = random.Random(seed)
    c = Connection(
        exponential(MS), in_flight=rng.choice((1, 4, 16)), batch=rng.random() < 0.5, seconds=1, seed=seed
    ).run()
    kernel = pirate(epoch_ns=50 * MS)
    feed(kernel, tampered(c.rows, rng))
    kernel.cut(c.rows[-1].time_ns)
    check(taken(kernel), 50 * MS)


@examples(25)
@given(cuts=st.lists(st.integers(0, 2000), max_size=6))
def test_any_split_of_the_rows_gives_the_same_epochs(cuts: list[int]) -> None:
    kernel = pirate()
    edges = [0, *sorted(cuts), len(SPLIT.rows)]
    for begin, end in pairwise(edges):
        feed(kernel, SPLIT.rows[begin:end])
    kernel.cut(SPLIT.rows[-1].time_ns)
    assert taken(kernel) == WHOLE


SPLIT = Connection(exponential(2 * MS), in_flight=2, seconds=2).run()
WHOLE = epochs_of(SPLIT.rows)


def test_a_host_wide_ip_id_does_not_indicate_loss() -> None:
    """A client that thinks for 300 ms and sends to other hosts: nothing was lost before the point."""
    c = Connection(exponential(2 * MS), think_ns=lambda rng: 300 * MS * (rng.random() < 0.2), seconds=20).run()
    rng = random.Random(1)
    ids = count(65_000)
    shared = []
    for row in c.rows:
        for _ in range(rng.randrange(4)):
            next(ids)
        shared.append(row._replace(ip_id=next(ids) % 2**16))
    close(errors(c.truth, epochs_of(shared)), within=0.3, middle=0.1)


@pytest.mark.parametrize("silence_s", [60, 40 * 60, 2 * 3600])
def test_a_long_silence(silence_s: int) -> None:
    """Times wrap after 73 minutes; packets after a silence are treated as if it had been short."""
    before, after = (Connection(exponential(2 * MS), seed=seed).run() for seed in (1, 2))
    last, later = before.rows[-2], silence_s * S + 4 * S
    ticks = later // MS
    rows = before.rows[:-1] + [
        row._replace(
            time_ns=row.time_ns + later,
            seq=(row.seq - after.rows[2].seq + last.seq + last.payload) % 2**32,
            ack=(row.ack - after.rows[2].ack + last.ack) % 2**32,
            tsval=(row.tsval + ticks) % 2**32,
            tsecr=(row.tsecr + ticks) % 2**32,
        )
        for row in after.rows[2:]
    ]
    found = [e for e in epochs_of(rows) if e.start_ns > START_NS + later]
    assert set(reasons(found[1:-1])) == {ANSWERED}
    close(errors([(sent + later, end + later) for sent, end in after.truth], found[1:-1]), within=0.05)


def test_responses_of_two_sizes() -> None:
    """Sixteen of one size in a row seem to be the only size; the conclusion is withdrawn."""
    sizes = iter([540] * 40 + [10_029, 63] * 2000)
    c = Connection(exponential(2 * MS), request=lambda rng: rng.choice((9, 12)), response=lambda _: next(sizes)).run()
    epochs = epochs_of(c.rows)
    assert {e.in_flight for e in epochs} == {1}
    assert set(reasons(epochs[2:-1])) == {ANSWERED}
    close(errors(c.truth, epochs), within=0.05)


# ---- how a connection opens ----

LARGE_OPENING = 64  # of the column traits


def opened(*flights: tuple[int, ...], size: int = 120) -> list[Row]:
    """A connection whose first flights have packets of these sizes; then one request after each response."""
    syn = Row(START_NS, 1, 0, 0, 1000, 0, 60, 0, 0, 1460, SYN, TCP | TIMESTAMPS)
    rows = [syn, syn._replace(time_ns=START_NS + 50 * US, seq=1, ack=1, tsecr=500, tcp_flags=ACK, mss=0)]
    for flight in (*flights, *[(size,)] * 100):
        last = rows[-1]
        at_ns, ack, seq = last.time_ns + 10 * MS, last.ack + 300 + len(rows) % 7, last.seq + last.payload
        for payload in flight:
            stamps = {"tsval": 1000 + (at_ns - START_NS) // MS, "tsecr": 500 + (at_ns - START_NS) // MS}
            rows.append(last._replace(time_ns=at_ns, seq=seq, ack=ack, payload=payload, tcp_flags=ACK | PSH, **stamps))
            at_ns, seq = at_ns + 20 * US, seq + payload
    return rows


def shown(rows: list[Row]) -> list[tuple[int, bool]]:
    """The number in flight of each epoch, and whether requests may be hidden in the opening."""
    kernel = pirate()
    feed(kernel, rows)
    kernel.cut(rows[-1].time_ns)
    room = np.zeros((kernel.epochs, len(_kernels.EPOCH_COLUMNS)), np.uint64)
    kernel.take(room)
    places = [_kernels.EPOCH_COLUMNS.index(name) for name in ("in_flight", "traits")]
    return [(in_flight, bool(traits & LARGE_OPENING)) for in_flight, traits in room[:, places].tolist()]


@pytest.mark.parametrize(
    ("flights", "in_flight", "is_large"),
    [
        ([(120,)], 1, False),
        ([(240,), (9,)], 1, True),
        ([(120, 120)], 2, False),
        ([(517,), (80, 120)], 1, False),
        ([(517,), (80, 700)], 1, True),
        ([(517,), (300, 120)], 2, True),
    ],
    ids=["requests alike", "HTTP/2", "two at once", "TLS", "HTTP/2 over TLS", "no handshake"],
)
def test_how_a_connection_opens(flights: list[tuple[int, ...]], in_flight: int, is_large: bool) -> None:
    found = shown(opened(*flights))
    assert len(found) >= 2
    assert set(found) == {(in_flight, is_large)}


def test_the_doubt_of_an_open_loop_lasts() -> None:
    """Requests every 50 ms whatever the server does: in quiet epochs none overlap, and these are the quick ones."""
    c = Connection(
        exponential(10 * MS),
        request=lambda rng: rng.randint(60, 1200),
        response=lambda rng: rng.randint(100, 3000),
        open_loop_ns=50 * MS,
        seconds=60,
    ).run()
    found = reasons(epochs_of(c.rows))
    assert len(found) > 50
    assert found.count(ANSWERED) <= 0.1 * len(found)
