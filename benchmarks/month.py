"""How long a collector takes to answer over 30 days of a thousand segments, from SQLite and from PostgreSQL.

    python benchmarks/month.py [--segments 1000] [--hours 2] [--postgres]

Fills a store as retention leaves it: hours and minutes of 30 days, and single seconds of the last hours. One segment's
results pass the store's own code, and are packed by it; the other segments get copies of what it stored. Then a
collector is started on it, and asked over HTTP for what its page asks for. Times are of the clock, of the first
question after the start and the best of five; bytes as sent. A thousand segments take a few GB, and some minutes to
write.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sqlite3
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support import postgres
from tests.support.collector_process import Running
from tests.support.stored_results import result
from wirelag.collector.columns import COLUMNS
from wirelag.collector.overview import AGAIN_S
from wirelag.collector.postgres import PostgresStore
from wirelag.collector.postgres_tables import PARTITIONED
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.sqlite_check import checksum
from wirelag.collector.store import DAY_NS, HOUR_NS, MINUTE_NS, SECOND_NS
from wirelag.collector.tally import Tally
from wirelag.packets.interval import Interval
from wirelag.protocol.results import Rank

DAYS, POINTS, KINDS, TIMES = 30, 600, 600, 5
FIRST = "a0>b0"


def fill_one(store: SqliteStore | PostgresStore, end_ns: int, hours: float) -> None:
    """Results of one segment; those of longer intervals have more delays."""
    rng = np.random.default_rng(1)
    for length_ns, time_ns, samples in (
        (HOUR_NS, DAYS * DAY_NS, 20_000),
        (MINUTE_NS, DAYS * DAY_NS, 2000),
        (SECOND_NS, round(hours * HOUR_NS), 64),
    ):
        made = [Tally.of(result(5e6 + rng.exponential(2e6, samples)), None) for _ in range(KINDS)]
        last_ns = end_ns // length_ns * length_ns
        starts_ns = range(last_ns - time_ns, last_ns, length_ns)
        for first in range(0, len(starts_ns), 1000):
            store.begin()
            for i, start_ns in enumerate(starts_ns[first : first + 1000]):
                store.put(FIRST, None, Interval(start_ns, start_ns + length_ns), Rank.SETTLED, made[i % KINDS])
            store.commit()
    store.begin()
    store.sum_up(end_ns)
    store.commit()
    store.prune(end_ns)  # what is settled is packed


def copy_in_sqlite(path: str, names: list[str]) -> None:
    """Give other segments what the first has; checksums cover names."""
    columns = f"length_ns, start_ns, rank, {', '.join(COLUMNS)}"
    with closing(sqlite3.connect(path)) as base:
        rows = base.execute(f"select {columns} from results").fetchall()
        blocks = base.execute("select length_ns, start_ns, count, body from blocks").fetchall()
        marks = ", ".join("?" * (len(COLUMNS) + 5))
        for name in names:
            series = base.execute("insert into series (segment, class) values (?, '')", (name,)).lastrowid
            named = ((series, *row, checksum((name, "", *row))) for row in rows)
            base.executemany(f"insert into results values ({marks})", named)
            named = ((series, *row, checksum((name, "", *row))) for row in blocks)
            base.executemany("insert into blocks values (?, ?, ?, ?, ?, ?)", named)
            base.commit()
        base.execute("pragma wal_checkpoint(truncate)")


def copy_in_postgres(url: str, names: list[str]) -> None:
    """The same: the database copies."""
    import psycopg

    with psycopg.connect(url, autocommit=True, options="-c search_path=wirelag") as base:
        base.cursor().executemany("insert into series (segment, class) values (%s, '')", [(name,) for name in names])
        for table in PARTITIONED:
            found = base.execute(
                "select string_agg(column_name, ', ' order by ordinal_position) from information_schema.columns "
                "where table_schema = 'wirelag' and table_name = %s and column_name <> 'series'", (table,)
            ).fetchone()  # fmt: skip
            columns = str(found[0]) if found else ""
            query = (
                f"insert into {table} (series, {columns}) select s.id, {columns} from {table} t "
                f"cross join series s where t.series = (select id from series where segment = '{FIRST}') "
                f"and s.segment <> '{FIRST}'"
            )
            base.execute(query.encode())
        base.execute("vacuum analyze")


def asked(running: Running, path: str, **query: Any) -> tuple[float, int, Any]:
    """Seconds, bytes and the reply; not the one before, which is kept for a moment."""
    time.sleep(AGAIN_S)
    url = f"{running.url}{path}?{urlencode(query)}"
    began_s = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})) as answer:
        data = answer.read()
        took_s, is_pressed = time.monotonic() - began_s, answer.headers.get("Content-Encoding") == "gzip"
    return took_s, len(data), json.loads(gzip.decompress(data) if is_pressed else data)


def questions(end_ns: int, segments: int) -> dict[str, tuple[str, dict[str, Any], str]]:
    """What the page asks: the path, its query, and the list that is counted."""
    now, middle = end_ns / 1e9, f"a{segments // 2}>b{segments // 2}"
    found: dict[str, tuple[str, dict[str, Any], str]] = {"overview": ("/api/v1/overview", {}, "segments")}
    for name, seconds, resolution in (
        ("30 days of hours", DAYS * 86_400, "hour"),
        ("a week of minutes", 7 * 86_400, "minute"),
        ("an hour of seconds", 3600, "interval"),
    ):
        query = {"segment": middle, "resolution": resolution, "from": now - seconds, "to": now + 3600, "points": POINTS}
        found[name] = "/api/v1/reports", query, "reports"
    return found


def main() -> None:
    """Print a line for each question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=2.0, help="of single seconds")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL server of its own, with its own settings")
    options = parser.parse_args()
    names = [f"a{i}>b{i}" for i in range(1, options.segments)]
    end_ns = time.time_ns() // SECOND_NS * SECOND_NS
    with tempfile.TemporaryDirectory(prefix="wirelag-month-") as name:
        folder = Path(name)
        server = postgres.Server(folder / "database") if options.postgres else None
        with ExitStack() as stack:
            words: tuple[str, ...] = ()
            if server is None:
                with closing(SqliteStore(str(folder / "store.db"))) as store:
                    fill_one(store, end_ns, options.hours)
                copy_in_sqlite(str(folder / "store.db"), names)
            else:
                server.make()
                server.start()
                stack.callback(server.stop)
                words = "--store", server.url()
                with closing(PostgresStore(server.url())) as base:
                    fill_one(base, end_ns, options.hours)
                copy_in_postgres(server.url(), names)
            filled_s = time.time() - end_ns / 1e9
            with Running(folder, *words) as running:
                size = running.json("/api/v1/status")["store_bytes"] / 1e9
                print(f"{options.segments:,} segments, {size:.2f} GB, filled in {filled_s:.0f} s", flush=True)
                for title, (path, query, what) in questions(end_ns, options.segments).items():
                    first, *others = (asked(running, path, **query) for _ in range(TIMES + 1))
                    best_s = min(one[0] for one in others)
                    print(
                        f"{title:20} first {first[0] * 1e3:6.0f} ms, then {best_s * 1e3:6.0f} ms "
                        f"{len(first[2][what]):6,} {what} {first[1] / 1e3:7.0f} kB",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
