"""Rows added up to as many as a screen can show.

Law: groups are aligned to the epoch, so a group is the same whenever it is asked for. What they say is what minutes and
hours say: sums of their parts (tally.py), settled if all of these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from wirelag.collector.store import Row
from wirelag.collector.tally import Tally


def thinned(rows: Sequence[Row], most: int) -> list[Row]:
    """The same rows, in order of time, or sums of neighbours: at most `most`, if their lengths are alike."""
    if len(rows) <= most:
        return list(rows)
    length_ns = rows[-1].length_ns
    places = (rows[-1].start_ns - rows[0].start_ns) // length_ns + 1
    step_ns = length_ns * -(-places // max(1, most - 1))  # one more, since the first group may begin before the rows
    if most == 1:
        return [_sum(list(rows), rows[0].start_ns, places * length_ns)]
    groups = groupby(rows, lambda row: row.start_ns // step_ns)
    return [_sum(list(some), place * step_ns, step_ns) for place, some in groups]


def _sum(rows: list[Row], start_ns: int, length_ns: int) -> Row:
    first = rows[0]
    whole = Tally.of_parts([row.tally for row in rows])
    return Row(first.segment, first.key, start_ns, length_ns, min(row.rank for row in rows), whole)
