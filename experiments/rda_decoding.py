"""RDA and FineComb, figures 6, 7, 8, theorem 2 and more: how long decoding takes, and how often all is decoded.

RDA with two banks is the paper's; three and four banks, rateless symbols and a point's own cache are better. FineComb
tries all sets of stashed packets of a bucket; here at most 4,096, so larger stashes are extrapolated.
"""

import numpy as np
from rda_traces import (
    BUCKETS,
    NONE,
    Words,
    apart_of,
    decoded_share,
    difference_of,
    fastest,
    fresh,
    two_banks_decode,
)
from traces import arguments, show

from wirelag import _kernels

TIMED_CELLS = 4000  # figure 6
SIZES = (100, 500, 1000, 1500, 2000)
STASHES = (4, 8, 10, 12, 20, 40)
FULL = (500, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000)
EXPECTED_FULL = {1000: ".90 / 1", 2000: ".62 / 1", 3000: "0 / 1", 4000: "0 / .97"}
EXPECTED_CELLS = {(2, 100): "about 20", (3, 100): "2.5", (3, 5000): "1.25", (4, 100): "1.6", (4, 5000): "1.35"}
ENOUGH = 0.99


def halves(rng: np.random.Generator, size: int) -> tuple[Words, Words]:
    return fresh(rng, size // 2), fresh(rng, size - size // 2)


# ---- figure 6 ----


def rda_ms(banks: int, size: int) -> float:
    apart = difference_of(*halves(np.random.default_rng(size), size), banks, TIMED_CELLS // banks, 0)
    return 1e3 * fastest(lambda: _kernels.rda_decode(apart.copy(), banks, 0, banks > 2, NONE))


def rateless_ms(size: int) -> float:
    up, down = halves(np.random.default_rng(size), size)
    symbols = apart_of(*(_kernels.RatelessEncoder(ids, 0).symbols(2 * size + 100) for ids in (up, down)))
    return 1e3 * fastest(lambda: _kernels.RatelessDecoder(0).add(symbols))


def finecomb_us(stash: int) -> float:
    """One bucket that lost a packet, so that all sets are tried in vain."""
    up, down = halves(np.random.default_rng(stash), stash)
    lost = fresh(np.random.default_rng(1), 1)
    buckets = np.zeros((2, 3), np.uint64)
    for into, ids in zip(buckets, (np.concatenate((up, lost)), down), strict=True):
        _kernels.finecomb(ids, np.zeros(len(ids), np.int64), into, 1, 0, 0)

    def repair() -> int:
        return _kernels.finecomb_repair(
            buckets[0].copy(),
            buckets[1].copy(),
            up,
            np.zeros(len(up), np.int64),
            down,
            np.zeros(len(down), np.int64),
            1,
            0,
        )[1]

    assert repair() == 2**stash - 1
    return 1e6 * fastest(repair, 20)


def show_times() -> None:
    rows = [(str(d), *(f"{ms:.2f}" for ms in (rda_ms(2, d), rda_ms(3, d), rateless_ms(d)))) for d in SIZES]
    show(f"6: ms to decode, {TIMED_CELLS} buckets", ("difference", "RDA k=2", "RDA k=3, check", "rateless"), rows)
    measured = {stash: finecomb_us(stash) for stash in STASHES if stash <= 12}
    per_set = measured[12] / 2**12
    rows = []
    for stash in STASHES:
        seconds = measured.get(stash, per_set * 2.0**stash) * 1e-6
        said = f"{seconds * 1e3:.3f} ms" if seconds < 60 else f"{seconds / 60:.0f} min"
        rows.append((str(stash), f"2^{stash}", said, "measured" if stash in measured else "extrapolated"))
    header = ("stashed packets", "sets", "time", "how")
    show("6: FineComb, one bucket that cannot be repaired; paper: unacceptably long at 40", header, rows)


# ---- how often ----


def show_full(runs: int) -> None:
    rows = []
    for d in FULL:
        shares = [decoded_share(banks, -(-BUCKETS // banks), d, runs, d, banks > 2) for banks in (2, 3, 4)]
        theory = two_banks_decode(d, BUCKETS // 2)
        rows.append(
            (str(d), *(full for full, _ in shares), theory, *(part for _, part in shares), EXPECTED_FULL.get(d, "-"))
        )
    names = [f"k={banks}" for banks in (2, 3, 4)]
    header = ("difference", *names, "k=2, theory", *(f"{name}, part" for name in names), "expected k=2 / k=3")
    show(f"share of differences decoded in full, and part decoded, {BUCKETS} buckets, {runs} runs", header, rows)


def show_theorem(runs: int) -> None:
    rows = []
    for d in (50, 100, 500, 1000, 5000):
        two = decoded_share(2, 2 * d, d, runs, d)[0]
        three = decoded_share(3, -(-4 * d // 3), d, runs, d)[0]
        bound = f"O({d**-2.0:.0e})"
        rows.append((str(d), 1 - two, 1 - two_banks_decode(1, 2), bound, f"{1 - three:.4f}", "0.001-0.02"))
    header = ("d", "k=2 fails", "theory", "paper", "k=3, same cells, fails", "expected, k=3")
    show(f"theorem 2: 2 d buckets a bank, {runs} runs", header, rows)


def decodes_with_cache(size: int, lost_share: float, caches: int, run: int) -> bool:
    """Two banks and the cache of neither point, of upstream, or of both points in turn."""
    rng = np.random.default_rng(run)
    lost = round(size * lost_share)
    up, down, common = fresh(rng, lost), fresh(rng, size - lost), fresh(rng, 20_000)
    apart = difference_of(up, down, 2, BUCKETS // 2, run)
    own = np.concatenate((up, common)) if caches else NONE
    done = _kernels.rda_decode(apart, 2, run, True, own)[2]
    if caches == 2 and not done:
        apart[2::3] = -apart[2::3]  # the same, seen from downstream
        done = _kernels.rda_decode(apart, 2, run, True, np.concatenate((down, common)))[2]
    return done


def show_cache(runs: int) -> None:
    rows = []
    for d in (1000, 2000, 3000, 4000, 5000):
        kinds = ((0.5, 0), (1.0, 1), (0.5, 1), (0.5, 2))
        cells = [sum(decodes_with_cache(d, *kind, run) for run in range(runs)) / runs for kind in kinds]
        rows.append((str(d), *cells, "0.998"))
    header = ("difference", "no cache", "all lost, upstream's", "half lost, upstream's", "half lost, both", "expected")
    show(f"k=2 with check and a point's own cache, {BUCKETS} buckets, {runs} runs", header, rows)


def cells_wanted(banks: int, size: int, runs: int) -> float:
    """The fewest cells per packet of a difference that decode 99%: between 1.1 and 30, by bisection."""
    low, high = 1.1, 30.0
    while high / low > 1.02:
        middle = (low * high) ** 0.5
        enough = decoded_share(banks, max(1, round(middle * size / banks)), size, runs, size)[0] >= ENOUGH
        low, high = (low, middle) if enough else (middle, high)
    return high


def show_cells(runs: int) -> None:
    rows = []
    for d in (100, 1000, 5000):
        cells: list[str] = []
        for banks in (2, 3, 4):
            cells += [f"{cells_wanted(banks, d, runs):.2f}", EXPECTED_CELLS.get((banks, d), "-")]
        rows.append((str(d), *cells))
    header = ("d", *(name for banks in (2, 3, 4) for name in (f"k={banks}", f"expected, k={banks}")))
    show(f"cells for each packet of a difference, to decode 99% in full; k=2, theory: 14.2; {runs} runs", header, rows)


def symbols_wanted(size: int, run: int) -> int:
    """Symbols until a difference is complete, one by one (to within 1%)."""
    up, down = halves(np.random.default_rng(run), size)
    encoders = [_kernels.RatelessEncoder(ids, run) for ids in (up, down)]
    decoder, step = _kernels.RatelessDecoder(run), max(1, size // 100)
    while not decoder.add(apart_of(*(encoder.symbols(step) for encoder in encoders))):
        pass
    return decoder.symbols


def show_symbols(runs: int) -> None:
    rows = []
    for d, expected in ((10, "-"), (100, "1.45"), (1000, "1.38"), (10_000, "1.36")):
        ratios = [symbols_wanted(d, run) / d for run in range(runs)]
        rows.append((str(d), float(np.mean(ratios)), float(np.quantile(ratios, 0.99)), expected))
    show(f"rateless symbols for each packet of a difference, {runs} runs", ("d", "mean", "99%", "expected"), rows)


def main() -> None:
    quick = arguments(__doc__).quick
    show_times()
    show_full(30 if quick else 300)
    show_theorem(50 if quick else 1000)
    show_cache(10 if quick else 100)
    show_cells(100 if quick else 1000)
    show_symbols(10 if quick else 100)


if __name__ == "__main__":
    main()
