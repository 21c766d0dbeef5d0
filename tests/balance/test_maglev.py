"""The load balancer's table: its twin, shares, disruption, and errors."""

from collections.abc import Iterable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import maglev as naive
from tests.support.effort import examples
from wirelag import _kernels
from wirelag.balance.maglev import SIZE, is_prime, maglev, shares

NAMES = st.text("abcdefgh0123", min_size=1, max_size=6)
WEIGHTS = st.dictionaries(NAMES, st.floats(0, 1000), min_size=1, max_size=12).filter(lambda w: max(w.values()) > 1e-6)


def numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: 7 + place for place, name in enumerate(names)}


@examples(30)
@given(WEIGHTS, st.sampled_from([13, 101, 251, 509]))
def test_it_equals_its_twin(weights: dict[str, float], size: int) -> None:
    slots = numbered(weights)
    assert maglev(weights, slots, size).tolist() == [slots[name] for name in naive.table(weights, size)]


@examples(25)
@given(WEIGHTS)
def test_shares_are_those_of_the_weights(weights: dict[str, float]) -> None:
    slots = numbered(weights)
    found, total = shares(maglev(weights, slots), slots), sum(weights.values())
    for name, weight in weights.items():
        assert found[name] == pytest.approx(weight / total, abs=(1 + len(weights)) / SIZE)
        assert (found[name] > 0) == (weight > 0)


@examples(20)
@given(WEIGHTS, st.randoms())
def test_the_order_of_names_and_the_scale_of_weights_do_not_matter(weights: dict[str, float], rng: Random) -> None:
    slots = numbered(weights)
    names = list(weights)
    rng.shuffle(names)
    again = maglev({name: weights[name] * 4 for name in names}, slots, 509)
    assert (again == maglev(weights, slots, 509)).all()


def moved(before: dict[str, float], after: dict[str, float]) -> tuple[float, float]:
    """The share of entries that differ, and the least share that must."""
    slots = numbered(before | after)
    a, b = (maglev(weights, slots) for weights in (before, after))
    x, y = (shares(table, slots) for table in (a, b))
    return float((a != b).mean()), sum(abs(x[name] - y[name]) for name in slots) / 2


@pytest.mark.parametrize("backends", [2, 4, 10, 100])
def test_few_more_entries_move_than_must(backends: int) -> None:
    equal = {f"web{i}": 1.0 for i in range(backends)}
    removed = {name: weight for name, weight in equal.items() if name != "web1"}
    for after in (removed, equal | {"web1": 0.5}, equal | {"web1": 0.032}, equal | {"new": 1.0}, equal | {"web1": 0.0}):
        found, least = moved(equal, after)
        assert least <= found <= least + 0.012  # with 100 backends 0.6% more than the 1% that must


def test_zero_weight_gets_nothing_and_one_backend_gets_all() -> None:
    slots = {"a": 3, "b": 5}
    assert set(maglev({"a": 1.0, "b": 0.0}, slots).tolist()) == {3}
    assert set(maglev({"a": 0.1}, slots).tolist()) == {3}
    assert set(maglev({"a": 1.0, "b": 1e-9}, slots).tolist()) == {3, 5}


def test_no_weight_at_all_is_refused() -> None:
    for weights in ({"a": 0.0}, {"a": -1.0, "b": 2.0}):
        with pytest.raises(ValueError, match="weights"):
            maglev(weights, {"a": 0, "b": 1})


@pytest.mark.parametrize(
    ("size", "first", "skip", "weights", "said"),
    [
        (100, [0], [1], [1], "prime"),
        (101, [0], [1], [0], "weight"),
        (101, [101], [1], [1], "within"),
        (101, [0], [0], [1], "within"),
        (101, [0, 1], [1], [1], "lengths"),
        (101, [], [], [], "weight"),
        (1, [0], [1], [1], "entries"),
    ],
)
def test_the_kernel_refuses_tables_that_it_could_not_fill(
    size: int, first: list[int], skip: list[int], weights: list[int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        _kernels.maglev_fill(np.empty(size, np.int32), *(np.array(a, np.uint32) for a in (first, skip, weights)))


def test_primes() -> None:
    assert [n for n in range(30) if is_prime(n)] == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
    assert is_prime(SIZE)
