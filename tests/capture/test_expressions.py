"""Filters in tcpdump's syntax on files: the same packets as `tcpdump -r FILE EXPRESSION`, and as the plain twin."""

import random
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import wirelag
from tests.oracles.cbpf import Instruction, accepted, instructions
from tests.support.captures import (
    enhanced,
    ethernet,
    interface,
    ipv4,
    packets,
    pcap,
    plain_bytes,
    random_frame,
    section,
    tcp,
)
from tests.support.command import wirelag as command
from wirelag import _kernels
from wirelag.capture import bpf_filter
from wirelag.capture.bpf_filter import compile_for_file

EXPRESSIONS = (
    "tcp", "udp or icmp", "not tcp", "port 443", "tcp port 22 and host 192.168.2.1", "src portrange 1024-65535",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0", "ip6", "vlan", "greater 200", "less 100", "net 10.0.0.0/8",
    "ip[2:2] - ((ip[0] & 0xf) << 2) > 60", "ip[8] % 2 = 1 and ip[9] / 2 < 9", "arp",
    "udp[4:2] * 2 > 100 or tcp[12] >> 2 ^ 3 > 20", "len - 14 > 50 and ip proto \\tcp", "host ::1 or port domain",
)  # fmt: skip
FILES = (
    "rtt/zeek/ssh.pcap.gz",
    "hidden/nDPI/vxlan.pcap",
    "hidden/PcapPlusPlus/DnsPackets.pcap",
    "hidden/zeek/gtp1_gn_normal_incl_fragmentation.pcap",
    "malformed/tcpdump/arp-oobr.pcap",
    "malformed/dpkt/truncated_dns.pcap",
    "wild/FoxIO-LLC__ja4__pcap__http1.pcapng.gz",
)


def passing(path: Path, expression: str) -> list[bytes] | None:
    """The frames that tcpdump writes; None if it refuses the expression for this link type."""
    done = subprocess.run(["tcpdump", "-r", path, "-w", "-", expression], capture_output=True, check=False)
    if b"expression rejected" in done.stderr or b"syntax error" in done.stderr or not done.stdout:
        return None
    return [packet.frame for packet in packets(done.stdout)]


@pytest.mark.every(2)
@pytest.mark.parametrize("name", FILES)
def test_files_are_filtered_as_by_tcpdump(
    shared_data: Path, tmp_path: Path, tool: Callable[[str], str], name: str
) -> None:
    tool("tcpdump")
    plain = tmp_path / "plain"
    plain.write_bytes(plain_bytes(shared_data / name))
    compared = 0
    for expression in EXPRESSIONS:
        wanted = passing(plain, expression)
        if wanted is None:
            continue
        capture = wirelag.read(plain, filter=expression)
        rows = sum(len(batch) for batch in capture)
        known = capture.statistics
        assert known.packets - known.filtered == len(wanted), expression
        assert rows + sum(known.skipped.values()) == len(wanted), expression
        compared += 1
    assert compared > len(EXPRESSIONS) // 2


def test_the_kernel_equals_its_twin_on_malformed_frames() -> None:
    """Random frames, whole and cut anywhere, through every expression and every link type that has addresses."""
    rng = random.Random(11)
    taken = 0
    for link in (1, 0, 101, 113, 276):
        for expression in EXPRESSIONS:
            try:
                program = compile_for_file(expression, link, swapped=False)
            except wirelag.WirelagError:
                continue  # no such header on this link
            plain = instructions(program)
            for _ in range(25):
                frame = random_frame(rng)[1]
                frame = frame[: rng.randrange(len(frame) + 1)] if rng.random() < 0.5 else frame
                wire = len(frame) + rng.randrange(3) * 700
                found = _kernels.classic_filter(program, frame, wire)
                assert found == accepted(plain, frame, wire), (link, expression, frame.hex())
                taken += found > 0
    assert taken > 200


# Codes of all loads, operations and jumps, with both operands.
LOADS = (0x00, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x60, 0x80, 0x01, 0x61, 0x81, 0xB1)
OPERATIONS = tuple(what | source | 4 for what in range(0, 0xB0, 0x10) for source in (0, 8) if what | source != 0x88)
JUMPS = (0x05, *(what | source | 5 for what in (0x10, 0x20, 0x30, 0x40) for source in (0, 8)))
OTHERS = (0x02, 0x03, 0x07, 0x87, 0x06, 0x16)


def random_program(rng: random.Random) -> list[Instruction]:
    """A program that can run: jumps land inside, and the last instruction returns."""
    count, program = rng.randrange(2, 24), []
    for at in range(count - 1):
        code = rng.choice((*LOADS, *LOADS, *OPERATIONS, *JUMPS, *OTHERS[:4], *OTHERS[4:] * (rng.random() < 0.1)))
        left = count - 1 - at
        k = rng.choice((rng.randrange(80), rng.randrange(1 << 32), (1 << 32) - 1))
        if code & 7 in (2, 3) or code & 0xE7 in (0x60, 0x61):
            k %= 16
        elif code == 0x05:
            k = rng.randrange(left)
        elif code in (0x34, 0x94):
            k = k or 1
        elif code in (0x64, 0x74):
            k %= 32
        program.append(Instruction(code, rng.randrange(left), rng.randrange(left), k))
    return [*program, Instruction(rng.choice((0x06, 0x16)), 0, 0, rng.randrange(1 << 32))]


def as_bytes(program: list[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *step) for step in program)


def test_the_kernel_equals_its_twin_on_random_programs() -> None:
    rng, seen, taken = random.Random(12), set(), 0
    for _ in range(4_000):
        program, frame = random_program(rng), rng.randbytes(rng.randrange(90))
        found = _kernels.classic_filter(as_bytes(program), frame, len(frame) + 5)
        assert found == accepted(program, frame, len(frame) + 5), (program, frame.hex())
        seen |= {step.code for step in program}
        taken += found > 0
    assert seen >= {*LOADS, *OPERATIONS, *JUMPS, *OTHERS}
    assert taken > 500


@pytest.mark.parametrize(
    "steps",
    [
        [(0x05, 0, 0, 1), (0x06, 0, 0, 1)],  # a jump out of the program
        [(0x15, 1, 0, 1), (0x06, 0, 0, 1)],
        [(0x05, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 1)],  # a jump back
        [(0x60, 0, 0, 16), (0x06, 0, 0, 1)],  # beyond its memory
        [(0x02, 0, 0, 16), (0x06, 0, 0, 1)],
        [(0x34, 0, 0, 0), (0x06, 0, 0, 1)],  # a division by zero
        [(0x64, 0, 0, 32), (0x06, 0, 0, 1)],
        [(0x88 | 4, 0, 0, 0), (0x06, 0, 0, 1)],
        [(0x38, 0, 0, 0), (0x06, 0, 0, 1)],  # no such size
        [(0xFF, 0, 0, 0), (0x06, 0, 0, 1)],
        [(0x120, 0, 0, 0), (0x06, 0, 0, 1)],
        [(0x00, 0, 0, 1)],  # no return
        [],
    ],
)
def test_programs_that_cannot_run_are_refused(steps: list[tuple[int, int, int, int]]) -> None:
    with pytest.raises(ValueError, match="classic BPF program"):
        _kernels.classic_filter(as_bytes([Instruction(*step) for step in steps]), b"x", 1)
    with pytest.raises(ValueError, match="8 bytes"):
        _kernels.classic_filter(b"abc", b"x", 1)


def test_each_link_type_of_a_file_has_its_own_program(tmp_path: Path) -> None:
    """Ethernet and raw IP in one file, in the other byte order: tcpdump itself refuses such files."""
    inside = ipv4(tcp(b"x", ports=(40_000, 443)), 6)
    other = ipv4(tcp(b"x", ports=(40_000, 80)), 6)
    path = tmp_path / "two.pcapng"
    blocks = [enhanced(">", ethernet(inside), 1 << 50), enhanced(">", inside, 1 << 50, number=1)]
    blocks += [enhanced(">", ethernet(other), 1 << 50), enhanced(">", other, 1 << 50, number=1)]
    path.write_bytes(section(">") + interface(">", link_type=1) + interface(">", link_type=101) + b"".join(blocks))
    rows = np.concatenate([batch.dst_port for batch in wirelag.read(path, filter="tcp port 443")])
    assert rows.tolist() == [443, 443]


def test_a_wrong_expression_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "one.pcap"
    path.write_bytes(pcap([(1, ethernet(ipv4(tcp(b"x"), 6)), 60)]))
    said = command("rtt", path, "--filter", "tcp prot 443", code=2).stderr
    assert "filter 'tcp prot 443'" in said
    assert "man pcap-filter" in said
    assert len(said.splitlines()) == 1
    assert "use proto instead" in command("rtt", path, "--filter", "ip6 protochain 6", code=2).stderr


def test_without_libpcap_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf_filter, "LIBRARIES", ("libpcap-that-is-not-here.so",))
    monkeypatch.setattr("ctypes.util.find_library", lambda _: None)
    path = tmp_path / "one.pcap"
    path.write_bytes(pcap([(1, ethernet(ipv4(tcp(b"x"), 6)), 60)]))
    said = command("rtt", path, "--filter", "tcp", code=2).stderr
    assert "install libpcap0.8" in said
    assert command("rtt", path).returncode == 0


def test_commands_take_expressions_and_python_too(shared_data: Path) -> None:
    path = shared_data / "rtt/zeek/ssh.pcap.gz"
    for name in ("rtt", "response", "info"):
        ours = command(name, path, "--filter", "host 192.168.1.1 or port 22", "--format", "json").stdout
        result = getattr(wirelag, name)(path, filter="host 192.168.1.1 or port 22")
        assert "".join(result.to_json_text()) == ours
        by_option = getattr(wirelag, name)(path, filter=wirelag.Filter.parse(ports=(22,)))
        by_text = getattr(wirelag, name)(path, filter="port 22")
        assert by_option.to_dict() == by_text.to_dict()
