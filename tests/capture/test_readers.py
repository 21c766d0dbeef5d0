"""Capture files: every packet of every readable file, the readable part of damaged ones, exact times."""

import gzip
import io
import itertools
import json
import lzma
import os
import random
import re
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tests.support.captures import (
    PCAP_MAGICS,
    block,
    capture_name,
    capture_paths,
    enhanced,
    ethernet,
    interface,
    ipv4,
    packets,
    pcap,
    plain_bytes,
    section,
    tcp,
    time_ns,
    udp,
)
from tests.support.effort import FULL
from tests.support.time_limit import time_limit
from wirelag.capture.pcap import CaptureFile
from wirelag.errors import WirelagError
from wirelag.packets.batch import COLUMNS, PacketBatch

FRAME = ethernet(ipv4(tcp(b"payload"), 6))
MALFORMED_LIMIT_KIB = 200 * 1024
FILE_LIMIT_S = 120  # a file that takes longer hangs


def read(path: Path) -> tuple[PacketBatch, CaptureFile]:
    capture = CaptureFile(str(path))
    with time_limit(FILE_LIMIT_S):
        return PacketBatch.concatenate(list(capture)), capture


def attempt(path: Path) -> CaptureFile | str:
    """The capture, read to its end, or the error message."""
    try:
        return read(path)[1]
    except WirelagError as error:
        return str(error)


def same(one: PacketBatch, other: PacketBatch) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name, _, _ in COLUMNS if name != "source")


@pytest.fixture
def save(tmp_path: Path) -> Callable[[bytes], Path]:
    """Write bytes to a new file."""
    numbers = itertools.count()

    def write(data: bytes) -> Path:
        path = tmp_path / f"capture{next(numbers)}"
        path.write_bytes(data)
        return path

    return write


def sample_records(n: int = 300, seed: int = 4) -> list[tuple[int, bytes, int]]:
    """Records with times, lengths and content of many sizes."""
    rng = random.Random(seed)
    frames = (
        ethernet(ipv4(udp(rng.randbytes(rng.randrange(200)), (i % 65536, 9)), 17, ident=i % 65536)) for i in range(n)
    )
    return [
        (1_700_000_000_000_000 + i * 1000 + rng.randrange(999), frame, len(frame) + rng.choice((0, 0, 4)))
        for i, frame in enumerate(frames)
    ]


def sample_pcapng(order: str = "<", n: int = 300) -> bytes:
    records = sample_records(n)
    blocks = [enhanced(order, frame, stamp, wire=wire) for stamp, frame, wire in records]
    blocks[n // 2 : n // 2] = [section(order), interface(order), block(order, 0xBAD, b"a custom block")]
    return section(order) + interface(order) + b"".join(blocks)


# ---- every file of the shared data ----


@pytest.fixture(scope="module")
def counted(shared_data: Path, tool: Callable[[str], str]) -> tuple[dict[str, tuple[str, int]], dict[str, int]]:
    """By name: format and packets of whole files, and packets before the damage of others, according to capinfos."""
    names = sorted(str(path.relative_to(shared_data)) for path in shared_data.rglob("*") if path.is_file())
    done = subprocess.run(
        [tool("capinfos"), "-TMrct", *names], cwd=shared_data, capture_output=True, text=True, check=False
    )
    rows = (line.split("\t") for line in done.stdout.splitlines())
    whole = {name: (kind, int(count)) for name, kind, count in rows}
    damaged = re.findall(r'error occurred after reading (\d+) packets from "(.*)"', done.stderr)
    return whole, {name: int(count) for count, name in damaged}


def libpcap_count(tcpdump: str, path: Path) -> int:
    done = subprocess.run([tcpdump, "-nntqr", path], capture_output=True, check=False)
    return done.stdout.count(b"\n")


def test_every_file_gives_the_count_of_capinfos(
    shared_data: Path, counted: tuple[dict[str, tuple[str, int]], dict[str, int]], tool: Callable[[str], str]
) -> None:
    whole, damaged = counted
    read_files = 0
    for path in sorted(path for path in shared_data.rglob("*") if path.is_file()):
        name = str(path.relative_to(shared_data))
        kind, count = whole.get(name, ("", damaged.get(name, -1)))
        capture = attempt(path)
        if isinstance(capture, str):
            # Not a capture, or a format that is not supported: capinfos sees no pcap either.
            assert "pcap" not in kind, name
            assert capture.startswith(f"{path}: "), name
            assert "\n" not in capture, name
            continue
        read_files += 1
        found = capture.statistics.packets
        if name in damaged:
            assert capture.warnings, name
            # Wireshark sometimes takes damage for a variant of pcap; libpcap does not guess.
            assert found in (count, libpcap_count(tool("tcpdump"), path)), name
        elif not kind:
            # A link type that Wireshark does not know; its records are readable.
            assert found == sum(1 for _ in packets(plain_bytes(path))), name
            assert set(capture.statistics.skipped) == {"link_type"}, name
        else:
            others = [line for line in capture.warnings if "more than a day apart" not in line]  # merged captures
            assert (found, others) == (count, []), name
    assert read_files > 300


@pytest.mark.every(6)
@pytest.mark.parametrize("path", capture_paths("rtt", "hidden", "twopoint", "malformed"), ids=capture_name)
def test_rows_equal_the_records(path: Path) -> None:
    """Time, lengths and frame, compared with the plain reader."""
    try:
        batch, _ = read(path)
    except WirelagError:
        return  # an impossible header: see test_every_file_gives_the_count_of_capinfos
    records = list(packets(plain_bytes(path)))
    for row in range(0, len(batch), 1 if FULL else max(1, len(batch) // 1000)):
        record = records[int(batch.number[row]) - 1]
        assert (batch.time_ns[row], batch.wire_length[row]) == (record.time_ns, record.wire_length)
        assert batch.frame(row) == record.frame


def test_the_malformed_set_is_read_in_bounded_memory(shared_data: Path) -> None:
    """In a separate process with an alarm for each file; checks the peak of its memory."""
    script = f"""
import signal, sys
from wirelag.errors import WirelagError
from wirelag.capture.pcap import CaptureFile
for path in sys.argv[1:]:
    for tunnels in (False, True):
        signal.alarm({FILE_LIMIT_S})
        try:
            sum(len(batch) for batch in CaptureFile(path, tunnels=tunnels))
        except WirelagError as error:
            assert str(error).count("\\n") == 0
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""
    paths = sorted(str(path) for path in (shared_data / "malformed").rglob("*") if path.is_file())
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    peak_kib = int(done.stdout)
    print(f"peak memory over {len(paths)} malformed files: {peak_kib / 1024:.0f} MiB")
    assert peak_kib < MALFORMED_LIMIT_KIB


# ---- truncated files ----


def record_ends(data: bytes) -> set[int]:
    """Where a file may end without a cut record; in pcapng after any block."""
    ends, at = {24}, 24
    order = "<" if data[:4] == struct.pack("<I", 0xA1B2C3D4) else ">"
    pcapng = data.startswith(b"\x0a\x0d\x0d\x0a")
    if pcapng:
        ends, at, order = set(), 0, "<" if data[8:12] == b"\x4d\x3c\x2b\x1a" else ">"
    while at < len(data):
        at += (
            struct.unpack_from(order + "I", data, at + 4)[0]
            if pcapng
            else 16 + struct.unpack_from(order + "I", data, at + 8)[0]
        )
        ends.add(at)
    return ends


@pytest.mark.parametrize(
    "data",
    [pcap(sample_records()), pcap(sample_records(), order=">"), sample_pcapng("<"), sample_pcapng(">")],
    ids=["pcap<", "pcap>", "pcapng<", "pcapng>"],
)
def test_a_cut_capture_gives_the_packets_before_the_cut(data: bytes, save: Callable[[bytes], Path]) -> None:
    rng = random.Random(14)
    ends = record_ends(data)
    header = min(ends)
    for cut in [*rng.choices(range(1, len(data)), k=60), *rng.sample(sorted(ends), 10), *range(1, header + 2)]:
        path = save(data[:cut])
        if cut < header:
            with pytest.raises(WirelagError, match="too short for a capture"):
                read(path)
            continue
        batch, capture = read(path)
        expected = list(packets(data[:cut]))
        assert batch.time_ns.tolist() == [packet.time_ns for packet in expected]
        assert capture.statistics.packets == len(expected)
        if cut in ends:
            assert capture.warnings == []
        else:
            assert len(capture.warnings) == 1
            assert "in the middle of a record" in capture.warnings[0]
            assert f"byte {max(end for end in ends if end <= cut):,};" in capture.warnings[0]


@pytest.mark.parametrize(
    "path", [path for path in capture_paths("rtt", "hidden") if path.stat().st_size < 100_000], ids=capture_name
)
@pytest.mark.every(2)
def test_a_real_capture_that_is_cut(path: Path, save: Callable[[bytes], Path]) -> None:
    data = plain_bytes(path)
    for cut in random.Random(path.name).sample(range(300, len(data)), 5) if len(data) > 305 else []:
        capture = attempt(save(data[:cut]))
        if isinstance(capture, str):
            assert "too short" in capture  # pcapng: inside a long section header
        else:
            assert capture.statistics.packets == sum(1 for _ in packets(data[:cut]))


def test_reading_stops_at_an_impossible_record(save: Callable[[bytes], Path]) -> None:
    good = pcap(sample_records(5))
    impossible = struct.pack("<IIII", 0, 0, 262145, 262145)
    batch, capture = read(save(good + impossible + bytes(262145)))
    assert len(batch) == 5
    assert len(capture.warnings) == 1
    assert f"at byte {len(good):,}" in capture.warnings[0]


def test_the_largest_possible_record_is_read(save: Callable[[bytes], Path]) -> None:
    frame = FRAME + bytes(262144 - len(FRAME))
    batch, capture = read(save(pcap([(1, FRAME, 60), (2, frame, len(frame)), (3, FRAME, 60)] * 20)))
    assert (len(batch), capture.warnings) == (60, [])
    assert batch.frame(1) == frame


# ---- formats ----


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("magic", PCAP_MAGICS)
@pytest.mark.parametrize("minor", [2, 3, 4])
def test_pcap_variants(order: str, magic: int, minor: int, save: Callable[[bytes], Path]) -> None:
    unit_ns = PCAP_MAGICS[magic][1]
    stamps = [0, 1, 10**9 // unit_ns - 1, (2**32 - 1) * (10**9 // unit_ns) + 999_999, 1_700_000_000_123_456]
    batch, capture = read(save(pcap([(stamp, FRAME, 1514) for stamp in stamps], order=order, magic=magic, minor=minor)))
    assert batch.time_ns.tolist() == [stamp * unit_ns for stamp in stamps]
    assert set(batch.wire_length.tolist()) == {1514}
    assert set(batch.captured_length.tolist()) == {len(FRAME)}
    assert batch.number.tolist() == [1, 2, 3, 4, 5]
    assert [batch.frame(row) for row in range(5)] == [FRAME] * 5
    assert (capture.statistics.format, capture.statistics.resolution_ns) == ("pcap", unit_ns)


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_blocks(order: str, save: Callable[[bytes], Path]) -> None:
    """All kinds of packet blocks, several interfaces and sections, byte order that changes between sections."""
    other = "<" if order == ">" else ">"
    obsolete = block(order, 2, struct.pack(order + "HHIIII", 1, 0, 0, 3_000_000, len(FRAME), 99) + FRAME)
    simple = block(order, 3, struct.pack(order + "I", len(FRAME)) + FRAME)
    data = section(order) + interface(order) + interface(order, 101, resolution=9)
    data += enhanced(order, FRAME, 1_000_000) + enhanced(order, FRAME[14:], 2_000_000_001, number=1) + obsolete + simple
    data += block(order, 5, bytes(20)) + block(order, 0x80000001, b"unknown")
    data += section(other) + interface(other, resolution=0x80 | 10) + enhanced(other, FRAME, 4 * 1024 + 512, wire=1500)
    batch, capture = read(save(data))
    # The obsolete block names interface 1, raw IP: an Ethernet header is not an IP header.
    assert batch.time_ns.tolist() == [10**9, 2 * 10**9 + 1, 4_500_000_000]
    assert batch.number.tolist() == [1, 2, 5]
    assert batch.wire_length.tolist() == [len(FRAME), len(FRAME) - 14, 1500]
    known = capture.statistics
    assert (known.format, known.packets, known.sections, known.interfaces) == ("pcapng", 5, 2, 3)
    assert known.skipped == {"malformed": 1, "no_timestamp": 1}
    assert known.links == {1: 3, 101: 2}
    assert capture.warnings == []


def test_a_packet_of_an_unknown_interface_stops_the_reading(save: Callable[[bytes], Path]) -> None:
    good = section() + interface() + enhanced("<", FRAME, 1)
    for bad in (enhanced("<", FRAME, 2, number=1), section() + enhanced("<", FRAME, 2)):
        batch, capture = read(save(good + bad + enhanced("<", FRAME, 3)))
        assert len(batch) == 1
        assert "interface" in capture.warnings[0]


@pytest.mark.usefixtures("shared_data")
def test_the_pcapng_conformance_set_is_the_same_in_both_byte_orders() -> None:
    paths = [path for path in capture_paths("malformed/pcapng-test-generator") if "output_be" in str(path)]
    assert len(paths) >= 18
    for path in paths:
        big, _ = read(path)
        little, _ = read(Path(str(path).replace("output_be", "output_le")))
        assert same(big, little), path


STAMPS = (
    0,
    1,
    999,
    1_700_000_000,
    1_700_000_000_123_456,
    1_700_000_000_123_456_789,
    2**63,
    2**64 - 1,
    0x0123456789ABCDEF,
)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "offset_s", [None, 0, 1, -1, 1_700_000_000, -(2**63), 2**63 - 1, 9_223_372_036, -9_223_372_036]
)
def test_times_are_exact(offset_s: int | None, save: Callable[[bytes], Path]) -> None:
    """Every if_tsresol, decimal and binary, and if_tsoffset, compared with fractions; rounded down to whole ns."""
    for resolution in range(256):
        blocks = [enhanced("<", FRAME, stamp) for stamp in STAMPS]
        batch, capture = read(save(section() + interface(resolution=resolution, offset_s=offset_s) + b"".join(blocks)))
        exact = [time_ns(stamp, resolution, offset_s or 0) for stamp in STAMPS]
        assert batch.time_ns.tolist() == [ns for ns in exact if ns is not None], resolution
        assert capture.statistics.skipped.get("no_timestamp", 0) == exact.count(None), resolution


# ---- compressed, piped, growing ----


def members(compress: Callable[[bytes], bytes], data: bytes) -> bytes:
    """Consecutive compressed pieces are one stream, as for the tools."""
    return compress(data[: len(data) // 2]) + compress(b"") + compress(data[len(data) // 2 :])


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "gzip with members": lambda data: members(gzip.compress, data),
    "gzip with padding": lambda data: gzip.compress(data) + bytes(512),
    "zstd": zstandard.compress,
    "zstd with frames": lambda data: members(zstandard.compress, data),
    "xz": lambda data: lzma.compress(data, preset=0),
    "xz with streams": lambda data: members(lambda piece: lzma.compress(piece, preset=0), data),
}


LARGE = pcap(sample_records(20_000))  # several blocks and batches


@pytest.mark.every(4)
@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressed_equals_plain(name: str, save: Callable[[bytes], Path]) -> None:
    plain, _ = read(save(LARGE))
    batch, capture = read(save(COMPRESSIONS[name](LARGE)))
    assert len(batch) == 20_000
    assert same(batch, plain)
    assert (capture.compression, capture.warnings) == (name.split()[0], [])
    assert capture.bytes_read == len(LARGE)
    assert batch.frame(19_999) == plain.frame(19_999)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["gzip", "zstd", "xz", "gzip with members"])
def test_compressed_and_cut_gives_the_decompressed_part(name: str, save: Callable[[bytes], Path]) -> None:
    whole = COMPRESSIONS[name](LARGE)
    rng = random.Random(name)
    for cut in [*rng.sample(range(len(whole) // 8, len(whole)), 5), len(whole) - 1]:
        batch, capture = read(save(whole[:cut]))
        expected = list(packets(decompressible(name, whole[:cut])))
        assert batch.time_ns.tolist() == [packet.time_ns for packet in expected]
        assert len(capture.warnings) == 1


def test_zstd_that_is_cut_at_the_end_of_a_record_is_reported(save: Callable[[bytes], Path]) -> None:
    data, compressor = pcap(sample_records(10)), zstandard.ZstdCompressor().compressobj()
    cut = compressor.compress(data) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    batch, capture = read(save(cut))
    assert len(batch) == 10
    assert capture.warnings


@pytest.mark.parametrize(
    "settings", [{}, {"write_checksum": True}, {"write_content_size": False}, {"level": 19}], ids=str
)
def test_whole_zstd_frames_give_no_warning_and_parts_do(
    save: Callable[[bytes], Path], settings: dict[str, int]
) -> None:
    """Several frames with a skippable one between them, records of all sizes, some of one repeated byte."""
    data = pcap(sample_records(3_000)) + pcap([(sample_records(3_000)[-1][0], bytes(200_000), 200_000)])[24:]
    compressor = zstandard.ZstdCompressor(**settings)
    halves = [compressor.compress(data[:100_000]), compressor.compress(data[100_000:])]
    skipped = b"\x5a\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"passing"
    whole = halves[0] + skipped + halves[1]
    capture = read(save(whole))[1]
    assert capture.statistics.packets == 3_001
    assert capture.warnings == []
    for missing in (1, 3, 5, len(halves[1]) // 2, len(halves[1]) + 3):
        assert read(save(whole[:-missing]))[1].warnings


def decompressible(name: str, data: bytes) -> bytes:
    """All that the standard library decompresses from truncated data."""
    if name == "xz":
        return lzma.LZMADecompressor().decompress(data)
    if name == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    plain = b""
    while data:
        decompressor = zlib.decompressobj(31)
        plain += decompressor.decompress(data)
        data = decompressor.unused_data
    return plain


def test_damaged_gzip_gives_the_part_before(save: Callable[[bytes], Path]) -> None:
    whole = bytearray(gzip.compress(LARGE))
    middle = len(whole) // 2
    whole[middle : middle + 64] = bytes(64)
    batch, capture = read(save(bytes(whole)))
    good = [packet.time_ns for packet in packets(LARGE)]
    common = next(
        (i for i, (one, other) in enumerate(zip(batch.time_ns.tolist(), good, strict=False)) if one != other),
        len(batch),
    )
    assert common > len(good) // 3
    assert capture.warnings


READ_STANDARD_INPUT = """
import json
from wirelag.capture.pcap import CaptureFile
capture = CaptureFile("-")
times = [time for batch in capture for time in batch.time_ns.tolist()]
print(json.dumps([times, capture.warnings, capture.name]))
"""


@pytest.mark.every(4)
@pytest.mark.parametrize("name", ["plain", "gzip", "zstd"])
@pytest.mark.parametrize("piped", [False, True], ids=["file", "pipe"])
def test_standard_input(name: str, piped: bool, save: Callable[[bytes], Path]) -> None:
    data = COMPRESSIONS[name](LARGE) if name in COMPRESSIONS else LARGE
    command = [sys.executable, "-W", "error", "-c", READ_STANDARD_INPUT]
    if piped:
        done = subprocess.run(command, input=data, capture_output=True, check=True)
    else:
        with save(data).open("rb") as file:
            done = subprocess.run(command, stdin=file, capture_output=True, check=True)
    times, warnings, said = json.loads(done.stdout)
    assert times == [packet.time_ns for packet in packets(LARGE)]
    assert (warnings, said) == ([], "standard input")


def test_named_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(LARGE,))
    writer.start()
    batch, capture = read(path)
    writer.join()
    assert (len(batch), capture.warnings) == (20_000, [])


GROW = """
import sys
pieces = open(sys.argv[1], "rb").read()
with open(sys.argv[2], "ab", buffering=0) as grown:
    sys.stdin.read(1)  # the reader has seen what was there at first
    at = len(open(sys.argv[2], "rb").read())
    step = 1
    while at < len(pieces):
        grown.write(pieces[at : at + step])
        at, step = at + step, step * 7 % 10007
"""


@pytest.mark.parametrize(
    "make", [lambda: pcap(sample_records(2000)), lambda: sample_pcapng(n=2000)], ids=["pcap", "pcapng"]
)
def test_a_growing_file_is_followed(make: Callable[[], bytes], save: Callable[[bytes], Path]) -> None:
    """A writer appends pieces that end anywhere; a reader that saw the beginning sees every packet once."""
    data = make()
    whole, growing = save(data), save(data[:5000])
    with subprocess.Popen([sys.executable, "-c", GROW, whole, growing], stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        times: list[int] = []
        with time_limit(60):
            for batch in CaptureFile(str(growing), follow=True):
                if not times:
                    writer.stdin.close()
                times += batch.time_ns.tolist()
                if len(times) >= 2000:
                    break
        writer.wait()
    assert times == [packet.time_ns for packet in packets(data)]


def test_a_compressed_file_cannot_be_followed(save: Callable[[bytes], Path]) -> None:
    with pytest.raises(WirelagError, match="compressed file cannot be followed"):
        list(CaptureFile(str(save(gzip.compress(LARGE))), follow=True))


# ---- files that are not captures ----


NO_CAPTURES = {
    "empty": (b"", "empty"),
    "text": (b"hello, this is not a capture but a text file\n" * 3, "text"),
    "short": (b"\xd4\xc3\xb2\xa1", "too short"),
    "empty inside": (gzip.compress(b"", mtime=0), "has no content"),
    "cut gzip": (b"\x1f\x8b\x08", "gzip"),
    "text inside": (gzip.compress(b"a text of more than twenty-four bytes", mtime=0), "text"),
    "bytes": (bytes(range(200)), "neither"),
    "snoop": (b"snoop\0\0\0" + bytes(100), "neither"),
}


@pytest.mark.parametrize(("content", "said"), NO_CAPTURES.values(), ids=NO_CAPTURES)
def test_a_file_that_is_not_a_capture_is_one_line(content: bytes, said: str, save: Callable[[bytes], Path]) -> None:
    path = save(content)
    with pytest.raises(WirelagError, match=said) as raised:
        read(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_paths_that_cannot_be_read(tmp_path: Path, save: Callable[[bytes], Path]) -> None:
    with pytest.raises(WirelagError, match="no such file"):
        read(tmp_path / "absent.pcap")
    with pytest.raises(WirelagError, match="directory"):
        read(tmp_path)
    secret = save(LARGE)
    secret.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        with pytest.raises(WirelagError, match="permission denied"):
            CaptureFile(str(secret)).__iter__().__next__()
    finally:
        if root:
            os.seteuid(0)


def test_standard_input_of_a_terminal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(WirelagError, match="terminal"):
        list(CaptureFile("-"))
