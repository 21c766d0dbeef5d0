"""How results are read from the file: rows, and the blocks of those that are settled (sqlite_packing.py).

Laws. A result is in a row, in a block, or in both: then the one that knows more counts. What the disk has changed is
left out and told, a row or a block. Everything is found by the primary key.
"""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from wirelag.collector.block import Block, knows_more, least_ns, period_ns
from wirelag.collector.columns import COLUMNS, tally_of
from wirelag.collector.packing import unpacked
from wirelag.collector.sqlite_check import checksum, is_whole, of_block, of_result
from wirelag.collector.store import Row
from wirelag.collector.tally import Tally
from wirelag.protocol.results import Rank

Told = Callable[[str], None]
Name = tuple[str, str]  # of a series: segment and class
_RANKS: Final = frozenset(map(int, Rank))
_RESULTS: Final = (
    f"select start_ns, rank, {', '.join(COLUMNS)}, crc from results where series = ? and length_ns = ? and "
)
_ROW: Final = f"{_RESULTS} start_ns = ?"
_BLOCK: Final = "select count, body, crc from blocks where series = ? and length_ns = ? and start_ns = ?"
_ROWS: Final = f"{_RESULTS} start_ns >= ? and start_ns < ? order by start_ns desc limit ?"
_BLOCKS: Final = (
    "select start_ns, count, body, crc from blocks where series = ? and length_ns = ? "
    "and start_ns > ? and start_ns < ? order by start_ns desc"
)
_NEWEST: Final = "select max(start_ns) from {} where series = ? and length_ns = ?"
_LENGTHS: Final = (
    "select min(length_ns) from (select min(length_ns) as length_ns from results where series = ?1 and length_ns > ?2 "
    "union all select min(length_ns) from blocks where series = ?1 and length_ns > ?2)"
)
_LATEST: Final = f"""
with recursive found (series, length_ns) as (
    select id, (select min(length_ns) from results where series = id) from series where class = ''
    union all select series, (
        select min(length_ns) from results r where r.series = found.series and r.length_ns > found.length_ns
    ) from found where length_ns is not null
)
select segment, length_ns, start_ns, rank, {", ".join(COLUMNS)}, crc
from found join results using (series, length_ns) join series on id = series
where length_ns <> ? and start_ns >= ? and start_ns = (
    select max(start_ns) from results r where r.series = found.series and r.length_ns = found.length_ns
)
"""


def result_in(name: Name, length_ns: int, row: Sequence[Any], told: Told) -> Tally | None:
    """The result of a row: start, rank, columns and checksum; None if the disk has changed it."""
    *values, crc = row
    whole = is_whole((*name, length_ns, *values), crc) and values[1] in _RANKS
    found = tally_of(values[2:]) if whole else None
    if found is None:
        told(of_result(name[0], values[0]))
    return found


def block_in(name: Name, length_ns: int, start_ns: Any, stored: Sequence[Any], told: Told) -> Block | None:
    """A block of its count, bytes and checksum; None if the disk has changed it."""
    count, body, crc = stored
    try:
        if checksum((*name, length_ns, start_ns, count, body)) == crc:
            return unpacked(body)
    except ValueError:
        pass
    told(of_block(name[0], start_ns))
    return None


def newest_of(base: sqlite3.Connection, series: int, length_ns: int) -> int:
    """A time after which nothing is stored of a series begins; -1 if nothing is."""
    (row_ns,) = base.execute(_NEWEST.format("results"), (series, length_ns)).fetchone()
    (block_ns,) = base.execute(_NEWEST.format("blocks"), (series, length_ns)).fetchone()
    found = [-1 if row_ns is None else row_ns, -1 if block_ns is None else block_ns + period_ns(length_ns)]
    return max(found) if all(type(one_ns) is int for one_ns in found) else 1 << 63  # the disk has changed it


def result_of(
    base: sqlite3.Connection, name: Name, series: int, length_ns: int, start_ns: int, told: Told
) -> tuple[int, Tally] | None:
    """What is stored of one interval: its rank, and the result."""
    row, found = base.execute(_ROW, (series, length_ns, start_ns)).fetchone(), None
    if row is not None and (tally := result_in(name, length_ns, row, told)) is not None:
        found = row[1], tally
    first_ns = start_ns // period_ns(length_ns) * period_ns(length_ns)
    stored = base.execute(_BLOCK, (series, length_ns, first_ns)).fetchone()
    if stored is None or (block := block_in(name, length_ns, first_ns, stored, told)) is None:
        return found
    place = bisect_left(block.starts_ns, start_ns)
    if place == len(block) or block.starts_ns[place] != start_ns:
        return found
    packed = block.ranks[place], block.tally(place)
    return packed if found is None or knows_more(*packed, *found) else found


def rows_of(
    base: sqlite3.Connection, name: Name, series: int, length_ns: int, times_ns: tuple[int, int], most: int, told: Told
) -> Block:
    """What is in rows."""
    found = base.execute(_ROWS, (series, length_ns, *times_ns, most)).fetchall()
    whole = [(row[0], row[1], result_in(name, length_ns, row, told)) for row in reversed(found)]
    return Block.of((start_ns, rank, tally) for start_ns, rank, tally in whole if tally is not None)


def results_of(
    base: sqlite3.Connection, name: Name, series: int, length_ns: int, times_ns: tuple[int, int], most: int, told: Told
) -> Block:
    """The results of one length that begin within these times; the latest, if there are too many."""
    rows, count = rows_of(base, name, series, length_ns, times_ns, most, told), 0
    blocks, earliest_ns = [rows], max(times_ns[0], least_ns(rows, most)) - period_ns(length_ns)
    for start_ns, *stored in base.execute(_BLOCKS, (series, length_ns, earliest_ns, times_ns[1])):
        if (block := block_in(name, length_ns, start_ns, stored, told)) is None:
            continue
        blocks.append(block)
        if start_ns >= times_ns[0] and block.starts_ns[-1] < times_ns[1]:
            count += len(block)
        if count >= most:
            break
    return Block.joined(blocks[::-1]).within(times_ns, most)


def latest_of(base: sqlite3.Connection, but_ns: int, since_ns: int, told: Told) -> Iterator[Row]:
    """The latest row since then of each segment and length but one."""
    for segment, length_ns, *row in base.execute(_LATEST, (but_ns, since_ns)):
        if (tally := result_in((segment, ""), length_ns, row, told)) is not None:
            yield Row(segment, None, row[0], length_ns, Rank(row[1]), tally)


def lengths_of(base: sqlite3.Connection, series: int) -> list[int]:
    """The lengths of a series' intervals, by leaps over the primary key."""
    found = [0]
    while (length := base.execute(_LENGTHS, (series, found[-1])).fetchone()[0]) is not None:
        found.append(length)
    return found[1:]


def fields_in(text: Any) -> dict[str, Any] | None:
    """Named values; None if the disk has changed them."""
    try:
        found = json.loads(text)
    except (ValueError, TypeError):
        return None
    return found if isinstance(found, dict) else None
