"""The store of a collector: messages until they are used, and results, rolled up.

Laws. Data survives kill -9 and a power cut once `commit` has returned; only a first result may be lost with the
process, since it follows from messages that are there. A result of an interval is kept once, by (segment, class,
length, start); one that knows less never replaces one that knows more, so a message that arrives again changes nothing.
Minutes are sums of intervals and hours of minutes: nothing is counted twice. Each length is kept for its own time, and
the store stays within its size: beyond it waiting messages go first, then the oldest single intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from wirelag.collector.block import Block
from wirelag.collector.tally import Tally
from wirelag.errors import WirelagError
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Rank, Result

SECOND_NS: Final = 10**9
MINUTE_NS: Final = 60 * SECOND_NS
HOUR_NS: Final = 60 * MINUTE_NS
DAY_NS: Final = 24 * HOUR_NS
SUMMED: Final = (MINUTE_NS, HOUR_NS)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long to keep results, by the time each covers, and messages without their counterpart."""

    single_ns: int = 2 * DAY_NS
    minutes_ns: int = 60 * DAY_NS
    hours_ns: int = 730 * DAY_NS
    messages_ns: int = DAY_NS
    most_bytes: int = 10 << 30

    def to_json(self) -> dict[str, Any]:
        """As the API serves it; times in seconds."""
        times = {"intervals": self.single_ns, "minutes": self.minutes_ns, "hours": self.hours_ns}
        return {name: age_ns / 1e9 for name, age_ns in times.items()} | {"bytes": self.most_bytes}

    @property
    def waiting_bytes(self) -> int:
        """The part of it that messages without their counterpart may take."""
        return self.most_bytes // 4


@dataclass(frozen=True, slots=True)
class Row:
    """A stored result."""

    segment: str
    key: str | None
    start_ns: int
    length_ns: int
    rank: Rank
    tally: Tally

    def to_json(self) -> dict[str, Any]:
        """The result as the API serves it."""
        return self.tally.to_json(self.start_ns, self.length_ns, self.rank >= Rank.ALONE)


class Put(NamedTuple):
    """How much was known of an interval before, and whether the new result replaced it."""

    before: Rank | None
    taken: bool


class StoreUnavailable(WirelagError):  # noqa: N818
    """A store that cannot be opened now, but perhaps later: the disk is full, or read-only."""


class Fenced(WirelagError):  # noqa: N818
    """Another collector has taken over these partitions: nothing of this transaction is stored."""

    def __init__(self, parts: Iterable[int]) -> None:
        self.parts = frozenset(parts)
        super().__init__(f"another collector has taken over partitions {', '.join(map(str, sorted(self.parts)))}")


@dataclass(slots=True)
class Pruned:
    """What was deleted for want of room, and why nothing is deleted by age."""

    messages: int = 0
    results: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Kept:
    """A result, its figures of the whole segment, the rank before, and whether it is more complete."""

    result: Result
    tally: Tally
    before: Rank | None
    taken: bool

    @property
    def segment(self) -> str:
        """Its segment."""
        return self.result.segment

    @cached_property
    def report(self) -> dict[str, Any]:
        """The JSON of the API: made for the first who wants it."""
        interval = self.result.interval
        return self.tally.to_json(interval.start_ns, interval.length_ns, self.result.rank >= Rank.ALONE)


class Store(Protocol):
    """One thread writes, within `begin` and `commit`; any thread reads."""

    errors: ClassVar[tuple[type[Exception], ...]]
    """The errors it raises when it cannot read or write."""
    path: str
    """Its name, for messages."""
    beyond: int
    """Results of classes beyond the limit."""
    failed: Callable[[str, Exception], None]
    """Called for a sum that fails."""
    damaged: Callable[[str], None]
    """Called once for each row that the disk has changed, from any thread: it is left out."""
    rescued: str | None
    """What was done about a damaged store when it was opened."""

    def close(self) -> None:
        """Close the store."""
        ...

    def retain(self, retention: Retention) -> None:
        """Keep results for other times from now on; from any thread."""
        ...

    @property
    def retention(self) -> Retention:
        """How long it keeps what."""
        ...

    # ---- writing ----

    def begin(self) -> None:
        """Begin a transaction: all of it is kept, or nothing."""
        ...

    def commit(self) -> None:
        """Commit; once this returns, the data is safe. `Fenced` if another collector has taken over."""
        ...

    def rollback(self) -> None:
        """Undo all since `begin`."""
        ...

    def put_message(
        self, key: str, point: str, start_ns: int, data: bytes, now_ns: int, segment: str | None = None
    ) -> None:
        """Keep a message until it is no longer needed; `segment`: what it is about, None for all of its point."""
        ...

    def drop_messages(self, keys: Iterable[str]) -> None:
        """Drop messages that are no longer needed."""
        ...

    def messages_about(
        self, start_ns: int, points: Iterable[str], around_ns: int = 0, known: Callable[[str], bool] = ...
    ) -> Iterator[bytes]:
        """Unused messages of these points about intervals that begin at `start_ns`, or at most `around_ns` from it.

        Those whose keys are `known` are not read.
        """
        ...

    def newest_message_ns(self) -> int | None:
        """The start of the latest interval with a stored message."""
        ...

    def messages_since(self, start_ns: int) -> Iterator[bytes]:
        """Unused messages about intervals from then on: synopses before replies, in order of arrival."""
        ...

    def put(
        self, segment: str, key: str | None, interval: Interval, rank: Rank, tally: Tally, most_classes: int = ...
    ) -> Put:
        """Keep a result, unless the stored one knows more, or the segment has too many classes."""
        ...

    def rank_of(self, segment: str, interval: Interval) -> Rank | None:
        """How much is known of an interval."""
        ...

    def put_agents(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the status of agents."""
        ...

    def agents(self) -> dict[str, dict[str, Any]]:
        """The same, read back."""
        ...

    def drop_agent(self, point: str) -> None:
        """Forget the status of an agent."""
        ...

    def put_change(self, at_ns: int, said: Mapping[str, Any]) -> None:
        """Keep a change of the network."""
        ...

    def sum_up(self, now_ns: int) -> int:
        """Rebuild minutes and hours whose parts have changed; returns how many."""
        ...

    def prune(self, now_ns: int) -> Pruned:
        """Delete what is past its retention, and the oldest if the store is too large; in any thread, not in two."""
        ...

    def check(self) -> None:
        """Raise an error if what is stored is damaged anywhere; in any thread, not in two."""
        ...

    def is_damage(self, error: Exception) -> bool:
        """Whether an error means that what is stored is damaged."""
        ...

    def rescue(self, error: Exception) -> str | None:
        """If an error means damage, go on with all that can be read; returns what was done. Not within `begin`."""
        ...

    # ---- reading ----

    def series(self) -> list[tuple[str, str | None]]:
        """Segments and their classes that have results."""
        ...

    def changes(self, times_ns: tuple[int, int], most: int) -> list[dict[str, Any]]:
        """Changes of the network, the latest first."""
        ...

    def lengths_ns(self, segment: str, key: str | None) -> list[int]:
        """The lengths of a series' stored intervals."""
        ...

    def latest(self, since_ns: int) -> list[Row]:
        """The latest result since then of each segment and length but hours, all at once; not those in blocks."""
        ...

    def block(self, segment: str, key: str | None, length_ns: int, times_ns: tuple[int, int], most: int) -> Block:
        """Results of one length that begin within these times, in order; the latest, if there are too many."""
        ...

    def rows(self, segment: str, key: str | None, length_ns: int, times_ns: tuple[int, int], most: int) -> list[Row]:
        """The same as rows."""
        ...

    @property
    def file_bytes(self) -> int:
        """Bytes on disk."""
        ...


def rows_in(block: Block, segment: str, key: str | None, length_ns: int) -> list[Row]:
    """The rows of a block."""
    return [Row(segment, key, start_ns, length_ns, Rank(rank), tally) for start_ns, rank, tally in block.rows()]


def is_postgres(store: str) -> bool:
    """Whether a store is a database of a PostgreSQL server, and not a file."""
    return store.startswith(("postgresql://", "postgres://"))


def next_of(stored: Iterator[bytes], most: int, most_bytes: int) -> Iterator[bytes]:
    """The next messages, at most as many; the one that reaches `most_bytes` is the last."""
    size = 0
    for data in islice(stored, most):
        yield data
        size += len(data)
        if size >= most_bytes:
            return
