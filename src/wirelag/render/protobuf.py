"""Fields of Protocol Buffers, as bytes: the few kinds that metrics need.

By hand, because the messages are small and fixed: the official package would be one more dependency with generated code
of three schemas. Tests decode with that package what is encoded here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_DOUBLE: Final = struct.Struct("<d")
_WORD: Final = struct.Struct("<Q")


def varint(value: int) -> bytes:
    """An integer in groups of seven bits; a negative one as its 64 bits."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def zigzag(value: int) -> int:
    """A signed integer, so that small ones stay short."""
    return value << 1 if value >= 0 else (-value << 1) - 1


def of_integer(field: int, value: int) -> bytes:
    """A field of type uint64, int64, bool or enum."""
    return varint(field << 3 | _VARINT) + varint(value)


def of_signed(field: int, value: int) -> bytes:
    """A field of type sint32 or sint64."""
    return of_integer(field, zigzag(value))


def of_double(field: int, value: float) -> bytes:
    """A field of type double."""
    return varint(field << 3 | _FIXED64) + _DOUBLE.pack(value)


def of_fixed(field: int, value: int) -> bytes:
    """A field of type fixed64."""
    return varint(field << 3 | _FIXED64) + _WORD.pack(value)


def of_bytes(field: int, data: bytes) -> bytes:
    """A field that holds bytes, or another message."""
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


def of_text(field: int, text: str) -> bytes:
    """A field of type string."""
    return of_bytes(field, text.encode())


def of_doubles(field: int, values: Iterable[float]) -> bytes:
    """A packed field of type repeated double."""
    return of_bytes(field, b"".join(_DOUBLE.pack(value) for value in values))


def of_words(field: int, values: Iterable[int]) -> bytes:
    """A packed field of type repeated fixed64."""
    return of_bytes(field, b"".join(_WORD.pack(value) for value in values))


def of_integers(field: int, values: Iterable[int]) -> bytes:
    """A packed field of type repeated uint64."""
    return of_bytes(field, b"".join(map(varint, values)))
