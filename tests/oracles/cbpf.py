"""Classic BPF in plain Python: what an expression of tcpdump, compiled, does with a frame.

The independent twin of `kernels/cbpf.h`, and the tests' oracle for it. After McCanne and Jacobson, *The BSD Packet
Filter*, 1993, and `man bpf`. Instructions are (code, jt, jf, k), all arithmetic is modulo 2^32.
"""

import operator
import struct
from collections.abc import Callable
from typing import NamedTuple

MODULUS = 1 << 32
CLASSES = ("ld", "ldx", "st", "stx", "alu", "jmp", "ret", "misc")
MODES = {0x00: "imm", 0x20: "abs", 0x40: "ind", 0x60: "mem", 0x80: "len", 0xA0: "msh"}
SIZES = {0x00: 4, 0x08: 2, 0x10: 1}
ARITHMETIC: dict[int, Callable[[int, int], int]] = {
    0x00: operator.add, 0x10: operator.sub, 0x20: operator.mul, 0x30: operator.floordiv, 0x40: operator.or_,
    0x50: operator.and_, 0x60: lambda a, b: a << b if b < 32 else 0, 0x70: lambda a, b: a >> b if b < 32 else 0,
    0x80: lambda a, _: -a, 0x90: operator.mod, 0xA0: operator.xor,
}  # fmt: skip
TESTS: dict[int, Callable[[int, int], bool]] = {
    0x10: operator.eq, 0x20: operator.gt, 0x30: operator.ge, 0x40: lambda a, b: bool(a & b),
}  # fmt: skip


class Instruction(NamedTuple):
    """One step of a program."""

    code: int
    jt: int
    jf: int
    k: int


class _RejectedError(Exception):
    """The frame is too short for what the program reads, or it divides by zero."""


def instructions(program: bytes) -> list[Instruction]:
    return [Instruction(*words) for words in struct.iter_unpack("=HBBI", program)]


def accepted(program: list[Instruction], frame: bytes, wire_length: int) -> int:
    """How many bytes of the frame the program accepts."""
    try:
        return _run(program, frame, wire_length)
    except (_RejectedError, ZeroDivisionError):
        return 0


def _run(program: list[Instruction], frame: bytes, wire_length: int) -> int:
    a = x = at = 0
    memory: dict[int, int] = {}
    while True:
        code, jt, jf, k = program[at]
        at += 1
        by_x = x if code & 0x08 else k
        match CLASSES[code & 7]:
            case "ld" | "ldx" as where:
                match MODES[code & 0xE0]:
                    case "imm":
                        value = k
                    case "len":
                        value = wire_length
                    case "mem":
                        value = memory.get(k, 0)
                    case "abs":
                        value = _bytes(frame, k, SIZES[code & 0x18])
                    case "ind":
                        value = _bytes(frame, x + k, SIZES[code & 0x18])
                    case _:
                        value = 4 * (_bytes(frame, k, 1) & 0x0F)
                a, x = (value, x) if where == "ld" else (a, value)
            case "st":
                memory[k] = a
            case "stx":
                memory[k] = x
            case "alu":
                a = ARITHMETIC[code & 0xF0](a, by_x) % MODULUS
            case "jmp":
                what = code & 0xF0
                at += k if what == 0 else jt if TESTS[what](a, by_x) else jf
            case "ret":
                return a if code & 0x18 == 0x10 else k
            case _:
                a, x = (x, x) if code & 0x80 else (a, a)


def _bytes(frame: bytes, start: int, size: int) -> int:
    if start + size > len(frame):
        raise _RejectedError
    return int.from_bytes(frame[start : start + size], "big")
