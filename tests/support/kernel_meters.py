"""Packets for meters in the kernel, as frames of a test run and as rows, and synopses that must be equal."""

import random
from pathlib import Path

import numpy as np

from tests.support.captures import capture_paths, damaged, packets, pcap, plain_bytes, random_frame
from tests.support.kernel_frames import tcp
from wirelag.capture.pcap import CaptureFile
from wirelag.estimators.lda import LdaSynopsis
from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import split
from wirelag.packets.packet_id import PacketId
from wirelag.synopses.samples import LEGS, Samples

Sent = tuple[int, bytes]  # a time and a frame
Pieces = list[tuple[Interval, PacketBatch]]

SHORTEST, LONGEST = 14, 3400  # accepted by a test run
XDP_PASS = 2
BEGIN_NS, LONGEST_NS = 1_700_000_100 * 10**9, 10**10


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


def real(whole: bool, *rooms: str) -> list[Sent]:
    """Packets of real captures: many of all, or a few of small ones."""
    paths = capture_paths(*rooms)
    if whole:
        return in_order(*(captured(path, 5000) for path in paths))
    small = [path for path in paths if path.stat().st_size < 250_000]
    return in_order(*(captured(path, 60) for path in small[:: max(1, len(small) // 8)]))
