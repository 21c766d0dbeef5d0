"""RDA and FineComb, section III.B: retransmissions, packets that look the same at a point.

The paper keeps only the first of them. 0.3% of packets are retransmitted after 10 ms. Half of these were lost between
the points, so upstream has two copies and downstream one: the first copies are then different packets. The other half
arrived twice.
"""

from dataclasses import dataclass

import numpy as np
from rda_traces import BUCKETS, SECOND_NS, Times, Words, fresh, median, weibull_50us
from traces import arguments, show

from wirelag import _kernels
from wirelag.estimators.rda import Rda
from wirelag.synopses.cache import Cached

SHARE = 0.003
AGAIN_NS = 10_000_000
EXPECTED = {"first copy only (paper)": "29", "numbered, others dropped": "0"}


@dataclass(frozen=True)
class Resent:
    """The packets of both points, and the truth."""

    up: Cached
    down: Cached
    true_ns: float  # mean of all packets that arrived
    sure_ns: int  # the summed delay of packets that can be told apart
    sure: int

    @classmethod
    def of(cls, count: int, seed: int) -> "Resent":
        rng = np.random.default_rng(seed)
        ids, sent_ns = fresh(rng, count), np.sort(rng.integers(0, SECOND_NS, count))
        again = rng.permutation(count)[: round(count * SHARE)]
        lost = again[: len(again) // 2]
        all_ids, all_ns = np.concatenate((ids, ids[again])), np.concatenate((sent_ns, sent_ns[again] + AGAIN_NS))
        delays_ns = weibull_50us(rng, len(all_ids))
        arrives = np.ones(len(all_ids), bool)
        arrives[lost] = False
        sure = arrives & ~np.isin(all_ids, ids[lost])
        up = ordered(all_ids, all_ns)
        down = ordered(all_ids[arrives], (all_ns + delays_ns)[arrives])
        return cls(up, down, float(delays_ns[arrives].mean()), int(delays_ns[sure].sum()), int(sure.sum()))


def ordered(ids: Words, times_ns: Times) -> Cached:
    order = np.argsort(times_ns, kind="stable")
    return Cached(ids[order], times_ns[order], packets=len(order))


def first_only(cached: Cached) -> Cached:
    """Only the first copies."""
    kept = np.zeros(len(cached), bool)
    kept[np.unique(cached.ids, return_index=True)[1]] = True
    return cached.only(kept)


def mean_by_numbers(up: Cached, down: Cached, up_numbers: Words, down_numbers: Words, seed: int) -> float:
    """The mean once found numbers, and nothing else, are removed."""
    rda = Rda(buckets=BUCKETS, seed=seed)
    each = BUCKETS // rda.banks
    ups, downs = rda.filled(up_numbers, up.times_ns, each), rda.filled(down_numbers, down.times_ns, each)
    decoded = rda.decode(ups, downs)
    rest = []
    for words, cached, own, apart in (
        (ups, up, up_numbers, decoded.upstream),
        (downs, down, down_numbers, decoded.downstream),
    ):
        out = np.isin(own, apart)
        rest.append((words - rda.filled(own[out], cached.times_ns[out], each)).reshape(-1, 4))
    same = ~decoded.left.reshape(-1, 3).any(axis=1) & (rest[0][:, 2] == rest[1][:, 2])
    sums_ns = (rest[1][same, 3] - rest[0][same, 3]).view(np.int64)
    return float(sums_ns.sum() / max(1, rest[0][same, 2].sum()))


def main() -> None:
    quick = arguments(__doc__).quick
    count, runs = (50_000, 3) if quick else (1_000_000, 5)
    found: dict[str, list[float]] = {}
    exact = 0
    for run in range(runs):
        resent = Resent.of(count, run)
        up, down = resent.up, resent.down
        firsts = first_only(up), first_only(down)
        means = {
            "first copy only (paper)": mean_by_numbers(*firsts, firsts[0].ids, firsts[1].ids, run),
            "numbered": mean_by_numbers(
                up, down, _kernels.number_copies(up.ids), _kernels.number_copies(down.ids), run
            ),
        }
        crossing = Rda(buckets=BUCKETS, seed=run, tail=0).cross(up, down)
        means["numbered, others dropped"] = crossing.mean_ns or 0.0
        exact += (crossing.sum_ns, crossing.used) == (resent.sure_ns, resent.sure)
        for name, mean_ns in means.items():
            found.setdefault(name, []).append(100 * abs(mean_ns - resent.true_ns) / resent.true_ns)
    rows = [(name, f"{median(errors):.3f}", EXPECTED.get(name, "-")) for name, errors in found.items()]
    show(
        f"error of the mean, %, {100 * SHARE:g}% sent again, median of {runs} runs",
        ("copies", "ours", "expected"),
        rows,
    )
    said = [("numbered, others dropped", exact, runs)]
    show("exact, to the ns, over all packets that can be told apart", ("copies", "runs", "of"), said)


if __name__ == "__main__":
    main()
