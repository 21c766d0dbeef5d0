"""Histograms and gauges of delays: a constant delay reads as what it is."""

import numpy as np
import pytest

from tests.support.stored_results import START_NS, result
from wirelag.collector.last_minute import LastMinute
from wirelag.collector.metrics import Metrics
from wirelag.collector.store import SECOND_NS
from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval
from wirelag.stats.bins import MIDDLES_NS
from wirelag.stats.exponential import LOWEST, PER_DOUBLING, ZERO_S, Exponential

DELAY_NS = 11_000_000
FACTOR = 2 ** (1 / PER_DOUBLING)


def interval(i: int) -> Interval:
    return Interval(START_NS + i * SECOND_NS, START_NS + (i + 1) * SECOND_NS)


def values(metrics: Metrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in metrics.families([], {}, 0):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_a_constant_delay_is_read_within_a_quarter_from_classic_buckets_and_exactly_from_others() -> None:
    metrics = Metrics()
    for i in range(3):
        metrics.settled("A>B", Tally.of(result(np.full(1000, DELAY_NS), interval(i).start_ns), None), interval(i))
    found = values(metrics)
    bounds = [(float(one["le"]), count) for one, count in found["wirelag_one_way_delay_seconds_bucket"]]
    upper = next(bound for bound, count in bounds if count)
    lower = max(bound for bound, count in bounds if not count)
    assert lower < DELAY_NS / 1e9 <= upper < 1.28 * DELAY_NS / 1e9
    ((_, p99),) = found["wirelag_segment_p99_seconds"]
    low, high = (value for _, value in found["wirelag_segment_p99_ci95_seconds"])
    assert p99 == pytest.approx(DELAY_NS / 1e9, rel=0.005)
    assert low < DELAY_NS / 1e9 < high
    (native,) = metrics.natives()
    first, counts = native.histograms["A>B"].buckets()
    assert counts == [3000]
    assert FACTOR ** (first - 1) < DELAY_NS / 1e9 <= FACTOR**first


def test_the_gauge_forgets_what_is_older_than_a_minute_and_abstains_without_enough_delays() -> None:
    minute = LastMinute()
    assert minute.figures_ns(0.99) is None
    minute.add(interval(0), Tally.of(result(np.full(5, 1e6), interval(0).start_ns), None))
    assert minute.figures_ns(0.99) is None
    for i in range(1, 70):
        minute.add(interval(i), Tally.of(result(np.full(100, 1e6 if i < 10 else 2e6), interval(i).start_ns), None))
    found = minute.figures_ns(0.0001)
    assert found is None  # too far out
    median = minute.figures_ns(0.5)
    assert median is not None
    assert median[0] == pytest.approx(2e6, rel=0.005)
    minute.add(interval(0), Tally.of(result(np.full(10**5, 1e6), interval(0).start_ns), None))  # it comes late
    assert minute.figures_ns(0.5) == median


def test_every_bin_counts_in_the_bucket_that_holds_its_middle() -> None:
    for bin_ in range(0, len(MIDDLES_NS), 37):
        one, middle_s = Exponential(), float(MIDDLES_NS[bin_]) / 1e9
        one.add(np.array([bin_]), np.array([2]), 1, 0.0)
        first, counts = one.buckets()
        assert one.count == 3
        if middle_s <= ZERO_S:
            assert (one.zero, counts) == (3, [])
            continue
        assert (one.zero, counts) == (1, [2])
        assert first > LOWEST
        assert FACTOR ** (first - 1) * (1 - 1e-9) <= middle_s
        assert middle_s <= FACTOR**first * (1 + 1e-9) or middle_s > 128
