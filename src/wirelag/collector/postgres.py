"""The store in PostgreSQL, which several collectors may share (postgres_tables.py has the tables).

Laws beside those of store.py. **The fence**: who takes over a partition (protocol/sharing.py) raises its token in the
database, and from then on no transaction of the former owner that stores anything of this partition commits. Each
commit passes a gate in the same request: it locks the tokens that the transaction depends on and compares them. So a
new owner waits for commits under way and sees all that they stored, and later ones fail (`Fenced`). It ends sessions of
the former owner that have done nothing in the middle of a transaction for PAUSED_S: a paused process holds up no other.
Damage is the server's affair: it has checksums of its own (`initdb --data-checksums`).
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

from wirelag.collector.agents import together
from wirelag.collector.block import SETTLED_NS, knows_more
from wirelag.collector.columns import COLUMNS, FLOATS, TEXTS, values_of
from wirelag.collector.postgres_pruning import prune, used_bytes
from wirelag.collector.postgres_puts import PUTS, SUMS
from wirelag.collector.postgres_reading import PostgresReader, packed_result, plain_text, sum_of
from wirelag.collector.postgres_tables import (
    FENCED,
    STEPS,
    connected,
    day_of,
    make_day,
    opened,
    plain,
    run,
    shown,
    table_of,
)
from wirelag.collector.sqlite import LATE_NS, MOST_CLASSES, MOST_OF_ONE
from wirelag.collector.sqlite_check import stored
from wirelag.collector.store import (
    HOUR_NS,
    MINUTE_NS,
    SUMMED,
    Fenced,
    Pruned,
    Put,
    Retention,
    StoreUnavailable,
)
from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Rank
from wirelag.protocol.sharing import PARTS, part_of, parts_of

import psycopg  # isort: skip (postgres_tables.py says how to get it)

PAUSED_S: Final = 1.0
_SIZE_S: Final = 30.0  # how often the size is asked for
_ALONE: Final = 8321_03  # the advisory lock of a collector that does not share
_LOCK_MS: Final = 2000
_SUMMING: Final = 8321_04  # of the one that adds up
_ALL: Final = list(range(PARTS))
_NUMBERS: Final = [i for i, name in enumerate(COLUMNS) if name not in {*TEXTS, *FLOATS, "bins"}]


class PostgresStore(PostgresReader):
    """A store in a database. `name`: of this collector, the same after a restart."""

    errors: ClassVar[tuple[type[Exception], ...]] = (psycopg.Error, OSError)

    def __init__(self, url: str, retention: Retention | None = None, name: str = "", session: str = "") -> None:
        """`session`: of this process, if others share the work: then it writes only to partitions that it holds."""
        super().__init__(url, session or "wirelag")
        self.name, self.keep = name, retention or Retention()
        self.path, self._shared = shown(url), bool(session)
        self.committed_s = 0.0  # when, by a clock that is never set
        self.beyond = 0
        self.rescued: str | None = None
        self.failed: Callable[[str, Exception], None] = _raise
        self.damaged: Callable[[str], None] = lambda row: None
        self._series: dict[tuple[str, str], int] = {}
        self._classes: Counter[str] = Counter()
        self._epoch, self._outdated = 0, False  # of the ids above; whether some may be void
        self._tokens: dict[int, int] = {}  # of the partitions that are held
        self._touched: set[int] = set()  # partitions of which this transaction has stored something
        self._days: set[tuple[str, int]] = set()  # parts of tables that are there
        self._wanted: set[tuple[str, int]] = set()  # those to be made before the next transaction
        self._newest_ns: int | None = None  # the latest start that was stored
        self._pruned_ns: int | None = None
        self._sized_s, self._bytes = 0.0, 0
        self._used = False  # whether this transaction has used tables of results
        self._pruning = threading.Lock()
        self._closed = False
        self._base = opened(url, self.session)
        try:
            self._lock()
            self._side = connected(url, self.session)
            self.connect()
            self._prune_base = connected(url, self.session)
            self._forget_series()
            self._size_up()
        except self.errors as error:
            raise StoreUnavailable(f"{self.path}: cannot open it now ({plain(error)}); still trying") from None

    def _lock(self) -> None:
        """Either one collector has the database, or any number that share; the lock ends with the connection."""
        how = "_shared" if self._shared else ""
        try:
            run(self._base, f"set lock_timeout = '{_LOCK_MS}ms'")  # the session of a killed one ends a little later
            run(self._base, f"select pg_advisory_lock{how}({_ALONE}); reset lock_timeout")
        except psycopg.errors.LockNotAvailable:
            self._base.close()
            raise StoreUnavailable(
                f"{self.path}: another collector writes to it; stop it, or let both share the work: give each --nats"
            ) from None

    @staticmethod
    def _one(cursor: psycopg.Cursor[Any]) -> Any:
        row = cursor.fetchone()
        return None if row is None else row[0]

    def retain(self, retention: Retention) -> None:
        """Keep results for other times from now on; from any thread."""
        self.keep = retention

    @property
    def retention(self) -> Retention:
        """How long it keeps what."""
        return self.keep

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        with suppress(psycopg.Error):
            self._prune_base.cancel_safe(timeout=1.0)
        self.end()
        with self._pruning:
            for base in (self._prune_base, self._side, self._base):
                base.close()

    def check(self) -> None:
        """Do nothing: the server checks its pages when it reads them."""

    def is_damage(self, error: Exception) -> bool:
        """Whether an error means damage; the server's are not this collector's to mend."""
        return False

    def rescue(self, error: Exception) -> str | None:
        """Do nothing: what the server cannot read, it says itself."""
        return None

    # ---- sharing ----

    def hold(self, parts: Sequence[int]) -> dict[int, int]:
        """Raise the fence of partitions, outside of a transaction: this collector may write to them, no other may.

        Returns their tokens. Sessions of a former owner end if it is paused in a transaction.
        """
        base = self._ready()
        ended = (
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name in "
            "(select holder from fences where part = any(%s)) and application_name <> %s "
            "and state like 'idle in transaction%%' and state_change < clock_timestamp() - %s * interval '1 second'"
        )
        run(base, ended, (list(parts), self.session, PAUSED_S))
        raised = "update fences set token = token + 1, holder = %s where part = any(%s) returning part, token"
        tokens = dict(run(base, raised, (self.session, list(parts))).fetchall())
        self._tokens |= tokens
        return tokens

    def let_go(self, parts: Iterable[int]) -> None:
        """Write to these partitions no more."""
        for part in parts:
            self._tokens.pop(part, None)

    def lost(self) -> set[int]:
        """Partitions that another collector has taken over: what stores nothing does not notice by itself."""
        found = run(self._ready(), "select part, token from fences where part = any(%s)", (self.held,)).fetchall()
        return {part for part, token in found if self._tokens.get(part) != token}

    @property
    def held(self) -> list[int]:
        """The partitions that are this collector's."""
        return sorted(self._tokens) if self._shared else _ALL

    # ---- writing ----

    def _ready(self) -> psycopg.Connection[Any]:
        """The connection, made again if it was lost."""
        if self._base.closed or self._base.broken:
            self._base = connected(self._url, self.session)
            self._lock()
            self._forget_series()
        return self._base

    def begin(self) -> None:
        """Begin a transaction: all of it is kept, or nothing."""
        base = self._ready()
        if self._outdated:
            self._forget_series()
        self._make_wanted()
        run(base, "begin")
        self._touched.clear()
        self._used = False

    def commit(self) -> None:
        """Commit; once this returns, the data is safe. `Fenced` if another collector has taken over."""
        tokens = {part: self._tokens.get(part, -1) for part in sorted(self._touched)} if self._shared else {}
        parts, values = (",".join(map(str, some)) for some in (tokens.keys(), tokens.values()))
        try:
            run(self._base, f"select gate({len(STEPS)}, {self._epoch}, '{{{parts}}}', '{{{values}}}'); commit")
        except psycopg.Error as error:
            if error.sqlstate == FENCED:
                raise Fenced(map(int, (error.diag.message_detail or "").split())) from None
            raise
        self._touched.clear()
        self.committed_s = time.monotonic()
        self._make_wanted()

    def rollback(self) -> None:
        """Undo all since `begin`."""
        self._touched.clear()
        if not self._base.closed:
            run(self._base, "rollback")
            self._forget_series()

    def put_message(
        self, key: str, point: str, start_ns: int, data: bytes, now_ns: int, segment: str | None = None
    ) -> None:
        """Keep a message until it is no longer needed; the first with its key."""
        query = (
            "insert into messages (part, key, point, start_ns, arrived_ns, body, bytes) "
            "values (%s, %s, %s, %s, %s, %s, %s) on conflict do nothing"
        )
        for part in set(parts_of(segment, point, False)).intersection(self.held):
            self._touched.add(part)
            run(self._base, query, (part, key, plain_text(point), start_ns, now_ns, data, len(data)))
        self._newest_ns = max(start_ns, self._newest_ns or start_ns)

    def drop_messages(self, keys: Iterable[str]) -> None:
        """Drop messages that are no longer needed."""
        if gone := list(keys):
            query = "delete from messages where part = any(%s) and key = any(%s) returning part"
            self._touched |= {part for (part,) in run(self._base, query, (self.held, gone)).fetchall()}

    def messages_about(
        self, start_ns: int, points: Iterable[str], around_ns: int = 0, known: Callable[[str], bool] = lambda key: False
    ) -> Iterator[bytes]:
        """Unused messages of these points about intervals that begin at `start_ns`, or at most `around_ns` from it.

        Those whose keys are `known` are not read.
        """
        query = (
            "select part, key from messages where start_ns between %s and %s and point = %s and part = any(%s) "
            "order by start_ns, arrived_ns, key"
        )
        between = start_ns - around_ns, start_ns + around_ns
        for point in points:
            found = run(self._base, query, (*between, plain_text(point), self.held)).fetchall()
            yield from self._bodies((part, key) for part, key in found if not known(key))

    def _bodies(self, keys: Iterable[tuple[int, str]]) -> Iterator[bytes]:
        """The messages of these keys, one in memory at a time and each once."""
        given: set[str] = set()
        for part, key in keys:
            if key not in given:
                given.add(key)
                found = run(self._base, "select body from messages where part = %s and key = %s", (part, key))
                if (row := found.fetchone()) is not None:
                    yield row[0]

    def newest_message_ns(self) -> int | None:
        """The start of the latest interval with a stored message."""
        found = self._one(run(self._ready(), "select max(start_ns) from messages where part = any(%s)", (self.held,)))
        return None if found is None else int(found)

    def messages_since(self, start_ns: int) -> Iterator[bytes]:
        """Unused messages about intervals from then on: synopses before replies, in order of arrival."""
        query = (
            "select part, key from messages where start_ns >= %s and part = any(%s) "
            "order by start_ns, left(key, 1) = 't', arrived_ns, key"
        )
        yield from self._bodies(run(self._base, query, (start_ns, self.held)).fetchall())

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
        self._touched.add(part_of(segment))
        packed = self._packed(series, interval)
        if packed is not None and knows_more(*packed, rank, tally):
            return Put(Rank(packed[0]), taken=False)
        summed = None if rank == Rank.FIRST or interval.length_ns >= HOUR_NS else HOUR_NS
        if summed is not None and interval.length_ns < MINUTE_NS:
            summed = MINUTE_NS
        before, taken = self._write(PUTS, series, interval.length_ns, interval.start_ns, rank, tally, summed)
        self._newest_ns = max(interval.start_ns, self._newest_ns or 0)
        known = [one for one in (before, packed and packed[0]) if one is not None]
        return Put(Rank(max(known)) if known else None, taken)

    def _may_be_packed(self, start_ns: int) -> bool:
        return self._newest_ns is None or start_ns + SETTLED_NS < self._newest_ns

    def _packed(self, series: int | None, interval: Interval) -> tuple[int, Tally] | None:
        """What a block has of an interval, if it is so old that there may be one."""
        length_ns, start_ns = interval.length_ns, interval.start_ns
        if series is None or not self._may_be_packed(start_ns):
            return None
        self._used = True
        return packed_result(self._run, series, length_ns, start_ns)

    def _run(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return run(self._base, query, values).fetchall()

    def _write(
        self, queries: Mapping[str, str], series: int, length_ns: int, start_ns: int, rank: Rank, tally: Tally,
        summed: int | None,
    ) -> tuple[int | None, bool]:  # fmt: skip
        table = table_of(length_ns)
        self._need_day(table, start_ns)
        values = [stored(value) for value in values_of(tally)]
        beyond = {COLUMNS[i]: values[i] for i in _NUMBERS if isinstance(values[i], str)}
        given = dict(zip(COLUMNS, values, strict=True)) | dict.fromkeys(beyond)
        for name in TEXTS:
            given[name] = None if given[name] is None else plain_text(given[name])
        given |= {
            "series": series, "length": length_ns, "start": start_ns, "rank": int(rank), "sum": summed,
            "sum_start": None if summed is None else start_ns // summed * summed,
            "beyond": json.dumps(beyond) if beyond else None,
        }  # fmt: skip
        self._used = True
        row = run(self._base, queries[table], given).fetchone()
        assert row is not None
        return row[0], row[1]

    def _need_day(self, table: str, start_ns: int) -> None:
        """See to it that a result's part of the table is there; if not now, before the next transaction."""
        day = table, day_of(table, start_ns)
        if day in self._days or day in self._wanted:
            return
        if self._used and self._base.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self._wanted.add(day)  # this transaction may hold what making it needs
        else:
            self._make(*day)

    def _make_wanted(self) -> None:
        with suppress(*self.errors):  # what is stored stays in the rest until then
            for one in list(self._wanted):
                self._make(*one)

    def _make(self, table: str, day_ns: int) -> None:
        if self._side.closed or self._side.broken:
            self._side = connected(self._url, self.session)
        if make_day(self._side, table, day_ns):
            self._days.add((table, day_ns))
            self._wanted.discard((table, day_ns))
        else:
            self._wanted.add((table, day_ns))

    def rank_of(self, segment: str, interval: Interval) -> Rank | None:
        """How much is known of an interval."""
        query = (
            f"select rank from {table_of(interval.length_ns)} where series = %s and length_ns = %s and start_ns = %s"
        )
        series, self._used = self._series_of(segment, None), True
        found = self._one(run(self._base, query, (series, interval.length_ns, interval.start_ns)))
        packed = self._packed(series, interval)
        return max((Rank(one) for one in (found, packed and packed[0]) if one is not None), default=None)

    def put_agents(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the status of agents, as this collector knows it."""
        query = (
            "insert into agents values (%s, %s, %s) on conflict (point, collector) do update set said = excluded.said"
        )
        with self._base.cursor() as cursor:
            cursor.executemany(query, [(plain_text(point), self.name, json.dumps(one)) for point, one in said.items()])

    def agents(self, others: bool = False) -> dict[str, dict[str, Any]]:
        """The same, read back; with `others` what all other collectors together know."""
        query = f"select point, said from agents where collector {'<>' if others else '='} %s"
        found: dict[str, dict[str, Any]] = {}
        for point, said in run(self._ready(), query, (self.name,)).fetchall():
            found[point] = together(found.get(point), json.loads(said))
        return found

    def drop_agent(self, point: str) -> None:
        """Forget the status of an agent."""
        run(self._base, "delete from agents where point = %s", (plain_text(point),))

    def put_change(self, at_ns: int, said: Mapping[str, Any]) -> None:
        """Keep a change of the network."""
        query = "insert into changes values (%s, %s) on conflict (at_ns) do update set said = excluded.said"
        run(self._base, query, (at_ns, json.dumps(said)))

    def sum_up(self, now_ns: int, most: int = 500) -> int:
        """Rebuild minutes and hours whose parts changed; returns how many. One collector at a time does so."""
        if not self._one(run(self._base, "select pg_try_advisory_xact_lock(%s)", (_SUMMING,))):
            return 0
        done = 0
        for length_ns in SUMMED:
            query = (
                "delete from stale where (length_ns, start_ns, series) in (select length_ns, start_ns, series "
                "from stale where length_ns = %s and start_ns < %s limit %s for update skip locked) "
                "returning start_ns, series"
            )
            stale = run(self._base, query, (length_ns, now_ns - length_ns - LATE_NS, most)).fetchall()
            for start_ns, series in stale:
                try:
                    self._sum(length_ns, start_ns, series)
                except self.errors:
                    raise
                except Exception as error:  # lose one series, not the collector
                    self.failed(f"a sum of series {series}", error)
            done += len(stale)
        if time.monotonic() - self._sized_s > _SIZE_S:
            self._size_up()
        return done

    def _size_up(self) -> None:
        self._sized_s, self._bytes = time.monotonic(), used_bytes(self._base)

    def _sum(self, length_ns: int, start_ns: int, series: int) -> None:
        parts, within = "singles" if length_ns == MINUTE_NS else "minutes", (start_ns, start_ns + length_ns)
        self._used = True
        whole, count = sum_of(self._run, parts, series, within, self._may_be_packed(start_ns))
        known = self._packed(series, Interval(*within))
        if known is not None and known[1].intervals + known[1].missed > whole.intervals + whole.missed:
            return  # some parts are gone: the old sum knows more
        if count:
            summed = HOUR_NS if length_ns == MINUTE_NS else None
            self._write(SUMS, series, length_ns, start_ns, Rank.SETTLED, whole, summed)

    def prune(self, now_ns: int) -> Pruned:
        """Delete what is past its retention, and the oldest days if the store is too large."""
        counts = dict(self._classes)
        crowded = sum(counts.values()) > MOST_CLASSES // 2
        classes = [name for name, count in counts.items() if crowded or count > MOST_OF_ONE // 2]
        with self._pruning:
            if self._closed:
                return Pruned()
            if self._prune_base.closed or self._prune_base.broken:
                self._prune_base = connected(self._url, self.session)
            try:
                before_ns, self._pruned_ns = self._pruned_ns, time.monotonic_ns()
                elapsed_ns = 0 if before_ns is None else self._pruned_ns - before_ns
                done = prune(self._prune_base, self.keep, now_ns, self._newest_ns, elapsed_ns, classes)
            except psycopg.Error:
                if self._closed:
                    return Pruned()
                raise
        self._days, self._outdated = set(), True
        return done

    @property
    def used_bytes(self) -> int:
        """Bytes of all tables."""
        return used_bytes(self._base)

    def _series_of(self, segment: str, key: str | None, most: int = MOST_OF_ONE) -> int | None:
        """The id of a series: always for a segment, for a class only up to the limit."""
        name = plain_text(segment), plain_text(key or "")
        if self._outdated and self._base.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            self._forget_series()
        if name not in self._series:
            query = "select id from series where segment = %s and class = %s"
            found = self._one(run(self._base, query, name))
            if found is None:
                if key and (self._classes[segment] >= min(most, MOST_OF_ONE) or self._classes.total() >= MOST_CLASSES):
                    return None
                self._classes[segment] += bool(key)
                query = (
                    "insert into series (segment, class) values (%s, %s) "
                    "on conflict (segment, class) do update set segment = excluded.segment returning id"
                )
                found = self._one(run(self._base, query, name))
            self._series[name] = found
        return self._series[name]

    def _forget_series(self) -> None:
        """Read again what others may have changed, before a transaction: the epoch first, since ids are of it."""
        self._outdated = False
        self._series.clear()
        self._epoch = self._one(run(self._base, "select epoch from state"))
        query = "select segment, count(*) from series where class <> '' group by segment"
        self._classes = Counter(dict(run(self._base, query).fetchall()))

    @property
    def file_bytes(self) -> int:
        """Bytes on disk of the server, as of half a minute ago."""
        return self._bytes


def _raise(what: str, error: Exception) -> None:
    raise error
