"""The plain twin of `kernels/module_interval.cpp`: what sums and a few packets of two points tell of an interval.

Floats are added up in order, and rounded as the kernel rounds them; integers have as many digits as they need.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from tests.oracles.join import CACHE, LDA, Joined, Packet, coin, join, lz, scaled, signed

Rows = Sequence[tuple[int, int]]  # count and sum of each
Fated = Sequence[tuple[int, int, int]]  # number, time and fate of packets
PAIRED = 0


def delay_sums(delays_ns: Sequence[int]) -> tuple[int, float, int, int]:
    """The sum, the variance, the shortest and the longest."""
    above = [float(signed(one - delays_ns[0])) for one in delays_ns]
    mean = added(above) / len(above)
    apart = [one - mean for one in above]
    return sum(delays_ns), added([one * one for one in apart]) / len(above), min(delays_ns), max(delays_ns)


def added(values: Sequence[float]) -> float:
    """The sum, rounded at each step: Python's own is more exact from 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total


def median(delays_ns: Sequence[int]) -> int:
    """The middle of the two in the middle, rounded towards 0."""
    ordered = sorted(delays_ns) or [0]
    lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    middle = abs(lower + upper) // 2
    return middle if lower + upper > 0 else -middle


def row_totals(rows: Sequence[tuple[int, int, bool]]) -> tuple[int, int, int, float]:
    """Of rows (count, sum, usable): how many are usable, their packets, their delay, and the squares between them."""
    usable = [(count, sum_ns) for count, sum_ns, is_usable in rows if is_usable]
    used, sum_ns = sum(count for count, _ in usable), sum(sum_ns for _, sum_ns in usable)
    if not used:
        return 0, 0, 0, 0.0
    whole, left = divmod(sum_ns, used)
    part = float(left) / float(used)
    rest = [(float(signed(sum_ns - whole * count)) - part * float(count), float(count)) for count, sum_ns in usable]
    return len(usable), used, sum_ns, added([one * one / count for one, count in rest])


def middle(values: Sequence[float]) -> float:
    """The median of at least one value."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def unlike_rows(
    rows: Sequence[tuple[int, int, bool]], fewest: int, far_ns: float, spreads: float, sigmas: float, least_ns: float
) -> list[bool]:
    """Which usable rows have a sum that is too far off."""
    usable = [(float(count), float(sum_ns)) for count, sum_ns, is_usable in rows if is_usable]
    if not usable or len(usable) < fewest:
        return [False] * len(rows)
    mean_ns = middle([sum_ns / count for count, sum_ns in usable])
    spread_ns = sigmas * middle([abs(sum_ns - mean_ns * count) / math.sqrt(count) for count, sum_ns in usable])
    return [
        is_usable
        and abs(float(sum_ns) - mean_ns * count) > max(far_ns + spreads * spread_ns * math.sqrt(count), least_ns)
        for count, sum_ns, is_usable in rows
    ]


def rows_apart(
    up: Rows, down: Rows, mine: Fated, theirs: Fated, base_ns: int, seed: int
) -> list[tuple[int, int, bool]]:
    """Count, summed delay above a base and usability of each row, without the packets that are not paired."""
    found = []
    for (sent, sent_ns), (came, came_ns) in zip(without(up, mine, seed), without(down, theirs, seed), strict=True):
        found.append((signed(sent), signed(came_ns - sent_ns - sent * base_ns), sent == came and signed(sent) > 0))
    return found


def without(rows: Rows, packets: Fated, seed: int) -> list[tuple[int, int]]:
    left = [list(row) for row in rows]
    for number, time_ns, fate in packets:
        if fate != PAIRED:
            row = left[scaled(coin(number, seed, LDA), len(rows))]
            row[0], row[1] = (row[0] - 1) % 2**64, (row[1] - time_ns) % 2**64
    return [(count, sum_ns) for count, sum_ns in left]


class Carried(NamedTuple):
    """What became of packets that one point alone saw in an interval, and another one in another."""

    pairs: list[tuple[int, int, int, int]]  # when each was sent, its delay, its rows
    up_left: list[bool]
    down_left: list[bool]
    unreal: int
    joined: Joined


def carried(up: Sequence[Packet], down: Sequence[Packet], ahead_ns: int) -> Carried | None:
    """The pairs of two lists but those seen too long before they were sent; None if no id is the same."""
    if not {packet_id for packet_id, _ in up} & {packet_id for packet_id, _ in down}:
        return None
    joined = join(up, down)
    alone = [{packet_id for packet_id, _ in one} for one in (up, down)]
    left = [[packet_id not in alone[1] for packet_id, _ in up], [packet_id not in alone[0] for packet_id, _ in down]]
    pairs, unreal = [], 0
    for row, other, _ in joined.pairs:
        delay_ns = signed(down[other][1] - up[row][1])
        if delay_ns < -ahead_ns:
            left[0][row] = left[1][other] = True
            unreal += 1
        else:
            pairs.append((up[row][1], delay_ns, row, other))
    return Carried(pairs, left[0], left[1], unreal, joined)


def at_most(ids: Sequence[int], seed: int, level: int, capacity: int) -> tuple[int, list[bool]]:
    """The first level above this one that keeps at most so many."""
    coins = [lz(coin(packet_id, seed, CACHE)) for packet_id in ids]
    level = next(one for one in count(level + 1) if sum(zeros >= one for zeros in coins) <= capacity)
    return level, [zeros >= level for zeros in coins]


def looking(
    checked: Sequence[tuple[int, int]], early: Sequence[int], packets: Sequence[Packet], untold: int
) -> list[tuple[int, int, bool]]:
    """Of checked packets, each with the one before it: when it was sent, the one before, and whether that is early."""
    gone, sent, found = {number % 2**32 for number in early}, Counter[int](), []
    sent.update(number % 2**32 for number, _ in packets)
    times = {number % 2**32: time_ns for number, time_ns in packets}
    for number, before in ((number % 2**32, before) for number, before in checked):
        sent_ns = untold if number in gone or sent[number] != 1 else times[number]
        is_known = before not in gone if number in gone else sent[number] == 1 and times[number] != untold
        if before != number and is_known:
            found.append((sent_ns, before, before in gone))
    return found
