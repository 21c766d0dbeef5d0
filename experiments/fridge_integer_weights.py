"""Fridge, section 6.2, section 6.3: weights without floating point, and the histogram of 32 bins in the data plane.

The paper's look-up table has integer factors from 1/p on, each 1.1 times the previous one (or one more), and matches x
by prefixes. Its example (p = 1/2, M = 2^16: 2 for x < 7 x 2^11, 3 for x < 9 x 2^12) results if the factors change
half-way, ends of ranges have four bits, and x counts insertions with 1 - 1/M. Ours rounds the exact weight randomly.
"""

import numpy as np
from traces import ERROR_NAMES, TYPICAL, Array, Truth, arguments, fridges_of, isp, quantiles_ns, run, show

from wirelag.estimators.fridge_weights import union_weights

BINS = 32  # histogram bins: one octave each, up to 2^32 ns = 4.3 s


def table(first: int, hit: float, most: float) -> tuple[Array, Array]:
    """The start of each range of x, and its factor, up to this factor."""
    factors = [first]
    while factors[-1] < most:
        factors.append(max(factors[-1] + 1, round(1.1 * factors[-1])))
    half_way = (np.array(factors[1:]) + factors[:-1]) / 2
    begins = np.log(half_way / first) / -np.log1p(-hit)
    unit = 2.0 ** (np.floor(np.log2(begins)) - 3)  # four bits: 8 to 15 units
    return np.concatenate(([0], np.round(begins / unit) * unit)), np.array(factors)


def looked_up(first: int, hit: float, survived: Array) -> Array:
    """The factor of each x."""
    begins, factors = table(first, hit, 2.0**31)
    return factors[np.searchsorted(begins, survived, side="right") - 1]


def histogram_quantiles_ns(delays_ns: Array, weights: Array, ranks: tuple[float, ...], inside: bool) -> Array:
    """Quantiles from octaves of ns alone: the end of the octave, or log-linear inside it."""
    octave = np.minimum(np.floor(np.log2(np.maximum(delays_ns, 1))).astype(int), BINS - 1)
    shares = np.cumsum(np.bincount(octave, weights, minlength=BINS))
    rank = np.asarray(ranks) * shares[-1]
    place = np.searchsorted(shares, rank)
    before = np.where(place > 0, shares[place - 1], 0)
    return 2.0 ** (place + ((rank - before) / (shares[place] - before) if inside else 1))


def main() -> None:
    chosen = arguments(__doc__)
    trace = isp(requests=600_000 if chosen.quick else 3_000_000)
    seeds = range(3 if chosen.quick else 10)
    truth, slots = Truth.of(trace.delays_ns), 1 << 16

    begins, factors = table(2, 1 / slots, 4)
    rows = [
        (int(factor), paper, f"{begin / 2**11:g} x 2^11")
        for factor, begin, paper in zip(factors, begins, ("0 x 2^11", "7 x 2^11", "18 x 2^11"), strict=True)
    ]
    show("the table's ranges, p = 1/2, M = 2^16", ("factor", "paper: from", "ours: from"), rows)

    rows = []
    for p in (1, 1 / 2, 1 / 4, 1 / 16):
        fridges = fridges_of((slots,), (p,))
        errors: dict[str, list] = {"random": [], "table": [], "exact": []}
        for seed in seeds:
            seen = run(trace, fridges, seed)
            exact = union_weights(fridges, seen.survived)
            without_integers = Truth.of(seen.delays_ns, exact)
            factors = looked_up(round(1 / p), p / slots, seen.survived)
            errors["random"].append(without_integers.errors(seen.delays_ns, seen.weights)[-1])
            errors["table"].append(without_integers.errors(seen.delays_ns, factors)[-1])
            errors["exact"].append(truth.errors(seen.delays_ns, exact)[-1])
        middle = {name: float(np.median(values)) for name, values in errors.items()}
        rows.append((f"{p:g}", "0.002..0.009", middle["table"], middle["random"], middle["exact"]))
    show(
        f"largest error over 5..95% that integers add to exact weights, M = 2^16, median of {len(seeds)} seeds",
        ("p", "paper's table", "table", "rounded at random", "exact, against truth"),
        [[*row[:2], *(f"{value:.4f}" for value in row[2:])] for row in rows],
    )

    fridges, rows = fridges_of((slots,), (1,)), []
    found: dict[str, list] = {"samples": [], "32 bins, end of bin": [], "32 bins, inside it": []}
    for seed in seeds:
        seen = run(trace, fridges, seed)
        samples = seen.delays_ns, seen.weights
        found["samples"].append(quantiles_ns(*samples, TYPICAL))
        found["32 bins, end of bin"].append(histogram_quantiles_ns(*samples, TYPICAL, inside=False))
        found["32 bins, inside it"].append(histogram_quantiles_ns(*samples, TYPICAL, inside=True))
    for name, values in found.items():
        rows.append((name, "-", *np.median(np.abs(np.log2(values / truth.typical_ns)), axis=0).tolist()))
    show(
        f"errors of quantiles, p = 1, M = 2^16, integer weights, median of {len(seeds)} seeds",
        ("quantiles from", "paper", *ERROR_NAMES[:3]),
        rows,
    )


if __name__ == "__main__":
    main()
