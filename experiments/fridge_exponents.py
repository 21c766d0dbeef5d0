"""Fridge, lemma 3.1: estimate/true in each octave of delay, for each pair of what x counts and how often one hits.

The paper counts x in insertions (section 6.1) and takes 1 - p/M to that power (equation 1): the literal mix. Two other
pairs are unbiased: x = requests inserted with 1 - 1/M, x = all requests with 1 - p/M. Octaves in which even the right
weights are uncertain by more than 3% are left out: "-".
"""

import numpy as np
from traces import Array, Octaves, Trace, arguments, fridges_of, kernel_seed, log_uniform, run, show

from wirelag.estimators.fridge_plan import CERTAIN
from wirelag.estimators.fridge_weights import single_weights

SLOTS, LONGEST_MS, OCTAVES = 1 << 11, 16, 10
SURE = 0.03


def mix(x: Array) -> Array:
    """`mix` of docs/reference/columns.md."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def entered_so_far(trace: Trace, probability: float, seed: int) -> Array:
    """How many of the first n requests entered the fridge, n = 0, 1, ...: derived from the kernel's coins."""
    x = trace.flow_key * np.uint64(0xD6E8FEB86659FD93)
    ids = mix((x ^ x >> np.uint64(32)) + np.uint64(4))
    coins = mix(ids + np.uint64(kernel_seed(seed))) >> np.uint64(32)
    return np.concatenate(([0], np.cumsum(coins < round(probability * CERTAIN))))


def main() -> None:
    chosen = arguments(__doc__)
    trace = log_uniform(LONGEST_MS, OCTAVES, requests=200_000 if chosen.quick else 1_000_000)
    octaves = Octaves.of(trace, LONGEST_MS, OCTAVES)
    seeds = range(10 if chosen.quick else 40)
    for p in (1, 1 / 4, 1 / 16):
        fridges = fridges_of((SLOTS,), (p,))
        pairs = {
            "all, 1 - p/M": (False, p / SLOTS),
            "inserted, 1 - 1/M": (True, 1 / SLOTS),
            "inserted, 1 - p/M (literal)": (True, p / SLOTS),
            "all, 1 - 1/M": (False, 1 / SLOTS),
        }
        sums = {name: np.zeros(OCTAVES) for name in pairs}
        for seed in seeds:
            seen, so_far = run(trace, fridges, seed), entered_so_far(trace, p, seed)
            inserted = so_far[trace.arrivals[seen.row]] - so_far[trace.request[seen.row] + 1]
            for name, (count_inserted, hit) in pairs.items():
                x = inserted if count_inserted else seen.survived
                sums[name] += octaves.sums(seen.delays_ns, single_weights(SLOTS, p, x, hit))
        error = octaves.standard_error(trace, fridges, len(seeds))
        rows = []
        for name, total in sums.items():
            ratios = total / octaves.true / len(seeds)
            rows.append((name, "1", *(float(r) if e < SURE else "-" for r, e in zip(ratios, error, strict=True))))
        rows.append(("standard error", "-", *(float(e) for e in error)))
        show(
            f"estimate/true, p = {p:g}, M = 2^11, {len(seeds)} seeds, by octave of delay (its end, in ms)",
            ("x, kept", "paper", *octaves.names),
            rows,
        )


if __name__ == "__main__":
    main()
