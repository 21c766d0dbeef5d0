"""BTF, the types of an eBPF object: sizes, variables and their offsets, and the function types for the kernel.

Law: clang leaves the sizes of sections and the offsets of variables empty; they are filled in from the symbols, because
the kernel refuses BTF without them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_INT, _POINTER, _ARRAY, _STRUCT, _UNION, _ENUM = 1, 2, 3, 4, 5, 6
_FUNCTION, _PROTOTYPE, _VARIABLE, _SECTION, _DECLARATION_TAG, _ENUM64 = 12, 13, 14, 15, 17, 19
_SIZED: Final = {_INT, _STRUCT, _UNION, _ENUM, _SECTION, 16, _ENUM64}
_MEMBERS: Final = {_STRUCT: 12, _UNION: 12, _ENUM: 8, _PROTOTYPE: 8, _SECTION: 12, _ENUM64: 12}
_FIXED: Final = {_INT: 4, _ARRAY: 12, _VARIABLE: 4, _DECLARATION_TAG: 4}
_DEEPEST: Final = 32  # a type that refers to itself never ends


@dataclass(frozen=True, slots=True)
class Kind:
    """A type: its kind, its name, its size or the type that it refers to, and the data that follows it."""

    kind: int
    name: str
    size: int
    rest: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Btf:
    """All types, and the functions of each section of code."""

    data: bytes
    types: list[Kind]
    strings: bytes
    functions: dict[str, dict[int, int]]  # by section and offset: the function's type

    @classmethod
    def read(cls, data: bytes, extra: bytes, sizes: Mapping[str, int], offsets: Mapping[str, int]) -> Btf:
        """Parse .BTF and .BTF.ext, and fill in the sizes of sections and the offsets of variables."""
        magic, _, _, header, types_at, types_size, strings_at, strings_size = struct.unpack_from("<HBBIIIII", data)
        if magic != 0xEB9F:
            raise ValueError("its BTF is invalid, or has another byte order")
        filled = bytearray(data)
        strings = data[header + strings_at : header + strings_at + strings_size]
        types = [Kind(0, "void", 0)]
        at, end = header + types_at, header + types_at + types_size
        while at < end:
            name, info, size = struct.unpack_from("<III", data, at)
            kind, count = info >> 24 & 31, info & 0xFFFF
            step = _MEMBERS.get(kind, 0)
            width = _FIXED.get(kind, 0) + step * count
            said = _text(strings, name)
            if kind == _SECTION:
                size = sizes.get(said, size)
                struct.pack_into("<I", filled, at + 8, size)
                inside = struct.iter_unpack("<III", data[at + 12 : at + 12 + width])
                placed = sorted(
                    (offsets.get(types[number].name, 0), number, bytes_of) for number, _, bytes_of in inside
                )
                for i, (offset, number, bytes_of) in enumerate(placed):
                    struct.pack_into("<III", filled, at + 12 + 12 * i, number, offset, bytes_of)
            rest = filled[at + 12 : at + 12 + width]
            parts = struct.iter_unpack(f"<{(step or width) // 4}I", rest) if width else ()
            types.append(Kind(kind, said, size, tuple(parts)))
            at += 12 + width
        return cls(bytes(filled), types, strings, _function_types(extra, strings))

    def size(self, number: int, depth: int = 0) -> int:
        """Bytes of a type."""
        of = self.types[number]
        if depth > _DEEPEST:
            raise ValueError("its types refer to each other in a circle")
        if of.kind in _SIZED:
            return of.size
        if of.kind == _POINTER:
            return 8
        if of.kind == _ARRAY:
            return self.size(of.rest[0][0], depth + 1) * of.rest[0][2]
        return self.size(of.size, depth + 1)

    def variables(self, section: str) -> Iterator[tuple[str, int, int, int]]:
        """Name, offset, size and type of each variable in a section."""
        for kind in self.types:
            if kind.kind == _SECTION and kind.name == section:
                for number, offset, size in kind.rest:
                    yield self.types[number].name, offset, size, self.types[number].size

    def map_members(self, number: int) -> dict[str, int]:
        """The members of a map's struct: types for key and value, numbers for the others."""
        said = {}
        for name, member, _ in self.types[number].rest:
            pointed = self.types[member].size
            if (word := _text(self.strings, name)) in ("key", "value"):
                said[word] = pointed
            elif self.types[pointed].kind == _ARRAY:
                said[word] = self.types[pointed].rest[0][2]
        return said


def _function_types(extra: bytes, strings: bytes) -> dict[str, dict[int, int]]:
    """The part of .BTF.ext about functions."""
    found: dict[str, dict[int, int]] = {}
    if not extra:
        return found
    _, _, _, header, start, size = struct.unpack_from("<HBBIII", extra)
    at, end = header + start + 4, header + start + size
    step = struct.unpack_from("<I", extra, header + start)[0] if size else 8
    while at < end:
        name, count = struct.unpack_from("<II", extra, at)
        records = (struct.unpack_from("<II", extra, at + 8 + step * i) for i in range(count))
        found[_text(strings, name)] = dict(records)
        at += 8 + step * count
    return found


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()
