"""Our eBPF programs: the package's object files, loaded with their sizes and constants, ready to be attached.

Law: every failure is a WirelagError of one line that says what to do. A measuring program never changes a packet, and
disappears with its process.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import platform
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from wirelag.capture.privileges import may_trace
from wirelag.ebpf import bpf
from wirelag.ebpf.bpf import Bytes, Link, Map, Program
from wirelag.ebpf.elf import Function, MapShape, ObjectFile, Symbol
from wirelag.errors import WirelagError

CAPABILITIES: Final = "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
OLDEST: Final = (6, 1)  # a long-term kernel; older verifiers were not tried
OLDEST_EGRESS: Final = (6, 6)  # tcx
_MAP_FD, _MAP_VALUE, _CALL, _FUNCTION_ADDRESS = 1, 2, 1, 4  # in an instruction's source register
_LOAD_IMMEDIATE, _CALL_CODE = 0x18, 0x85
_WITHOUT_TYPES: Final = (3, 4, 12, 13, 27)  # kinds of maps without types: programs, perf events, maps, ring buffers
_KINDS: Final = {"xdp": (bpf.XDP, 37), "tc": (bpf.CLASSIFIER, 0)}  # by section name: kind, attach type


class UnavailableError(WirelagError):
    """The kernel cannot, or may not, run our programs here; the same work can be done in user space."""


def kernel() -> tuple[int, int]:
    """The version of the running kernel."""
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def shipped(stem: str) -> Path:
    """The object file that came with the package."""
    path = Path(__file__).parents[1] / "bpf" / f"{stem}.bpf.o"
    for folder in _package_folders():
        if (folder / "bpf" / path.name).exists():
            return folder / "bpf" / path.name
    raise UnavailableError(f"{path.name} is missing: wirelag was built without clang: install clang, rebuild wirelag")


def _package_folders() -> list[Path]:
    """All folders of the package: an editable installation has sources and build results in different folders."""
    found = importlib.util.find_spec("wirelag")
    return [Path(folder) for folder in (found.submodule_search_locations if found else None) or ()]


class Dataplane:
    """A loaded object file.

    `sizes` are entries by map, `constants` the `const volatile` variables, `shared` maps created by others.
    """

    def __init__(
        self,
        stem: str | Path,
        *,
        sizes: Mapping[str, int] | None = None,
        constants: Mapping[str, int | bytes] | None = None,
        shared: Mapping[str, Map] | None = None,
        statistics: bool = False,
    ) -> None:
        self.path = shipped(stem) if isinstance(stem, str) else stem
        self.name = self.path.name.partition(".")[0]
        self.maps: dict[str, Map] = {}
        self.programs: dict[str, Program] = {}
        self.links: list[Link] = []
        self._types, self._shared = -1, frozenset(shared or ())
        self._object = _read(self.path)
        try:
            self._load(sizes or {}, constants or {}, shared or {}, statistics)
        except OSError as error:
            self.close()
            raise UnavailableError(_refused(self.name, error)) from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Dataplane:
        """Return itself; leaving the context closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def run_then(self, path: str) -> None:
        """Let the program pinned there see each packet afterwards."""
        try:
            self.maps["then"].update(0, pinned_program(path))
        except OSError as error:
            raise WirelagError(f"{path}: cannot run after ours ({error.strerror}): use an XDP program") from None

    def close(self) -> None:
        """Detach its programs and release everything that is not pinned or shared."""
        for link in self.links:
            link.close()
        for program in self.programs.values():
            program.close()
        for name, one in self.maps.items():
            if name not in self._shared:
                one.close()
        bpf.close(self._types)
        self.links, self._types = [], -1

    # ---- loading ----

    def _load(
        self,
        sizes: Mapping[str, int],
        constants: Mapping[str, int | bytes],
        shared: Mapping[str, Map],
        statistics: bool,
    ) -> None:
        for unknown in [name for name in sizes if name not in self._object.maps]:
            raise KeyError(f"{self.name}: unknown map {unknown}")
        self._types = bpf.load_types(self._object.btf.data)
        for name, shape in self._object.maps.items():
            self.maps[name] = shared[name] if name in shared else self._create(shape, sizes.get(name, shape.entries))
        self._create_sections(constants, shared)
        for function in list(self._object.programs()):
            section = self._object.sections[function.section].name
            kind, attach = _KINDS[section.partition("/")[0]]
            code, functions = self._linked(function)
            licensed = self._object.license
            arguments = (function.name, kind, code, licensed, self._types, functions, attach)
            try:
                program = Program.load(*arguments, level=4 if statistics else 0)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOSYS):
                    Program.load(*arguments, level=1).close()  # fails again, with a log
                raise
            self.programs[function.name] = program

    def _create(self, shape: MapShape, entries: int) -> Map:
        typed = shape.kind not in _WITHOUT_TYPES and shape.key_type and shape.value_type
        types = (self._types, shape.key_type, shape.value_type) if typed else (0, 0, 0)
        return Map.create(shape.name, shape.kind, shape.key_size, shape.value_size, entries, shape.flags, types)

    def _create_sections(self, constants: Mapping[str, int | bytes], shared: Mapping[str, Map]) -> None:
        """Create the variables: arrays of one entry, one per section."""
        left = dict(constants)
        for section in self._object.sections:
            first = section.name.split(".")[1] if section.name.startswith(".") else ""
            if first not in ("rodata", "data", "bss") or not section.data:
                continue
            if section.name in shared:
                self.maps[section.name] = shared[section.name]
                continue
            data = bytearray(section.data)
            for name, offset, size, _ in self._object.btf.variables(section.name):
                if first == "rodata" and name in left:
                    value = left.pop(name)
                    given = (
                        value if isinstance(value, bytes) else (value & (1 << 8 * size) - 1).to_bytes(size, "little")
                    )
                    if len(given) != size:
                        raise ValueError(f"{self.name}: {name} has {size} bytes, not {len(given)}")
                    data[offset : offset + size] = given
            flags = bpf.MAPPABLE | (bpf.READ_ONLY_PROGRAM if first == "rodata" else 0)
            one = self.maps[section.name] = Map.create(section.name, bpf.ARRAY, 4, len(data), 1, flags)
            one.update(0, bytes(data))
            if first == "rodata":
                one.freeze()
        for unknown in left:
            raise KeyError(f"{self.name}: unknown constant {unknown}")

    def _linked(self, program: Function) -> tuple[bytes, bytes]:
        """A program followed by all functions that it calls, and the start of each with its type."""
        code, order, starts = bytearray(program.code), [program], {(program.section, program.start): 0}
        for function in order:  # grows while it runs
            for offset, symbol, at in self._references(function):
                if symbol is not None and not self._is_code(symbol):
                    continue
                called = self._called(function, offset, symbol, at)
                if called not in starts:
                    starts[called] = len(code) // 8
                    order.append(self._object.functions[called])
                    code += self._object.functions[called].code
        types = []
        for function in order:
            start = starts[function.section, function.start]
            for offset, symbol, at in self._references(function):
                self._relocate(code, start, function, offset, symbol, starts, at)
            known = self._object.btf.functions.get(self._object.sections[function.section].name, {})
            if function.start in known:
                types.append((start, known[function.start]))
        return bytes(code), b"".join(struct.pack("<II", *one) for one in sorted(types))

    def _is_code(self, symbol: Symbol) -> bool:
        return bool(self._object.sections[symbol.section].flags & 4)

    @staticmethod
    def _references(function: Function) -> list[tuple[int, Symbol | None, int]]:
        """Instructions that refer to something else: offset, target, and addend. Without a symbol: a call."""
        found: list[tuple[int, Symbol | None, int]] = []
        for offset in range(0, len(function.code), 8):
            code, registers = function.code[offset], function.code[offset + 1]
            (immediate,) = struct.unpack_from("<i", function.code, offset + 4)
            symbol = function.relocations.get(offset)
            if symbol is not None or (code == _CALL_CODE and registers >> 4 == _CALL):
                found.append((offset, symbol, immediate))
        return found

    def _called(self, function: Function, offset: int, symbol: Symbol | None, immediate: int) -> tuple[int, int]:
        """Section and offset of the function that an instruction calls."""
        if symbol is None:
            return function.section, function.start + offset + 8 * (immediate + 1)
        if function.code[offset] == _LOAD_IMMEDIATE:
            return symbol.section, symbol.value + immediate
        return symbol.section, symbol.value + 8 * (immediate + 1)

    def _relocate(
        self,
        code: bytearray,
        start: int,
        function: Function,
        offset: int,
        symbol: Symbol | None,
        starts: Mapping[tuple[int, int], int],
        immediate: int,
    ) -> None:
        at = 8 * start + offset
        if symbol is None or self._is_code(symbol):
            target = starts[self._called(function, offset, symbol, immediate)]
            struct.pack_into("<i", code, at + 4, target - at // 8 - 1)
            source = _CALL if code[at] == _CALL_CODE else _FUNCTION_ADDRESS
        elif (section := self._object.sections[symbol.section].name) == ".maps":
            struct.pack_into("<i", code, at + 4, self.maps[symbol.name].fd)
            source = _MAP_FD
        else:
            struct.pack_into("<i", code, at + 4, self.maps[section].fd)
            struct.pack_into("<i", code, at + 12, symbol.value + immediate)
            source = _MAP_VALUE
        code[at + 1] = code[at + 1] & 15 | source << 4

    # ---- after loading ----

    def variable(self, name: str) -> Bytes:
        """The bytes of a variable that is not constant, as programs see them."""
        for section in (".bss", ".data"):
            for found, offset, size, _ in self._object.btf.variables(section):
                if found == name:
                    return self.maps[section].memory()[offset : offset + size]
        raise KeyError(f"{self.name}: unknown variable {name}")

    def attach_xdp(self, program: str, interface: str) -> Link:
        """Attach to incoming packets: natively, or generically if the driver does not support XDP; see `Link.mode`."""
        try:
            link = self.programs[program].attach_xdp(interface)
        except OSError as error:
            raise UnavailableError(_not_attached(interface, error)) from None
        self.links.append(link)
        return link

    def attach_egress(self, program: str, interface: str) -> Link:
        """Attach to outgoing packets."""
        if kernel() < OLDEST_EGRESS:
            raise UnavailableError(f"{interface}: {_too_old(OLDEST_EGRESS, 'measuring outgoing packets needs')}")
        try:
            link = self.programs[program].attach_egress(interface)
        except OSError as error:
            raise UnavailableError(_not_attached(interface, error)) from None
        self.links.append(link)
        return link


def check_interface(name: str, index: int) -> None:
    """Raise a WirelagError if the interface went down or is gone."""
    try:
        with socket.socket() as any_socket:
            said = fcntl.ioctl(any_socket, 0x8913, struct.pack("16s16x", name.encode()))  # SIOCGIFFLAGS
        there, up = socket.if_nametoindex(name) == index, said[16] & 1
    except OSError:
        there, up = False, 0
    if not there or not up:
        raise WirelagError(f"{name}: the interface {'went down' if there else 'has gone'}; nothing more comes from it")


def shapes(stem: str) -> dict[str, MapShape]:
    """The shapes of an object's maps; nothing is loaded."""
    return _read(shipped(stem)).maps


def _read(path: Path) -> ObjectFile:
    try:
        return ObjectFile.read(path.read_bytes())
    except OSError as error:
        raise WirelagError(f"{path}: cannot read ({error.strerror})") from None
    except ValueError as error:
        raise WirelagError(f"{path}: {error}") from None


def pinned_program(path: str) -> Program:
    """An XDP program pinned by another user, to run after ours."""
    try:
        program = Program.pinned(path)
    except OSError as error:
        raise WirelagError(
            f"{path}: no program is pinned there ({error.strerror}); bpftool prog pin ... makes one"
        ) from None
    if program.kind != bpf.XDP:
        raise WirelagError(f"{path}: is not an XDP program")
    return program


# ---- failures, in one line each ----


def _too_old(needed: tuple[int, int], what: str) -> str:
    return f"Linux {platform.release()} is too old: {what} {needed[0]}.{needed[1]} or newer"


def _refused(name: str, error: OSError) -> str:
    # Without CAP_PERFMON the verifier refuses what it would otherwise accept, and does not mention the capability.
    if error.errno in (errno.EPERM, errno.EACCES) and (not getattr(error, "log", "") or not may_trace()):
        return f"{name}: the kernel does not permit eBPF programs: run as root, or with {CAPABILITIES}"
    if error.errno == errno.ENOSYS:
        return f"{name}: this kernel has no eBPF"
    if kernel() < OLDEST:
        return f"{name}: {_too_old(OLDEST, 'our programs need')}"
    if error.errno == errno.ENOMEM:
        return f"{name}: the kernel has no memory for its maps: use smaller sizes"
    lines = [line.strip() for line in getattr(error, "log", "").splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("processed ", "verification time", "stack depth"))]
    said = lines[-1] if lines else error.strerror
    return f"{name}: the kernel's verifier refuses it ({said}); please report it"


def _not_attached(interface: str, error: OSError) -> str:
    if error.errno == errno.ENODEV or "interface" in str(error):
        return f"{interface}: there is no such interface; `ip link` lists them"
    if error.errno in (errno.EPERM, errno.EACCES):
        return f"{interface}: attaching is not permitted: run as root, or with {CAPABILITIES}"
    if error.errno == errno.EBUSY:
        return f"{interface}: another XDP program is there: pin it, detach it, and run it after ours with --then"
    return f"{interface}: cannot attach ({error.strerror})"
