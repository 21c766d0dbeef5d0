"""For how long delays stay alike, in plain Python, float by float: kernels/alike.hpp states the law."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.oracles.over_time import over_time

Floats = Sequence[float]


def alike(slots: Sequence[int], sums: Floats, counts: Floats) -> tuple[float, float]:
    """How many slots delays stay alike for, and the variance of a mean by a level, times the slots it is over."""
    if not slots:
        return 0.0, 0.0
    first, total, whole = min(slots), 0.0, 0.0
    for one, count in zip(sums, counts, strict=True):
        total += one
        whole += count
    length = max(slots) - first + 1
    apart, sizes = [0.0] * length, [0.0] * length
    for slot, one, count in zip(slots, sums, counts, strict=True):
        apart[slot - first] += one - count * (total / max(whole, 1.0))
        sizes[slot - first] += count
    lasts = neighbours({slot - first: apart[slot - first] for slot in sorted(slots)})
    found = over_time(apart, sizes, len(slots))
    if found is None:
        return lasts, 0.0
    _, _, stretches, level, returns, _ = found
    seen = 1.0 if returns < 1.5 else stretches
    return max(length / seen if seen < 4.0 else 0.0, lasts), level * length


def neighbours(apart: dict[int, float]) -> float:
    """By slot, in order: how many of them count as one."""
    most, length = 0.0, 1.0
    while (seen := max(apart) + 1) >= 32:
        pairs = [(value, apart[slot + 1]) for slot, value in apart.items() if slot + 1 in apart]
        before = after = together = 0.0
        for one, other in pairs:
            before += one * one
            after += other * other
            together += one * other
        squares = (before + after) / 2
        r = together / squares if squares > 0 else 0.0
        if len(pairs) >= 16 and r > 3.0 / math.sqrt(min(len(pairs), seen)):
            least = min(r + (1 + 3 * r) / (len(pairs) - 1), 1 - 1 / len(pairs))
            most = max(most, length * (1 + least) / (1 - least))
        halved: dict[int, float] = {}
        for slot, value in apart.items():
            halved[slot >> 1] = halved[slot >> 1] + value if slot >> 1 in halved else value
        apart, length = halved, 2 * length
    return most
