"""How fridges share their memory, in plain Python: docs/reference/fridge.md, "Plans", is the law.

Floats are added up in the order that is stated there, and rounded as the kernel rounds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

CERTAIN = 2**32
POINTS = [(i + 0.5) / 48 for i in range(48)]


class Plan(NamedTuple):
    slots: tuple[int, ...]
    probabilities: tuple[int, ...]


Case = tuple[float, ...]


def middle_ns(place: int) -> float:
    """The middle of a bin of delays."""
    shift = max((place >> 7) - 1, 0)
    return float((place - (shift << 7)) << shift) + ((1 << shift) - 1) / 2


def known(rate_per_s: float, weights: Sequence[int]) -> Case:
    """The requests that known delays survive."""
    sums = list(accumulate(weights))
    places = [next(i for i, n in enumerate(sums) if float(n) >= point * float(sums[-1])) for point in POINTS]
    return tuple(middle_ns(place) / 1e9 * rate_per_s for place in places)


def unknown(rate_per_s: float | None) -> list[Case]:
    """Those that unknown ones may have to survive, by the longest."""
    if rate_per_s is None:
        longest = [2.0**k for k in range(6, 23)]
    else:
        longest = [2.0**k / 1e3 * rate_per_s for k in range(4, 13)]
    return [tuple(most * math.pow(2, 10 * (point - 1)) for point in POINTS) for most in longest]


@cache
def seen(probability: int, slots: int, case: Case) -> list[float]:
    p = probability / CERTAIN
    decay = math.log1p(-min(p / slots, 1 - 1e-9))
    return [p * math.exp(x * decay) for x in case]


def inflation(plan: Plan, case: Case) -> float:
    """By how much the standard error exceeds that of seeing every delay."""
    chances = [seen(p, m, case) for p, m in zip(plan.probabilities, plan.slots, strict=True)]
    lanes = [0.0] * 8
    for i in range(48):
        q = 0.0
        for of in chances:
            q += of[i]
        lanes[i % 8] += 1 / max(q, 1e-200)
    a, b, c, d, e, f, g, h = lanes
    return math.sqrt((((a + b) + (c + d)) + ((e + f) + (g + h))) / 48)


def choices(slots: tuple[int, ...]) -> list[Plan]:
    """Slots, in both orders, with all entry probabilities to try."""
    powers = {
        tuple(first + halves * k // 2 for k in range(len(slots))) for first in range(25) for halves in range(2, 49)
    }
    entries = []
    for power in sorted(one for one in powers if one[-1] <= 24):
        first, *others = (CERTAIN >> k for k in power)
        entries.append((min(first, CERTAIN - sum(others)), *others))
    return [Plan(order, entry) for order in dict.fromkeys((slots, slots[::-1])) for entry in entries]


def largest(room: int) -> int:
    return 1 << room.bit_length() - 1


def equal(room: int, count: int) -> tuple[int, ...]:
    slots = [largest(room // count)] * count
    for k in range(count):
        if sum(slots) + slots[k] <= room:
            slots[k] *= 2
    return tuple(slots)


def plan(room: int, fridges: int, rate_per_s: float | None, weights: Sequence[int] | None) -> Plan:
    """The best plan for this number of slots; `fridges`: how many, 0: as many as is best."""
    one = choices((largest(room),))
    cases = unknown(rate_per_s) if weights is None else [known(rate_per_s or 0.0, weights)]
    if weights is not None and not fridges:
        rest = room - largest(room)
        tried = one + choices((largest(room), largest(rest)) if rest else (largest(room),))
    else:
        tried = choices(equal(room, min(fridges or 3, room, 8)))
    least = [min(inflation(made, case) for made in one) for case in cases]
    return min(tried, key=lambda of: max(inflation(of, case) / best for case, best in zip(cases, least, strict=True)))
