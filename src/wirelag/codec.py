"""Named numbers and arrays as bytes: the encoding of synopses and messages, on the wire and in files.

Law: an integer array takes the fewest bytes per value that hold the range from its smallest to its largest value.
`unpack` returns values equal to those packed, or raises a ValueError that names the problem; nothing else.
Memory: at most 8 times the bytes received, plus 0.5 MiB, because at most `FREE` values may take no byte at all.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import numpy as np

from wirelag import _kernels

Fields = Mapping[str, Any]
T = TypeVar("T")
_HEAD: Final = struct.Struct("<II")  # length of the names and numbers, checksum of all that follows
FREE: Final = 1 << 16  # array values that may take no byte, in total
MOST_COUNT: Final = 1 << 48  # largest value of one counter: sums of many still fit into 63 bits


def pack(fields: Fields) -> bytes:
    """Encode plain values (numbers, text, lists) and integer arrays."""
    names, arrays = split_fields([fields])
    head = to_json(names[0])
    body = head + arrays
    return _HEAD.pack(len(head), zlib.crc32(body)) + body


def packed_size(fields: Fields) -> int:
    """The length of what `pack` encodes."""
    names, sizes = _split([fields], _kernels.squeezed_size)
    return _HEAD.size + len(to_json(names[0])) + sum(sizes)


def unpack(data: bytes) -> dict[str, Any]:
    """Decode what `pack` encoded; raise a ValueError if the bytes are incomplete or damaged."""
    if len(data) < _HEAD.size:
        raise ValueError("is cut short")
    length, checksum = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if length > len(body) or zlib.crc32(body) != checksum:
        raise ValueError("is damaged: the checksum does not match")
    return together([from_json(bytes(body[:length]))], body[length:])[0]


def from_json(text: bytes) -> Any:
    """Decode JSON; raise a ValueError if it is not valid."""
    try:
        return _READER.decode(text.decode(json.detect_encoding(text), "surrogatepass"))
    except (ValueError, RecursionError):
        raise ValueError("is damaged: its names are not JSON") from None


def _no_number(word: str) -> Any:
    """Refuse NaN and Infinity, which Python accepts but JSON does not have."""
    raise ValueError(word)


_READER: Final = json.JSONDecoder(parse_constant=_no_number)
_WRITER: Final = json.JSONEncoder(separators=(",", ":"))


def to_json(value: Any) -> bytes:
    """JSON without spaces."""
    return _WRITER.encode(value).encode()


def split_fields(several: Iterable[Fields]) -> tuple[list[dict[str, Any]], bytes]:
    """Split fields into their JSON part and the bytes of all arrays, concatenated."""
    found, parts = _split(several, _kernels.squeeze)
    return found, b"".join(parts)


def _split(several: Iterable[Fields], squeeze: Callable[[Any, int], tuple[int, int, T]]) -> tuple[list[Any], list[T]]:
    """The JSON part, and what `squeeze` makes of each array."""
    found, parts, free = list[dict[str, Any]](), list[T](), FREE
    for fields in several:
        names = dict(fields)
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                base, width, squeezed = squeeze(value, max(0, free))
                names[name] = {"array": [value.dtype.str, len(value), base, width]}
                parts.append(squeezed)
                free -= 0 if width else len(value)
        found.append(names)
    return found, parts


def together(several: Any, body: memoryview | bytes, most: int | None = None) -> list[dict[str, Any]]:
    """The inverse of `split_fields`; lengths are checked before memory is taken. `most`: array values in total."""
    found, place, free, left = list[dict[str, Any]](), 0, FREE, len(body) + FREE if most is None else most
    for names in several:
        if not isinstance(names, dict):
            raise ValueError("is damaged: it has no names")
        fields, place, free, left = _kernels.unsqueeze(names, body, place, free, left)
        found.append(fields)
    if place != len(body):
        raise ValueError("is damaged: it has extra bytes at the end")
    return found


def array_of(fields: Fields, name: str, dtype: type[np.uint64] | type[np.int64]) -> np.ndarray[Any, Any]:
    """Return the array of this name, or raise a ValueError."""
    value = fields.get(name)
    if not isinstance(value, np.ndarray) or value.ndim != 1:
        raise ValueError(f"{name} is missing or not an array")
    return value if value.dtype == dtype else value.astype(dtype)


def number_of(fields: Fields, name: str) -> int:
    """Return the counter of this name, from 0 to below MOST_COUNT, or raise a ValueError."""
    value = fields.get(name)
    if not isinstance(value, int) or not 0 <= value < MOST_COUNT:
        raise ValueError(f"{name} is missing or not a valid count")
    return value
