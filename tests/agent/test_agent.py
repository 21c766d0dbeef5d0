"""The agent without a network: cuts, memory of the past, answers, and clocks."""

import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.join import Packet
from tests.support.effort import examples
from tests.support.two_points import EPOCH_NS, SECOND_NS, batch_of
from wirelag.agent.composing import encoded
from wirelag.agent.config import Measured
from wirelag.agent.cutting import LONGEST_GAP, AtPackets, ByClock, CutPart, Unseen, cutter
from wirelag.agent.history import LATELY, MEMORY, History
from wirelag.capture.card_clock import apart_of
from wirelag.capture.host_clock import HostClock, beside_card, card_clock, chrony_reading, kernel_reading, ptp_reading
from wirelag.errors import WirelagError
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import Delimiters
from wirelag.protocol.messages import ClockReading, Message, Seen, decode
from wirelag.protocol.terms import Terms, asked, cut_of
from wirelag.synopses.cache import Cached
from wirelag.synopses.symbols import FIRST, enough
from wirelag.twopoint.spans import ALL, Cut, Pair, cuts

INTERVAL_NS = SECOND_NS // 2

some_packets = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(EPOCH_NS, EPOCH_NS + 5 * SECOND_NS)), max_size=60
)


def measured_by(estimator: Lda | Rda, delimiters: Delimiters | None = None, by: str | None = None) -> Measured:
    return Measured("a>b", Terms(estimator, interval_ns=INTERVAL_NS, delimiters=delimiters, by=by), None, False)


def fed(cuts: ByClock | AtPackets, packets: Sequence[Packet], places: Sequence[int]) -> list[CutPart]:
    """Parts cut when the packets arrive in batches that end at these places."""
    edges = sorted({0, len(packets), *(place % (len(packets) + 1) for place in places)})
    parts = [part for start, end in pairwise(edges) for part in cuts.take(batch_of(packets[start:end]))]
    latest_ns = max((time_ns for _, time_ns in packets), default=EPOCH_NS)
    return [*parts, *cuts.end(latest_ns + 1)]


def summed(parts: Sequence[CutPart]) -> list[tuple[Interval, int | None, list[int]]]:
    return [(part.cut.interval, part.cut.interval.name, part.cut.synopses[ALL].buckets.tolist()) for part in parts]


# ---- cutting ----


@examples(60)
@given(some_packets, st.lists(st.integers(0, 60), max_size=5))
def test_by_the_clock_it_cuts_as_files_are_cut(packets: list[Packet], places: list[int]) -> None:
    measured = measured_by(Lda(8, (0,), tail=8))
    parts = fed(ByClock((measured,), INTERVAL_NS, 0, Unseen(INTERVAL_NS)), packets, places)
    expected = list(cuts(Lda(8, (0,), tail=8), "upstream", [batch_of(packets)], INTERVAL_NS)) if packets else []
    assert [row for row in summed(parts) if any(row[2])] == [
        (cut.interval, None, cut.synopses[ALL].buckets.tolist()) for cut in expected
    ]
    starts = [part.cut.interval.start_ns for part in parts]
    assert starts == list(range(starts[0], starts[-1] + 1, INTERVAL_NS)) if starts else not packets
    if packets:
        latest_ns = max(time_ns for _, time_ns in packets)
        assert sum(part.seen.covered_ns for part in parts) == max(0, latest_ns + 1 - packets[0][1])


@examples(60)
@given(some_packets, st.lists(st.integers(0, 60), max_size=5), st.integers(0, 3))
def test_at_packets_it_cuts_as_files_are_cut(packets: list[Packet], places: list[int], bits: int) -> None:
    packets = sorted(packets, key=lambda packet: packet[1])
    delimiters = Delimiters(INTERVAL_NS, bits)
    parts = fed(AtPackets((measured_by(Lda(8, (0,), tail=8), delimiters),), Unseen(INTERVAL_NS)), packets, places)
    expected = list(cuts(Lda(8, (0,), tail=8), "upstream", [batch_of(packets)], None, delimiters)) if packets else []
    assert summed(parts) == [(c.interval, c.interval.name, c.synopses[ALL].buckets.tolist()) for c in expected]


def test_an_interval_is_cut_after_its_grace_and_keeps_late_packets() -> None:
    clock = ByClock((measured_by(Lda(8, (0,))),), INTERVAL_NS, 1000, Unseen(INTERVAL_NS))
    clock.begin(EPOCH_NS + 100)
    assert not list(clock.take(batch_of([(1, EPOCH_NS + 200)])))
    assert not list(clock.passed(EPOCH_NS + INTERVAL_NS + 999))
    (first,) = clock.passed(EPOCH_NS + INTERVAL_NS + 1000)
    assert (first.seen, first.cut.interval.start_ns) == (Seen(1, 0, INTERVAL_NS - 100, 1), EPOCH_NS)
    assert not list(clock.take(batch_of([(2, EPOCH_NS + INTERVAL_NS - 1)])))  # too late for the first interval
    (second,) = clock.end(EPOCH_NS + INTERVAL_NS + 5000)
    assert (second.seen, second.cut.interval.start_ns) == (Seen(1, 0, 5000, 1), EPOCH_NS + INTERVAL_NS)


class Tenth:
    """Every tenth packet, or the others."""

    def __init__(self, others: bool) -> None:
        self.others = others

    def rows(self, packets: PacketBatch) -> npt.NDArray[np.bool_]:
        return (packets.packet_id % np.uint64(10) == 0) != self.others


def test_a_segment_has_its_share_of_the_drops_of_a_capture() -> None:
    """If the capture took in nothing, the segment has its share of the interval before."""
    unseen = Unseen(INTERVAL_NS, EPOCH_NS)
    whole = measured_by(Lda(8, (0,)))
    clock = ByClock(tuple(replace(whole, way=Tenth(each)) for each in (False, True)), INTERVAL_NS, 0, unseen)
    clock.begin(EPOCH_NS)
    assert not list(clock.take(batch_of([(number, EPOCH_NS + number) for number in range(1000)])))
    unseen.read(200, EPOCH_NS + INTERVAL_NS)
    unseen.read(500, EPOCH_NS + 2 * INTERVAL_NS)
    parts = list(clock.end(EPOCH_NS + 2 * INTERVAL_NS))[:4]
    assert [(part.seen.packets, part.seen.unseen, part.seen.captured) for part in parts] == [
        *[(100, 20, 1000), (900, 180, 1000)],
        *[(0, 30, 0), (0, 270, 0)],
    ]


def test_intervals_without_packets_are_reported_but_not_those_that_the_clock_jumped_over() -> None:
    clock = ByClock((measured_by(Lda(8, (0,))),), INTERVAL_NS, 0, Unseen(INTERVAL_NS))
    clock.begin(EPOCH_NS)
    quiet = list(clock.passed(EPOCH_NS + 3 * INTERVAL_NS))
    assert [part.seen for part in quiet] == 3 * [Seen(0, 0, INTERVAL_NS)]
    jumped = list(clock.passed(EPOCH_NS + (10 + LONGEST_GAP) * INTERVAL_NS))
    assert len(jumped) == 1


@pytest.mark.parametrize("delimiters", [None, Delimiters(INTERVAL_NS, 20)], ids=["clock", "packets"])
def test_a_clock_that_is_set_back_begins_anew(delimiters: Delimiters | None) -> None:
    unseen = Unseen(INTERVAL_NS, EPOCH_NS)
    made = cutter((measured_by(Lda(8, (0,)), delimiters),), INTERVAL_NS, 0, unseen)
    made.begin(EPOCH_NS)
    unseen.read(5, EPOCH_NS + 10)
    assert not list(made.take(batch_of([(1, EPOCH_NS + 20)])))
    assert not list(made.begin_anew(EPOCH_NS - SECOND_NS // 2))  # within the allowed reordering
    hour_ns = 3600 * SECOND_NS
    (before,) = made.begin_anew(EPOCH_NS - hour_ns)
    assert before.seen.packets == 1
    unseen.read(8, EPOCH_NS - hour_ns + 30)
    assert not list(made.take(batch_of([(2, EPOCH_NS - hour_ns + 40)])))
    (after,) = made.end(EPOCH_NS - hour_ns + 50)
    assert after.cut.interval.start_ns == EPOCH_NS - hour_ns + (40 if delimiters else 0)
    assert after.seen.packets == 1
    if delimiters is None:
        assert (after.seen.unseen, after.seen.covered_ns) == (3, 50)


@examples(60)
@given(st.lists(st.tuples(st.integers(1, 3 * SECOND_NS), st.integers(0, 1000)), max_size=40))
def test_each_drop_is_in_one_interval(readings: list[tuple[int, int]]) -> None:
    unseen, total, latest_ns = Unseen(INTERVAL_NS, EPOCH_NS), 0, EPOCH_NS
    for after_ns, more in readings:
        latest_ns, total = max(latest_ns, EPOCH_NS + after_ns), total + more
        unseen.read(total, latest_ns)
    intervals = [Interval(EPOCH_NS + k * INTERVAL_NS, EPOCH_NS + (k + 1) * INTERVAL_NS) for k in range(7)]
    found = [unseen.during(interval) for interval in intervals]
    assert min(found) >= 0
    assert sum(found) == total


def test_drops_are_in_their_interval() -> None:
    unseen = Unseen(INTERVAL_NS, EPOCH_NS)
    for ms, total in ((400, 0), (600, 100), (900, 100)):
        unseen.read(total, EPOCH_NS + ms * 10**6)
    halves = [unseen.during(Interval(EPOCH_NS + k * INTERVAL_NS, EPOCH_NS + (k + 1) * INTERVAL_NS)) for k in (0, 1)]
    assert halves == [50, 50]


def test_too_many_classes_are_reported_and_leave_room_for_others() -> None:
    columns = batch_of([(i, EPOCH_NS + i) for i in range(9)])
    columns.traffic_class = np.arange(9, dtype=np.uint8) * np.uint8(4)
    clock = ByClock((measured_by(Lda(8, (0,)), by="dscp/24/48/4"),), INTERVAL_NS, 0, Unseen(INTERVAL_NS))
    (full,) = [*clock.take(columns), *clock.passed(EPOCH_NS + INTERVAL_NS)]
    assert full.overflow
    assert {full.keys[tag] for tag in full.cut.synopses if tag != ALL} == {
        "dscp 0",
        "dscp 1",
        "dscp 2",
        "dscp 3",
        "other",
    }
    late = columns[8:].at_times(columns.time_ns[8:] + INTERVAL_NS)
    (again,) = [*clock.take(late), *clock.passed(EPOCH_NS + 2 * INTERVAL_NS)]
    assert not again.overflow
    assert [again.keys[tag] for tag in again.cut.synopses if tag != ALL] == ["dscp 8"]


# ---- the past ----


def part_of(packets: Sequence[Packet], estimator: Rda, start_ns: int = EPOCH_NS) -> CutPart:
    meter = estimator.meter("upstream")
    meter.observe(batch_of(packets))
    interval = Interval(start_ns, start_ns + INTERVAL_NS)
    cut = Cut(interval, {ALL: meter.cut(interval)})
    return CutPart(measured_by(estimator), cut, {}, False, Seen(len(packets), 0, INTERVAL_NS))


def message_of(part: CutPart, past: History) -> Message:
    interval, terms = part.cut.interval, part.measured.terms
    return decode(encoded(part, Message("synopsis", "up", "a>b", interval, terms, seen=part.seen), past)[0])


def ask_of(part: CutPart, records: Sequence[Mapping[str, object]]) -> Message:
    return Message("ask", "up", "a>b", part.cut.interval, part.measured.terms, records=tuple(map(dict, records)))


def test_answers_make_rda_exact() -> None:
    estimator = Rda(tail=16)
    packets = [(int(x), EPOCH_NS + 1000 * i) for i, x in enumerate(np.random.default_rng(3).integers(1, 1 << 62, 500))]
    up = part_of(packets, estimator)
    down = part_of([(x, t + 777 + i % 5) for i, (x, t) in enumerate(packets) if i % 50], estimator)
    pasts = {name: History(name, 1 << 20, 0) for name in ("up", "down")}
    synopses = {}
    for name, part in (("up", up), ("down", down)):
        pasts[name].keep(part)
        synopses[name] = cut_of(estimator, message_of(part, pasts[name]).records, {}).synopses
    pair = Pair(up.cut.interval, synopses["up"], synopses["down"])
    records = list(asked(pair, estimator, {}))
    answers = {name: decode(past.answer(ask_of(up, records))[0]) for name, past in pasts.items()}
    mine, theirs = (Cached.from_fields(answers[name].records[0], 0) for name in ("up", "down"))
    crossing, decoded = estimator.cross_bound(pair.up[ALL], pair.down[ALL], mine, theirs)
    assert decoded.complete
    assert (crossing.only_upstream, crossing.used) == (10, 490)
    assert crossing.moments.sum_ns == sum(777 + i % 5 for i in range(500) if i % 50)


def test_more_buckets_can_be_asked_for() -> None:
    part = part_of([(i, EPOCH_NS + i) for i in range(1, 200)], Rda(tail=16))
    past = History("up", 1 << 20, 0)
    past.keep(part)
    where = {"start_ns": EPOCH_NS, "end_ns": EPOCH_NS + INTERVAL_NS, "name": None, "class": None}
    answer = decode(past.answer(ask_of(part, [where | {"buckets": 3000, "cache_level": 0}]))[0])
    assert len(answer.records[0]["bucket_ids"]) == 3000
    assert (past.answered, past.refused) == (1, 0)

    def buckets(index: int) -> int:
        later = part_of([(1, 1)], Rda(tail=16), index * INTERVAL_NS)
        return len(message_of(later, past).records[0]["bucket_ids"])

    asked_about = EPOCH_NS // INTERVAL_NS
    next_block = (asked_about // MEMORY + 1) * MEMORY
    assert [buckets(i) for i in (asked_about + 1, next_block - 1, next_block, next_block + 1)] == [
        3000,
        3000,
        1023,
        1023,
    ]


def test_the_number_of_symbols_follows_recent_differences() -> None:
    estimator = Rda(short=True, rows=8, tail=16)
    past = History("up", 1 << 20, 0)

    def symbols(index: int) -> int:
        part = part_of([(i, EPOCH_NS + i) for i in range(1, 90)], estimator, EPOCH_NS + index * INTERVAL_NS)
        past.keep(part)
        return len(message_of(part, past).records[0]["symbols"])

    def differ(index: int, size: int) -> None:
        part = part_of([(1, 1)], estimator, EPOCH_NS + index * INTERVAL_NS)
        interval = part.cut.interval
        where = {"start_ns": interval.start_ns, "end_ns": interval.end_ns, "name": None, "class": None}
        record = where | {"wanted": np.empty(0, np.uint64), "difference": size, "cache_level": 0}
        past.answer(ask_of(part, [record]))

    assert symbols(0) == FIRST
    differ(0, 200)
    assert symbols(1) == enough(200)
    differ(1, 100)
    assert [symbols(index) for index in (2, LATELY, LATELY + 1)] == [enough(200), enough(200), enough(100)]
    assert symbols(LATELY + 2) == FIRST


def test_the_past_is_bounded_and_says_what_it_has_forgotten() -> None:
    past = History("up", 100_000, EPOCH_NS)
    parts = [
        part_of([(i, start_ns + i) for i in range(1, 1001)], Rda(), start_ns)
        for start_ns in range(EPOCH_NS, EPOCH_NS + 20 * INTERVAL_NS, INTERVAL_NS)
    ]
    for part in parts:
        past.keep(part)
        assert past.bytes <= 100_000
    assert len(past) == 6

    def reason(interval: Interval) -> str | None:
        where = {"start_ns": interval.start_ns, "end_ns": interval.end_ns, "name": None, "class": None}
        ask = replace(
            ask_of(parts[0], [where | {"numbers": np.ones(1, np.uint64), "cache_level": 0}]), interval=interval
        )
        return decode(past.answer(ask)[0]).records[0].get("reason")

    assert reason(parts[-1].cut.interval) is None
    assert reason(parts[0].cut.interval) == "no longer kept: the limit for past intervals is 0 MiB"
    assert reason(Interval(0, INTERVAL_NS)) == "the agent was restarted since"


# ---- the clock ----


def test_output_of_clock_programs() -> None:
    chrony = (
        "0A000001,10.0.0.1,3,1700000000.5,-0.000002000,0.000001,0.000003,-12.3,0.0,0.01,0.000100000,0.000010000,64.0,"
    )
    assert chrony_reading(chrony + "Normal\n") == ClockReading(True, 62_000, "chrony")
    assert chrony_reading(chrony + "Not synchronised\n") == ClockReading(False, 62_000, "chrony")
    assert chrony_reading("506 Cannot talk to daemon") is None
    ptp = "sending: GET\n\toffsetFromMaster     -35.0\n\tmeanPathDelay        1200.5\n\tportState {}\n"
    assert ptp_reading(ptp.format("SLAVE")) == ClockReading(True, 1236, "ptp")
    assert ptp_reading(ptp.format("LISTENING")) is None
    assert ptp_reading("sending: GET CURRENT_DATA_SET\n") is None


def test_the_kernel_has_a_bound() -> None:
    reading = kernel_reading()
    assert reading.source == "adjtimex"
    assert reading.error_ns > 0
    assert HostClock(5000).reading() == ClockReading(True, 5000, "stated")


def test_the_distance_of_a_card_s_clock_is_added() -> None:
    host = ClockReading(True, 500, "chrony")
    times = [(7, 100), (6, 999_999_000), (7, 300)]  # host, card, host
    answer = struct.pack("I12x", 1) + b"".join(struct.pack("qIxxxx", *time) for time in times)
    assert apart_of(answer) == (-1200, 100)
    assert beside_card(host, lambda: apart_of(answer)) == ClockReading(True, 500 + 1200 + 100, "chrony")

    def gone() -> tuple[int, int]:
        raise OSError(errno.ENODEV, "No such device")

    assert beside_card(host, gone) == ClockReading(False, 500, "chrony")


def test_a_card_without_timestamps_is_one_line() -> None:
    with pytest.raises(WirelagError, match=r"^lo: this card does not timestamp packets$"):
        card_clock("lo")
