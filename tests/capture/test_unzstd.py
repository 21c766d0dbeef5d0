"""zstd files that the extension decompresses: the same bytes and warnings as by the package for Python."""

import io
import os
import random
from pathlib import Path

import pytest
import zstandard

from tests.support.command import wirelag
from tests.support.simulated_captures import write_simulation
from wirelag import _kernels
from wirelag.capture import streams, unzstd
from wirelag.sim import Scenario, simulate

PLAIN = random.Random(1).randbytes(150_000) + b"abc" * 50_000 + bytes(300_000) + random.Random(2).randbytes(200_000)
SKIPPED = b"\x5a\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"passing"


def packed(data: bytes, *, checksum: bool = True, window_log: int = 0, told_size: bool = True) -> bytes:
    """One frame."""
    how = zstandard.ZstdCompressionParameters(
        window_log=window_log, write_checksum=checksum, write_content_size=told_size, enable_ldm=window_log > 25
    )
    press = zstandard.ZstdCompressor(compression_params=how).compressobj(size=len(data) if told_size else -1)
    return press.compress(data) + press.flush()


FRAME = packed(PLAIN)
FILES = {
    "one frame": FRAME,
    "no checksum": packed(PLAIN, checksum=False),
    "size not told": packed(PLAIN, told_size=False),
    "several frames": FRAME + packed(b"short") + SKIPPED + packed(PLAIN[:1000]),
    "skipped first": SKIPPED + FRAME,
    "nothing but skipped": SKIPPED + SKIPPED,
    "skipped breaks off": FRAME + SKIPPED[:-3],
    "empty": packed(b""),
    "empty, then another": packed(b"") + FRAME,
    "magic alone": FRAME[:4],
    "text behind": FRAME + b"something else",
    "zeros behind": FRAME + b"\0\0",
    "a byte behind": FRAME + FRAME[:1],
    "a long window": packed(PLAIN * 3, window_log=27, told_size=False),
    "too long a window": packed(PLAIN, window_log=28, told_size=False),
}


def drained(stream: streams.Stream, room: int = 50_000) -> tuple[bytes, str]:
    """All that it yields, and what stopped it."""
    buffer, data = memoryview(bytearray(room)), b""
    while got := stream.readinto(buffer):
        data += buffer[:got]
    stream.close()
    return data, stream.broken


def check(path: Path, data: bytes) -> tuple[bytes, str]:
    path.write_bytes(data)
    alone = drained(streams.open_stream(str(path)))
    for ahead in (True, False):
        stream = unzstd.opened(str(path), ahead)
        assert stream is not None
        assert drained(stream) == alone
    return alone


@pytest.mark.parametrize("name", FILES)
def test_the_same_as_by_the_package_for_python(name: str, tmp_path: Path) -> None:
    data, broken = check(tmp_path / "a.zst", FILES[name])
    whole = {"nothing but skipped": b"", "empty": b"", "magic alone": b"", "too long a window": b""}.get(name, PLAIN)
    assert data.startswith(whole)
    assert bool(broken) == (name in ("skipped breaks off", "magic alone", "too long a window") or "behind" in name)


@pytest.mark.every(3)
@pytest.mark.parametrize("size", [unzstd.LEFT + 300, unzstd.LEFT + 1000, unzstd.LEFT + (1 << 17), 2 << 20])
def test_damage_costs_no_block_before_it(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever pieces there are, and however much is asked for at a time."""
    monkeypatch.setattr(unzstd, "PIECE_BYTES", size)
    monkeypatch.setattr(unzstd, "_AHEAD", 5)
    rng = random.Random(size)
    told = set()
    for number in range(12):
        data = bytearray(FILES[rng.choice(["one frame", "no checksum", "several frames", "skipped first"])])
        place = rng.randrange(4, len(data))
        if number % 2:
            del data[place:]
        else:
            data[place] ^= 1 << rng.randrange(8)
        got, broken = check(tmp_path / "a.zst", bytes(data))
        assert len(got) > place - (1 << 18) or "Restored" not in broken
        told.add(broken)
    assert len(told) > 1  # that it breaks off, and damage


@pytest.mark.parametrize("kind", [1, 3])
def test_all_blocks_before_a_damaged_one_are_told(kind: int, tmp_path: Path) -> None:
    """A frame of six blocks as they are; the fourth one's header is none, or begins a long run of one byte."""
    plain = random.Random(3).randbytes(6 << 17)
    frame = b"\x28\xb5\x2f\xfd" + bytes([0, 7 << 3])  # a window of 128 KiB
    for number in range(6):
        header = (1 << 17) << 3 | (number == 5)
        frame += (header | (kind << 1 if number == 3 else 0)).to_bytes(3, "little")
        frame += plain[number << 17 : (number + 1) << 17]
    got, broken = check(tmp_path / "a.zst", frame)
    assert got.startswith(plain[: 3 << 17])
    assert broken
    assert kind == 1 or len(got) == 3 << 17


def test_a_reader_that_leaves_ends_the_thread(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    path.write_bytes(packed(random.Random(5).randbytes(1 << 20) * 60))
    before = len(os.listdir("/proc/self/task"))
    stream = unzstd.opened(str(path), ahead=True)
    assert stream is not None
    assert stream.readinto(memoryview(bytearray(10))) == 10
    assert len(os.listdir("/proc/self/task")) == before + 1
    stream.close()
    assert len(os.listdir("/proc/self/task")) == before
    assert stream.raw.closed


def test_what_is_no_zstd_file_of_this_machine_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "plain").write_bytes(PLAIN)
    (tmp_path / "short").write_bytes(b"\x28\xb5")
    for name in ("pipe", "plain", "short", "nowhere", "", "a\0b"):
        assert not unzstd.begin(str(tmp_path / name))
    (tmp_path / "good").write_bytes(FRAME)
    monkeypatch.setattr(_kernels, "has_libzstd", lambda: False)
    assert not unzstd.begin(str(tmp_path / "good"))


@pytest.mark.parametrize("command", ["rtt", "info"])
def test_a_file_whose_first_bytes_cannot_be_read_is_named(command: str) -> None:
    """As on a broken disk; this one opens, and nothing is at its beginning."""
    ran = wirelag(command, "/proc/self/mem", code=2)
    assert ran.stderr == "wirelag: /proc/self/mem: cannot be read (Input/output error)\n"


def test_memory_that_cannot_hold_pieces_is_refused() -> None:
    with io.FileIO(os.devnull) as file:
        for left, size, most in ((10, 10, 5), (0, 10, 3)):
            with pytest.raises(ValueError, match="too little memory"):
                _kernels.Unzstd(file.fileno(), left, size, most, False)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unzstd") / "one.pcap"
    write_simulation(simulate(Scenario(packets=3_000)), path)
    path.with_suffix(".zst").write_bytes(packed(path.read_bytes()))
    return path


@pytest.mark.parametrize("words", ["rtt", "rtt --by server", "rtt --cores 1", "info", "rtt --samples samples.csv"])
def test_a_command_begins_at_once(words: str, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads what it has begun, and leaves nothing behind."""
    begun = []
    begin = unzstd.begin
    monkeypatch.setattr(unzstd, "begin", lambda path: begun.append(path) or begin(path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    before = len(os.listdir("/proc/self/task"))
    told = []
    for path in (capture, capture.with_suffix(".zst")):
        ran = wirelag(*words.split(), path, "--format", "json", cwd=tmp_path)
        told.append(ran.stdout.replace("zst", "pcap").replace('"zstd"', "null"))
        assert not unzstd._BEGUN
    assert (str(capture.with_suffix(".zst")) in begun) == ("--cores" not in words)
    if words != "info":
        assert told[0] == told[1]
    assert len(os.listdir("/proc/self/task")) == before


@pytest.mark.parametrize("words", [["--bogus"], ["--interval", "never"], ["nowhere.pcap"]], ids=str)
def test_a_command_that_is_refused_ends_what_it_began(words: list[str], capture: Path) -> None:
    before = len(os.listdir("/proc/self/task"))
    wirelag("rtt", capture.with_suffix(".zst"), *words, code=2)
    assert not unzstd._BEGUN
    assert len(os.listdir("/proc/self/task")) == before


def test_without_libzstd_the_answer_is_the_same(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = capture.with_suffix(".zst")
    first = wirelag("rtt", path, "--format", "json").stdout
    monkeypatch.setattr(_kernels, "has_libzstd", lambda: False)
    assert wirelag("rtt", path, "--format", "json").stdout == first
