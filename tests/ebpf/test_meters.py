"""lda and fridge in the kernel: on the same packets their synopses equal those of the extension and of the twins.

BPF_PROG_TEST_RUN runs recorded packets through the loaded programs, each with its own time, on one CPU.
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.oracles import fridge as naive_fridge
from tests.oracles import join as naive_join
from tests.oracles import lda as naive_lda
from tests.support import needs
from tests.support.captures import capture_paths, damaged, packets, pcap, plain_bytes, random_frame
from tests.support.kernel_frames import tcp
from wirelag.capture.pcap import CaptureFile
from wirelag.ebpf.dataplane import UnavailableError
from wirelag.ebpf.fridge import KernelFridge
from wirelag.ebpf.lda import KernelLda
from wirelag.estimators.fridge import CERTAIN, Fridge
from wirelag.estimators.lda import Lda, LdaSynopsis
from wirelag.estimators.matchers import matcher_bits
from wirelag.estimators.protocol import Meter
from wirelag.packets.addresses import Direction
from wirelag.packets.batch import PacketBatch, PacketId
from wirelag.packets.intervals import Interval, split
from wirelag.stats.distribution import Distribution
from wirelag.stats.random_groups import RandomGroups
from wirelag.synopses.samples import LEGS, Samples

Sent = tuple[int, bytes]  # a time and a frame
Pieces = list[tuple[Interval, PacketBatch]]

SHORTEST, LONGEST = 14, 3400  # accepted by a test run
XDP_PASS = 2
BEGIN_NS, LONGEST_NS = 1_700_000_100 * 10**9, 10**10


@pytest.fixture(scope="module", autouse=True)
def one_cpu() -> Iterator[None]:
    """Run programs on one CPU; skip where they cannot run."""
    try:
        KernelLda(Lda(), None, 10**9, packet_id=PacketId()).close()
    except UnavailableError as error:
        pytest.skip(needs.ebpf(error))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def captured(path: Path, most: int) -> list[Sent]:
    """The first packets of a capture that a test run accepts, with plausible times."""
    found = []
    for packet in packets(plain_bytes(path)):
        if packet.link_type == 1 and SHORTEST <= len(packet.frame) <= LONGEST and packet.time_ns > 0:
            found.append((packet.time_ns, packet.frame))
        if len(found) == most:
            break
    return found


def built(seed: int, count: int) -> list[Sent]:
    """Frames of all kinds, many repeated, at times that occasionally go back."""
    rng = random.Random(seed)
    frames = [frame for link, frame in (random_frame(rng) for _ in range(count)) if link == 1]
    frames = [frame for frame in (damaged(rng, frame) for frame in frames) if SHORTEST <= len(frame) <= LONGEST]
    now_ns, sent = 1_700_000_100 * 10**9, []
    for _ in range(count):
        now_ns += rng.choice((0, 1000, 10**6, 3 * 10**6, -(10**6), -(10**7) if rng.random() < 0.01 else 10))
        sent.append((now_ns, rng.choice(frames)))
    return sent


def talks(seed: int, flows: int) -> list[Sent]:
    """Concurrent connections from handshake to end."""
    rng, found = random.Random(seed), []
    for flow in range(flows):
        steps = [(True, 1, 0, 2, 0), (False, 1, 2, 18, 0), (True, 2, 2, 16, 0)]
        for turn in range(3):
            steps += [
                (True, 2 + 100 * turn, 2 + 500 * turn, 24, 100),
                (False, 2 + 500 * turn, 102 + 100 * turn, 24, 500),
            ]
        steps += [(True, 302, 1502, 17, 0), (False, 1502, 303, 17, 0), (True, 303, 1503, 16, 0)]
        now_ns = rng.randrange(10**8)
        for up, *segment in steps:
            found.append((now_ns, tcp(up, flow, *segment)))
            now_ns += rng.randrange(10**7)
    return sorted(found)


def in_order(*parts: list[Sent]) -> list[Sent]:
    """Captures one after another: times are shifted and silences shortened, so that none lies in the future."""
    found: list[Sent] = []
    now_ns = BEGIN_NS
    for part in parts:
        before_ns = part[0][0] - 10**7 if part else 0
        for time_ns, frame in part:
            now_ns += max(-LONGEST_NS, min(time_ns - before_ns, LONGEST_NS))
            found.append((now_ns, frame))
            before_ns = time_ns
    return found


def read(sent: list[Sent], folder: Path, interval_ns: int, packet_id: PacketId | None = None) -> Pieces:
    """The same packets as rows, cut at the edges of intervals."""
    path = folder / "sent.pcap"
    path.write_bytes(pcap([(time_ns, frame, len(frame)) for time_ns, frame in sent], magic=0xA1B23C4D))
    return list(split(CaptureFile(str(path), packet_id=packet_id), interval_ns))


def intervals_of(pieces: Pieces) -> list[Interval]:
    return sorted({interval for interval, _ in pieces})


def by_interval(pieces: Pieces) -> list[tuple[Interval, list[PacketBatch]]]:
    found: dict[Interval, list[PacketBatch]] = {}
    for interval, batch in pieces:
        found.setdefault(interval, []).append(batch)
    return sorted(found.items(), key=lambda item: item[0])


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


def assert_same_lda(found: LdaSynopsis, expected: LdaSynopsis) -> None:
    assert np.array_equal(found.buckets, expected.buckets)
    assert np.array_equal(found.tail.ids, expected.tail.ids)
    assert np.array_equal(found.tail.times_ns, expected.tail.times_ns)
    assert (found.tail.level, found.tail.packets) == (expected.tail.level, expected.tail.packets)


def assert_same_samples(found: Samples, expected: Samples) -> None:
    for leg in range(len(LEGS)):
        one, other = found.distribution(leg=leg), expected.distribution(leg=leg)
        assert np.array_equal(one.weights, other.weights)
        assert np.array_equal(one.squares, other.squares)
        assert (one.samples, one.weight, one.mean_ns, one.std_ns, one.min_ns, one.max_ns) == (
            *(other.samples, other.weight, other.mean_ns, other.std_ns, other.min_ns, other.max_ns),
        )
    assert np.array_equal(found.spread.connections.weights, expected.spread.connections.weights)
    assert (found.packets, found.counts) == (expected.packets, expected.counts)


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


def real(whole: bool, *rooms: str) -> list[Sent]:
    """Packets of real captures: many of all, or a few of small ones."""
    paths = capture_paths(*rooms)
    if whole:
        return in_order(*(captured(path, 5000) for path in paths))
    small = [path for path in paths if path.stat().st_size < 250_000]
    return in_order(*(captured(path, 60) for path in small[:: max(1, len(small) // 8)]))


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
    frame = next(frame for _, frame in built(2, 500) if len(frame) > 60 and frame[12:14] == b"\x08\x00")
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


@pytest.mark.parametrize("whole", [SOME, ALL])
@pytest.mark.parametrize("fridge", FRIDGES, ids=("one", "three", "timestamps", "handshakes", "durations"))
def test_fridges_in_the_kernel_equal_fridges(fridge: Fridge, whole: bool, tmp_path: Path) -> None:
    sent, interval_ns = in_order(talks(1, 25), built(3, 400), real(whole, "rtt")), 10**8
    pieces = read(sent, tmp_path, interval_ns)
    meter = KernelFridge(fridge, None, interval_ns)
    found, expected = inside(meter, sent, intervals_of(pieces)), outside(fridge.meter("tap"), pieces)
    meter.close()
    assert len(found) > 3
    for one, other, twin in zip(found, expected, samples_of_twin(fridge, pieces), strict=True):
        assert_same_samples(one, other)
        assert_same_samples(one, twin)
    assert sum(one.distribution().samples for one in found) > 15


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
