"""Parts in order of a figure: which of them have too few samples for a place.

Law: a part with fewer than `FEWEST` samples comes after the others, unless the figure is a fact however few there are:
of 5 samples, not even the range holds the median in 95% of cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeAlias

FEWEST: Final = 6  # samples that give a part its place
_FACTS: Final = ("samples", "max")  # figures that need no other sample

Few: TypeAlias = tuple[int, int]
"""Parts with too few samples for their place: how many come before them, and how many there are."""


def fewest(name: str) -> int:
    """How many samples a part needs for its place in the order of a figure."""
    return 0 if name in _FACTS else FEWEST


def few_of(places: Iterable[tuple[bool, bool, bool]]) -> Few:
    """How many are few, of parts that are "other", have no figure, or have too few samples."""
    counts = Counter(places)
    return counts[False, False, False], counts[False, False, True]
