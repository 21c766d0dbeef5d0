"""Fridge, section 4.1, equation 4: a fridge of several stages, and why it is worse for long delays.

Every request is inserted in stage 1 (p = 1); what it displaces moves to stage 2, and so on; what leaves the last stage
is lost. One request in ten is answered after a number of insertions x, log-uniform from M/8 to 8 M. A request in the
last stage that survived y insertions into that stage counts (1 - D/M)^-y, any other 1, as in the paper.

Theory for a full fridge: a request survives x insertions if fewer than D of them hit it, each with probability D/M.
"""

import math
import random

import numpy as np
from traces import Array, arguments, show

SLOTS, OCTAVES = 256, 6  # M/8 to 8 M
STAGES = (1, 2, 4, 8)


def survival(stages: int, multiple: float) -> float:
    """The probability of surviving `multiple` times M insertions: fewer than D of a Poisson number of hits."""
    hits = stages * multiple
    return sum(math.exp(-hits) * hits**k / math.factorial(k) for k in range(stages))


def simulate(stages: int, requests: int, seed: int) -> tuple[Array, Array, Array]:
    """Answered, seen, and the sum of weights, by octave of x/M."""
    rng = random.Random(seed)
    size = SLOTS // stages
    arrays: list[list[int]] = [[-1] * size for _ in range(stages)]  # the number of the request in each slot
    place: dict[int, tuple[int, int, int]] = {}  # by request: stage, slot, insertions into the last stage before
    answers: dict[int, list[int]] = {}  # due after this many insertions
    into_last, last = 0, stages - 1
    answered, seen, weights = np.zeros(OCTAVES), np.zeros(OCTAVES), np.zeros(OCTAVES)
    kept = 1 - 1 / size
    for number in range(requests):
        for request in answers.pop(number, ()):
            x = number - request - 1
            octave = min(max(math.floor(math.log2(max(x, 1) / SLOTS)) + 3, 0), OCTAVES - 1)
            answered[octave] += 1
            if request in place:
                stage, slot, before = place.pop(request)
                arrays[stage][slot] = -1
                seen[octave] += 1
                weights[octave] += kept ** (before - into_last) if stage == last else 1
        if rng.random() < 0.1:
            due = number + 1 + round(SLOTS * 2 ** rng.uniform(-3, 3))
            answers.setdefault(due, []).append(number)
        moving = number
        for stage in range(stages):
            into_last += stage == last
            slot = int(rng.random() * size)  # a hash of the request, different in each stage
            moved, arrays[stage][slot] = arrays[stage][slot], moving
            place[moving] = stage, slot, into_last
            moving = moved
            if moving < 0:
                break
        else:
            del place[moving]
    return answered, seen, weights


def main() -> None:
    chosen = arguments(__doc__)
    seeds, requests = range(4 if chosen.quick else 40), 60_000 if chosen.quick else 100_000
    names = [f"{2.0**k:g}..{2.0 ** (k + 1):g}" for k in range(-3, 3)]
    points = 2.0 ** ((np.arange(60) + 0.5) / 10 - 3)
    shares, ratios, spreads = [], [], []
    for stages in STAGES:
        runs = [simulate(stages, requests, 100 * stages + seed) for seed in seeds]
        answered, seen, weights = (np.array(column) for column in zip(*runs, strict=True))
        expected = np.mean([[survival(stages, x) for x in points[k * 10 : k * 10 + 10]] for k in range(6)], axis=1)
        shares.append((f"{stages}, theory if full", *expected.tolist()))
        shares.append((f"{stages}, measured", *(seen.sum(axis=0) / answered.sum(axis=0)).tolist()))
        each = weights / answered
        ratios.append((stages, "1", *(weights.sum(axis=0) / answered.sum(axis=0)).tolist()))
        spreads.append((stages, "-", *each.std(axis=0, ddof=1).tolist()))
    show("share of answered requests that survive, by x / (M/p)", ("stages", *names), shares)
    show(f"estimate/true, {len(seeds)} seeds together", ("stages", "paper", *names), ratios)
    show("standard deviation of estimate/true of one run", ("stages", "paper", *names), spreads)
    rows = []
    for stages in STAGES[1:]:
        multiples = np.arange(0.5, 3, 0.001)
        better = [m for m in multiples if survival(stages, m) > survival(1, m)]
        rows.append((stages, "1", float(max(better))))
    show("x / (M/p) from which one stage keeps more, equation 4", ("stages", "paper", "ours"), rows)


if __name__ == "__main__":
    main()
