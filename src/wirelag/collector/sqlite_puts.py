"""Rows on their way into the file: those of a transaction wait here, and go in a few statements.

Laws. What waits is written before its table is read, and before the transaction ends; nothing of it outlives one that
is undone. A statement gives up the interpreter's lock and waits for it again, which costs more than a row. Memory: at
most MOST_BYTES of messages besides the last one, a row for each result of the transaction, and a time for each of
MOST_NEWEST series.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from wirelag.collector.columns import COLUMNS
from wirelag.collector.sqlite_reading import newest_of

MOST: Final = 32  # rows of a statement, or half as many, and so on: so few texts are prepared once
MOST_BYTES: Final = 1 << 20
MOST_NEWEST: Final = 1 << 16
RESULTS: Final = f"insert or replace into results (series, length_ns, start_ns, rank, {', '.join(COLUMNS)}, crc) values"
AGENTS: Final = "insert or replace into agents values"
_MESSAGES: Final = "into messages (key, point, start_ns, arrived_ns, body, bytes, crc) values"

Row = tuple[Any, ...]
Where = tuple[int, int, int]  # a result: its series, its length, and its start


def put(base: sqlite3.Connection, into: str, rows: Sequence[Row]) -> Iterator[tuple[Sequence[Row], int]]:
    """Write rows; yields those of each statement, and how many of them it has changed."""
    for some in _parts(rows):
        values = [value for row in some for value in row]
        yield some, base.execute(_text(f"{into} ", len(some[0]), len(some)), values).rowcount


class Waiting:
    """The rows of one transaction. `is_kept`: whether a message of this key is in the file, and whole."""

    def __init__(self, base: sqlite3.Connection, is_kept: Callable[[str], bool]) -> None:
        self._base, self._is_kept = base, is_kept
        self._messages: dict[str, Row] = {}
        self._bytes = 0
        self._dropped: dict[str, None] = {}
        self.results: dict[Where, Row] = {}
        self._newest_ns: dict[tuple[int, int], int] = {}  # by series and length: no result begins later

    def message(self, row: Row) -> None:
        """Keep a message, the first with its key."""
        if row[0] not in self._messages:
            self._messages[row[0]] = row
            self._bytes += len(row[4])
            if self._bytes >= MOST_BYTES:
                self.write_messages()

    def drop(self, keys: Iterable[str]) -> None:
        """Drop messages, whether they wait here or not."""
        for key in keys:
            if (row := self._messages.pop(key, None)) is not None:
                self._bytes -= len(row[4])
            self._dropped[key] = None

    def result(self, where: Where, row: Row) -> None:
        """Keep a result in place of any other of its interval."""
        self.results[where] = row
        if (newest_ns := self._newest_ns.get(where[:2])) is not None:
            self._newest_ns[where[:2]] = max(newest_ns, where[2])

    def newest_ns(self, series: int, length_ns: int) -> int:
        """A time after which no result of a series begins, here or in the file; -1 if there is none."""
        if (series, length_ns) not in self._newest_ns:
            if len(self._newest_ns) >= MOST_NEWEST:
                self._newest_ns.clear()
            waiting = [where[2] for where in self.results if where[:2] == (series, length_ns)]
            self._newest_ns[series, length_ns] = max(newest_of(self._base, series, length_ns), *waiting, -1)
        return self._newest_ns[series, length_ns]

    def forget(self) -> None:
        """The transaction is undone."""
        self._messages.clear()
        self._dropped.clear()
        self.results.clear()
        self._newest_ns.clear()
        self._bytes = 0

    def write(self) -> None:
        """Write all that waits."""
        self.write_messages()
        for _ in put(self._base, RESULTS, list(self.results.values())):
            pass
        self.results.clear()

    def write_messages(self) -> None:
        """Drop what is to be dropped, and write what came since."""
        for keys in _parts(list(self._dropped)):
            self._base.execute(f"delete from messages where key in {_places(len(keys))}", keys)
        self._dropped.clear()
        for rows, changed in put(self._base, f"insert or ignore {_MESSAGES}", list(self._messages.values())):
            for row in rows if changed < len(rows) else ():  # some were there: the disk may have changed them
                if not self._is_kept(row[0]):
                    self._base.execute(_text(f"replace {_MESSAGES} ", len(row), 1), row)
        self._messages.clear()
        self._bytes = 0


def _parts(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """At most MOST at a time, and always a power of 2."""
    begin = 0
    while begin < len(rows):
        size = min(MOST, 1 << (len(rows) - begin).bit_length() - 1)
        yield rows[begin : begin + size]
        begin += size


@lru_cache(maxsize=64)
def _text(into: str, columns: int, rows: int) -> str:
    return into + ", ".join([_places(columns)] * rows)


def _places(count: int) -> str:
    return f"({', '.join('?' * count)})"
