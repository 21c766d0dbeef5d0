"""The frame decoder inside the kernel: the verifier accepts it, and its row equals the extension's, bit for bit."""

import ctypes
import ctypes.util
import errno
import random
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from captures import capture_paths, damaged, packets, plain_bytes, random_frame
from wirelag import _kernels

ROOT = Path(__file__).parents[1]
INSTRUCTION_LIMIT = 1_000_000  # the verifier's
REASONS = ("", "link_type", "not_ip", "cut", "malformed", "layers")
# struct wl_decode_options and, as it is in eBPF, struct wl_decoding: two places, the type, the packet, the row.
OPTIONS = struct.Struct("<QIII4x")
DECODING = struct.Struct("<4x4x4x4xI28x7Q5I6H4B4x")
ROW = (
    *("src_high", "src_low", "dst_high", "dst_low", "flow_key", "packet_id", "transaction"),
    *("payload_length", "seq", "ack", "tsval", "tsecr"),
    *("src_port", "dst_port", "window", "ip_id", "flags", "payload_offset"),
    *("protocol", "traffic_class", "kind", "message"),
)
NOT_IN_EBPF = {"records.h", "ring.h"}  # file formats, and the ring, which has one inside
SHORTEST, LONGEST = 14, 3400  # what fits into one page beside the room that XDP keeps


class TestRun(ctypes.Structure):
    """struct bpf_test_run_opts."""

    __test__ = False
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("data_in", ctypes.c_char_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("context_in", ctypes.c_void_p),
        ("context_out", ctypes.c_void_p),
        ("context_size_in", ctypes.c_uint32),
        ("context_size_out", ctypes.c_uint32),
        ("result", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    )


class Program:
    """bpf/headers.bpf.c, compiled, verified and loaded; never attached to an interface."""

    def __init__(self, library: ctypes.CDLL, path: Path) -> None:
        self.library = library
        for name in ("bpf_object__open_file", "bpf_object__find_program_by_name"):
            getattr(library, name).restype = ctypes.c_void_p
        library.libbpf_set_print(None)
        opened = library.bpf_object__open_file(str(path).encode(), None)
        assert opened, "not an object file with eBPF programs"
        self.object = ctypes.c_void_p(opened)
        program = ctypes.c_void_p(library.bpf_object__find_program_by_name(self.object, b"wl_headers"))
        self.log = ctypes.create_string_buffer(1 << 16)
        library.bpf_program__set_log_buf(program, self.log, ctypes.c_size_t(len(self.log)))
        library.bpf_program__set_log_level(program, 4)  # statistics only
        self.error = -library.bpf_object__load(self.object)
        self.fd = library.bpf_program__fd(program)
        self.options = library.bpf_object__find_map_fd_by_name(self.object, b"options")
        self.decodings = library.bpf_object__find_map_fd_by_name(self.object, b"decodings")
        self.zero = ctypes.byref(ctypes.c_uint32(0))
        self.value = ctypes.create_string_buffer(DECODING.size)

    @property
    def instructions(self) -> int:
        """How many instructions the verifier walked through."""
        said = re.search(rb"processed (\d+) insns", self.log.value)
        assert said, self.log.value
        return int(said[1])

    def configure(self, tunnels: bool, fields: int, prefix: int, seed: int) -> None:
        value = OPTIONS.pack(seed, fields, prefix, tunnels)
        assert self.library.bpf_map_update_elem(self.options, self.zero, value, ctypes.c_uint64(0)) == 0

    def decode(self, frame: bytes) -> dict[str, int] | str:
        run = TestRun(size=ctypes.sizeof(TestRun), data_in=frame, data_size_in=len(frame), repeat=1)
        assert self.library.bpf_prog_test_run_opts(self.fd, ctypes.byref(run)) == 0, (len(frame), frame.hex())
        assert self.library.bpf_map_lookup_elem(self.decodings, self.zero, self.value) == 0
        reason, *row = DECODING.unpack(self.value.raw)
        return REASONS[reason] or dict(zip(ROW, row, strict=True)) | {"wire_length": len(frame)}

    def close(self) -> None:
        self.library.bpf_object__close(self.object)


@pytest.fixture(scope="module")
def program(tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    compiler, found = tool("clang"), ctypes.util.find_library("bpf")
    if found is None or not Path("/usr/include/bpf/bpf_helpers.h").exists():
        pytest.skip("libbpf-dev is not installed")
    target = tmp_path_factory.mktemp("bpf") / "headers.bpf.o"
    machine = subprocess.run([compiler, "-print-multiarch"], capture_output=True, text=True, check=False).stdout.strip()
    machine = (
        machine or subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True, check=True).stdout.strip()
    )
    include = [f"-I{ROOT / 'src' / 'wirelag' / 'kernels'}", f"-I/usr/include/{machine.replace('-pc-', '-')}"]
    command = [
        compiler,
        "-O2",
        "-g",
        "-Wall",
        "-Werror",
        "-target",
        "bpf",
        *include,
    ]
    subprocess.run([*command, "-c", ROOT / "bpf" / "headers.bpf.c", "-o", target], check=True)
    loaded = Program(ctypes.CDLL(found, use_errno=True), target)
    if loaded.error in (errno.EPERM, errno.EACCES, errno.ENOSYS) and not loaded.log.value:
        pytest.skip("bpf() is not permitted here")
    assert loaded.error == 0, loaded.log.value.decode()
    yield loaded
    loaded.close()


def test_the_verifier_accepts_it_with_room(program: Program) -> None:
    print(f"the verifier walked through {program.instructions:,} instructions")
    assert program.instructions < INSTRUCTION_LIMIT / 2


def both(
    program: Program, frame: bytes, tunnels: bool, fields: int = 15, prefix: int = 16, seed: int = 0
) -> dict[str, int] | str:
    inside = program.decode(frame)
    outside = _kernels.decode_frame(frame, len(frame), 1, tunnels=tunnels, fields=fields, prefix=prefix, seed=seed)
    assert inside == outside, (tunnels, fields, prefix, seed, frame.hex())
    return outside


@pytest.mark.parametrize("tunnels", [False, True])
def test_rows_are_the_same_on_real_frames(program: Program, tunnels: bool, shared_data: Path) -> None:
    program.configure(tunnels, 15, 16, 0)
    rows = 0
    for path in capture_paths("rtt", "hidden", "twopoint", "malformed"):
        frames = [packet.frame for packet in packets(plain_bytes(path)) if packet.link_type == 1]
        for frame in frames[:: max(1, len(frames) // 200)]:
            if SHORTEST <= len(frame) <= LONGEST:
                rows += isinstance(both(program, frame, tunnels), dict)
    assert rows > 5000


@pytest.mark.parametrize("tunnels", [False, True])
def test_rows_are_the_same_on_built_frames(program: Program, tunnels: bool) -> None:
    rng = random.Random(47 + tunnels)
    seen: Counter[str | int] = Counter()
    for number in range(20_000):
        if number % 100 == 0:
            fields, prefix, seed = rng.getrandbits(4), rng.choice((0, 5, 8, 16, 64)), rng.getrandbits(64)
            program.configure(tunnels, fields, prefix, seed)
        frame = damaged(rng, random_frame(rng)[1])
        if SHORTEST <= len(frame) <= LONGEST:
            row = both(program, frame, tunnels, fields, prefix, seed)
            seen[row if isinstance(row, str) else row["kind"]] += 1
    assert {*range(10), "not_ip", "cut", "malformed", "layers"} <= set(seen)


KERNELS = [path.name for path in sorted((ROOT / "src/wirelag/kernels").glob("*.h")) if path.name not in NOT_IN_EBPF]


CALLED = {
    "pirate_auto.h": ("wl_auto_packet", "wl_auto_finish"),
    "pirate_blind.h": ("wl_blind_packet", "wl_blind_finish"),
    "pirate_modes.h": tuple(f"wl_{name}_packet" for name in ("gap", "modes", "ack", "in_flight", "syn")),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_compiles_for_ebpf(kernel: str, tmp_path: Path, tool: Callable[[str], str]) -> None:
    """No float, no 128-bit integer, no call that eBPF does not have; a program that uses it is verified where it is."""
    source = tmp_path / "kernel.bpf.c"
    text = f'#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n#include "{kernel}"\n'
    # Code is only made for what is called.
    for number, name in enumerate(CALLED.get(kernel, ())):
        text += f"void *const called_{number} = (void *){name};\n"
    source.write_text(text)
    found = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    folders = [f"-I/usr/include/{found}-linux-gnu", f"-I{ROOT / 'src/wirelag/kernels'}"]
    command = [
        tool("clang"),
        "-O2",
        "-Wall",
        "-Werror",
        "-target",
        "bpf",
        *folders,
        "-c",
        source,
        "-o",
        tmp_path / "x.o",
    ]
    if not Path("/usr/include/bpf/bpf_helpers.h").exists():
        pytest.skip("libbpf-dev is not installed")
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
