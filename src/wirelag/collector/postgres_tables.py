"""The tables of the store in PostgreSQL: connections, versions, and the days into which results are partitioned.

Laws. A database has a version. The steps from an older one are taken in one transaction, by one collector, while others
wait; a newer one is refused, and a collector that runs when another brings it to a newer version stops writing. Results
of single intervals and of minutes have a table for each day, those of hours one for 30 days. A day is made when its
first result comes, outside of any transaction that writes. Results whose day cannot be made now, or has no room
(MOST_DAYS), go to the table `..._rest` and are found all the same.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from wirelag.collector.columns import COLUMNS, FLOATS, TEXTS
from wirelag.collector.store import DAY_NS, HOUR_NS, MINUTE_NS, StoreUnavailable
from wirelag.errors import MissingExtraError, WirelagError
from wirelag.protocol.sharing import PARTS

try:
    import psycopg
    from psycopg import Connection
except ImportError:
    raise MissingExtraError("a store in PostgreSQL", "the extra postgres", "postgres") from None

Base = Connection[tuple[Any, ...]]
LENGTHS: Final = {"singles": DAY_NS, "minutes": DAY_NS, "hours": 30 * DAY_NS}  # by table: of one of its parts
BLOCKS: Final = {table: f"{table}_packed" for table in LENGTHS}  # where their results go once they are settled
PARTITIONED: Final = LENGTHS | {BLOCKS[table]: length_ns for table, length_ns in LENGTHS.items()}
MOST_DAYS: Final = 400  # parts of one table
FENCED, NEWER, DELETED = "WL001", "WL002", "WL003"  # why `gate` refuses
_CONNECT_S: Final = 3
_STEPS_LOCK, _DAYS_LOCK = 8321_01, 8321_02  # advisory locks, of the whole database
_GONE: Final = {"3D000", "28000", "28P01", "42501", "3F000"}  # the database, the user, its rights: not there


def _type(name: str) -> str:
    return (
        "text" if name in TEXTS else "double precision" if name in FLOATS else "bytea" if name == "bins" else "bigint"
    )


def _results(table: str) -> str:
    columns = ", ".join(f"{name} {_type(name)}" for name in COLUMNS)
    return f"""
create table {table} (series bigint not null, length_ns bigint not null, start_ns bigint not null,
    rank smallint not null, {columns}, beyond jsonb,
    primary key (series, length_ns, start_ns)) partition by range (start_ns);
create table {table}_rest partition of {table} default;
"""


def _blocks(table: str) -> str:
    return f"""
create table {table} (series bigint not null, length_ns bigint not null, start_ns bigint not null,
    count integer not null, body bytea not null,
    primary key (series, length_ns, start_ns)) partition by range (start_ns);
alter table {table} alter column body set storage external;
create table {table}_rest partition of {table} default;
"""


# A commit passes the gate, on the server and in one request: no collector can stop between the two. Its locks make a
# new owner wait for transactions that have passed, and those that come later see its fence.
_GATE: Final = f"""
create function gate(version integer, epoch bigint, parts smallint[], tokens bigint[]) returns void as $$
declare
    lost text;
    now record;
begin
    select * into now from state for share;
    if now.version > gate.version then
        raise exception 'the store has version %', now.version using errcode = '{NEWER}';
    end if;
    if now.epoch <> gate.epoch then
        raise exception 'series were deleted meanwhile' using errcode = '{DELETED}';
    end if;
    perform 1 from fences where part = any (gate.parts) order by part for share;
    select string_agg(mine.part::text, ' ') into lost
        from unnest(gate.parts, gate.tokens) as mine (part, token) join fences on fences.part = mine.part
        where fences.token <> mine.token;
    if lost is not null then
        raise exception 'another collector has taken over' using errcode = '{FENCED}', detail = lost;
    end if;
end $$ language plpgsql;
"""
STEPS: Final = [  # to version 1, 2, ...: a step that was released is never changed
    "".join(map(_results, LENGTHS))
    + _GATE
    + f"""
create table state (version integer not null, epoch bigint not null default 0);
insert into state (version) values (0);
create table series (id bigint generated always as identity primary key, segment text not null, class text not null,
    unique (segment, class));
create table stale (length_ns bigint, start_ns bigint, series bigint, primary key (length_ns, start_ns, series));
create table messages (part smallint, key text, point text not null, start_ns bigint not null,
    arrived_ns bigint not null, body bytea not null, bytes integer not null, primary key (part, key));
alter table messages alter column body set storage external;
create index messages_by_place on messages (point, start_ns);
create table agents (point text, collector text, said text not null, primary key (point, collector));
create table changes (at_ns bigint primary key, said text not null);
create table facts (name text primary key, value text not null);
create table fences (part smallint primary key, token bigint not null default 0, holder text);
insert into fences (part) select generate_series(0, {PARTS - 1});
""",
    "".join(map(_blocks, BLOCKS.values())),
]


def run(base: Base, query: str, values: Sequence[Any] | Mapping[str, Any] | None = None) -> psycopg.Cursor[Any]:
    """Run a query; its text is of this program, and values never become a part of it."""
    return base.execute(query.encode(), values)


def shown(store: str) -> str:
    """Its name without a password."""
    return re.sub(r"//([^:@/?]*):[^@/]*@", r"//\1@", re.sub(r"password=[^&]*", "password=...", store))


def connected(url: str, name: str, *, idle_s: float = 30.0) -> Base:
    """A connection that begins transactions only when told, and notices within seconds that its server is gone.

    The server ends it if a transaction waits for this process longer than `idle_s`.
    """
    options = (
        f"-c search_path=wirelag -c plan_cache_mode=force_custom_plan -c client_min_messages=warning "
        f"-c idle_in_transaction_session_timeout={round(idle_s * 1000)} -c statement_timeout=60s -c lock_timeout=20s "
        f"-c synchronous_commit=on -c timezone=UTC"
    )
    return psycopg.connect(
        url, autocommit=True, connect_timeout=_CONNECT_S, application_name=name[:63], options=options,
        keepalives_idle=2, keepalives_interval=1, keepalives_count=3, tcp_user_timeout=4000,
    )  # fmt: skip


def opened(url: str, name: str) -> Base:
    """A connection to a database of this version; an empty one is filled, an older one brought up to date."""
    try:
        base = connected(url, name)
    except (psycopg.Error, OSError, UnicodeError) as error:
        raise cannot_open(url, error) from None
    try:
        if version_in(base) != len(STEPS):
            _update(base, url)
    except psycopg.Error as error:
        base.close()
        raise cannot_open(url, error) from None
    except BaseException:
        base.close()
        raise
    return base


def version_of(url: str) -> int | None:
    """The version of a database, None if it is empty; a WirelagError if no collector of this version can use it."""
    try:
        with connected(url, "wirelag check") as base:
            return _known(url, version_in(base))
    except (psycopg.Error, OSError, UnicodeError) as error:
        raise WirelagError(f"{shown(url)}: cannot use it as the collector's store ({plain(error)})") from None


def version_in(base: Base) -> int | None:
    """The version that a database has now."""
    found = run(base, "select to_regclass('wirelag.state')").fetchone()
    if found is None or found[0] is None:
        return None
    row = run(base, "select version from state").fetchone()
    return None if row is None else int(row[0])


def cannot_open(url: str, error: Exception) -> WirelagError:
    """The error of a database that cannot be the store, or not now."""
    code = getattr(error, "sqlstate", None) or ""
    text = str(error)
    if code in _GONE or "does not exist" in text or "authentication failed" in text or 'missing "="' in text:
        return WirelagError(
            f"{shown(url)}: cannot use it as the collector's store ({plain(error)}); "
            f"make the database and its user first: createdb, createuser"
        )
    return StoreUnavailable(f"{shown(url)}: cannot open it as the collector's store now ({plain(error)}); still trying")


def plain(error: Exception) -> str:
    """What PostgreSQL says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


def table_of(length_ns: int) -> str:
    """The table of results of this length."""
    return "singles" if length_ns < MINUTE_NS else "minutes" if length_ns < HOUR_NS else "hours"


def day_of(table: str, start_ns: int) -> int:
    """The beginning of the part of a table that a result is in."""
    return start_ns // PARTITIONED[table] * PARTITIONED[table]


def make_day(base: Base, table: str, day_ns: int) -> bool:
    """Make a part of a table, unless it is there or there is no room; False if others use the rest just now."""
    length_ns, rest = PARTITIONED[table], f"{table}_rest"
    part = f"{table}_{time.strftime('%Y%m%d', time.gmtime(day_ns // 10**9))}"
    try:
        with base.transaction():
            run(base, "set local lock_timeout = '1s'")
            run(base, f"select pg_advisory_xact_lock({_DAYS_LOCK})")
            days = {name for name, _ in days_of(base, table)}
            if part in days or len(days) >= MOST_DAYS:
                return True
            run(base, f"create table {part} (like {table} including all)")
            run(base, f"lock table {rest} in access exclusive mode")
            between = f"start_ns >= {day_ns} and start_ns < {day_ns + length_ns}"
            run(
                base,
                f"with gone as (delete from {rest} where {between} returning *) insert into {part} select * from gone",
            )
            if run(base, f"select 1 from {rest} limit 1").fetchone() is None:
                run(base, f"truncate {rest}")  # else what was deleted keeps its room
            run(
                base,
                f"alter table {table} attach partition {part} for values from ({day_ns}) to ({day_ns + length_ns})",
            )
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def days_of(base: Base, table: str) -> list[tuple[str, int]]:
    """The parts of a table but the rest, the oldest first: name and end."""
    query = (
        "select c.relname, substring(pg_get_expr(c.relpartbound, c.oid) from $$TO \\('?(-?\\d+)$$)::bigint "
        "from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = %s::regclass "
        "and pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT' order by 2"
    )
    return [(str(name), int(end)) for name, end in run(base, query, (f"wirelag.{table}",)).fetchall()]


def _known(url: str, version: int | None) -> int | None:
    if version is not None and version > len(STEPS):
        raise WirelagError(
            f"{shown(url)}: has store version {version}, this wirelag writes {len(STEPS)}; "
            f"use a newer wirelag, or name another database"
        )
    return version


def _update(base: Base, url: str) -> None:
    """From an older version, or none, to this one."""
    with base.transaction():
        run(base, f"select pg_advisory_xact_lock({_STEPS_LOCK})")
        run(base, "create schema if not exists wirelag")
        version = _known(url, version_in(base)) or 0
        for step in STEPS[version:]:
            run(base, step)
        run(base, "update state set version = %s", (len(STEPS),))
