"""Reference packets: written ones are read back from captures; other packets are ignored."""

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wirelag
from tests.support.effort import examples
from wirelag.capture.writer import CaptureWriter
from wirelag.packets import stamp
from wirelag.packets.batch import Kind, PacketBatch
from wirelag.packets.stamp import NONE
from wirelag.sim.queue import QueueScenario, run
from wirelag.sim.queue_frames import downstream_frames, upstream_frames

NOW_NS = 1_767_225_600_123_456_789


def frame(payload: bytes, src_port: int = 50_000, dst_port: int = 862, claimed: int | None = None) -> bytes:
    """Ethernet, IPv4, UDP; `claimed` bytes of payload according to the headers."""
    size = len(payload) if claimed is None else claimed
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 28 + size, 1, 0x4000, 60, 17, 0, 0x0A000001, 0x0A000002)
    return bytes(12) + b"\x08\x00" + ip + struct.pack(">HHHH", src_port, dst_port, 8 + size, 0) + payload


def read_back(path: Path, frames: Iterable[bytes], snaplen: int = 65_535, time_ns: int = NOW_NS) -> PacketBatch:
    held = list(frames)
    captured = np.array([min(len(one), snaplen) for one in held], np.int64)
    buffer = np.frombuffer(b"".join(one[:snaplen] for one in held), np.uint8)
    wire = np.array([len(one) for one in held], np.int64)
    with CaptureWriter(str(path), snaplen) as writer:
        writer.write(np.full(len(held), time_ns), buffer, np.cumsum(captured) - captured, captured, wire)
    return PacketBatch.concatenate(list(wirelag.read(str(path))))


def parsed(path: Path, frames: Iterable[bytes], snaplen: int = 65_535, time_ns: int = NOW_NS) -> stamp.Stamps:
    packets = read_back(path, frames, snaplen, time_ns)
    return stamp.parse(packets, np.arange(len(packets)))


def said(stamps: stamp.Stamps) -> list[tuple[int, int, int, int]]:
    columns = (stamps.sequence, stamps.sent_ns, stamps.previous_sent_ns, stamps.previous_id)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_the_bytes_follow_the_standard() -> None:
    made = stamp.payload(0xA1B2C3D4, NOW_NS, (NOW_NS - 1_500, 0x1122334455667788))
    seconds, ns = divmod(NOW_NS, 10**9)
    standard = struct.pack(">IIIH30x", 0xA1B2C3D4, seconds, ns, 0x4001)
    assert made == standard + b"WLR1" + struct.pack(">IIQ", *divmod(NOW_NS - 1_500, 10**9), 0x1122334455667788)
    assert (len(standard), len(made)) == (44, 64)
    assert stamp.payload(1, NOW_NS)[44:] == b"WLR1" + bytes(16)


def test_written_packets_are_read(tmp_path: Path) -> None:
    wanted = [
        (0, NOW_NS - 5_000, NOW_NS - 6_000, 7),
        (2**32 - 1, NOW_NS - 10**9, NOW_NS - 2 * 10**9, 2**64 - 1),
        (5, NOW_NS + 999, NONE, 0),
    ]
    payloads = [
        stamp.payload(sequence, sent_ns, None if before_ns == NONE else (before_ns, before_id))
        for sequence, sent_ns, before_ns, before_id in wanted
    ]
    assert said(parsed(tmp_path / "a.pcap", map(frame, payloads))) == wanted
    assert said(parsed(tmp_path / "a.pcapng", map(frame, payloads))) == wanted


def test_only_requested_rows_are_read(tmp_path: Path) -> None:
    other = frame(b"hello", dst_port=5_000)
    frames = [other, frame(stamp.payload(1, NOW_NS)), other, frame(stamp.payload(2, NOW_NS, (NOW_NS - 9, 8)))]
    packets = read_back(tmp_path / "a.pcap", frames)
    rows = np.flatnonzero(packets.of_kind(Kind.STAMP))
    assert said(stamp.parse(packets, rows)) == [(1, NOW_NS, NONE, 0), (2, NOW_NS, NOW_NS - 9, 8)]
    assert len(stamp.parse(packets, rows[:0])) == 0
    assert len(stamp.parse(PacketBatch.empty(), rows[:0])) == 0


def test_other_senders_use_ntp(tmp_path: Path) -> None:
    seconds, ns = divmod(NOW_NS, 10**9)
    fraction = round(ns * 2**32 / 10**9)
    foreign = struct.pack(">IIIH30x", 9, seconds + 2_208_988_800, fraction, 0x8001)
    assert said(parsed(tmp_path / "a.pcap", [frame(foreign)])) == [(9, NOW_NS, NONE, 0)]
    # the last half ns of a second rounds up into the next one
    last = struct.pack(">IIIH30x", 9, seconds + 2_208_988_800, 2**32 - 1, 0x0001)
    assert said(parsed(tmp_path / "b.pcap", [frame(last)])) == [(9, (seconds + 1) * 10**9, NONE, 0)]


@pytest.mark.parametrize("year_ns", [2_085_978_496 * 10**9, 4_294_967_296 * 10**9 - 1])
def test_wrapped_timestamps_are_near_the_capture(tmp_path: Path, year_ns: int) -> None:
    # NTP's seconds wrap in 2036, PTP's in 2106; pcapng holds times after both.
    for i, sent_ns in enumerate((year_ns - 3 * 10**9, year_ns + 3 * 10**9)):
        seconds, ns = divmod(sent_ns, 10**9)
        ntp = struct.pack(">IIIH30x", 1, (seconds + 2_208_988_800) % 2**32, round(ns * 2**32 / 10**9) % 2**32, 1)
        frames = [frame(ntp), frame(stamp.payload(2, sent_ns))]
        stamps = parsed(tmp_path / f"{i}.pcapng", frames, time_ns=year_ns)
        assert abs(int(stamps.sent_ns[0]) - sent_ns) <= 10**9 * (ns > 999_999_999)
        assert stamps.sent_ns[1] == sent_ns


def test_foreign_and_forged_packets_are_ignored(tmp_path: Path) -> None:
    good = stamp.payload(3, NOW_NS, (NOW_NS - 9, 8))
    impossible = good[:8] + struct.pack(">I", 10**9) + good[12:]
    late = good[:52] + struct.pack(">I", 2**32 - 1) + good[56:]
    frames = {
        "answer": frame(good, 862, 50_000),
        "too short for a sender": frame(good[:43]),
        "ns beyond a second": frame(impossible),
        "claims to be shorter": frame(good, claimed=43),
    }
    for name, one in frames.items():
        assert said(parsed(tmp_path / f"{name}.pcap", [one]))[0][1:] == (NONE, NONE, 0), name
    silent = {
        "other padding": frame(good[:44] + b"WLR2" + good[48:]),
        "ntp before our padding": frame(good[:12] + b"\x00\x01" + good[14:]),
        "previous ns beyond a second": frame(late),
        "the standard's 44 bytes": frame(good[:44]),
        "63 bytes": frame(good[:63]),
    }
    for name, one in silent.items():
        assert said(parsed(tmp_path / f"{name}.pcap", [one]))[0][2:] == (NONE, 0), name


@pytest.mark.parametrize("snaplen", range(42, 107))
def test_any_snap_length(tmp_path: Path, snaplen: int) -> None:
    stamps = parsed(tmp_path / "a.pcap", [frame(stamp.payload(3, NOW_NS, (NOW_NS - 9, 8)))] * 3, snaplen)
    wanted = (
        (0, NONE, NONE, 0) if snaplen < 56 else (3, NOW_NS, NONE, 0) if snaplen < 106 else (3, NOW_NS, NOW_NS - 9, 8)
    )
    assert said(stamps) == [wanted] * 3


@examples(100)
@given(payloads=st.lists(st.binary(max_size=80), min_size=1, max_size=20), port=st.sampled_from([862, 50_862]))
def test_random_bytes_are_accepted(tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], port: int) -> None:
    path = tmp_path_factory.mktemp("any") / "a.pcap"
    stamps = parsed(path, [frame(payload, 862, port) for payload in payloads])
    for payload, (_, sent_ns, before_ns, before_id) in zip(payloads, said(stamps), strict=True):
        assert sent_ns == NONE or (len(payload) >= 44 and port == 862)
        assert before_ns == NONE or payload[44:48] == b"WLR1"
        assert before_id == 0 or before_ns != NONE


def test_many_at_once_equal_one_by_one() -> None:
    rng = np.random.default_rng(1)
    sequence = rng.integers(0, 2**32, 500, dtype=np.uint32)
    time_ns = NOW_NS + rng.integers(-(10**12), 10**12, 500)
    before_ns = np.where(rng.random(500) < 0.2, NONE, time_ns - rng.integers(0, 10**6, 500))
    before_id = rng.integers(0, 2**64, 500, dtype=np.uint64)
    made = stamp.payloads(sequence, time_ns, before_ns, before_id)
    for i in range(500):
        before = None if before_ns[i] == NONE else (int(before_ns[i]), int(before_id[i]))
        assert made[i].tobytes() == stamp.payload(int(sequence[i]), int(time_ns[i]), before)


# ---- captures of the simulated queue ----


def test_captures_of_the_queue(tmp_path: Path) -> None:
    simulation = run(QueueScenario(0.95, seconds=0.4, limit=300, red=None))
    points = {
        "up": upstream_frames(simulation),
        "both": upstream_frames(simulation, references=True),
        "down": downstream_frames(simulation),
    }
    seen = {}
    for name, batches in points.items():
        path = tmp_path / f"{name}.pcap"
        with CaptureWriter(str(path), 128) as writer:
            for frames in batches:
                writer.write(frames.time_ns, frames.buffer, frames.offset, frames.captured, frames.wire)
        seen[name] = PacketBatch.concatenate(list(wirelag.read(str(path))))
    up, both, down = seen["up"], seen["both"], seen["down"]
    assert len(up) == len(simulation.bursts)
    assert np.array_equal(up.wire_length, simulation.bursts.size + 14)
    assert len(np.unique(up.packet_id)) == len(up)
    assert len(np.unique(up.flow_key)) == len(np.unique(simulation.bursts.flow))
    assert len(both) == len(up) + len(simulation.reference_sent_ns)

    receiver = simulation.receiver()
    marked = down.of_kind(Kind.STAMP)
    assert np.array_equal(down.time_ns, receiver.time_ns)
    assert np.array_equal(marked, receiver.is_reference == 1)
    assert np.array_equal(down.wire_length, receiver.size + 14)
    assert np.array_equal(down.packet_id[~marked], up.packet_id[receiver.number[~marked]])
    stamps = stamp.parse(down, np.flatnonzero(marked))
    assert np.array_equal(stamps.sequence, receiver.number[marked])
    assert np.array_equal(stamps.sent_ns, receiver.sent_ns[marked])
    assert np.array_equal(stamps.previous_sent_ns, receiver.previous_sent_ns[marked])
    behind = simulation.reference_behind[receiver.number[marked]]
    assert np.array_equal(stamps.previous_id, up.packet_id[behind])
    last = np.maximum.accumulate(np.where(marked, -1, np.arange(len(down))))[marked]
    assert np.array_equal(stamps.previous_id == down.packet_id[last], receiver.previous_matches[marked] == 1)
    assert 0 < simulation.loss < 0.5
