"""Fridge, figure 2: the CDF of delay in 2^16 slots: a fridge, plain overwriting, the array with expiry, the truth.

The trace is like that of the paper's ISP. An error is |log2(estimated/true)|.
"""

import numpy as np
from traces import (
    ERROR_NAMES,
    EXPIRY,
    MIDDLE,
    OVERWRITE,
    UNION,
    Truth,
    arguments,
    fridges_of,
    isp,
    pooled,
    quantiles_ns,
    run,
    show,
    write_page,
)

EXPIRY_NS = 2**9 * 10**6
METHODS = {"fridge": UNION, "overwrite": OVERWRITE, "expiry 2^9 ms": EXPIRY}
PAPER = {"fridge": "0.08", "expiry 2^9 ms": "1.68"}


def main() -> None:
    chosen = arguments(__doc__, page=True)
    # Quick: fewer requests, but at the full rate into all slots, so that as many survive.
    trace = isp(requests=1_000_000 if chosen.quick else 3_000_000)
    seeds = range(3 if chosen.quick else 10)
    truth, fridges = Truth.of(trace.delays_ns), fridges_of((1 << 16,), (1.0,))
    rows, lines = [], {"truth": (quantiles_ns(trace.delays_ns, None, MIDDLE) / 1e6, MIDDLE)}
    for name, variant in METHODS.items():
        runs = [run(trace, fridges, seed, variant, 1, EXPIRY_NS) for seed in seeds]
        samples = [(seen.delays_ns, seen.weights) for seen in runs]
        single = np.median([truth.errors(*one) for one in samples], axis=0)
        together = pooled(samples)
        share = np.mean([len(seen.row) for seen in runs]) / len(trace.delays_ns)
        rows.append((name, *single, truth.errors(*together)[-1], PAPER.get(name, "-"), float(share)))
        lines[name] = (quantiles_ns(*together, MIDDLE) / 1e6, MIDDLE)
    show(
        f"errors, median of {len(seeds)} seeds; M = 2^16, p = 1",
        ("method", *ERROR_NAMES, "max, pooled", "paper's max", "delays seen"),
        rows,
    )
    if chosen.html:
        write_page(chosen.html, "Figure 2: CDF of delay, M = 2^16", "delay, ms", "share of delays", lines)


if __name__ == "__main__":
    main()
