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
    """The length of what `pack` encodes, without encoding the arrays."""
    names, arrays, _ = _laid_out(fields, FREE)
    return _HEAD.size + len(_json(names)) + sum(width * len(values) for values, _, width in arrays)


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
        names, arrays, free = _laid_out(fields, free)
        found.append(names)
        parts += [_squeezed(*each) for each in arrays]
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
            fields[name] = _unsqueeze(body[place:end], dtype, count, base, width)
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
    return value.astype(dtype)


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


def _laid_out(fields: Fields, free: int) -> tuple[dict[str, Any], list[tuple[np.ndarray[Any, Any], int, int]], int]:
    """The JSON part, each array with its base and width, and how many values may still take no byte."""
    names, arrays = dict[str, Any](fields), []
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            base, width = _base_and_width(value, free)
            names[name] = {"array": [value.dtype.str, len(value), base, width]}
            arrays.append((value, base, width))
            free -= 0 if width else len(value)
    return names, arrays, free


def _base_and_width(values: np.ndarray[Any, Any], free: int) -> tuple[int, int]:
    """The smallest value and the bytes of each. Sums that wrapped below 0 are close to the others only if signed."""
    if not len(values):
        return 0, 0
    least, most = int(values.min()), int(values.max())
    span, base = most - least, least
    if least < 0 or most >= 1 << 63:  # else both views are alike
        other = values.view(np.uint64 if values.dtype == np.int64 else np.int64)
        least, most = int(other.min()), int(other.max())
        span, base = min((span, base), (most - least, least), key=lambda found: found[0])
    return base, max((span.bit_length() + 7) // 8, int(len(values) > free))


def _squeezed(values: np.ndarray[Any, Any], base: int, width: int) -> bytes:
    above = values.view(np.uint64) - np.uint64(base & 2**64 - 1)
    return above.view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _unsqueeze(data: memoryview | bytes, dtype: str, count: int, base: int, width: int) -> np.ndarray[Any, Any]:
    wide = np.zeros((count, 8), np.uint8)
    wide[:, :width] = np.frombuffer(data, np.uint8).reshape(count, width)
    return (wide.reshape(-1).view("<u8") + np.uint64(base & 2**64 - 1)).view(dtype)
