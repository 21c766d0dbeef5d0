"""How a result goes into its table in PostgreSQL: in one request, which compares it with what is there.

Law: a result that knows less never replaces one that knows more; a sum of fewer parts never one of more.
"""

from __future__ import annotations

from typing import Final

from wirelag.collector.columns import COLUMNS
from wirelag.collector.postgres_reading import NAMES
from wirelag.collector.postgres_tables import LENGTHS

_PUT: Final = """
with before as (select rank from {table} where series = %(series)s and length_ns = %(length)s and start_ns = %(start)s),
put as (
    insert into {table} as old (series, length_ns, start_ns, rank, {names}, beyond)
    values (%(series)s, %(length)s, %(start)s, %(rank)s, {values}, %(beyond)s)
    on conflict (series, length_ns, start_ns) do update
    set (rank, {names}, beyond) = (excluded.rank, {excluded}, excluded.beyond)
    where {replaces}
    returning 1
),
mark as (
    insert into stale (length_ns, start_ns, series)
    select %(sum)s::bigint, %(sum_start)s::bigint, %(series)s::bigint from put where %(sum)s::bigint is not null
    on conflict (length_ns, start_ns, series) do update set series = excluded.series
)
select (select rank from before), exists (select from put)
"""  # the mark of a sum is locked, not only left: who adds up meanwhile must not delete it
_KNOWS_MORE: Final = "old.rank < excluded.rank or (old.rank = excluded.rank and not (coalesce(old.loss_sent, 1) > 0 and coalesce(excluded.loss_sent, 1) = 0))"  # noqa: E501
_IS_SUM: Final = "old.intervals + old.missed <= excluded.intervals + excluded.missed"  # else parts of it are gone


def _put_into(table: str, replaces: str) -> str:
    values, excluded = (", ".join(form.format(name) for name in COLUMNS) for form in ("%({})s", "excluded.{}"))
    return _PUT.format(table=table, names=NAMES, values=values, excluded=excluded, replaces=replaces)


PUTS: Final = {table: _put_into(table, _KNOWS_MORE) for table in LENGTHS}
SUMS: Final = {table: _put_into(table, _IS_SUM) for table in ("minutes", "hours")}
