"""Results that are settled go from rows into blocks, which take a third to a half of the room; in PostgreSQL.

Laws. Rows are deleted and their block is stored in one transaction, so any reader sees each result once. It changes no
result, so the fence is not asked. A late result goes into a row, and the next time into its block; if one comes at the
same moment, both stay, and the one that knows more counts.
"""

from __future__ import annotations

from typing import Final

from psycopg.errors import LockNotAvailable

from wirelag.collector.block import LEAST, ROWS, SETTLED_NS, Block, period_ns
from wirelag.collector.packing import packed, unpacked
from wirelag.collector.postgres_reading import NAMES, block_of
from wirelag.collector.postgres_tables import BLOCKS, LENGTHS, Base, day_of, make_day, run

_DUE: Final = """
with due as (
    select series, length_ns, start_ns / (%(rows)s * length_ns) as number, count(*) as count from {table}
    where start_ns >= 0 and start_ns < %(before)s group by 1, 2, 3
)
select series, length_ns, number * %(rows)s * length_ns from due
where (number + 1) * %(rows)s * length_ns <= %(before)s and (count >= %(least)s or exists (
    select from {blocks} b where b.series = due.series and b.length_ns = due.length_ns
    and b.start_ns = number * %(rows)s * due.length_ns))
order by 3, 1, 2
"""


def pack(base: Base, newest_ns: int) -> int:
    """Pack what is settled; `newest_ns`: of all results. Returns the rows that were packed."""
    done, days = 0, set[int]()
    for table in LENGTHS:
        days.clear()
        given = {"rows": ROWS, "least": LEAST, "before": newest_ns - SETTLED_NS}
        for where in run(base, _DUE.format(table=table, blocks=BLOCKS[table]), given).fetchall():
            day_ns = day_of(BLOCKS[table], where[2])
            if day_ns not in days:
                make_day(base, BLOCKS[table], day_ns)
                days.add(day_ns)
            try:
                done += _pack(base, table, *where)
            except LockNotAvailable:  # somebody writes there: the next time
                continue
    return done


def _pack(base: Base, table: str, series: int, length_ns: int, start_ns: int) -> int:
    blocks, where = BLOCKS[table], (series, length_ns, start_ns)
    with base.transaction():
        run(base, "set local lock_timeout = '1s'")
        query = f"select body from {blocks} where series = %s and length_ns = %s and start_ns = %s"
        stored = run(base, query, where).fetchone()
        these = "series = %s and length_ns = %s and start_ns >= %s and start_ns < %s"
        query = f"delete from {table} where {these} returning start_ns, rank, {NAMES}, beyond"
        rows = run(base, query, (*where, start_ns + period_ns(length_ns))).fetchall()
        fresh = block_of(sorted(rows, key=lambda row: int(row[0])))
        whole = Block.joined([*([] if stored is None else [unpacked(stored[0])]), fresh])
        if len(whole):
            query = (
                f"insert into {blocks} values (%s, %s, %s, %s, %s) on conflict (series, length_ns, start_ns) "
                "do update set (count, body) = (excluded.count, excluded.body)"
            )
            run(base, query, (*where, len(whole), packed(whole)))
    return len(rows)
