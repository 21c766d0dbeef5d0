"""Samples that come in connections: intervals of groups cover the truth, and without connections they do not."""

import math
from functools import partial

import numpy as np
import pytest

from tests.oracles.connections import PlainConnections
from tests.support.effort import scaled
from wirelag.packets.batch import PacketBatch
from wirelag.stats.certainty import Certainty
from wirelag.stats.distribution import Distribution
from wirelag.synopses.connections import LEFT_OUT, Connections
from wirelag.synopses.samples import ALL, SampleBatch, facts

TRIALS = scaled(400)
CONNECTIONS = 40


def trial(rng: np.random.Generator) -> tuple[Connections, Distribution]:
    """Connections with a delay of their own each, and samples around it; the mean of all is 10 ms."""
    counts = rng.integers(2, 30, CONNECTIONS)
    own = rng.exponential(8e6, CONNECTIONS) + 2e6
    keys = rng.integers(0, 2**64, CONNECTIONS, np.uint64)
    place = np.repeat(np.arange(CONNECTIONS), counts)
    delays_ns = np.maximum(1, own[place] + rng.normal(0, 2e5, len(place))).astype(np.int64)
    batch = PacketBatch({"time_ns": rng.integers(0, 10**11, len(place)), "flow_key": keys[place]})
    rows, legs = np.arange(len(place)), np.zeros(len(place), np.uint8)
    kept, delays = Connections(), Distribution()
    kept.add(batch, SampleBatch(rows, delays_ns, legs, ("tcp",), legs))
    delays.add(delays_ns)
    return kept, delays


def test_intervals_of_a_group_cover_its_mean() -> None:
    rng = np.random.default_rng(11)
    covered = plain = 0
    for _ in range(TRIALS):
        kept, delays = trial(rng)
        for corrected in (True, False):
            delays.certainty = Certainty(delays, partial(kept.sources, ALL, 0, delays)) if corrected else None
            low, high = facts(delays)["ci95"].get("mean", (0.0, 1.0))
            within = low <= 0.010 <= high
            covered, plain = (covered + within, plain) if corrected else (covered, plain + within)
    error = 3 * math.sqrt(0.95 * 0.05 / TRIALS)
    assert 0.92 - error < covered / TRIALS < 0.98 + error
    assert plain / TRIALS < 0.6


def test_connections_beyond_the_limit_are_an_even_sample() -> None:
    rng, whole = np.random.default_rng(12), Connections(most=256)
    for _ in range(20):
        whole.merge(trial(rng)[0])
    assert 64 < len(whole.rows()) <= 256


def test_a_group_whose_connections_are_left_out_has_no_interval() -> None:
    keys = np.random.default_rng(5).integers(0, 2**64, 64, np.uint64)
    place, kept, delays = np.repeat(np.arange(64), 80), Connections(most=300), Distribution()
    batch = PacketBatch({"time_ns": np.arange(len(place)) * 10**6, "flow_key": keys[place]})
    legs, delays_ns = np.zeros(len(place), np.uint8), 10**6 + np.arange(len(place)) % 80 * 997
    kept.add(batch, SampleBatch(np.arange(len(place)), delays_ns, legs, ("tcp",), legs, None, keys[place]))
    delays.add(delays_ns[:80])
    without = []
    for key in keys.tolist():
        delays.certainty = Certainty(delays, partial(kept.sources, key, 0, delays))
        without.append(delays.certainty.why_none == LEFT_OUT)
        assert not without[-1] or facts(delays)["ci95"] == {}
    assert 10 < without.count(True) < 54


@pytest.mark.parametrize("seed", range(24))
def test_sums_equal_those_of_the_plain_twin(seed: int) -> None:
    """With and without groups and weights; merged from parts; with groups that leave; looked at before or not."""
    rng = np.random.default_rng(seed)
    most = int(rng.choice([40, 300, 5_000]))
    wholes, plain = (Connections(most), Connections(most)), (PlainConnections(most), PlainConnections(most))
    keys = rng.integers(0, 2**64, 60, np.uint64)
    for step in range(6):
        count, span_ns = int(rng.integers(1, 400)), int(10 ** rng.uniform(3, 12))
        times_ns = 10**15 + rng.integers(0, span_ns, count)
        flows, rows = rng.choice(keys, count), rng.integers(0, count, int(rng.integers(0, 500)))
        if seed % 4 in (1, 2):  # as captures have them: in order of time, but for a few
            rows, times_ns = np.sort(rows), np.sort(times_ns) + step * 10 ** int(rng.integers(3, 12))
            times_ns[rng.integers(0, count, seed % 3)] -= int(rng.integers(1, span_ns))
        legs, delays_ns = rng.integers(0, 2, len(rows)).astype(np.uint8), rng.integers(0, 10**10, len(rows))
        weights = None if seed % 2 else rng.integers(0, 5, len(rows))
        tags = None if seed % 3 == 0 else rng.integers(2, 8, len(rows), np.uint64)
        batch = PacketBatch({"time_ns": times_ns, "flow_key": flows})
        wholes[step % 2].add(batch, SampleBatch(rows, delays_ns, legs, ("tcp",), legs, weights, tags))
        for place, row in enumerate(rows):
            plain[step % 2].add(
                int(flows[row]),
                0 if tags is None else int(tags[place]),
                int(times_ns[row]),
                int(legs[place]),
                int(delays_ns[place]),
                1 if weights is None else int(weights[place]),
            )
        if seed % 4 < 2:
            assert wholes[step % 2].rows().tolist() == plain[step % 2].rows()
    wholes[0].merge(wholes[1])
    plain[0].merge(plain[1])
    assert wholes[0].rows().tolist() == plain[0].rows()
    wholes[0].keep(np.array([5, 3], np.uint64))
    plain[0].keep({3, 5})
    assert wholes[0].rows().tolist() == plain[0].rows()


def test_a_connection_counts_once_and_only_with_both_legs() -> None:
    batch = PacketBatch({"time_ns": np.arange(5), "flow_key": np.array([7, 7, 7, 9, 9], np.uint64)})
    kept = Connections()
    legs = np.array([0, 0, 1, 0, 0], np.uint8)
    delays_ns = np.array([100, 300, 50, 10, 20])
    kept.add(batch, SampleBatch(np.arange(5), delays_ns, legs, ("tcp",), np.zeros(5, np.uint8)))
    both = kept.distribution()
    assert (both.samples, both.min_ns) == (1, 250)
