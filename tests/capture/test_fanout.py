"""An interface read by several cores: the packets, cuts and numbers of a single ring."""

import itertools
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import flood
from lab.network import Network
from tests.support import needs
from tests.support.captures import ethernet, ipv4, udp
from tests.support.command import WIRELAG, wirelag
from tests.support.effort import ALONE, examples
from tests.support.in_lab import IN_LAB
from wirelag.capture.fanout import Fanout, over_cores
from wirelag.capture.live import Live, by_clock
from wirelag.estimators.match import Match
from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval
from wirelag.packets.packet_id import PacketId

MS, S = 10**6, 10**9
ALL_TIME = Interval(0, 2**62)


class Scripted:
    """A ring with scripted batches."""

    def __init__(self, batches: list[list[int]], numbers: Iterator[int]) -> None:
        self.name, self.poll_ms, self.began_ns, self.quiet_ns = "scripted", 1, 0, 0
        self._batches = [(times, [next(numbers) for _ in times]) for times in batches]

    def __iter__(self) -> Iterator[PacketBatch]:
        for times, numbers in self._batches:
            yield PacketBatch({"time_ns": np.array(times, np.int64), "packet_id": np.array(numbers, np.uint64)})


rising = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), max_size=6).map(lambda steps: _sums(steps))


def _sums(steps: list[list[int]]) -> list[list[int]]:
    """Times that rise from batch to batch."""
    times = itertools.accumulate(itertools.chain.from_iterable(steps))
    return [list(itertools.islice(times, len(step))) for step in steps]


@examples(60)
@given(st.lists(rising, min_size=1, max_size=3), st.integers(1, 40))
def test_no_packet_comes_before_those_of_earlier_intervals(rings: list[list[list[int]]], length_ns: int) -> None:
    numbers = itertools.count()
    lives = cast(list[Live], [Scripted(batches, numbers) for batches in rings])
    told = [batch for batch in Fanout(lives, length_ns) if len(batch)]
    times = [int(time_ns) for batch in told for time_ns in batch.time_ns]
    assert sorted(times) == sorted(time_ns for ring in rings for batch in ring for time_ns in batch)
    places = [time_ns // length_ns for time_ns in times]
    assert places == sorted(places)
    seen = [int(number) for batch in told for number in batch.packet_id]
    assert len(set(seen)) == len(seen)


def test_a_clock_that_is_set_back_delays_nothing() -> None:
    rings = [[[100 * S], [101 * S], [5 * S], [6 * S]], [[100 * S], [5 * S]]]
    numbers = itertools.count()
    lives = cast(list[Live], [Scripted(batches, numbers) for batches in rings])
    assert sum(map(len, Fanout(lives, S))) == 6


def test_time_passes_without_packets() -> None:
    class Quiet(Scripted):
        def __iter__(self) -> Iterator[PacketBatch]:
            for self.quiet_ns in range(10 * S, 13 * S, S // 2):
                yield PacketBatch.empty()

    source = Fanout(cast(list[Live], [Quiet([], itertools.count()) for _ in range(2)]), S)
    told = [interval.start_ns // S for interval, packets in by_clock(source, S) if packets is None]
    assert told == sorted(told)
    assert told[-1] in (11, 12)


def test_an_error_in_a_ring_is_raised_after_its_packets() -> None:
    class Broken(Scripted):
        def __iter__(self) -> Iterator[PacketBatch]:
            yield from super().__iter__()
            raise OSError("gone")

    numbers = itertools.count()
    lives = cast(list[Live], [Broken([[1, 2]], numbers), Scripted([[1], [3]], numbers)])
    seen: list[int] = []
    with pytest.raises(OSError, match="gone"):
        seen.extend(len(batch) for batch in Fanout(lives, S))
    assert sum(seen) == 4


def test_a_consumer_that_stops_leaves_no_thread() -> None:
    class Endless(Scripted):
        def __iter__(self) -> Iterator[PacketBatch]:
            while True:
                yield PacketBatch({"time_ns": np.array([1], np.int64)})

    before = threading.active_count()
    source = iter(Fanout(cast(list[Live], [Endless([], itertools.count()) for _ in range(2)]), S))
    next(source)
    cast(Any, source).close()
    assert threading.active_count() == before


# ---- in namespaces ----


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network("fanout")
    flood.build(network)
    try:
        yield network
    finally:
        network.down()


def opened(network: Network, cores: int, interval_ns: int, **options: Any) -> Live | Fanout:
    with network.inside(flood.SINK):
        return over_cores(
            cores, interval_ns, lambda group: Live(flood.SOURCE, fanout=group, packet_id=PacketId(), **options)
        )


@IN_LAB
def test_two_rings_equal_one(network: Network) -> None:
    """Requests and responses of many flows: the same packets in the same intervals, the same round trips."""
    interval_ns = 100 * MS
    sources = [opened(network, cores, interval_ns) for cores in (1, 2)]
    with network.inside(flood.SOURCE):
        out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    out.bind((flood.SINK, 0))
    with out:
        sent, deadline = 0, time.monotonic() + 0.45
        while time.monotonic() < deadline:
            port = 1000 + sent % 300
            query = bytes([sent >> 8 & 255, sent & 255, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 97, 0, 0, 1, 0, 1])
            reply = query[:2] + b"\x81\x80" + query[4:]
            out.send(ethernet(ipv4(udp(query, (port, 53)), 17)).ljust(60, b"\0"))
            out.send(
                ethernet(ipv4(udp(reply, (53, port)), 17, src=b"\xc6\x33\x64\2", dst=b"\xc0\0\2\1")).ljust(60, b"\0")
            )
            sent += 2
    found = []
    for source in sources:
        source.stop()
        numbers: Counter[int] = Counter()
        meter = Match().meter("tap")
        for interval, packets in by_clock(source, interval_ns):
            assert interval.start_ns <= time.time_ns()
            if packets is not None:
                assert (packets.time_ns // interval_ns * interval_ns == interval.start_ns).all()
                numbers.update(packets.packet_id.tolist())
                meter.observe(packets)
        samples = meter.cut(ALL_TIME)
        found.append((numbers, samples.report("match", "round_trip").to_json(), source.statistics))
        source.close()
    (one, report, known), (two, same, shared) = found
    assert one == two
    assert sum(one.values()) == sent == known.packets == shared.packets
    assert report["samples"] == same["samples"] == sent // 2
    # Each ring stamps packets itself, and another packet may come in between.
    assert report["quantiles"]["0.5"] == pytest.approx(same["quantiles"]["0.5"], rel=0.05)
    if ALONE:
        assert report["mean"] == pytest.approx(same["mean"], rel=0.05)
    assert known.received == shared.received


@IN_LAB
def test_fragments_are_not_joined(network: Network) -> None:
    """Joined fragments would differ from the packets at a point with one ring."""
    sources = [opened(network, cores, 100 * MS) for cores in (1, 2)]
    datagram = udp(bytes(range(128)), (1000, 2000))
    with network.inside(flood.SOURCE):
        out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    out.bind((flood.SINK, 0))
    with out:
        for ident in range(1, 21):
            out.send(ethernet(ipv4(datagram[:64], 17, ident=ident, fragment=0x2000)))
            out.send(ethernet(ipv4(datagram[64:], 17, ident=ident, fragment=64 // 8)))
    found = []
    for source in sources:
        source.stop()
        found.append(Counter(number for packets in source for number in packets.packet_id.tolist()))
        source.close()
    assert found[0] == found[1]
    assert found[0].total() == 40


@IN_LAB
def test_a_flood_over_two_cores_is_accounted_for(network: Network, tmp_path: Path) -> None:
    """Small rings that are not read at first: dropped packets are counted."""
    began_ns = time.time_ns()
    source = opened(network, 2, 100 * MS, ring_bytes=1 << 19)
    sent, _ = flood.result(flood.start(network, 60_000, None, tmp_path / "flood.txt").finish())
    source.stop()
    seen = sum(map(len, source))
    known = source.statistics
    assert known.received + known.dropped == sent
    assert known.dropped > 5_000
    assert seen == known.packets == known.received
    now_ns = time.time_ns()
    assert source.dropped_during(Interval(began_ns, now_ns)) == known.dropped
    source.close()


@IN_LAB
def test_an_interface_that_disappears_ends_all_rings(network: Network) -> None:
    source = opened(network, 2, S)
    network.ip(flood.SINK, "link set source down")
    with pytest.raises(Exception, match="source: the interface went down or has gone"):
        for _ in source:
            pass
    source.close()


@IN_LAB
def test_no_thread_of_an_agent_or_a_watch_keeps_a_capability(network: Network, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sesame")
    cores = str(min(2, len(os.sched_getaffinity(0))))
    agent = ["agent", "--point", "p", "--interface", flood.SOURCE, "--cores", cores, "--interval", "100ms"]
    agent += ["--collector", "http://127.0.0.1:9", "--token-file", str(tmp_path / "token")]
    agent += ["--spool", str(tmp_path / "spool")]
    watch = ["watch", flood.SOURCE, "rtt", "--cores", cores, "--interval", "100ms"]
    for command, ready in ((agent, "listening at"), (watch, "dropped")):
        process = network.start(flood.SINK, [*WIRELAG, *command], tmp_path / f"{command[0]}.txt")
        process.wait_for_line(ready)
        if command is agent:
            process.wait_for_line("messages wait on disk")
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        assert len(tasks) >= 1 + int(cores)
        for task in tasks:
            status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            held = {name: int(status[name], 16) for name in ("CapEff", "CapPrm", "CapAmb")}
            assert not any(held.values()), (command[0], status["Name"], held)
            assert status["NoNewPrivs"].strip() == "1"
        process.stop(signal.SIGTERM)
        assert "Traceback" not in process.said()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["watch", "lo", "rtt", "--cores", "9999"], "--cores"),
        (["agent", "--point", "p", "--interface", "lo", "--cores", "9999", "--check"], "is out of range: 1 to"),
        (["agent", "--point", "p", "--interface", "lo", "--cores", "0", "--check"], "is out of range: 1 to"),
        (
            ["agent", "--point", "p", "--interface", "lo", "--cores", "2", "--estimator", "lda", "--check"],
            "needs intervals cut by the clock",
        ),
    ],
)
def test_an_impossible_number_of_cores_is_one_line(words: list[str], says: str) -> None:
    if "2" in words and len(os.sched_getaffinity(0)) < 2:
        pytest.skip(needs.TWO_CPUS)
    ran = wirelag(*words, code=2)
    assert says in ran.stderr.splitlines()[-1]
