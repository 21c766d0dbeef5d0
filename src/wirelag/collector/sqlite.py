"""The store in SQLite, in WAL mode (sqlite_file.py has the tables, pruning.py deletes).

One process writes; others may read the file at the same time. When a part changes, its sum is rebuilt from all parts.
A first result waits in memory for the one that replaces it (sqlite_firsts.py).
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from wirelag.collector.block import NOTHING, Block, knows_more
from wirelag.collector.columns import values_of
from wirelag.collector.pruning import Pruner, used_bytes
from wirelag.collector.sqlite_check import changed_rows, check, checksum, is_whole, of_message, stored
from wirelag.collector.sqlite_file import (
    cannot_open,
    connected,
    is_damage,
    opened,
)
from wirelag.collector.sqlite_firsts import Firsts, latest_in
from wirelag.collector.sqlite_firsts import Where as FirstWhere
from wirelag.collector.sqlite_puts import AGENTS, Waiting, Where, put
from wirelag.collector.sqlite_reading import Name, fields_in, latest_of, lengths_of, result_of, results_of
from wirelag.collector.sqlite_rescue import finish, rescue
from wirelag.collector.sqlite_seal import pause, seal
from wirelag.collector.store import HOUR_NS, MINUTE_NS, SECOND_NS, SUMMED, Pruned, Put, Retention, Row, rows_in
from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Rank

LATE_NS: Final = 5 * SECOND_NS  # a minute is summed this long after its end
MOST_CLASSES: Final = 1 << 16  # classes of all segments; more are not kept
MOST_DAMAGED: Final = 10_000  # rows that the disk has changed, of which it is told
MOST_OF_ONE: Final = 1 << 13  # classes of one segment, so that it cannot use up the others', unless fewer are allowed

MOST_FIRST: Final = 1 << 16

MOST_PARTS: Final = 1 << 20  # of a sum


class SqliteStore:
    """A store in a file."""

    errors: ClassVar[tuple[type[Exception], ...]] = (sqlite3.Error, OSError)

    def __init__(self, path: str, retention: Retention | None = None) -> None:
        self.path, self._keep = path, retention or Retention()
        self._series: dict[tuple[str, str], int] = {}
        self._classes: Counter[str] = Counter()
        self.beyond = 0  # results of classes beyond the limit
        self._reading = threading.Lock()
        self._turn = threading.Lock()  # of those who write: the collector, and who deletes
        self._pruning = threading.Lock()
        self._began = False
        self._first: set[Where] = set()  # places of first results, which any other replaces: not read again
        self._firsts = Firsts()
        self._marked: set[tuple[int, int, int]] = set()  # sums that are stale, as far as this process knows
        self._checked: sqlite3.Connection | None = None  # the connection of a check that runs
        self._successor: tuple[str, dict[str, int]] | None = None  # of a damaged file: it has still to be opened
        self.rescued: str | None = None  # what was done about a damaged file at the start
        self.failed: Callable[[str, Exception], None] = _raise  # called for a sum that fails
        self.damaged: Callable[[str], None] = lambda row: None  # called for each row that the disk has changed, once
        self._damaged: set[str] = set()  # of which it was called
        try:
            try:
                self._connect()
            except sqlite3.DatabaseError as error:  # its first page is damaged: no table is found
                if not is_damage(error):
                    raise
                self._successor = rescue(path)
                self._connect()
                self.rescued = self._succeeded(error)
        except self.errors as error:
            raise cannot_open(path, error) from None
        try:
            check(self._base, "series")  # now: a rescue would lose what is stored under a name that is damaged
            check(self._base, "agents")  # they are read at the start
            self._forget_series()
        except self.errors as error:
            with ExitStack() as failing:
                failing.callback(self.close)
                try:
                    self.rescued = self.rescue(error)
                except self.errors as another:
                    raise cannot_open(path, another) from None
                if self.rescued is None:
                    raise cannot_open(path, error) from None
                failing.pop_all()

    def _connect(self) -> None:
        """Open all connections, or none."""
        finish(self.path)
        with ExitStack() as opening:
            base = opening.enter_context(closing(opened(self.path)))
            reading, pruning = (opening.enter_context(closing(connected(self.path))) for _ in range(2))
            opening.pop_all()
        self._base, self._read_base = base, reading
        self._waiting = Waiting(base, lambda key: any(True for _ in self._bodies([(key,)])))
        self._pruner = Pruner(pruning, self._turn, self._keep, self._forget_series, self._note)

    def retain(self, retention: Retention) -> None:
        """Keep results for other times from now on; from any thread."""
        self._keep = self._pruner.keep = retention

    @property
    def retention(self) -> Retention:
        """How long it keeps what."""
        return self._keep

    def close(self) -> None:
        """Close the file; first results that wait are written before, if that can be done."""
        if self._firsts.all() and not self._began:
            with suppress(*self.errors):
                self.write_firsts()
        self._pruner.ended = True
        for base in filter(None, (self._pruner.base, self._checked)):
            with suppress(sqlite3.ProgrammingError):  # it has just ended, or a rescue could not open it again
                base.interrupt()
        with self._pruning, self._turn, self._reading:
            for base in (self._pruner.base, self._read_base, self._base):
                base.close()

    def check(self) -> None:
        """Raise an error if the file is damaged anywhere; in any thread, not in two.

        Rows of an older version get their checksums.
        """
        pruner = self._pruner  # it ends when the file is closed, or another takes its place
        # It only reads: the last connection that may write would, when closed, delete the journal by its name, though
        # a rescue has just put another file in its place.
        with closing(connected(self.path, "ro")) as self._checked:
            if pruner.ended:
                return
            try:
                check(self._checked)
                for row in changed_rows(
                    self._checked, partial(pause, pruner), partial(seal, self.path, self._turn, pruner, self._note)
                ):
                    self._note(row)
            except sqlite3.Error:
                if not pruner.ended:
                    raise
            finally:
                self._checked = None

    def _note(self, row: str) -> None:
        if row not in self._damaged and len(self._damaged) < MOST_DAMAGED:
            self._damaged.add(row)
            self.damaged(row)

    def is_damage(self, error: Exception) -> bool:
        """Whether an error means that the file is damaged."""
        return is_damage(error)

    def rescue(self, error: Exception) -> str | None:
        """Set a damaged file aside, and go on with a new one that has every row that could be read."""
        if not is_damage(error):
            return None
        self.close()
        with self._reading:
            try:
                self._successor = self._successor or rescue(self.path)  # once, though it could not be opened then
            finally:
                self._connect()
            self._forget_series()
        return self._succeeded(error)

    def _succeeded(self, error: Exception) -> str:
        """What has become of a damaged file, in words."""
        assert self._successor is not None
        (aside, saved), self._successor = self._successor, None
        rows = ", ".join(f"{count:,} {table}" for table, count in saved.items() if count)
        return f"{self.path}: was damaged ({error}); goes on with what could be read ({rows}); the rest is in {aside}"

    # ---- writing ----

    def begin(self) -> None:
        """Begin a transaction: all of it is kept, or nothing."""
        self._turn.acquire()
        try:
            self._base.execute("begin immediate")
        except BaseException:
            self._turn.release()
            raise
        self._began = True

    def commit(self) -> None:
        """Commit; once this returns, the data is on disk."""
        self._waiting.write()
        self._base.execute("commit")
        self._firsts.commit()
        self._end()

    def write_firsts(self) -> None:
        """Write all first results that wait, in a transaction."""
        self.begin()
        try:
            for where, tally in self._firsts.all():
                self._write_first(where, tally)
            self.commit()
        finally:
            self.rollback()

    def rollback(self) -> None:
        """Undo all since `begin`."""
        if not self._began:
            return
        self._waiting.forget()
        self._firsts.forget()
        try:
            if self._base.in_transaction:
                self._base.execute("rollback")
            self._forget_series()
        finally:
            self._end()

    def _written(self) -> None:
        """Outside a transaction nothing waits."""
        if not self._began:
            self._waiting.write()

    def _end(self) -> None:
        self._began = False
        self._turn.release()

    def put_message(
        self, key: str, point: str, start_ns: int, data: bytes, now_ns: int, segment: str | None = None
    ) -> None:
        """Keep a message until it is no longer needed; the first with its key, unless the disk has changed that one."""
        crc = checksum((key, point, start_ns, data))
        self._waiting.message((key, point, start_ns, now_ns, data, len(data), crc))
        self._written()

    def drop_messages(self, keys: Iterable[str]) -> None:
        """Drop messages that are no longer needed."""
        self._waiting.drop(keys)
        self._written()

    def messages_about(
        self, start_ns: int, points: Iterable[str], around_ns: int = 0, known: Callable[[str], bool] = lambda key: False
    ) -> Iterator[bytes]:
        """Unused messages of these points about intervals that begin at `start_ns`, or at most `around_ns` from it.

        Those whose keys are `known` are not read.
        """
        self._waiting.write_messages()
        where, between = "start_ns = ?", [start_ns]  # then the index finds the point, too
        if around_ns:
            where, between = "start_ns between ? and ?", [start_ns - around_ns, start_ns + around_ns]
        query = f"select key from messages where {where} and point = ? order by start_ns, arrived_ns, key"
        for point in points:
            keys = self._base.execute(query, (*between, point)).fetchall()
            yield from self._bodies(key for key in keys if not known(key[0]))

    def _bodies(self, keys: Iterable[tuple[str]]) -> Iterator[bytes]:
        """The messages of these keys, one in memory at a time, without those that are gone meanwhile, or damaged."""
        for key in keys:
            query = "select key, point, start_ns, cast(body as blob), crc from messages where key = ?"
            if (found := self._base.execute(query, key).fetchone()) is None:
                continue
            if is_whole(found[:-1], found[-1]):
                yield found[-2]
            else:
                self._note(of_message(key[0]))

    def newest_message_ns(self) -> int | None:
        """The start of the latest interval with a stored message."""
        found = self._base.execute("select max(start_ns) from messages").fetchone()[0]
        return None if found is None else int(found)

    def messages_since(self, start_ns: int) -> Iterator[bytes]:
        """Unused messages about intervals from then on: synopses before replies, in order of arrival."""
        query = (
            "select key from messages where start_ns >= ? order by start_ns, substr(key, 1, 1) = 't', arrived_ns, key"
        )
        yield from self._bodies(self._base.execute(query, (start_ns,)).fetchall())

    def put(
        self,
        segment: str,
        key: str | None,
        interval: Interval,
        rank: Rank,
        tally: Tally,
        most_classes: int = MOST_OF_ONE,
    ) -> Put:
        """Keep a result, unless the stored one knows more, or the segment has too many classes."""
        series = self._series_of(segment, key, most_classes)
        if series is None:
            self.beyond += 1
            return Put(None, taken=False)
        where, name = (series, interval.length_ns, interval.start_ns), (segment, key or "")
        known: Rank | None = None
        before, first = NOTHING, (*name, *where[1:])
        if where in self._first and rank >= Rank.FIRST:
            known = Rank.FIRST
        elif self._firsts.get(first) or interval.start_ns <= self._waiting.newest_ns(series, interval.length_ns):
            known, before = self._stored(name, where)
        if known is not None and knows_more(known, before, rank, tally):
            return Put(known, taken=False)
        if rank == Rank.FIRST and not tally.loss_sent and len(self._first) < MOST_FIRST:
            self._first.add(where)
            if self._began and self._firsts.put(first, tally):
                return Put(known, taken=True)
        else:
            self._first.discard(where)
        self._firsts.drop(first)
        self._write(name, where, rank, tally)
        if interval.length_ns < MINUTE_NS and rank != Rank.FIRST:
            self._mark(MINUTE_NS, interval.start_ns, series)
        elif MINUTE_NS <= interval.length_ns < HOUR_NS and rank != Rank.FIRST:
            self._mark(HOUR_NS, interval.start_ns, series)
        return Put(known, taken=True)

    def rank_of(self, segment: str, interval: Interval) -> Rank | None:
        """How much is known of an interval."""
        return self._stored((segment, ""), (self._series_of(segment, None), interval.length_ns, interval.start_ns))[0]

    def _stored(self, name: Name, where: tuple[int | None, int, int]) -> tuple[Rank | None, Tally]:
        """What is stored of an interval of a series; nothing, if the disk has changed it."""
        series, length_ns, start_ns = where
        if series is None:
            return None, NOTHING
        if (first := self._firsts.get((*name, length_ns, start_ns))) is not None:
            return Rank.FIRST, first
        if (series, length_ns, start_ns) in self._waiting.results:
            self._waiting.write()
        found = result_of(self._base, name, series, length_ns, start_ns, self._note)
        return (None, NOTHING) if found is None else (Rank(found[0]), found[1])

    def put_agents(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the status of agents."""
        for _ in put(self._base, AGENTS, [(point, json.dumps(one)) for point, one in said.items()]):
            pass

    def drop_agent(self, point: str) -> None:
        """Forget the status of an agent."""
        self._base.execute("delete from agents where point = ?", (point,))

    def put_change(self, at_ns: int, said: Mapping[str, Any]) -> None:
        """Keep a change of the network."""
        self._base.execute("insert or replace into changes values (?, ?)", (at_ns, json.dumps(said)))

    def agents(self) -> dict[str, dict[str, Any]]:
        """The same, read back."""
        rows = self._base.execute("select point, said from agents").fetchall()
        return {point: found for point, said in rows if (found := fields_in(said)) is not None}

    def sum_up(self, now_ns: int, most: int = 500) -> int:
        """Rebuild minutes and hours whose parts changed; returns how many. `failed` is called for one that fails."""
        done = 0
        for where, tally in self._firsts.due(now_ns - LATE_NS):  # no minute that is summed now has any that begin later
            self._write_first(where, tally)
        self._waiting.write()
        for length_ns in SUMMED:
            query = "select start_ns, series from stale where length_ns = ? and start_ns < ? limit ?"
            stale = self._base.execute(query, (length_ns, now_ns - length_ns - LATE_NS, most)).fetchall()
            for start_ns, series in stale:
                self._marked.discard((length_ns, start_ns, series))
                self._base.execute(
                    "delete from stale where length_ns = ? and start_ns = ? and series = ?",
                    (length_ns, start_ns, series),
                )
                try:
                    self._sum(length_ns, start_ns, series)
                except self.errors:
                    raise
                except Exception as error:  # lose one series, not the collector
                    self.failed(f"a sum of series {series}", error)
            done += len(stale)
            self._waiting.write()  # an hour is the sum of minutes
        return done

    def _sum(self, length_ns: int, start_ns: int, series: int) -> None:
        lower, upper = (0, MINUTE_NS) if length_ns == MINUTE_NS else (MINUTE_NS, HOUR_NS)
        name = self._base.execute("select segment, class from series where id = ?", (series,)).fetchone() or ("", "")
        whole, parts, within = Tally(), 0, (start_ns, start_ns + length_ns)
        for length in lengths_of(self._base, series):
            if lower <= length < upper:
                found = results_of(self._base, name, series, length, within, MOST_PARTS, self._note)
                whole.add(found.sum(0, len(found)))
                parts += len(found)
        known, before = self._stored(name, (series, length_ns, start_ns))
        if known is not None and before.intervals + before.missed > whole.intervals + whole.missed:
            return  # some parts are gone: the old sum knows more
        if parts:
            self._write(name, (series, length_ns, start_ns), Rank.SETTLED, whole)
            if length_ns == MINUTE_NS:
                self._mark(HOUR_NS, start_ns, series)

    def prune(self, now_ns: int) -> Pruned:
        """Delete what is past its retention, and the oldest if the file is too large, in steps between transactions.

        If there are many classes, those without new results make room.
        """
        counts = dict(self._classes)
        crowded = sum(counts.values()) > MOST_CLASSES // 2
        classes = [name for name, count in counts.items() if crowded or count > MOST_OF_ONE // 2]
        with self._pruning:
            pruner = self._pruner
            try:
                return pruner.prune(now_ns, classes)
            except sqlite3.Error:
                if pruner.ended:
                    return Pruned()
                raise

    @property
    def used_bytes(self) -> int:
        """Bytes of the file in use."""
        return used_bytes(self._base)

    def _series_of(self, segment: str, key: str | None, most: int = MOST_OF_ONE) -> int | None:
        """The id of a series: always for a segment, for a class only up to the limit."""
        name = segment, key or ""
        if name not in self._series:
            query = "select id from series where segment = ? and class = ?"
            found = self._base.execute(query, name).fetchone()
            if found is None:
                if key and (self._classes[segment] >= min(most, MOST_OF_ONE) or self._classes.total() >= MOST_CLASSES):
                    return None
                self._classes[segment] += bool(key)
                found = self._base.execute("insert into series (segment, class) values (?, ?) returning id", name)
                found = found.fetchone()
            self._series[name] = found[0]
        return self._series[name]

    def _count_classes(self) -> Counter[str]:
        return Counter(
            dict(self._base.execute("select segment, count(*) from series where class != '' group by segment"))
        )

    def _forget_series(self) -> None:
        self._series.clear()
        self._first.clear()
        self._marked.clear()
        self._classes = self._count_classes()

    def _mark(self, length_ns: int, start_ns: int, series: int) -> None:
        where = (length_ns, start_ns // length_ns * length_ns, series)
        if where not in self._marked:
            self._base.execute("insert or ignore into stale values (?, ?, ?)", where)
            self._marked.add(where)

    def _write(self, name: Name, where: Where, rank: Rank, tally: Tally) -> None:
        row = (*where[1:], int(rank), *map(stored, values_of(tally)))
        self._waiting.result(where, (where[0], *row, checksum((*name, *row))))
        self._written()

    def _write_first(self, where: FirstWhere, tally: Tally) -> None:
        segment, key, length_ns, start_ns = where
        self._firsts.drop(where)
        if (series := self._series_of(segment, key or None)) is not None:  # it was deleted since, with its class
            self._write((segment, key), (series, length_ns, start_ns), Rank.FIRST, tally)

    # ---- reading, from any thread ----

    def series(self) -> list[tuple[str, str | None]]:
        """Segments and their classes that have results."""
        with self._reading:
            rows = self._read_base.execute("select segment, class from series order by segment, class").fetchall()
        return [(segment, key or None) for segment, key in rows]

    def changes(self, times_ns: tuple[int, int], most: int) -> list[dict[str, Any]]:
        """Changes of the network, the latest first."""
        query = "select said from changes where at_ns >= ? and at_ns < ? order by at_ns desc limit ?"
        with self._reading:
            rows = self._read_base.execute(query, (*times_ns, most)).fetchall()
        return [found for (said,) in rows if (found := fields_in(said)) is not None]

    def lengths_ns(self, segment: str, key: str | None) -> list[int]:
        """The lengths of a series' stored intervals."""
        firsts = self._firsts.lengths_ns(segment, key or "")
        with self._reading:
            series = self._id_of(segment, key)
            return sorted(firsts.union([] if series is None else lengths_of(self._read_base, series)))

    def latest(self, since_ns: int) -> list[Row]:
        """The latest result since then of each segment and length but hours, all at once; not those in blocks."""
        firsts = self._firsts.latest(since_ns)
        with self._reading:
            found = list(latest_of(self._read_base, HOUR_NS, since_ns, self._note))
        return latest_in([*firsts, *found]) if firsts else found

    def block(self, segment: str, key: str | None, length_ns: int, times_ns: tuple[int, int], most: int) -> Block:
        """Results of one length that begin within these times, in order; the latest, if there are too many."""
        name, firsts = (segment, key or ""), self._firsts.block(segment, key or "", length_ns)
        with self._reading:
            series = self._id_of(segment, key)
            if series is None:
                return Block.joined([])
            found = results_of(self._read_base, name, series, length_ns, times_ns, most, self._note)
        return Block.joined([found, firsts]).within(times_ns, most) if len(firsts) else found

    def rows(self, segment: str, key: str | None, length_ns: int, times_ns: tuple[int, int], most: int) -> list[Row]:
        """The same as rows."""
        return rows_in(self.block(segment, key, length_ns, times_ns, most), segment, key, length_ns)

    def _id_of(self, segment: str, key: str | None) -> int | None:
        query = "select id from series where segment = ? and class = ?"
        found = self._read_base.execute(query, (segment, key or "")).fetchone()
        return None if found is None else int(found[0])

    @property
    def file_bytes(self) -> int:
        """Bytes of the file and its journal on disk."""
        files = (Path(self.path + end) for end in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())


def _raise(what: str, error: Exception) -> None:
    raise error
