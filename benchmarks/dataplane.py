"""The cost of a packet in our programs, relative to one that only passes it (BPF_PROG_TEST_RUN; needs root).

    python benchmarks/dataplane.py

A frame runs a million times through each, in turn; the smallest mean of several counts. Before each run another program
turns it into the next packet of a connection, or of one of many, so that no program sees the same packet twice; its
cost is subtracted. `any packet`: each is a marker, as where hardly any come; 1 in 1,024 is usual. `told`: the program
gets the time from outside, as in tests. `clock`: it reads the kernel's clock; the second row is the cost of that alone.
The balancer always reads it (benchmarks/balance.py explains its rows).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import balance
import numpy as np

from wirelag.ebpf import bpf
from wirelag.ebpf.bpf import Map, Program
from wirelag.ebpf.dataplane import Dataplane
from wirelag.ebpf.fridge import KernelFridge
from wirelag.ebpf.lda import KernelLda
from wirelag.ebpf.pirate import KernelPirate
from wirelag.estimators.fridge import Fridge
from wirelag.estimators.lda import Lda
from wirelag.estimators.pirate import Pirate
from wirelag.packets.grouping import Grouping
from wirelag.packets.intervals import Delimiters
from wirelag.packets.packet_id import PacketId

REPEAT, ROUNDS, FLOWS = 1_000_000, 5, 1000
LONG_NS = 10**15
BEGINS_NS = 2 * LONG_NS
PASSES = struct.pack("<BBhi", 0xB7, 0, 0, 2) + struct.pack("<BBhi", 0x95, 0, 0, 0)
READS_CLOCK = struct.pack("<BBhi", 0x85, 0, 0, 5) + PASSES  # bpf_ktime_get_ns

Opened = tuple[Program, Map | None]  # a program, and the variables that hold its time


@dataclass(frozen=True, slots=True)
class Case:
    """A program: its limit, as a multiple of passing, and how it is opened, with the time given or not."""

    name: str
    limit: float | None
    mover: str
    open: Callable[[ExitStack, bool], Opened]


def frame() -> bytes:
    """TCP over IPv4 with timestamps and 100 bytes."""
    segment = struct.pack(">HHIIBBHHH", 40_000, 80, 1, 1, 0x80, 0x18, 500, 0, 0)
    segment += struct.pack(">III", 0x0101080A, 1, 1) + bytes(100)
    header = struct.pack(">HBBHHHBBHII", 0x800, 0x45, 0, 20 + len(segment), 1, 0x4000, 64, 6, 0, 0x0A000001, 0x0A000002)
    return bytes(12) + header + segment


def bare(code: bytes) -> Callable[[ExitStack, bool], Opened]:
    """A program of a few instructions."""

    def opened(stack: ExitStack, told: bool) -> Opened:
        program = Program.load("bare", bpf.XDP, code, b"GPL\0", 0, b"", 37)
        stack.callback(program.close)
        return program, None

    return opened


def hooked(stack: ExitStack, meter: KernelLda | KernelFridge, program: str) -> Opened:
    """A program that has intervals; check at the end that it used every packet, or it cost too little."""
    hooks = meter.hooks
    hooks.plane.variable("replay_ns").view(np.uint64)[0] = BEGINS_NS

    def check() -> None:
        assert not meter.statistics().dropped, f"{program} took no packets"
        hooks.close()

    stack.callback(check)
    return hooks.plane.programs[program], hooks.plane.maps[".bss"]


def lda(
    delimiters: Delimiters | None = None, by: str | None = None, segments: int = 0
) -> Callable[[ExitStack, bool], Opened]:
    """Cut by the clock or at packets; as a whole, by class, and of several segments that all take it."""

    def opened(stack: ExitStack, told: bool) -> Opened:
        meter = KernelLda(
            Lda(),
            None,
            LONG_NS,
            packet_id=PacketId(),
            delimiters=delimiters,
            grouping=Grouping(by, most=100) if by else None,  # type: ignore[arg-type]
            room=segments,
            replayed=told,
        )
        for _ in range(segments):
            meter.open()
        return hooked(stack, meter, "wl_lda")

    return opened


def fridge(stack: ExitStack, told: bool) -> Opened:
    meter = KernelFridge(Fridge(memory=1 << 20), None, LONG_NS, replayed=told)
    return hooked(stack, meter, "wl_fridge")


def pirate(method: str) -> Callable[[ExitStack, bool], Opened]:
    """Requests of many connections."""

    def opened(stack: ExitStack, told: bool) -> Opened:
        meter = stack.enter_context(KernelPirate(Pirate(method), replayed=told, all_are_clients=True))  # type: ignore[arg-type]
        return meter.program, meter.variables

    return opened


CASES = (
    Case("pass", None, "moving", bare(PASSES)),
    Case("pass, clock read", None, "moving", bare(READS_CLOCK)),
    Case("lda, cut by the clock", 2.5, "moving", lda()),
    Case("lda, cut at 1 in 1,024 packets", 3.0, "moving", lda(Delimiters(10**12))),
    Case("lda, cut at any packet", 3.0, "moving", lda(Delimiters(10**12, 0))),
    Case("lda, cut at any packet, by DSCP", None, "moving", lda(Delimiters(10**12, 0), "dscp")),
    Case("lda, cut at any packet, 2 segments", None, "moving", lda(Delimiters(10**12, 0), None, 2)),
    Case("fridge, requests of 1,000 flows", 4.0, "moving", fridge),
    Case("fridge, each packet asks and answers", 4.0, "talking", fridge),
    Case("pirate modes", 5.0, "moving", pirate("modes")),
    Case("pirate auto", 7.0, "moving", pirate("auto")),
)


def cost_ns(case: Case, told: bool) -> float:
    """The cost of one packet, as if it came alone."""
    with ExitStack() as stack:
        program, clock = case.open(stack, told)
        only_passes, _ = bare(PASSES)(stack, told)
        shared = {".bss": clock} if clock is not None and told else {}
        constants = {"flows": FLOWS} if case.mover == "moving" else {}
        mover = stack.enter_context(Dataplane(case.mover, constants=constants, shared=shared))
        first, data = mover.programs[f"wl_{case.mover}"], frame()

        def least(target: Program) -> float:
            mover.maps["next"].update(0, target)
            return first.run(data, repeat=REPEAT).duration_ns

        rounds = [
            (least(program), least(only_passes), only_passes.run(data, REPEAT).duration_ns) for _ in range(ROUNDS)
        ]
        with_it, without, passing = (min(column) for column in zip(*rounds, strict=True))
        return with_it - without + passing


def row(name: str, told: float | None, clock: float, base: float, limit: float | None) -> bool:
    """Print it; return whether it is within its limit: with the time given, if possible."""
    cells = ["", ""] if told is None else [f"{told:.0f} ns", f"{told / base:.2f}"]
    cells += [f"{limit:.1f}" if limit else "", f"{clock:.0f} ns", f"{clock / base:.2f}"]
    print(f"{name:38}" + "".join(f"{cell:>8}" for cell in cells))
    return limit is None or (clock if told is None else told) <= limit * base


def main() -> int:
    """Print one row each; return whether all are within their limits."""
    base = cost_ns(CASES[0], True)
    print(f"{'program':38}{'told':>8}{'ratio':>8}{'limit':>8}{'clock':>8}{'ratio':>8}")
    within = [row("pass", base, base, base, None)]
    for case in CASES[1:]:
        within.append(row(case.name, cost_ns(case, True), cost_ns(case, False), base, case.limit))
    balanced = balance.costs()
    passing = balanced.pop("pass")
    for name, ratio in balanced.items():
        within.append(row(name, None, ratio * passing, passing, None if name == balance.ONLY else balance.LIMIT))
    return int(not all(within))


if __name__ == "__main__":
    sys.exit(main())
