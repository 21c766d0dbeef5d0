"""lda and fridge in the kernel: on the same packets their synopses equal those of the extension and of the twins.

BPF_PROG_TEST_RUN runs recorded packets through the loaded programs, each with its own time, on one CPU.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.oracles import fridge as naive_fridge
from tests.oracles import join as naive_join
from tests.oracles import lda as naive_lda
from tests.support.kernel_meters import (
    XDP_PASS,
    Pieces,
    Sent,
    assert_same_lda,
    assert_same_samples,
    built,
    by_interval,
    in_order,
    intervals_of,
    read,
    real,
    talks,
)
from wirelag.ebpf.fridge import KernelFridge
from wirelag.ebpf.lda import KernelLda
from wirelag.estimators.fridge import Fridge
from wirelag.estimators.fridge_plan import CERTAIN
from wirelag.estimators.lda import Lda, LdaSynopsis
from wirelag.estimators.matchers import matcher_bits
from wirelag.estimators.protocol import Meter
from wirelag.packets.addresses import Direction
from wirelag.packets.interval import Interval
from wirelag.packets.packet_id import PacketId
from wirelag.stats.distribution import Distribution
from wirelag.stats.random_groups import RandomGroups
from wirelag.synopses.samples import Samples

pytestmark = pytest.mark.usefixtures("one_cpu")


def outside(meter: Meter, pieces: Pieces) -> list:
    """A meter's synopsis of each interval."""
    return [
        [meter.observe(batch) for batch in batches] and meter.cut(wanted) for wanted, batches in by_interval(pieces)
    ]


def inside(meter: KernelLda | KernelFridge, sent: list[Sent], intervals: list[Interval]) -> list:
    """The same from the kernel: an interval is read during the next one, as late as possible."""
    synopses, waiting = [], list(intervals)
    for time_ns, frame in sent:
        while waiting and waiting[0].end_ns + waiting[0].length_ns <= time_ns:
            synopses.append(meter.cut(waiting.pop(0)))
        assert meter.hooks.run(frame, time_ns) == XDP_PASS
    synopses += [meter.cut(interval) for interval in waiting]
    assert not meter.statistics().dropped
    assert not meter.hooks.counters["failed"].any()
    return synopses


# ---- lda ----


LDAS = [
    (Lda(rows=16, shifts=(0, 2, 5), tail=8, seed=3), PacketId(seed=3), 10**8),
    (Lda(rows=300, shifts=(1, 4), tail=4), PacketId(flow=False, prefix=5), 10**7),
]


@pytest.mark.parametrize(("lda", "packet_id", "interval_ns"), LDAS, ids=("small", "nat"))
def test_lda_in_the_kernel_equals_lda(lda: Lda, packet_id: PacketId, interval_ns: int, tmp_path: Path) -> None:
    sent = built(11, 800)
    pieces = read(sent, tmp_path, interval_ns, packet_id)
    assert len(intervals_of(pieces)) > 2
    meter = KernelLda(lda, None, interval_ns, packet_id=packet_id)
    found = inside(meter, sent, intervals_of(pieces))
    meter.close()
    assert_all_are_lda(lda, found, pieces)
    assert max(one.tail.level for one in found) > 0


def assert_all_are_lda(lda: Lda, found: list[LdaSynopsis], pieces: Pieces) -> None:
    """The kernel, the extension and the twin agree on each interval."""
    for one, other, twin in zip(found, outside(lda.meter("tap"), pieces), by_twin(lda, pieces), strict=True):
        assert_same_lda(one, other)
        buckets, cache = twin
        assert one.buckets.tolist() == [number for bucket in buckets for number in bucket]
        assert list(zip(one.tail.ids.tolist(), one.tail.times_ns.tolist(), strict=True)) == cache.entries
        assert one.tail.level == cache.level


def by_twin(lda: Lda, pieces: Pieces) -> Iterator[tuple[list[naive_lda.Bucket], naive_join.Cache]]:
    for _, batches in by_interval(pieces):
        seen = [pair for b in batches for pair in zip(b.packet_id.tolist(), b.time_ns.tolist(), strict=True)]
        yield (
            naive_lda.fill(seen, lda.rows, lda.shifts, lda.seed),
            naive_join.Cache(lda.tail, lda.seed).observe(seen),
        )


# All captures take minutes: `make test` takes a few packets of some, across edges of intervals.
SOME, ALL = pytest.param(False, id="some"), pytest.param(True, id="all", marks=pytest.mark.acceptance)


@pytest.mark.parametrize("whole", [SOME, ALL])
def test_lda_in_the_kernel_equals_lda_on_real_captures(whole: bool, shared_data: Path, tmp_path: Path) -> None:
    lda, interval_ns = Lda(rows=64, shifts=(0, 3), tail=32), 10**8
    sent = real(whole, "rtt", "twopoint")
    pieces = read(sent, tmp_path, interval_ns, PacketId())
    meter = KernelLda(lda, None, interval_ns, packet_id=PacketId())
    found = inside(meter, sent, intervals_of(pieces))
    meter.close()
    assert_all_are_lda(lda, found, pieces)
    assert len(found) > 3
    assert sum(one.packets for one in found) > (10_000 if whole else 200)


def test_lda_in_the_kernel_takes_one_direction(tmp_path: Path) -> None:
    sent, packet_id = built(5, 600), PacketId()
    lda, way = Lda(rows=16, shifts=(0,), tail=16), Direction.parse("10.0.0.0/8>")
    pieces = [(interval, batch[way.rows(batch)]) for interval, batch in read(sent, tmp_path, 10**12, packet_id)]
    meter = KernelLda(lda, None, 10**12, packet_id=packet_id, course=way)
    (found,), (expected,) = inside(meter, sent, intervals_of(pieces)[:1]), outside(lda.meter("tap"), pieces)
    meter.close()
    assert_same_lda(found, expected)


def test_intervals_that_are_not_read_in_time_are_counted_as_missed() -> None:
    frame = talks(2, 1)[0][1]
    meter = KernelLda(Lda(rows=8, shifts=(0,), tail=4), None, 1000, packet_id=PacketId())
    for number in (4, 5, 6, 7, 8, 8, 9):  # there is room for four
        meter.hooks.run(frame, number * 1000)
    assert meter.statistics().dropped == 3
    assert [meter.cut(Interval(n * 1000, n * 1000 + 1000)).packets for n in (4, 5, 7, 8, 9)] == [1, 1, 1, 0, 0]
    meter.hooks.run(frame, 10_000)
    assert meter.cut(Interval(10_000, 11_000)).packets == 1
    assert meter.statistics().dropped == 4  # and that of the interval that was left out
    meter.close()


def test_a_late_reader_does_not_touch_the_open_interval() -> None:
    meter, sent, found = KernelLda(Lda(rows=8, shifts=(0,), tail=64), None, 1000, packet_id=PacketId()), 0, []
    for number in range(20):
        for offset in range(0 if number % 5 else 900, 1000, 100):  # no early packets in some
            for _, frame in talks(number, 1)[3:5]:
                meter.hooks.run(frame, 12_000 + number * 1000 + offset)
                sent += 1
            if offset == 500 and number % 3:
                found += [meter.cut(Interval(n * 1000, n * 1000 + 1000)) for n in range(8 + number, 11 + number)]
    found += [meter.cut(Interval(n * 1000, n * 1000 + 1000)) for n in range(28, 33)]
    assert sum(one.packets for one in found) + meter.statistics().dropped == sent
    assert max(one.packets for one in found) <= 20
    meter.close()


def test_intervals_are_discarded_after_the_clock_was_set_back() -> None:
    later = (time.time_ns() // 10**9 + 3600) * 10**9
    meter = KernelLda(Lda(rows=8, shifts=(0,), tail=4), None, 10**9, packet_id=PacketId())
    (_, frame), *_ = talks(1, 1)
    meter.hooks.interface = "lo"  # recorded packets may have any time
    meter.hooks.run(frame, later)
    meter.hooks.run(frame, later + 10**9)
    assert meter.cut(Interval(later, later + 10**9)).packets == 0  # the clock was set back
    assert meter.statistics().dropped == 2
    assert not meter.cells.headers["packets"].any()
    meter.close()


# ---- fridge ----

FRIDGES = [
    Fridge(memory=1 << 14, slots=(64,), probabilities=(1.0,), seed=5),
    Fridge(memory=1 << 14, slots=(16, 32, 16), probabilities=(0.5, 0.25, 0.125), seed=9),
    Fridge(memory=1 << 14, matchers=("tcp-timestamps", "dns", "icmp"), slots=(128,), probabilities=(0.75,)),
    Fridge(memory=1 << 14, matchers=("handshake",), slots=(64,), variant="overwrite"),
    Fridge(memory=1 << 14, matchers=("flow-duration",), slots=(256,), variant="expiry", stages=4, expiry_ns=10**12),
]


@pytest.mark.every(2)
@pytest.mark.parametrize("whole", [SOME, ALL])
@pytest.mark.parametrize("fridge", FRIDGES, ids=("one", "three", "timestamps", "handshakes", "durations"))
def test_fridges_in_the_kernel_equal_fridges(fridge: Fridge, whole: bool, tmp_path: Path) -> None:
    recorded, interval_ns = real(whole, "rtt"), 10**8
    sent = in_order(talks(1, 25), built(3, 400), recorded)
    pieces = read(sent, tmp_path, interval_ns)
    meter = KernelFridge(fridge, None, interval_ns)
    found, expected = inside(meter, sent, intervals_of(pieces)), outside(fridge.meter("tap"), pieces)
    meter.close()
    assert len(found) > 3
    for one, other, twin in zip(found, expected, samples_of_twin(fridge, pieces), strict=True):
        assert_same_samples(one, other)
        assert_same_samples(one, twin)
    assert not recorded or sum(one.distribution().samples for one in found) > 15


def samples_of_twin(fridge: Fridge, pieces: Pieces) -> Iterator[Samples]:
    first = fridge.first()
    variant = {"union": 0, "overwrite": 1, "expiry": 2}[fridge.variant]
    twin = naive_fridge.Fridge(
        matcher_bits(fridge.matchers),
        first.slots,
        first.probabilities,
        fridge.seed,
        variant,
        fridge.stages,
        fridge.expiry_ns,
    )
    assert sum(first.probabilities) <= CERTAIN
    for _, batches in by_interval(pieces):
        samples, before = Samples(), (twin.arrivals, twin.backwards, twin.too_long)
        for batch in batches:
            found = twin.observe(batch)
            samples.packets += len(batch)
            for one in found:
                delay, weight = np.array([one.delay_ns]), np.array([one.weight])
                samples.distributions.setdefault(one.leg, Distribution()).add(delay, weight)
                crowd = RandomGroups()
                rows, legs = np.array([one.row], np.uint32), np.array([one.leg], np.uint8)
                crowd.add(batch.flow_key, rows, legs, delay, weight)
                samples.spread.connections.merge(crowd)
        now = (twin.arrivals, twin.backwards, twin.too_long)
        names = ("requests", "backwards", "too_long")
        samples.count(**{name: n - old for name, n, old in zip(names, now, before, strict=True)})
        yield samples
