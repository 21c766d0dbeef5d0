"""Packing is reversible, and other input is refused with a ValueError."""

import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirelag.codec import FREE, pack, packed_size, unpack

REFUSED = r"is cut short|is damaged"
LIMITS = {np.uint64: (0, 2**64 - 1), np.int64: (-(2**63), 2**63 - 1)}


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Some narrow arrays, some with the largest values."""
    dtype = draw(st.sampled_from([np.uint64, np.int64]))
    low, high = LIMITS[dtype]
    start = draw(st.integers(low, high))
    values = st.integers(start, min(high, start + draw(st.sampled_from([0, 255, 256, 2**40, 2**64]))))
    values |= st.sampled_from([low, high]) if draw(st.booleans()) else st.nothing()
    array = np.array(draw(st.lists(values, max_size=20)), dtype)
    return array[:: draw(st.sampled_from([1, 2, -1]))]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=6,
)
fields = st.dictionaries(st.text(max_size=8), plain | arrays(), max_size=6)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if list(one) != list(other):
        return False
    for mine, theirs in zip(one.values(), other.values(), strict=True):
        if isinstance(mine, np.ndarray) != isinstance(theirs, np.ndarray):
            return False
        if isinstance(mine, np.ndarray):
            if mine.dtype != theirs.dtype or mine.tolist() != theirs.tolist():
                return False
        elif mine != theirs or type(mine) is not type(theirs):
            return False
    return True


@given(fields)
def test_unpacking_restores_what_was_packed(packed: dict[str, Any]) -> None:
    assert same(unpack(pack(packed)), packed)
    assert packed_size(packed) == len(pack(packed))


@given(fields, st.data())
def test_truncated_data_is_refused(packed: dict[str, Any], data: st.DataObject) -> None:
    message = pack(packed)
    with pytest.raises(ValueError, match=REFUSED):
        unpack(message[: data.draw(st.integers(0, len(message) - 1))])


@given(fields, st.data())
def test_a_changed_byte_is_noticed(packed: dict[str, Any], data: st.DataObject) -> None:
    message = bytearray(pack(packed))
    message[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match=REFUSED):
        unpack(bytes(message))


def test_every_truncation_and_every_flipped_bit() -> None:
    """With bytes that JSON would take for spaces after the names: a false length must be noticed."""
    spaces = np.frombuffer(b"    \t\n\r ", np.uint64).copy()
    message = pack({"n": 7, "spaces": np.concatenate((spaces, spaces + np.uint64(1))), "ids": np.arange(300) << 50})
    for end in range(len(message)):
        with pytest.raises(ValueError, match=REFUSED):
            unpack(message[:end])
    for bit in range(8 * len(message)):
        flipped = bytearray(message)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=REFUSED):
            unpack(bytes(flipped))


@given(st.binary(max_size=80))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        unpack(data)


def with_checksum(head: bytes, rest: bytes = b"") -> bytes:
    """A hostile message with a valid checksum."""
    return struct.pack("<II", len(head), zlib.crc32(head + rest)) + head + rest


SHAPES: list[Any] = [
    None,
    [],
    ["<u8", 1, 0],
    ["<u8", 1, 0, 9],
    ["<u8", 1, 0, -1],
    ["<u8", -1, 0, 1],
    ["<u8", 2**40, 0, 0],
    ["<u8", 2**31 - 1, 0, 0],
    ["<u8", 2, 0, 1],
    ["<u8", "1", 0, 1],
    ["<u8", 1.0, 0, 1],
    ["<u8", 1, None, 1],
    ["<f8", 1, 0, 1],
    ["O", 1, 0, 1],
    [["<u8"], 1, 0, 1],
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_impossible_array_is_refused(shape: Any) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        unpack(with_checksum(json.dumps({"x": {"array": shape}}).encode(), b"\0"))


@pytest.mark.parametrize(
    "head", [b"5", b"[]", b"null", b'"text"', b"{", b"\xff", b"", b"[" * 100_000], ids=lambda head: repr(head[:8])
)
def test_impossible_names_are_refused(head: bytes) -> None:
    with pytest.raises(ValueError, match="is damaged"):
        unpack(with_checksum(head))


@pytest.mark.parametrize("width", range(9))
def test_an_array_takes_the_bytes_its_values_need(width: int) -> None:
    largest = 2 ** (8 * width) - 1
    for base in (0, 2**64 - 1 - largest):
        ids = np.array([base, base + largest] * 500, np.uint64)
        message = pack({"ids": ids})
        assert same(unpack(message), {"ids": ids})
        assert len(message) - 1000 * width < 64


def test_few_bytes_take_little_memory() -> None:
    """Many equal values take no bytes, up to a limit; beyond, a byte each."""
    equal = np.full(FREE, 7, np.uint64)
    once, twice = pack({"a": equal}), pack({"a": equal, "b": equal})
    assert len(once) < 100
    assert FREE < len(twice) < FREE + 200
    assert same(unpack(twice), {"a": equal, "b": equal})
    for arrays in (["<u8", FREE + 1, 0, 0],), (["<u8", FREE, 0, 0], ["<u8", 1, 0, 0]):
        head = json.dumps({str(i): {"array": shape} for i, shape in enumerate(arrays)}).encode()
        with pytest.raises(ValueError, match="more values than allowed"):
            unpack(with_checksum(head))
