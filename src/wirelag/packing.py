"""Numbers and arrays by name, as bytes: what a synopsis and a message look like on a wire or in a file.

Law: an array of integers takes the fewest bytes per value that hold its largest value above its smallest. What was
packed unpacks to equal values, or to a ValueError that says what is wrong; never to anything else.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

Fields = Mapping[str, Any]
_HEAD: Final = struct.Struct("<II")  # length of the names and numbers, checksum of everything behind
_MOST: Final = 1 << 26  # values of an array: some bytes must not ask for more memory than a machine has


def pack(fields: Fields) -> bytes:
    """Plain values (numbers, texts, lists) and arrays of integers."""
    names: dict[str, Any] = {}
    parts = []
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            base, width, body = _squeeze(value)
            names[name] = {"array": [value.dtype.str, len(value), base, width]}
            parts.append(body)
        else:
            names[name] = value
    head = json.dumps(names, separators=(",", ":")).encode()
    body = head + b"".join(parts)
    return _HEAD.pack(len(head), zlib.crc32(body)) + body


def unpack(data: bytes) -> dict[str, Any]:
    """The opposite of `pack`; a ValueError where the bytes are not whole."""
    if len(data) < _HEAD.size:
        raise ValueError("is cut short")
    length, checksum = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if length > len(body) or zlib.crc32(body) != checksum:
        raise ValueError("is damaged: the checksum is another one")
    try:
        names = json.loads(bytes(body[:length]))
    except (ValueError, RecursionError):
        raise ValueError("is damaged: its names are not JSON") from None
    if not isinstance(names, dict):
        raise ValueError("is damaged: it has no names")
    place = length
    fields: dict[str, Any] = {}
    for name, value in names.items():
        if not (isinstance(value, dict) and "array" in value):
            fields[name] = value
            continue
        dtype, count, base, width = _shape(name, value["array"])
        end = place + count * width
        if end > len(body):
            raise ValueError(f"is cut short in {name}")
        fields[name] = _unsqueeze(body[place:end], dtype, count, base, width)
        place = end
    return fields


def array_of(fields: Fields, name: str, dtype: type[np.uint64] | type[np.int64]) -> np.ndarray[Any, Any]:
    """The array of this name, or a ValueError."""
    value = fields.get(name)
    if not isinstance(value, np.ndarray) or value.ndim != 1:
        raise ValueError(f"{name} is missing, or no array")
    return value.astype(dtype)


def number_of(fields: Fields, name: str) -> int:
    """The number of this name, 0 or more, or a ValueError."""
    value = fields.get(name)
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is missing, or no number that counts something")
    return value


def _shape(name: str, shape: Any) -> tuple[str, int, int, int]:
    match shape:
        case ["<u8" | "<i8" as dtype, int(count), int(base), int(width)] if 0 <= width <= 8 and 0 <= count < _MOST:
            return dtype, count, base, width
    raise ValueError(f"is damaged: {name} cannot be an array of {shape}")


def _squeeze(values: np.ndarray[Any, Any]) -> tuple[int, int, bytes]:
    if not len(values):
        return 0, 0, b""
    base = int(values.min())
    above = values.view(np.uint64) - np.uint64(base & 2**64 - 1)
    width = (int(above.max()).bit_length() + 7) // 8
    return base, width, above.view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _unsqueeze(data: memoryview, dtype: str, count: int, base: int, width: int) -> np.ndarray[Any, Any]:
    wide = np.zeros((count, 8), np.uint8)
    wide[:, :width] = np.frombuffer(data, np.uint8).reshape(count, width)
    return (wide.reshape(-1).view("<u8") + np.uint64(base & 2**64 - 1)).view(dtype)
