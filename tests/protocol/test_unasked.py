"""Points that tell times before they are asked: fewer questions, the same results."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.agent_messages import CLOCK, EPOCH_NS, SECOND_NS, Path, usual
from tests.support.reconciliations import SHORT, cached
from wirelag.agent.composing import encoded
from wirelag.agent.config import Measured
from wirelag.agent.cutting import ByClock, Unseen
from wirelag.agent.history import History
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import Message, decode, encode
from wirelag.protocol.results import Ask, Ends, Rank, Result
from wirelag.protocol.session import Rounds
from wirelag.protocol.terms import Terms
from wirelag.protocol.unasked import LATELY, habit_of
from wirelag.synopses.reordering import with_order
from wirelag.synopses.symbols import MOST_UNASKED, SymbolSynopsis, Unasked

SECONDS = 12
RATE = 400


def in_order(loss: float = 0.0) -> Path:
    """Packets that take 3 ms each."""
    made = Path.made(SECONDS, RATE, 5, loss, start_ns=EPOCH_NS)
    return replace(made, delays_ns=np.full(len(made.ids), 3_000_000))


def settled(path: Path, unasked: bool) -> tuple[list[Result], Counter[tuple[str, int]], int]:
    """Results of a segment, the questions to each point by interval, and the bytes of synopses and replies."""
    terms = Terms(usual("rda"), interval_ns=SECOND_NS)
    rounds = Rounds([Ends("A>B", "A", "B")])
    pasts = {point: History(point, 1 << 24, EPOCH_NS) for point in "AB"}
    cuts = []
    for packets in path.points:
        cutting = ByClock((Measured("A>B", terms, None, False),), SECOND_NS, 0, Unseen(SECOND_NS, EPOCH_NS))
        cutting.begin(EPOCH_NS)
        cuts.append([*cutting.take(packets), *cutting.end(EPOCH_NS + SECONDS * SECOND_NS)])
    found, asked, sent, now_ns = list[Any](), Counter[tuple[str, int]](), 0, 0
    for both in zip(*cuts, strict=True):
        waiting = []
        for point, part in zip("AB", both, strict=True):
            pasts[point].keep(part)
            about = Message("synopsis", point, "A>B", part.cut.interval, terms, CLOCK, part.seen)
            waiting.append(encoded(part, about, pasts[point])[0])
        while waiting:
            now_ns += 1
            data = waiting.pop(0)
            sent += len(data)
            for one in rounds.take(decode(data), now_ns):
                if isinstance(one, Ask):
                    asked[one.message.point, (one.message.interval.start_ns - EPOCH_NS) // SECOND_NS] += 1
                    waiting.append(pasts[one.message.point].answer(decode(encode(one.message)))[0])
                    if not unasked:
                        pasts[one.message.point]._habits.clear()
                elif isinstance(one, Result) and one.rank == Rank.SETTLED:
                    found.append(one)
    return found, asked, sent


def figures(results: list[Result]) -> list[Any]:
    """All that is stored of them, but not the number of symbols."""
    return [
        (one.interval, one.losses[None], crossing.moments, crossing.order, crossing.sent, crossing.received,
         crossing.only_upstream, crossing.only_downstream, crossing.tail.delays_ns.tolist(), crossing.details)
        for one in results
        for crossing in [one.crossings[None]]
    ]  # fmt: skip


def test_what_arrives_in_order_is_not_asked_for_again() -> None:
    told, asked, sent = settled(in_order(), unasked=True)
    plain, before, needed = settled(in_order(), unasked=False)
    assert figures(told) == figures(plain)
    assert len(told) >= SECONDS - 1
    assert sum(before.values()) > SECONDS
    assert sum(asked.values()) < sum(before.values()) / 3
    assert sent < needed


def test_a_point_that_loses_packets_is_asked_and_the_other_is_not() -> None:
    told, asked, _ = settled(in_order(loss=0.02), unasked=True)
    plain, before, _ = settled(in_order(loss=0.02), unasked=False)
    assert figures(told) == figures(plain)
    assert sum(count for (point, _), count in before.items() if point == "B") >= SECONDS - 1
    assert sum(count for (point, _), count in asked.items() if point == "B") <= 4
    assert {interval for point, interval in asked if point == "A"} == set(range(SECONDS))


@pytest.mark.parametrize("seed", range(4))
def test_results_are_the_same_whatever_is_lost_or_overtaken(seed: int) -> None:
    path = Path.made(SECONDS, RATE, seed, (0.0, 0.01, 0.1, 0.0)[seed], start_ns=EPOCH_NS)
    assert figures(settled(path, unasked=True)[0]) == figures(settled(path, unasked=False)[0])


def test_copies_are_left_to_questions() -> None:
    interval = Interval(EPOCH_NS, EPOCH_NS + SECOND_NS)
    ids = np.arange(1, 100, dtype=np.uint64)
    times_ns = EPOCH_NS + np.arange(99) * 10_000_000
    ask = {"wanted": np.array([1, 2], np.uint64), "difference": 2}
    once = cached(ids, times_ns)
    habit = habit_of(once, once, ask, interval, None)
    assert habit is not None
    assert habit.until_ns == EPOCH_NS + LATELY * SECOND_NS
    assert habit_of(once, once, ask | {"wanted": np.array([1, 60], np.uint64)}, interval, None) is None
    ids[5] = 1
    twice = cached(ids, times_ns)
    assert habit_of(twice, twice, ask, interval, None) is None


def test_what_is_told_unasked_has_bounds() -> None:
    few, many = np.arange(9, dtype=np.uint64), np.arange(MOST_UNASKED + 1, dtype=np.uint64)
    at_once = SHORT.bind(cached(few, few.astype(np.int64)))
    assert isinstance(at_once, SymbolSynopsis)
    whole = with_order(at_once, cached(few, few.astype(np.int64)), few)
    plain = replace(whole, unasked=Unasked(few, few.astype(np.int64), None)).to_fields()
    for wrong in (
        {"edge_ids": many, "edge_times_ns": many.astype(np.int64)},
        {"edge_times_ns": np.arange(8)},
        {"before_ns": np.arange(3)},
    ):
        with pytest.raises(ValueError, match="told unasked"):
            SymbolSynopsis.from_fields(plain | wrong, SHORT.rows, SHORT.seed, SHORT.tail)
