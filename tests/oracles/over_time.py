"""How a mean varies over time, in plain Python: stats/over_time.py and kernels/slow_levels.hpp state the laws.

Floats are added up in order, and rounded as the kernel rounds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

Floats = Sequence[float]

BATCHES, FEWEST, MANY = 128, 4, 1024
SLOWEST, STEADY, DOUBT, TAIL, NOTHING = 64, 0.8, 1 / 3, 0.05, 1e-6
SIZES = [0.5 * 4**i for i in range(9)]
Z95 = 1.959963984540054


class Kind(NamedTuple):
    """A kind of level."""

    inverse: Floats
    likely: float
    noise: float
    stretches: float
    part: float
    moves: float


@cache
def kinds(batches: int, cosines: int) -> list[Kind]:
    """Every kind of level; the first is none."""
    times = math.ceil(2 * math.log2(4 * batches))
    each = math.log((1 - STEADY) / (times * len(SIZES)))
    angles = [math.cos((k + 1) * (math.pi / batches)) for k in range(cosines)]
    found, time = [Kind([1.0] * cosines, math.log(STEADY), 1.0, float(batches), 0.0, math.inf)], 0.5
    for _ in range(times):
        kept = math.exp(-1 / time)
        for size in SIZES:
            share, logs, inverse = size / (1 + size), 0.0, []
            of_level = share * (1 - kept) / (1 + kept)
            of_batch = of_level + 1 - share
            for angle in angles:
                level = (1 - kept) * (1 - kept) / (1 - 2 * kept * angle + kept * kept)
                spectrum = 1 - share + share * level
                logs += math.log(spectrum)
                inverse.append(1 / spectrum)
            moves = of_batch * (1 - kept) / 2
            found.append(Kind(inverse, each - 0.5 * logs, 1 - share, batches / (2 * time), of_level / of_batch, moves))
        time *= math.sqrt(2)
    return found


@cache
def normal() -> list[float]:
    """How likely a normal value is further from 0 than 0, 0.01, ... 6."""
    return [math.erfc(row * (6.0 / 600) / math.sqrt(2)) for row in range(601)]


def normal_beyond(x: float) -> float:
    """The same for any value."""
    table, at = normal(), x * (600 / 6.0)
    if at >= 600:
        return table[600]
    row = int(at)
    return table[row] + (table[row + 1] - table[row]) * (at - row)


def half_width(likely: Floats, errors: Floats) -> float:
    """Half the width of the interval that misses with a chance of `TAIL`."""
    low, high = min(errors), 6.0 * max(errors)
    for _ in range(15):
        middle, missed = (low + high) / 2, 0.0
        for one, error in zip(likely, errors, strict=True):
            missed += one * normal_beyond(middle / error)
        low, high = (middle, high) if missed > TAIL else (low, middle)
    return high


def doubted(values: Floats, weights: Floats) -> int:
    """The kind below whose value the true one lies with a chance of `DOUBT`."""
    fewer, order = 0.0, sorted(range(len(values)), key=values.__getitem__)
    for kind in order:
        fewer += weights[kind]
        if fewer >= DOUBT:
            return kind
    return order[-1]


def slowness(powers: Floats, batches: int, reach: float) -> tuple[float, float, float, float, float]:
    """Half a width, level, stretches, returns, the level's part of the reach."""
    known, freedom = kinds(batches, len(powers)), float(len(powers))
    variances, logs = [], []
    for kind in known:
        left = 0.0
        for one, power in zip(kind.inverse, powers, strict=True):
            left += one * power
        variances.append(left / freedom)
        logs.append(kind.likely - 0.5 * freedom * math.log(left))
    top, weights, whole = max(logs), [], 0.0
    for one in logs:
        weights.append(math.exp(one - top))
        whole += weights[-1]
    weights = [one / whole for one in weights]
    noise = middle = 0.0
    likely, errors = [], []
    for kind, weight, variance in zip(known, weights, variances, strict=True):
        noise += weight * (variance * kind.noise)
        if weight > NOTHING:
            likely.append(weight)
            errors.append(math.sqrt(variance))
            middle += weight * math.log(variance)
    returns = [kind.moves for kind in known]
    if reach > 0:
        returns = [one * variance / (reach * reach) for one, variance in zip(returns, variances, strict=True)]
    least = doubted(returns, weights)
    fewest = doubted([kind.stretches for kind in known], weights)
    level = max(0.0, math.exp(middle) - noise)
    return half_width(likely, errors), level, known[fewest].stretches, returns[least], math.sqrt(known[least].part)


def cosines(apart: Floats, most: int) -> list[float]:
    """The powers of the slowest cosines."""
    n, powers = len(apart), []
    wave = [math.cos(i * (math.pi / (2 * n))) for i in range(4 * n)]
    for k in range(1, min(most, n - 1) + 1):
        total = 0.0
        for i, one in enumerate(apart):
            total += wave[k * (2 * i + 1) % (4 * n)] * one
        powers.append(2 * (total * total))
    return powers


def equal_batches(sums: Floats, weights: Floats) -> tuple[list[float], list[float]]:
    """Totals and sizes of at most 128 batches of about the same weight."""
    batches, whole, before = min(BATCHES, len(sums)), 0.0, 0.0
    for weight in weights:
        whole += weight
    totals, sizes = [0.0] * batches, [0.0] * batches
    for one, weight in zip(sums, weights, strict=True):
        before += weight
        batch = int(min((before - weight / 2) * (batches / whole), batches - 1))
        totals[batch] += one
        sizes[batch] += weight
    held = [batch for batch, size in enumerate(sizes) if size > 0]
    return [totals[batch] for batch in held], [sizes[batch] for batch in held]


def over_batches(totals: Floats, sizes: Floats, samples: float) -> tuple[float, float, float, float, float, float]:
    """Half a width, degrees of freedom, stretches, level, returns, how much higher the mean may lie."""
    n, whole, total, squares, second, third, together = len(totals), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for one, size in zip(totals, sizes, strict=True):
        whole += size
        total += one
    apart = [one - size * (total / whole) for one, size in zip(totals, sizes, strict=True)]
    means = [one / size for one, size in zip(apart, sizes, strict=True)]
    for i, (one, mean) in enumerate(zip(apart, means, strict=True)):
        squares += one * one
        second += mean * mean
        third += mean * mean * mean
        together += one * apart[i - 1] if i else 0.0
    if squares <= 0:
        return 0.0, n - 1.0, math.inf, 0.0, math.inf, 0.0
    place, ordered = 0.05 * (n - 1), sorted(means)
    low, high = ordered[int(place)], ordered[int(place) + 1]
    reach = -((high - low) * (place - int(place)) + low)
    skewness = third / n / (second / n) ** 1.5
    follows = min(max((together / squares - 0.5 / math.sqrt(n)) / 0.15, 0.0), 1.0)
    powers = cosines(apart, SLOWEST)
    half, level, stretches, returns, part = slowness(powers, n, reach * whole / n)
    alike = min(max(2 * skewness / 0.5, 0.0), 1.0)
    lasting = min(samples / stretches / 32.0, 1.0)
    doubt = 1 + follows * max(alike, lasting * lasting) * 150.0 / samples
    doubt = doubt * doubt
    returns = min(returns, samples / (2 * follows) if follows > 0 else math.inf) / doubt
    error = Z95 * math.sqrt(2 / (returns + 4.0))
    longer = min(1 / (1 - error) - 1, 9.0) if error < 1 else 9.0
    higher = max(0.0, reach) * alike * part * min(longer, 3.0 * doubt)
    return half / whole, float(len(powers)), stretches, level / (whole * whole), returns, higher


def over_time(sums: Floats, counts: Floats, samples: int) -> tuple[float, float, float, float, float, float] | None:
    """The same for parts in order of time; None: too few."""
    held = [(one, count) for one, count in zip(sums, counts, strict=True) if count > 0]
    if len(held) < FEWEST:
        return None
    if len(held) < samples <= MANY and sum(count for _, count in held) == samples:
        held = [(one / count, 1.0) for one, count in held for _ in range(int(count))]
    return over_batches(*equal_batches([one for one, _ in held], [count for _, count in held]), samples)
