"""RDA and FineComb, section V.B: what a check in each bucket is for.

Without one, as in the paper, RDA takes mixtures of packets for single ones. A fake is a number that decoding yields and
neither point saw. Stopped decodes were ended by a guard (a number found twice, or more than there are buckets) while
buckets looked pure: the paper's algorithm 1 would continue, mostly for ever.
"""

from typing import NamedTuple

import numpy as np
from rda_traces import NONE, Words, difference_of, fresh
from traces import arguments, show

from wirelag import _kernels


class Sizes(NamedTuple):
    """Sizes of a difference, and of each of its banks."""

    difference: int
    each: int
    expected: str = "-"


CASES = {
    "m = 2 d, d = 50": Sizes(50, 100, "0.5-1.35%"),
    "m = 2 d, d = 200": Sizes(200, 400, "0.5-1.35%"),
    "m = 2 d, d = 1000": Sizes(1000, 2000, "0.5-1.35%"),
    "overloaded, 1.2 d cells, d = 200": Sizes(200, 120, "10-28%"),
    "overloaded, 1.2 d cells, d = 1000": Sizes(1000, 600, "10-28%"),
    "overloaded, 0.5 d cells, d = 200": Sizes(200, 50, "10-28%"),
    "overloaded, 5,000 cells, d = 6000": Sizes(6000, 2500, "10-28%"),
}


def looks_pure(left: Words, banks: int, seed: int) -> bool:
    """Whether some bucket still passes the test without a check."""
    cells = left.reshape(banks, -1, 3)
    each = cells.shape[1]
    for j, bank in enumerate(cells):
        places = np.flatnonzero((bank[:, 2] == 1) | (bank[:, 2] == np.uint64(2**64 - 1)))
        low = _kernels.coins(bank[places, 0], seed, 16 + j) & np.uint64(2**32 - 1)
        if ((low * np.uint64(each)) >> np.uint64(32) == places.astype(np.uint64)).any():
            return True
    return False


def tried(banks: int, sizes: Sizes, runs: int) -> dict[str, int]:
    """Of this many runs: those with fakes (with and without check), stopped ones, and wrong ones that seem complete."""
    rng, found = np.random.default_rng(sizes.difference), dict.fromkeys(("fakes", "stopped", "unseen", "checked"), 0)
    for run in range(runs):
        up, down = fresh(rng, sizes.difference // 2), fresh(rng, sizes.difference // 2)
        apart = difference_of(up, down, banks, sizes.each, run)
        truth = np.concatenate((up, down))
        for check in (False, True):
            left = apart.copy()
            numbers, _, complete = _kernels.rda_decode(left, banks, run, check, NONE)
            fake = not np.isin(numbers, truth).all()
            if check:
                found["checked"] += fake
                continue
            found["fakes"] += fake
            found["stopped"] += looks_pure(left, banks, run)
            found["unseen"] += complete and fake
    return found


def main() -> None:
    quick = arguments(__doc__).quick
    for banks in (2, 3):
        rows = []
        for name, sizes in CASES.items():
            runs = (200 if quick else 4000) // (1 if sizes.difference <= 1000 else 4)
            each = sizes.each * 2 // banks  # the same cells
            found = tried(banks, sizes._replace(each=each), runs)
            shares = [f"{100 * found[what] / runs:.2f}" for what in ("fakes", "stopped", "unseen", "checked")]
            rows.append((name, *shares, sizes.expected if banks == 2 else "-", runs))
        header = ("case", "fakes", "stopped by a guard", "fake, complete", "fakes with a check", "expected", "runs")
        show(f"% of decodes without a check, {banks} banks", header, rows)


if __name__ == "__main__":
    main()
