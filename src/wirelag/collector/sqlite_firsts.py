"""First results: each waits here for the one that replaces it, mostly a second later; if none comes, it is written.

Laws. What waits follows from messages that stay in the file until a better result is there: nothing is lost with the
process. What a transaction changes here counts once it is committed. One thread writes, any thread reads: who reads the
file, too, looks here first, and finds a result twice rather than not at all. A sum is made of what the file has: so a
result whose minute may be summed waits no longer. Memory: MOST results.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wirelag.collector.block import Block
from wirelag.collector.store import HOUR_NS, Row
from wirelag.collector.tally import Tally
from wirelag.protocol.results import Rank

MOST: Final = 1 << 13
TURNS: Final = 3  # that a result waits

Where = tuple[str, str, int, int]  # segment, class, length and start


class Firsts:
    """By place."""

    def __init__(self) -> None:
        self._kept: dict[Where, tuple[int, Tally]] = {}  # with its turn
        self._changed: dict[Where, tuple[int, Tally] | None] = {}  # by this transaction
        self._turn = 0

    def put(self, where: Where, tally: Tally) -> bool:
        """Keep a result; False if there is no room."""
        if len(self._kept) + len(self._changed) >= MOST:
            return False
        self._changed[where] = self._turn, tally
        return True

    def drop(self, where: Where) -> None:
        """Forget a result: the file has it, or a better one."""
        self._changed[where] = None

    def get(self, where: Where) -> Tally | None:
        """What this transaction knows."""
        found = self._changed[where] if where in self._changed else self._kept.get(where)
        return None if found is None else found[1]

    def due(self, before_ns: int) -> Iterator[tuple[Where, Tally]]:
        """Those that have waited long enough, or begin before this time, as another turn begins."""
        self._turn += 1
        for where, (turn, tally) in list(self._kept.items()):
            if (turn <= self._turn - TURNS or where[3] < before_ns) and where not in self._changed:
                yield where, tally

    def all(self) -> list[tuple[Where, Tally]]:
        """All that wait."""
        return [(where, tally) for where, (_, tally) in list(self._kept.items())]

    def commit(self) -> None:
        """What was changed counts."""
        for where, found in self._changed.items():
            if found is None:
                self._kept.pop(where, None)
            else:
                self._kept[where] = found
        self._changed.clear()

    def forget(self) -> None:
        """The transaction is undone."""
        self._changed.clear()

    def block(self, segment: str, key: str, length_ns: int) -> Block:
        """Those of one series and length, in order of time."""
        found = {where[3]: tally for where, tally in self.all() if where[:3] == (segment, key, length_ns)}
        return Block.of((start_ns, Rank.FIRST, found[start_ns]) for start_ns in sorted(found))

    def lengths_ns(self, segment: str, key: str) -> set[int]:
        """The lengths of those of a series."""
        return {where[2] for where, _ in self.all() if where[:2] == (segment, key)}

    def latest(self, since_ns: int) -> list[Row]:
        """Those of segments since then, but hours."""
        return [
            Row(segment, None, start_ns, length_ns, Rank.FIRST, tally)
            for (segment, key, length_ns, start_ns), tally in self.all()
            if not key and length_ns != HOUR_NS and start_ns >= since_ns
        ]


def latest_in(rows: list[Row]) -> list[Row]:
    """The latest row of each segment and length; of two of one time, the one that knows more."""
    ordered = sorted(rows, key=lambda one: (one.start_ns, one.rank))
    return list({(one.segment, one.length_ns): one for one in ordered}.values())
