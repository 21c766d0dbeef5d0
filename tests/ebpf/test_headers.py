"""The frame decoder in the kernel: the verifier accepts it, and its rows equal the extension's, bit for bit."""

import random
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.captures import capture_paths, damaged, packets, plain_bytes, random_frame
from tests.support.effort import scaled
from tests.support.places import ROOT
from wirelag import _kernels
from wirelag.ebpf.dataplane import Dataplane, UnavailableError

INSTRUCTION_LIMIT = 1_000_000  # the verifier's
REASONS = ("", "link_type", "not_ip", "cut", "malformed", "layers", "no_timestamp", "not plain")
# struct wl_decode_options and the eBPF version of struct wl_decoding: two places, the type, the packet, the row.
OPTIONS = struct.Struct("<QIII4x")
DECODING = struct.Struct("<4x4x4x4xI32x4x7Q5I6H4B4x")
ROW = (
    *("src_high", "src_low", "dst_high", "dst_low", "flow_key", "packet_id", "transaction"),
    *("payload_length", "seq", "ack", "tsval", "tsecr"),
    *("src_port", "dst_port", "window", "ip_id", "flags", "payload_offset"),
    *("protocol", "traffic_class", "kind", "message"),
)
# File formats, the ring, which contains one, and frames that only a simulation writes.
NOT_IN_EBPF = {"records.h", "ring.h", "record_writer.h", "sim_frame.h"}
XDP_PASS = 2
SHORTEST, LONGEST = 14, 3400  # fits into one page together with XDP's headroom


class Decoder:
    """bpf/headers.bpf.c, verified and loaded, but not attached to an interface."""

    def __init__(self, plane: Dataplane) -> None:
        self.plane = plane

    def instructions(self, program: str) -> int:
        """The number of instructions that the verifier processed."""
        said = re.search(r"processed (\d+) insns", self.plane.programs[program].log)
        assert said
        return int(said[1])

    def configure(self, tunnels: bool, fields: int, prefix: int, seed: int) -> None:
        self.plane.maps["options"].update(0, OPTIONS.pack(seed, fields, prefix, tunnels))

    def decode(self, frame: bytes, program: str = "wl_headers") -> dict[str, int] | str:
        assert self.plane.programs[program].run(frame).result == XDP_PASS
        value = self.plane.maps["decodings"].lookup(0)
        assert value
        reason, *row = DECODING.unpack(value)
        return REASONS[reason] or dict(zip(ROW, row, strict=True)) | {"wire_length": len(frame)}


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    try:
        plane = Dataplane("headers", statistics=True)
    except UnavailableError as error:
        pytest.skip(needs.ebpf(error))
    with plane:
        yield Decoder(plane)


@pytest.mark.parametrize("program", ["wl_headers", "wl_plain"])
def test_the_verifier_accepts_it_with_room(decoder: Decoder, program: str) -> None:
    print(f"the verifier walked through {decoder.instructions(program):,} instructions")
    assert decoder.instructions(program) < INSTRUCTION_LIMIT / 2


def both(
    decoder: Decoder, frame: bytes, tunnels: bool, fields: int = 15, prefix: int = 16, seed: int = 0
) -> tuple[dict[str, int] | str, bool]:
    """The row, and whether the decoder of plain frames accepted it; if it did, its row must be the same."""
    inside, plain = decoder.decode(frame), decoder.decode(frame, "wl_plain")
    outside = _kernels.decode_frame(frame, len(frame), 1, tunnels=tunnels, fields=fields, prefix=prefix, seed=seed)
    assert inside == outside, (tunnels, fields, prefix, seed, frame.hex())
    assert plain in (outside, "not plain"), (tunnels, fields, prefix, seed, frame.hex())
    return outside, plain != "not plain"


@pytest.mark.parametrize("tunnels", [False, True])
def test_rows_are_equal_on_real_frames(decoder: Decoder, tunnels: bool, shared_data: Path) -> None:
    decoder.configure(tunnels, 15, 16, 0)
    rows = plain = 0
    for path in capture_paths("rtt", "hidden", "twopoint", "malformed"):
        frames = [packet.frame for packet in packets(plain_bytes(path)) if packet.link_type == 1]
        for frame in frames[:: max(1, len(frames) // scaled(200))]:
            if SHORTEST <= len(frame) <= LONGEST:
                row, taken = both(decoder, frame, tunnels)
                rows += isinstance(row, dict)
                plain += taken
    assert rows > scaled(15_000)
    assert plain > rows / 2


@pytest.mark.parametrize("tunnels", [False, True])
def test_rows_are_equal_on_built_frames(decoder: Decoder, tunnels: bool) -> None:
    rng = random.Random(47 + tunnels)
    seen: Counter[str | int] = Counter()
    for number in range(scaled(20_000, 3_300)):
        if number % 100 == 0:
            fields, prefix, seed = rng.getrandbits(4), rng.choice((0, 5, 8, 16, 64)), rng.getrandbits(64)
            decoder.configure(tunnels, fields, prefix, seed)
        frame = damaged(rng, random_frame(rng)[1])
        if SHORTEST <= len(frame) <= LONGEST:
            row, _ = both(decoder, frame, tunnels, fields, prefix, seed)
            seen[row if isinstance(row, str) else row["kind"]] += 1
    assert {*range(10), "not_ip", "cut", "malformed", "layers"} <= set(seen)


KERNELS = [path.name for path in sorted((ROOT / "kernels").glob("*.h")) if path.name not in NOT_IN_EBPF]


CALLED = {
    "pirate_auto.h": ("wl_auto_packet", "wl_auto_finish"),
    "pirate_blind.h": ("wl_blind_packet", "wl_blind_finish"),
    "pirate_modes.h": tuple(f"wl_{name}_packet" for name in ("gap", "modes", "ack", "in_flight", "syn")),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_compiles_for_ebpf(kernel: str, tmp_path: Path, tool: Callable[[str], str]) -> None:
    """No float, no 128-bit integer, no call that eBPF lacks; programs are verified in their own tests."""
    source = tmp_path / "kernel.bpf.c"
    text = f'#include "abi.h"\n#include "{kernel}"\n'
    # The compiler only emits functions that are called.
    for number, name in enumerate(CALLED.get(kernel, ())):
        text += f"void *const called_{number} = (void *){name};\n"
    source.write_text(text)
    found = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    folders = [f"-I/usr/include/{found}-linux-gnu", f"-I{ROOT / 'kernels'}", f"-I{ROOT / 'bpf'}"]
    command = [
        tool("clang"),
        "-O2",
        "-Wall",
        "-Werror",
        "-mcpu=v3",
        "-target",
        "bpf",
        *folders,
        "-c",
        source,
        "-o",
        tmp_path / "x.o",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
