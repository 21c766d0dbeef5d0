"""Bytes that differ a little from valid ones: a few edits, each of which removes, repeats or inserts something."""

from collections.abc import Sequence

from hypothesis import strategies as st

Edit = tuple[int, int, bytes]
EDITS = st.tuples(st.integers(0, 1 << 12), st.integers(0, 40), st.binary(max_size=2))


def edited(data: bytes, edits: Sequence[Edit], words: Sequence[bytes]) -> bytes:
    """The bytes with something else in these places: a word, random bytes, a repetition or nothing."""
    for place, length, random in edits:
        at = place % (len(data) + 1)
        kind = place // (len(data) + 1) % (len(words) + 3)
        instead = [b"", random, data[at : at + length] * 2, *words][kind]
        data = data[:at] + instead + data[at + length % 7 :]
    return data
