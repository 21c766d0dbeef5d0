"""Loss without known neighbours: packets in flight at an interval's end are never counted as lost."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.agent_messages import EPOCH_NS, SECOND_NS, Path, pair
from tests.support.settled_rounds import both, is_true, talk
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.protocol.messages import Message
from wirelag.protocol.results import Rank, Result
from wirelag.protocol.session import ANSWER_NS

TIMES, OTHERS = 60, 3  # intervals; packets of other segments for each of this one
UNANSWERED = 3  # the interval without an answer


def of(results: Sequence[Result], number: int) -> Result:
    return next(one for one in results if one.interval.start_ns == EPOCH_NS + number * SECOND_NS)


@pytest.mark.parametrize("point", ["A", "B"])
def test_the_interval_before_one_without_answers(point: str) -> None:
    """20 ms of packets are in flight at each edge: without the next interval's times they look lost."""
    path = Path.made(8, 1000, 31, delay_ns=2e7)
    agents = pair(path, Rda(buckets=600, tail=200))

    def deaf(ask: Message) -> bool:
        return ask.point == point and ask.interval.start_ns == EPOCH_NS + UNANSWERED * SECOND_NS

    done = talk(agents, deaf).take(both(agents, 9)).wait(ANSWER_NS)
    results = [one for one in done.best.values() if one.rank >= Rank.ALONE]
    for number in range(8):
        result = of(results, number)
        if number == UNANSWERED:
            assert result.losses[None].lost is None
        elif result.losses[None].lost is None:
            assert number == UNANSWERED - 1
            assert "in the next interval is not known" in (result.losses[None].reason or "")
        else:
            is_true(result, path)
    if point == "B":  # packets that only B saw were sent before
        assert of(results, UNANSWERED - 1).losses[None].lost is None


@pytest.mark.every(2)
@pytest.mark.parametrize("estimator", [Rda(buckets=900, tail=200), Lda(64, (0,), tail=128)], ids=["rda", "lda"])
@pytest.mark.parametrize("whole", [False, True], ids=["its share", "all of it"])
def test_a_capture_of_several_segments_with_drops(estimator: Rda | Lda, whole: bool) -> None:
    """The kernel counts drops of all segments: attributed to one segment, they would hide its loss."""
    path = Path.made(TIMES, 1000, 41, loss=0.02)
    agents = pair(path, estimator)
    down = agents[1]
    generator = np.random.default_rng(42)
    kept = generator.random(len(down.packets)) >= 0.1
    for number in range(TIMES + 1):
        start_ns = EPOCH_NS + number * SECOND_NS
        inside = (down.packets.time_ns >= start_ns) & (down.packets.time_ns < start_ns + SECOND_NS)
        of_others = int(inside.sum()) * OTHERS
        dropped = int((inside & ~kept).sum()) + (others := int(generator.binomial(of_others, 0.1)))
        taken = int((inside & kept).sum())
        captured = taken + of_others - others
        down.unseen[start_ns] = dropped if whole else round(dropped * taken / max(1, captured))
        down.captured[start_ns] = captured
    down.packets = down.packets[kept]
    done = talk(agents).take(both(agents, TIMES + 1)).wait(ANSWER_NS)
    results = [one for one in done.best.values() if one.rank >= Rank.ALONE]
    covered, said, true = 0, 0.0, 0
    for number in range(1, TIMES - 1):
        start_ns = EPOCH_NS + number * SECOND_NS
        loss = of(results, number).losses[None]
        lost = int((path.during(start_ns, start_ns + SECOND_NS) & path.lost).sum())
        assert loss.lost is not None
        covered += loss.low <= lost <= loss.high
        said, true = said + loss.lost, true + lost
    if whole:
        assert said < 0 < true
    else:
        assert covered >= 0.85 * (TIMES - 2)
        # A sum of binomial numbers: 100 drops per interval, three in four of them random.
        assert abs(said - true) < 4 * (100 * TIMES) ** 0.5
