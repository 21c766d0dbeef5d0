"""The kernel of `rli` equals its twin, bit for bit: records in order, counters, delays, errors.

Simulated queues resemble a real link; odd rows have few keys, times that jump, references of every kind.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import rli
from tests.oracles.rli import METHODS, Reference, Row
from tests.oracles.rli_flows import Record, Settings
from tests.support.effort import examples
from tests.support.rli_packets import shaped
from wirelag import _kernels
from wirelag.packets.injection import Injection
from wirelag.packets.stamp import NONE
from wirelag.sim.queue import QueueScenario, run
from wirelag.synopses.flows import COLUMN

RATE = 250_000_000
CERTAIN = 1 << 32
FOREVER = 1 << 62
ROOMY = Settings(
    method=rli.LINEAR,
    memory=1 << 20,
    bytes_per_s=RATE,
    buffer=500,
    idle_ns=0,
    bracket_ns=1 << 30,
    early_ns=10_000_000,
    late_ns=1 << 30,
    base_ns=1 << 36,
    inactive_ns=FOREVER,
    active_ns=FOREVER,
    hold=CERTAIN,
    seed=7,
)
TIGHT = ROOMY._replace(memory=3000, buffer=40, inactive_ns=100_000, active_ns=200_000, hold=CERTAIN // 3)
CASES = {
    "roomy": ROOMY,
    "tight": TIGHT,
    "rate_not_known": TIGHT._replace(bytes_per_s=0),
    "rate_too_low": ROOMY._replace(bytes_per_s=RATE // 2),
    "rate_too_high": ROOMY._replace(bytes_per_s=RATE * 3),
    "base_forgotten": ROOMY._replace(base_ns=50_000, idle_ns=300, memory=1024),
    "short_brackets": ROOMY._replace(bracket_ns=150_000, buffer=8),
    "few_delays_likely": ROOMY._replace(early_ns=0, late_ns=30_000, bracket_ns=500_000),
}


def observed(kernel: _kernels.Rli, rows: Sequence[Row], first: int) -> None:
    """Give rows to the kernel; a row's addresses contain its number."""
    references = [row.reference for row in rows if row.reference is not None]
    kernel.observe(
        np.array([row.time_ns for row in rows], np.int64),
        np.array([row.kind for row in rows], np.uint8),
        np.array([row.size for row in rows], np.uint32),
        np.array([row.key for row in rows], np.uint64),
        np.array([row.id for row in rows], np.uint64),
        np.array([reference.sequence for reference in references], np.uint32),
        np.array([reference.sent_ns for reference in references], np.int64),
        np.array([NONE if r.previous_ns is None else r.previous_ns for r in references], np.int64),
        np.array([reference.previous_id for reference in references], np.uint64),
        *columns_of(np.arange(first, first + len(rows), dtype=np.uint64)),
    )


def ends_of(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    src, dst, *ports, protocol = columns_of(numbers)
    words = [port.astype(np.uint64) << np.uint64(shift) for port, shift in zip(ports, (32, 16), strict=True)]
    return np.column_stack([src, dst, words[0] | words[1] | protocol])


def columns_of(
    numbers: npt.NDArray[np.uint64],
) -> tuple[
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint16],
    npt.NDArray[np.uint16],
    npt.NDArray[np.uint8],
]:
    """Source, destination, ports and protocol of a row with this number."""
    src, dst = (np.stack([numbers * np.uint64(n), numbers + np.uint64(n)], axis=1) for n in (3, 5))
    return src, dst, numbers.astype(np.uint16), (numbers * np.uint64(7)).astype(np.uint16), numbers.astype(np.uint8)


def taken(kernel: _kernels.Rli) -> list[list[int]]:
    """The records that left since the last call; their errors are not assigned yet."""
    room = np.ones((kernel.records, len(COLUMN)), np.uint64)
    assert kernel.take(room) == len(room)
    assert not room[:, COLUMN["error"]].any()
    return np.delete(room, COLUMN["error"], axis=1).tolist()


def told(records: Sequence[Record]) -> list[list[int]]:
    """The same from the twin: the numbers, then the addresses of the row that opened the record."""
    ends = ends_of(np.array([record.first_row for record in records], np.uint64))
    return [record.words() + end for record, end in zip(records, ends.tolist(), strict=True)]


def hold_equal(
    chosen: Settings, rows: Sequence[Row], at: Sequence[int] = (), drains: Sequence[tuple[int, ...]] = ()
) -> rli.Rli:
    """Both take the rows in parts; a cut follows every second part and the end.

    `drains`: rates, idle times and bursts, in turn from the second part on.
    """
    kernel, twin = _kernels.Rli(*chosen), rli.Rli(chosen)
    edges = [0, *sorted(min(i, len(rows)) for i in at), len(rows)]
    for part, (start, end) in enumerate(pairwise(edges)):
        if drains and part:
            kernel.drain(*drains[part % len(drains)])
            twin.drain(*drains[part % len(drains)])
        observed(kernel, rows[start:end], start)
        twin.observe(rows[start:end])
        if part % 2 == 1 or end == len(rows):
            kernel.cut()
            twin.cut()
        assert taken(kernel) == told(twin.table.left)
        twin.table.left.clear()
        counts = kernel.counts()
        assert counts == {name: twin.counts[name] for name in counts}
        assert sum(counts.values()) == twin.counts.total()
        assert kernel.totals() == twin.totals.words()
        errors = kernel.errors()
        assert [(errors[i], errors[i + 1] + (errors[i + 2] << 64)) for i in range(0, 96, 3)] == twin.errors
        assert kernel.trusted == twin.delays.is_trusted
        assert kernel.base_ns == (None if twin.floor is None else twin.delays.base)
    return twin


# Queues


@cache
def simulated(utilisation: float, seconds: float = 0.06, tells_previous: bool = True, burst: int = 0) -> list[Row]:
    """Packets from a queue; one in 50 belongs to no flow."""
    sim = run(QueueScenario(utilisation, seed=4, seconds=seconds, injection=Injection(RATE, most_share=1, n_most=30)))
    r = (shaped(sim, burst) if burst else sim).receiver()
    rows = []
    for i in range(len(r)):
        number, reference = int(r.number[i]), None
        if r.is_reference[i]:
            previous = int(r.previous_sent_ns[i])
            told = None if previous == NONE or not tells_previous else previous
            reference = Reference(number, int(r.sent_ns[i]), told, int(sim.reference_behind[number]) % 2**64)
        kind = rli.REFERENCE if reference else 2 if i % 50 == 7 else rli.REGULAR
        rows.append(Row(int(r.time_ns[i]), kind, int(r.size[i]), int(r.key[i]), number, reference))
    return rows


@pytest.mark.every(12)
@pytest.mark.parametrize("method", range(len(METHODS)), ids=METHODS)
@pytest.mark.parametrize("case", CASES)
def test_a_queue(case: str, method: int) -> None:
    hold_equal(CASES[case]._replace(method=method), simulated(0.7), [1000, 4000])


@pytest.mark.parametrize("utilisation", [0.3, 0.95])
def test_other_queues(utilisation: float) -> None:
    hold_equal(TIGHT._replace(method=rli.BUSY), simulated(utilisation, 0.03), [500])
    plain = simulated(utilisation, 0.03, tells_previous=False)
    hold_equal(ROOMY._replace(method=rli.BUSY), plain, [500])


@pytest.mark.parametrize("burst", [1_500, 20_000])
def test_a_shaper(burst: int) -> None:
    rows = simulated(0.55, burst=burst)
    twin = hold_equal(ROOMY._replace(method=rli.BUSY, burst=burst), rows, [1000, 4000])
    assert twin.delays.is_trusted
    hold_equal(TIGHT._replace(method=rli.BUSY, burst=burst), rows, [1000])


@pytest.mark.parametrize("burst", [0, 1_500])
def test_references_that_name_an_earlier_packet(burst: int) -> None:
    """As those of a sender do that hears of packets late: it names the one that the reference before it would."""
    rows, before = [], None
    for row in simulated(0.7, burst=burst):
        told = row.reference
        if told is not None and before is not None:
            row = row._replace(reference=told._replace(previous_ns=before.previous_ns, previous_id=before.previous_id))
        before = told or before
        rows.append(row)
    named = [told for told in (row.reference for row in rows) if told is not None]
    far = [one._replace(reference=named[0]) if one.reference else one for one in rows[:50]]
    for chosen in (ROOMY, TIGHT):
        twin = hold_equal(chosen._replace(method=rli.BUSY, burst=burst, buffer=5000), rows, [2000])
        assert twin.counts["previous_missed"] > 0
    hold_equal(ROOMY._replace(method=rli.BUSY, burst=burst), far)


@pytest.mark.every(2)
@pytest.mark.parametrize("method", range(len(METHODS)), ids=METHODS)
def test_the_delay_of_every_packet(method: int) -> None:
    """Every packet is its own flow, so its record has its delay."""
    rows = [row._replace(key=i + 1) for i, row in enumerate(simulated(0.7))]
    twin = hold_equal(ROOMY._replace(method=method, memory=8 << 20), rows)
    assert twin.totals.timed > 0.9 * twin.totals.packets
    assert twin.delays.is_trusted == (method == rli.BUSY)


def test_queues_reach_every_case() -> None:
    counts: Counter[str] = Counter()
    for chosen in CASES.values():
        counts += hold_equal(chosen._replace(method=rli.BUSY), simulated(0.7)).counts
    rare = {
        *("bad_time", "steps", "backwards", "restarts"),
        *("rejected_repeated", "rejected_sequence", "previous_rejected"),
    }
    assert {name for name in _kernels.Rli(*ROOMY).counts() if counts[name] == 0} <= rare


# Odd rows

Choice = tuple[int, ...]
BEGIN_NS = 10**15
QUEUE_NS = 50_000  # the delay of an empty queue
KINDS = (0, 0, 0, 1, 1, 2, 255, 3)
GAPS_NS = (0, 1, 40, 400, 401, 3_000, 3_000, 20_000, 90_000, 700_000, 5_000_000, -1, -30_000, -200_000, None, -(2**45))
SIZES = (0, 64, 100, 1500, 1500, 2**18 - 1, 2**18, 2**32 - 1)
KEYS = (0, 1, 2, 3, 5, 2**63, 2**64 - 1)
LATER_NS = (
    0,
    0,
    0,
    1,
    300,
    1_000,
    5_000,
    30_000,
    150_000,
    10**7,
    2**39,
    2**41,
    -1,
    -1_000,
    -2_000,
    -9_000,
    -(10**7),
    None,
)
SEQUENCES = (1, 1, 1, 1, 2, 0, 2**20, 2**20 + 1, 2**31, -1)
PREVIOUS = ("none", "told", "told", "told", "other id", "too late", "negative", "least")
DOMAINS = (KINDS, GAPS_NS, SIZES, KEYS, LATER_NS, SEQUENCES, PREVIOUS, LATER_NS)


def odd_rows(choices: Sequence[Choice], warm: bool, sequence: int) -> list[Row]:
    """Random rows from the domains. `warm`: start with enough empty queues to make them trusted."""
    rows, now_ns, last = [], BEGIN_NS, Row(BEGIN_NS, 0, 0, 0, 0)
    if warm:
        for i in range(17):
            now_ns += 1_000_000
            sequence += 1
            reference = Reference(sequence % 2**32, now_ns - QUEUE_NS, None, 0)
            rows.append(Row(now_ns, rli.REFERENCE, 0, 0, i, reference))
    for i, choice in enumerate(choices):
        at = [n % len(domain) for n, domain in zip(choice, DOMAINS, strict=True)]
        kind, gap_ns, previous = KINDS[at[0]], GAPS_NS[at[1]], PREVIOUS[at[6]]
        later_ns, previous_ns = LATER_NS[at[4]], LATER_NS[at[7]]
        bad_ns = (-1 - i, rli.TIMES.stop + i)[i % 2]
        time_ns = bad_ns if gap_ns is None else now_ns + gap_ns
        now_ns = time_ns if time_ns in rli.TIMES else now_ns
        row = Row(time_ns, kind, SIZES[at[2]], KEYS[at[3]], i % 5 * 2**61)
        if kind in (rli.REFERENCE, rli.ANOTHER):
            number = sequence + SEQUENCES[at[5]]
            sequence = number if number - sequence in (1, 2) else sequence
            sent_ns = -5 if later_ns is None else time_ns - QUEUE_NS - later_ns
            told_ns = 0 if previous_ns is None else last.time_ns - QUEUE_NS - previous_ns
            told = {"none": None, "too late": sent_ns + 5_000, "negative": -1, "least": -(2**63) + 1}
            other = last.id ^ 1 if previous == "other id" else last.id
            row = row._replace(reference=Reference(number % 2**32, sent_ns, told.get(previous, told_ns), other))
        elif kind == rli.REGULAR:
            last = row
        rows.append(row)
    return rows


odd_settings = st.builds(
    Settings,
    method=st.sampled_from(range(len(METHODS))),
    memory=st.sampled_from([1024, 2047, 4096]),
    bytes_per_s=st.sampled_from([0, 125_000, RATE, RATE, 10**9, 10**12]),
    buffer=st.sampled_from([1, 2, 3, 16, 2**24]),
    idle_ns=st.sampled_from([0, 400, 2**30]),
    bracket_ns=st.sampled_from([1, 3_000, 100_000, 10**6, 2**36]),
    early_ns=st.sampled_from([0, 5_000, 2**34]),
    late_ns=st.sampled_from([0, 2_000, 10**6, 2**34]),
    base_ns=st.sampled_from([1, 10**5, 10**6, 2**40]),
    inactive_ns=st.sampled_from([0, 10_000, FOREVER]),
    active_ns=st.sampled_from([0, 100_000, FOREVER]),
    hold=st.sampled_from([0, CERTAIN // 2, CERTAIN]),
    seed=st.sampled_from([0, 5, 2**64 - 1]),
    burst=st.sampled_from([0, 0, 40, 1_600, 20_000, 2**30 - 1]),
)
choices = st.lists(st.tuples(*(st.integers(0, len(domain) - 1) for domain in DOMAINS)), max_size=60)


@examples(700)
@given(
    odd_settings, choices, st.booleans(), st.sampled_from([0, 2**32 - 18]), st.lists(st.integers(0, 77), max_size=3),
    st.lists(
        st.tuples(st.sampled_from([0, RATE, 10**9]), st.sampled_from([0, 400]), st.sampled_from([0, 1_600])), max_size=2
    ),
)  # fmt: skip
def test_odd_rows(
    chosen: Settings, odd: list[Choice], warm: bool, sequence: int, at: list[int], drains: list[tuple[int, int, int]]
) -> None:
    hold_equal(chosen, odd_rows(odd, warm, sequence), at, drains)


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(12))
def test_many_odd_rows(seed: int) -> None:
    """Mostly in order, so that learned values are used; then odd ones."""
    rng = np.random.default_rng(seed)
    rare = [len(KINDS) - 1, 8, 5, len(KEYS), 8, 4, 4, 8]
    drawn = [rng.integers(0, rare if rng.random() < 0.97 else 1 << 20, len(DOMAINS)).tolist() for _ in range(1500)]
    rows = odd_rows([tuple(choice) for choice in drawn], warm=True, sequence=seed)
    chosen = (ROOMY, TIGHT, ROOMY._replace(bracket_ns=10**7, late_ns=10**6, idle_ns=400))[seed % 3]
    hold_equal(chosen._replace(method=rli.BUSY if seed % 4 else rli.LINEAR), rows, [300, 900])


def test_a_drain_rate_learned_later() -> None:
    """Before it `busy` equals `linear`, after it it is trusted."""
    rows = simulated(0.7)
    unknown = ROOMY._replace(method=rli.BUSY, bytes_per_s=0)
    assert not hold_equal(unknown, rows, [1000]).delays.is_trusted
    assert hold_equal(unknown, rows, [1000], [(RATE, 4)]).delays.is_trusted


def test_sums_of_delays_do_not_wrap() -> None:
    """Clocks 18 minutes apart: 2^23 packets exceed 64 bits. A record leaves at 2^22, totals have 128 bits."""
    rows, delay_ns = (1 << 23) + 100, (1 << 40) - 10
    kernel = _kernels.Rli(*ROOMY._replace(bytes_per_s=0, buffer=1 << 20, bracket_ns=1 << 36))
    times = np.arange(BEGIN_NS, BEGIN_NS + rows, dtype=np.int64)
    kinds = (np.arange(rows) % 1000 == 0).astype(np.uint8)
    sent = times[kinds == rli.REFERENCE] + delay_ns
    nothing = np.full(len(sent), NONE, np.int64), np.zeros(len(sent), np.uint64)
    ones = np.ones(rows, np.uint64)
    sizes, sequence = np.ones(rows, np.uint32), np.arange(len(sent), dtype=np.uint32)
    kernel.observe(times, kinds, sizes, ones, ones, sequence, sent, *nothing)
    kernel.cut()
    packets, _, timed, low, high, *_ = kernel.totals()
    assert packets == timed == rows - len(sent)
    assert low + (high << 64) - (1 << 128) == -timed * delay_ns
    records = np.array(taken(kernel), np.uint64)
    assert records[:, COLUMN["packets"]].tolist() == [1 << 22, timed - (1 << 22)]
    sums = records[:, COLUMN["sum_ns"]].view(np.int64).tolist()
    assert sums == [-delay_ns << 22, -delay_ns * (timed - (1 << 22))]


def test_a_clock_that_is_set_back_ends_all_flows() -> None:
    """Flows whose last packet is in the future leave first, and are not continued."""
    rows = [Row(BEGIN_NS + i, rli.REGULAR, 100, key, i) for i, key in enumerate((1, 2, 3))]
    back = BEGIN_NS - ROOMY.bracket_ns * 2
    rows += [Row(back + i, rli.REGULAR, 100, key, i) for i, key in enumerate((1, 5, 6, 7, 8, 9, 10, 11))]
    twin = hold_equal(ROOMY._replace(memory=1024), rows)
    assert twin.counts["inactive"] == 3
    assert twin.counts["evicted"] == 0


@pytest.mark.parametrize("apart_ns", [2_000, 2_001])
@pytest.mark.parametrize("over_ns", [0, 1])
def test_a_restart_needs_agreeing_references_and_no_bracket(apart_ns: int, over_ns: int) -> None:
    rows = odd_rows([], warm=True, sequence=0)
    first_ns = rows[-1].time_ns + 10**6 - 7_000 + over_ns
    for i in range(8):
        time_ns = first_ns + 1_000 * i
        reference = Reference(2**25 + i, time_ns - 90_000 - i % 2 * apart_ns, None, 0)
        rows.append(Row(time_ns, rli.REFERENCE, 0, 0, i, reference))
    twin = hold_equal(ROOMY._replace(bracket_ns=10**6, late_ns=2_000), rows)
    assert twin.counts["restarts"] == (apart_ns == 2_000 and over_ns == 1)


@pytest.mark.parametrize("late_ns", [999, 1_000, 1_001, -999, -1_000, -1_001])
@pytest.mark.parametrize("base_ns", [10**6, 10**6 + 1])
def test_the_base_follows_empty_queues(late_ns: int, base_ns: int) -> None:
    rows = odd_rows([], warm=True, sequence=0)
    for i in range(3):
        time_ns = rows[-1].time_ns + 10**6
        reference = Reference(100 + i, time_ns - QUEUE_NS - late_ns, None, 0)
        rows.append(Row(time_ns, rli.REFERENCE, 0, 0, i, reference))
    hold_equal(ROOMY._replace(base_ns=base_ns), rows)
