"""Matching: the kernel equals its twin, sample for sample, and tshark where both follow the same rule."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import match as naive
from tests.support import captures as frames
from tests.support.captures import capture_paths
from tests.support.effort import examples, scaled
from wirelag import _kernels
from wirelag.capture.pcap import CaptureFile
from wirelag.errors import WirelagError
from wirelag.packets.batch import COLUMNS, Flag, Kind, PacketBatch

EVERYTHING = [1 << bit | 0xF0 for bit in range(4)]  # one TCP matcher at a time, all others on


def samples(kernel: _kernels.Match, packets: PacketBatch) -> list[naive.Sample]:
    room = [np.empty(len(packets), dtype) for dtype in (np.uint32, np.int64, np.uint8, np.uint8)]
    count = kernel.observe(packets, *room)  # type: ignore[arg-type]
    return [naive.Sample(*row) for row in zip(*(column[:count].tolist() for column in room), strict=True)]


def kernel_match(matchers: int, first_copy: bool = False) -> _kernels.Match:
    return _kernels.Match(matchers, first_copy, connections=1 << 16, segments=1 << 18, waiting=1 << 18)


# Few flows and few numbers, near the point where they wrap: packets that match each other.
numbers = st.integers(-6, 6).map(lambda n: n % 2**32)
packet = st.fixed_dictionaries(
    {
        "time_ns": st.sampled_from([*range(41), 2**43, 2**43 + 40]),
        "flow": st.integers(0, 1),
        "reverse": st.booleans(),
        "kind": st.sampled_from([Kind.TCP] * 8 + [Kind.DNS, Kind.NTP, Kind.ICMP, Kind.QUIC, Kind.UDP]),
        "message": st.sampled_from([16, 16, 16, 24, 2, 18, 17, 4, 20, 0, 1, 3, 8, 64, 96, 128, 129, 130, 255]),
        "transaction": st.sampled_from([0, 0, 0, 1, 2, (2**32 - 3) << 32 | 2, 1 << 32 | 4]),
        "payload_length": st.sampled_from([0, 0, 1, 1, 2, 3, 5]),
        "seq": numbers,
        "ack": numbers,
        "tsval": numbers,
        "tsecr": numbers,
        "ports": st.sampled_from([(1000, 80), (80, 1000), (7, 7)]),
        "window": st.sampled_from([0, 1, 100]),
        "ip_id": st.integers(0, 2),
        "flags": st.sampled_from([Flag.TIMESTAMPS] * 5 + [Flag(0), Flag.SHORT, Flag.LATER]),
        "protocol": st.sampled_from([1, 58]),
    }
)


def batch_of(rows: list[dict]) -> PacketBatch:
    columns = {name: np.zeros((len(rows), width) if width > 1 else len(rows), dtype) for name, dtype, width in COLUMNS}
    for i, row in enumerate(rows):
        for name in columns:
            if name in row:
                columns[name][i] = row[name]
        # A flow key has one protocol; QUIC is recognised packet by packet.
        columns["flow_key"][i] = row["flow"] + 2 * (Kind.QUIC if row["kind"] == Kind.UDP else row["kind"])
        columns["flags"][i] = row["flags"] | (Flag.REVERSE if row["reverse"] else 0)
        columns["src_port"][i], columns["dst_port"][i] = row["ports"]
    return PacketBatch(columns)


@examples(400)
@given(st.lists(packet, max_size=60), st.sampled_from(EVERYTHING), st.booleans(), st.integers(0, 60))
def test_kernel_and_twin_agree_on_any_packets_and_any_split(
    rows: list[dict], matchers: int, first_copy: bool, cut: int
) -> None:
    packets = batch_of(rows)
    twin, kernel = naive.Match(matchers, first_copy), kernel_match(matchers, first_copy)
    expected = twin.observe(packets)
    first, second = samples(kernel, packets[:cut]), samples(kernel, packets[cut:])
    assert first + [sample._replace(row=sample.row + min(cut, len(rows))) for sample in second] == expected
    for name in ("evicted", "backwards", "too_long", "again"):
        assert getattr(kernel, name) == getattr(twin, name), name


@pytest.mark.every(2)
@pytest.mark.parametrize("matchers", EVERYTHING)
def test_kernel_and_twin_agree_on_real_captures(shared_data: Path, matchers: int) -> None:
    compared = 0
    for path in capture_paths("rtt", "hidden", "malformed"):
        if path.stat().st_size > scaled(400_000):
            continue
        twin, kernel = naive.Match(matchers), kernel_match(matchers)
        try:
            for packets in CaptureFile(str(path)):
                expected = twin.observe(packets)
                assert samples(kernel, packets) == expected, path
                compared += len(expected)
        except WirelagError:
            continue
    assert compared > scaled(800)


def sent(count: int) -> list[dict]:
    """Segments of ten bytes, one each nanosecond."""
    first = {"time_ns": 0, "flow": 0, "reverse": False, "kind": Kind.TCP, "message": 16, "transaction": 0,
             "payload_length": 10, "seq": 0, "ack": 0, "tsval": 0, "tsecr": 0, "ports": (1000, 80), "window": 9,
             "ip_id": 0, "flags": Flag(0), "protocol": 6}  # fmt: skip
    return [first | {"time_ns": i, "seq": 10 * i} for i in range(count)]


def acknowledged(count: int, time_ns: int, sack: tuple[int, int] = (0, 0)) -> dict:
    """The acknowledgement of so many of these, and a block that came behind them."""
    left, right = (10 * edge for edge in sack)
    return sent(1)[0] | {"time_ns": time_ns, "reverse": True, "payload_length": 0, "ack": 10 * count,
                         "transaction": left << 32 | right}  # fmt: skip


def test_more_segments_than_are_kept_make_room() -> None:
    packets = batch_of([*sent(65_600), acknowledged(65_590, 80_000), acknowledged(65_600, 90_000)])
    twin, kernel = naive.Match(1), _kernels.Match(1, False, connections=1 << 16, segments=1 << 20, waiting=1 << 16)
    expected = [(65_600, 80_000 - 65_589, 0, 0), (65_601, 90_000 - 65_599, 0, 0)]
    assert samples(kernel, packets) == twin.observe(packets) == expected
    assert kernel.evicted == twin.evicted == 65_535


def test_a_long_fat_path_is_measured() -> None:
    """Far more in flight than one packet may look at: each acknowledgement gives a sample."""
    far = 5_000
    rows = sent(far)
    for i, one in enumerate(sent(3 * far)[far:]):
        rows += [acknowledged(i + 1, far + i), one | {"time_ns": far + i}]
    packets = batch_of(rows)
    twin, kernel = naive.Match(1), kernel_match(1)
    found = samples(kernel, packets)
    assert found == twin.observe(packets)
    assert {sample.delay_ns for sample in found} == {far}
    assert (len(found), kernel.evicted) == (2 * far, 0)


@pytest.mark.parametrize("first_copy", [False, True])
@pytest.mark.parametrize(
    ("last", "timed"), [(1_024, 1), (1_025, 0)], ids=["within what is looked at", "one segment farther"]
)
@pytest.mark.parametrize("late", ["sack", "copy"])
def test_what_lies_too_far_back_to_look_at_is_given_up(late: str, last: int, timed: int, first_copy: bool) -> None:
    """A block that was received, or a copy, of the segment with this number; then all but the last is acknowledged."""
    again = {"sack": acknowledged(0, 5_000, (last - 1, last)), "copy": sent(last)[-1] | {"time_ns": 5_000}}[late]
    packets = batch_of([*sent(2_000), again, acknowledged(1, 6_000), acknowledged(2_000, 7_000)])
    twin, kernel = naive.Match(1, first_copy), kernel_match(1, first_copy)
    found = samples(kernel, packets)
    assert found == twin.observe(packets)
    assert kernel.evicted == twin.evicted == (0 if timed else 2_000)
    assert [sample.row for sample in found].count(2_001) == timed


def test_a_flood_stays_in_its_memory_and_is_counted() -> None:
    """Random SYNs far beyond the memory: it does not grow, and evictions are counted."""
    rng = np.random.default_rng(1)
    kernel = _kernels.Match(1, False, connections=1 << 10, segments=1 << 10, waiting=1 << 10)
    template = batch_of([{"time_ns": 0, "flow": 0, "reverse": False, "kind": Kind.TCP, "message": 2, "flags": Flag(0),
                          "ports": (1, 2)}] * 8_000)  # fmt: skip
    for _ in range(10):
        template.flow_key[:] = rng.integers(0, 2**64, 8_000, dtype=np.uint64)
        assert samples(kernel, template) == []
    assert kernel.evicted >= 80_000 - (1 << 10)


def handshakes(keys: np.ndarray, message: int, time_ns: int) -> PacketBatch:
    """One SYN (2) or SYN/ACK (18) of each connection."""
    first = {"time_ns": time_ns, "flow": 0, "reverse": message == 18, "kind": Kind.TCP, "message": message,
             "flags": Flag(0), "ack": 1, "ports": (1000, 80)}  # fmt: skip
    packets = batch_of([first] * len(keys))
    packets.flow_key[:] = keys
    return packets


@pytest.mark.parametrize(("connections", "waiting"), [(4_000, 1 << 17), (20_000, 1 << 11)])
def test_tables_that_grow_lose_nothing(connections: int, waiting: int) -> None:
    """Far more connections than at first, one with key 0: in eight tables, and in one that outgrows small pages."""
    rng = np.random.default_rng(2)
    keys = np.append(rng.integers(0, 2**64, connections, dtype=np.uint64), np.uint64(0))
    kernel = _kernels.Match(1, False, connections=1 << 17, segments=1 << 17, waiting=waiting)
    twin = naive.Match(1)
    for packets in (handshakes(keys, 2, 5), handshakes(rng.permutation(keys), 18, 9)):
        assert samples(kernel, packets) == twin.observe(packets)
    assert kernel.evicted == 0


def test_a_full_set_drops_the_connection_used_longest_ago() -> None:
    kernel = _kernels.Match(1, False, connections=1 << 10, segments=1 << 10, waiting=1 << 10)
    keys = np.arange(1, 13, dtype=np.uint64) << np.uint64(32)  # of one set, whatever the size of the table
    samples(kernel, handshakes(keys, 2, 5))
    answered = samples(kernel, handshakes(keys[::-1], 18, 9))
    assert [sample.row for sample in answered] == list(range(8))  # the last eight that asked
    assert kernel.evicted == 8  # four requests that waited, and as many by the answers to these


def test_first_copies_equal_tshark_s(shared_data: Path, tool: object) -> None:
    """tshark's rule, packet by packet, in whole captures without reused ports."""
    tool("tshark")  # type: ignore[operator]
    path = shared_data / "rtt/spindump/trace_tcp_medium_snap80.pcap.gz"
    words = ["-Y", "tcp.analysis.ack_rtt", "-T", "fields", "-e", "frame.number", "-e", "tcp.analysis.ack_rtt"]
    ran = subprocess.run(["tshark", "-r", path, *words], capture_output=True, text=True, check=True)
    rows = [line.split() for line in ran.stdout.splitlines()]
    theirs = {int(number): round(float(rtt) * 1e9) for number, rtt in rows}
    kernel, ours = kernel_match(1, first_copy=True), {}
    for packets in CaptureFile(str(path)):
        ours |= {int(packets.number[sample.row]): sample.delay_ns for sample in samples(kernel, packets)}
    assert ours == theirs


def named(shared_data: Path, ending: str) -> Path:
    (path,) = (shared_data / "wild").glob(f"*__{ending}")
    return path


def by_number(path: Path, **settings: bool) -> dict[int, int]:
    """The delay that each packet completes."""
    kernel, found = kernel_match(1 | 0xF0, **settings), {}
    for packets in CaptureFile(str(path)):
        found |= {int(packets.number[sample.row]): sample.delay_ns for sample in samples(kernel, packets)}
    return found


def test_a_reset_ends_what_is_in_flight(shared_data: Path) -> None:
    """Packet 3890 resets the connection; 3891, an old packet, acknowledges data sent a second before it."""
    found = by_number(named(shared_data, "c37_pmu_clean.pcap.gz"))
    assert 3891 not in found
    assert len(found) == 2_369
    assert max(found.values()) < 20_000_000


def test_a_connection_with_the_number_of_an_earlier_one_is_new(shared_data: Path) -> None:
    """Packets 5, 337 and 462 are SYNs with the same sequence number; the first two connections are reset."""
    found = by_number(named(shared_data, "my-firewall__tuya-motion.pcap.gz"))
    assert (found[6], found[338]) == (13_182_000, 533_000)
    assert (found[463], found[464], found[466]) == (12_613_000, 127_941_000, 744_000)
    assert len(found) == 131


def quic(first: int, ports: tuple[int, int]) -> bytes:
    """A frame with a QUIC packet: a long header of version 1, or a short one."""
    header = bytes((first,)) + (b"\0\0\0\1\x08" + bytes(8) if first & 0x80 else bytes(8))
    return frames.ethernet(frames.ipv4(frames.udp(header + bytes(20), ports), 17))


@pytest.mark.parametrize(("greeting", "expected"), [(0xC0, [40_000, 20_000]), (0x40, [])])
def test_the_spin_bit_of_any_port_once_a_long_header_was_seen(
    tmp_path: Path, greeting: int, expected: list[int]
) -> None:
    firsts = [greeting, 0x40, 0x60, 0x60, 0x40, 0x60]
    path = tmp_path / "spin.pcap"
    path.write_bytes(frames.pcap([(20 * i, quic(first, (40_000, 6122)), 70) for i, first in enumerate(firsts)]))
    found = by_number(path)
    assert [found[number] for number in sorted(found)] == expected


def test_delays_that_no_bin_holds_are_counted_and_left_out(shared_data: Path) -> None:
    """Packet 2 of this capture is 48 years late."""
    path = named(shared_data, "imap2.pcap.gz")
    capture, kernel = CaptureFile(str(path)), kernel_match(1)
    found = [sample.delay_ns for packets in capture for sample in samples(kernel, packets)]
    assert (len(found), kernel.backwards, kernel.too_long) == (19, 1, 1)
    assert max(found) < 100_000_000
    assert capture.statistics.jumps == 2
    (warning,) = capture.warnings
    assert "more than a day apart, 2 times" in warning
