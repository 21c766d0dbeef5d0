"""Damage of the store's file: what SQLite itself sees, and rows that the disk has changed.

Laws. Results, blocks of them and messages have a CRC-32 of all their values, and all but messages also of the names of
their segment and class:
a row of which one bit has changed, here or in the table of names, is told from one that was written. Rows of older
versions have none until the first check, which names them (`bare`). Nothing here changes the file. Rows are read a few
at a time, so that no reader holds the journal back.
"""

from __future__ import annotations

import math
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from wirelag.collector.columns import COLUMNS
from wirelag.collector.sqlite_file import UNCHECKED, VERSION, is_damage
from wirelag.units import format_time, many

MOST_LOOKED: Final = 256 << 20  # bytes of a file that is looked over at once
_HALF: Final = 1 << 63
_STEP: Final = 500  # rows of results that are read at once
_STEP_BLOCKS, _STEP_MESSAGES = 8, 8
_RESULTS: Final = f"""
select series, ifnull(segment, ''), ifnull(class, ''), length_ns, start_ns, rank, {", ".join(COLUMNS)}, crc from (
    select * from results where (series, length_ns, start_ns) > (?, ?, ?) order by series, length_ns, start_ns limit ?
) left join series on id = series
"""
_BLOCKS: Final = """
select series, ifnull(segment, ''), ifnull(class, ''), length_ns, start_ns, count, body, crc from (
    select * from blocks where (series, length_ns, start_ns) > (?, ?, ?) order by series, length_ns, start_ns limit ?
) left join series on id = series
"""
_MESSAGES: Final = (
    "select key, point, start_ns, cast(body as blob), crc from messages not indexed where key > ? order by key limit ?"
)


def stored(value: Any) -> Any:
    """A value as SQLite gives it back: no NaN, no -0.0, and integers of more than 63 bits as text."""
    if type(value) is int:
        return value if -_HALF < value < _HALF else str(value)
    if isinstance(value, float):  # also one of numpy
        return None if math.isnan(value) else float(value) + 0.0
    return value


def checksum(values: Iterable[Any]) -> int:
    """The CRC-32 of values as SQLite gives them back: of their text, and of the bytes among them."""
    plain = list(values)
    kinds, found, i = list(map(type, plain)), 0, -1
    for _ in range(kinds.count(bytes)):
        i = kinds.index(bytes, i + 1)
        found, plain[i] = zlib.crc32(plain[i], found), (len(plain[i]),)  # b"" is not 0
    return zlib.crc32(repr(plain).encode(errors="replace"), found)


def is_whole(values: Iterable[Any], crc: int | None) -> bool:
    """Whether these values have this checksum, or are of a version that wrote none."""
    return crc == UNCHECKED or checksum(values) == crc


def check(base: sqlite3.Connection, table: str | None = None) -> None:
    """Raise an error that means damage if SQLite finds any, in a table or in all: then it reads the whole file.

    Not `quick_check`: that does not see rows out of order, nor indexes that lead nowhere, and both hide other rows.
    """
    found = [str(row[0]) for row in base.execute(f"pragma integrity_check({table or 3})")][:3]
    if found != ["ok"]:
        error = sqlite3.DatabaseError("; ".join(" ".join(line.split()) for line in found))
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def changed_rows(
    base: sqlite3.Connection,
    pause: Callable[[float], None] = lambda took_s: None,
    bare: Callable[[str, list[tuple[Any, ...]]], None] = lambda table, rows: None,
) -> Iterator[str]:
    """The rows that the disk has changed, in words; after each step `pause` is told how long it took.

    `bare` is told the rows of a table that have no checksum yet.
    """
    last: tuple[int, ...] | None = -(1 << 63), 0, 0
    while last is not None:
        began_s, rows = time.monotonic(), base.execute(_RESULTS, (*last, _STEP)).fetchall()
        for _, segment, key, *values, crc in rows:
            if not is_whole((segment, key, *values), crc):
                yield of_result(segment, values[1])
        bare("results", [row for row in rows if row[-1] == UNCHECKED])
        keys = [(row[0], *row[3:5]) for row in rows]  # out of order, as `check` sees: it ends here
        last = max((key for key in keys if all(type(one) is int for one in key) and key > last), default=None)
        pause(time.monotonic() - began_s)
    last = -(1 << 63), 0, 0
    while last is not None:
        began_s, rows = time.monotonic(), base.execute(_BLOCKS, (*last, _STEP_BLOCKS)).fetchall()
        for _, segment, key, *values, crc in rows:
            if checksum((segment, key, *values)) != crc:
                yield of_block(segment, values[1])
        keys = [(row[0], *row[3:5]) for row in rows]
        last = max((key for key in keys if all(type(one) is int for one in key) and key > last), default=None)
        pause(time.monotonic() - began_s)
    after: str | None = ""
    while after is not None:
        began_s, rows = time.monotonic(), base.execute(_MESSAGES, (after, _STEP_MESSAGES)).fetchall()
        for *values, crc in rows:
            if not is_whole(values, crc):
                yield of_message(values[0])
        bare("messages", [row for row in rows if row[-1] == UNCHECKED])
        after = max((row[0] for row in rows if row[0] > after), default=None)
        pause(time.monotonic() - began_s)


def of_result(segment: str, start_ns: Any) -> str:
    """The name of a damaged result."""
    when = f"{format_time(start_ns)} UTC" if isinstance(start_ns, int) else "an unknown time"
    return f"a result of {segment or 'an unknown segment'} at {when}"


def of_block(segment: str, start_ns: Any) -> str:
    """The name of a damaged block of results."""
    when = f"{format_time(start_ns)} UTC" if isinstance(start_ns, int) else "an unknown time"
    return f"a block of results of {segment or 'an unknown segment'} from {when}"


def of_message(key: str) -> str:
    """The name of a damaged message."""
    return f"the message {key}"


def looked_over(path: str, running: bool) -> str | None:
    """What is wrong with a file that exists, in words, without a change of it; None if nothing is.

    Beside a `running` collector it is read as a second reader. After one that was killed its journal must be read in
    first, which the next start does. A large file is left to the collector: it takes minutes.
    """
    journal = Path(f"{path}-wal")
    if Path(path).stat().st_size > MOST_LOOKED:
        return "is large: damage is looked for at the start, and once a day"
    if not running and journal.exists() and journal.stat().st_size:
        return "was not closed: damage is looked for at the start"
    try:
        name = f"{Path(path).absolute().as_uri()}?{'mode=ro' if running else 'immutable=1'}"
        with closing(sqlite3.connect(name, uri=True)) as base:
            base.text_factory = lambda data: data.decode(errors="replace")
            check(base)
            (version,) = base.execute("pragma user_version").fetchone()
            found = list(changed_rows(base)) if version == VERSION else []
    except sqlite3.Error as error:
        return f"is damaged ({error})" if is_damage(error) else f"cannot be checked ({error})"
    return f"has {many(len(found), 'row')} that the disk has changed, which are left out: {found[0]}" if found else None
