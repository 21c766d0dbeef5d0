"""What is saved of a damaged store, and how its successor takes its place.

Laws. A damaged file is never deleted: it is renamed, and every row that can be read, from both ends of each table, goes
into its successor. So do results, blocks and messages to which no whole page leads any more, if their checksums are
right (sqlite_pages.py): damage costs the rows of its own page. Only what the file holds may cost a row: where the
system lacks something (file descriptors, room on the disk), the rescue fails as a whole, and the next attempt reads
everything. The successor is complete before the damaged file is moved, and has a name by which the next start finds it:
kill -9 at any step costs nothing.
"""

from __future__ import annotations

import mmap
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from wirelag.collector.block import period_ns
from wirelag.collector.columns import COLUMNS
from wirelag.collector.sqlite_check import checksum
from wirelag.collector.sqlite_file import UNCHECKED, as_text, opened, sync_folder
from wirelag.collector.sqlite_pages import Pages
from wirelag.collector.store import HOUR_NS, MINUTE_NS

_TABLES: Final = ("series", "messages", "agents", "changes", "facts", "stale", "blocks", "results")  # in this order
_RESULT, _BLOCK, _MESSAGE = 5 + len(COLUMNS), 6, 7  # values of a row
_BATCH: Final = 10_000  # rows of a transaction
_FILES: Final = ("", "-wal", "-shm")  # of a store
_LACKING: Final = {
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR,
}  # fmt: skip
_UNREADABLE: Final = {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ}  # a bad sector is damage, too


def rescue(path: str) -> tuple[str, dict[str, int]]:
    """Rename a damaged file and make its successor; returns its new name, and the rows that were saved of each table.

    All connections must be closed.
    """
    made = f"{path}.rescue"
    for end in _FILES:
        Path(made + end).unlink(missing_ok=True)
    saved: dict[str, int] = {}
    with closing(opened(made)) as new:
        with closing(sqlite3.connect(path, isolation_level=None)) as old:  # closing it moves its journal into the file
            old.text_factory = as_text
            for table in _TABLES:
                saved[table] = _save(old, new, table)
        _save_unreached(path, new, saved)
        new.execute("pragma wal_checkpoint(truncate)")
    when = _unused(path)
    os.rename(made, f"{path}.rescued-{when}")
    sync_folder(path)
    finish(path)
    return f"{path}.damaged-{when}", saved


def finish(path: str) -> None:
    """Put the successor of a damaged file in its place, if there is one: a rescue may have been killed before that."""
    folder, begin = Path(path).parent, f"{Path(path).name}.rescued-"
    for name in os.listdir(folder):
        if name.startswith(begin):
            aside = f"{path}.damaged-{name.removeprefix(begin)}"
            for end in _FILES:
                with suppress(FileNotFoundError):  # it was moved before the kill
                    os.rename(path + end, aside + end)
            os.rename(folder / name, path)
            sync_folder(path)


# ---- steps ----


def _unused(path: str) -> str:
    """The time, in a form that no damaged file has in its name yet."""
    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    names = (now, *(f"{now}-{i}" for i in range(2, 1 << 20)))
    return next(name for name in names if not any(Path(f"{path}.damaged-{name}{end}").exists() for end in _FILES))


def _raise_unless_damaged(error: sqlite3.Error) -> None:
    """Pass on an error that is not of what the file holds."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code not in _UNREADABLE and code & 0xFF in _LACKING:
        raise error


def _save(old: sqlite3.Connection, new: sqlite3.Connection, table: str) -> int:
    """Copy the rows of a table from its beginning, and after a damaged place from its end."""
    try:
        there = {row[1] for row in old.execute(f"pragma table_info({table})")}  # an older version has fewer
    except sqlite3.Error as error:
        _raise_unless_damaged(error)
        return 0
    if not there:  # an older version does not have it
        return 0
    columns = [row[1:6:4] for row in new.execute(f"pragma table_info({table})") if row[1] in {*there, "crc"}]
    names = [name for name, _ in columns]
    key = [name for name, place in sorted(columns, key=lambda one: one[1]) if place]
    read = ", ".join(name if name in there else str(UNCHECKED) for name in names)
    put = f"insert or ignore into {table} ({', '.join(names)}) values ({', '.join('?' * len(columns))})"
    saved = 0
    for order, beyond in (("asc", ">"), ("desc", "<")):
        batch: list[Sequence[Any]] = []
        broken = False
        for row in _rows(old, f"select {read} from {table}", key, [names.index(one) for one in key], order, beyond):
            if row is None:
                broken = True
                continue
            batch.append(row)
            if len(batch) > _BATCH:
                saved += _put(new, put, batch)
                batch = []
        saved += _put(new, put, batch)
        if not broken:
            break
    return saved


def _save_unreached(path: str, new: sqlite3.Connection, saved: dict[str, int]) -> None:
    """Copy results and messages that only their own page still has, and sum up again what they are parts of."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        pages = Pages(data)
        names = _Names(pages, new)
        new.execute("begin")
        for one in _unnamed(new):
            saved["series"] += names.name(one)
        for number in pages:
            ends = list(pages.rows(number, ends=True))
            if all(_is_there(new, row) for row in ends):
                continue
            for row in pages.rows(number):
                if len(row) == _RESULT and names.is_whole(row):
                    saved["series"] += names.name(row)
                    saved["results"] += _insert(new, "results", row)
                    _mark(new, *row[:3])
                elif len(row) == _BLOCK and names.is_whole(row):
                    saved["series"] += names.name(row)
                    saved["blocks"] += _insert(new, "blocks", row)
                    for start_ns in range(row[2], row[2] + period_ns(row[1]), max(MINUTE_NS, row[1])):
                        _mark(new, row[0], row[1], start_ns)
                elif len(row) == _MESSAGE and checksum((*row[:3], row[4])) == row[-1]:
                    saved["messages"] += _insert(new, "messages", row)
        new.execute("commit")


class _Names:
    """The names of series. They have no checksum: the right one is that with which a result is whole."""

    def __init__(self, pages: Pages, new: sqlite3.Connection) -> None:
        self._pages, self._new = pages, new
        self._saved = {number: (segment, key) for number, segment, key in new.execute("select * from series")}

    @cached_property
    def _found(self) -> dict[Any, set[tuple[str, str]]]:
        """Those that pages have."""
        names: dict[Any, set[tuple[str, str]]] = defaultdict(set)
        for row in (row for number in self._pages for row in self._pages.rows(number)):
            match row:
                case [int(), None, str(), str()]:  # of the table, after its rowid
                    names[row[0]].add((row[2], row[3]))
                case [str(), str(), int()]:  # of its index
                    names[row[2]].add((row[0], row[1]))
        return names

    def _of(self, row: Sequence[Any]) -> tuple[str, str] | None:
        saved = self._saved.get(row[0])
        names = sorted(self._found[row[0]]) if saved is None else [saved]
        return next((one for one in names if checksum((*one, *row[1:-1])) == row[-1]), None)

    def is_whole(self, row: Sequence[Any]) -> bool:
        """Whether a result is."""
        return self._of(row) is not None

    def name(self, row: Sequence[Any]) -> int:
        """Save the name of the series of a result, if it was not; returns how many were saved."""
        name = self._of(row)
        if name is None or row[0] in self._saved:
            return 0
        self._saved[row[0]] = name
        return _insert(self._new, "series", [row[0], *name])


def _is_there(new: sqlite3.Connection, row: list[Any]) -> bool:
    """Whether a row was saved, or is neither a result, a block nor a message by its width."""
    if len(row) in (_RESULT, _BLOCK):
        table = "results" if len(row) == _RESULT else "blocks"
        query, key = f"select 1 from {table} where series = ? and length_ns = ? and start_ns = ?", row[:3]
    elif len(row) == _MESSAGE:
        query, key = "select 1 from messages where key = ?", row[:1]
    else:
        return True
    return new.execute(query, key).fetchone() is not None


def _unnamed(new: sqlite3.Connection) -> Iterator[Sequence[Any]]:
    """A result of each series without a name, or a block."""
    for table in ("results", "blocks"):
        query, last = f"select * from {table} where series > ? order by series limit 1", -1
        while (row := new.execute(query, (last,)).fetchone()) is not None:
            last = row[0]
            if new.execute("select 1 from series where id = ?", (last,)).fetchone() is None:
                yield row


def _mark(new: sqlite3.Connection, series: int, length_ns: int, start_ns: int) -> None:
    """Sum up again what a result is a part of."""
    for longer_ns in (MINUTE_NS, HOUR_NS):
        if length_ns < longer_ns:
            _insert(new, "stale", [longer_ns, start_ns // longer_ns * longer_ns, series])


def _insert(new: sqlite3.Connection, table: str, row: Sequence[Any]) -> int:
    return new.execute(f"insert or ignore into {table} values ({', '.join('?' * len(row))})", row).rowcount


def _rows(
    old: sqlite3.Connection, query: str, key: Sequence[str], places: Sequence[int], order: str, beyond: str
) -> Iterator[Sequence[Any] | None]:
    """Rows in the order of their key, up to a damaged place, for which it yields None."""
    in_order = f"order by {', '.join(f'{name} {order}' for name in key)}"
    last: Sequence[Any] | None = None
    try:
        for last in old.execute(f"{query} {in_order}"):
            yield last
    except sqlite3.Error as error:
        _raise_unless_damaged(error)
        yield None
        try:  # Python reads a row ahead: it has not given the last one that is whole
            after = [] if last is None else [last[place] for place in places]
            where = f"where ({', '.join(key)}) {beyond} ({', '.join('?' * len(key))})" if after else ""
            yield from old.execute(f"{query} {where} {in_order} limit 1", after).fetchall()
        except sqlite3.Error as second:
            _raise_unless_damaged(second)


def _put(new: sqlite3.Connection, put: str, rows: Sequence[Sequence[Any]]) -> int:
    """Store rows in a transaction; returns how many were not there."""
    new.execute("begin")
    saved = sum(new.execute(put, row).rowcount for row in rows)
    new.execute("commit")
    return saved
