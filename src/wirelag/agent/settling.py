"""Both ends of a way through this router into results, here: the collector gets figures, not synopses. No I/O.

Law: what the collector does for two points (protocol/session.py) is done here for the two ends of a way, with the same
rules: the same delimiters or clock, rounds, neighbours and loss. Both ends have one clock. Memory: that of what waits,
MOST_BYTES at most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from wirelag.agent.composing import composed
from wirelag.agent.cutting import CutPart
from wirelag.agent.history import History
from wirelag.protocol.inside import ONE_CLOCK, message_of
from wirelag.protocol.messages import Message, decode
from wirelag.protocol.places import SIDES
from wirelag.protocol.results import Ask, Ends, Outcome, Rank, Result
from wirelag.protocol.session import LINGER_NS, Rounds
from wirelag.protocol.terms import Terms

MOST_BYTES: Final = 64 << 20


class Settling:
    """Parts of both ends become messages with results. Threads may share it."""

    def __init__(self, point: str, terms: Terms, past_bytes: int, began_ns: int) -> None:
        self._point, self._terms = point, terms
        self._past = {end: History(end, past_bytes // 2, began_ns) for end in SIDES}
        self._rounds = Rounds((), most_bytes=MOST_BYTES)
        self._ends: dict[str, Ends] = {}
        self._lock = threading.Lock()

    def take(self, parts: Iterable[CutPart]) -> list[Message]:
        """Take in what ends of ways kept of intervals; return the results that are known by it."""
        with self._lock:
            return [message for part in parts for message in self._take(part)]

    def _take(self, part: CutPart) -> list[Message]:
        segment, end = part.measured.segment, part.measured.end
        assert segment is not None
        assert end is not None
        if segment not in self._ends:
            self._ends[segment] = Ends(segment, *SIDES)
            self._rounds.measure(self._ends.values(), named_by_agents=False)
        if part.measured.terms.estimator.can.second_round:
            self._past[end].keep(part)
        interval, terms = part.cut.interval, part.measured.terms
        about = Message("synopsis", end, segment, interval, terms, ONE_CLOCK, part.seen, (), time.time_ns())
        now_ns = time.monotonic_ns()
        return self._settled(self._rounds.take(composed(part, about, self._past[end]), now_ns), now_ns)

    def pass_time(self, later_ns: int = 0) -> list[Message]:
        """Settle what has waited too long for its neighbours; `later_ns`: as if so much time had passed."""
        with self._lock:
            now_ns = time.monotonic_ns() + later_ns
            return self._settled(self._rounds.pass_time(now_ns), now_ns)

    def end(self) -> list[Message]:
        """Settle all that waits: nothing more will come."""
        return self.pass_time(2 * LINGER_NS)

    def _settled(self, outcomes: Iterable[Outcome], now_ns: int) -> list[Message]:
        """Results that are final; questions are answered at once."""
        waiting, found = deque(outcomes), list[Message]()
        while waiting:
            one = waiting.popleft()
            if isinstance(one, Ask):
                data, _ = self._past[one.message.point].answer(one.message)
                waiting.extend(self._rounds.take(decode(data), now_ns))
            elif isinstance(one, Result) and one.rank >= Rank.ALONE and one.crossings and None not in one.seen:
                found.append(message_of(one, self._point, self._terms, time.time_ns()))
        return found
