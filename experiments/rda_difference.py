"""RDA and FineComb, section VIII: the size of a difference before it is decoded, and what RDA sends for each packet.

Strata against MinHash. 1M packets at each point. The paper sizes its buckets with MinHash; rateless symbols need no
size at all.
"""

import numpy as np
from rda_traces import Points, apart_of, fresh, median, weibull_50us
from traces import arguments, show

from wirelag import _kernels
from wirelag.estimators.rda import Rda, strata

DIFFERENCES = (100, 1000, 10_000)
MINIMA = {"8 KB": 1024, "32 KB": 4096}
EXPECTED_ERROR = {"MinHash, 8 KB": "96", "MinHash, 32 KB": "47", "strata": "9"}
PAPER_BYTES = 4 * 24  # theorem 2: two banks of 2 d buckets of three words
EXPECTED_BYTES = {"rateless": "19", "k=2, m = 2 d (paper)": "96"}
METHODS = {"k=3, sized by strata": Rda(tail=0), "rateless": Rda(rateless=True, tail=0)}


def errors(count: int, runs: int) -> dict[tuple[str, int], list[float]]:
    """Relative errors by method and difference."""
    found: dict[tuple[str, int], list[float]] = {}
    most = max(MINIMA.values())
    for run in range(runs):
        rng = np.random.default_rng(run)
        common = _kernels.minhash(fresh(rng, count), most, run)  # once: a minimum over two sets is that of both minima
        for d in DIFFERENCES:
            up, down = fresh(rng, d // 2), fresh(rng, d - d // 2)
            same = np.minimum(common, _kernels.minhash(up, most, run)) == np.minimum(
                common, _kernels.minhash(down, most, run)
            )
            for name, minima in MINIMA.items():
                alike = float(same[:minima].mean())
                guess = (1 - alike) / (1 + alike) * (2 * count + d)
                found.setdefault((f"MinHash, {name}", d), []).append(abs(guess - d) / d)
            # Common packets cancel out of strata: they need not be added.
            guess = _kernels.strata_estimate(apart_of(strata(up, run), strata(down, run)), run)
            found.setdefault(("strata", d), []).append(abs(guess - d) / d)
    return found


def show_errors(count: int, runs: int) -> None:
    found = errors(count, runs)
    rows = []
    for name in ("MinHash, 8 KB", "MinHash, 32 KB", "strata"):
        cells = [f"{100 * median(found[name, d]):.0f}" for d in DIFFERENCES]
        rows.append((name, *cells, EXPECTED_ERROR[name]))
    header = ("method", *(f"d = {d}" for d in DIFFERENCES), "expected, d = 1000")
    show(f"error of the size of the difference, %, median of {runs} runs, {count} packets", header, rows)


def show_bytes(count: int, runs: int) -> None:
    rows: list[tuple[object, ...]] = []
    for name, estimator in METHODS.items():
        sent: dict[int, list[int]] = {}
        for d in (0, *DIFFERENCES):
            for run in range(runs):
                points = Points.apart(count, d, run, weibull_50us)
                crossing = estimator.cross(points.up, points.down)
                assert points.mean_error(crossing) == 0
                sent.setdefault(d, []).append(crossing.wire_bytes)
        fixed = float(np.mean(sent[0]))
        each = [f"{(np.mean(sent[d]) - fixed) / d:.1f}" for d in DIFFERENCES]
        rows.append((name, round(fixed), *each, EXPECTED_BYTES.get(name, "-")))
    rows.append(("k=2, m = 2 d (paper)", "-", *[f"{PAPER_BYTES}.0"] * len(DIFFERENCES), "96"))
    header = ("method", "bytes at d = 0", *(f"d = {d}" for d in DIFFERENCES), "expected")
    show(f"bytes for each packet of a difference, beyond those of none, mean of {runs} runs", header, rows)
    rows = []
    for d in DIFFERENCES:
        points = Points.apart(count, d, 0, weibull_50us)
        encoders = [_kernels.RatelessEncoder(cached.ids, 0) for cached in (points.up, points.down)]
        decoder, step = _kernels.RatelessDecoder(0), max(1, d // 50)
        while not decoder.add(apart_of(*(encoder.symbols(step) for encoder in encoders))):
            pass
        asked = METHODS["rateless"].cross(points.up, points.down).details["symbols"]
        rows.append((d, decoder.symbols / d, asked / d))
    show("rateless symbols for each packet", ("d", "as they are needed", "as they are asked for"), rows)


def main() -> None:
    quick = arguments(__doc__).quick
    show_errors(*((50_000, 5) if quick else (1_000_000, 15)))
    show_bytes(*((100_000, 1) if quick else (1_000_000, 3)))


if __name__ == "__main__":
    main()
