"""Named numbers and arrays as bytes: the encoding of synopses and messages, on the wire and in files.

Law: an integer array takes the fewest bytes per value that hold the range from its smallest to its largest value.
`unpack` returns values equal to those packed, or raises a ValueError that names the problem; nothing else.
Memory: at most 8 times the bytes received, plus 0.5 MiB, because at most `FREE` values may take no byte at all.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from wirelag import _kernels

Fields = Mapping[str, Any]
_HEAD: Final = struct.Struct("<II")  # length of the names and numbers, checksum of all that follows
FREE: Final = 1 << 16  # array values that may take no byte, in total
MOST_COUNT: Final = 1 << 48  # largest value of one counter: sums of many still fit into 63 bits


def pack(fields: Fields) -> bytes:
    """Encode plain values (numbers, text, lists) and integer arrays."""
    names, arrays = split_fields([fields])
    head = _json(names[0])
    body = head + arrays
    return _HEAD.pack(len(head), zlib.crc32(body)) + body


def packed_size(fields: Fields) -> int:
    """The length of what `pack` encodes."""
    names, arrays = split_fields([fields])
    return _HEAD.size + len(_json(names[0])) + len(arrays)


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
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise ValueError("is damaged: its names are not JSON") from None


def _no_number(word: str) -> Any:
    """Refuse NaN and Infinity, which Python accepts but JSON does not have."""
    raise ValueError(word)


def split_fields(several: Iterable[Fields]) -> tuple[list[dict[str, Any]], bytes]:
    """Split fields into their JSON part and the bytes of all arrays, concatenated."""
    found, parts, free = list[dict[str, Any]](), list[bytes](), FREE
    for fields in several:
        names = dict(fields)
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                base, width, squeezed = _kernels.squeeze(value, max(0, free))
                names[name] = {"array": [value.dtype.str, len(value), base, width]}
                parts.append(squeezed)
                free -= 0 if width else len(value)
        found.append(names)
    return found, b"".join(parts)


def together(several: Any, body: memoryview | bytes, most: int | None = None) -> list[dict[str, Any]]:
    """The inverse of `split_fields`. It checks lengths before it allocates. `most`: array values in total."""
    found, place, free, left = list[dict[str, Any]](), 0, FREE, len(body) + FREE if most is None else most
    for names in several:
        if not isinstance(names, dict):
            raise ValueError("is damaged: it has no names")
        fields: dict[str, Any] = {}
        for name, value in names.items():
            if not (isinstance(value, dict) and "array" in value):
                fields[name] = value
                continue
            dtype, count, base, width = _shape(name, value["array"])
            free, left = free - (0 if width else count), left - count
            end = place + count * width
            if end > len(body):
                raise ValueError(f"is cut short in {name}")
            if free < 0 or left < 0:
                raise ValueError(f"is damaged: {name} has more values than allowed")
            values = fields[name] = np.empty(count, dtype)
            _kernels.unsqueeze(body, place, width, base & 2**64 - 1, values)
            place = end
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


def _shape(name: str, shape: Any) -> tuple[str, int, int, int]:
    match shape:
        case ["<u8" | "<i8" as dtype, int(count), int(base), int(width)] if 0 <= width <= 8 and count >= 0:
            return dtype, count, base, width
    raise ValueError(f"is damaged: {name} cannot be an array of {shape}")


def _json(names: Fields) -> bytes:
    return json.dumps(names, separators=(",", ":")).encode()
