"""How sure a method is that knows the mean of all packets, and how they vary only from a sample of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.effort import scaled
from tests.support.queues import waits
from wirelag.stats.over_time import bounds
from wirelag.synopses.crossing import Crossing, lost_of
from wirelag.synopses.delay_sample import DelaySample

PACKETS, KEPT, LOAD = 8_000, 1_000, 0.8
TRUTH_NS = 1e6 / (1 - LOAD)  # the mean time in this queue


def crossings(seed: int) -> tuple[Crossing, Crossing]:
    """All delays known, as by `join`, and the same packets as by `rda`: sums of all, and some of the delays."""
    rng = np.random.default_rng(seed)
    sent, delays = np.arange(PACKETS) * 10**6, np.round(waits(rng, PACKETS, LOAD) * 1e6).astype(np.int64)
    every, some = Crossing(), Crossing()
    for one in (every, some):
        one.add_delays(sent, delays)
    kept = np.sort(rng.choice(PACKETS, KEPT, replace=False))
    some.tail, some.min_ns, some.max_ns = DelaySample.of(sent[kept], delays[kept], PACKETS // KEPT), None, None
    return every, some


def test_a_sample_of_delays_makes_nobody_surer_than_all_of_them() -> None:
    """By chance an interval is narrower or wider, sometimes by much; it is as wide as a rule, and holds as often.

    The uncorrected variant, the method's own error alone, is several times too narrow.
    """
    widths, held, naive = [], [], []
    for seed in range(scaled(60, 24)):
        every, some = crossings(seed)
        known, told = every.report("join").ci95.get("mean"), some.report("rda").ci95.get("mean")
        if known is None or told is None:
            continue
        widths.append((told[1] - told[0]) / (known[1] - known[0]))
        held.append([one[0] * 1e9 <= TRUTH_NS <= one[1] * 1e9 for one in (known, told)])
        own = some.moments.error_ns or 0.0
        low, high = bounds(some.mean_ns or 0.0, (own, PACKETS - 1.0), some.mean_ns)
        naive.append((high - low) / 1e9 / (known[1] - known[0]))
    assert len(widths) >= 20
    assert 0.9 < np.median(widths) < 1.2
    assert 0.95 < np.exp(np.mean(np.log(widths))) < 1.3
    assert min(widths) < 1 < max(widths)
    of_all, of_some = np.mean(held, axis=0)
    assert of_some >= 0.85
    assert abs(of_all - of_some) <= 0.1
    assert np.median(naive) < 0.5


@pytest.mark.parametrize(
    ("missing", "lost"),
    [
        ([46, -40, 20, -26], [0, 0, 0, 0]),  # all of it was under way
        ([5, 0, -3, 2], [2, 0, 0, 2]),
        ([0, 3, 0], [0, 3, 0]),
        ([-2, 4], [0, 2]),  # copies hide losses
        ([3, -5], [0, 0]),
        ([], []),
    ],
)
def test_intervals_lose_together_what_is_missing_from_all(missing: list[int], lost: list[int]) -> None:
    assert lost_of(missing) == lost
    assert sum(lost) == max(0, sum(missing))
