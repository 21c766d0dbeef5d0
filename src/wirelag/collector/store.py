"""The store that a collector needs: messages until they are used, and results, rolled up.

Laws. What `commit` returned from survives kill -9 and a power cut. A result of an interval is kept once, by (segment,
class, length, beginning); one that knows less never takes the place of one that knows more, so a message that arrives
again changes nothing. Minutes are sums of intervals and hours of minutes: nothing is counted twice. Each length is kept
for its own time, and the store stays within its size: beyond it the oldest single intervals go first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from wirelag.collector.tally import Tally
from wirelag.packets.intervals import Interval
from wirelag.protocol.results import Rank

SECOND_NS: Final = 10**9
MINUTE_NS: Final = 60 * SECOND_NS
HOUR_NS: Final = 60 * MINUTE_NS
DAY_NS: Final = 24 * HOUR_NS
SUMMED: Final = (MINUTE_NS, HOUR_NS)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long results are kept, by how much time one covers; and messages that wait for their other half."""

    single_ns: int = 2 * DAY_NS
    minutes_ns: int = 60 * DAY_NS
    hours_ns: int = 730 * DAY_NS
    messages_ns: int = DAY_NS
    most_bytes: int = 10 << 30


@dataclass(frozen=True, slots=True)
class Row:
    """A result as it was kept."""

    segment: str
    key: str | None
    start_ns: int
    length_ns: int
    rank: Rank
    tally: Tally

    def to_json(self) -> dict[str, Any]:
        """As the API has it."""
        return self.tally.to_json(self.start_ns, self.length_ns, self.rank >= Rank.ALONE)


class Put(NamedTuple):
    """How much was known of an interval before, and whether what came took its place."""

    before: Rank | None
    taken: bool


class Store(Protocol):
    """One thread writes, within `begin` and `commit`; any thread reads."""

    errors: ClassVar[tuple[type[Exception], ...]]
    """What it raises where it cannot read or write."""
    path: str
    """Its name, for messages."""
    beyond: int
    """Results of classes for which there was no room."""
    failed: Callable[[str, Exception], None]
    """Is told of sums that cannot be made."""

    def close(self) -> None:
        """Release it."""
        ...

    # ---- writing ----

    def begin(self) -> None:
        """What follows is kept together, or not at all."""
        ...

    def commit(self) -> None:
        """Keep it; then it is safe."""
        ...

    def rollback(self) -> None:
        """Undo all since `begin`."""
        ...

    def put_message(self, key: str, point: str, start_ns: int, data: bytes, now_ns: int) -> None:
        """Keep a message until it is no longer needed."""
        ...

    def drop_messages(self, keys: Iterable[str]) -> None:
        """These are no longer needed."""
        ...

    def messages_about(self, start_ns: int, points: Iterable[str], around_ns: int = 0) -> list[bytes]:
        """Unused messages of these points about intervals that begin at `start_ns`, or at most `around_ns` from it."""
        ...

    def newest_message_ns(self) -> int | None:
        """The beginning of the latest interval of which a message is kept."""
        ...

    def messages_since(self, start_ns: int) -> Iterator[bytes]:
        """Unused messages about intervals from then on: synopses before answers, in order of arrival."""
        ...

    def put(self, segment: str, key: str | None, interval: Interval, rank: Rank, tally: Tally) -> Put:
        """Keep a result, unless one is there that knows more."""
        ...

    def rank_of(self, segment: str, interval: Interval) -> Rank | None:
        """How much is known of an interval."""
        ...

    def put_agents(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what agents said of themselves."""
        ...

    def agents(self) -> dict[str, dict[str, Any]]:
        """The same, read back."""
        ...

    def put_change(self, at_ns: int, said: Mapping[str, Any]) -> None:
        """Keep a change of the network."""
        ...

    def sum_up(self, now_ns: int) -> int:
        """Make minutes and hours anew whose parts have changed; how many."""
        ...

    def prune(self, now_ns: int) -> None:
        """Drop what is older than it is kept for, and the oldest where the store is too large."""
        ...

    def shrink(self) -> None:
        """Give unused room back; not within `begin` and `commit`."""
        ...

    # ---- reading ----

    def series(self) -> list[tuple[str, str | None]]:
        """Segments and their classes that have results."""
        ...

    def changes(self, times_ns: tuple[int, int], most: int) -> list[dict[str, Any]]:
        """Changes of the network, the latest first."""
        ...

    def lengths_ns(self, segment: str, key: str | None) -> list[int]:
        """The lengths of the intervals that are kept of a series."""
        ...

    def rows(self, segment: str, key: str | None, length_ns: int, times_ns: tuple[int, int], most: int) -> list[Row]:
        """Results of intervals of a length that begin within these times, in order; the latest, if they are more."""
        ...

    @property
    def file_bytes(self) -> int:
        """What it takes on disk."""
        ...
