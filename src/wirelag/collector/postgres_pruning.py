"""What the store in PostgreSQL deletes: whole days that are past their retention, or that no longer fit.

Laws. Retention goes by the time of the results (data_time.py), and a day goes when all of it is past its age: its table
is dropped, which costs as much for a row as for a million. Where results are kept for less than a day, rows are deleted
one by one. Messages that wait for their other half have a quarter of the size at most: beyond it the oldest of the
point that has most of them go. Where the whole is too large, the oldest days go, those of single intervals first, then
of minutes and of hours; the newest day of each stays.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Final

from psycopg.errors import LockNotAvailable

from wirelag.collector.block import ROWS
from wirelag.collector.data_time import DataTime
from wirelag.collector.postgres_packing import pack
from wirelag.collector.postgres_tables import BLOCKS, LENGTHS, PARTITIONED, Base, days_of, run
from wirelag.collector.pruning import FACT, STEP_MESSAGES
from wirelag.collector.store import DAY_NS, Pruned, Retention

NEWEST: Final = "newest_ns"
_LOCK: Final = 8321_05  # the advisory lock of the one that deletes


def prune(
    base: Base, keep: Retention, now_ns: int, newest_ns: int | None, elapsed_ns: int, classes: Iterable[str]
) -> Pruned:
    """Delete what is due, unless another collector does so now.

    `newest_ns`: of what this process stored, `elapsed_ns`: since its last call by a clock that is never set, `classes`:
    segments of which old classes must make room.
    """
    if run(base, "select pg_try_advisory_lock(%s)", (_LOCK,)).fetchone() != (True,):
        return Pruned()
    try:
        return _pruned(base, keep, now_ns, _newest(base, newest_ns), elapsed_ns, classes)
    finally:
        if not base.broken:
            run(base, "select pg_advisory_unlock(%s)", (_LOCK,))


def _pruned(
    base: Base, keep: Retention, now_ns: int, newest_ns: int | None, elapsed_ns: int, classes: Iterable[str]
) -> Pruned:
    done = Pruned()
    if newest_ns is None:
        return done
    passed = DataTime.of(_fact(base, FACT))
    passed.passed(now_ns, newest_ns, elapsed_ns)
    _put_fact(base, FACT, json.dumps(passed.to_fields()))  # before anything is deleted
    done.problem = passed.problem
    if passed.since_ns is None and passed.trusted_ns is not None:
        _by_age(base, keep, passed.trusted_ns)
        _classes(base, classes, passed.trusted_ns - keep.single_ns)
    pack(base, newest_ns)
    done.messages = _messages(base, keep.waiting_bytes)
    done.results = _by_size(base, keep.most_bytes)
    _series(base)
    return done


def used_bytes(base: Base) -> int:
    """Bytes of all tables and their indexes on disk."""
    query = (
        "select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = 'wirelag' and c.relkind = 'r'"
    )
    row = run(base, query).fetchone()
    return 0 if row is None or row[0] is None else int(row[0])


def _fact(base: Base, name: str) -> str | None:
    row = run(base, "select value from facts where name = %s", (name,)).fetchone()
    return None if row is None else str(row[0])


def _put_fact(base: Base, name: str, value: str) -> None:
    query = "insert into facts values (%s, %s) on conflict (name) do update set value = excluded.value"
    run(base, query, (name, value))


def _newest(base: Base, newest_ns: int | None) -> int | None:
    """The start of the latest result that any collector has stored."""
    known = [int(one) for one in (_fact(base, NEWEST), newest_ns) if one is not None]
    if known:
        _put_fact(base, NEWEST, str(max(known)))
    return max(known, default=None)


def _by_age(base: Base, keep: Retention, time_ns: int) -> None:
    for table, age_ns in zip(LENGTHS, (keep.single_ns, keep.minutes_ns, keep.hours_ns), strict=True):
        for day, end_ns in days_of(base, table):
            if end_ns <= time_ns - age_ns:
                _drop(base, day)
        where = table if age_ns < DAY_NS else f"{table}_rest"
        run(base, f"delete from {where} where start_ns < %s", (time_ns - age_ns,))
        blocks = BLOCKS[table]  # the last one of a day goes on into the next
        for day, end_ns in days_of(base, blocks):
            if end_ns + LENGTHS[table] <= time_ns - age_ns:
                _drop(base, day)
        run(base, f"delete from {blocks} where start_ns + %s * length_ns < %s", (ROWS, time_ns - age_ns))
    run(base, "delete from messages where start_ns < %s", (time_ns - keep.messages_ns,))
    run(base, "delete from changes where at_ns < %s", (time_ns - keep.hours_ns,))


def _drop(base: Base, day: str) -> bool:
    """Drop a day; False if it is in use for so long that others would wait: then the next run does it."""
    try:
        with base.transaction():
            run(base, "set local lock_timeout = '2s'")
            run(base, f"drop table {day}")
    except LockNotAvailable:
        return False
    return True


def _classes(base: Base, segments: Iterable[str], before_ns: int) -> None:
    """Delete classes without new results."""
    some = "exists (select from {} r where r.series = s.id and r.start_ns >= %(before)s)"
    query = "select id from series s where segment = any(%(names)s) and class <> '' and not (" + (
        " or ".join(map(some.format, PARTITIONED)) + ")"
    )
    ids = [row[0] for row in run(base, query, {"names": list(segments), "before": before_ns}).fetchall()]
    for table in PARTITIONED if ids else ():
        run(base, f"delete from {table} where series = any(%s)", (ids,))


def _messages(base: Base, most_bytes: int) -> int:
    """Delete messages beyond their share; returns how many."""
    held = Counter({point: int(size) for point, size in run(base,
        "select point, sum(bytes) from messages group by point").fetchall()})  # fmt: skip
    done = 0
    while held.total() > most_bytes:
        point = max(held, key=held.__getitem__)
        query = (
            "delete from messages where (part, key) in (select part, key from messages where point = %s "
            "order by start_ns limit %s) returning bytes"
        )
        gone = run(base, query, (point, STEP_MESSAGES)).fetchall()
        if not gone:
            del held[point]
        held[point] -= sum(size for (size,) in gone)
        done += len(gone)
    return done


def _by_size(base: Base, most_bytes: int) -> int:
    """Drop the oldest days until the rest fits; returns how many results were in them."""
    done = 0
    for table in LENGTHS:
        days = [(end_ns, "count(*)", day) for day, end_ns in days_of(base, table)[:-1]]
        days += [(end_ns, "coalesce(sum(count), 0)", day) for day, end_ns in days_of(base, BLOCKS[table])[:-1]]
        for _, count, day in sorted(days):
            if used_bytes(base) <= most_bytes:
                return done
            row = run(base, f"select {count} from {day}").fetchone()
            done += int(row[0]) if row is not None and _drop(base, day) else 0
    return done


def _series(base: Base) -> None:
    """Delete series without results. Their ids are then void everywhere: whoever uses one does not pass the gate."""
    empty = " and ".join(f"not exists (select from {table} r where r.series = s.id)" for table in PARTITIONED)
    with base.transaction():
        run(base, "set local enable_hashjoin = off")  # by the index, not by reading all results
        run(base, "set local enable_mergejoin = off")
        if run(base, f"select 1 from series s where {empty} limit 1").fetchone() is None:
            return
        run(base, "update state set epoch = epoch + 1")  # waits for commits under way, so that the next line sees them
        run(base, f"delete from series s where {empty}")
        run(base, "delete from stale where series not in (select id from series)")
