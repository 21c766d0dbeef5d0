"""Several captures as one source, filters while reading, and errors for bad input."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wirelag
from tests.support import command
from tests.support.command import WIRELAG, Ran
from tests.support.simulated_captures import write_simulation
from wirelag.capture.files import Capture
from wirelag.errors import WirelagError
from wirelag.packets.batch import PacketBatch
from wirelag.packets.filters import Filter
from wirelag.sim import Scenario, simulate


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capture") / "whole.pcap"
    write_simulation(simulate(Scenario(packets=30_000, seed=11)), path)
    return path


def columns_of(*paths: Path, **options: object) -> PacketBatch:
    return PacketBatch.concatenate(list(wirelag.read(*map(str, paths), **options)))


def pieces(whole: Path, directory: Path, cuts: list[int], names: list[str]) -> list[Path]:
    """The capture, split into files at these packets."""
    batch = columns_of(whole)
    data = whole.read_bytes()
    starts = [24, *(int(batch.offset[batch.number == cut + 1][0]) - 16 for cut in cuts), len(data)]
    paths = []
    for name, start, end in zip(names, starts, starts[1:], strict=False):
        paths.append(directory / name)
        paths[-1].write_bytes(data[:24] + data[start:end])
    return paths


def test_a_rotated_set_in_any_order_is_the_whole_capture(whole: Path, tmp_path: Path) -> None:
    names = ["cap.pcap0", "cap.pcap10", "cap.pcap2", "cap.pcap1"]
    paths = pieces(whole, tmp_path, [4_000, 20_000, 20_500], names)
    expected, merged = columns_of(whole), columns_of(*reversed(paths))
    assert (merged.time_ns == expected.time_ns).all()
    assert (merged.packet_id == expected.packet_id).all()
    given = columns_of(*paths, order="given")
    assert (given.packet_id == expected.packet_id).all()


def test_overlapping_captures_are_merged_by_time_and_keep_their_own_order(whole: Path, tmp_path: Path) -> None:
    """Two interfaces: even and odd packets in separate files, one of them with times that go back."""
    data, batch = whole.read_bytes(), columns_of(whole)
    records = [data[int(o) - 16 : int(o) + int(n)] for o, n in zip(batch.offset, batch.captured_length, strict=True)]
    even, odd = records[::2], records[1::2]
    even[100], even[101] = even[101], even[100]
    paths = [tmp_path / "even.pcap", tmp_path / "odd.pcap"]
    for path, part in zip(paths, (even, odd), strict=True):
        path.write_bytes(data[:24] + b"".join(part))
    merged = columns_of(*paths)
    assert sorted(merged.packet_id) == sorted(batch.packet_id)
    running = np.maximum.accumulate(merged.time_ns)
    assert (merged.time_ns[1:] >= merged.time_ns[:-1]).sum() == len(merged) - 2  # only the swapped pair goes back
    assert (running[1:] >= running[:-1]).all()
    for source, name in enumerate(("even", "odd")):
        names = [merged.blocks[int(source)].name for source in merged.source]
        rows = [i for i in range(0, len(merged), 97) if names[i].endswith(f"{name}.pcap")]
        assert rows, source
        for i in rows:  # frames stay reachable
            number = int(merged.number[i]) - 1
            assert merged.frame(i) == (even, odd)[source][number][16:]


def test_columns_do_not_depend_on_how_bytes_arrive(whole: Path) -> None:
    """A pipe returns short reads; records end anywhere in them."""
    script = (
        "import wirelag\n"
        "print(sum(int(batch.packet_id.sum()) + int(batch.time_ns.sum()) for batch in wirelag.read('-')) % 2**64)"
    )
    expected = columns_of(whole)
    total = (sum(map(int, expected.packet_id)) + sum(map(int, expected.time_ns))) % 2**64
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin
        assert reader.stdout
        data = whole.read_bytes()
        for start in range(0, len(data), 7919):
            reader.stdin.write(data[start : start + 7919])
            reader.stdin.flush()
        reader.stdin.close()
        # numpy sums wrap in each batch; Python integers modulo 2^64 give the same.
        assert int(reader.stdout.read()) == total


FILTERS = [
    Filter.parse(ports=(53,)),
    Filter.parse(protocols=("udp",)),
    Filter.parse(nets=("192.0.2.0/24",)),
    Filter.parse(nets=("2001:db8::/32",), protocols=("tcp",)),
    Filter.parse(start="+1s", end="+2.5s"),
    Filter.parse(protocols=("tcp",), ports=(443, 80), start="+0.5s"),
]


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
def test_filters_keep_what_a_mask_over_all_columns_keeps(whole: Path, wanted: Filter) -> None:
    everything = columns_of(whole)
    mask = np.ones(len(everything), bool)
    if wanted.protocols:
        mask &= np.isin(everything.protocol, wanted.protocols)
    if wanted.ports:
        mask &= np.isin(everything.src_port, wanted.ports) | np.isin(everything.dst_port, wanted.ports)
    if wanted.nets:
        ends = [
            (everything.address(everything.src, i), everything.address(everything.dst, i)) for i in range(len(mask))
        ]
        mask &= [any(a in net or b in net for net in wanted.nets) for a, b in ends]
    if wanted.relative:
        first = int(everything.time_ns[0])
        mask &= (everything.time_ns >= first + wanted.from_ns) & (everything.time_ns < first + wanted.to_ns)
    assert 0 < mask.sum() < len(everything)
    capture = Capture([str(whole)], filter=wanted)
    kept = PacketBatch.concatenate(list(capture))
    assert (kept.number == everything.number[mask]).all()
    assert capture.statistics.filtered == len(everything) - mask.sum()
    assert capture.statistics.packets == len(everything)


def test_relative_times_count_from_the_first_packet_of_all_captures(whole: Path, tmp_path: Path) -> None:
    paths = pieces(whole, tmp_path, [15_000], ["a.pcap", "b.pcap"])
    wanted = Filter.parse(start="+1s", end="+40s")
    assert (columns_of(*paths, filter=wanted).packet_id == columns_of(whole, filter=wanted).packet_id).all()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"hosts": ("nowhere",)}, "'nowhere' is not an address"),
        ({"nets": ("10.0.0.0/99",)}, "is not a network"),
        ({"ports": (70_000,)}, "is not a port"),
        ({"protocols": ("xtp",)}, "is not a protocol"),
        ({"start": "yesterday"}, "is not a time"),
        ({"start": "+2s", "end": "+1s"}, "the time range from"),
        ({"start": "+2s", "end": "2030-01-01"}, "or neither"),
    ],
)
def test_a_wrong_filter_names_the_word(words: dict[str, tuple[str, ...]], told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("+", r"\+")):
        Filter.parse(**words)  # type: ignore[arg-type]


def wirelag_info(*words: str | Path, stdin: bytes | None = None) -> Ran:
    return command.wirelag("info", *words, stdin=stdin, code=None)


def bad_inputs(directory: Path) -> dict[str, tuple[Path, str]]:
    (directory / "empty.pcap").touch()
    (directory / "text.pcap").write_text("These are not packets. " * 10)
    (directory / "short.pcap").write_bytes(b"\xd4\xc3\xb2\xa1\x02\x00")
    (directory / "random.bin").write_bytes(bytes(range(128, 256)) * 4)
    (directory / "empty.pcap.gz").write_bytes(gzip.compress(b""))
    return {
        "missing": (directory / "missing.pcap", "there is no such file"),
        "directory": (directory, "this is a directory"),
        "empty": (directory / "empty.pcap", "the file is empty"),
        "text": (directory / "text.pcap", "it looks like text"),
        "short": (directory / "short.pcap", "too short for a capture"),
        "random": (directory / "random.bin", "neither a pcap nor a pcapng"),
        "empty gzip": (directory / "empty.pcap.gz", "the gzip file has no content"),
    }


def test_bad_input_is_one_clear_line_and_exit_code_2(tmp_path: Path) -> None:
    for path, told in bad_inputs(tmp_path).values():
        ran = wirelag_info(path)
        assert ran.returncode == 2
        assert ran.stdout == ""
        assert ran.stderr.count("\n") == 1
        assert str(path) in ran.stderr
        assert told in ran.stderr


def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.pcap"
    path.write_bytes(b"x")
    path.chmod(0)
    if os.geteuid() == 0:
        # Root may read everything: use the user `nobody` in a separate process.
        tmp_path.chmod(0o755)
        for parent in path.parents:
            if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 1 and len(parent.parts) > 2:
                parent.chmod(0o755)
        script = (
            "import os, sys; from wirelag.capture.pcap import CaptureFile; os.setuid(65534)\n"
            f"try: list(CaptureFile({str(path)!r}))\nexcept Exception as error: print(type(error).__name__, error)"
        )
        told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    else:
        with pytest.raises(WirelagError) as raised:
            list(Capture([str(path)]))
        told = f"WirelagError {raised.value}"
    assert told.startswith("WirelagError")
    assert "permission denied" in told


def test_a_capture_cut_in_a_record_gives_its_packets_a_warning_and_exit_code_0(whole: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(whole.read_bytes()[:100_001])
    ran = wirelag_info(cut)
    assert ran.returncode == 0
    assert ran.stderr.startswith(f"warning: {cut}: the file ends in the middle of a record that begins at byte ")
    assert "what wirelag can measure here" in ran.stdout


def test_one_bad_capture_does_not_affect_the_others(whole: Path, tmp_path: Path) -> None:
    ran = wirelag_info(tmp_path / "missing.pcap", whole)
    assert ran.returncode == 2
    assert "30,000" in ran.stdout
    assert "missing.pcap: there is no such file" in ran.stderr


def test_a_reader_that_leaves_early_sees_no_traceback(whole: Path) -> None:
    line = f"{WIRELAG[0]} info --format json {whole} | head -c 10"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert ran.stderr == ""


def test_standard_input_is_read_and_named(whole: Path) -> None:
    ran = wirelag_info("-", stdin=whole.read_bytes())
    assert ran.stdout.startswith("standard input (pcap)")
    with pytest.raises(WirelagError, match="standard input cannot be merged"):
        Capture(["-", str(whole)])
