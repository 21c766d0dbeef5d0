"""Results that are settled go from rows into blocks, which take a third to a half of the room.

Laws. Nothing changes for who reads: a result is in a block before its row is deleted, in one transaction. It is done
beside the work, in the steps of pruning: a block is made before the file is locked, and is not stored if one of its
rows has changed meanwhile. A late result goes into a row again, and the next time into its block. What the disk has
changed stays where it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from wirelag.collector.block import LEAST, SETTLED_NS, Block, period_ns
from wirelag.collector.packing import packed
from wirelag.collector.sqlite_check import checksum
from wirelag.collector.sqlite_reading import Name, block_in, rows_of

_MOST: Final = 1 << 20  # rows of a block, whatever is stored
_THESE: Final = "from results where series = ? and length_ns = ? and start_ns >= ? and start_ns < ?"


@dataclass(slots=True)
class Packer:
    """Packs the results of a file. `step`: a transaction, `ended`: whether to stop."""

    base: sqlite3.Connection
    step: Callable[[], AbstractContextManager[None]]
    ended: Callable[[], bool]
    told: Callable[[str], None]

    def pack(self, name: Name, series: int, length_ns: int, newest_ns: int) -> int:
        """Pack what is settled of a series and length, whose newest result begins then; returns the rows packed."""
        span_ns, done, after_ns = period_ns(length_ns), 0, -(1 << 62)
        while not self.ended():
            query = "select min(start_ns) from results where series = ? and length_ns = ? and start_ns >= ?"
            (first_ns,) = self.base.execute(query, (series, length_ns, after_ns)).fetchone()
            if not isinstance(first_ns, int):
                break
            start_ns = first_ns // span_ns * span_ns
            after_ns = start_ns + span_ns
            if after_ns + SETTLED_NS > newest_ns:
                break
            done += self._pack(name, series, length_ns, start_ns)
        return done

    def _pack(self, name: Name, series: int, length_ns: int, start_ns: int) -> int:
        times_ns = start_ns, start_ns + period_ns(length_ns)
        before = self._rows(series, length_ns, times_ns)
        query = "select count, body, crc from blocks where series = ? and length_ns = ? and start_ns = ?"
        stored = self.base.execute(query, (series, length_ns, start_ns)).fetchone()
        if stored is None and len(before) < LEAST:
            return 0
        fresh = rows_of(self.base, name, series, length_ns, times_ns, _MOST, self.told)
        parts = [fresh]
        if stored is not None:
            block = block_in(name, length_ns, start_ns, stored, self.told)
            if block is None:
                return 0
            parts = [block, fresh]
        whole = Block.joined(parts)
        if not len(fresh):
            return 0
        body = packed(whole)
        crc = checksum((*name, length_ns, start_ns, len(whole), body))
        with self.step():
            if self._rows(series, length_ns, times_ns) != before:
                return 0
            query = "insert or replace into blocks values (?, ?, ?, ?, ?, ?)"
            self.base.execute(query, (series, length_ns, start_ns, len(whole), body, crc))
            gone = ((series, length_ns, one_ns) for one_ns in fresh.starts_ns)
            self.base.executemany("delete from results where series = ? and length_ns = ? and start_ns = ?", gone)
        return len(fresh)

    def _rows(self, series: int, length_ns: int, times_ns: tuple[int, int]) -> list[tuple[int, int | None]]:
        """Starts and checksums of rows: another row has another one."""
        query = f"select start_ns, crc {_THESE} order by start_ns"
        return self.base.execute(query, (series, length_ns, *times_ns)).fetchall()
