"""Law: figures of many distributions at once are those of each alone, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from wirelag.stats.distribution import Distribution
from wirelag.stats.distributions import Distributions
from wirelag.stats.sla import Sla

COUNT = 400
LONG_NS = 2**43 + 12_345  # beyond the last bin
FIGURES: dict[str, Callable[[Any], Any]] = {
    "min": lambda delays: delays.min_ns,
    "max": lambda delays: delays.max_ns,
    "mean": lambda delays: delays.mean_ns,
    "std": lambda delays: delays.std_ns,
    **{f"p{q}": lambda delays, q=q: delays.quantile_ns(q) for q in (-1, 0, 0.01, 0.5, 0.9, 0.99, 0.999, 1)},
    **{f"above {ns}": lambda delays, ns=ns: delays.share_above(ns) for ns in (0, 200, 10**6, 30_000_000)},
}


def drawn(seed: int) -> tuple[list[Any], list[Any]]:
    """Delays and weights of many distributions: some empty, most small, some with long delays and large weights."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(rng.geometric(0.2, COUNT) - 1, 60)
    sizes[7] = 5_000
    delays = [rng.lognormal(rng.uniform(3, 17), rng.uniform(0, 2), size).astype(np.int64) for size in sizes]
    delays[11] = np.full(9, LONG_NS)
    delays[12] = np.array([0, 0, 255, 256, 257])
    return delays, [rng.integers(1, 1 + 10 ** rng.integers(0, 5), len(one)) for one in delays]


def alone(delays: list[Any], weights: list[Any]) -> list[Distribution]:
    found = [Distribution() for _ in delays]
    for one, values, many in zip(found, delays, weights, strict=True):
        one.add(values, many)
    return found


def together(each: list[Distribution]) -> Distributions:
    held = [np.flatnonzero(one.weights) for one in each]
    return Distributions(
        np.array([one._sums for one in each]),
        np.append(0, np.cumsum([len(bins) for bins in held])),
        np.concatenate(held),
        np.concatenate([one.weights[bins] for one, bins in zip(each, held, strict=True)]),
    )


def same(many: Distributions, each: list[Distribution], figure: str) -> bool:
    plain = np.array([FIGURES[figure](one) for one in each], object)
    expected = np.where(np.equal(plain, None), np.nan, plain).astype(np.float64)
    return FIGURES[figure](many).tobytes() == expected.tobytes() and bool(np.isfinite(expected).sum() > COUNT / 2)


@pytest.mark.every(2)
@pytest.mark.parametrize("figure", FIGURES)
def test_each_figure_is_that_of_one_alone(figure: str) -> None:
    delays, weights = drawn(1)
    each = alone(delays, weights)
    assert same(together(each), each, figure)


@pytest.mark.every(2)
@pytest.mark.parametrize("figure", FIGURES)
def test_both_legs_together(figure: str) -> None:
    one, two = alone(*drawn(2)), alone(*drawn(3))
    expected = [Distribution() for _ in one]
    for whole, a, b in zip(expected, one, two, strict=True):
        whole.merge(a)
        whole.merge(b)
    assert same(together(one).plus(together(two)), expected, figure)


@pytest.mark.parametrize("figure", FIGURES)
def test_from_single_delays(figure: str) -> None:
    delays, _ = drawn(4)
    owner = np.concatenate([np.full(len(values), i) for i, values in enumerate(delays)])
    mixed = np.random.default_rng(5).permutation(len(owner))
    many = Distributions.of_delays(owner[mixed], np.concatenate(delays)[mixed], len(delays))
    assert same(many, alone(delays, [np.ones(len(one), np.int64) for one in delays]), figure)


def test_sums_carry() -> None:
    """Squares of long delays with large weights do not fit into one word, and neither do their sums."""
    delays = [np.full(5_000, 2**42), np.full(5_000, 2**42 - 1)]
    each = alone(delays, [np.full(5_000, 2**20)] * 2)
    whole = Distribution()
    for one in each:
        whole.merge(one)
    assert all(one.sum_squares >> 64 and one.sum_ns >> 64 for one in each)
    both = together(each[:1]).plus(together(each[1:]))
    assert (both.mean_ns[0], both.std_ns[0]) == (whole.mean_ns, whole.std_ns)


@pytest.mark.parametrize("question", ["p99<50ms", "p50<=3us", "mean<1ms", "max<=2s", "above(1ms)<5%", "min<200ns"])
def test_which_break_an_agreement(question: str) -> None:
    each, sla = alone(*drawn(6)), Sla.parse(question)
    expected = [sla.holds(one) is False for one in each]
    assert sla.broken_by(together(each)).tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_nothing() -> None:
    nothing = Distributions.of_delays(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    assert all(len(FIGURES[figure](one)) == 0 for figure in FIGURES for one in (nothing, nothing.plus(nothing)))
