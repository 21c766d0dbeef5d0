"""Fridge, figures 4, 5: error at p50, p95 and p99 against memory, 2^10 to 2^16 slots, on a trace like the ISP's.

"Best" means tuned against the truth for each memory, as in the paper: the expiry of the array, the entry probabilities
of fridges. That needs the truth; without it the array gets 2^9 ms, as its authors advise (near p99), and fridges get
`plan`'s choice from rate and delays.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
from traces import (
    EXPIRY,
    ISP_RATE_PER_S,
    TYPICAL,
    Array,
    Trace,
    Truth,
    arguments,
    fridges_of,
    isp,
    run,
    show,
    write_page,
)

from wirelag.estimators.fridge_plan import CERTAIN, Fridges, plan
from wirelag.estimators.fridge_weights import inverse_variance_weights
from wirelag.stats.distribution import Distribution

EXPIRIES_MS = [2**k for k in range(4, 13)]
SINGLE = [(2.0**k,) for k in range(-12, 1)]
PAIRS = [(2.0**j - (2.0**k if j == 0 else 0), 2.0**k) for j in range(0, -11, -2) for k in range(j - 2, -13, -2)]
ADVISED = ("expiry 2^9 ms, 1 stage", "expiry 2^9 ms, 4 stages")
TUNED = ("best expiry, 1 stage", "best expiry, 4 stages")
INVERSE = "2, best p, inverse variance"
TUNING_SEEDS = (1000, 1001)

T = TypeVar("T")
Errors: TypeAlias = Callable[[T, int], Array]  # for a choice and a seed: at p50, p95, p99


def best(choices: Sequence[T], errors: Errors[T]) -> T:
    """The choice with the smallest errors, with seeds that are not used again."""
    return min(choices, key=lambda choice: sum(errors(choice, seed).sum() for seed in TUNING_SEEDS))


def of_expiry(trace: Trace, truth: Truth, slots: int, stages: int, expiry_ms: int, seed: int) -> Array:
    seen = run(trace, fridges_of((slots,), (1,)), seed, EXPIRY, stages, expiry_ms * 10**6)
    return truth.errors(seen.delays_ns)[:3] if len(seen.row) else np.full(3, np.inf)


def of_fridges(trace: Trace, truth: Truth, fridges: Fridges, seed: int, inverse: bool = False) -> Array:
    seen = run(trace, fridges, seed)
    if not len(seen.row):
        return np.full(3, np.inf)
    weights = seen.weights
    if inverse:
        octaves = np.floor(np.log2(seen.delays_ns))
        weights = inverse_variance_weights(fridges, seen.fridge, seen.survived, octaves)
    return truth.errors(seen.delays_ns, weights)[:3]


def multiple(sizes: list[int], errors: list[float], slots: int, error: float) -> float:
    """The factor by which slots must grow for this error; twice the largest if none suffices."""
    enough = [size for size, one in zip(sizes, errors, strict=True) if one <= error]
    return (enough[0] if enough else 2 * sizes[-1]) / slots


def main() -> None:
    chosen = arguments(__doc__, page=True)
    trace = isp(requests=400_000 if chosen.quick else 3_000_000)
    truth, delays = Truth.of(trace.delays_ns), Distribution()
    delays.add(trace.delays_ns)
    seeds = range(3 if chosen.quick else 7)
    sizes = [1 << k for k in range(10, 17, 3 if chosen.quick else 1)]
    tunings: dict[str, list[str]] = {}
    middle: dict[tuple[str, int], Array] = {}
    for slots in sizes:
        methods: dict[str, Callable[[int], Array]] = {}
        for stages, advised, tuned in zip((1, 4), ADVISED, TUNED, strict=True):
            errors = partial(of_expiry, trace, truth, slots, stages)
            methods[advised] = partial(errors, 2**9)
            expiry_ms = best(EXPIRIES_MS, errors)
            tunings.setdefault(f"{tuned}, ms", []).append(f"2^{expiry_ms.bit_length() - 1}")
            methods[tuned] = partial(errors, expiry_ms)
        on_trace = partial(of_fridges, trace, truth)
        one = best([fridges_of((slots,), p) for p in SINGLE], on_trace)
        pairs = [fridges_of((slots // 2,) * 2, p) for p in PAIRS]
        two, inverse = best(pairs, on_trace), best(pairs, partial(on_trace, inverse=True))
        for name, fridges in (("1 fridge, best p", one), ("2 fridges, best p", two), (INVERSE, inverse)):
            powers = [f"{round(math.log2(p / CERTAIN))}" for p in fridges.probabilities]
            tunings.setdefault(f"{name}, log2", []).append(" ".join(powers))
        methods |= {"1 fridge, best p": partial(on_trace, one), "2 fridges, best p": partial(on_trace, two)}
        methods[INVERSE] = partial(on_trace, inverse, inverse=True)
        for count in (1, 2, 3):
            planned = plan(24 * slots, ISP_RATE_PER_S, delays, count)
            methods[f"{count} fridge{'s' * (count > 1)}, planned"] = partial(on_trace, planned)
        for name, errors_of in methods.items():
            middle[name, slots] = np.median([errors_of(seed) for seed in seeds], axis=0)
    names = list(dict.fromkeys(name for name, _ in middle))
    header = ("method", *(f"2^{slots.bit_length() - 1}" for slots in sizes))
    show("what is best against the truth, by slots", header, [(name, *found) for name, found in tunings.items()])
    for k, rank in enumerate(TYPICAL):
        show(
            f"error of p{rank * 100:.0f}, median of {len(seeds)} seeds, by slots",
            header,
            [(name, *(float(middle[name, slots][k]) for slots in sizes)) for name in names],
        )
    rows = []
    for name in (name for name in names if "fridge" in name):
        multiples = [
            float(np.median([multiple(sizes, rival, slots, middle[name, slots][k]) for slots in sizes]))
            for rivals in (ADVISED, TUNED)
            for k in range(3)
            for rival in [[min(middle[one, slots][k] for one in rivals) for slots in sizes]]
        ]
        rows.append((name, "2..4" if name.startswith("2") else "-", *(f"{m:.2g}" for m in multiples)))
    show(
        "slots that the better array with expiry needs for the same error, as a multiple, median over memories",
        ("method", "paper", *(f"p{r * 100:.0f}, {expiry}" for expiry in ("2^9 ms", "best") for r in TYPICAL)),
        rows,
    )
    if chosen.html:
        lines = {name: (np.array(sizes), np.array([middle[name, slots][2] for slots in sizes])) for name in names}
        write_page(chosen.html, "Figures 4 and 5: error of p99", "slots", "|log2(estimated/true)|", lines)


if __name__ == "__main__":
    main()
