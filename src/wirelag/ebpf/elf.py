"""An object file with eBPF programs: its sections, functions, maps and variables. No system calls.

Law: for any input, reading ends in an `ObjectFile` or a ValueError. Maps and variables are described by their BTF
types, as clang writes them with -g; a program is a function in a section named after its attach point.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from wirelag.ebpf.btf import Btf

_FUNCTION, _OBJECT = 2, 1
_CODE, _SYMBOLS, _RELOCATIONS, _EMPTY = 1, 2, 9, 8
_EXECUTABLE: Final = 4
_BPF: Final = 247
MOST_BYTES: Final = 1 << 26  # total size of variables


@dataclass(frozen=True, slots=True)
class Section:
    """A named part of the file."""

    name: str
    kind: int
    flags: int
    data: bytes
    info: int
    link: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name for a place in a section."""

    name: str
    kind: int
    section: int
    value: int
    size: int


@dataclass(frozen=True, slots=True)
class Function:
    """A program, or a function called by programs; `relocations` by the offset of the instruction in it."""

    name: str
    section: int
    start: int
    code: bytes
    relocations: dict[int, Symbol] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MapShape:
    """The kind, sizes and types of a map."""

    name: str
    kind: int
    key_size: int
    value_size: int
    entries: int
    flags: int = 0
    key_type: int = 0  # number in the BTF; 0: none
    value_type: int = 0


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """The contents that a loader needs."""

    sections: list[Section]
    functions: dict[tuple[int, int], Function]  # by section and offset
    maps: dict[str, MapShape]
    btf: Btf
    license: bytes

    @classmethod
    def read(cls, data: bytes) -> ObjectFile:
        """Parse the bytes of a file; a ValueError if they are invalid."""
        try:
            return cls._read(data)
        except (struct.error, IndexError, UnicodeDecodeError, KeyError, OverflowError, MemoryError) as error:
            raise ValueError(f"it is damaged ({error})") from None

    @classmethod
    def _read(cls, data: bytes) -> ObjectFile:
        if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != _BPF:
            raise ValueError("it is not an eBPF object file")
        sections = _sections(data)
        symbols = _symbols(sections)
        btf = next((section.data for section in sections if section.name == ".BTF"), None)
        extra = next((section.data for section in sections if section.name == ".BTF.ext"), b"")
        if btf is None:
            raise ValueError("it has no BTF: compile it with -g")
        sizes = {section.name: len(section.data) for section in sections}
        offsets = {symbol.name: symbol.value for symbol in symbols if symbol.kind == _OBJECT}
        types = Btf.read(btf, extra, sizes, offsets)
        return cls(
            sections,
            _functions(sections, symbols),
            {shape.name: shape for shape in _map_shapes(types)},
            types,
            next((section.data for section in sections if section.name == "license"), b"\0"),
        )

    def programs(self) -> Iterator[Function]:
        """Functions called from outside."""
        for function in self.functions.values():
            if self.sections[function.section].name != ".text":
                yield function


def _sections(data: bytes) -> list[Section]:
    (start,) = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i) for i in range(count)]
    strings = data[raw[names][4] : raw[names][4] + raw[names][5]]
    if any(kind == _EMPTY and size > MOST_BYTES for _, kind, _, _, _, size, *_ in raw):
        raise ValueError("its variables are too large")
    return [
        Section(
            _text(strings, at),
            kind,
            flags,
            bytes(size) if kind == _EMPTY else data[offset : offset + size],
            info,
            link,
        )
        for at, kind, flags, _, offset, size, link, info, *_ in raw
    ]


def _symbols(sections: list[Section]) -> list[Symbol]:
    table = next((section for section in sections if section.kind == _SYMBOLS), None)
    if table is None:
        raise ValueError("it has no symbols")
    strings = sections[table.link].data
    return [
        Symbol(_text(strings, at), info & 15, section, value, size)
        for at, info, _, section, value, size in struct.iter_unpack("<IBBHQQ", table.data)
    ]


def _functions(sections: list[Section], symbols: list[Symbol]) -> dict[tuple[int, int], Function]:
    found = {
        (s.section, s.value): Function(s.name, s.section, s.value, sections[s.section].data[s.value : s.value + s.size])
        for s in symbols
        if s.kind == _FUNCTION and s.size and sections[s.section].flags & _EXECUTABLE
    }
    for section in sections:
        if section.kind != _RELOCATIONS or not sections[section.info].flags & _EXECUTABLE:
            continue
        for offset, info in struct.iter_unpack("<QQ", section.data):
            for function in found.values():
                if function.section == section.info and function.start <= offset < function.start + len(function.code):
                    function.relocations[offset - function.start] = symbols[info >> 32]
    return found


def _map_shapes(btf: Btf) -> Iterator[MapShape]:
    """Each variable in .maps is a struct whose members are pointers: to arrays, whose length counts, or to types."""
    for name, _, _, variable in btf.variables(".maps"):
        said = btf.map_members(variable)
        key, value = said.get("key", 0), said.get("value", 0)
        yield MapShape(
            name,
            said.get("type", 0),
            said.get("key_size") or (btf.size(key) if key else 0),
            said.get("value_size") or (btf.size(value) if value else 0),
            said.get("max_entries", 0),
            said.get("map_flags", 0),
            key,
            value,
        )


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()
