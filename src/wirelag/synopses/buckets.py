"""Buckets of words: field after field as they travel, and the difference of two points'."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wirelag.codec import Fields, array_of

Words = npt.NDArray[np.uint64]


def spread(words: Words, names: tuple[str, ...]) -> dict[str, Words]:
    """Field after field instead of bucket after bucket: each packs into the bytes it needs."""
    return {name: words[i :: len(names)] for i, name in enumerate(names)}


def gathered(fields: Fields, names: tuple[str, ...]) -> Words:
    """The inverse of `spread`."""
    columns = [array_of(fields, name, np.uint64) for name in names]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"{', '.join(names)} have different lengths")
    return np.column_stack(columns).reshape(-1)


def less(down: Words, up: Words, fields: int) -> Words:
    """The difference of buckets or symbols of `fields` fields: only ids, check and count."""
    ups, downs = up.reshape(-1, fields), down.reshape(-1, fields)
    apart = np.empty((len(ups), 3), np.uint64)
    apart[:, :2] = downs[:, :2] ^ ups[:, :2]
    apart[:, 2] = downs[:, 2] - ups[:, 2]
    return apart.reshape(-1)
