"""LDA: quantiles of one-way delay from a coordinated sample of n packets: both points keep the same ones, by a coin.

1,024,000 packets, Weibull 0.6, mean 50 us, 0.1% lost. A cache has room for 5/4 n, and keeps one packet in 2^level: n of
them on average. Theory: the median error of a quantile of n delays with this distribution.
"""

import math

import numpy as np
from crossing_traces import NORMAL_MEDIAN, WEIBULL, Packets, arriving, percent, weibull_ns
from traces import arguments, show

from wirelag.packets.interval import Interval
from wirelag.synopses.cache import CacheMeter
from wirelag.synopses.delay_sample import DelaySample

SHARES = [0.5, 0.9, 0.99, 0.999]
EXPECTED = {4000: ("2.6", "2.4", "4.3", "8.9")}


def theory(share: float, samples: int) -> float:
    """The error of a quantile is that of its share over the density."""
    t = -math.log(1 - share)
    return NORMAL_MEDIAN * math.sqrt(share * (1 - share) / samples) / (WEIBULL * t * (1 - share))


def main() -> None:
    chosen = arguments(__doc__)
    count, seeds = 1_024_000, range(12 if chosen.quick else 100)
    sizes = (250, 1000, 4000) if chosen.quick else (250, 500, 1000, 2000, 4000)
    packets = Packets.one_by_one(weibull_ns(np.random.default_rng(1), count, 50_000.0))
    arrived = arriving(count, 0.001)
    sources = packets.sources(arrived)
    (up,), (down,) = sources["upstream"], sources["downstream"]
    delays_ns = np.sort(packets.delays_ns[arrived])
    truth_ns = [float(delays_ns[int(share * len(delays_ns))]) for share in SHARES]
    rows, covered = [], []
    for size in sizes:
        errors, inside, samples = [], np.zeros(len(SHARES)), []
        known = np.zeros(len(SHARES))
        for seed in seeds:
            cached = []
            for seen in (up, down):
                meter = CacheMeter(size * 5 // 4, seed)
                meter.observe(seen)
                cached.append(meter.cut(Interval(0, 0)))
            tail = DelaySample.between(*cached)
            found = tail.quantiles_ns(SHARES)
            samples.append(len(tail))
            errors.append([abs(value - true) / true for (value, _), true in zip(found, truth_ns, strict=True)])
            bounds = [bound for _, bound in found]
            known += [bound is not None for bound in bounds]
            inside += [b is not None and b[0] <= t <= b[1] for b, t in zip(bounds, truth_ns, strict=True)]
        median = [percent(error) for error in np.median(errors, axis=0)]
        said = EXPECTED.get(size, ("-",) * len(SHARES))
        rows.append((str(size), f"{np.mean(samples):.0f}", 16 * size * 5 // 4, *median))
        rows.append((f"{size}, theory", "-", "-", *(percent(theory(share, size)) for share in SHARES)))
        if size in EXPECTED:
            rows.append((f"{size}, expected", "-", "-", *said))
        cells = [f"{i / k:.2f}" if k else "-" for i, k in zip(inside, known, strict=True)]
        covered.append((str(size), *cells))
    names = [f"p{100 * share:g}" for share in SHARES]
    show(f"error of quantiles, %, median of {len(seeds)} seeds", ("n", "samples", "bytes", *names), rows)
    show("95% intervals that hold the truth, of those that are given", ("n", *names), covered)


if __name__ == "__main__":
    main()
