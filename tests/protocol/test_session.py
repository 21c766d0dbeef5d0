"""The collector's rounds: exact for any order of messages; silence is not loss; agents do not affect each other.

The truth comes from the packets. The tolerance of an estimated share is its reported interval.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.agent_messages import EPOCH_NS, SECOND_NS, Agent, Path, batch, pair
from tests.support.effort import examples
from tests.support.settled_rounds import ENDS, Talk, both, is_true, talk
from wirelag.estimators.finecomb import Finecomb
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import Delimiters
from wirelag.protocol.messages import ClockReading, Message, Seen
from wirelag.protocol.results import Ask, Ends, Rank, Result
from wirelag.protocol.session import ANSWER_NS, LINGER_NS, PROMPT_NS, SOON_NS, Rounds
from wirelag.protocol.terms import Terms
from wirelag.twopoint.spans import Span, crossed, cuts, paired_by_delimiters

RDA = Rda(buckets=600, tail=200)
SHORT = Rda(short=True, rows=16, tail=200)
BOTH = pytest.mark.parametrize("estimator", [RDA, SHORT], ids=["buckets", "symbols"])


@BOTH
@pytest.mark.parametrize(
    "interval_ns", [SECOND_NS, pytest.param(100_000_000, marks=pytest.mark.acceptance), 10 * SECOND_NS]
)
def test_every_interval_is_exact(interval_ns: int, estimator: Rda) -> None:
    path = Path.made(20, 500, 1, loss=0.02, delay_ns=30e6)
    count = 20 * SECOND_NS // interval_ns
    agents = pair(path, estimator, interval_ns)
    done = talk(agents).take(both(agents, count + 12))
    settled = [one for one in done.best.values() if one.rank == Rank.SETTLED]
    assert len(settled) >= count
    for one in settled:
        is_true(one, path)


@BOTH
@examples(25)
@given(st.randoms(use_true_random=False), st.lists(st.integers(0, 11), max_size=12))
def test_order_and_copies_change_nothing(estimator: Rda, order: random.Random, again: list[int]) -> None:
    agents = pair(Path.made(5, 200, 2, loss=0.05, delay_ns=50e6), estimator)
    messages = both(agents, 6)
    plain = talk(agents).take(messages)
    mixed = messages + [messages[i] for i in again]
    order.shuffle(mixed)
    # All messages arrive within the waiting time, in order or not.
    other = Talk(Rounds([ENDS]), agents)
    other.now_ns = messages[-1].interval.end_ns
    other.take(mixed)
    plain.wait(3 * LINGER_NS)
    other.wait(3 * LINGER_NS)
    assert other.said() == plain.said()
    assert other.rounds.counted["duplicates"] + len(messages) >= len(mixed) - other.done.total()


@BOTH
def test_late_messages_are_paired_when_they_arrive(estimator: Rda) -> None:
    path = Path.made(8, 300, 3)
    agents = pair(path, estimator)
    up, down = (agent.messages(0, 9) for agent in agents)
    late = talk(agents).take(up)
    for _ in range(5):
        late.wait(5 * SECOND_NS)
    assert {one.rank for one in late.best.values()} == {Rank.UNSEEN}
    assert all("B has sent nothing" in (one.reason or "") for one in late.best.values())
    late.take(down)
    for one in late.best.values():
        if one.rank == Rank.SETTLED:
            is_true(one, path)
    assert sum(one.rank == Rank.SETTLED for one in late.best.values()) == 8


@BOTH
def test_silence_is_unseen_and_its_neighbours_have_no_loss(estimator: Rda) -> None:
    path = Path.made(6, 300, 4, delay_ns=80e6)
    agents = pair(path, estimator)
    up, down = (agent.messages(0, 7) for agent in agents)
    done = talk(agents).take([*up, *(down[i] for i in (0, 1, 4, 5, 6))]).wait(2 * LINGER_NS)
    by_number = {(start_ns - EPOCH_NS) // SECOND_NS: one for (_, start_ns), one in done.best.items()}
    assert [by_number[i].rank for i in range(6)] == [3, 2, 0, 0, 3, 3]
    for number in (2, 3):
        assert not by_number[number].crossings
    before = by_number[1]
    assert before.losses[None].lost is None
    assert "next interval" in (before.losses[None].reason or "")
    assert before.crossings[None].used
    for number in (0, 4, 5):
        is_true(by_number[number], path)


def test_a_partly_covered_interval_has_delays_but_no_loss() -> None:
    agents = pair(Path.made(3, 300, 5), RDA)
    messages = both(agents, 4)
    messages[2] = replace(messages[2], seen=Seen(1, 0, SECOND_NS // 2))
    done = talk(agents).take(messages)
    part = done.best["A>B", EPOCH_NS + SECOND_NS]
    assert part.rank == Rank.SETTLED
    assert part.losses[None].lost is None
    assert "upstream point covered 0.5 s of 1 s" in (part.losses[None].reason or "")
    assert part.crossings[None].used > 200


@BOTH
def test_a_large_difference_is_requested_in_more_buckets(estimator: Rda) -> None:
    path = Path.made(3, 4000, 6, loss=0.3)
    agents = pair(path, estimator)
    done = talk(agents).take(both(agents, 4))
    assert done.asked > 4 * 2
    for number in range(3):
        is_true(done.best["A>B", EPOCH_NS + number * SECOND_NS], path)


@BOTH
def test_caches_of_different_levels_are_equalised(estimator: Rda) -> None:
    path = Path.made(2, 3000, 7, loss=0.5)
    agents = pair(path, replace(estimator, memory=64 * 1000))
    done = talk(agents).take(both(agents, 3))
    for number in range(2):
        one = done.best["A>B", EPOCH_NS + number * SECOND_NS]
        sent = path.during(one.interval.start_ns, one.interval.end_ns)
        truth = path.delays_ns[sent & ~path.lost]
        crossing = one.crossings[None]
        assert crossing.details["share"] < 1
        assert crossing.mean_ns == pytest.approx(truth.mean(), abs=5 * truth.std() / np.sqrt(crossing.used))


def test_agents_with_more_and_fewer_rows_meet_in_the_fewer() -> None:
    """As during an upgrade: an agent of the last version sends fewer rows."""
    path = Path.made(3, 2000, 9, loss=0.02)
    few, many = pair(path, SHORT), pair(path, replace(SHORT, rows=16 * SHORT.rows))
    alike = talk(few).take(both(few, 4))
    for agents in ((few[0], many[1]), (many[0], few[1])):
        done = talk(agents).take(both(agents, 4))
        assert done.said() == alike.said()
        for place, one in done.best.items():
            assert one.crossings[None].std_ns == alike.best[place].crossings[None].std_ns
        for number in range(3):
            is_true(done.best["A>B", EPOCH_NS + number * SECOND_NS], path)
    between = pair(path, replace(SHORT, rows=24))
    (reason,) = {one.reason for one in talk(few).take(both((few[0], between[1]), 4)).best.values()}
    assert reason == "A and B are set up differently (parameters.rows: 16 and 24)"


def test_without_answers_there_is_a_mean_and_no_loss() -> None:
    agents = pair(Path.made(3, 2000, 8), RDA)
    done = talk(agents, deaf=lambda ask: True).take(both(agents, 4)).wait(ANSWER_NS)
    one = done.best["A>B", EPOCH_NS]
    assert one.rank == Rank.SETTLED
    assert one.complete
    assert one.crossings[None].used > 100
    assert one.losses[None].lost is None
    assert "times" in (one.losses[None].reason or "")
    assert done.rounds.counted["asks without an answer"] == 8


@BOTH
def test_there_is_no_result_without_replies_that_come_at_once(estimator: Rda) -> None:
    agents = pair(Path.made(1, 2000, 8), estimator)
    rounds, (up, down) = Rounds([ENDS]), both(agents, 1)
    assert rounds.take(up, 0) == []
    asks = [one.message for one in rounds.take(down, 0) if isinstance(one, Ask)]
    assert asks
    assert rounds.pass_time(PROMPT_NS - 1) == []
    late = rounds.pass_time(PROMPT_NS)
    assert [(one.rank, one.complete) for one in late if isinstance(one, Result)] == [(Rank.FIRST, False)]
    assert rounds.pass_time(2 * PROMPT_NS) == []
    found = [one for ask in asks for one in rounds.take(agents["AB".index(ask.point)].answer(ask), 2 * PROMPT_NS)]
    (one,) = (one for one in found if isinstance(one, Result))
    assert one.complete
    assert one.crossings[None].only_upstream is not None


def test_only_what_was_left_in_the_store_is_read_again() -> None:
    agents = pair(Path.made(4, 100, 8), SHORT)
    messages = agents[0].messages(0, 4)
    rounds = Rounds([ENDS])
    assert rounds.lacks_stored(messages[0])  # nothing was read yet
    rounds.unread_ns = EPOCH_NS - SECOND_NS - 1
    assert not rounds.lacks_stored(messages[0])
    rounds.take(messages[0], 0)
    rounds.pass_time(LINGER_NS)  # its other half did not come
    assert [rounds.lacks_stored(one) for one in messages] == [True, True, False, False]
    rounds.take(messages[2], LINGER_NS)
    rounds.give_up(["A>B"])
    assert [rounds.lacks_stored(one) for one in messages] == [True, True, True, True]


def test_a_restarted_agent_says_so_at_once() -> None:
    agents = pair(Path.made(3, 2000, 9), RDA)
    messages = both(agents, 4)
    agents[1].kept.clear()
    one = talk(agents).take(messages).best["A>B", EPOCH_NS]
    assert one.rank == Rank.SETTLED
    assert one.losses[None].lost is None


def test_answers_of_other_points_are_ignored() -> None:
    agents = pair(Path.made(3, 2000, 10), RDA)
    strange = pair(Path.made(3, 2000, 11), RDA)
    for two in (agents, strange):
        both(two, 4)
    done = talk((agents[0], strange[1])).take(both(agents, 4)).wait(ANSWER_NS)
    assert done.rounds.counted["answers to nothing"] == 3
    assert done.best["A>B", EPOCH_NS + SECOND_NS].losses[None].lost is None


# ---- packets that captures dropped ----


def dropped(agent: Agent, share: float, seed: int) -> Agent:
    """The same agent, whose capture dropped some packets and counted them."""
    rng = np.random.default_rng(seed)
    packets = agent.packets
    gone = rng.random(len(packets)) < share
    starts, counts = np.unique(packets.time_ns[gone] // SECOND_NS * SECOND_NS, return_counts=True)
    kept = batch(packets.packet_id[~gone], packets.time_ns[~gone])
    return replace(agent, packets=kept, unseen=dict(zip(starts.tolist(), counts.tolist(), strict=True)), kept={})


@pytest.mark.parametrize("side", ["upstream", "downstream", "both"])
@pytest.mark.parametrize("estimator", [Rda(buckets=3000, tail=200), Lda(64, (0, 4, 8), tail=200)], ids=["rda", "lda"])
def test_packets_dropped_by_a_capture_are_not_loss(side: str, estimator: Rda | Lda) -> None:
    path = Path.made(8, 2000, 12, loss=0.01)
    up, down = pair(path, estimator)
    agents = (
        up if side == "downstream" else dropped(up, 0.1, 1),
        down if side == "upstream" else dropped(down, 0.1, 2),
    )
    done = talk(agents).take(both(agents, 9))
    within, lost, sent = 0, 0.0, 0
    for number in range(8):
        one = done.best["A>B", EPOCH_NS + number * SECOND_NS]
        loss, crossing = one.losses[None], one.crossings[None]
        assert loss.lost is not None
        during = path.during(one.interval.start_ns, one.interval.end_ns)
        share = float((during & path.lost).sum() / during.sum())
        within += loss.low <= share * crossing.sent + 1 and loss.high >= share * crossing.sent - 1
        lost, sent = lost + loss.lost, sent + crossing.sent
    assert within >= 7
    assert lost / sent == pytest.approx(0.01, abs=0.006)  # without the law it would be 0.11, or 0


# ---- isolation ----


def hour_off(agent: Agent, hours: int) -> Agent:
    shifted = agent.packets.time_ns + hours * 3600 * SECOND_NS
    return replace(
        agent,
        packets=batch(agent.packets.packet_id, shifted),
        start_ns=agent.start_ns + hours * 3600 * SECOND_NS,
        kept={},
    )


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_an_hour_off_pairs_with_nothing(hours: int) -> None:
    agents = pair(Path.made(4, 300, 13), RDA)
    off = hour_off(agents[1], hours)
    done = talk((agents[0], off))
    for mine, theirs in zip(agents[0].messages(0, 4), off.messages(0, 4), strict=True):
        done.take([mine])
        for outcome in done.rounds.take(theirs, done.now_ns):  # it arrives now, whatever its clock shows
            done._heed(outcome)
    done.wait(SOON_NS)
    assert {one.rank for one in done.best.values()} == {Rank.UNSEEN}


@BOTH
def test_other_traffic_is_not_total_loss(estimator: Rda) -> None:
    first, second = Path.made(3, 300, 14), Path.made(3, 300, 15)
    agents = pair(first, estimator)[0], pair(second, estimator)[1]
    one = talk(agents).take(both(agents, 4)).best["A>B", EPOCH_NS]
    assert one.losses[None].lost is None
    assert "no packet in common" in (one.losses[None].reason or "")


@BOTH
def test_total_loss_is_loss(estimator: Rda) -> None:
    path = Path.made(3, 300, 16, loss=1.0)
    agents = pair(path, estimator)
    one = talk(agents).take(both(agents, 4)).best["A>B", EPOCH_NS]
    assert one.losses[None].lost == path.during(EPOCH_NS, EPOCH_NS + SECOND_NS).sum()


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        (Terms(replace(RDA, seed=1), interval_ns=SECOND_NS), "seed: 0 and 1"),
        (Terms(Finecomb(), interval_ns=SECOND_NS), "estimator: rda and finecomb"),
        (Terms(RDA, interval_ns=SECOND_NS, filter="port 80"), "filter: None and port 80"),
    ],
)
def test_points_with_different_settings_are_reported(terms: Terms, says: str) -> None:
    up, down = pair(Path.made(3, 300, 17), RDA)
    agents = up, replace(down, terms=terms)
    done = talk(agents).take(both(agents, 4))
    one = done.best["A>B", EPOCH_NS]
    assert not one.crossings
    assert says in (one.reason or "")
    assert done.rounds.counted["not comparable"] == 4


def test_unassignable_messages_are_counted() -> None:
    agents = pair(Path.made(2, 100, 18), RDA)
    first = agents[0].messages(0, 1)[0]
    odd = replace(first, interval=Interval(EPOCH_NS + 5, EPOCH_NS + 5 + SECOND_NS), records=())
    done = talk(agents).take(
        [replace(first, point="C"), odd, replace(first, type="ask"), replace(first, segment="X>Y")]
    )
    assert done.rounds.counted == {"of no segment": 2, "no interval of a clock": 1, "not for a collector": 1}
    assert done.done.total() == 4


def test_invalid_records_affect_one_interval_of_one_segment() -> None:
    path = Path.made(4, 300, 19)
    agents = pair(path, RDA)
    messages = both(agents, 5)
    wrong = {
        name: value[:6] if isinstance(value, np.ndarray) else value for name, value in messages[3].records[0].items()
    }
    spoiled = [
        *messages[:3],
        replace(messages[3], records=(wrong | {"bucket_ids": np.zeros(7, np.uint64)},)),
        *messages[4:],
    ]
    others = tuple(replace(agent, point=point) for agent, point in zip(pair(path, RDA), "CD", strict=True))
    rounds = Rounds([ENDS, Ends("C>D", "C", "D")])
    done = Talk(rounds, (*agents, *others)).take([*spoiled, *both((others[0], others[1]), 5)])
    assert "does not fit" in (done.best["A>B", EPOCH_NS + SECOND_NS].reason or "")
    for number in (2, 3):
        is_true(done.best["A>B", EPOCH_NS + number * SECOND_NS], path)
    for number in range(4):
        is_true(done.best["C>D", EPOCH_NS + number * SECOND_NS], path)


def test_a_point_in_the_middle_serves_two_segments() -> None:
    first = Path.made(4, 400, 20)
    arrived = np.flatnonzero(~first.lost)
    at_b = (first.sent_ns + first.delays_ns)[arrived]
    rng = np.random.default_rng(21)
    second = Path(
        first.ids[arrived],
        at_b,
        rng.integers(1_000_000, 3_000_000, len(arrived)),
        rng.random(len(arrived)) < 0.02,
        EPOCH_NS,
    )
    a, b = pair(first, RDA)
    c = replace(pair(second, RDA)[1], point="C")
    done = Talk(Rounds([ENDS, Ends("B>C", "B", "C")]), (a, b, c))
    messages = [message for three in zip(*(one.messages(0, 6) for one in (a, b, c)), strict=True) for message in three]
    done.take(messages).wait(LINGER_NS).wait(SECOND_NS).wait(LINGER_NS)
    for number in range(4):
        is_true(done.best["A>B", EPOCH_NS + number * SECOND_NS], first)
        is_true(done.best["B>C", EPOCH_NS + number * SECOND_NS], second)
    edges = {EPOCH_NS, EPOCH_NS + 5 * SECOND_NS}  # what comes before and after may still arrive: they stay in the store
    for message in messages:
        assert done.done[message.key] == (message.interval.start_ns not in edges)


def test_agents_can_name_segments() -> None:
    path = Path.made(2, 300, 22)
    agents = tuple(replace(agent, segment="A>>B") for agent in pair(path, RDA))
    done = Talk(Rounds([], named_by_agents=True), agents).take(both((agents[0], agents[1]), 3))
    is_true(done.best["A>>B", EPOCH_NS], path)
    assert done.rounds.segments == [Ends("A>>B", "A", "B")]


def test_clocks_add_up() -> None:
    up, down = pair(Path.made(2, 100, 23), RDA)
    agents = up, replace(down, clock=ClockReading(True, 3_000_000, "ptp"))
    one = talk(agents).take(both(agents, 3)).best["A>B", EPOCH_NS]
    assert one.clock == ClockReading(True, 3_020_000, "ptp")


# ---- memory ----


@pytest.mark.acceptance
def test_two_hundred_agents() -> None:
    path = Path.made(3, 100, 24)
    pairs = [pair(path, RDA) for _ in range(100)]
    agents = [
        replace(agent, point=f"{side}{i}") for i, two in enumerate(pairs) for agent, side in zip(two, "UD", strict=True)
    ]
    rounds = Rounds([Ends(f"U{i}>D{i}", f"U{i}", f"D{i}") for i in range(100)])
    done = Talk(rounds, agents)
    done.take(message for number in range(4) for agent in agents for message in agent.messages(number, 1))
    settled = [one for one in done.best.values() if one.rank == Rank.SETTLED]
    assert len(settled) == 300
    for one in settled:
        is_true(one, path)


def test_memory_is_bounded_and_released() -> None:
    agents = pair(Path.made(1, 100, 25), RDA)
    most = 40 * 50_000
    done = talk(agents, most_bytes=most)
    done.take(agents[0].messages(0, 200))
    assert done.rounds.bytes <= most
    assert done.rounds.counted["dropped because memory was full"] > 100
    done.wait(2 * LINGER_NS)
    assert done.rounds.bytes == 0
    assert not any(segment.places for segment in done.rounds._segments.values())
    assert not done.rounds._needed


def test_a_day_of_intervals_leaves_nothing_behind() -> None:
    agents = pair(Path.made(1, 20, 26, loss=0.0), Lda(8, (0,), tail=4))
    done = talk(agents)
    for first in range(0, 600, 10):
        done.take(both(agents, 10, first)).wait(0)
        assert sum(len(segment.places) for segment in done.rounds._segments.values()) < 8 + 2 * 60
    assert sum(one.rank == Rank.SETTLED for one in done.best.values()) >= 598


# ---- delimited intervals ----

DELIMITERS = Delimiters(SECOND_NS // 4, 5)
CUT_LDA = Lda(64, (0, 3), tail=100)


def closed(messages: list[Message]) -> list[Message]:
    """One point's cuts, each with the name of its end."""
    names = {message.interval.start_ns: message.interval.name for message in messages}
    return [
        replace(message, records=({**message.records[0], "closed_by": name}, *message.records[1:]))
        if (name := names.get(message.interval.end_ns)) is not None
        else message
        for message in messages
    ]


def delimited(path: Path) -> tuple[tuple[Agent, Agent], list[Message], list[Span]]:
    """Agents with delimited intervals, their messages, and the result of both captures together."""
    terms = Terms(CUT_LDA, interval_ns=None, delimiters=DELIMITERS)
    agents = tuple(replace(agent, terms=terms) for agent in pair(path, CUT_LDA))
    sides = [list(cuts(CUT_LDA, "upstream", [agent.packets], None, DELIMITERS)) for agent in agents]
    messages = [
        agent.message(cut, Seen(cut.synopses[0].packets, 0, cut.interval.length_ns))
        for agent, side in zip(agents, sides, strict=True)
        for cut in side
    ]
    nothing = CUT_LDA.meter("upstream").cut(Interval(0, 0))
    pairs = paired_by_delimiters(*sides, CUT_LDA.added)  # agents do not wait for what overtook a delimiter
    truth = list(crossed(pairs, lambda _, __, up, down: CUT_LDA.cross(up, down), nothing, nothing))
    return (agents[0], agents[1]), messages, [span for span in truth if not span.open_ended]


@examples(15)
@given(st.randoms(use_true_random=False), st.booleans(), st.booleans())
def test_cuts_at_packets_are_paired_in_any_order(order: random.Random, again: bool, named: bool) -> None:
    agents, messages, truth = delimited(Path.made(4, 2000, 30, loss=0.03))
    if named:
        messages = [one for point in "AB" for one in closed([m for m in messages if m.point == point])]
    assert len(truth) > 5
    assert any(span.lost_delimiters for span in truth)
    mixed = messages + (messages[::3] if again else [])
    order.shuffle(mixed)
    done = Talk(Rounds([ENDS]), agents)
    done.now_ns = max(message.interval.end_ns for message in messages)
    done.take(mixed)
    found = {start_ns: one for (_, start_ns), one in done.best.items()}
    assert found.keys() == {span.interval.start_ns for span in truth}
    for span in truth:
        one = found[span.interval.start_ns]
        mine, theirs = one.crossings[None], span.whole
        assert (mine.sent, mine.received, mine.sum_ns, mine.used) == (
            theirs.sent,
            theirs.received,
            theirs.sum_ns,
            theirs.used,
        )
        assert one.losses[None].lost == theirs.lost


def test_a_cut_that_names_its_end_is_paired_at_once() -> None:
    agents, messages, truth = delimited(Path.made(4, 2000, 32, loss=0.0))
    ups, downs = (closed([message for message in messages if message.point == point]) for point in "AB")
    place = next(i for i, cut in enumerate(ups) if cut.interval.name == truth[1].interval.name)
    other = next(cut for cut in downs if cut.interval.name == truth[1].interval.name)
    done = Talk(Rounds([ENDS]), agents).take([other, ups[place]])
    assert {start_ns for _, start_ns in done.best} == {truth[1].interval.start_ns}
    done.wait(2 * LINGER_NS)
    assert not any(cuts.starts for segment in done.rounds._segments.values() for cuts in segment.chain.sides)


def test_a_cut_that_never_comes_leaves_a_gap() -> None:
    agents, messages, truth = delimited(Path.made(4, 2000, 31, loss=0.0))
    middle = truth[len(truth) // 2].interval.start_ns
    kept = [message for message in messages if message.interval.start_ns != middle]
    done = Talk(Rounds([ENDS]), agents)
    done.now_ns = max(message.interval.end_ns for message in messages)
    done.take(kept).wait(LINGER_NS + 1)
    starts = {start_ns for _, start_ns in done.best}
    assert {span.interval.start_ns for span in truth} - starts == {truth[len(truth) // 2 - 1].interval.start_ns, middle}
    assert not done.rounds._needed
