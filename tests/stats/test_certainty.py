"""How sure figures are, and the figures of reports: the kernels are their plain twins, bit for bit."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import certainty as oracle
from tests.oracles.alike import alike
from tests.oracles.over_time import over_time
from tests.oracles.random_groups import between
from wirelag import _kernels
from wirelag.packets.batch import PacketBatch
from wirelag.report import QUANTILES
from wirelag.stats.distribution import BINS, Distribution
from wirelag.stats.random_groups import CROWDS
from wirelag.synopses.connections import Connections
from wirelag.synopses.group_delays import GroupDelays
from wirelag.synopses.samples import SHARES, SampleBatch, Samples

FREEDOM = st.one_of(st.floats(1.0, 1e6), st.just(math.inf))
ERROR = st.tuples(st.one_of(st.just(0.0), st.floats(1e-9, 1e9)), FREEDOM)
SHARE = st.one_of(st.sampled_from(SHARES), st.floats(0.001, 0.999))
CHANCE = st.builds(
    oracle.Chance,
    st.floats(0.0, 1e9),
    st.floats(-5.0, 20.0),
    st.floats(1.0, 1e9),
    st.one_of(st.just(0.0), st.floats(0, 1e9)),
)
NS = st.floats(0.0, 1e10)


@given(NS, ERROR, NS, CHANCE, SHARE, NS, NS, st.floats(1.0, 1e9), st.floats(0.0, 1e4), st.floats(0.1, 20.0))
def test_laws_are_those_of_the_plain_twin(
    value: float, error: tuple[float, float], above: float, chance: oracle.Chance, q: float, low: float, more: float,
    samples: float, stretches: float, wider: float,
) -> None:  # fmt: skip
    ends, of_share = (low, low + more), (min(error[0], 0.5), error[1])
    assert _kernels.half95(error[1]) == oracle.half95(error[1])
    for errors in ([], [error], [error, (1.0, 3.0)]):
        assert _kernels.welch(errors) == oracle.welch(errors)
    assert _kernels.bounds(value, error, above, chance) == oracle.bounds(value, error, above, chance)
    for known in (error, None):
        given = q, ends, value, low, known, above, chance
        assert _kernels.with_the_mean(*given) == oracle.with_the_mean(*given)
    for share in (q, 0.0, 1.0):
        assert _kernels.wilson(share, samples) == oracle.wilson(share, samples)
        assert _kernels.share_bounds(share, of_share, samples) == oracle.share_bounds(share, of_share, samples)
    assert _kernels.quantile_shares(q, of_share, samples) == oracle.quantile_shares(q, of_share, samples)
    asked = q, wider, samples, stretches
    assert _kernels.enough_beyond(*asked) == oracle.enough_beyond(*asked)


EFFECT = st.one_of(
    st.none(),
    st.builds(
        oracle.Effect,
        st.one_of(st.none(), st.tuples(st.one_of(st.just(0.0), st.floats(1.0, 1e6)), FREEDOM)),
        st.one_of(st.none(), st.builds(oracle.Over, st.floats(0.5, 1e3), st.floats(0.5, 1e3), st.floats(0.0, 1e7))),
    ),
)


@given(
    st.lists(st.integers(0, 1 << 44), min_size=1, max_size=6),
    st.integers(1, 300),
    st.integers(1, 9),
    EFFECT,
    EFFECT,
    st.integers(0, BINS),
)
def test_how_sure_delays_are_is_what_the_plain_twin_says(
    few: list[int],
    times: int,
    weight: int,
    connections: oracle.Effect | None,
    over_time: oracle.Effect | None,
    from_bin: int,
) -> None:
    """Sums have up to 2^103: no float holds them."""
    found, delays = Distribution(), few * times
    found.add(np.array(delays), np.full(len(delays), weight))
    cells = [
        (bin_, int(found.weights[bin_]), int(found.squares[bin_])) for bin_ in np.flatnonzero(found.weights).tolist()
    ]
    total, squares = (weight * sum(delay**power for delay in delays) for power in (1, 2))
    of = oracle.Delays(cells, len(delays), total, squares, (min(delays), max(delays)))
    plain, sure = oracle.Sure(of, connections, over_time), found.certain(connections, over_time)
    assert (sure.why, sure.mean) == (plain.why, plain.mean)
    assert sure.share_above(from_bin) == plain.share_above(from_bin)
    for q in SHARES:
        assert sure.quantile(q) == plain.quantile(q)


@given(
    st.lists(
        st.tuples(st.integers(-(1 << 40), -(1 << 40) + 300), st.integers(0, 1 << 40), st.integers(1, 9)), max_size=200
    )
)
def test_how_long_delays_are_alike_is_what_the_plain_twin_says(parts: list[tuple[int, int, int]]) -> None:
    slots, sums, counts = zip(*parts, strict=True) if parts else ((), (), ())
    columns = [array("d", map(float, column)) for column in (sums, counts)]
    assert _kernels.alike(array("q", slots), *columns) == alike(slots, *columns)
    each = dict(sorted((slot + (1 << 40), (float(one), float(count))) for slot, one, count in parts))
    sums, counts = (array("d", [each.get(slot, (0.0, 0.0))[place] for slot in range(302)]) for place in (0, 1))
    assert _kernels.alike_slots(sums, counts) == alike([*each], *zip(*each.values(), strict=True)) if each else True


def test_slow_levels_are_alike_as_the_plain_twin_says() -> None:
    rng, found = np.random.default_rng(1), []
    for memory in (1, 10, 100, 3_000):
        level = np.convolve(rng.normal(size=4_000), np.exp(-np.arange(5 * memory) / memory))[:4_000] + 100
        sums, counts = array("d", np.round(1e6 * level).tolist()), array("d", [1.0] * 4_000)
        found.append(_kernels.alike_slots(sums, counts))
        assert found[-1] == alike(range(4_000), sums, counts)
    assert found[0][0] < found[1][0] < found[2][0]


def _figures(of: oracle.Delays, sure: oracle.Sure, shape: list[float]) -> tuple[Any, ...]:
    """As a kernel tells them."""

    def seconds(ends: tuple[float, float] | None) -> tuple[float, float] | None:
        return ends and (ends[0] / 1e9, ends[1] / 1e9)

    moments = tuple(ns / 1e9 for ns in (of.mean, of.std, of.least, of.most))
    quantiles, ends = [of.quantile(q) / 1e9 for q in SHARES], [seconds(sure.quantile(q)) for q in SHARES]
    return (
        of.samples,
        of.weight,
        of.effective,
        moments,
        quantiles,
        [seconds(sure.mean), *ends],
        sure.why,
        array("d", shape).tobytes(),
    )


def _delays(found: Distribution, delays: list[int]) -> oracle.Delays:
    cells = [(int(bin_), int(weight), int(weight)) for bin_, weight in enumerate(found.weights) if weight]
    squares = sum(delay * delay for delay in delays)
    return oracle.Delays(cells, len(delays), sum(delays), squares, (min(delays), max(delays)))


def _over(sums: list[float], counts: list[float], samples: int, scale: float = 1.0) -> oracle.Effect:
    found = over_time(sums, counts, samples) if samples >= 64 else None
    if found is None:
        return oracle.Effect(None)
    half, freedom, stretches, _, returns, higher = found
    return oracle.Effect((half / oracle.half95(freedom) * scale, freedom), oracle.Over(stretches, returns, higher))


@pytest.mark.parametrize("count", [3, 63, 64, 4_000])
def test_figures_of_legs_are_those_of_the_plain_twin(count: int) -> None:
    rng, samples = np.random.default_rng(count), Samples()
    keys = rng.integers(0, 1 << 64, 40, np.uint64)[rng.integers(0, 40, count)]
    times, legs = np.sort(rng.integers(0, 10**9, count)), (rng.random(count) < 0.3).astype(np.uint8)
    legs[:3] = 0
    delays = rng.lognormal(15 + keys.astype(float) / 2**64, 1, count).astype(np.int64)
    samples.add(legs, delays)
    samples.spread.add(keys, times, np.arange(count, dtype=np.uint32), legs, delays)
    for leg, told in enumerate(samples.tally().figures(SHARES)):
        mine = legs == leg
        if not mine.any():
            assert told is None
            continue
        of = _delays(samples.distributions[leg], delays[mine].tolist())
        crowds = np.asarray(samples.spread.connections.of_leg(leg).weights).reshape(CROWDS, -1)
        middles = [sum(_middle(8 * bin_ + fine) / 8 for fine in range(8)) for bin_ in range(crowds.shape[1])]
        totals = [float(sum(int(n) * middle for n, middle in zip(row, middles, strict=True))) for row in crowds]
        errors = between(totals, [float(row.sum()) for row in crowds], of.alone or 0.0)
        slots = samples.spread.times[leg]
        times_effect = _over(list(slots.sums), list(slots.counts), of.samples)
        sure = oracle.Sure(of, oracle.Effect(errors), times_effect)
        assert told == _figures(of, sure, list(samples.distributions[leg].by_octave()))
        assert (told[6] == 1) == (mine.sum() < 64)
    if count == 4_000:
        assert samples.report("match", "round_trip", "server").ci95


def _middle(bin_: int) -> float:
    shift = max((bin_ >> 7) - 1, 0)
    return float((bin_ - (shift << 7)) << shift) + ((1 << shift) - 1) / 2


@pytest.mark.parametrize(("threads", "most"), [(1, 1 << 18), (3, 1 << 13)])
def test_figures_of_groups_are_those_of_the_plain_twin(threads: int, most: int) -> None:
    """Some groups are large, some small, some left memory. Stretches are many, or long, with connections left out."""
    rng, samples, groups = np.random.default_rng(2), 30_000, 2_500
    number = (groups * rng.random(samples) ** 6).astype(np.int64)
    flow = (number * 5 + rng.integers(0, 5, samples)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    times = np.sort(rng.integers(0, 10**10, samples))
    ports = {"src_port": number.astype(np.uint16), "dst_port": number.astype(np.uint16)}
    packets = PacketBatch({"time_ns": times, "flow_key": flow, **ports})
    legs, delays = (rng.random(samples) < 0.4).astype(np.uint8), rng.lognormal(15, 1, samples).astype(np.int64)
    rows, kept, connections = np.arange(samples), GroupDelays("port", memory=1 << 20), Connections(most)
    tags = kept.add(packets, rows, legs, delays)
    connections.add(packets, SampleBatch(rows, delays, legs, ("x",), np.zeros(samples, np.uint8), tags=tags))
    connections.keep(kept.tags_and_before()[0])
    assert not kept.complete
    assert (connections.kernel.level > 0) == (most == 1 << 13)
    assert (connections.kernel.last - connections.kernel.first > 4096) == (most == 1 << 18)
    places, table = [int(place) for place in kept.places()], connections.rows()
    found = kept.figures(places, connections, threads)
    some = [*range(60), len(places) - 1]
    assert kept.figures([places[at] for at in some], connections, 2)[-1].keys() == found[-1].keys()
    why = set()
    for at in some:
        tag, place = kept.group(places[at]).tag, places[at]
        told = _kernels.group_figures(kept.kernel, connections.kernel, array("I", [place]), SHARES, threads)[0]
        for leg, one in enumerate(kept.delays(place)):
            if not one.samples:
                assert told[leg] is None
                continue
            whole = Distribution()
            whole.merge(one)
            cells = [(int(b), int(w), int(s)) for b, w, s in zip(one.bins, one.weights, one.squares, strict=True) if w]
            of = oracle.Delays(cells, one.samples, one.sum_ns, one.sum_squares, (one.min_ns or 0, one.max_ns or 0))
            mine = table[(table[:, 1] == tag) & (table[:, 4 + 2 * leg] > 0)]
            sure = oracle.Sure(of, *_sources(mine, leg, of))
            expected = _figures(of, sure, list(one.by_octave()))
            if of.samples >= 64 and not len(mine):
                expected = *expected[:5], [None] * (1 + len(QUANTILES)), 4, expected[7]
            assert told[leg] == expected
            why.add(expected[6])
            name = ("server", "client")[leg]
            assert found[at][name].facts["ci95"].keys() == {
                key for key, ends in zip(("mean", *QUANTILES), expected[5], strict=True) if ends
            }
    assert {0, 1} <= why


def _sources(rows: Any, leg: int, of: oracle.Delays) -> tuple[oracle.Effect | None, oracle.Effect]:
    if of.samples < 64 or not len(rows):
        return None, oracle.Effect(None)
    crowds, slots = [[0.0, 0.0] for _ in range(CROWDS)], {}
    size = float(sum(rows[:, 4 + 2 * leg].tolist()))
    folds, first, last = 0, int(rows[:, 2].min()), int(rows[:, 2].max())
    while (last >> folds) - (first >> folds) >= 4096:
        folds += 1
    for row in rows.tolist():
        into = slots.setdefault((row[2] >> folds) - (first >> folds), [0.0, 0.0])
        for place in (0, 1):
            crowds[row[0] >> 59][place] += row[3 + 2 * leg + place]
            into[place] += row[3 + 2 * leg + place]
    scale = math.sqrt(size / of.weight)
    levels = between(*zip(*crowds, strict=True), (of.alone or 0.0) / max(scale, 1e-9))
    sums, counts = zip(*(slots[slot] for slot in sorted(slots)), strict=True)
    return oracle.Effect(levels and (levels[0] * scale, levels[1])), _over(sums, counts, of.samples, scale)
