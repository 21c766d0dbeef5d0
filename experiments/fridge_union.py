"""Section 4.2: two fridges together, estimate/true in each octave of delay.

The union weight 1 / (p1 (1 - p1/M1)^x + p2 (1 - p2/M2)^x), against the paper's inverse variances, which it takes for
each delay t: here in bins of an octave, of 1/8 and of 1/64 octave, because a delay in ns comes only once.
"""

import numpy as np
from traces import Octaves, arguments, fridges_of, log_uniform, run, show

from wirelag.estimators.fridge import inverse_variance_weights, union_weights

LONGEST_MS, OCTAVES = 16, 10
FRIDGES = fridges_of((1 << 10, 1 << 10), (1 / 2, 1 / 16))
BINS_PER_OCTAVE = (1, 8, 64)


def main() -> None:
    chosen = arguments(__doc__)
    trace = log_uniform(LONGEST_MS, OCTAVES, requests=200_000 if chosen.quick else 1_000_000)
    octaves = Octaves.of(trace, LONGEST_MS, OCTAVES)
    seeds = range(10 if chosen.quick else 40)
    names = ["union", *(f"inverse variance, 1/{bins} octave" for bins in BINS_PER_OCTAVE)]
    runs: dict[str, list] = {name: [] for name in names}
    for seed in seeds:
        seen = run(trace, FRIDGES, seed)
        runs["union"].append((seen.delays_ns, union_weights(FRIDGES, seen.survived)))
        for name, per_octave in zip(names[1:], BINS_PER_OCTAVE, strict=True):
            bins = np.floor(np.log2(seen.delays_ns) * per_octave)
            weights = inverse_variance_weights(FRIDGES, seen.fridge, seen.survived, bins)
            runs[name].append((seen.delays_ns, weights))
    rows = [(name, "1", *octaves.ratio(samples).tolist()) for name, samples in runs.items()]
    rows.append(("standard error", "", *octaves.standard_error(trace, FRIDGES, len(seeds)).tolist()))
    show(
        f"estimate/true, M = 2 x 2^10, p = 1/2 and 1/16, {len(seeds)} seeds, by octave of delay (its end, in ms)",
        ("weight", "paper", *octaves.names),
        rows,
    )


if __name__ == "__main__":
    main()
