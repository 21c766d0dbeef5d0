"""The collector under an injected clock: late, repeated and delayed messages count once, exactly."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.agent_messages import EPOCH_NS, SECOND_NS, Agent, pair
from tests.support.agent_messages import Path as Travelled
from tests.support.collector_process import are_true
from tests.support.effort import scaled
from wirelag.collector.loop import Collector
from wirelag.collector.sqlite import SqliteStore
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.protocol.messages import Message, encode
from wirelag.protocol.results import Ends, Rank
from wirelag.protocol.session import Rounds


class Offline:
    """A collector without a network, under an injected clock; agents answer at once, or never."""

    def __init__(self, folder: Path, agents: Iterable[Agent]) -> None:
        self._file, self._agents = str(folder / "store.db"), {agent.point: agent for agent in agents}
        self.now_ns, self.asked = EPOCH_NS, list[Message]()
        self.off_ns = 0  # what the clock of the host is wrong by; how much time passes does not depend on it
        self.start()

    def start(self) -> None:
        rounds, store = Rounds([Ends("A>B", "A", "B")]), SqliteStore(self._file)
        self.collector = Collector(rounds, store, lambda: self._tick() + self.off_ns, steady=self._tick)
        self.collector._ask_for = self.asked.extend  # type: ignore[method-assign]
        assert self.collector.resume() is not None

    def _tick(self) -> int:
        self.now_ns += 10**6
        return self.now_ns

    def restart(self, after_s: int) -> None:
        self.asked.clear()
        self.collector.store.close()
        self.now_ns += after_s * SECOND_NS
        self.start()

    def tell(self, messages: Iterable[Message], answered: bool = True) -> None:
        todo = [encode(message) for message in messages]
        while todo:
            assert self.collector._take(todo) is not None
            todo = [encode(self._agents[ask.point].answer(ask)) for ask in self.asked] if answered else []
            self.asked.clear()

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_ns += SECOND_NS
            assert self.collector._pass_time() is not None

    def reports(self) -> list[dict[str, Any]]:
        rows = self.collector.store.rows("A>B", None, SECOND_NS, (0, 2**62), 99)
        return [row.to_json() for row in rows]


@pytest.mark.every(2)
@pytest.mark.parametrize("outage_s", [5, 45, 150, 36_000])
@pytest.mark.parametrize("answered", [True, False])
def test_after_any_outage_spooled_intervals_are_settled(tmp_path: Path, outage_s: int, answered: bool) -> None:
    """The last interval before the outage: its neighbour comes from spools, its questions are asked again."""
    path = Travelled.made(8, 300, 41)
    agents = pair(path, Rda(short=True, rows=64, tail=200))
    told = list(zip(*(agent.messages(0, 9) for agent in agents), strict=True))
    offline = Offline(tmp_path, agents)
    for number in range(5):
        offline.now_ns = EPOCH_NS + (number + 1) * SECOND_NS
        offline.tell(told[number], answered or number < 4)
    offline.restart(outage_s)
    offline.tell([agents[0].answer(ask) if ask.point == "A" else agents[1].answer(ask) for ask in offline.asked])
    for both in told[5:]:
        offline.tell(both)
    offline.wait(130)
    assert are_true(offline.reports(), path) == 8


def test_restarts_while_old_intervals_arrive_leave_none_unsettled(tmp_path: Path) -> None:
    """A collector that catches up is ended again and again: each time an interval waits for the next one."""
    path = Travelled.made(201, 20, 44)
    agents = pair(path, Lda(64, (0,), tail=64))
    told = list(zip(*(agent.messages(0, 202) for agent in agents), strict=True))
    offline = Offline(tmp_path, agents)
    offline.now_ns = EPOCH_NS + 800 * SECOND_NS
    offline.tell(told[200])  # new ones do not wait for old ones
    for number in range(8):
        offline.tell(told[number])
        offline.restart(1)
    offline.wait(130)
    rows = offline.collector.store.rows("A>B", None, SECOND_NS, (0, EPOCH_NS + 7 * SECOND_NS), 99)
    assert [row.rank for row in rows] == [Rank.SETTLED] * 7


@pytest.mark.parametrize("seed", range(scaled(144)))
def test_any_order_with_restarts_pauses_and_wrong_clocks_leaves_none_unsettled(tmp_path: Path, seed: int) -> None:
    """Old intervals come in any order, minutes apart: in the end each is settled, with the loss that it had."""
    rng = random.Random(seed)
    path = Travelled.made(10, 50, seed)
    agents = pair(path, Rda(short=True, rows=64, tail=200))
    told = [message for agent in agents for message in agent.messages(0, 11)]
    reach = rng.choice((1, 3, 22))  # how far a message may be overtaken
    told.sort(key=lambda one: one.interval.start_ns // SECOND_NS + rng.uniform(0, reach))
    newest = pair(Travelled.made(601, 1, 44), Lda(64, (0,), tail=64))
    offline = Offline(tmp_path, agents)
    offline.now_ns = EPOCH_NS + 800 * SECOND_NS
    offline.tell(agent.messages(600, 601)[0] for agent in newest)  # so that a restart does not read the old ones
    for message in told:
        match rng.randrange(8):
            case 0:
                offline.restart(rng.choice((1, 40, 200)))
            case 1:
                offline.wait(rng.choice((1, 65, 130)))
            case 2:
                offline.off_ns = rng.choice((0, -30, -700, 3600)) * SECOND_NS
        offline.tell([message])
    offline.wait(130)
    rows = offline.collector.store.rows("A>B", None, SECOND_NS, (0, EPOCH_NS + 10 * SECOND_NS), 99)
    assert [row.rank for row in rows] == [Rank.SETTLED] * 10
    assert are_true(offline.reports()[:10], path) == 10


def test_a_repeated_answer_is_not_taken_for_the_next(tmp_path: Path) -> None:
    path = Travelled.made(1, 1000, 43, loss=0.25)
    agents = pair(path, Rda(short=True, rows=64, tail=200))
    by_point = {agent.point: agent for agent in agents}
    told = [message for agent in agents for message in agent.messages(0, 2)]
    asked: list[list[str]] = []
    for copies in (1, 2):
        (tmp_path / str(copies)).mkdir()
        offline = Offline(tmp_path / str(copies), agents)
        offline.now_ns = EPOCH_NS + 2 * SECOND_NS
        offline.tell(told, answered=False)
        asked.append([])
        offline.restart(1)
        while offline.asked:
            asks = list(offline.asked)
            offline.asked.clear()
            asked[-1] += [ask.key for ask in asks]
            for ask in asks:
                answer = encode(by_point[ask.point].answer(ask))
                assert offline.collector._take([answer] * copies) is not None
        assert are_true(offline.reports(), path) == 1
    assert len(asked[0]) > 4
    assert asked[0] == asked[1]
    assert offline.collector.rounds.counted["duplicates"] == len(asked[1])


def test_late_intervals_count_once(tmp_path: Path) -> None:
    """Intervals that do not arrive within a minute are unseen; when they arrive, they are measured and counted once."""
    path = Travelled.made(6, 200, 42, loss=0.0)
    agents = pair(path, Lda(64, (0,), tail=100))
    ups, downs = (agent.messages(0, 7) for agent in agents)
    offline = Offline(tmp_path, agents)

    def outcomes() -> dict[str, float]:
        text = offline.collector.metrics.text([], {}, 0)[0].decode()
        families = text_string_to_metric_families(text)
        samples = [sample for family in families if family.name == "wirelag_intervals" for sample in family.samples]
        return {sample.labels["outcome"]: sample.value for sample in samples if sample.name.endswith("_total")}

    offline.now_ns = EPOCH_NS + 7 * SECOND_NS
    offline.tell([*ups, *downs[:2]])
    offline.wait(30)
    assert sum(one["missed"] for one in offline.reports()) == 5
    assert outcomes()["unseen"] == 0
    offline.tell(downs[2:4])  # within the minute
    offline.wait(60)
    assert outcomes()["unseen"] == 3
    offline.tell(downs[4:])  # after it
    offline.wait(130)
    assert sum(outcomes().values()) == 7
    assert outcomes()["unseen"] == 3
    assert sum(one["sent"] for one in offline.reports()) == 1200


# ---- the clock of the host is set ----


@pytest.mark.parametrize("off_s", [90, 3600, 3 * 365 * 86_400, -90, -3600])
def test_nothing_is_given_up_because_the_clock_is_set(tmp_path: Path, off_s: int) -> None:
    """Halves and neighbours that wait when the clock is wrong for a moment come in time, by the time that passed."""
    path = Travelled.made(6, 200, 44)
    agents = pair(path, Rda(short=True, rows=64, tail=200))
    ups, downs = (agent.messages(0, 7) for agent in agents)
    offline = Offline(tmp_path, agents)
    offline.now_ns = EPOCH_NS + 3 * SECOND_NS
    offline.tell([*ups[:3], *downs[:2]])
    offline.off_ns = off_s * SECOND_NS
    offline.wait(2)
    offline.off_ns = 0
    offline.now_ns = EPOCH_NS + 7 * SECOND_NS
    offline.tell([downs[2], *ups[3:], *downs[3:]])
    offline.wait(1)
    assert not sum(one["missed"] for one in offline.reports())
    assert are_true(offline.reports(), path) == 6  # with their loss


def test_what_waits_in_the_store_stays_if_the_clock_is_behind_at_the_start(tmp_path: Path) -> None:
    """For that clock it is from the future; it was acknowledged, so it is not dropped."""
    path = Travelled.made(3, 200, 45)
    agents = pair(path, Rda(short=True, rows=64, tail=200))
    ups, downs = (agent.messages(0, 4) for agent in agents)
    offline = Offline(tmp_path, agents)
    offline.now_ns = EPOCH_NS + 4 * SECOND_NS
    offline.tell(ups)
    offline.off_ns = -3600 * SECOND_NS
    offline.restart(1)
    offline.tell(downs)
    assert offline.collector._left == set(range(4))  # kept by their agent
    offline.off_ns = 0
    offline.wait(70)
    offline.tell(downs)
    offline.wait(130)
    assert are_true(offline.reports(), path) == 3


def test_a_half_finds_the_other_in_the_store_whatever_the_clock_shows(tmp_path: Path) -> None:
    """The first half was let go after a minute; the clock was set back, so that the second does not look late."""
    path = Travelled.made(3, 200, 46)
    agents = pair(path, Rda(short=True, rows=64, tail=200))
    ups, downs = (agent.messages(0, 4) for agent in agents)
    offline = Offline(tmp_path, agents)
    offline.now_ns = EPOCH_NS + 4 * SECOND_NS
    offline.tell(ups)
    offline.wait(150)
    assert not offline.collector.rounds.bytes
    offline.off_ns = -145 * SECOND_NS
    offline.tell(downs)
    assert not offline.collector._left
    offline.wait(1)
    assert are_true(offline.reports(), path) == 3


# ---- the disk changes what is stored ----


def test_a_damaged_message_in_the_store_costs_no_other(tmp_path: Path) -> None:
    """The other half is stored all the same, and pairs with the damaged one when that comes again."""
    path = Travelled.made(3, 200, 47)
    agents = pair(path, Rda(short=True, rows=64, tail=200))
    ups, downs = (agent.messages(0, 4) for agent in agents)
    offline = Offline(tmp_path, agents)
    offline.now_ns = EPOCH_NS + 4 * SECOND_NS
    offline.tell(ups)
    offline.wait(70)  # they are in the store alone
    store = offline.collector.store
    assert isinstance(store, SqliteStore)
    store._base.execute("update messages set body = cast(substr(body, 1, length(body) - 1) || x'ff' as blob)")
    offline.tell(downs)
    counted = offline.collector.counted
    assert (counted["damaged in the store"], counted["internal errors"]) == (4, 0)
    assert store._base.execute("select count(*) from messages").fetchone() == (8,)
    offline.tell(ups)  # as agents do that were not acknowledged, or whose spools were restored
    offline.wait(130)
    assert are_true(offline.reports(), path) == 3


def test_a_bit_that_the_disk_changed_costs_its_own_row(tmp_path: Path) -> None:
    """Such damage SQLite cannot see: the collector starts, deletes, and shows all other rows and agents."""
    path = Travelled.made(5, 100, 48)
    agents = pair(path, Rda(short=True, rows=64, tail=200))
    ups, downs = (agent.messages(0, 6) for agent in agents)
    offline = Offline(tmp_path, agents)
    offline.now_ns = EPOCH_NS + 6 * SECOND_NS
    offline.tell([*ups, *downs[:4]])
    offline.collector.upkeep.prune(offline.now_ns)
    store = offline.collector.store
    assert isinstance(store, SqliteStore)
    for damage in (
        f"update results set bins = x'00' where start_ns = {EPOCH_NS}",
        "update agents set said = cast(x'7bff' as text) where point = 'A'",
        "update agents set said = replace(said, 'packets', 'pbckets') where point = 'B'",
        "update facts set value = substr(value, 2)",
        "update messages set body = cast(body as text) where start_ns = (select max(start_ns) from messages)",
    ):
        assert store._base.execute(damage).rowcount, damage
    offline.restart(1)
    assert not offline.collector.agents.all(0, 0)
    offline.tell(downs)
    offline.collector.upkeep.prune(offline.now_ns)
    offline.wait(130)
    counted = offline.collector.counted
    assert (counted["internal errors"], counted["store failed"], counted["pruning failed"]) == (0, 0, 0)
    assert are_true(offline.reports(), path) >= 3
    assert [one["point"] for one in offline.collector.agents.all(0, 0)] == ["A", "B"]
