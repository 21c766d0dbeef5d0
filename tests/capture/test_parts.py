"""Large captures are split at records, from the middle of the file."""

import gzip
import lzma
import subprocess
from pathlib import Path

import pytest
import zstandard

from tests.support.fleets import simulated
from tests.support.needs import absent
from wirelag.capture.parts import Part, PartFile, Place, SplitError
from wirelag.capture.pcap import CaptureFile
from wirelag.capture.splitting import Splitter

MEMBER = 150_000  # bytes


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same packets in all forms."""
    folder = tmp_path_factory.mktemp("parts")
    plain = simulated(folder / "plain.pcap", 20_000)
    data = plain.read_bytes()
    members = [data[i : i + MEMBER] for i in range(0, len(data), MEMBER)]
    forms = {"pcap": plain}
    forms_of = {"gz": gzip.compress, "zst": zstandard.compress, "xz": lambda part: lzma.compress(part, preset=0)}
    for name, compress in forms_of.items():
        forms[name] = folder / f"members.pcap.{name}"
        forms[name].write_bytes(b"".join(compress(part) for part in members))
    forms["one"] = folder / "one.pcap.zst"
    forms["one"].write_bytes(zstandard.compress(data))
    return forms


def read(path: Path, parts: list[Part]) -> tuple[list[bytes], list[int]]:
    """The rows of all parts, and how many packets warmed each up; statistics must be those of the whole."""
    rows, warm, total = [], [], None
    for part in parts:
        file = PartFile(str(path), part)
        rows += [row.tobytes() for batch in file if file.own for row in (batch.time_ns, batch.seq, batch.flow_key)]
        warm.append(file.packets_before)
        total = file.statistics if total is None else total + file.statistics
    whole = CaptureFile(str(path))
    every = list(whole)
    assert total == whole.statistics
    for place, name in enumerate(("time_ns", "seq", "flow_key")):
        assert b"".join(rows[place::3]) == b"".join(getattr(batch, name).tobytes() for batch in every)
    return rows, warm


@pytest.mark.every(2)
@pytest.mark.parametrize(("form", "least"), [("pcap", 5), ("gz", 3), ("zst", 3), ("xz", 3)])
def test_parts_hold_each_packet_once(captures: dict[str, Path], form: str, least: int) -> None:
    path = captures[form]
    size = path.stat().st_size
    parts = Splitter(str(path), size).parts(size // 5, 10**9, size // 10)
    assert len(parts) >= least
    _, warm = read(path, parts)
    assert warm[0] == 0
    assert all(warm[1:])


@pytest.mark.skipif(bool(absent("editcap")), reason=absent("editcap"))
def test_pcapng_is_split_too(captures: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "blocks.pcapng"
    subprocess.run(["editcap", "-F", "pcapng", captures["pcap"], path], check=True)
    size = path.stat().st_size
    parts = Splitter(str(path), size).parts(size // 4, 0, size // 10)
    assert len(parts) == 4
    read(path, parts)


@pytest.mark.skipif(bool(absent("pzstd")), reason=absent("pzstd"))
def test_what_pzstd_writes_is_read_and_split(captures: dict[str, Path], tmp_path: Path) -> None:
    """It begins with a frame that is to be skipped, and has one before each other frame."""
    path = tmp_path / "frames.pcap.zst"
    subprocess.run(["pzstd", "-q", "-1", "-p", "2", "-o", path, captures["pcap"]], check=True)
    assert path.read_bytes()[:4] == b"\x50\x2a\x4d\x18"
    size = path.stat().st_size
    parts = Splitter(str(path), size).parts(size // 2, 0, size // 10)
    assert len(parts) == 2
    read(path, parts)


def test_one_compressed_stream_is_one_part(captures: dict[str, Path]) -> None:
    path = captures["one"]
    parts = Splitter(str(path), path.stat().st_size).parts(path.stat().st_size // 2, 10**9, 1000)
    assert parts == [Part()]


def test_a_wrong_guess_is_noticed(captures: dict[str, Path]) -> None:
    path = captures["pcap"]
    (first, second, *_) = Splitter(str(path), path.stat().st_size).parts(path.stat().st_size // 3, 0, 0)
    wrong = Part(first.begin, Place(second.begin.byte + 1))
    with pytest.raises(SplitError, match="no record ends at byte"):
        list(PartFile(str(path), wrong))


def test_a_truncated_file_says_so_in_its_last_part(captures: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "short.pcap"
    path.write_bytes(captures["pcap"].read_bytes()[:-7])
    size = path.stat().st_size
    parts = Splitter(str(path), size).parts(size // 3, 0, 0)
    file, whole = PartFile(str(path), parts[-1]), CaptureFile(str(path))
    for one in (file, whole):
        for _ in one:
            pass
    (said,), (expected,) = file.warnings, whole.warnings
    assert said.split(";")[0] == expected.split(";")[0]  # the same byte of the file
