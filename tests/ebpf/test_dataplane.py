"""The loader: maps, programs and links of the kernel; each error is one line."""

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support import needs
from tests.support.command import as_process, wirelag
from tests.support.in_kernel import IN_KERNEL, LONG_NS
from tests.support.kernel_frames import tcp
from wirelag.ebpf import bpf, dataplane
from wirelag.ebpf.bpf import Map, RingBuffer
from wirelag.ebpf.dataplane import Dataplane, UnavailableError, shipped
from wirelag.ebpf.elf import ObjectFile
from wirelag.ebpf.fridge import KernelFridge
from wirelag.ebpf.lda import KernelLda
from wirelag.errors import WirelagError
from wirelag.estimators.fridge import Fridge
from wirelag.estimators.lda import Lda
from wirelag.packets.interval import Interval
from wirelag.packets.packet_id import PacketId

XDP_DROP, XDP_PASS = 1, 2
LEFT, RIGHT = "10.78.0.1", "10.78.0.2"


# ---- maps ----


@IN_KERNEL
def test_maps_hold_what_is_put_into_them() -> None:
    table = Map.create("table", bpf.HASH, 8, 12, 20_000)
    wanted = {number.to_bytes(8, "little"): random.Random(number).randbytes(12) for number in range(10_000)}
    for key, value in wanted.items():
        table.update(key, value)
    assert table.lookup(7) == wanted[(7).to_bytes(8, "little")]
    assert table.lookup(10_000) is None
    assert dict(table.items()) == wanted
    assert table.delete(7)
    assert not table.delete(7)
    assert len(list(table.items(delete=True))) == 9_999
    assert list(table.items()) == []
    with pytest.raises(ValueError, match="12 bytes"):
        table.update(1, b"short")
    table.close()


@IN_KERNEL
def test_arrays_are_memory_shared_with_the_kernel() -> None:
    array = Map.create("array", bpf.ARRAY, 4, 8, 100, bpf.MAPPABLE)
    array.memory().view(np.uint64)[42] = 4242
    assert array.lookup(42) == (4242).to_bytes(8, "little")
    array.update(43, 4343)
    assert array.memory().view(np.uint64)[43] == 4343
    per_cpu = Map.create("each", bpf.PER_CPU_ARRAY, 4, 4, 1)
    assert len(per_cpu.lookup(0) or b"") == 8 * bpf.cpus()
    ring = RingBuffer(Map.create("ring", bpf.RING, 0, 0, 4096))
    assert ring.drain() == []


@IN_KERNEL
def test_pins_outlive_their_process(bpffs: Path) -> None:
    path = bpffs / "kept"
    made = Map.create("kept", bpf.HASH, 4, 4, 5)
    made.update(3, 33)
    made.pin(path)
    made.close()
    try:
        found = Map.pinned(path)
        assert (found.kind, found.key_size, found.value_size, found.entries) == (bpf.HASH, 4, 4, 5)
        assert found.lookup(3) == (33).to_bytes(4, "little")
        with pytest.raises(WirelagError, match=r"is pinned there|is not an XDP program"):
            dataplane.pinned_program(str(path))
    finally:
        path.unlink()
    with pytest.raises(WirelagError, match="no program is pinned there"):
        dataplane.pinned_program(str(path))


# ---- errors ----


@IN_KERNEL
def test_damaged_objects_are_refused_in_a_line(tmp_path: Path) -> None:
    data, rng = shipped("headers").read_bytes(), random.Random(4)
    path = tmp_path / "x.bpf.o"
    for number in range(500):
        broken = bytearray(data)
        if number % 2:
            for _ in range(rng.randrange(1, 8)):
                broken[rng.choice((rng.randrange(64), rng.randrange(len(broken))))] = rng.randrange(256)
        else:
            broken = broken[: rng.randrange(len(broken))]
        with contextlib.suppress(ValueError):
            ObjectFile.read(bytes(broken))
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(WirelagError, match=r"it is damaged|it has no"):
        Dataplane(path)
    path.write_text("no object")
    with pytest.raises(WirelagError, match="is not an eBPF object file"):
        Dataplane(path)
    with pytest.raises(WirelagError, match="cannot read"):
        Dataplane(tmp_path / "nothing")


def test_without_clang_the_command_names_the_missing_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dataplane, "_package_folders", lambda: [tmp_path])
    with pytest.raises(UnavailableError, match=r"lda\.bpf\.o is missing: wirelag was built without clang"):
        shipped("lda")


@IN_KERNEL
def test_without_permission_it_names_the_capability() -> None:
    script = """
from wirelag.capture.privileges import drop_privileges
from wirelag.ebpf.dataplane import Dataplane, shipped
shipped("lda")
drop_privileges()
try:
    Dataplane("lda")
except Exception as error:
    print(type(error).__name__, error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.startswith("UnavailableError lda: the kernel does not permit eBPF programs")
    assert "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON" in said


@IN_KERNEL
@pytest.mark.parametrize(
    "lacking", ["perfmon", *(pytest.param(n, marks=pytest.mark.acceptance) for n in ("bpf", "net_admin"))]
)
def test_each_missing_capability_is_named_in_the_same_line(lacking: str, tool: Callable[[str], str]) -> None:
    kept = ",".join(["-all", *(f"+{name}" for name in ("bpf", "net_admin", "perfmon") if name != lacking)])
    sets = [f"--{kind}={kept}" for kind in ("bounding-set", "inh-caps", "ambient-caps")]
    without = (tool("setpriv"), "--securebits=+noroot", *sets)
    ran = as_process("watch", "lo", "rtt", "--in-kernel", "--then", "/sys/fs/bpf/none", before=without, code=2)
    assert ran.stderr.count("\n") == 1
    assert "fridge: the kernel does not permit eBPF programs: run as root, or with CAP_BPF, CAP_NET_ADMIN" in ran.stderr


@IN_KERNEL
def test_an_old_kernel_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = KernelLda(Lda(), None, LONG_NS, packet_id=PacketId())
    monkeypatch.setattr("platform.release", lambda: "5.15.0-91-generic")
    with pytest.raises(UnavailableError, match=r"Linux 5\.15\.0-91-generic is too old: .* needs 6\.6 or newer"):
        meter.hooks.plane.attach_egress("wl_lda", "lo")
    refused = OSError(22, "Invalid argument")
    assert "Linux 5.15.0-91-generic is too old" in dataplane._refused("lda", refused)
    meter.close()


@IN_KERNEL
def test_the_verifier_s_last_message_is_shown(tmp_path: Path, tool: Callable[[str], str]) -> None:
    source, target = tmp_path / "bad.bpf.c", tmp_path / "bad.bpf.o"
    source.write_text(
        '__attribute__((section("xdp"), used)) int bad(void *context) { return *(int *)0x1234; }\n'
        'char said[] __attribute__((section("license"), used)) = "GPL";\n'
    )
    subprocess.run([tool("clang"), "-O2", "-g", "-target", "bpf", "-w", "-c", source, "-o", target], check=True)
    with pytest.raises(UnavailableError, match=r"^bad: the kernel's verifier refuses it \(.+\); please report it$"):
        Dataplane(target)


# ---- several CPUs ----


@IN_KERNEL
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason=needs.TWO_CPUS)
@pytest.mark.parametrize("stem", ["lda", "fridge"])
def test_cpus_lose_no_packets(stem: str) -> None:
    lda = Lda(rows=4, shifts=(0,), tail=16)
    meter: KernelLda | KernelFridge
    if stem == "lda":
        meter = KernelLda(lda, None, LONG_NS, packet_id=PacketId())
    else:
        meter = KernelFridge(Fridge(memory=1 << 12, slots=(2,), probabilities=(1.0,)), None, LONG_NS)
    meter.hooks.run(bytes(64), 7 * LONG_NS)
    (program,) = meter.hooks.plane.programs.values()
    frames = [tcp(True, flow, 2, 2, 24, 50) for flow in range(4)]
    runs, each = 20, 10_000

    def work(cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})
        for number in range(runs):
            program.run(frames[(cpu + number) % len(frames)], repeat=each)

    threads = [threading.Thread(target=work, args=(cpu,)) for cpu in sorted(os.sched_getaffinity(0))[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = meter.cut(Interval(7 * LONG_NS, 8 * LONG_NS))
    assert found.packets == 2 * runs * each
    assert not meter.hooks.counters["failed"].any()
    if isinstance(meter, KernelLda):
        assert found.buckets[0::2].sum() == found.packets
        assert int(found.buckets[1::2].sum()) == found.packets * 7 * LONG_NS % 2**64
    else:
        assert 0 < found.counts["requests"] <= found.packets
        assert meter.busy < found.counts["requests"]
    meter.close()


# ---- the command ----


def test_options_that_need_packets_are_refused() -> None:
    for given, hint in (
        (["eth0", "rtt", "--in-kernel", "--filter", "tcp"], "--filter"),
        (["rtt", "-r", "x.pcap", "--in-kernel"], "-r"),
        (["eth0", "rtt", "--then", "/sys/fs/bpf/x"], "--then"),
    ):
        assert hint in wirelag("watch", *given, code=2).stderr
