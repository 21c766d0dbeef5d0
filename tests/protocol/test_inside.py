"""Results that a router has settled by itself: they travel whole, within bounds, and only the router may say them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.two_points import EPOCH_NS, SECOND_NS
from wirelag.collector.tally import Tally
from wirelag.estimators.lda import Lda
from wirelag.packets.interval import Interval
from wirelag.protocol.inside import ONE_CLOCK, is_inside, message_of, result_of
from wirelag.protocol.loss import Loss
from wirelag.protocol.messages import Message, Seen, decode, encode
from wirelag.protocol.results import Done, Ends, Rank, Result
from wirelag.protocol.session import Rounds
from wirelag.protocol.terms import Terms
from wirelag.stats.moments import Moments
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.delay_sample import DelaySample
from wirelag.synopses.reordering import Order

TERMS = Terms(Lda(), interval_ns=SECOND_NS)
SECOND = Interval(EPOCH_NS, EPOCH_NS + SECOND_NS)


def result(segment: str = "B[A>C]") -> Result:
    delays_ns = np.random.default_rng(1).exponential(3e6, 200).astype(np.int64) + 1000
    tail = DelaySample.of(np.arange(50, dtype=np.int64), delays_ns[:50], 4)
    moments = Moments.of_delays(delays_ns, 2)
    crossing = Crossing(
        410, 400, moments, 10, 0, duplicated=3, reordered=2, order=Order(16, 1), tail=tail, min_ns=1001, max_ns=10**9
    )
    empty = Crossing(7, reason="no packet was seen downstream")
    losses = {None: Loss(9.5, 8.0, 11.0), "af41": Loss(None, 0.0, 7.0, "packets in flight look lost")}
    seen = Seen(417, 3, SECOND_NS, 500), Seen(400, 0, SECOND_NS - 1, 500)
    return Result(
        segment, SECOND, Rank.SETTLED, "lda", {None: crossing, "af41": empty}, losses, seen, ONE_CLOCK, complete=True
    )


def message(segment: str = "B[A>C]", point: str = "B") -> Message:
    return message_of(result(segment), point, TERMS, EPOCH_NS + SECOND_NS)


def test_a_result_travels_whole() -> None:
    said = decode(encode(message()))
    got, sent = result_of(said), result()
    assert (got.segment, got.interval, got.rank, got.clock, got.seen, got.losses) == (
        *(sent.segment, sent.interval, sent.rank, sent.clock, sent.seen, sent.losses),
    )
    for key in (None, "af41"):
        mine, theirs = Tally.of(got, key), Tally.of(sent, key)
        assert mine.to_json(EPOCH_NS, SECOND_NS, True) == theirs.to_json(EPOCH_NS, SECOND_NS, True)
        assert mine.packed_bins() == theirs.packed_bins()
    assert len(encode(message())) < 1000  # two synopses of lda have some 20,000 bytes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sent", -1), ("sent", 1 << 48), ("used", 10**9), ("known", 10**9), ("overtaken", 17), ("sum_ns", 1 << 101),
        ("sum_ns", 1.5), ("squares_ns2", -1.0), ("doubt_ns2", 1e41), ("rest_ns", "much"), ("min_ns", 1 << 63),
        ("duplicated", -1), ("why", 7), ("why", "x" * 300), ("lost", "all"), ("lost_low", 1e300), ("lost_why", 3),
        ("weights", np.zeros(50, np.int64)), ("weights", np.ones(49, np.int64)), ("weights", None),
        ("weights", np.full(50, 1 << 47)), ("delays_ns", np.full(50, -(2**63))), ("out_unseen", -1),
        ("out_covered_ns", None),
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused(name: str, value: Any) -> None:
    said = message()
    wrong = replace(said, records=(said.records[0] | {name: value}, *said.records[1:]))
    with pytest.raises(ValueError, match=r"has|is"):
        decode(encode(wrong))


def test_every_field_is_needed() -> None:
    said = message()
    for name in said.records[0]:
        record = {key: value for key, value in said.records[0].items() if key != name}
        with pytest.raises(ValueError, match=r"is|has"):
            decode(encode(replace(said, records=(record,))))


def outcomes(rounds: Rounds, said: Message) -> list[Result]:
    return [one for one in rounds.take(said, 0) if isinstance(one, Result)]


def test_only_the_router_itself_says_it_and_once() -> None:
    rounds = Rounds((), named_by_agents=True)
    for segment, point in (("B[A>C]", "A"), ("B>C", "B"), ("B", "B"), ("[A>C]", "B"), ("BB[A>C]", "B")):
        assert outcomes(rounds, message(segment, point)) == []
    assert rounds.counted["of no segment"] == 5
    assert len(outcomes(rounds, message())) == 1
    assert rounds.take(message(), 0) == [Done((message().key,))]
    assert rounds.counted["duplicates"] == 1
    assert [one.points for one in rounds.segments] == [("B", "B")]


def test_a_synopsis_is_no_result_of_an_inside() -> None:
    rounds = Rounds([Ends("B[A>C]", "B", "B")])
    assert outcomes(rounds, replace(message(), type="synopsis")) == []
    assert outcomes(rounds, message()) != []
    apart = Rounds([Ends("B[A>C]", "b1", "b2")])  # two agents at its ports
    assert outcomes(apart, message("B[A>C]", "B")) == []


def test_without_all_packets_there_is_no_result() -> None:
    said = message()
    assert outcomes(Rounds((), named_by_agents=True), replace(said, records=said.records[1:])) == []


def test_names_of_insides() -> None:
    assert is_inside("a-b[>]", "a-b")
    assert not any(is_inside(name, "B") for name in (None, "", "B[", "C[B>D]", "A>B", "B]"))
