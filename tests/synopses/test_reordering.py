"""The number of overtaken packets: equal to the twin, unbiased, and sent in messages."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import order as naive
from tests.support.agent_messages import EPOCH_NS
from tests.support.effort import examples, scaled
from tests.support.reconciliations import SHORT, cached, converse
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.reordering import FEWEST, LOOKED_AT, UNTOLD_NS, Looking, Order, before, looked_at, times_of
from wirelag.synopses.symbols import LOW, numbers_of

MANY = replace(SHORT, tail=400)


HELD_NS = 1_000_000  # extra delay of some packets
EVERY_NS = 50_000
DELAY_NS = 2_000_000


class Stream:
    """Packets 50 us apart, some delayed and overtaken; and one interval of them at both points."""

    def __init__(self, seed: int, count: int, held: float, loss: float = 0.01, held_ns: int = HELD_NS) -> None:
        rng = np.random.default_rng(seed)
        early = 2 * (DELAY_NS + held_ns) // EVERY_NS
        self.sent_ns = EPOCH_NS + EVERY_NS * (np.arange(count + early) - early) + rng.integers(0, 20_000, count + early)
        self.ids = rng.choice(1 << 44, count + early, replace=False).astype(np.uint64)
        arrived_ns = self.sent_ns + DELAY_NS + held_ns * (rng.random(count + early) < held)
        there = np.flatnonzero(rng.random(count + early) >= loss)
        self.there = there[np.argsort(arrived_ns[there], kind="stable")]
        end_ns = EPOCH_NS + EVERY_NS * count
        sent = (self.sent_ns >= EPOCH_NS) & (self.sent_ns < end_ns)
        self.up = cached(self.ids[sent], self.sent_ns[sent])
        came_ns = arrived_ns[self.there]
        self.came = self.there[(came_ns >= EPOCH_NS) & (came_ns < end_ns)]
        self.down = cached(self.ids[self.came], arrived_ns[self.came])

    @property
    def share(self) -> float:
        """The truth: the share among all packets that arrived in the interval."""
        sent_ns = self.sent_ns[self.came]
        return float((sent_ns[1:] < sent_ns[:-1]).mean())

    def told(self) -> Crossing:
        """The result of a conversation in which downstream sends the packets before each of its packets."""
        return converse(self.up, self.down, MANY, with_order=True)[0]

    def twin(self) -> Order:
        if len(self.down) < FEWEST:
            return Order()
        sent = list(zip(self.ids.tolist(), self.sent_ns.tolist(), strict=True))
        arrived = list(zip(self.down.ids.tolist(), self.down.times_ns.tolist(), strict=True))
        chosen = set(looked_at(self.down).ids.tolist())
        return Order(*naive.overtaken(sent, arrived, chosen, EPOCH_NS))


@examples(150)
@given(
    st.integers(0, 10**6),
    st.integers(1, 400),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.sampled_from([0.0, 0.2, 0.9]),
    st.sampled_from([HELD_NS, 10 * HELD_NS]),
)
def test_it_equals_the_twin(seed: int, count: int, held: float, loss: float, held_ns: int) -> None:
    """Also if the packets themselves are sent, because too many differ; and if most were sent before."""
    stream = Stream(seed, count, held, loss, held_ns)
    assert stream.told().order == stream.twin()


def test_it_equals_the_twin_for_many_packets() -> None:
    for seed in range(5):
        stream = Stream(seed, 20_000, 0.05)
        assert stream.told().order == stream.twin()
        assert LOOKED_AT // 4 <= stream.told().order.checked <= LOOKED_AT


def of_the_sample_alone(stream: Stream) -> Order:
    """Uncorrected: the packet that really came before is mostly missing in the sample."""
    few, up = looked_at(stream.down), stream.up
    sent_ns = times_of(up.ids, up.times_ns, few.ids & LOW)
    return Order(len(few) - 1, int((sent_ns[1:] < sent_ns[:-1]).sum()))


def of_this_interval_alone(stream: Stream) -> Order:
    """Uncorrected: without packets that were sent before the interval, which are mostly the late ones."""
    sent_ns = dict(zip(stream.ids.tolist(), stream.sent_ns.tolist(), strict=True))
    arrived, chosen = stream.down.ids.tolist(), set(looked_at(stream.down).ids.tolist())
    pairs = [(a, b) for a, b in pairwise(arrived) if b in chosen and sent_ns[b] >= EPOCH_NS]
    return Order(len(pairs), sum(sent_ns[a] > sent_ns[b] for a, b in pairs))


@pytest.mark.parametrize(
    ("held_ns", "uncorrected"), [(HELD_NS, of_the_sample_alone), (80 * HELD_NS, of_this_interval_alone)]
)
def test_the_share_is_unbiased(held_ns: int, uncorrected: Callable[[Stream], Order]) -> None:
    """Over many intervals of 100 ms: within 4 binomial standard errors; an uncorrected share is not.

    The 2% of packets where both were sent before the interval are left out.
    """
    right, wrong, shares = Order(), Order(), []
    for seed in range(scaled(600)):
        stream = Stream(seed, 2000, 0.05, held_ns=held_ns)
        right, wrong = right + stream.told().order, wrong + uncorrected(stream)
        shares.append(stream.share)
    share = float(np.mean(shares))
    assert 0.03 < share < 0.06
    assert abs(right.overtaken / right.checked - share) < 4 * (share * (1 - share) / right.checked) ** 0.5
    assert abs(wrong.overtaken / wrong.checked - share) > 4 * (share * (1 - share) / wrong.checked) ** 0.5


def test_unknown_cases_are_not_counted() -> None:
    stream = Stream(1, 3000, 0.05)
    up, down = stream.up, stream.down
    assert not len(
        before(down.at_level(1), down.at_most(50), numbers_of(down.at_level(1).ids))
    )  # the packet before may not have been kept
    few = cached(down.ids[: FEWEST - 1], down.times_ns[: FEWEST - 1])
    assert not len(before(few, few, numbers_of(few.ids)))
    first = down.at_level(looked_at(down).level).ids[0]  # the very first packet has none before it
    moved = np.roll(np.arange(len(down)), -int(np.flatnonzero(down.ids == first)[0]))
    rolled = cached(down.ids[moved], down.times_ns)
    behind = before(rolled, rolled, numbers_of(rolled.ids))
    assert behind[0] == first & LOW
    looking = Looking.at(up, rolled, behind, np.empty(0, np.uint64))
    assert first & LOW not in looking.behind
    assert len(looking.behind) < len(looked_at(rolled))
    alike = np.array([5, 5 + (1 << 40)], np.uint64)
    assert times_of(alike, np.array([1, 2]), np.array([5, 6], np.uint64)).tolist() == [UNTOLD_NS, UNTOLD_NS]


def test_numbers_add_up_and_have_an_interval() -> None:
    assert Order().to_json() is None
    said = (Order(8, 0) + Order(8, 1)).to_json()
    assert said is not None
    assert (said["checked"], said["overtaken"], said["share"]) == (16, 1, 1 / 16)
    low, high = said["ci95"]
    assert low < 1 / 16 < high


def test_a_point_without_the_data_is_not_counted() -> None:
    """An older agent does not send the packets before, or does not answer that part of the question."""
    for seed in range(20):
        stream = Stream(seed, 500, 0.2)
        crossing, _ = converse(stream.up, stream.down, MANY)
        assert crossing.order == Order()
        silent, _ = converse(stream.up, stream.down, MANY, with_order=True, answers_order=False)
        assert silent.order == Order()
        assert silent.lost == crossing.lost == stream.told().lost


@pytest.mark.parametrize("count", [3, 0, 17])
def test_a_wrong_number_of_packets_is_ignored(count: int) -> None:
    stream = Stream(4, 500, 0.2)
    looking = Looking.at(stream.up, stream.down, np.arange(count, dtype=np.uint64), np.empty(0, np.uint64))
    assert looking.order(np.ones(len(looking.wanted), np.int64)) == Order()
