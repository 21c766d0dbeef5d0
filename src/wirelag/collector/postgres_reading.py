"""How results are read from PostgreSQL, from any thread: on a connection of its own, beside the one that writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from wirelag.collector.block import Block, least_ns, period_ns
from wirelag.collector.columns import COLUMNS, tally_of
from wirelag.collector.packing import unpacked
from wirelag.collector.postgres_tables import BLOCKS, PARTITIONED, connected, run, table_of
from wirelag.collector.store import Row, rows_in
from wirelag.collector.tally import Tally
from wirelag.protocol.results import Rank

NAMES: Final = ", ".join(COLUMNS)
_LATEST: Final = f"""
with recursive lengths (series, length_ns) as (
    select id, (select min(length_ns) from {{table}} where series = id) from series where class = ''
    union all select series, (
        select min(length_ns) from {{table}} t where t.series = lengths.series and t.length_ns > lengths.length_ns
    ) from lengths where length_ns is not null
)
select segment, l.length_ns, r.start_ns, rank, {", ".join(f"r.{name}" for name in COLUMNS)}, beyond
from lengths l join series on id = l.series cross join lateral (
    select * from {{table}} where series = l.series and length_ns = l.length_ns order by start_ns desc limit 1
) r
"""
MOST: Final = 1 << 20  # parts of a sum
Read = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]  # runs a query


class PostgresReader:
    """Reads; a connection that was lost is made again."""

    def __init__(self, url: str, session: str) -> None:
        self._url, self.session = url, session
        self._reading = threading.Lock()

    def connect(self) -> None:
        """Open the connection."""
        self._read_base = connected(self._url, self.session)

    def end(self) -> None:
        """Close the connection, once nobody reads."""
        with self._reading:
            self._read_base.close()

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._reading:
            if self._read_base.closed or self._read_base.broken:
                self._read_base = connected(self._url, self.session)
            return run(self._read_base, query, values).fetchall()

    def series(self) -> list[tuple[str, str | None]]:
        """Segments and their classes that have results."""
        rows = self._read('select segment, class from series order by segment collate "C", class collate "C"')
        return [(segment, key or None) for segment, key in rows]

    def changes(self, times_ns: tuple[int, int], most: int) -> list[dict[str, Any]]:
        """Changes of the network, the latest first."""
        query = "select said from changes where at_ns >= %s and at_ns < %s order by at_ns desc limit %s"
        return [json.loads(said) for (said,) in self._read(query, (*times_ns, most))]

    def lengths_ns(self, segment: str, key: str | None) -> list[int]:
        """The lengths of a series' stored intervals."""
        least = " union all ".join(
            f"select min(length_ns) from {table} where series = s.id and length_ns > last" for table in PARTITIONED
        )
        query = (
            "with recursive s as (select id from series where segment = %s and class = %s), "
            "found (last) as (select 0::bigint union all "
            f"select (select min(min) from ({least}) each) from found, s where last is not null) "
            "select last from found where last > 0"
        )
        return [int(length) for (length,) in self._read(query, (plain_text(segment), plain_text(key or "")))]

    def latest(self) -> list[Row]:
        """The latest result of each segment and length but hours, for all segments at once; not those in blocks."""
        found = [row for table in ("singles", "minutes") for row in self._read(_LATEST.format(table=table))]
        return [
            Row(segment, None, start_ns, length_ns, Rank(rank), tally)
            for segment, length_ns, start_ns, rank, *row in found
            if (tally := tally_in(row)) is not None
        ]

    def block(self, segment: str, key: str | None, length_ns: int, times_ns: tuple[int, int], most: int) -> Block:
        """Results of one length that begin within these times, in order; the latest, if there are too many."""
        names = plain_text(segment), plain_text(key or "")
        found = self._read("select id from series where segment = %s and class = %s", names)
        return results_of(self._read, found[0][0], length_ns, times_ns, most) if found else Block.joined([])

    def rows(self, segment: str, key: str | None, length_ns: int, times_ns: tuple[int, int], most: int) -> list[Row]:
        """The same as rows."""
        return rows_in(self.block(segment, key, length_ns, times_ns, most), segment, key, length_ns)


def results_of(read: Read, series: int, length_ns: int, times_ns: tuple[int, int], most: int) -> Block:
    """The results of a series, of rows and of blocks; where both have one, that which knows more."""
    table, where = table_of(length_ns), "where series = %s and length_ns = %s and start_ns"
    query = f"select start_ns, rank, {NAMES}, beyond from {table} {where} >= %s and start_ns < %s"
    rows = block_of(read(f"{query} order by start_ns desc limit %s", (series, length_ns, *times_ns, most))[::-1])
    first_ns = max(times_ns[0], least_ns(rows, most)) // period_ns(length_ns) * period_ns(length_ns)
    query = f"select start_ns, count from {BLOCKS[table]} {where} >= %s and start_ns < %s order by start_ns desc"
    wanted, count = list[int](), 0
    for start_ns, held in read(query, (series, length_ns, first_ns, times_ns[1])):
        if count < most:
            wanted.append(start_ns)
        count += held if times_ns[0] <= start_ns and start_ns + period_ns(length_ns) <= times_ns[1] else 0
    packed: list[tuple[Any, ...]] = []
    if wanted:
        query = f"select body from {BLOCKS[table]} {where} = any(%s) order by start_ns"
        packed = read(query, (series, length_ns, wanted))
    blocks = [unpacked(body) for (body,) in packed] + [rows]
    return Block.joined(blocks).within(times_ns, most)


def block_of(rows: Iterable[Sequence[Any]]) -> Block:
    """A block of rows: start, rank, columns and what is beyond; without those that are impossible."""
    found = ((row[0], row[1], tally_in(row[2:])) for row in rows)
    return Block.of((start_ns, rank, tally) for start_ns, rank, tally in found if tally is not None)


def packed_result(read: Read, series: int, length_ns: int, start_ns: int) -> tuple[int, Tally] | None:
    """What a block has of an interval: its rank, and the result."""
    query = f"select body from {BLOCKS[table_of(length_ns)]} where series = %s and length_ns = %s and start_ns = %s"
    stored = read(query, (series, length_ns, start_ns // period_ns(length_ns) * period_ns(length_ns)))
    found = Block.joined([unpacked(body).within((start_ns, start_ns + 1), 1) for (body,) in stored])
    return (found.ranks[0], found.tally(0)) if len(found) else None


def sum_of(read: Read, table: str, series: int, within: tuple[int, int], packed: bool) -> tuple[Tally, int]:
    """All results of a table that begin within these times added up, and how many; `packed`: some may be in blocks."""
    where, blocks = "where series = %s and start_ns >= %s and start_ns < %s", dict[int, list[Block]]()
    if packed:
        query = f"select length_ns, body from {BLOCKS[table]} {where}"
        for length, body in read(query, (series, within[0] - period_ns(within[1] - within[0]), within[1])):
            blocks.setdefault(length, []).append(unpacked(body))
    rows: dict[int, list[Sequence[Any]]] = {}
    for length, *row in read(
        f"select length_ns, start_ns, rank, {NAMES}, beyond from {table} {where}", (series, *within)
    ):
        rows.setdefault(length, []).append(row)
    whole, count = Tally(), 0
    for length in sorted({*blocks, *rows}):
        own = block_of(sorted(rows.get(length, []), key=lambda row: int(row[0])))
        found = Block.joined([*blocks.get(length, []), own]).within(within, MOST)
        whole.add(found.sum(0, len(found)))
        count += len(found)
    return whole, count


def tally_in(row: Sequence[Any]) -> Tally | None:
    """The result in a row; None if its values are impossible."""
    *values, beyond = row
    for name, value in (beyond or {}).items():
        values[COLUMNS.index(name)] = value
    return tally_of(values)


def plain_text(text: str) -> str:
    """Text as PostgreSQL can store it: no NUL, no half of a character."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
