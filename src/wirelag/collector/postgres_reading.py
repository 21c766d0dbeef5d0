"""How results are read from PostgreSQL, from any thread: on a connection of its own, beside the one that writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any, Final

from wirelag.collector.columns import COLUMNS, tally_of
from wirelag.collector.postgres_tables import LENGTHS, connected, run, table_of
from wirelag.collector.store import Row
from wirelag.collector.tally import Tally
from wirelag.protocol.results import Rank

NAMES: Final = ", ".join(COLUMNS)


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
            f"select min(length_ns) from {table} where series = s.id and length_ns > last" for table in LENGTHS
        )
        query = (
            "with recursive s as (select id from series where segment = %s and class = %s), "
            "found (last) as (select 0::bigint union all "
            f"select (select min(min) from ({least}) each) from found, s where last is not null) "
            "select last from found where last > 0"
        )
        return [int(length) for (length,) in self._read(query, (plain_text(segment), plain_text(key or "")))]

    def rows(self, segment: str, key: str | None, length_ns: int, times_ns: tuple[int, int], most: int) -> list[Row]:
        """Results of one length that begin within these times, in order; the latest, if there are too many."""
        query = (
            f"select start_ns, rank, {NAMES}, beyond from {table_of(length_ns)} "
            "where length_ns = %s and start_ns >= %s and start_ns < %s "
            "and series = (select id from series where segment = %s and class = %s) "
            "order by start_ns desc limit %s"
        )
        found = self._read(query, (length_ns, *times_ns, plain_text(segment), plain_text(key or ""), most))
        tallies = ((row, tally_in(row[2:])) for row in reversed(found))
        return [Row(segment, key, row[0], length_ns, Rank(row[1]), one) for row, one in tallies if one is not None]


def tally_in(row: Sequence[Any]) -> Tally | None:
    """The result in a row; None if its values are impossible."""
    *values, beyond = row
    for name, value in (beyond or {}).items():
        values[COLUMNS.index(name)] = value
    return tally_of(values)


def plain_text(text: str) -> str:
    """Text as PostgreSQL can store it: no NUL, no half of a character."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
