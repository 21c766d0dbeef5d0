"""Every shared capture through the kernels under AddressSanitizer and UBSan. `make fuzz` runs it before the fuzzers."""

import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.captures import SHARED_DATA, enhanced, interface, packets, pcap, plain_bytes, random_frame, section
from tests.support.places import ROOT

FUZZ = ROOT / "fuzz"


pytestmark = pytest.mark.fuzz


@pytest.fixture(scope="module")
def program(tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that reads captures and prints their packet counts; skips where clang has no sanitizers."""
    folder = tmp_path_factory.mktemp("empty")
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    sanitized = [tool("clang"), "-fsanitize=address,undefined", str(folder / "empty.c"), "-o", str(folder / "empty")]
    if subprocess.run(sanitized, capture_output=True, check=False).returncode:
        pytest.skip(needs.needs("sanitizers of clang", "apt-get install libclang-rt-dev"))
    done = subprocess.run([tool("make"), "-C", FUZZ, "build/replay"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return FUZZ / "build" / "replay"


def plain_copies(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file of the shared data, decompressed, captures or not."""
    assert SHARED_DATA is not None
    for number, path in enumerate(sorted(path for path in SHARED_DATA.rglob("*") if path.is_file())):
        data = plain_bytes(path)
        copy = folder / f"{number}-{path.name}"
        copy.write_bytes(data)
        yield copy, data


def replay(program: Path, files: list[Path]) -> dict[str, int]:
    """Packets by file; any finding of a sanitizer ends the program and fails."""
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert not done.stderr
    return {name: int(count) for count, name in (line.split(" ", 1) for line in done.stdout.splitlines())}


@pytest.mark.usefixtures("shared_data")
def test_shared_captures_cause_no_findings(program: Path, tmp_path: Path) -> None:
    copies = dict(plain_copies(tmp_path))
    counts = replay(program, list(copies))
    assert set(counts) == {str(path) for path in copies}
    assert sum(counts.values()) > 400_000
    small = {path: data for path, data in copies.items() if counts.get(str(path)) and len(data) < 100_000}
    assert len(small) > 200
    for path, data in small.items():
        assert counts[str(path)] == sum(1 for _ in packets(data)), path.name


def test_truncated_files_cause_no_findings(program: Path, tmp_path: Path) -> None:
    rng = random.Random(2)
    frames = [random_frame(rng)[1] for _ in range(20)]
    whole = {
        "pcap": pcap([(number, frame, 1500) for number, frame in enumerate(frames)]),
        "pcapng": section(">") + interface(">") + b"".join(enhanced(">", frame, 1 << 50) for frame in frames),
    }
    files = []
    for name, data in whole.items():
        for cut in range(0, len(data), max(1, len(data) // 200)):
            files.append(tmp_path / f"{name}{cut}")
            files[-1].write_bytes(data[:cut])
    replay(program, files)
