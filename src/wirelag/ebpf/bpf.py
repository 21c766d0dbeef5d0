"""eBPF maps, programs and links through bpf(2): only the kernel is needed at run time.

Law: a kernel object lives as long as its file descriptor here or its pin in bpffs. Closing a link detaches it, and the
kernel closes it when the process ends in any way. Failures are OSErrors with the kernel's number; dataplane.py turns
them into one line.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

MapKey = bytes | int
Bytes = npt.NDArray[np.uint8]

_NUMBERS: Final = {"x86_64": 321, "ppc64le": 361, "s390x": 351}  # numbers of the system call; 280 on all newer machines
_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _NEXT, _PROGRAM_LOAD, _PIN, _GET = range(8)
_RUN, _INFO, _BTF_LOAD, _FREEZE, _BATCH, _BATCH_DELETE, _LINK, _LINK_UPDATE = 10, 15, 18, 22, 24, 25, 28, 29
_LIVE_FRAMES: Final = 2  # flag of a test run
HASH, ARRAY, PROGRAMS, PER_CPU_HASH, PER_CPU_ARRAY, LRU_PER_CPU, RING = 1, 2, 3, 5, 6, 10, 27
MAPPABLE, READ_ONLY_PROGRAM = 1 << 10, 1 << 7
XDP, CLASSIFIER = 6, 3
_ON_XDP, _TCX_EGRESS = 37, 47
MODES: Final = {"native": 4, "generic": 2}
_AT_ONCE: Final = 4096
_LOADS: Final = 5

_libc = ctypes.CDLL(None, use_errno=True)


def cpus() -> int:
    """The number of possible CPUs, which is the number of values in a per-CPU map."""
    text = Path("/sys/devices/system/cpu/possible").read_text(encoding="ascii")
    return max(int(part.rpartition("-")[2]) for part in text.strip().split(",")) + 1


def call(command: int, attributes: bytes) -> tuple[int, bytes]:
    """The system call: returns its result, and the attributes as the kernel left them."""
    memory = ctypes.create_string_buffer(attributes, len(attributes))
    given = _libc.syscall(_NUMBERS.get(platform.machine(), 280), command, memory, len(attributes))
    if given < 0:
        number = ctypes.get_errno()
        raise RefusedError(number, os.strerror(number), memory.raw)
    return given, memory.raw


class RefusedError(OSError):
    """The kernel refused; `left` are the attributes as it left them."""

    def __init__(self, number: int, text: str, left: bytes) -> None:
        super().__init__(number, text)
        self.left = left


def _at(memory: ctypes.Array[ctypes.c_char] | None) -> int:
    return ctypes.addressof(memory) if memory is not None else 0


def _room(data: bytes | int) -> ctypes.Array[ctypes.c_char]:
    """Memory that the kernel reads or writes; at least one byte."""
    return ctypes.create_string_buffer(max(1, data)) if isinstance(data, int) else ctypes.create_string_buffer(data)


def close(fd: int) -> None:
    """Release a kernel object; if it is pinned, it stays."""
    if fd >= 0:
        os.close(fd)


def pin(fd: int, path: str | Path) -> None:
    """Make it outlive the process, as a file in bpffs."""
    name = _room(os.fsencode(path))
    call(_PIN, struct.pack("<QII", _at(name), fd, 0))


def fetch(path: str | Path) -> int:
    """The descriptor of the object pinned there."""
    name = _room(os.fsencode(path))
    return call(_GET, struct.pack("<QII", _at(name), 0, 0))[0]


def info(fd: int, size: int) -> bytes:
    """The kernel's description of an object."""
    found = _room(size)
    call(_INFO, struct.pack("<IIQ", fd, size, _at(found)))
    return found.raw[:size]


class Map:
    """Keys and values shared with programs. A per-CPU value has one part per CPU, rounded up to 8 bytes."""

    def __init__(self, fd: int, name: str, kind: int, key_size: int, value_size: int, entries: int) -> None:
        self.fd = fd
        self.name, self.kind, self.key_size, self.value_size, self.entries = name, kind, key_size, value_size, entries
        per_cpu = kind in (PER_CPU_HASH, PER_CPU_ARRAY, LRU_PER_CPU)
        self._width = (value_size + 7) // 8 * 8 * cpus() if per_cpu else value_size
        self._memory: Bytes | None = None

    @classmethod
    def create(
        cls,
        name: str,
        kind: int,
        key_size: int,
        value_size: int,
        entries: int,
        flags: int = 0,
        btf: tuple[int, int, int] = (0, 0, 0),
    ) -> Map:
        """Create a map; `btf` is the descriptor of the types, and the types of key and value."""
        short = "".join(c for c in name if c.isalnum() or c in "_.")[:15].encode()
        head = struct.pack("<IIIII", kind, key_size, value_size, entries, flags)
        fd, _ = call(_MAP_CREATE, head + struct.pack("<II16sIIII", 0, 0, short, 0, *btf))
        return cls(fd, name, kind, key_size, value_size, entries)

    @classmethod
    def pinned(cls, path: str | Path) -> Map:
        """Open the map pinned there."""
        fd = fetch(path)
        kind, _, key_size, value_size, entries = struct.unpack_from("<5I", info(fd, 80))
        return cls(fd, Path(path).name, kind, key_size, value_size, entries)

    def close(self) -> None:
        """Release it."""
        close(self.fd)
        self.fd = -1

    def pin(self, path: str | Path) -> None:
        """Make it outlive the process, as a file in bpffs."""
        pin(self.fd, path)

    def _key(self, key: MapKey) -> ctypes.Array[ctypes.c_char]:
        return _room(key.to_bytes(self.key_size, "little") if isinstance(key, int) else key)

    def lookup(self, key: MapKey) -> bytes | None:
        """The value, or None if there is none."""
        place, value = self._key(key), _room(self._width)
        try:
            call(_LOOKUP, struct.pack("<I4xQQQ", self.fd, _at(place), _at(value), 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return value.raw

    def update(self, key: MapKey, value: bytes | int | Program, flags: int = 0) -> None:
        """Set a value; in a program array, a program."""
        if isinstance(value, Program):
            value = value.fd
        if isinstance(value, int):
            value = value.to_bytes(self._width, "little")
        if len(value) != self._width:
            raise ValueError(f"{self.name}: values have {self._width} bytes, not {len(value)}")
        place, memory = self._key(key), _room(value)
        call(_UPDATE, struct.pack("<I4xQQQ", self.fd, _at(place), _at(memory), flags))

    def delete(self, key: MapKey) -> bool:
        """Delete a key; return whether it existed."""
        place = self._key(key)
        try:
            call(_DELETE, struct.pack("<I4xQQQ", self.fd, _at(place), 0, 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        return True

    def items(self, delete: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """All keys with their values, thousands per call; with `delete` they are removed."""
        at_once, before = min(self.entries, _AT_ONCE), None
        keys, values = _room(self.key_size * at_once), _room(self._width * at_once)
        while True:
            after = _room(max(self.key_size, 8))
            places = (_at(before), _at(after), _at(keys), _at(values))
            attributes = struct.pack("<QQQQIIQQ", *places, at_once, self.fd, 0, 0)
            over = False
            try:
                _, left = call(_BATCH_DELETE if delete else _BATCH, attributes)
            except RefusedError as refused:
                if refused.errno == errno.ENOSPC and at_once < self.entries:  # a hash bucket is larger than the buffer
                    at_once = min(self.entries, at_once * 4)
                    keys, values = _room(self.key_size * at_once), _room(self._width * at_once)
                    continue
                if refused.errno != errno.ENOENT:
                    raise
                over, left = True, refused.left
            (count,) = struct.unpack_from("<I", left, 32)
            all_keys, all_values = keys.raw, values.raw
            for i in range(count):
                yield (
                    all_keys[i * self.key_size : (i + 1) * self.key_size],
                    all_values[i * self._width : (i + 1) * self._width],
                )
            if over:
                return
            before = after

    def memory(self) -> Bytes:
        """The values of an array as programs see them, each rounded up to 8 bytes."""
        if self._memory is None:
            size = (self.value_size + 7) // 8 * 8 * self.entries
            pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
            self._memory = np.frombuffer(mmap.mmap(self.fd, pages), np.uint8)[:size]
        return self._memory

    def freeze(self) -> None:
        """Make it read-only for user space, so that the verifier may treat its values as constants."""
        call(_FREEZE, struct.pack("<I", self.fd))


class RingBuffer:
    """Records that programs submit, in order. Memory: the map's."""

    def __init__(self, source: Map) -> None:
        self._map, self._size, page = source, source.entries, mmap.PAGESIZE
        ours = mmap.mmap(source.fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        theirs = mmap.mmap(source.fd, page + 2 * self._size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._read = np.frombuffer(ours, np.uint64, 1)
        self._written = np.frombuffer(theirs, np.uint64, 1)
        self._records = memoryview(theirs)[page:]

    def fileno(self) -> int:
        """The descriptor to poll for records."""
        return self._map.fd

    def drain(self) -> list[bytes]:
        """All available records; their space is then free again."""
        found, at, end = [], int(self._read[0]), int(self._written[0])
        while at < end:
            place = at & (self._size - 1)
            (head,) = struct.unpack_from("<I", self._records, place)
            if head >> 31:  # still being written
                break
            length = head & 0x3FFFFFFF
            if not head >> 30 & 1:
                found.append(bytes(self._records[place + 8 : place + 8 + length]))
            at += (length + 8 + 7) // 8 * 8
        self._read[0] = at
        return found


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of a test run."""

    result: int
    duration_ns: int  # average of one run
    frame: bytes


class Program:
    """A program that the verifier has accepted."""

    def __init__(self, fd: int, name: str, kind: int, log: str = "") -> None:
        self.fd = fd
        self.name, self.kind, self.log = name, kind, log

    @classmethod
    def load(
        cls, name: str, kind: int, code: bytes, license: bytes, btf: int, functions: bytes, attach: int, level: int = 0
    ) -> Program:
        """Load and verify it; an OSError carries the verifier's log as `log`."""
        log = _room(1 << 22 if level else 0)
        text, legal, known = _room(code), _room(license), _room(functions)
        head = struct.pack("<IIQQ", kind, len(code) // 8, _at(text), _at(legal))
        said = struct.pack("<IIQ", level, len(log) if level else 0, _at(log) if level else 0)
        named = struct.pack(
            "<II16sIIIIQI", 0, 0, name[:15].encode(), 0, attach, btf, 8, _at(known), len(functions) // 8
        )
        for left in reversed(range(_LOADS)):
            try:
                fd, _ = call(_PROGRAM_LOAD, head + said + named)
                break
            except OSError as error:
                if error.errno == errno.EAGAIN and left:  # a signal interrupted the verifier
                    continue
                error.log = log.value.decode(errors="replace")  # type: ignore[attr-defined]
                raise
        return cls(fd, name, kind, log.value.decode(errors="replace"))

    @classmethod
    def pinned(cls, path: str | Path) -> Program:
        """Open the program pinned there."""
        fd = fetch(path)
        (kind,) = struct.unpack_from("<I", info(fd, 80))
        return cls(fd, Path(path).name, kind)

    def close(self) -> None:
        """Release it; where it is attached, it stays."""
        close(self.fd)
        self.fd = -1

    def pin(self, path: str | Path) -> None:
        """Make it outlive the process, as a file in bpffs."""
        pin(self.fd, path)

    def run(self, frame: bytes, repeat: int = 1, context: bytes = b"") -> Ran:
        """Run it on a given frame."""
        given, after, around = _room(frame), _room(len(frame) + 256), _room(context)
        sizes = struct.pack("<IIIIQQII", self.fd, 0, len(frame), len(frame) + 256, _at(given), _at(after), repeat, 0)
        rest = struct.pack("<IIQQIII4x", len(context), 0, _at(around) if context else 0, 0, 0, 0, 0)
        _, left = call(_RUN, sizes + rest)
        _, result, _, size, _, _, _, duration_ns = struct.unpack_from("<IIIIQQII", left)
        return Ran(result, duration_ns, after.raw[:size])

    def send(self, frame: bytes, count: int) -> None:
        """Run it on copies of a frame that go where it sends them: out of an interface, or into this host."""
        given = _room(frame)
        sizes = struct.pack("<IIIIQQII", self.fd, 0, len(frame), 0, _at(given), 0, count, 0)
        call(_RUN, sizes + struct.pack("<IIQQIII4x", 0, 0, 0, 0, _LIVE_FRAMES, 0, 0))

    def attach_xdp(self, interface: str, mode: Literal["native", "generic", "any"] = "any") -> Link:
        """Run it on all incoming packets: in the driver, or behind it if the driver does not support XDP."""
        index = socket.if_nametoindex(interface)
        if mode != "any":
            return Link(_link(self.fd, index, _ON_XDP, MODES[mode]), mode)
        try:
            return self.attach_xdp(interface, "native")
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES, errno.EBUSY, errno.ENODEV):
                raise
        return self.attach_xdp(interface, "generic")

    def attach_egress(self, interface: str) -> Link:
        """Run it on all outgoing packets."""
        return Link(_link(self.fd, socket.if_nametoindex(interface), _TCX_EGRESS, 0), "tcx")


def _link(program: int, index: int, where: int, flags: int) -> int:
    return call(_LINK, struct.pack("<IIIIIIQ16x", program, index, where, flags, 0, 0, 0))[0]


class Link:
    """A program attached to an interface, as long as this is open or pinned."""

    def __init__(self, fd: int, mode: str) -> None:
        self.fd = fd
        self.mode = mode

    @classmethod
    def pinned(cls, path: str | Path) -> Link:
        """Open the link pinned there."""
        return cls(fetch(path), "pinned")

    def close(self) -> None:
        """Detach it, unless it is pinned."""
        close(self.fd)
        self.fd = -1

    def pin(self, path: str | Path) -> None:
        """Make it outlive the process, as a file in bpffs."""
        pin(self.fd, path)

    def update(self, program: Program) -> None:
        """Replace its program atomically."""
        call(_LINK_UPDATE, struct.pack("<IIII", self.fd, program.fd, 0, 0))

    def alive(self) -> bool:
        """Whether the interface still exists."""
        with contextlib.suppress(OSError):
            kind, _, _, _, index = struct.unpack_from("<IIIII", info(self.fd, 64))
            return bool(index) and kind != 0
        return False


def load_types(data: bytes) -> int:
    """Load types (BTF) into the kernel; return the descriptor."""
    memory = _room(data)
    return call(_BTF_LOAD, struct.pack("<QQIII4x", _at(memory), 0, len(data), 0, 0))[0]
