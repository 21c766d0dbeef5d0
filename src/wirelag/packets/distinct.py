"""Rows of words that are equal, in time that grows with the rows: np.unique sorts all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag import _kernels

Array = npt.NDArray[Any]


class Distinct(NamedTuple):
    """Each row once, in rising order."""

    rows: Array
    first: npt.NDArray[np.intp]  # where each of them comes first
    place: npt.NDArray[np.intp]  # the place of every given row among them


def distinct(values: Array) -> Distinct:
    """The same as np.unique of integers that are not negative, or of rows of them."""
    numbers, firsts = numbered(values)
    rows = values[firsts]
    order = np.argsort(rows) if rows.ndim == 1 else np.lexsort(rows.T[::-1])
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    return Distinct(rows[order], firsts[order].astype(np.intp), place[numbers])


def numbered(values: Array) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """The number of each row, in order of appearance, and where each number comes first."""
    words = np.ascontiguousarray(values, np.uint64)
    numbers, firsts = np.empty(len(words), np.uint32), np.empty(len(words), np.uint32)
    width = words.shape[1] if words.ndim > 1 else 1
    count = _kernels.number_rows(words.reshape(-1), width, numbers, firsts)
    return numbers, firsts[:count]


def places_among(known: Array, wanted: Array) -> npt.NDArray[np.int64]:
    """The place of each wanted row among known ones, all different; -1: it is not there."""
    numbers = numbered(np.concatenate([known, wanted]))[0][len(known) :].astype(np.int64)
    return np.where(numbers < len(known), numbers, -1)


def rows_of_all(parts: Iterable[Array], form: np.dtype[Any]) -> Array:
    """Structured rows, one part after the other; np.concatenate would compare all fields of all parts."""
    return np.concatenate([np.empty(0, np.uint8), *(part.view(np.uint8) for part in parts)]).view(form)
