"""Conversations with symbols: they end with the result of the join, for any loss, copies or similar ids."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.agent_messages import EPOCH_NS, SECOND_NS, Path, pair
from tests.support.effort import examples
from tests.support.reconciliations import SHORT, cached, converse
from tests.support.settled_rounds import ENDS, both, is_true
from wirelag.estimators.rda import BUCKET, SENT_ROWS, Rda
from wirelag.protocol.messages import MOST_BYTES, Message, decode, encode
from wirelag.protocol.pairing import MOST_BUCKETS
from wirelag.protocol.reconcile import (
    GROWN,
    MOST_SYMBOLS,
    MOST_WHOLE,
    Reconciling,
    answer_symbols,
    check_ask,
)
from wirelag.protocol.results import Ask, Result
from wirelag.protocol.session import Rounds
from wirelag.synopses.cache import Cached
from wirelag.synopses.crossing import Crossing, joined
from wirelag.synopses.symbols import NUMBERS, WORD_BYTES, SymbolSynopsis, decoder, enough, less, likely, symbols_of

Ids = npt.NDArray[np.uint64]


def says(crossing: Crossing) -> dict[str, Any]:
    counts = ("sent", "received", "used", "sum_ns", "only_upstream", "only_downstream", "duplicated", "ambiguous")
    singles = {
        name: sorted(zip(one.ids.tolist(), one.times_ns.tolist(), strict=True))
        for name in ("single_up", "single_down")
        if (one := getattr(crossing, name)) is not None
    }
    return {name: getattr(crossing, name) for name in counts} | singles


@examples(150)
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from("ud2UD")), max_size=60), st.sampled_from([1, 8, 200]))
def test_it_ends_with_the_result_of_join(seen: list[tuple[int, str]], symbols: int) -> None:
    """Few ids, so that many have copies; some agree in the 32 bits that are compared."""
    up, down = [], []
    for place, (number, where) in enumerate(seen):
        packet = (number % 20 + (number // 20 << 40), EPOCH_NS + 1000 * place)
        up += [packet] * (where in "u2") + [packet, packet] * (where == "U")
        down += [(packet[0], packet[1] + 77 + number)] * (where in "d2") + [packet, packet] * (where == "D")
    points = [cached([p[0] for p in each], [p[1] for p in each]) for each in (up, down)]
    crossing, _ = converse(points[0], points[1], replace(SHORT, buckets=symbols))
    assert says(crossing) == says(joined(points[0], points[1]))


@pytest.mark.parametrize("lost", [0, 1, 30, 1500])
def test_questions_grow_with_the_difference(lost: int) -> None:
    rng = np.random.default_rng(lost)
    ids = rng.integers(0, 1 << 44, 3000, np.uint64)
    times_ns = EPOCH_NS + np.arange(3000) * 1000
    up, down = cached(ids, times_ns), cached(ids[lost:], times_ns[lost:] + 5000)
    crossing, asked = converse(up, down)
    assert says(crossing) == says(joined(up, down))
    assert asked["wanted"] == (0 < lost < 1500)  # only upstream has seen them: no other point is asked
    assert asked["symbols"] <= 2 * GROWN
    assert asked["whole"] == (2 if lost == 1500 else 0)  # symbols would take more bytes


def test_points_with_different_levels_use_the_higher_one() -> None:
    ids = np.random.default_rng(3).integers(0, 1 << 44, 4000, np.uint64)
    times_ns = EPOCH_NS + np.arange(4000) * 1000
    up, down = cached(ids, times_ns), cached(ids[40:], times_ns[40:] + 5000, level=2)
    crossing, asked = converse(up, down)
    assert says(crossing) == says(joined(up, down))
    assert asked["symbols"] >= 1
    unmatched, _ = converse(up.at_level(2), Cached.empty())
    assert (unmatched.only_upstream, unmatched.used) == (4 * len(up.at_level(2)), 0)


def test_a_fake_is_handled() -> None:
    """If symbols fail, the packets themselves are requested."""
    ids = np.random.default_rng(4).integers(0, 1 << 44, 500, np.uint64)
    times_ns = EPOCH_NS + np.arange(500) * 1000
    up, down = cached(ids, times_ns), cached(ids[3:], times_ns[3:] + 9)
    synopses = [one for one in map(SHORT.bind, (up, down)) if isinstance(one, SymbolSynopsis)]
    spoiled = replace(synopses[0], words=synopses[0].words ^ np.uint64(1 << 50))
    talk = Reconciling(SHORT, [spoiled, synopses[1]])
    for _ in range(10):
        asks, crossing = talk.ask(), talk.crossing()
        assert crossing.details["decoded"] is False
        assert crossing.used == len(crossing.tail)  # the sample only, and no loss
        assert crossing.lost is None
        if all("whole" in ask for ask in asks.values()):
            break
        for side, ask in asks.items():
            words = answer_symbols(SHORT, (up, down)[side], ask | {"cache_level": 0})
            talk.take(side, ask, talk.read(side, ask, words))
    for side, one in enumerate((up, down)):
        ask = {"whole": True, "cache_level": 0}
        talk.take(side, ask, talk.read(side, ask, answer_symbols(SHORT, one, ask)))
    asks, crossing = talk.ask(), talk.crossing()
    assert not asks
    assert says(crossing) == says(joined(up, down))


ANSWERS: dict[str, dict[str, Any]] = {
    "too few times": {"times_ns": np.zeros(2, np.int64)},
    "no times": {"ids": np.zeros(3, np.uint64)},
    "copies of others": {
        "times_ns": np.zeros(3, np.int64),
        "asked": np.zeros(1, np.uint64),
        "of_ids": np.ones(1, np.uint64),
        "of_times_ns": np.ones(1, np.int64),
    },
    "fewer times than copies": {
        "times_ns": np.zeros(3, np.int64),
        "asked": np.zeros(1, np.uint64),
        "of_ids": np.ones(2, np.uint64),
        "of_times_ns": np.ones(1, np.int64),
    },
    "copies of what was not asked": {
        "times_ns": np.zeros(3, np.int64),
        "asked": np.full(1, 7, np.uint64),
        "of_ids": np.ones(1, np.uint64),
        "of_times_ns": np.ones(1, np.int64),
    },
}


@pytest.mark.parametrize("record", ANSWERS.values(), ids=ANSWERS)
def test_an_invalid_answer(record: dict[str, Any]) -> None:
    ids = np.random.default_rng(5).integers(0, 1 << 44, 100, np.uint64)
    times_ns = EPOCH_NS + np.arange(100)
    synopses = [SHORT.bind(cached(ids, times_ns)), SHORT.bind(cached(ids[3:], times_ns[3:]))]
    talk = Reconciling(SHORT, [one for one in synopses if isinstance(one, SymbolSynopsis)])
    ((side, ask),) = talk.ask().items()
    assert side == 0
    with pytest.raises((ValueError, IndexError)):
        talk.read(side, ask, record)


@pytest.mark.parametrize(
    "ask",
    [
        {},
        {"whole": 1},
        {"symbols": 5},
        {"symbols": 5, "after": 6},
        {"symbols": 1 << 21, "after": 1 << 21},
        {"wanted": 5},
        {"ids": [1]},
    ],
    ids=str,
)
def test_an_invalid_question(ask: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"asks for|is missing"):
        check_ask(ask)


def test_a_point_asked_about_other_packets_says_so() -> None:
    with pytest.raises(ValueError, match="did not see"):
        answer_symbols(SHORT, cached([5], [1]), {"cache_level": 0, "wanted": np.array([6], np.uint64)})


@pytest.mark.parametrize("size", [1, 20, 130, 1000])
def test_enough_is_enough_nine_times_of_ten_and_likely_is_near(size: int) -> None:
    rng, decoded, sizes = np.random.default_rng(size), 0, []
    for seed in range(100):
        words = symbols_of(rng.integers(0, int(NUMBERS), size, np.uint64), 0, enough(size), seed)
        decoded += decoder(seed).add(less(words, np.zeros_like(words)))
        few = words[: max(4, size // 2)]
        sizes.append(likely(less(few, np.zeros_like(few))))
    assert decoded >= 80
    assert size / 3 <= np.median(sizes) <= 3 * size + 3


# ---- cost ----


def held_back_ns(seed: int) -> tuple[Cached, Cached, float]:
    """8,000 packets at both points, of which one in twenty was held back, and the deviation of their delays."""
    rng = np.random.default_rng(seed)
    sent_ns = EPOCH_NS + np.sort(rng.integers(0, SECOND_NS, 8000))
    delays_ns = (
        2_000_000 + rng.integers(0, 100_000, 8000) + (rng.random(8000) < 0.05) * rng.integers(0, 5_000_000, 8000)
    )
    ids, kept = rng.integers(0, 2**63, 8000), rng.random(8000) > 0.01
    return cached(ids, sent_ns), cached(ids[kept], (sent_ns + delays_ns)[kept]), float(delays_ns[kept].std())


def test_deviations_of_an_agent_are_within_four_percent() -> None:
    """R rows have an error of 1/sqrt(2 R), half of which are within 0.67 of it: 3% with 256, 8% with 32."""

    def errors(rows: int | None) -> list[float]:
        estimator, found = Rda(tail=512).for_agent(rows), []
        for up, down, std_ns in (held_back_ns(seed) for seed in range(40)):
            crossing, _ = converse(up, down, estimator)
            assert crossing.std_ns is not None
            found.append(abs(crossing.std_ns / std_ns - 1))
        return found

    assert np.median(errors(None)) < 0.04
    assert np.median(errors(32)) > 0.05


def test_control_traffic_is_less_than_a_thousandth() -> None:
    """16,000 packets a second of 942 bytes, 1% lost, 2 ms in flight: all messages of both points and all questions."""
    path, spent = Path.made(6, 16_000, 31, loss=0.01, delay_ns=2e6), Counter[str]()
    agents = pair(path, Rda(short=True, rows=SENT_ROWS, tail=512, buckets=enough(280)))
    rounds, results = Rounds([ENDS]), dict[int, Result]()

    def take(message: Message) -> None:
        spent[message.type] += len(encode(message))
        for one in rounds.take(message, message.interval.end_ns + 10**7):
            if isinstance(one, Ask):
                spent["ask"] += len(encode(one.message))
                take(next(a for a in agents if a.point == one.message.point).answer(one.message))
            elif isinstance(one, Result):
                results[one.interval.start_ns] = one

    for message in both(agents, 7):
        take(message)
    for number in range(6):
        is_true(results[EPOCH_NS + number * SECOND_NS], path)
    share = sum(spent.values()) / (942 * len(path.ids))
    assert share < 0.001, spent
    assert spent["synopsis"] > 2 * 6 * enough(280) * WORD_BYTES


def test_the_largest_answers_fit_into_a_message() -> None:
    rng, path = np.random.default_rng(6), Path.made(1, 10, 1)
    where = {"start_ns": EPOCH_NS, "end_ns": EPOCH_NS + SECOND_NS, "name": None, "class": None}

    def words(count: int, bits: int = 64) -> Ids:
        return rng.integers(0, (1 << bits) - 1, count, np.uint64)

    tail = Cached(words(512), words(512, 62).view(np.int64), packets=512).to_fields("tail_")
    buckets = {name: words(MOST_BUCKETS, 32 if "check" in name else 64) for name in BUCKET}
    entries = {"ids": words(MOST_WHOLE, 44), "times_ns": words(MOST_WHOLE, 40).view(np.int64)}
    answers: list[tuple[Rda, dict[str, Any]]] = [
        (Rda(banks=4), {**buckets, "entries": 5, "cache_level": 0, **tail}),
        (SHORT, {"symbols": words(MOST_SYMBOLS)}),
        (SHORT, {**entries, "level": 0, "packets": MOST_WHOLE}),
    ]
    for estimator, record in answers:
        message = replace(pair(path, estimator)[0].messages(0, 1)[0], type="times", records=(where | record,))
        data = encode(message)
        assert len(data) <= MOST_BYTES
        assert len(decode(data).records) == 1
