"""A block of results as bytes: a third (rda) to a half (lda) of what its rows take.

Laws. `unpacked(packed(block))` is the same block, every bit of every number. Each column is a stream of its own, as its
statistics are: integers as differences from the least, or from a column that is near, by planes of bytes; what is
neither all integers nor all floats as places in a list of its values. Bytes that are no block raise a ValueError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import zstandard

from wirelag.collector.block import NAMES, Block, in_few_bytes
from wirelag.stats.distribution import BINS

_FORMAT: Final = b"\x01"  # the first byte
_LEVEL: Final = 12
_MOST: Final = 64 << 20  # bytes of a piece
_SAME, _INTEGERS, _FLOATS, _OTHERS = range(4)  # kinds of columns
_PIECE: Final = struct.Struct("<IB")  # length, and whether it is compressed
_NEAR: Final = {
    "received": "sent", "loss_sent": "sent", "used": "received", "weight": "used", "known": "weight",
    "lost_low": "lost", "lost_high": "lost", "max_ns": "min_ns",
}  # fmt: skip
_HALF: Final = 1 << 62

Ints = npt.NDArray[np.int64]


def packed(block: Block) -> bytes:
    """A block of at least one row as bytes."""
    counts = _steps([0, *block.ends])
    used = counts > 0
    first = np.array([0, *block.ends[:-1]], np.int64)[used]  # the first bin of each row that has any
    bins = block.bins.astype(np.int64)
    steps = np.diff(bins, prepend=0)
    steps[first] = bins[first]
    shares = np.ones(len(counts), np.int64)  # what one delay weighs: methods sample a half, a quarter, ...
    if len(first):
        shares[used] = np.gcd.reduceat(block.weights, first)
    writer = _Writer()
    writer.column(_steps(block.starts_ns))
    writer.column(block.ranks)
    for name in NAMES:
        writer.column(block.columns[name], block.columns.get(_NEAR.get(name, "")))
    writer.column(counts)
    writer.column(shares)
    writer.column(steps[first])
    writer.column(np.delete(steps, first))
    writer.column(block.weights // np.repeat(shares, counts))
    return writer.result(block.starts_ns[0])


def unpacked(data: bytes) -> Block:
    """The inverse of `packed`."""
    try:
        return _unpacked(data)
    except (ValueError, TypeError, LookupError, ArithmeticError, struct.error, zstandard.ZstdError) as error:
        raise ValueError(f"is no block of results ({error})") from None


def _unpacked(data: bytes) -> Block:
    reader = _Reader(data)
    starts_ns = list(accumulate(reader.column(), initial=reader.start_ns))
    ranks = list(reader.column())
    columns: dict[str, list[Any]] = {}
    for name in NAMES:
        columns[name] = list(reader.column(columns.get(_NEAR.get(name, ""))))
    counts, shares, first, later, each = (reader.array() for _ in range(5))
    ends = np.cumsum(counts)
    places = (ends - counts)[counts > 0]
    steps = np.insert(later, places - np.arange(len(places)), first)
    sums = np.cumsum(steps)
    before = (sums - steps)[places]  # of all rows before
    bins = sums - np.repeat(before, counts[counts > 0])
    if len(bins) and not 0 <= int(bins.min()) <= int(bins.max()) < BINS:
        raise ValueError("bins that do not exist")
    weights = each * np.repeat(shares, counts)
    block = Block(starts_ns, ranks, columns, ends.tolist(), bins.astype(np.int16), in_few_bytes(weights))
    lengths = {len(starts_ns), len(ranks), len(counts), *map(len, columns.values())}
    if len(lengths) > 1 or len(bins) != len(each):
        raise ValueError("columns of different lengths")
    return block


class _Writer:
    def __init__(self) -> None:
        self._press = zstandard.ZstdCompressor(_LEVEL, write_checksum=False)
        self._kinds: list[Any] = []
        self._pieces: list[bytes] = []

    def column(self, values: Sequence[Any] | Ints, near: Sequence[Any] | None = None) -> None:
        plain: list[Any] = values.tolist() if isinstance(values, np.ndarray) else list(values)
        types = set(map(type, plain))
        if types == {int} and (array := _as_integers(plain, near)) is not None:
            by_near, numbers = array
            least = int(numbers.min())
            if by_near is not None or least != int(numbers.max()):
                width = self._planes((numbers - least).astype("<u8"))
                self._kinds.append([_INTEGERS, len(plain), least, width, by_near is not None])
                return
        if len({(type(one), one) for one in plain}) <= 1 and float not in types:  # not 0.0, which equals -0.0
            self._kinds.append([_SAME, len(plain), plain[0] if plain else None])
        elif types == {float}:
            self._kinds.append([_FLOATS, len(plain), self._planes(np.array(plain, "<f8").view("<u8"))])
        else:
            known = {text: place for place, text in enumerate(dict.fromkeys(map(json.dumps, plain)))}
            places = np.array([known[json.dumps(one)] for one in plain], "<u8")
            self._kinds.append([_OTHERS, len(plain), self._planes(places), [json.loads(text) for text in known]])

    def _planes(self, values: npt.NDArray[np.uint64]) -> int:
        """Write the lower bytes of numbers, plane by plane; returns how many: the higher ones are 0."""
        width = (int(values.max()).bit_length() + 7) // 8
        for plane in np.ascontiguousarray(values).view(np.uint8).reshape(-1, 8).T[:width]:
            self._put(plane.tobytes())
        return width

    def _put(self, data: bytes) -> None:
        small = self._press.compress(data)
        is_smaller = len(small) < len(data)
        kept = small if is_smaller else data
        self._pieces += [_PIECE.pack(len(kept), is_smaller), kept]

    def result(self, start_ns: int) -> bytes:
        pieces, self._pieces = self._pieces, []
        self._put(json.dumps([start_ns, self._kinds], separators=(",", ":")).encode())
        return _FORMAT + b"".join(self._pieces + pieces)


class _Reader:
    def __init__(self, data: bytes) -> None:
        if not data.startswith(_FORMAT):
            raise ValueError("another format")
        self._press = zstandard.ZstdDecompressor()
        self._rest = memoryview(data)[len(_FORMAT) :]
        self.start_ns, kinds = json.loads(self._piece())
        self._kinds: Iterator[Any] = iter(kinds)

    def column(self, near: Sequence[Any] | None = None) -> list[Any]:
        kind, length, *more = next(self._kinds)
        if kind == _SAME:
            return [more[0]] * length
        if kind == _INTEGERS:
            return list(self._integers(length, more, near).tolist())
        numbers = self._planes(length, more[0])
        if kind == _FLOATS:
            return list(numbers.view("<f8").tolist())
        return [more[1][place] for place in numbers.tolist()]

    def array(self) -> Ints:
        """The next column, of integers that fit into 63 bits."""
        kind, length, *more = next(self._kinds)
        if kind == _INTEGERS:
            return self._integers(length, more, None)
        if kind == _SAME:
            return np.full(length, more[0] or 0, np.int64)
        return np.array([more[1][place] for place in self._planes(length, more[0]).tolist()], np.int64)

    def _integers(self, length: int, more: Sequence[Any], near: Sequence[Any] | None) -> Ints:
        least, width, by_near = more
        numbers = self._planes(length, width).view("<i8") + np.int64(least)
        return numbers + np.array(near, np.int64) if by_near else numbers

    def _planes(self, length: int, width: int) -> npt.NDArray[np.uint64]:
        found = np.zeros((length, 8), np.uint8)
        for plane in range(width):
            found[:, plane] = np.frombuffer(self._piece(), np.uint8)
        return found.reshape(-1).view("<u8")

    def _piece(self) -> bytes:
        length, is_pressed = _PIECE.unpack_from(self._rest)
        data, self._rest = bytes(self._rest[_PIECE.size : _PIECE.size + length]), self._rest[_PIECE.size + length :]
        return self._press.decompress(data, _MOST) if is_pressed else data


def _steps(values: Sequence[int]) -> Ints:
    array = np.array(values, np.int64)
    return array[1:] - array[:-1]


def _as_integers(values: list[int], near: Sequence[Any] | None) -> tuple[Ints | None, Ints] | None:
    """Integers, and the column that they are differences from; None if they do not fit into 62 bits."""
    if not -_HALF < min(values) <= max(values) < _HALF:
        return None
    numbers = np.array(values, np.int64)
    if near is not None and set(map(type, near)) == {int} and -_HALF < min(near) <= max(near) < _HALF:
        other = np.array(near, np.int64)
        return other, numbers - other
    return None, numbers
