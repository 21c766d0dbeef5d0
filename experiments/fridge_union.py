"""Fridge, section 4.2: two fridges together, estimate/true in each octave of delay.

The union weight 1 / (p1 (1 - p1/M1)^x + p2 (1 - p2/M2)^x), against the paper's inverse variances, which it takes for
each delay t: here in bins of an octave, of 1/8 and 1/64 octave, and of a microsecond. The fewer samples a bin has, the
more often a fridge that saw few of them looks certain.
"""

import numpy as np
from traces import Octaves, arguments, fridges_of, log_uniform, run, show

from wirelag.estimators.fridge_weights import inverse_variance_weights, union_weights

LONGEST_MS, OCTAVES = 16, 10
FRIDGES = fridges_of((1 << 10, 1 << 10), (1 / 2, 1 / 16))
BINS = {
    "octave": lambda delays_ns: np.floor(np.log2(delays_ns)),
    "1/8 octave": lambda delays_ns: np.floor(np.log2(delays_ns) * 8),
    "1/64 octave": lambda delays_ns: np.floor(np.log2(delays_ns) * 64),
    "1 us": lambda delays_ns: delays_ns // 1000,
}


def compare(requests: int, seeds: range) -> None:
    trace = log_uniform(LONGEST_MS, OCTAVES, requests=requests)
    octaves = Octaves.of(trace, LONGEST_MS, OCTAVES)
    runs: dict[str, list] = {name: [] for name in ("union", *(f"inverse variance, {name}" for name in BINS))}
    for seed in seeds:
        seen = run(trace, FRIDGES, seed)
        runs["union"].append((seen.delays_ns, union_weights(FRIDGES, seen.survived)))
        for name, bins in BINS.items():
            weights = inverse_variance_weights(FRIDGES, seen.fridge, seen.survived, bins(seen.delays_ns))
            runs[f"inverse variance, {name}"].append((seen.delays_ns, weights))
    rows = [(name, "1", *octaves.ratio(samples).tolist()) for name, samples in runs.items()]
    rows.append(("standard error", "-", *octaves.standard_error(trace, FRIDGES, len(seeds)).tolist()))
    show(
        f"estimate/true, {requests:,} requests, M = 2 x 2^10, p = 1/2 and 1/16, {len(seeds)} seeds,"
        " by octave of delay (its end, in ms)",
        ("weight", "paper", *octaves.names),
        rows,
    )


def main() -> None:
    chosen = arguments(__doc__)
    compare(200_000, range(10 if chosen.quick else 100))
    if not chosen.quick:
        compare(1_000_000, range(40))  # more samples in each bin: less bias


if __name__ == "__main__":
    main()
