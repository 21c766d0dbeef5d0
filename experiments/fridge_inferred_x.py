"""Fridge, section 3.3: x inferred from delay and mean rate, against x counted: estimate/true in each octave of delay.

At a constant rate they are the same (but for requests whose answers come after the last request of all). With bursts
10% of the time has 8 times the rate of the rest, and 8 times its delays, as when a queue fills: who waits long then
survives more requests than the mean rate tells.
"""

import numpy as np
from traces import Octaves, Trace, Truth, arguments, fridges_of, log_uniform, run, show, trace_of

from wirelag.estimators.fridge_weights import single_weights

SLOTS, LONGEST_MS, OCTAVES = 1 << 13, 8, 8
REQUESTS = 1_000_000


def burst(requests: int) -> Trace:
    """1/10 of every 100 ms has 8 times the rate of the rest and 8 times the delays; 1M requests/s on average."""
    rng = np.random.default_rng(1)
    per_cycle = 100_000
    calm = round(per_cycle * 9 / 17)  # 90% of the time at rate 1, 10% at rate 8
    gaps_ns = np.concatenate((np.full(calm, 9e7 / calm), np.full(per_cycle - calm, 1e7 / (per_cycle - calm))))
    cycles = requests // per_cycle
    asked_ns = np.cumsum(np.tile(gaps_ns, cycles)).astype(np.int64)
    longest_ms = np.where(np.tile(np.arange(per_cycle) >= calm, cycles), LONGEST_MS, LONGEST_MS / 8)
    delays_ns = (longest_ms * 1e6 * 2.0 ** rng.uniform(-5, 0, len(asked_ns))).astype(np.int64)
    return trace_of(rng, asked_ns, 0.4, delays_ns)


def main() -> None:
    chosen = arguments(__doc__)
    seeds = range(4 if chosen.quick else 20)
    fridges, rows = fridges_of((SLOTS,), (1,)), []
    traces = {"constant": log_uniform(LONGEST_MS, OCTAVES, requests=REQUESTS), "burst": burst(REQUESTS)}
    for rate, trace in traces.items():
        octaves, truth = Octaves.of(trace, LONGEST_MS, OCTAVES), Truth.of(trace.delays_ns)
        runs: dict[str, list] = {"counted": [], "inferred": []}
        for seed in seeds:
            seen = run(trace, fridges, seed)
            inferred = seen.delays_ns * trace.rate_per_s / 1e9
            runs["counted"].append((seen.delays_ns, single_weights(SLOTS, 1, seen.survived)))
            runs["inferred"].append((seen.delays_ns, single_weights(SLOTS, 1, inferred)))
        for x, samples in runs.items():
            errors = np.median([truth.errors(*one) for one in samples], axis=0)
            paper = "-" if (rate, x) == ("burst", "inferred") else "1"
            rows.append((f"{rate}, {x}", paper, *octaves.ratio(samples).tolist(), float(errors[1])))
        rows.append((f"{rate}, standard error", "-", *octaves.standard_error(trace, fridges, len(seeds)).tolist(), "-"))
    show(
        f"estimate/true, M = 2^13, p = 1, {len(seeds)} seeds, by octave of delay (its end, in ms); error of p95",
        ("rate, x", "paper", *octaves.names, "p95"),
        rows,
    )


if __name__ == "__main__":
    main()
