"""Fridge, figure 3: which entry probability is best in 2^12 slots, for delays up to 2^12 ms and up to 2^6 ms.

The trace is the paper's synthetic one. Beside the measurement is the planner's choice from the standard error alone,
given rate and delays.
"""

import math

import numpy as np
from traces import Truth, arguments, fridges_of, log_uniform, run, show

from wirelag.estimators.fridge_plan import CERTAIN, plan
from wirelag.stats.distribution import Distribution

SLOTS = 1 << 12
PAPER = {12: "2^-9", 6: "2^-4"}


def main() -> None:
    chosen = arguments(__doc__)
    seeds = range(3 if chosen.quick else 10)
    powers = range(-13, 1, 2 if chosen.quick else 1)
    errors, chosen_by_plan = {}, {}
    for longest in PAPER:
        trace = log_uniform(2.0**longest, requests=600_000 if chosen.quick else 1_250_000)
        truth, delays = Truth.of(trace.delays_ns), Distribution()
        delays.add(trace.delays_ns)
        for power in powers:
            runs = [run(trace, fridges_of((SLOTS,), (2.0**power,)), seed) for seed in seeds]
            found = [truth.errors(seen.delays_ns, seen.weights)[-1] for seen in runs if len(seen.row)]
            errors[longest, power] = float(np.median(found))
        chosen_by_plan[longest] = plan(24 * SLOTS, 1e6, delays, 1).probabilities[0] / CERTAIN
    show(
        f"largest error over 5..95%, median of {len(seeds)} seeds; M = 2^12",
        ("p", "T = 2^12 ms", "T = 2^6 ms"),
        [(f"2^{power}", errors[12, power], errors[6, power]) for power in powers],
    )
    rows = []
    for longest, paper in PAPER.items():
        best = min(powers, key=lambda power: errors[longest, power])
        close = [power for power in powers if errors[longest, power] <= 1.5 * errors[longest, best]]
        planned = f"2^{math.log2(chosen_by_plan[longest]):.0f}"
        rows.append((f"T = 2^{longest} ms", paper, f"2^{best}", f"2^{min(close)}..2^{max(close)}", planned))
    show("best p", ("delays up to", "paper", "best", "within 1.5x of it", "planned"), rows)


if __name__ == "__main__":
    main()
