"""Agents at both ends of a segment that talk until their intervals are settled."""

from collections import Counter
from collections.abc import Callable, Iterable

from tests.support.agent_messages import EPOCH_NS, Agent, Path
from wirelag.protocol.messages import Message, decode, encode
from wirelag.protocol.results import Ask, Done, Ends, Result
from wirelag.protocol.session import MOST_BYTES, Rounds

ENDS = Ends("A>B", "A", "B")
Best = dict[tuple[str, int], Result]
Unanswered = Callable[[Message], bool]


class Talk:
    """Gives messages to rounds; agents answer asks at once. Keeps the best result of each interval."""

    def __init__(self, rounds: Rounds, agents: Iterable[Agent], deaf: Unanswered = lambda ask: False) -> None:
        self.rounds, self.agents, self.deaf = rounds, {agent.point: agent for agent in agents}, deaf
        self.best: Best = {}
        self.asked, self.done = 0, Counter[str]()
        self.now_ns = EPOCH_NS

    def take(self, messages: Iterable[Message]) -> "Talk":
        for message in messages:
            self.now_ns = max(self.now_ns, message.interval.end_ns) + 1000
            waiting = [message]
            while waiting:
                for one in self.rounds.take(waiting.pop(), self.now_ns):
                    waiting += self._heed(one)
        return self

    def wait(self, ns: int) -> "Talk":
        self.now_ns += ns
        answers = [answer for one in self.rounds.pass_time(self.now_ns) for answer in self._heed(one)]
        return self.take(answers)

    def _heed(self, one: Result | Ask | Done) -> list[Message]:
        if isinstance(one, Done):
            self.done.update(one.keys)
        elif isinstance(one, Result):
            place = one.segment, one.interval.start_ns
            if place not in self.best or one.rank >= self.best[place].rank:
                self.best[place] = one
        else:
            self.asked += 1
            ask = decode(encode(one.message))  # as it travels
            if not self.deaf(ask):
                return [decode(encode(self.agents[ask.point].answer(ask)))]
        return []

    def said(self) -> dict[tuple[str, int], tuple[object, ...]]:
        """The comparable part of a result."""
        return {
            place: (
                one.rank,
                one.reason,
                *(
                    (key, crossing.sent, crossing.received, crossing.used, crossing.sum_ns, one.losses[key])
                    for key, crossing in sorted(one.crossings.items(), key=str)
                ),
            )
            for place, one in self.best.items()
        }


def talk(agents: Iterable[Agent], deaf: Unanswered = lambda ask: False, most_bytes: int = MOST_BYTES) -> Talk:
    return Talk(Rounds([ENDS], most_bytes=most_bytes), agents, deaf)


def both(agents: tuple[Agent, Agent], count: int, first: int = 0) -> list[Message]:
    return [message for two in zip(*(agent.messages(first, count) for agent in agents), strict=True) for message in two]


def is_true(result: Result, path: Path) -> None:
    """The result equals the packets exactly."""
    sent = path.during(result.interval.start_ns, result.interval.end_ns)
    crossing, loss = result.crossings[None], result.losses[None]
    delays_ns = path.delays_ns[sent & ~path.lost]
    assert (crossing.used, crossing.sum_ns) == (len(delays_ns), int(delays_ns.sum()))
    lost = int((sent & path.lost).sum())
    assert (loss.lost, loss.low, loss.high) == (lost, lost, lost)
