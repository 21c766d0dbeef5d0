"""A clock that is set, by any amount and in any direction, stops no packets that an agent sends."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.agent_messages import EPOCH_NS, SECOND_NS, Path, batch, pair
from tests.support.waiting import PATIENCE_S, until
from wirelag.agent.config import Measured, Reference
from wirelag.agent.cutting import ByClock, CutPart, Unseen
from wirelag.agent.references import Emitter
from wirelag.capture.host_clock import Steps
from wirelag.collector.metrics import Metrics
from wirelag.collector.tally import Tally
from wirelag.estimators.rda import Rda
from wirelag.packets.batch import PacketBatch
from wirelag.packets.injection import Injection
from wirelag.protocol.results import Ask, Ends, Rank, Result
from wirelag.protocol.session import Rounds
from wirelag.protocol.terms import Terms

LENGTH_NS = SECOND_NS // 100
RDA = Rda(short=True, rows=64, tail=64)
STEPS_NS = (-30 * 86400 * SECOND_NS, 400 * 86400 * SECOND_NS, -LENGTH_NS // 2)


class SetClock:
    """The module `time`, with a clock that can be set."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time_ns(self) -> int:
        return time.time_ns() + self.ahead_ns

    def clock_gettime_ns(self, clock: int) -> int:
        return time.clock_gettime_ns(clock) + self.ahead_ns * (clock == time.CLOCK_REALTIME)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    made = SetClock()
    for module in ("capture.host_clock", "agent.references"):
        monkeypatch.setattr(f"wirelag.{module}.time", made)
    return made


def test_control_packets_go_on_after_a_step(clock: SetClock) -> None:
    """Each has the number of the interval that begins, by the clock as it is now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        heard.bind(("127.0.0.1", 0))
        heard.settimeout(PATIENCE_S)
        emitter = Emitter((), heard.getsockname(), LENGTH_NS, print)
        emitter.start()
        try:
            for step_ns in (0, *STEPS_NS):
                clock.ahead_ns += step_ns
                for _ in range(30):  # those before the step among them
                    data = heard.recv(200)
                behind = (clock.time_ns() // LENGTH_NS - int.from_bytes(data[-4:])) & 0xFFFFFFFF
                assert behind < PATIENCE_S * SECOND_NS // LENGTH_NS
        finally:
            emitter.close()


def test_references_go_on_after_a_step(clock: SetClock) -> None:
    injection = Injection(125_000_000, "1-in-tau", tau_ns=LENGTH_NS, most_share=0.005, depth_ns=SECOND_NS, size=92)
    emitter = Emitter((Reference("127.0.0.1", 0, 0, injection),), None, SECOND_NS, print)
    emitter.start()
    try:
        for step_ns in (0, *STEPS_NS):
            sent = emitter.sent
            clock.ahead_ns += step_ns
            until(lambda sent=sent: emitter.sent > sent + 5, "references after a step")  # type: ignore[misc]
    finally:
        emitter.close()


# ---- intervals ----


def cut(packets: PacketBatch, step_ns: int, at_ns: int) -> list[tuple[int, CutPart]]:
    """The parts of a point whose clock is set at a time, in the middle of an interval; and when each is complete."""
    cuts = ByClock((Measured(None, Terms(RDA, interval_ns=SECOND_NS), None, False),), SECOND_NS, 0, Unseen(SECOND_NS))
    cuts.begin(EPOCH_NS)
    before = packets.time_ns < at_ns
    shifted = batch(packets.packet_id[~before], packets.time_ns[~before] + step_ns)
    first = list(cuts.take(packets[before]))
    if step_ns:
        cuts.stepped(at_ns + step_ns)
        first += cuts.begin_anew(at_ns + step_ns)
    then = [*cuts.take(shifted), *cuts.end(int(shifted.time_ns[-1]) // SECOND_NS * SECOND_NS + SECOND_NS)]
    return [
        *((part.cut.interval.end_ns, part) for part in first),
        *((max(at_ns, part.cut.interval.end_ns - step_ns), part) for part in then),
    ]


def results(path: Path, steps_ns: tuple[int, int]) -> Iterator[Result]:
    """The settled results of both points' parts; both reply to questions."""
    rounds, now_ns, at_ns = Rounds([Ends("A>B", "A", "B")]), EPOCH_NS + 100 * SECOND_NS, EPOCH_NS + 5 * SECOND_NS // 2
    agents = {agent.point: agent for agent in pair(path, RDA)}
    parts = [
        (real_ns, agent.point, part)
        for agent, step_ns in zip(agents.values(), steps_ns, strict=True)
        for real_ns, part in cut(agent.packets, step_ns, at_ns)
    ]
    found: dict[int, Result] = {}
    for _, point, part in sorted(parts, key=lambda one: one[:2]):
        todo = [agents[point].message(part.cut, part.seen)]
        while todo:
            for one in rounds.take(todo.pop(), now_ns):
                if isinstance(one, Result):
                    found[one.interval.start_ns] = one
                elif isinstance(one, Ask):
                    todo.append(agents[one.message.point].answer(one.message))
    return (one for _, one in sorted(found.items()) if one.rank == Rank.SETTLED)


@pytest.mark.parametrize("who", ["upstream", "downstream"])
@pytest.mark.parametrize("step_ns", [5 * SECOND_NS, -2 * SECOND_NS, 300_000_000])
def test_what_a_clock_skipped_is_not_lost(who: str, step_ns: int) -> None:
    """One agent's clock is set: no interval reports loss that is none; those before it are exact."""
    path = Path.made(12, 200, 1, loss=0.0)
    steps_ns = (step_ns, 0) if who == "upstream" else (0, step_ns)
    found = [one for one in results(path, steps_ns) if one.interval.end_ns <= EPOCH_NS + 10 * SECOND_NS]
    assert [one.losses[None].lost for one in found[:1]] == [0.0]
    assert not [one for one in found if one.losses[None].lost]
    skipped = [one for one in found if one.interval.start_ns // SECOND_NS - EPOCH_NS // SECOND_NS in range(2, 7)]
    if step_ns > SECOND_NS:
        assert len(skipped) == 5
        assert {one.losses[None].reason for one in skipped} == {f"the {who} point covered 0 s of 1 s"}
    without = list(results(path, (0, 0)))
    assert [one.losses[None].lost for one in without] == [0.0] * len(without)


def test_intervals_with_nothing_in_common_are_an_outcome_of_their_own() -> None:
    """After the step nothing can be measured: that is not an idle link, so an alert can fire."""
    metrics = Metrics()
    for one in results(Path.made(12, 200, 1, loss=0.0), (5 * SECOND_NS, 0)):
        metrics.settled(one.segment, Tally.of(one, None), one.interval)
    text = metrics.text([], {}, 0)[0].decode()
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    outcomes = {one.labels["outcome"]: one.value for one in samples if one.name == "wirelag_intervals_total"}
    assert outcomes["disjoint"] >= 3
    assert outcomes["empty"] == 0


def test_an_agent_notices_a_step(clock: SetClock) -> None:
    steps = Steps()
    assert steps.taken_ns() == 0
    for step_ns in STEPS_NS:
        clock.ahead_ns += step_ns
        assert abs(steps.taken_ns() - step_ns) < SECOND_NS // 1000
        assert steps.taken_ns() == 0
