"""How many packets are overtaken: equal to the twin, unbiased, and told by points over messages."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messaging import EPOCH_NS
from test_reconciling import SHORT, cached, converse
from wirelag.caches import Cached
from wirelag.crossing import Crossing
from wirelag.naive import order as naive
from wirelag.order import FEWEST, LOOKED_AT, UNTOLD_NS, Looking, Order, before, looked_at, times_of
from wirelag.symbols import SymbolSynopsis

MANY = replace(SHORT, tail=400)


def points(seed: int, count: int, held: float, loss: float = 0.01) -> tuple[Cached, Cached]:
    """Packets 50 us apart; some are held up by a millisecond, and overtaken by about twenty."""
    rng = np.random.default_rng(seed)
    sent_ns = EPOCH_NS + 50_000 * np.arange(count) + rng.integers(0, 20_000, count)
    ids = rng.choice(1 << 44, count, replace=False).astype(np.uint64)
    arrived_ns = sent_ns + 2_000_000 + 1_000_000 * (rng.random(count) < held)
    there = np.flatnonzero(rng.random(count) >= loss)
    there = there[np.argsort(arrived_ns[there], kind="stable")]
    return cached(ids, sent_ns), cached(ids[there], arrived_ns[there])


def told(up: Cached, down: Cached) -> Crossing:
    """What a conversation ends with in which downstream says what came before its packets."""
    return converse(up, down, MANY, with_order=True)[0]


def twin(up: Cached, down: Cached) -> Order:
    if len(down) < FEWEST:
        return Order()
    both = [list(zip(one.ids.tolist(), one.times_ns.tolist(), strict=True)) for one in (up, down)]
    chosen = set(looked_at(down).ids.tolist())
    return Order(*naive.overtaken(both[0], both[1], chosen))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 300), st.sampled_from([0.0, 0.05, 0.5]), st.sampled_from([0.0, 0.2]))
def test_it_is_what_the_twin_says(seed: int, count: int, held: float, loss: float) -> None:
    up, down = points(seed, count, held, loss)
    assert told(up, down).order == twin(up, down)


def test_it_is_what_the_twin_says_of_many_packets() -> None:
    for seed in range(5):
        up, down = points(seed, 20_000, 0.05)
        assert told(up, down).order == twin(up, down)
        assert LOOKED_AT // 4 <= told(up, down).order.checked <= LOOKED_AT


def share_of(up: Cached, down: Cached) -> float:
    """The truth: of all packets that arrived."""
    rows = {packet: row for row, packet in enumerate(up.ids.tolist())}
    sent = up.times_ns[[rows[packet] for packet in down.ids.tolist()]]
    return float((sent[1:] < sent[:-1]).mean())


def looked_at_twice(up: Cached, down: Cached) -> Order:
    """Uncorrected: of the sample alone, in which what really came before is mostly missing."""
    few = looked_at(down)
    sent_ns = times_of(up, few.ids & np.uint64((1 << 32) - 1))
    return Order(len(few) - 1, int((sent_ns[1:] < sent_ns[:-1]).sum()))


def test_the_share_is_unbiased() -> None:
    """Of 200 intervals: within 4 standard errors of the binomial; the uncorrected one is not."""
    right, wrong, shares = Order(), Order(), []
    for seed in range(200):
        up, down = points(seed, 2000, 0.05)
        right, wrong = right + told(up, down).order, wrong + looked_at_twice(up, down)
        shares.append(share_of(up, down))
    share = float(np.mean(shares))
    assert 0.03 < share < 0.06
    assert abs(right.overtaken / right.checked - share) < 4 * (share * (1 - share) / right.checked) ** 0.5
    assert abs(wrong.overtaken / wrong.checked - share) > 4 * (share * (1 - share) / wrong.checked) ** 0.5


def test_what_cannot_be_told_is_not_counted() -> None:
    up, down = points(1, 3000, 0.05)
    assert not len(before(down.at_level(1), down.at_most(50)))  # what came before may not have been kept
    empty = np.empty(0, np.uint64)
    wrong = Looking.at(up.at_most(50), down.at_most(50), empty, empty)
    assert wrong.order(np.empty(0, np.int64)) == Order()
    few = cached(down.ids[: FEWEST - 1], down.times_ns[: FEWEST - 1])
    assert not len(before(few, few))
    first = down.at_level(looked_at(down).level).ids[0]  # nothing comes before it if it is the first of all
    moved = np.roll(np.arange(len(down)), -int(np.flatnonzero(down.ids == first)[0]))
    rolled = cached(down.ids[moved], down.times_ns)
    assert before(rolled, rolled)[0] == first & np.uint64(0xFFFFFFFF)
    assert told(up, rolled).order.checked < len(looked_at(rolled))
    twice = cached(np.repeat(up.ids[:2], 2), np.arange(4) + EPOCH_NS)
    assert times_of(twice, up.ids[:1] & np.uint64(0xFFFFFFFF)).tolist() == [EPOCH_NS]
    alike = cached([5, 5 + (1 << 40)], [EPOCH_NS, EPOCH_NS + 1])
    assert times_of(alike, np.array([5, 6], np.uint64)).tolist() == [UNTOLD_NS, UNTOLD_NS]


def test_numbers_add_up_and_have_an_interval() -> None:
    assert Order().to_json() is None
    said = (Order(8, 0) + Order(8, 1)).to_json()
    assert said is not None
    assert (said["checked"], said["overtaken"], said["share"]) == (16, 1, 1 / 16)
    low, high = said["ci95"]
    assert low < 1 / 16 < high


def test_who_knows_nothing_of_it_is_not_counted() -> None:
    """An agent of before: it does not say what came before, or does not answer that part of the question."""
    up, down = points(3, 500, 0.2)
    crossing, _ = converse(up, down, MANY)
    assert crossing.order == Order()
    silent, _ = converse(up, down, MANY, with_order=True, answers_order=False)
    assert silent.order.overtaken == 0
    assert silent.lost == told(up, down).lost


@pytest.mark.parametrize("spoilt", [3, 0, 17])
def test_another_number_of_packets_is_as_good_as_none(spoilt: int) -> None:
    up, down = points(4, 500, 0.2)
    synopsis = MANY.bind(down)
    assert isinstance(synopsis, SymbolSynopsis)
    looking = Looking.at(up, synopsis.tail, np.zeros(spoilt, np.uint64), np.empty(0, np.uint64))
    assert looking.order(np.zeros(len(looking.wanted), np.int64)).overtaken == 0
